"""VGG-11 with BatchNorm (Simonyan and Zisserman 2014), with torchvision's layers in one list each.

torchvision numbers the layers of `features` and `classifier` with the activations and pools between
them; here they are counted on both sides alone, so that a list of layers is a list of layers.
"""

from flax import nnx
from torch import nn

import jaxpar

from ..case import Case, normal

VGG11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG(nn.Module):
    def __init__(self, stages, hidden, classes, pixels):
        super().__init__()
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        inside = 3
        for width in sum(stages, ()):
            self.convs.append(nn.Conv2d(inside, width, 3, padding=1))
            self.norms.append(nn.BatchNorm2d(width))
            inside = width
        flat = inside * (pixels >> len(stages)) ** 2
        self.classifier = nn.ModuleList(
            [nn.Linear(flat, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, classes)]
        )
        self.pool = nn.MaxPool2d(2)
        self.depths = [len(stage) for stage in stages]

    def forward(self, x):
        layers = iter(zip(self.convs, self.norms, strict=True))
        for depth in self.depths:
            for _ in range(depth):
                conv, norm = next(layers)
                x = norm(conv(x)).relu()
            x = self.pool(x)
        x = x.flatten(1)
        for layer in self.classifier[:-1]:
            x = layer(x).relu()
        return self.classifier[-1](x)


class FlaxVGG(nnx.Module):
    def __init__(self, stages, hidden, classes, pixels, rngs):
        self.convs, self.norms = nnx.List([]), nnx.List([])
        inside = 3
        for width in sum(stages, ()):
            self.convs.append(nnx.Conv(inside, width, (3, 3), padding=1, rngs=rngs))
            self.norms.append(jaxpar.nn.BatchNorm(width))
            inside = width
        flat = inside * (pixels >> len(stages)) ** 2
        widths = [(flat, hidden), (hidden, hidden), (hidden, classes)]
        self.classifier = nnx.List([nnx.Linear(i, o, rngs=rngs) for i, o in widths])
        self.depths = tuple(len(stage) for stage in stages)

    def __call__(self, x):
        layers = iter(zip(self.convs, self.norms, strict=True))
        for depth in self.depths:
            for _ in range(depth):
                conv, norm = next(layers)
                x = nnx.relu(norm(conv(x)))
            x = nnx.max_pool(x, (2, 2), (2, 2))
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        for layer in self.classifier[:-1]:
            x = nnx.relu(layer(x))
        return self.classifier[-1](x)


def vgg(stages=VGG11, hidden=4096, classes=1000, pixels=32, rows=4):
    return Case(
        "VGG-11-BN",
        lambda: VGG(stages, hidden, classes, pixels),
        lambda rngs: FlaxVGG(stages, hidden, classes, pixels, rngs),
        (normal(rows, 3, pixels, pixels),),
        layout="channels_last",
    )
