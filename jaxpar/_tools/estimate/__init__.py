"""estimate: what a training step needs on each device, and how it would scale, before anything runs.

`step` makes shapes of a module, an optimizer and a batch; `count` compiles them and counts, and
`matrices` counts what XLA does not; `hardware` holds the rates, `scaling` is the model, `report` the
result; `table` and `chart` show it, `command` is `jaxpar estimate`.
"""

from .estimate import estimate as estimate
from .hardware import Hardware as Hardware
from .report import Estimate as Estimate
