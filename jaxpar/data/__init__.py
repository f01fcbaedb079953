"""Batches: torch's samplers and DataLoader without torch, and batches that are on the devices in time."""

from .._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
