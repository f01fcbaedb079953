"""Conv and ConvTranspose with torch's arguments, paddings and initial values.

What Flax's layers do not have: padding_mode replicate, groups and output_padding of a transposed
convolution. What they do otherwise: `padding` is "SAME" (torch: none), kernels start as truncated
normals and biases as 0 (torch: both uniform).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from ._variable import uniform
from .functional import conv, conv_transpose
from .functional._conv import window_of
from .functional._conv_transpose import output_padding_for, transposed_window
from .functional._window import Ints


class Conv(nnx.Module):
    """Convolution over one, two, three or more axes, as many as `kernel_size` has numbers.

    Args:
      in_channels: I.
      out_channels: O.
      kernel_size: k, one number for each spatial axis; an int for one axis, so torch's
        `Conv2d(I, O, 3)` is `Conv(I, O, (3, 3))`.
      stride: one number for all spatial axes, or one for each; so are `padding` and `dilation`.
      padding: elements before and after each axis; "valid" for none; "same" for an output as long as
        the input, where the end gets the odd one.
      dilation: the distance between the kernel's elements.
      groups: of channels; each sees the input channels of its own group.
      bias: whether there is a `bias`, [O].
      padding_mode: "zeros", "reflect", "replicate" or "circular".
      dtype: in which it is computed; the common type of input and parameters if left out.
      param_dtype: of the parameters.
      rngs: for the initial values, U(-b, b) with b = 1 / sqrt(I / groups * k).

    Input and output: [N, *S, I] to [N, *T, O], T = (S + 2 padding - dilation (k - 1) - 1) // stride + 1;
    or one row, without N.

    Raises:
      ValueError, RuntimeError: when it is made, with options that torch refuses; when it is called,
        with another number of axes or channels, or where the kernel is longer than the padded input.

    torch counterpart: `torch.nn.Conv1d/2d/3d`, channels last. `weight` (O, I / groups, *k) is `kernel`
    [*k, I / groups, O]: its axes are (2, ..., 1, 0). Source: torch/nn/modules/conv.py.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: str | Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        k = tuple(kernel_size) if isinstance(kernel_size, Sequence) else (kernel_size,)
        window_of(k, in_channels, out_channels, stride, padding, dilation, groups, padding_mode)
        shape = (*k, in_channels // groups, out_channels)
        fan_in = math.prod(shape[:-1])
        self.kernel = uniform(rngs, shape, fan_in, param_dtype)
        self.bias = uniform(rngs, (out_channels,), fan_in, param_dtype) if bias else nnx.data(None)
        self.kernel_size = k
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        self.padding_mode = padding_mode
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        x, kernel, bias = _promoted(self, x)
        return conv(x, kernel, bias, self.stride, self.padding, self.dilation, self.groups, self.padding_mode)


class ConvTranspose(nnx.Module):
    """The transpose of a convolution, over as many axes as `kernel_size` has numbers.

    Args:
      in_channels: I.
      out_channels: O.
      kernel_size: k, one number for each spatial axis; an int for one axis.
      stride: the distance between the input's elements in the output; one number for all spatial
        axes, or one for each, as are `padding`, `output_padding` and `dilation`.
      padding: elements cut off at both ends of the output.
      output_padding: elements more at its end, fewer than stride or dilation.
      groups: of channels; each sees the input channels of its own group.
      bias: whether there is a `bias`, [O].
      dilation: the distance between the kernel's elements.
      padding_mode: "zeros", as in torch.
      dtype: in which it is computed; the common type of input and parameters if left out.
      param_dtype: of the parameters.
      rngs: for the initial values, U(-b, b) with b = 1 / sqrt(O / groups * k).

    Input and output: [N, *S, I] to [N, *T, O], T = (S - 1) stride - 2 padding + dilation (k - 1) +
    output_padding + 1; or one row, without N. Called with `output_size`, [*T] or a whole shape, it
    takes the output_padding that gives it.

    Raises:
      ValueError, RuntimeError: when it is made, with options that torch refuses; when it is called,
        with another number of axes or channels, or an `output_size` that cannot be.

    torch counterpart: `torch.nn.ConvTranspose1d/2d/3d`, channels last. `weight` (I, O / groups, *k) is
    `kernel` [*k, O / groups, I]: its axes are (2, ..., 1, 0). Without groups that is the kernel of
    `flax.nnx.ConvTranspose(transpose_kernel=True)`. Source: torch/nn/modules/conv.py.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Ints = 1,
        padding_mode: str = "zeros",
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if padding_mode != "zeros":
            raise ValueError('Only "zeros" padding mode is supported for ConvTranspose')
        k = tuple(kernel_size) if isinstance(kernel_size, Sequence) else (kernel_size,)
        transposed_window(k, in_channels, out_channels, stride, padding, output_padding, groups, dilation)
        shape = (*k, out_channels // groups, in_channels)
        fan_in = math.prod(shape[:-1])
        self.kernel = uniform(rngs, shape, fan_in, param_dtype)
        self.bias = uniform(rngs, (out_channels,), fan_in, param_dtype) if bias else nnx.data(None)
        self.kernel_size = k
        self.stride = stride
        self.padding = padding
        self.output_padding = output_padding
        self.groups = groups
        self.dilation = dilation
        self.dtype = dtype

    def __call__(self, x: jax.Array, output_size: Sequence[int] | None = None) -> jax.Array:
        x, kernel, bias = _promoted(self, x)
        more = self.output_padding
        if output_size is not None:
            more = output_padding_for(
                output_size, x, self.kernel_size, self.stride, self.padding, self.dilation
            )
        return conv_transpose(x, kernel, bias, self.stride, self.padding, more, self.groups, self.dilation)


def _promoted(layer: Conv | ConvTranspose, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    bias = None if layer.bias is None else layer.bias[...]
    return dtypes.promote_dtype((x, layer.kernel[...], bias), dtype=layer.dtype)
