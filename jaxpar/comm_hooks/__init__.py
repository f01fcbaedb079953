"""How DistributedDataParallel reduces gradients: torch's hooks, and custom ones."""

from .._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
