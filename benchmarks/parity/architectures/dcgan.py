"""DCGAN (Radford et al. 2015): a generator of transposed convolutions and its discriminator.

torch's `ConvTranspose2d(4, stride=2, padding=1)` doubles an image. Flax counts the padding of the
gradient's convolution: 4 - 1 - 1 = 2 on both sides. Its kernel is turned by `transpose_kernel`.
"""

import itertools

import optax
from flax import nnx
from torch import nn

import jaxpar

from ..case import Case, normal


class Generator(nn.Module):
    """[N, noise, 1, 1] to [N, 3, 4 * 2**k, ...] for k + 1 widths."""

    def __init__(self, noise, widths):
        super().__init__()
        inside = [noise, *widths]
        first = nn.ConvTranspose2d(noise, widths[0], 4, bias=False)
        rest = [nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False) for i, o in itertools.pairwise(widths)]
        self.ups = nn.ModuleList([first, *rest])
        self.norms = nn.ModuleList(nn.BatchNorm2d(w) for w in inside[1:])
        self.image = nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1, bias=False)

    def forward(self, x):
        for up, norm in zip(self.ups, self.norms, strict=True):
            x = norm(up(x)).relu()
        return self.image(x).tanh()


class FlaxGenerator(nnx.Module):
    def __init__(self, noise, widths, rngs):
        def up(inside, outside, stride=2, padding=2):
            return nnx.ConvTranspose(
                inside,
                outside,
                (4, 4),
                (stride, stride),
                padding=[(padding, padding)] * 2,
                use_bias=False,
                transpose_kernel=True,
                rngs=rngs,
            )

        first = up(noise, widths[0], stride=1, padding=3)
        rest = [up(i, o) for i, o in itertools.pairwise(widths)]
        self.ups = nnx.List([first, *rest])
        self.norms = nnx.List([jaxpar.nn.BatchNorm(w) for w in widths])
        self.image = up(widths[-1], 3)

    def __call__(self, x):
        for up, norm in zip(self.ups, self.norms, strict=True):
            x = nnx.relu(norm(up(x)))
        return nnx.tanh(self.image(x))


class Discriminator(nn.Module):
    """[N, 3, 8 * 2**k, ...] to one logit a row, for k + 1 widths."""

    def __init__(self, widths):
        super().__init__()
        inside = [3, *widths]
        self.convs = nn.ModuleList(
            nn.Conv2d(i, o, 4, 2, 1, bias=False) for i, o in zip(inside, widths, strict=False)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(w) for w in widths[1:])
        self.head = nn.Conv2d(widths[-1], 1, 4, bias=False)

    def forward(self, x):
        norms = [nn.Identity(), *self.norms]
        for conv, norm in zip(self.convs, norms, strict=True):
            x = nn.functional.leaky_relu(norm(conv(x)), 0.2)
        return self.head(x).flatten(1)


class FlaxDiscriminator(nnx.Module):
    def __init__(self, widths, rngs):
        inside = [3, *widths]
        self.convs = nnx.List(
            [
                nnx.Conv(i, o, (4, 4), 2, padding=1, use_bias=False, rngs=rngs)
                for i, o in zip(inside, widths, strict=False)
            ]
        )
        self.norms = nnx.List([jaxpar.nn.BatchNorm(w) for w in widths[1:]])
        self.head = nnx.Conv(widths[-1], 1, (4, 4), padding="VALID", use_bias=False, rngs=rngs)

    def __call__(self, x):
        norms = [nnx.identity, *self.norms]
        for conv, norm in zip(self.convs, norms, strict=True):
            x = nnx.leaky_relu(norm(conv(x)), 0.2)
        return self.head(x).reshape(len(x), -1)


def generator(noise=100, widths=(512, 256, 128, 64), rows=4):
    return Case(
        "DCGAN, generator",
        lambda: Generator(noise, widths),
        lambda rngs: FlaxGenerator(noise, widths, rngs),
        (normal(rows, noise, 1, 1),),
        layout="channels_last",
    )


def discriminator(widths=(64, 128, 256, 512), rows=4):
    pixels = 4 << len(widths)
    return Case(
        "DCGAN, discriminator",
        lambda: Discriminator(widths),
        lambda rngs: FlaxDiscriminator(widths, rngs),
        (normal(rows, 3, pixels, pixels),),
        (lambda random: random.randint(2, size=(rows, 1)).astype(float),),
        (
            nn.functional.binary_cross_entropy_with_logits,
            lambda y, t: optax.sigmoid_binary_cross_entropy(y, t).mean(),
        ),
        layout="channels_last",
    )
