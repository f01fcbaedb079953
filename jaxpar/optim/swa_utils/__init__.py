"""torch.optim.swa_utils: averages of a model's weights over its training."""

from ..._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
