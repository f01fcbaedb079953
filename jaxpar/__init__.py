"""PyTorch's data parallelism for JAX and Flax, and the proof that it is the same.

`__init__.pyi` lists all public names. Each is imported when it is first used, so `import jaxpar` starts no
backend and loads neither JAX, Flax nor torch. If JAX is loaded already, jaxpar records which line starts it.
"""

import sys

from ._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

if "jax" in sys.modules:
    from . import _upstream  # noqa: F401
