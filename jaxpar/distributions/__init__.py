"""torch.distributions for reinforcement learning: values and gradients in JAX, draws of torch or of JAX."""

from .._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
