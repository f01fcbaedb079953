"""PyTorch's own `nn.DataParallel`, on any number of pretend devices: see README.md.

    with torch_ref.pretend(4) as devices:
        model.to(devices.device)
        y = torch.nn.DataParallel(model, device_ids=[0, 1, 2, 3])(x.to(devices.device))
        y.sum().backward()
"""

from ._pretend import Devices as Devices, pretend as pretend
from ._tested import UnsupportedTorch as UnsupportedTorch
