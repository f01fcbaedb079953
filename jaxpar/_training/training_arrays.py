"""training_arrays: a training step's arrays: networks, optimizers, metrics, the step's own state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .. import _exact
from .._parallel.modules import Changes
from .._parallel.modules.bundle import Bundle
from .._parallel.modules.nnx_view import NNXView
from .._parallel.placement import Placement
from .._tree import is_array
from .._typing import PyTree
from .arrays import CallArrays, ObjectArrays, take_distinct
from .division import DividedArrays
from .on_update import UpdateHook
from .optimizer_calls import OptimizerCall, optimizer_calls
from .world import World


class TrainingArrays(CallArrays):
    """The arrays of networks and their optimizers, and in `extra` the step's own, such as a loss scale."""

    def __init__(
        self,
        net: nnx.Module,
        module: nnx.Module,
        optimizer: nnx.Module | nnx.Optimizer,
        placement: Placement | None,
        world: World,
        hook: UpdateHook | None = None,
        divides: bool = False,
    ):
        super().__init__(net, module, placement, world)
        self.divides = divides  # whether replicas divide the optimizer's arrays
        self.optimizer = (DividedArrays if divides else ObjectArrays)(optimizer, placement, world)
        self.hook = hook
        self.hook_objects = None if hook is None else ObjectArrays(hook.objects, placement, world)
        self.extra: dict[str, Any] = {}
        self._held_shapes: set[tuple[int, ...]] = set()  # of what net and optimizer hold
        self._numbers: dict[int, float] = {}  # from which the optimizer's arrays were made, by position

    @property
    def numbers(self) -> dict[str, float]:
        return {self.optimizer.view.names[i]: number for i, number in self._numbers.items()}

    @property
    def definitions(self) -> Any:
        hook = None if self.hook_objects is None else self.hook_objects.view.definition
        return self.definition, self.optimizer.view.definition, hook

    @property
    def parameters(self) -> tuple[int, ...]:  # type: ignore[override]
        return self._optimizer_calls()[0]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        several = isinstance(self.net, Bundle) and self.net.several
        return tuple(call.order for call in self._optimizer_calls()[1]) if several else ()

    @property
    def sums(self) -> tuple[int, ...]:  # type: ignore[override]
        key = "sums", self.definition
        if key not in self._structures:
            self._structures[key] = sums_in(self.thing, self.view)
        return self._structures[key]

    def _optimizer_calls(self) -> tuple[tuple[int, ...], list[OptimizerCall]]:
        key = self.definitions
        if key not in self._structures:
            self._structures[key] = optimizer_calls(self.net, self.optimizer.thing, self.view)
        return self._structures[key]

    def reset(self, extra: dict[str, Any]) -> None:
        placed = extra
        if self.placement is not None and not self.placement.of_topology:
            placed = jax.device_put(extra, self.placement.replicated)
        self.extra |= self.world.shared(placed)

    def take(self) -> tuple[list, dict[str, Any]]:
        # Before reading, which may move the arrays: a number is found by its array's identity.
        numbers = map(_exact.recall, self.optimizer.current_values())
        self._numbers = {i: number for i, number in enumerate(numbers) if number is not None}
        if self.hook_objects is None:
            values, optimizer = take_distinct(self, self.optimizer)
            return values, {**self.extra, "optimizer": optimizer}
        values, optimizer, hook = take_distinct(self, self.optimizer, self.hook_objects)
        return values, {**self.extra, "optimizer": optimizer, "on_update": hook}

    def apart(self, batch: PyTree) -> PyTree:
        """Return a batch with copies of what net and optimizer hold, `step.state.params` for example.

        A step donates what they hold, and a buffer that is also another argument's ends the process.
        """
        shapes = {x.shape for x in jax.tree.leaves(batch) if isinstance(x, jax.Array)}
        objects = (self, self.optimizer, *([] if self.hook_objects is None else [self.hook_objects]))
        # To list the arrays takes long, and few batches have a parameter's shape.
        if shapes and not (self._held_shapes and all(arrays.clean for arrays in objects)):
            self._held_shapes = {
                jnp.shape(x) for arrays in objects for x in arrays.current_values() if is_array(x)
            }
        if shapes.isdisjoint(self._held_shapes):
            return batch
        identities = {id(x) for arrays in objects for x in arrays.current_values()}
        return jax.tree.map(
            lambda x: jnp.copy(x) if isinstance(x, jax.Array) and id(x) in identities else x, batch
        )

    def program_extra(self, extra: dict[str, Any], keep: bool) -> dict[str, Any]:
        # Without an update the gradients need the loss scale and nothing else.
        return {name: x for name, x in extra.items() if name == "scale"} if keep else extra

    def shapes(self, keep: bool) -> tuple[list, dict[str, Any]]:
        values, extra = self._shapes((self.current_values(), self.extra))
        optimizer = self.optimizer.shaped(self.optimizer.current_values(), self._shapes)
        if self.hook_objects is not None:
            extra = {**extra, "on_update": self._shapes(self.hook_objects.current_values())}
        return values, self.program_extra({**extra, "optimizer": optimizer}, keep)

    def hook_values(self) -> dict[str, Any]:
        """Return the Variables' values of what the function of an update binds, by name."""
        if self.hook_objects is None:
            return {}
        assert self.hook is not None
        values = self.hook_objects.current_values()
        return {name: x for name, x in zip(self.hook.traced().names, values, strict=True) if is_array(x)}

    def put_hook_values(self, values: dict[str, Any]) -> None:
        if self.hook is not None and self.hook_objects is not None:
            view = self.hook_objects.view
            pairs = zip(self.hook.traced().names, view.current_values(), strict=True)
            view.put([jnp.asarray(values[name]) if name in values else x for name, x in pairs])

    def put(self, after: list, extra: dict[str, Any], changes: Changes) -> None:
        if extra:
            self.optimizer.write(extra.pop("optimizer"))
            # An update returns its rate unchanged in a new array, which has to keep its number.
            rates = self.optimizer.view.current_values()
            for i, number in self._numbers.items():
                _exact.remember(rates[i], number)
            self.write(after)
            if self.hook_objects is not None:
                self.hook_objects.write(extra.pop("on_update"))
            self.extra = extra
        self.commit(changes)


SUMS = (nnx.metrics.Average.update, nnx.metrics.Accuracy.update)


def is_additive(metric: nnx.Metric) -> bool:
    """Whether each Variable of a metric is a sum over rows: Flax's averages, and what its class declares."""
    if type(metric) is nnx.MultiMetric:
        parts = [x for x in vars(metric).values() if isinstance(x, nnx.Metric)]
        return all(map(is_additive, parts))
    declared = getattr(type(metric), "additive", None)
    return bool(declared) if declared is not None else type(metric).update in SUMS


def refuse_other_metrics(objects: Sequence[Any], function: str) -> None:
    """Raise TypeError for a metric that replicas cannot add."""
    for metric in (x for x in objects if isinstance(x, nnx.Metric)):
        if not is_additive(metric):
            raise TypeError(
                f"{function}: {type(metric).__name__} is an argument, and on replicas only metrics whose "
                "Variables are sums over rows can be counted: nnx.metrics.Average, Accuracy, a MultiMetric "
                "of them, or a class with `additive = True`. Return what it counts, and update it with the "
                "outputs."
            )


def sums_in(thing: Any, view: NNXView) -> tuple[int, ...]:
    """Return which of the values of `thing` are sums over rows."""
    counted: set[int] = set()
    for _, node in nnx.iter_graph(thing, graph=True):
        if isinstance(node, nnx.Metric) and is_additive(node):
            counted |= {id(x) for _, x in nnx.iter_graph(node, graph=True) if isinstance(x, nnx.Variable)}
    return tuple(i for i, leaf in enumerate(view.leaves) if id(leaf) in counted)
