"""torch.optim's rules and defaults as optax transformations."""

from .._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
