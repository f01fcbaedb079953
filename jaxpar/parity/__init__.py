"""The parity kit: is this Flax model the same as that torch model, and if not, where and why?

Measuring (`measure`), judging (`judge`) and rendering (the methods of `Comparison`) are three things.
`import jaxpar.parity` imports neither JAX nor torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
