"""torch's layers under torch's names, for images with their channels last: [N, H, W, C].

Arrays with four axes are images. All others have torch's layout, as in channels_first: [N, C], [N, C, L], [N,
C, D, H, W]. Parameters have Flax's names and layouts, as in jaxpar.nn.
"""

from ..._counterparts import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
