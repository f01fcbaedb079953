"""Functions for images [N, H, W, C]; what is no image has torch's layout. torch's weights: (O, I, *k).

torch counterpart: `torch.nn.functional`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
