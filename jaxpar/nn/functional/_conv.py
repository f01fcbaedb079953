"""conv and conv_transpose: torch's paddings and groups, channels last, kernels in Flax's layout."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..._typing import Shape
from .._checks import ConvOptions, conv_options, transposed_options
from .._window import Ints
from ._pad import pad

FEW = 4
"""The number of groups up to which a convolution for each is faster than a sum over the kernel's elements."""


def conv(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> jax.Array:
    """Convolution over as many axes as the kernel has.

    Args:
      x: [N, *S, I], or one row [*S, I]. I: channels in.
      kernel: [*k, I / groups, O]. O: channels out.
      bias: [O], or None.
      stride, padding, dilation, groups, padding_mode: as for `jaxpar.nn.Conv`.

    Returns: [N, *T, O], T = (S + 2 padding - dilation (k - 1) - 1) // stride + 1. Raises: ValueError,
    RuntimeError: what torch refuses, with torch's reason: options that do not fit together, a different
    number of axes or channels, a kernel longer than the padded input.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.conv(jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 4)), padding=1).shape
    (2, 8, 8, 4)

    torch counterpart: `torch.nn.functional.conv1d/2d/3d`, whose weight is (O, I / groups, *k), and the
    padding modes of `torch.nn.Conv1d/2d/3d`. Source: torch/nn/modules/conv.py, ATen/native/Convolution.cpp.
    """
    n = kernel.ndim - 2
    k, I, O = kernel.shape[:n], kernel.shape[-2] * groups, kernel.shape[-1]
    strides, pads, dilations = conv_options(k, I, O, stride, padding, dilation, groups, padding_mode)
    rows = _as_rows(f"conv{n}d", x, n, I, groups, kernel)
    if padding_mode != "zeros":
        # `pad` lists the last spatial axis first, as torch's does.
        rows = pad(rows, [p for pair in reversed(pads) for p in pair], padding_mode)
        pads = ((0, 0),) * n
    _check_extent(rows.shape[1:-1], k, pads, dilations)
    return _convolved(x, rows, kernel, bias, ConvOptions(strides, pads, dilations), (1,) * n, groups)


def conv_transpose(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> jax.Array:
    """The transpose of `conv` with these options: what the convolution does to its gradient.

    Args:
      x: [N, *S, I], or one row [*S, I].
      kernel: [*k, O / groups, I], the kernel of the convolution from O to I channels.
      bias: [O], or None.
      stride, padding, output_padding, groups, dilation: as for `jaxpar.nn.ConvTranspose`.

    Returns: [N, *T, O], T = (S - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1. Raises:
    ValueError, RuntimeError: what torch refuses, with torch's reason: options that do not fit together, a
    different number of axes or channels, no output left.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.conv_transpose(jnp.ones((2, 8, 8, 4)), jnp.ones((2, 2, 3, 4)), stride=2).shape
    (2, 16, 16, 3)

    torch counterpart: `torch.nn.functional.conv_transpose1d/2d/3d`, whose weight is (I, O / groups, *k).
    Source: ATen/native/Convolution.cpp.
    """
    n = kernel.ndim - 2
    k, I, O = kernel.shape[:n], kernel.shape[-1], kernel.shape[-2] * groups
    strides, pads, dilations, more = transposed_options(
        k, I, O, stride, padding, output_padding, groups, dilation
    )
    rows = _as_rows(f"conv_transpose{n}d", x, n, I, groups, kernel)
    reach = [d * (size - 1) for d, size in zip(dilations, k, strict=True)]
    axes = zip(rows.shape[1:-1], strides, pads, reach, more, strict=True)
    space = [(s - 1) * step - 2 * p + r + extra + 1 for s, step, p, r, extra in axes]
    if min(space) <= 0:
        raise RuntimeError(
            f"Given input size per channel: {list(rows.shape[1:-1])}. Calculated output size per channel: "
            f"{space}. Output size is too small"
        )
    # A transposed convolution is a plain one over the input spread out by `strides`, with a flipped kernel.
    # Padding p removes p elements of the full result at each end; output_padding adds back at the end only.
    ends = [(r - p, r - p + extra) for r, p, extra in zip(reach, pads, more, strict=True)]
    options = ConvOptions((1,) * n, tuple(ends), dilations)
    return _convolved(x, rows, _turned(kernel, n, groups), bias, options, strides, groups)


def _convolved(
    x: jax.Array,
    rows: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    options: ConvOptions,
    input_dilations: Shape,
    groups: int,
) -> jax.Array:
    # Only float64 takes the first branch, where XLA's CPU has no fast code of its own.
    if rows.dtype == jnp.float64:
        spread = [(0, 0, 0), *((0, 0, step - 1) for step in input_dilations), (0, 0, 0)]
        rows = jax.lax.pad(rows, jnp.zeros((), rows.dtype), spread)
        y = (
            _by_planes(rows, kernel, options, groups)
            if kernel.ndim == 5
            else _of_planes(rows, kernel, options, groups)
        )
    else:
        y = _of_xla(rows, kernel, options, groups, input_dilations)
    y = y if bias is None else y + bias
    return y if rows.ndim == x.ndim else y[0]


def _of_xla(
    rows: jax.Array,
    kernel: jax.Array,
    options: ConvOptions,
    groups: int,
    input_dilations: Shape | None = None,
) -> jax.Array:
    n = kernel.ndim - 2
    space = tuple(range(1, n + 1))
    data, kernels = (0, n + 1, *space), (n + 1, n, *range(n))  # channels last; kernels [*k, in, out]
    return jax.lax.conv_general_dilated(
        rows,
        kernel,
        options.stride,
        options.padding,
        lhs_dilation=input_dilations,
        rhs_dilation=options.dilation,
        dimension_numbers=jax.lax.ConvDimensionNumbers(data, kernels, data),
        feature_group_count=groups,
    )


def _by_planes(rows: jax.Array, kernel: jax.Array, options: ConvOptions, groups: int) -> jax.Array:
    # The sum of convolutions over two axes, of one plane of the kernel each: in float64 XLA's CPU has a plain
    # loop for three axes, hundreds of times slower than its code for two. Pad depth here, because planes are
    # cut from the padded depth; the 2-d convolution pads the other axes.
    strides, pads, dilations = options
    rows = jnp.pad(rows, ((0, 0), pads[0], *[(0, 0)] * 3))
    N, depth = rows.shape[:2]
    step, dilation = strides[0], dilations[0]
    planes = (depth - dilation * (kernel.shape[0] - 1) - 1) // step + 1
    plane_options = ConvOptions(strides[1:], pads[1:], dilations[1:])
    parts = []
    for i, plane in enumerate(kernel):
        met = jax.lax.slice_in_dim(rows, i * dilation, i * dilation + (planes - 1) * step + 1, step, axis=1)
        met = met.reshape(N * planes, *met.shape[2:])
        parts.append(_of_planes(met, plane, plane_options, groups))
    y = jnp.sum(jnp.stack(parts), 0)
    return y.reshape(N, planes, *y.shape[1:])


def _of_planes(rows: jax.Array, kernel: jax.Array, options: ConvOptions, groups: int) -> jax.Array:
    if kernel.ndim == 3:
        options = ConvOptions((1, *options.stride), ((0, 0), *options.padding), (1, *options.dilation))
        return _of_planes(rows[:, None], kernel[None], options, groups)[:, 0]
    if groups <= FEW:
        parts = zip(jnp.split(rows, groups, -1), jnp.split(kernel, groups, -1), strict=True)
        outputs = [_of_one_group(part, weights, options) for part, weights in parts]
        return outputs[0] if groups == 1 else jnp.concatenate(outputs, -1)
    # In float64 XLA's CPU has a plain loop for the derivatives of groups, up to a hundred times slower than
    # this sum over the kernel's elements, one after the other.
    strides, pads, dilations = options
    rows = jnp.pad(rows, ((0, 0), *pads, (0, 0)))
    N, *space, I = rows.shape
    *k, channels, O = kernel.shape
    sizes = [(s - d * (n - 1) - 1) // t + 1 for s, d, n, t in zip(space, dilations, k, strides, strict=True)]
    # Number of elements from the first to the last that a kernel tap reads, before the stride thins them.
    spans = [(size - 1) * t + 1 for size, t in zip(sizes, strides, strict=True)]

    # Slice again in the backward pass: the slices of all taps together are as large as k copies of the input.
    @jax.checkpoint
    def add(y: jax.Array, tap: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        at, weights = tap
        met = jax.lax.dynamic_slice(rows, (0, at[0], at[1], 0), (N, *spans, I))
        met = met[:, :: strides[0], :: strides[1]].reshape(N, *sizes, groups, channels)
        # Depthwise: an elementwise product instead of matrix products with an inner size of 1.
        if channels == 1:
            return y + met * weights[0], None
        return y + jnp.einsum("nhwgi,igo->nhwgo", met, weights), None

    offsets = jnp.stack(jnp.meshgrid(*map(jnp.arange, k), indexing="ij"), -1).reshape(-1, 2)
    weights = kernel.reshape(-1, channels, groups, O // groups)
    empty = jnp.zeros((N, *sizes, groups, O // groups), jnp.result_type(rows, kernel))
    y, _ = jax.lax.scan(add, empty, (offsets * jnp.asarray(dilations), weights))
    return y.reshape(N, *sizes, O)


def _of_one_group(rows: jax.Array, kernel: jax.Array, options: ConvOptions) -> jax.Array:
    # In float64 XLA's CPU has a plain loop for the derivatives too, up to seventy times slower than its code
    # for windows with a center at each element: so compute all of these, and leave out those between strides.
    strides, pads, dilations = options
    k, space, zero = kernel.shape[:2], rows.shape[1:3], jnp.zeros((), rows.dtype)
    axes = list(zip(space, strides, pads, dilations, k, strict=True))
    h, w = ((s + low + high - d * (n - 1) - 1) // t + 1 for s, t, (low, high), d, n in axes)
    if dilations == (1, 1) and k[0] <= strides[0] and k[1] <= strides[1]:
        # Windows that do not overlap are a matrix product.
        lows, ends = (pads[0][0], pads[1][0]), (h * strides[0], w * strides[1])
        cut = [(low, end - s - low, 0) for low, end, s in zip(lows, ends, space, strict=True)]
        windows = jax.lax.pad(rows, zero, [(0, 0, 0), *cut, (0, 0, 0)])
        windows = windows.reshape(len(rows), h, strides[0], w, strides[1], -1)[:, :, : k[0], :, : k[1]]
        return jnp.einsum("nhawbi,abio->nhwo", windows, kernel)
    reach = [d * (n // 2) for *_, d, n in axes]
    if strides == (1, 1) and pads == tuple((r, r) for r in reach) and k[0] % 2 and k[1] % 2:
        return _of_xla(rows, kernel, options, 1)
    kernel = jax.lax.pad(kernel, zero, [*((0, 1 - n % 2, 0) for n in k), (0, 0, 0), (0, 0, 0)])
    first = [r - low for r, (low, _) in zip(reach, pads, strict=True)]
    last = [at + (size - 1) * t for at, size, t in zip(first, (h, w), strides, strict=True)]
    more = [(max(-a, 0), max(b + 1 - s, 0)) for a, b, s in zip(first, last, space, strict=True)]
    # The barriers keep XLA from making these pads, and the derivatives', the convolution's own.
    rows = jax.lax.optimization_barrier(jnp.pad(rows, [(0, 0), *more, (0, 0)]))
    same = ConvOptions((1, 1), tuple((r, r) for r in reach), dilations)
    y = jax.lax.optimization_barrier(_of_xla(rows, kernel, same, 1))
    spans = [slice(a + m, b + m + 1, t) for a, b, (m, _), t in zip(first, last, more, strides, strict=True)]
    return y[:, spans[0], spans[1]]


def _turned(kernel: jax.Array, n: int, groups: int) -> jax.Array:
    """[*k, O / groups, I] as the kernel [*k, I / groups, O] of the equivalent plain convolution."""
    *k, channels, I = kernel.shape
    # Groups divide O in a transposed kernel but I in a plain one, so the group axis moves between the two.
    kernel = jnp.flip(kernel, tuple(range(n))).reshape(*k, channels, groups, I // groups)
    return jnp.moveaxis(kernel, n, n + 2).swapaxes(n, n + 1).reshape(*k, I // groups, groups * channels)


def _as_rows(function: str, x: jax.Array, n: int, I: int, groups: int, kernel: jax.Array) -> jax.Array:
    if x.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {function}, but got input of "
            f"size: {list(x.shape)}"
        )
    if x.shape[-1] != I:
        raise RuntimeError(
            f"Given groups={groups}, kernel of shape {list(kernel.shape)}, expected input{list(x.shape)} to "
            f"have {I} channels, but got {x.shape[-1]} channels instead"
        )
    if 0 in x.shape[-n - 1 : -1]:
        raise RuntimeError(
            f"Only zero batch or zero channel inputs are supported, but got input shape: {list(x.shape)}"
        )
    return x if x.ndim == n + 2 else x[None]


def _check_extent(space: Shape, k: Shape, pads: Sequence[tuple[int, int]], dilation: Shape) -> None:
    padded = [s + sum(p) for s, p in zip(space, pads, strict=True)]
    extent = [d * (size - 1) + 1 for d, size in zip(dilation, k, strict=True)]
    if any(r > s for r, s in zip(extent, padded, strict=True)):
        raise RuntimeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). Kernel size: "
            f"({' x '.join(map(str, extent))}). Kernel size can't be greater than actual input size"
        )
