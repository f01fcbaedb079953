"""estimate and memory_report: what a training step needs, from its compiled program, before anything runs.

`arguments` reads what the user passed, and `program` compiles a step that `_training.traced_step` has traced.
For `estimate`, `step` picks the devices and splits the bytes, `hlo` reads the compiler's text, `work` counts
each instruction, `schedule` puts them into two lanes, `hardware` holds the rates, `scaling` is the model of
time, `largest` looks for the batch that fills a device, and `report` and `picture` show it. For
`memory_report`, that file has torch's way and this one, and `memory` the result. `table` and `chart` serve
both.
"""

from .estimate import estimate as estimate
from .hardware import Hardware as Hardware
from .memory import MemoryReport as MemoryReport
from .memory_report import memory_report as memory_report
from .report import Estimate as Estimate
