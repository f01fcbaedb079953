"""torch.nn.functional's functions of images and series in torch's layout: [N, C, *S], weights (O, I, *k)."""

from ...._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
