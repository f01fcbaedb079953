"""torch.optim.lr_scheduler's schedules as functions of the step."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
