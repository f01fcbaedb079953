"""The parity kit: is this Flax model the same as that torch model, and if not, where and why?

The table of contents is `__init__.pyi`; README.md says how a comparison walks through the files.
`import jaxpar.parity` imports neither JAX nor torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
