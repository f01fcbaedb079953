"""How DistributedDataParallel makes one gradient of those of all replicas: torch's hooks, and your own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
