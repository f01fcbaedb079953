"""Torch-form layers for Flax, where Flax's own cannot give torch's numbers."""

from .._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
