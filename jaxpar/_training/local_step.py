"""whole: the step of a plain module or a DataParallel, whose loss is that of the whole batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._parallel.data_parallel import DataParallel
from .._parallel.shards import combine, separate
from .._typing import PyTree, Static
from ..data.sending import sender
from .loss import Loss
from .precision import Precision
from .state import State, placed, take_distinct
from .update import Update


class Whole:
    """Batches to the devices, arrays out of the objects, one program, arrays back."""

    def __init__(
        self,
        net: nnx.Module,
        optimizer: nnx.Optimizer,
        loss_fn: Callable[..., Any],
        has_aux: bool,
        precision: Precision | None,
        make: Callable[[], Update],
    ):
        placement: Any = net.placement if isinstance(net, DataParallel) else None  # type: ignore[attr-defined]
        placement = placement if placement and placement.devices else None
        self._placement = placement
        self._net, self._optimizer = State(net, placement), State(optimizer, placement)
        self._send = sender(placement) if placement is not None else lambda tree: tree
        self._loss_fn, self._has_aux, self._precision, self._make = Static(loss_fn), has_aux, precision, make
        self._prepare()
        self._extra: dict[str, Any] = placed(self._update.start(), placement)
        self._gradients: list = []

    def _prepare(self) -> None:
        """For net and optimizer as they are now; again when one changes, by `net.eval()` for instance."""
        self._definitions = self._net.definition, self._optimizer.definition
        self._update = self._make()
        form: Any = jax.tree.structure(self._net.take())
        trained = self._update.parameters
        self._loss = Loss(self._net.definition, form, trained, self._loss_fn, self._has_aux, self._precision)

    def step(
        self, args: tuple, kwargs: dict[str, Any], last: bool
    ) -> tuple[jax.Array, PyTree, jax.Array | None]:
        """The loss, aux, and the report on gradients."""
        values, optimizer = take_distinct(self._net, self._optimizer)
        if self._definitions != (self._net.definition, self._optimizer.definition):
            self._prepare()
        arrays, statics, form = separate((args, kwargs))
        arrays = self._send(arrays)
        extra = {**self._extra, "optimizer": optimizer}
        if not last:
            run = _gradients(self._loss, statics, form)
            value, aux, changes, self._gradients = run(values, extra, self._gradients, arrays)
            self._net.view.commit(changes)
            return value, aux, None
        run = _train(self._loss, self._update, statics, form)
        value, aux, values, extra = run(values, extra, self._gradients, arrays)
        report = extra.pop("report", None)
        self._gradients = []
        self._optimizer.put(extra.pop("optimizer"))
        self._net.put(values)
        self._extra = extra
        return value, aux, report

    def name(self, parameter: int) -> str:
        """What the user calls a parameter."""
        return ".".join(map(str, self._definitions[0].paths[self._update.parameters[parameter]]))

    def forget_trouble(self) -> None:
        self._extra["trouble"] = placed(self._update.start()["trouble"], self._placement)


@functools.lru_cache(maxsize=256)
def _gradients(loss: Loss, statics: Any, form: Any) -> Any:
    """Adds a batch's gradients to those of earlier calls."""

    def run(values: list, extra: dict, gradients: list, arrays: list) -> tuple:
        args, kwargs = combine(arrays, statics, form)
        value = loss(values, None, args, kwargs, extra.get("scale"))
        return value.loss, value.aux, value.changes, _sum(gradients, value.gradients)

    return jax.jit(run, donate_argnames=("gradients",))


@functools.lru_cache(maxsize=256)
def _train(loss: Loss, update: Update, statics: Any, form: Any) -> Any:
    def run(values: list, extra: dict, gradients: list, arrays: list) -> tuple:
        args, kwargs = combine(arrays, statics, form)
        value = loss(values, None, args, kwargs, extra.get("scale"))
        after, extra = update(values, extra, _sum(gradients, value.gradients), value.changes)
        return value.loss, value.aux, after, extra

    return jax.jit(run, donate_argnames=("values", "extra") if update.way.donates else ())


def _sum(earlier: list, gradients: list) -> list:
    return jax.tree.map(jnp.add, earlier, gradients) if earlier else gradients
