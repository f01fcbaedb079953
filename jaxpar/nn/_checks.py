"""Checks of options, with torch's error messages, for layers at construction and for functions."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from .._arguments import whole
from .._typing import Shape
from ._window import Sizes


def check_eps(eps: float, training: bool) -> None:
    if training and eps <= 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    if eps < 0:
        raise ValueError(f"batch_norm eps must be non-negative, but got {eps}")


def check_groups(num_groups: int, C: int) -> None:
    if num_groups < 1 or C % num_groups:
        raise ValueError(f"num_channels ({C}) must be divisible by num_groups ({num_groups})")


def checked_shape(normalized_shape: int | Sequence[int]) -> Shape:
    lengths = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    shape = tuple(map(operator.index, lengths))
    if not shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            "but got normalized_shape = []"
        )
    return shape


def check_size(size: int) -> None:
    if size < 1:
        raise RuntimeError(f"local_response_norm: size should be greater than zero, but got {size}")


def check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def check_bounds(lower: float, upper: float) -> None:
    if lower > upper:
        raise ValueError(
            f"Lower bound should be less than or equal to the upper bound, but got {lower} and {upper}"
        )


def check_embedding(function: str, table: Sequence[int], padding_idx: int | None, sparse: bool) -> None:
    num_embeddings = whole(function, "num_embeddings", table[0], 0)
    whole(function, "embedding_dim", table[1], 0)
    if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
        raise ValueError(
            f"{function}: padding_idx must be within num_embeddings, but is {padding_idx} for "
            f"{num_embeddings} rows."
        )
    if sparse:
        raise ValueError(f"{function}: JAX has no sparse gradients; leave sparse=True out.")


def check_embedding_bag(
    table: Sequence[int], mode: str, scale_grad_by_freq: bool, sparse: bool, padding_idx: int | None
) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"mode has to be one of sum, mean or max, but is {mode!r}")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if mode == "max" and sparse:
        raise ValueError("max mode does not support sparse weights")
    check_embedding("embedding_bag", table, padding_idx, sparse)


def check_divisor(function: str, divisor_override: int | None) -> None:
    if divisor_override == 0:
        raise ValueError(f"{function}: divisor must be not zero.")


def check_norm_type(function: str, norm_type: float) -> None:
    if norm_type == 0:
        raise ValueError(f"{function}: norm_type is 0, and 1 / norm_type a division by zero.")


def check_output_size(function: str, output_size: Sizes) -> None:
    sizes = output_size if isinstance(output_size, Sequence) else [output_size]
    if any(o is not None and o < 0 for o in sizes):
        raise ValueError(
            f"{function}: elements of output_size must be greater than or equal to 0 but received "
            f"{output_size}."
        )


def check_factor(function: str, name: str, factor: int) -> None:
    if factor <= 0:
        raise ValueError(f"{function} expects a positive {name}, but got {factor}")


def check_shuffle_groups(groups: int) -> None:
    if groups <= 0:
        raise ValueError(f"Number of groups to divide channels in must be positive. Value of groups:{groups}")


INTERPOLATING = ("linear", "bilinear", "trilinear", "bicubic", "lanczos")
COPYING = ("nearest", "nearest-exact", "area")


def check_interpolation(
    size: int | Sequence[int] | None,
    scale_factor: float | Sequence[float] | None,
    mode: str,
    align_corners: bool | None,
    recompute_scale_factor: bool | None,
    antialias: bool = False,
) -> None:
    if mode not in INTERPOLATING and mode not in COPYING:
        modes = ", ".join(COPYING + INTERPOLATING)
        raise NotImplementedError(f"interpolate: mode={mode!r} is none of {modes}.")
    if mode in COPYING and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: "
            "linear | bilinear | bicubic | trilinear"
        )
    if (size is None) == (scale_factor is None):
        problem = "either" if size is None else "only one of"
        raise ValueError(f"{problem} size or scale_factor should be defined")
    if recompute_scale_factor and size is not None:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    if antialias and mode not in ("bilinear", "bicubic", "lanczos"):
        raise ValueError("Anti-alias option is restricted to bilinear, bicubic, and lanczos modes")
    if mode == "lanczos" and align_corners:
        raise ValueError("Lanczos mode does not support align_corners=True")
    if mode == "lanczos" and not antialias:
        raise ValueError("Lanczos mode requires antialias=True")
