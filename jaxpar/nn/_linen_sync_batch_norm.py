"""convert_sync_batchnorm of a Linen module.

The layers that a compact method makes do not exist before that method runs, so there is nothing to replace.
Like `linen.remat` this makes a subclass of the module's class; its methods run in a context.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from flax import linen

from .._statistics.linen_batch_norm import is_bound, over_all_rows
from .._typing import AxisName
from ._bound_axis import bound_axis


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
