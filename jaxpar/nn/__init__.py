"""Torch-form layers for Flax, where Flax's own cannot give torch's numbers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
