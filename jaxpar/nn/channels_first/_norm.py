"""Norms of [N, C, *S] over the channels or groups of them."""

from __future__ import annotations

import jax

from .. import _batch_norm, _group_norm, _local_response_norm
from .axes import ChannelsFirst


class _BatchNorm(ChannelsFirst, _batch_norm.BatchNorm):
    ranks: tuple[int, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        _check_rank(self, x, self.ranks)
        return super().__call__(x)


class _InstanceNorm(ChannelsFirst, _group_norm.InstanceNorm):
    axes: int

    def __call__(self, x: jax.Array) -> jax.Array:
        _check_rank(self, x, (self.axes + 1, self.axes + 2))
        return super().__call__(x)


def _check_rank(layer: _BatchNorm | _InstanceNorm, x: jax.Array, ranks: tuple[int, ...]) -> None:
    if x.ndim not in ranks:
        said = " or ".join(f"{rank}D" for rank in ranks)
        raise ValueError(f"{type(layer).__name__}: expected {said} input (got {x.ndim}D input)")


class GroupNorm(ChannelsFirst, _group_norm.GroupNorm):
    """[N, C, ...]; `jaxpar.nn.GroupNorm` has the arguments.

    torch counterpart: `torch.nn.GroupNorm`; `weight` is `scale`.
    """


class LocalResponseNorm(ChannelsFirst, _local_response_norm.LocalResponseNorm):
    """[N, C, ...]; `jaxpar.nn.LocalResponseNorm` has the arguments.

    torch counterpart: `torch.nn.LocalResponseNorm`.
    """


class BatchNorm1d(_BatchNorm):
    """[N, C] or [N, C, L]; `jaxpar.nn.BatchNorm` has the arguments.

    torch counterpart: `torch.nn.BatchNorm1d`, with the names of `jaxpar.nn.BatchNorm`.
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """[N, C, H, W]; `jaxpar.nn.BatchNorm` has the arguments.

    Raises:
      ValueError: another number of axes, or what `jaxpar.nn.BatchNorm` refuses.

    torch counterpart: `torch.nn.BatchNorm2d`, with the names of `jaxpar.nn.BatchNorm`.
    """

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """[N, C, D, H, W]; `jaxpar.nn.BatchNorm` has the arguments.

    Raises:
      ValueError: another number of axes, or what `jaxpar.nn.BatchNorm` refuses.

    torch counterpart: `torch.nn.BatchNorm3d`, with the names of `jaxpar.nn.BatchNorm`.
    """

    ranks = (5,)


class InstanceNorm1d(_InstanceNorm):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.InstanceNorm` has the arguments.

    Raises:
      ValueError: another number of axes, or what `jaxpar.nn.BatchNorm` refuses.

    torch counterpart: `torch.nn.InstanceNorm1d`.
    """

    axes = 1


class InstanceNorm2d(_InstanceNorm):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.InstanceNorm` has the arguments.

    Raises:
      ValueError: another number of axes, or what `jaxpar.nn.BatchNorm` refuses.

    torch counterpart: `torch.nn.InstanceNorm2d`.
    """

    axes = 2


class InstanceNorm3d(_InstanceNorm):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.InstanceNorm` has the arguments.

    Raises:
      ValueError: another number of axes, or what `jaxpar.nn.BatchNorm` refuses.

    torch counterpart: `torch.nn.InstanceNorm3d`.
    """

    axes = 3
