"""Convolutions. torch's kernels are (O, I, *k), Flax's (*k, I, O); torch pads 0 by default, Flax SAME."""

import jax.numpy as jnp
from flax import nnx
from torch import nn

from ..case import Case, normal

LINE, PLANE, SPACE = (normal(2, 4, 9),), (normal(2, 4, 9, 8),), (normal(2, 4, 6, 5, 4),)
TORCH = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def convolution(name, inputs, kernel, *, stride=1, padding=0, dilation=1, groups=1, bias=True):
    """One row: options in torch's words, and what they are called in Flax."""
    n = len(kernel)
    pads = padding.upper() if isinstance(padding, str) else [(padding, padding)] * n
    return Case(
        name,
        lambda: TORCH[n](
            4, 8, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=bias
        ),
        lambda rngs: nnx.Conv(
            4,
            8,
            kernel,
            strides=stride,
            padding=pads,
            kernel_dilation=dilation,
            feature_group_count=groups,
            use_bias=bias,
            rngs=rngs,
        ),
        inputs,
        layout="channels_last",
    )


def transposed(name, inputs, kernel, *, stride=1, padding=0, output_padding=0, dilation=1):
    """Flax pads what torch calls the full output; `transpose_kernel` gives the gradient of a convolution."""
    n = len(kernel)
    pads = [(dilation * (k - 1) - padding, dilation * (k - 1) - padding + output_padding) for k in kernel]
    return Case(
        name,
        lambda: TRANSPOSED[n](
            4,
            6,
            kernel,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            dilation=dilation,
        ),
        lambda rngs: nnx.ConvTranspose(
            4,
            6,
            kernel,
            strides=(stride,) * n,
            padding=pads,
            kernel_dilation=(dilation,) * n,
            transpose_kernel=True,
            rngs=rngs,
        ),
        inputs,
        layout="channels_last",
    )


class Edges(nnx.Conv):
    """torch's `padding_mode`: the input is padded by `mode`, the convolution not at all."""

    def __init__(self, mode, rngs):
        super().__init__(4, 8, (3, 3), padding="VALID", rngs=rngs)
        self.mode = mode

    def __call__(self, x):
        return super().__call__(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=self.mode))


def edges(torch_mode, numpy_mode):
    return Case(
        f"Conv2d, padding_mode={torch_mode}",
        lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode=torch_mode),
        lambda rngs: Edges(numpy_mode, rngs),
        PLANE,
        layout="channels_last",
    )


CASES = [
    convolution("Conv1d", LINE, (3,)),
    convolution("Conv1d, same", LINE, (4,), padding="same"),
    convolution("Conv1d, stride 2, dilation 2", LINE, (3,), stride=2, padding=2, dilation=2),
    convolution("Conv2d", PLANE, (3, 3)),
    convolution("Conv2d without bias", PLANE, (3, 3), padding=1, bias=False),
    convolution("Conv2d, 1 x 1", PLANE, (1, 1)),
    convolution("Conv2d, 3 x 2 kernel", PLANE, (3, 2), padding=1),
    convolution("Conv2d, stride 2", PLANE, (3, 3), stride=2, padding=1),
    convolution("Conv2d, dilation 2", PLANE, (3, 3), padding=2, dilation=2),
    convolution("Conv2d, 2 groups", PLANE, (3, 3), padding=1, groups=2),
    convolution("Conv2d, depthwise", PLANE, (3, 3), padding=1, groups=4),
    convolution("Conv2d, same, even kernel", PLANE, (4, 4), padding="same"),
    convolution("Conv2d, valid", PLANE, (3, 3), padding="valid"),
    edges("circular", "wrap"),
    edges("reflect", "reflect"),
    edges("replicate", "edge"),
    convolution("Conv3d", SPACE, (3, 3, 3), padding=1),
    convolution("Conv3d, stride 2, 2 groups", SPACE, (3, 3, 2), stride=2, padding=1, groups=2),
    transposed("ConvTranspose1d", LINE, (3,), stride=2),
    transposed("ConvTranspose2d", PLANE, (3, 3)),
    transposed("ConvTranspose2d, stride 2", PLANE, (4, 4), stride=2, padding=1),
    transposed("ConvTranspose2d, output_padding", PLANE, (3, 3), stride=2, padding=1, output_padding=1),
    transposed("ConvTranspose2d, dilation 2", PLANE, (3, 3), stride=2, dilation=2),
    transposed("ConvTranspose3d", SPACE, (2, 2, 2), stride=2),
]
