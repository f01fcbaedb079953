"""torch's layers under torch's names and in torch's layout, [N, C, *S].

Code that was written for torch's axes (`flatten(1)`, `cat(..., 1)`, `mean((2, 3))`) means the same; XLA
chooses the layout in memory itself. Parameters have Flax's names and layouts, as in jaxpar.nn.
"""

from ..._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
