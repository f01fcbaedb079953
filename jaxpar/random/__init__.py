"""torch's CPU random numbers without torch, bit for bit: draws, initialisations, the order of samplers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
