"""Conv and ConvTranspose with torch's arguments, paddings and initial values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from .._arguments import Size
from .._upstream import promote_dtype
from ._array_types import Floating
from ._checks import conv_options, output_padding_for, transposed_options
from ._layer import Layer, arrays, optional, uniform
from ._window import Ints, sizes
from .functional import conv, conv_transpose


class Conv(Layer):
    """Convolution over one, two, three or more axes, as many as `kernel_size` has numbers.

    Args:
      in_channels, out_channels: I and O.
      kernel_size: k, one number for each spatial axis; an int for one axis, so torch's `Conv2d(I, O, 3)` is
        `Conv(I, O, (3, 3))`.
      stride: one number for all spatial axes, or one for each; so are `padding` and `dilation`.
      padding: elements before and after each axis; "valid" for none; "same" for an output as long as the
        input, where an odd element goes to the end.
      dilation: the distance between the kernel's elements.
      groups: of channels; each reads only its own input channels.
      bias: whether there is a `bias`, [O].
      padding_mode: what the padding is: "zeros", "reflect" (without the border), "replicate" (the border),
        "circular" (from the other end).
      dtype: of the computation; the common type of input and parameters if left out.
      param_dtype: of the parameters.
      rngs: draws the initial values, U(-b, b) with b = 1 / sqrt(I / groups * k).

    Input and output: [N, *S, I] to [N, *T, O], T = (S + 2 padding - dilation (k - 1) - 1) // stride + 1; or
    one row, without N.

    Raises: ValueError, RuntimeError: at construction, for options that torch refuses; when called, for a
    different number of axes or channels, or a kernel longer than the padded input.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from jaxpar import nn
    >>> nn.Conv(3, 8, (3, 3), padding=1, rngs=nnx.Rngs(0))(jnp.ones((2, 5, 5, 3))).shape
    (2, 5, 5, 8)

    torch counterpart: `torch.nn.Conv1d/2d/3d`, channels last. `weight` (O, I / groups, *k) is `kernel` [*k, I
    / groups, O]: its axes are (2, ..., 1, 0). Source: torch/nn/modules/conv.py.
    """

    axes: int = 1
    """Number of axes of the kernel if `kernel_size` is an int."""

    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: str | Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        k = sizes(kernel_size, self.axes)
        conv_options(k, in_channels, out_channels, stride, padding, dilation, groups, padding_mode)
        shape = (*k, in_channels // groups, out_channels)
        fan_in = math.prod(shape[:-1])
        self.kernel = uniform(rngs, shape, fan_in, param_dtype)
        self.bias = optional(bias, lambda: uniform(rngs, (out_channels,), fan_in, param_dtype))
        self.in_channels, self.out_channels = in_channels, out_channels
        # Subclasses read these, which are one number for each axis in torch, too.
        self.kernel_size, self.stride, self.dilation = k, sizes(stride, len(k)), sizes(dilation, len(k))
        self.padding = padding if isinstance(padding, str) else sizes(padding, len(k))
        self.groups = groups
        self.padding_mode = padding_mode
        self.dtype = dtype

    def __call__(self, x: Floating) -> jax.Array:
        x, kernel, bias = _promoted(self, x)
        return conv(x, kernel, bias, self.stride, self.padding, self.dilation, self.groups, self.padding_mode)


class ConvTranspose(Layer):
    """The transpose of a convolution, over as many axes as `kernel_size` has numbers.

    Args:
      in_channels, out_channels: I and O.
      kernel_size, groups, bias, dilation, dtype, param_dtype: as in `Conv`.
      stride: the distance between the input's elements in the output; one number for all spatial axes, or one
        for each, as are `padding`, `output_padding` and `dilation`.
      padding: elements cut off at both ends of the output.
      output_padding: elements added at its end, fewer than stride or dilation.
      padding_mode: "zeros", as in torch.
      rngs: draws the initial values, U(-b, b) with b = 1 / sqrt(O / groups * k).

    Input and output: [N, *S, I] to [N, *T, O], T = (S - 1) stride - 2 padding + dilation (k - 1) +
    output_padding + 1; or one row, without N. Called with `output_size`, [*T] or a complete shape, it chooses
    the output_padding for that size.

    Raises: ValueError, RuntimeError: at construction, for options that torch refuses; when called, for a
    different number of axes or channels, or an impossible `output_size`.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from jaxpar import nn
    >>> nn.ConvTranspose(8, 3, (2, 2), stride=2, rngs=nnx.Rngs(0))(jnp.ones((2, 5, 5, 8))).shape
    (2, 10, 10, 3)

    torch counterpart: `torch.nn.ConvTranspose1d/2d/3d`, channels last. `weight` (I, O / groups, *k) is
    `kernel` [*k, O / groups, I]: its axes are (2, ..., 1, 0). Without groups that is the kernel of
    `flax.nnx.ConvTranspose(transpose_kernel=True)`. Source: torch/nn/modules/conv.py.
    """

    axes: int = 1
    """Number of axes of the kernel if `kernel_size` is an int."""

    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Ints = 1,
        padding_mode: str = "zeros",
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if padding_mode != "zeros":
            raise ValueError('Only "zeros" padding mode is supported for ConvTranspose')
        k = sizes(kernel_size, self.axes)
        transposed_options(k, in_channels, out_channels, stride, padding, output_padding, groups, dilation)
        shape = (*k, out_channels // groups, in_channels)
        # torch takes the fan-in from axis 1 of the weight. Here that is (I, O / groups, *k), so the bound
        # depends on the outputs and not on the inputs.
        fan_in = math.prod(shape[:-1])
        self.kernel = uniform(rngs, shape, fan_in, param_dtype)
        self.bias = optional(bias, lambda: uniform(rngs, (out_channels,), fan_in, param_dtype))
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.dilation = k, sizes(stride, len(k)), sizes(dilation, len(k))
        self.padding, self.output_padding = sizes(padding, len(k)), sizes(output_padding, len(k))
        self.groups = groups
        self.dtype = dtype

    def __call__(self, x: Floating, output_size: Sequence[int] | None = None) -> jax.Array:
        x, kernel, bias = _promoted(self, x)
        more = self.output_padding
        if output_size is not None:
            more = output_padding_for(
                output_size, x.shape, self.kernel_size, self.stride, self.padding, self.dilation
            )
        return conv_transpose(x, kernel, bias, self.stride, self.padding, more, self.groups, self.dilation)


def _promoted(layer: Conv | ConvTranspose, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    return promote_dtype((x, *arrays(layer.kernel, layer.bias)), dtype=layer.dtype)
