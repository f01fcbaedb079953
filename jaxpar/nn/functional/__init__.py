"""The mathematics of jaxpar.nn as pure functions: channels last; parameters and modes are arguments."""

from ..._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
