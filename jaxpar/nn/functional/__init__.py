"""The mathematics of jaxpar.nn as pure functions: channels last, parameters as arguments.

The layers of jaxpar.nn hold parameters and call these; Linen users call them as they are. As in
torch.nn.functional, randomness, running values and modes are arguments; running values that change come back
as results.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
