"""torch.optim.swa_utils: averages of a model's weights over its training."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
