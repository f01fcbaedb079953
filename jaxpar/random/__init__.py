"""torch's CPU random numbers without torch, bit for bit: draws, initialisations, the order of samplers."""

from .._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
