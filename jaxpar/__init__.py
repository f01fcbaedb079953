"""PyTorch's data parallelism for JAX and Flax, and the proof that it is the same.

The table of contents is `__init__.pyi`, in the order in which data meets the names. Each name is
imported when it is first used: `import jaxpar` starts no backend and loads neither JAX, Flax nor
torch. Where JAX is loaded already, it is watched from here on for the line that starts it
(`jaxpar.virtual_devices` names that line if it comes too late).
"""

import sys

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if "jax" in sys.modules:
    from . import _upstream  # noqa: F401
