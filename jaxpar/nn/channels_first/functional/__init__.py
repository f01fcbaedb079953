"""torch.nn.functional's functions of images and series in torch's layout: [N, C, *S], weights (O, I, *k)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
