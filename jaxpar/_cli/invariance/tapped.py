"""A Tap and a TrainStep for scripts that run in a world: they write to its folder, and need no line."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..._training.on_update import StepUpdate, UpdateHook
from ..._training.train_step import TrainStep
from ...parity import Tap
from .names import ACCUMULATE, ALONE, FOLDER, STEPS


class WorldTap(Tap):
    """A Tap that writes to the world's folder, whatever the script names, and ends the script in time."""

    def __init__(self, folder: str | os.PathLike[str], **options: Any):
        self._steps: set[int] = set()
        super().__init__(Path(os.environ[FOLDER]) / Path(folder).name, **options)

    def __call__(self, step: Any, **options: Any) -> None:
        if not isinstance(step, jax.core.Tracer):
            self._steps.add(int(step))
            if len(self._steps) > int(os.environ.get(STEPS, len(self._steps))):
                raise SystemExit(0)
        super().__call__(step, **options)

    def start(self, parameters: Any, extra: Any) -> None:
        """Write the arrays of all steps so far, before their first updates."""
        self._write_start(parameters, extra)


class SelfTappingStep(TrainStep):
    """A TrainStep that taps each update, and divides each batch into the batches to accumulate."""

    steps: tuple[SelfTappingStep, ...] = ()
    updates_of_all = itertools.count()
    tap: WorldTap

    def __init__(self, net: Any, optimizer: Any, loss_fn: Any, accumulate: int, has_aux: bool, *options: Any):
        _, on_nonfinite, hook = options  # the world's precision is float64
        self._pieces = int(os.environ.get(ACCUMULATE, 1))
        super().__init__(
            net,
            optimizer,
            loss_fn,
            accumulate * self._pieces,
            has_aux,
            None,
            on_nonfinite,
            _with_gradients(hook),
        )
        if not SelfTappingStep.steps:
            SelfTappingStep.tap = WorldTap(ALONE)
        SelfTappingStep.steps += (self,)
        self._number: int | None = None
        self.tap.start(_states("parameters"), _states("extra"))

    def __call__(self, *batch: Any, **kwargs: Any) -> Any:
        results = [
            self._tapped(rows, *piece) for rows, *piece in _divided(self._dim, batch, kwargs, self._pieces)
        ]
        return _joined(results, self._dim)

    def _tapped(self, rows: list[Any], batch: tuple, kwargs: dict[str, Any]) -> Any:
        if self._number is None:
            self._number = next(self.updates_of_all)
        result = super().__call__(*batch, **kwargs)
        loss = result[0] if self._has_aux else result
        if self.calls % self._accumulate:
            self.tap(self._number, batch=rows, loss=loss)
            return result
        gradients, self.metrics = self.metrics
        self.tap(
            self._number,
            batch=rows,
            loss=loss,
            gradients=_named(self, gradients),
            **{part: _states(part) for part in ("parameters", "optimizer", "extra")},
        )
        self._number = None
        return result

    def pure(self) -> tuple[Any, Any]:
        function, carry = super().pure()

        def tapped(carry: Any, *batch: Any, **kwargs: Any) -> Any:
            results = []
            for rows, args, named in _divided(self._dim, batch, kwargs, self._pieces):
                number = carry.calls // self._accumulate
                carry, (*result, (gradients, metrics)) = function(carry, *args, **named)
                arrays = {"parameters": carry.net, "optimizer": carry.optimizer, "gradients": gradients}
                self.tap(number, batch=rows, loss=result[0], **arrays)
                if metrics is not None:
                    result.append(metrics)
                results.append(tuple(result) if len(result) > 1 else result[0])
            return carry, _joined(results, self._dim)

        return tapped, carry

    @property
    def _dim(self) -> int:
        # The wrapper's: its placement is None on one device.
        return int(getattr(self._nets[0], "dim", 0))


def _with_gradients(hook: UpdateHook | None) -> UpdateHook:
    """Return a hook that also returns the gradients."""
    if hook is None:
        return UpdateHook(lambda update: (update.gradients, None))
    function = hook.function

    def both(*args: Any, **kwargs: Any) -> Any:
        update: StepUpdate = args[-1]
        return update.gradients, function(*args, **kwargs)

    hook.function = both
    return hook


FILTERS = {
    "parameters": nnx.Param,
    "extra": lambda path, x: isinstance(x, nnx.Variable) and not isinstance(x, nnx.Param | nnx.RngState),
    "optimizer": lambda path, x: True,
}


def _states(part: str) -> dict[str, Any]:
    """Return the arrays of all steps' networks or optimizers."""
    trees: dict[str, Any] = {}
    for step in SelfTappingStep.steps:
        objects = step.optimizer if part == "optimizer" else step.net
        objects = objects if isinstance(objects, tuple | list) else (objects,)
        states = [nnx.to_pure_dict(nnx.state(x, FILTERS[part])) for x in objects]
        trees |= _named(step, states[0] if len(states) == 1 else states)
    # Of an optimizer that several processes divide, none has all.
    return jax.tree.map(lambda x: x if x.is_fully_addressable or x.is_fully_replicated else None, trees)


def _named(step: SelfTappingStep, tree: Any) -> dict[str, Any]:
    """Return a tree under the number of its step, which the first one needs not."""
    i = SelfTappingStep.steps.index(step)
    if isinstance(tree, nnx.State):
        tree = nnx.to_pure_dict(tree)
    if i:
        return {f"step{i}": tree}
    return {str(key): x for key, x in tree.items()} if isinstance(tree, dict) else {"": tree}


def _is_object(x: Any) -> bool:
    return isinstance(x, nnx.Pytree | nnx.Variable)


def _divided(dim: int, batch: tuple, kwargs: dict[str, Any], k: int) -> Iterator[tuple[list[Any], Any, Any]]:
    """Yield the rows of each of k batches, its arguments and its keywords; what has no rows is in all."""
    leaves = [x for x in jax.tree.leaves((batch, kwargs), is_leaf=_is_object) if _has_rows(x, dim)]
    count = np.shape(leaves[0])[dim] if leaves else 0
    if 0 < count < k:
        raise ValueError(f"jaxpar invariance: a batch of {count} rows cannot be divided into {k} batches.")
    ends = [(count * i) // k for i in range(k + 1)]
    for start, end in itertools.pairwise(ends):

        def piece(x: Any, rows: slice = slice(start, end)) -> Any:
            if k == 1 or not _has_rows(x, dim) or np.shape(x)[dim] != count:
                return x
            return x[(slice(None),) * dim + (rows,)]

        args, named = jax.tree.map(piece, (batch, kwargs), is_leaf=_is_object)
        with_rows = [x for x in jax.tree.leaves((args, named), is_leaf=_is_object) if _has_rows(x, dim)]
        yield [jnp.moveaxis(x, dim, 0) if dim else x for x in with_rows], args, named


def _has_rows(x: Any, dim: int) -> bool:
    if _is_object(x) or np.ndim(x) <= dim:
        return False
    return not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def _joined(results: list[Any], dim: int) -> Any:
    """Return the mean of the losses, and of what has rows, the rows."""
    if len(results) == 1:
        return results[0]
    return jax.tree.map(
        lambda *xs: jnp.concatenate(xs, dim) if np.ndim(xs[0]) > dim else sum(xs) / len(xs), *results
    )
