"""Bugs of layers: options with another default in Flax, and what a port of a picture network gets wrong."""

import jax.numpy as jnp
from flax import nnx

import jaxpar

from ..layers.pooling import average_pool, bilinear
from .bug import Bug, changed, replaced
from .twins import CUMULATIVE, PICTURE, SEQUENCE


class Frozen(jaxpar.nn.BatchNorm):
    """Left in evaluation mode, whatever mode the model is in."""

    def __call__(self, x):
        self.use_running_average = True
        return super().__call__(x)


class Turned(nnx.Linear):
    """torch's [out, in] used as it is: a square kernel hides it."""

    def __call__(self, x):
        return x @ self.kernel.T + self.bias


class Bare(nnx.Linear):
    """The bias is there and is not used."""

    def __call__(self, x):
        return x @ self.kernel


class Twice(nnx.Linear):
    """The bias is added twice."""

    def __call__(self, x):
        return super().__call__(x) + self.bias


class Unturned(nnx.ConvTranspose):
    """The kernel read as an ordinary convolution's: rows and columns in reverse."""

    def __call__(self, x):
        self.kernel[...] = jnp.flip(self.kernel[...], (0, 1))
        return super().__call__(x)


class Unscaled(nnx.Module):
    """What is kept is not made larger by 1/(1-p)."""

    def __init__(self, rngs):
        self.dropout = nnx.Dropout(0.25, rngs=rngs)

    def __call__(self, x):
        return self.dropout(x) * (1 - self.dropout.rate)


def unturned(rngs):
    return Unturned(4, 4, (3, 3), padding=2, transpose_kernel=True, rngs=rngs)


def layer(kind):
    return lambda rngs: kind(8, 8, rngs=rngs)


def flat(x):
    return x.reshape(len(x), -1)


def half_pixels(x):
    return bilinear(x, 5, 5)


def over_tokens(x):
    return nnx.log_softmax(x, axis=1)


def flax_batch_norm(rngs):
    """Momentum turned into Flax's sense; its running variance is the biased one."""
    return nnx.BatchNorm(4, momentum=0.9, epsilon=1e-5, use_fast_variance=False, rngs=rngs)


BUGS = [
    Bug("LayerNorm epsilon 1e-6", SEQUENCE, changed("norm", epsilon=1e-6), "epsilon=1e-05"),
    Bug("RMSNorm epsilon 1e-6", SEQUENCE, changed("rms", epsilon=1e-6), "epsilon=1e-05"),
    Bug("GroupNorm epsilon 1e-6", PICTURE, changed("group", epsilon=1e-6), "epsilon=1e-05"),
    Bug("GroupNorm, 4 groups for 2", PICTURE, changed("group", num_groups=4, group_size=1), "num_groups=2"),
    Bug("BatchNorm eps 1e-3", PICTURE, changed("norm", eps=1e-3), "epsilon=1e-05"),
    Bug("BatchNorm momentum, complement", PICTURE, changed("norm", momentum=0.9), "momentum=0.1"),
    Bug("BatchNorm momentum None taken for 0.1", CUMULATIVE, changed("norm", momentum=0.1), "momentum=1 "),
    Bug("BatchNorm, biased running variance", PICTURE, replaced("norm", flax_batch_norm), "unbiased"),
    Bug(
        "BatchNorm in evaluation mode",
        PICTURE,
        replaced("norm", lambda rngs: Frozen(4)),
        "use_running_average=False",
    ),
    Bug("GELU, tanh's form", PICTURE, changed("act", function=nnx.gelu), "approximate=False"),
    Bug("LeakyReLU, slope 0.01", SEQUENCE, changed("act", function=nnx.leaky_relu), "negative_slope=0.01"),
    Bug("softmax over tokens", SEQUENCE, changed("softmax", function=over_tokens), "over axis -1"),
    Bug("flatten in Flax's order", PICTURE, changed("flatten", function=flat), "(C, *S)"),
    Bug("padding SAME for 1, stride 2", PICTURE, changed("conv", padding="SAME"), "padding=[(1, 1), (1, 1)]"),
    Bug("padding of a transposed convolution", PICTURE, changed("grow", padding="SAME")),
    Bug("transposed convolution, kernel not turned", PICTURE, replaced("grow", unturned), "flipped"),
    Bug(
        "AvgPool without its padding in the count",
        PICTURE,
        changed("pool", function=average_pool(3, 2, 1, count=False)),
        "count_include_pad=True",
    ),
    Bug("align_corners=False", PICTURE, changed("resize", function=half_pixels), "align_corners=True"),
    Bug("Dropout 0.5 for 0.25", PICTURE, changed("drop", rate=0.5), "rate=0.25"),
    Bug("Dropout without 1/(1-p)", PICTURE, replaced("drop", Unscaled), "divided by 1 - rate"),
    Bug("square kernel transposed", SEQUENCE, replaced("down", layer(Turned)), "transpose"),
    Bug("bias not used", SEQUENCE, replaced("down", layer(Bare)), "the bias is added"),
    Bug("bias used twice", SEQUENCE, replaced("down", layer(Twice)), "added once"),
    Bug("positions off by one", SEQUENCE, changed("", first=1), "shifted by 1"),
    Bug("padding_idx with a gradient", SEQUENCE, changed("", padding=None)),
    Bug("residual dropped", SEQUENCE, changed("", residual=False), "left out"),
]
