"""Functions of images [N, H, W, C], with torch's weights (O, I, *k); other arrays have torch's layout.

torch counterpart: `torch.nn.functional`.
"""

from ...._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
