"""PyTorch's data parallelism for JAX and Flax, and the proof that it is the same.

The table of contents is `__init__.pyi`, in the order in which data meets the names. Each name is
imported when it is first used: `import jaxpar` starts no backend and loads neither JAX, Flax nor
torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
