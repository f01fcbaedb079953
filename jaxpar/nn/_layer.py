"""Layer: Flax's Module with the constructor's signature."""

from __future__ import annotations

import inspect

from flax import nnx


class _Signature:
    # inspect stops at the `__call__(*args, **kwargs)` of Flax's metaclass and never reads `__init__`.
    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # a layer is called with the arguments of `__call__`
        _, *parameters = inspect.signature(owner.__init__).parameters.values()  # type: ignore[misc]
        return inspect.Signature(parameters)


class Layer(nnx.Module):
    """Flax's Module; `inspect.signature` of a subclass shows its constructor's arguments."""

    __signature__ = _Signature()
