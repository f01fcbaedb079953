"""A planted bug: a healthy case, and how its Flax side is made wrong."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from flax import nnx

from ..case import Case

Plant = Callable[[Case], Case]


@dataclasses.dataclass(frozen=True)
class Bug:
    """`cause` is what the catalogue must name, as a part of its text; None for what is not in it."""

    name: str
    healthy: Case
    plant: Plant
    cause: str | None = None

    @property
    def case(self) -> Case:
        return dataclasses.replace(self.plant(self.healthy), name=self.name)


def changed(path: str, **attributes: Any) -> Plant:
    """Attributes of the Flax layer at a path like `block.norm` are set to other values."""

    def change(net: Any, rngs: nnx.Rngs) -> None:
        layer = functools.reduce(getattr, path.split("."), net) if path else net
        for name, value in attributes.items():
            assert hasattr(layer, name), f"{path or 'the model'} has no {name} to be changed"
            setattr(layer, name, value)

    return _afterwards(change)


def replaced(name: str, build: Callable[[nnx.Rngs], Any]) -> Plant:
    """Another layer in the place of the model's own, with the same weights."""

    def change(net: Any, rngs: nnx.Rngs) -> None:
        assert hasattr(net, name), f"the model has no {name} to be replaced"
        setattr(net, name, build(rngs))

    return _afterwards(change)


def _afterwards(change: Callable[[Any, nnx.Rngs], None]) -> Plant:
    """The healthy model is built, and then changed."""

    def plant(case: Case) -> Case:
        def build(rngs: nnx.Rngs) -> Any:
            net = case.flax(rngs)
            change(net, rngs)
            return net

        return dataclasses.replace(case, flax=build)

    return plant


def flax(build: Callable) -> Plant:
    """Another Flax module with the same weights."""
    return lambda case: dataclasses.replace(case, flax=build)


def loss(wrong: Callable) -> Plant:
    """Another loss on the Flax side."""
    return lambda case: dataclasses.replace(case, loss=(case.loss[0], wrong))


def optimizer(wrong: Any) -> Plant:
    """Another optax transformation."""
    return lambda case: dataclasses.replace(case, optimizer=(case.optimizer[0], wrong))
