"""torch.distributed's API for training in several processes, on top of `jax.distributed`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
