"""SyncBatchNorm: BatchNorm over the rows of all replicas.

Flax's BatchNorm with `axis_name` takes the mean of the replicas' means, which is not the mean of the batch
when `mask` leaves them different numbers of rows.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen, nnx
from jax.typing import DTypeLike

from .._arguments import NonNegative, Size
from .._statistics.linen_batch_norm import is_bound, over_all_rows
from .._typing import REPLICA, Axis, AxisName, ReplicaGroups
from ._batch_norm import BatchNorm


class SyncBatchNorm(BatchNorm):
    """Normalise [..., C] over all axes but the last and over all replicas.

    Args:
      num_features: C.
      eps, momentum, affine, track_running_stats, bias, dtype, param_dtype, rngs: as in `BatchNorm`.
      process_group: of `jaxpar.distributed.new_group`: the replicas of a group's processes share their
        statistics. Every process passes its own group; the groups are exchanged when DistributedDataParallel
        wraps the module. None: all replicas of the axis.
      axis_name: the mesh axis, or axes, over which the batch is spread. jaxpar's own programs name it
        "replica", the default; in your own `shard_map` it is your name. None: never synchronise.

    Call it with `mask`, booleans of the shape of x's first axes ([b]: rows), if the replicas' arrays are
    filled up to the same length: masked rows do not count, and counts may differ between replicas.
    Statistics, outputs and gradients equal one BatchNorm's on all rows that count. In evaluation nothing is
    synchronised.

    Raises: ValueError: at construction, for an invalid process group, no channels or a negative eps; when
    called, in a program over mesh axes none of which is `axis_name` (every replica would quietly take its own
    statistics) or with groups that are not settled, or for a single value per channel on all replicas
    together.

    torch counterpart: `torch.nn.SyncBatchNorm`, channels last, names as in `BatchNorm`. Source:
    torch/nn/modules/batchnorm.py, torch/nn/modules/_functions.py.
    """

    def __init__(
        self,
        num_features: Size,
        eps: NonNegative = 1e-5,
        momentum: NonNegative | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: object = None,
        *,
        axis_name: AxisName = REPLICA,
        bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        _check_group("SyncBatchNorm", process_group)
        if num_features == 0:
            raise ValueError("SyncBatchNorm number of input channels should be non-zero")
        options: dict[str, Any] = {"bias": bias, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **options)
        self.axis_name = axis_name
        self.process_group = process_group

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        axis: Axis = None if self.use_running_average else bound_axis("SyncBatchNorm", self.axis_name)
        if axis is not None and self.process_group is not None:
            axis = _settled(self.process_group)
        return self._normalize(x, axis_name=axis, mask=mask)


def _settled(process_group: object) -> ReplicaGroups:
    # Not `axis_size`: a program for an uneven batch is also traced for smaller numbers of replicas.
    mesh = jax.sharding.get_abstract_mesh()
    N = mesh.shape.get(REPLICA)
    if isinstance(process_group, ReplicaGroups) and N in (None, len(process_group.numbers)):
        return process_group
    raise ValueError(
        f"SyncBatchNorm: which of the {N} replicas are in process_group is settled when "
        "DistributedDataParallel wraps the module over them. Wrap it after this layer was made, or leave "
        "process_group out."
    )


def _check_group(function: str, process_group: object) -> None:
    # This package does not import jaxpar.distributed, whose groups have ranks.
    if process_group is not None and not hasattr(process_group, "ranks"):
        raise ValueError(
            f"{function}: process_group is a {type(process_group).__name__}, and not one of "
            "jaxpar.distributed.new_group."
        )


def convert_sync_batchnorm(
    module: nnx.Module | linen.Module, process_group: object = None, *, axis_name: AxisName = REPLICA
) -> Any:
    """Replace every BatchNorm in a module by a SyncBatchNorm with the same variables.

    >>> from flax import linen
    >>> from jaxpar import nn
    >>> net = nn.convert_sync_batchnorm(linen.Sequential([linen.Dense(3), linen.BatchNorm()]))
    >>> isinstance(net, linen.Sequential)
    True

    Args:
      module: an NNX module. Its `jaxpar.nn.BatchNorm` and `flax.nnx.BatchNorm` layers are replaced, in
        attributes, lists, tuples and dicts, however deep. Or a Linen module that no wrapper holds yet.
      process_group: of the new layers, see `SyncBatchNorm`.
      axis_name: of the new layers; a Flax layer that has one keeps it.

    Returns: The same module, changed; a SyncBatchNorm if `module` is itself a BatchNorm. Parameters and
    statistics are the same `nnx.Variable` objects, so an optimizer made before keeps working. A Flax layer's
    `momentum` becomes torch's, 1 - momentum, and from here on the running variance is the unbiased one.
    For a Linen module, a module of a subclass: all `flax.linen.BatchNorm` layers that its methods call,
    also those made there, take the mean and the variance of all rows of all replicas. Variables, momentum and
    the biased running variance stay Flax's.

    Raises: TypeError: no such module, a Linen module that a wrapper or a parent holds, or in an NNX module
    a subclass of BatchNorm of your own, whose additions would be lost (torch converts it and drops them).
    ValueError: an invalid process group, or any for a Linen module; in an NNX module a Flax layer with
    `axis_index_groups` or with its channels elsewhere than last.

    torch counterpart: `torch.nn.SyncBatchNorm.convert_sync_batchnorm`. A layer that two names share is
    converted once, under both; torch leaves the second one as it was (docs/semantics.md row B5).
    """
    _check_group("convert_sync_batchnorm", process_group)
    if isinstance(module, linen.Module):
        return synchronised(module, process_group, axis_name)
    if not isinstance(module, nnx.Module):
        raise TypeError(
            f"convert_sync_batchnorm: {type(module).__name__} is neither an NNX module nor a Linen module."
        )
    return _converted(module, "module", _Where(process_group, axis_name), {})


class _Where(NamedTuple):
    process_group: object
    axis_name: AxisName


def _converted(node: Any, path: str, where: _Where, replacements: dict[int, Any]) -> Any:
    if id(node) in replacements:
        return replacements[id(node)]

    def child(name: Any, value: Any) -> Any:
        return _converted(value, f"{path}.{name}", where, replacements)

    if isinstance(node, BatchNorm | nnx.BatchNorm):
        replacements[id(node)] = _synchronised(node, path, where)
        return replacements[id(node)]
    # Tuples are immutable: rebuild a changed one, a named tuple by its own constructor.
    if isinstance(node, tuple):
        items = [child(i, value) for i, value in enumerate(node)]
        changed = any(a is not b for a, b in zip(items, node, strict=True))
        return (type(node)(*items) if hasattr(node, "_fields") else tuple(items)) if changed else node
    # Before the children, so that a cycle ends here.
    replacements[id(node)] = node
    if isinstance(node, nnx.Module):
        for name, value in list(vars(node).items()):
            # Attributes with this prefix are Flax's own records.
            if not name.startswith("_pytree__") and (after := child(name, value)) is not value:
                setattr(node, name, after)
    elif isinstance(node, list | dict):
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            node[key] = child(key, value)
    return node


def _synchronised(layer: BatchNorm | nnx.BatchNorm, path: str, where: _Where) -> SyncBatchNorm:
    if type(layer) not in (BatchNorm, SyncBatchNorm, nnx.BatchNorm):
        raise TypeError(
            f"convert_sync_batchnorm: {path} is a {type(layer).__name__}, a BatchNorm of your own, and what "
            "you added to it would be lost. Replace it yourself."
        )
    if isinstance(layer, nnx.BatchNorm):
        if layer.axis_index_groups is not None:
            raise ValueError(
                f"convert_sync_batchnorm: {path} has axis_index_groups, of a mesh axis. Give "
                "process_group=, of processes, or leave it out."
            )
        if layer.axis != -1:
            raise ValueError(
                f"convert_sync_batchnorm: {path} has its channels on axis {layer.axis}, not last."
            )
        where = where._replace(axis_name=layer.axis_name or where.axis_name)
        eps, momentum = layer.epsilon, 1 - layer.momentum
    else:
        eps, momentum = layer.eps, layer.momentum
    new = SyncBatchNorm(layer.num_features, eps, momentum, dtype=layer.dtype, **where._asdict())
    for name in ("scale", "bias", "mean", "var"):
        variable = getattr(layer, name)
        setattr(new, name, nnx.data(None) if variable is None else variable)
    new.num_batches_tracked = nnx.data(_count(layer))
    new.use_running_average = bool(layer.use_running_average)
    return new


def _count(layer: BatchNorm | nnx.BatchNorm) -> nnx.BatchStat | None:
    if isinstance(layer, BatchNorm):
        return layer.num_batches_tracked
    # Flax's layer does not count. Layers that nnx.vmap or nnx.scan stacks have axes in front, and so have
    # their counts; where the channels are not last, no count could be stacked the same way.
    *stacked, channels = layer.mean.shape
    return nnx.BatchStat(jnp.zeros(stacked, jnp.int32)) if channels == layer.num_features else None


# The layers that a compact method makes do not exist before that method runs, so there is nothing to replace.
# Like `linen.remat` this makes a subclass of the module's class; its methods run in a context.
def synchronised(module: linen.Module, process_group: object, axis_name: AxisName) -> linen.Module:
    """Return a module of a subclass whose BatchNorm layers have the statistics of all replicas."""
    if process_group is not None:
        raise ValueError(
            "convert_sync_batchnorm: process_group is for NNX modules, whose layers can be found when "
            "DistributedDataParallel wraps them. Leave it out for a Linen module."
        )
    if hasattr(module, "device_ids") or module.scope is not None or isinstance(module.parent, linen.Module):
        raise TypeError(
            f"convert_sync_batchnorm: this {type(module).__name__} is a wrapper, has a parent or is bound to "
            "its variables. Convert the module before: jaxpar.DataParallel(convert_sync_batchnorm(module))."
        )
    names = [f.name for f in dataclasses.fields(module) if f.init and f.name != "parent"]
    cls: Any = type(module)
    if "_converted_from" in vars(cls):
        cls = cls._converted_from
    return _class_of(cls, axis_name)(**{name: getattr(module, name) for name in names})


@functools.cache  # modules of one class are equal only if their class is the same
def _class_of(cls: type[linen.Module], axis_name: AxisName) -> type[linen.Module]:
    def axis_of(layer: linen.BatchNorm) -> AxisName:
        if layer.axis_name is not None and is_bound(layer.axis_name):
            return layer.axis_name
        return bound_axis("convert_sync_batchnorm", axis_name)

    def in_context(method: Callable[..., Any]) -> Callable[..., Any]:
        # Not wrapped by Linen again, which would record its outputs twice; the method itself is.
        @linen.nowrap
        @functools.wraps(method)
        def call(self: linen.Module, *args: Any, **kwargs: Any) -> Any:
            with over_all_rows(axis_of):
                return method(self, *args, **kwargs)

        return call

    methods = {name: in_context(getattr(cls, name)) for name in _methods(cls)}
    attributes = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_converted_from": cls}
    return types.new_class(
        cls.__name__, (cls,), exec_body=lambda namespace: namespace.update(methods | attributes)
    )


def _methods(cls: type[linen.Module]) -> list[str]:
    """The methods that a user has written: all but Linen's own, which lead to them."""
    classes = cls.__mro__[: cls.__mro__.index(linen.Module)]
    members = {name: value for base in reversed(classes) for name, value in vars(base).items()}
    return [
        name
        for name, value in members.items()
        if inspect.isfunction(value)
        and (name == "__call__" or not (hasattr(linen.Module, name) or name.startswith("__")))
    ]


def bound_axis(function: str, axis_name: AxisName) -> AxisName:
    """Return the axis, or None outside of any mapped program. Raises ValueError in one over other axes."""
    if axis_name is None or is_bound(axis_name):
        return axis_name
    # An unbound name is a mistake in a program over other axes; outside of any program there is one replica.
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return None
    raise ValueError(
        f"{function}: this program runs over the mesh axes {tuple(axes)}, and axis_name={axis_name!r} is "
        "none of them. Pass the axis over which the batch is spread, or axis_name=None to let every replica "
        "take its own statistics."
    )
