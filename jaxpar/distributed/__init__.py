"""torch.distributed's names for several processes; underneath is jax.distributed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
