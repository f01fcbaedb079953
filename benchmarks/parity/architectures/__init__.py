"""The architectures, at the size of the benchmark and at the size of the tests.

Each file shows the torch module and the Flax module side by side, with the same attribute paths, so that
weights match by name.
"""

from .bert import bert
from .dcgan import discriminator, generator
from .gpt2 import gpt2
from .gru import gru
from .lenet import lenet, lenet_linen
from .lstm import lstm
from .mlp import mlp, mlp_linen
from .mobilenet import mobilenet
from .resnet import resnet18, resnet50
from .unet import unet
from .vgg import vgg
from .vit import vit, vit_linen

SMALL = {
    mlp: {"widths": (6, 8, 5, 3), "rows": 4},
    mlp_linen: {"widths": (6, 8, 5, 3), "rows": 4},
    lenet: {"pixels": 16, "rows": 2},
    lenet_linen: {"pixels": 16, "rows": 2},
    resnet18: {"depths": (1, 1), "width": 4, "classes": 5, "pixels": 16, "rows": 3},
    resnet50: {"depths": (1, 1), "width": 4, "classes": 5, "pixels": 16, "rows": 3},
    vgg: {"stages": ((4,), (6, 6)), "hidden": 8, "classes": 5, "pixels": 8, "rows": 3},
    unet: {"width": 4, "depth": 2, "pixels": 8, "rows": 2},
    mobilenet: {"stem": 4, "blocks": ((4, 1, 2), (6, 2, 2)), "classes": 5, "pixels": 12, "rows": 3},
    generator: {"noise": 5, "widths": (8, 6), "rows": 3},
    discriminator: {"widths": (4, 6), "rows": 3},
    vit: {"pixels": 8, "patch": 4, "width": 8, "heads": 2, "depth": 2, "classes": 5, "rows": 2},
    vit_linen: {"pixels": 8, "patch": 4, "width": 8, "heads": 2, "depth": 2, "classes": 5, "rows": 2},
    gpt2: {"vocabulary": 11, "context": 6, "width": 8, "heads": 2, "depth": 2, "rows": 2},
    bert: {"vocabulary": 11, "context": 6, "width": 8, "heads": 2, "depth": 2, "rows": 3},
    lstm: {"vocabulary": 11, "width": 5, "depth": 2, "rows": 2, "steps": 4},
    gru: {"vocabulary": 11, "width": 5, "tags": 3, "rows": 2, "steps": 4},
}


def cases(small=False):
    """All of them, in the order of the table."""
    return [build(**(sizes if small else {})) for build, sizes in SMALL.items()]
