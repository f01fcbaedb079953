"""torch.distributed's API for training in several processes, on top of `jax.distributed`."""

from .._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
