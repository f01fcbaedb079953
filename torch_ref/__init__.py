"""PyTorch's own `nn.DataParallel`, on any number of pretend devices; README.md explains how.

`pretend` is the context manager, `Devices` what it yields, `UnsupportedTorch` the error it raises.
"""

from ._pretend import Devices as Devices
from ._pretend import pretend as pretend
from ._tested import UnsupportedTorch as UnsupportedTorch
