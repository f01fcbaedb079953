"""`estimate` and `memory_report`: a training step's memory and time, read from its compiled program.

`arguments` validates the user's arguments, and `program` compiles a step that `_training.traced_step` has
traced. For `estimate`, `step` picks the devices and splits the bytes, `hlo` parses the compiler's text,
`work` counts each instruction, `schedule` puts them into two lanes, `hardware` holds the rates, `scaling` is
the model of time, `largest` searches the batch that fills a device, and `report` and `picture` show the
result. For `memory_report`, that file measures both frameworks' patterns, and `memory` shows them. `table`
and `chart` serve both.
"""

from .estimate import estimate as estimate
from .hardware import Hardware as Hardware
from .memory import MemoryReport as MemoryReport
from .memory_report import memory_report as memory_report
from .report import Estimate as Estimate
