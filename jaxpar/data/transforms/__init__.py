"""torchvision's transforms of images without torch: the same draws, the same pixels, channels last."""

from ..._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
