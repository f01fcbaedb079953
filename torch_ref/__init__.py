"""PyTorch's own `nn.DataParallel`, on any number of pretend devices: README.md says how.

`pretend` is the context, `Devices` what it gives, `UnsupportedTorch` how it refuses.
"""

from ._pretend import Devices as Devices
from ._pretend import pretend as pretend
from ._tested import UnsupportedTorch as UnsupportedTorch
