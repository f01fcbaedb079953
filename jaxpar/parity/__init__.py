"""Parity: check that a Flax model computes what a torch model computes, and find where and why it does not.

`__init__.pyi` is the table of contents; README.md follows a comparison through the files.
`import jaxpar.parity` imports neither JAX nor torch.
"""

from .._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
