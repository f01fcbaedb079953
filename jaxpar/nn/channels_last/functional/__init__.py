"""Functions of images [N, H, W, C], with torch's weights (O, I, *k); other arrays have torch's layout.

torch counterpart: `torch.nn.functional`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
