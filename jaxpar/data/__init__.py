"""Batches: torch's samplers and DataLoader without torch, and batches that are on the devices in time."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
