"""torch.optim.lr_scheduler's schedules as functions of the step."""

from ..._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
