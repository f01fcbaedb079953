"""estimate and memory_report: what a training step needs, from its compiled program, before anything runs.

`arguments` reads what the user passed, and `program` what the compiler says of a step that
`_training.traced_step` has traced. For `estimate`, `count` sums that up, `matrices` adds what XLA does not
count, `hardware` holds the rates, `scaling` is the model of time, and `report` the result. For
`memory_report`, that file has torch's way and this one, and `memory` the result. `table` and `chart` show
both.
"""

from .estimate import estimate as estimate
from .hardware import Hardware as Hardware
from .memory import MemoryReport as MemoryReport
from .memory_report import memory_report as memory_report
from .report import Estimate as Estimate
