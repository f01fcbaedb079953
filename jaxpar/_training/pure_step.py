"""pure_step: a training step as a pure function of its state and a batch, for `jit`, `scan` and `vmap`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._devices.context import brought, outside_for, returned
from .._parallel.modules.bundle import set_aside
from .._parallel.placement import Placement
from .._parallel.programs import Programs
from .._parallel.shards import combine, separate
from .._tree import has_tracers, is_staged
from .._typing import PyTree, Static, TreeDef
from .compiled_step import ReplicaState
from .engine import Engine
from .local_batch import check_batch, check_rows, without_torch
from .training_arrays import TrainingArrays


class StepCarry(NamedTuple):
    """All that a training step changes, as a pytree of arrays: what `TrainStep.pure` carries.

    >>> import jax.numpy as jnp, jaxpar, optax
    >>> from flax import nnx
    >>> net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    >>> function, carry = step.pure()
    >>> carry.net["kernel"].shape, int(carry.calls)
    ((3, 1), 0)

    Attributes:
      net, optimizer, on_update: the arrays of the network, the optimizer and the hook, by name.
      step: the loss scale and its counter, or what is remembered of gradients that were not finite.
      replicas: gradients that accumulate, their losses, the communication hook's state.
      calls: the number of calls, an int32.

    torch counterpart: none; `torch.func.functional_call` takes a module's arrays alone.
    """

    net: dict[str, jax.Array]
    optimizer: dict[str, jax.Array]
    on_update: dict[str, jax.Array]
    step: dict[str, jax.Array]
    replicas: PyTree
    calls: jax.Array


class PureStep:
    """`carry, loss = function(carry, *batch)`: what a training step computes, for the net as it was."""

    def __init__(self, engine: Engine, arrays: TrainingArrays, accumulate: int, has_aux: bool):
        self._arrays, self._accumulate, self._has_aux = arrays, accumulate, has_aux
        self._work, self._agree = copy.copy(engine.work), engine.state.usual.agree
        self._work.objective = engine.work.objective.frozen()  # type: ignore[attr-defined]
        self._names = names_of(arrays)
        self._placement = arrays.placement
        self._programs = Programs(self._compiled)

    def __call__(self, carry: StepCarry, *batch: PyTree, **kwargs: PyTree) -> tuple[StepCarry, Any]:
        """Return the next carry, and the loss, `(loss, aux)` or, with `on_update`, `(..., metrics)`."""
        args, named, objects = set_aside(batch, kwargs)
        if objects:
            raise TypeError(
                f"TrainStep.pure: {type(objects[0]).__name__} is an argument, whose Variables a pure "
                "function cannot change. Give a key and make streams of it in the loss, "
                "nnx.Rngs(dropout=key); make a network a part of the net; count with on_update."
            )
        args, named = without_torch(args, named)
        leaves = jax.tree.leaves((args, named))
        check_batch(args, named, leaves, "TrainStep.pure")
        check_rows(args, named, "TrainStep.pure")
        arrays, statics, form = separate((args, named))
        if self._placement is not None and not is_staged() and not has_tracers(arrays):
            # A batch on one device alone cannot meet a carry on all of them.
            arrays = jax.device_put(arrays, self._placement.replicated)
        with outside_for(self._placement):
            if self._placement is not None:
                mesh, everywhere = self._placement.mesh, self._placement.replicated
                arrays = [brought(x, mesh, lambda: everywhere) for x in arrays]
            carry, results = self._programs(statics, form)(carry, arrays)
            # The carry keeps the program's mesh, since a loop's carry has one type.
            return carry, returned(results)

    def _compiled(self, statics: Sequence[Static | None], form: TreeDef) -> Any:
        def run(carry: StepCarry, arrays: list) -> tuple[StepCarry, Any]:
            args, kwargs = combine(arrays, statics, form)
            with outside_for(self._placement):  # a compiled program is for every mesh of its callers
                batch = self._work.bring(args, kwargs)
            if self._accumulate == 1:
                return self._turn(carry, batch, False)
            return self._accumulated(carry, batch)

        return jax.jit(run)

    def _accumulated(self, carry: StepCarry, batch: Any) -> tuple[StepCarry, Any]:
        """Update in the last of k calls. Both programs are compiled, and the counter chooses."""

        def update(carry: StepCarry) -> tuple[StepCarry, Any]:
            after, results = self._turn(carry, batch, False)
            # The sums start from zeros again, since a carry has one structure.
            zeros = carry.replicas._replace(gradients=None, losses=None, hook=after.replicas.hook)
            summed = jax.tree.map(jnp.zeros_like, (carry.replicas.gradients, carry.replicas.losses))
            return after._replace(replicas=zeros._replace(gradients=summed[0], losses=summed[1])), results

        types = jax.eval_shape(update, carry)

        def keep(carry: StepCarry) -> tuple[StepCarry, Any]:
            after, results = self._turn(carry, batch, True)
            if self._arrays.hook is not None:
                metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), types[1][-1])
                results = (*(results if self._has_aux else (results,)), metrics)
            # A cond requires equal types, and an optimizer's first update may widen one.
            return jax.tree.map(lambda x, like: x.astype(like.dtype), (after, results), types)

        return jax.lax.cond((carry.calls + 1) % self._accumulate == 0, update, keep, carry)

    def _turn(self, carry: StepCarry, batch: Any, keep: bool) -> tuple[StepCarry, Any]:
        """As `Engine.turn`, with the carry in place of the user's objects."""
        values, extra = _taken(carry, self._names, self._arrays)
        extra = self._arrays.program_extra(extra, keep)
        agreement = self._agree(batch, None, keep)
        assert agreement is not None  # only join runs out of rows
        agreed, batch = agreement
        program, program_batch = self._work.program(self._arrays, batch, agreed, keep)
        done = program(values, extra, carry.replicas, program_batch)
        loss, aux, changes = self._work.read(done, agreed, batch)
        after = list(values if keep else done.after)
        for i, x in changes.items():
            after[i] = x
        results: tuple[Any, ...] = (loss, aux) if self._has_aux else (loss,)
        calls = carry.calls + 1
        if keep:
            net = dict(zip(self._names[0], after, strict=True))
            carry = carry._replace(net=net, replicas=done.replica_state, calls=calls)
        else:
            extra = {name: x for name, x in done.extra.items() if name not in ("report", "metrics")}
            results += (done.extra.get("metrics"),) if self._arrays.hook is not None else ()
            carry = _carry(self._names, after, extra, done.replica_state, calls)
        return carry, results if len(results) > 1 else results[0]


Names = tuple[list[str], list[str], list[str]]


def names_of(arrays: TrainingArrays) -> Names:
    """Return the names of the net's, the optimizer's and the update function's values, in their order."""
    hook = [] if arrays.hook is None else list(arrays.hook.traced().names)
    net, optimizer = (
        [".".join(map(str, path)) for path in view.definition.paths]
        for view in (arrays.view, arrays.optimizer.view)
    )
    return net, optimizer, hook


def carry_of(engine: Engine, arrays: TrainingArrays, accumulate: int, calls: int) -> StepCarry:
    """Return copies of all that a step has: its own arrays are donated by its next call."""
    values, extra = arrays.take()
    replicas = engine.state.replica_state
    trained = [values[i] for i in arrays.parameters]
    if replicas is None:
        replicas = engine.work.first_replica_state(trained)
    if accumulate > 1 and not replicas.gradients:
        like = engine.work.replica_state_like(trained, True)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), like)
        replicas = zeros._replace(hook=replicas.hook)
    carry = _carry(names_of(arrays), values, extra, replicas, jnp.int32(calls))
    copied: StepCarry = jax.tree.map(jnp.copy, carry)
    return copied


def _carry(
    names: Names, values: list, extra: dict[str, Any], replicas: PyTree, calls: jax.Array
) -> StepCarry:
    """Return the carry of a step's arrays; the inverse of `_taken`."""
    groups = values, extra["optimizer"], extra.get("on_update", ())
    net, optimizer, hook = (dict(zip(*pair, strict=True)) for pair in zip(names, groups, strict=True))
    step = {name: x for name, x in extra.items() if name not in ("optimizer", "on_update")}
    return StepCarry(net, optimizer, hook, step, replicas, calls)


def _taken(carry: StepCarry, names: Names, arrays: TrainingArrays) -> tuple[list, dict[str, Any]]:
    """Return the values of the net and the extra state, as `TrainingArrays.take` does."""
    groups = carry.net, carry.optimizer, carry.on_update
    values, optimizer, hook = ([x[name] for name in n] for x, n in zip(groups, names, strict=True))
    extra: dict[str, Any] = {**carry.step, "optimizer": optimizer}
    return values, extra if arrays.hook is None else {**extra, "on_update": hook}


def load_carry(engine: Engine, arrays: TrainingArrays, accumulate: int, carry: StepCarry) -> int:
    """Put a carry into the user's objects, and return the number of calls. An error leaves all as it was."""
    if not isinstance(carry, StepCarry):
        raise TypeError(f"TrainStep.load: a carry is a jaxpar.StepCarry, not {type(carry).__name__}.")
    if has_tracers(carry):
        raise TypeError("TrainStep.load: the carry is traced; call it after the program, with its result.")
    expected = carry_of(engine, arrays, accumulate, 0)
    _check(expected, carry)
    calls = int(carry.calls)
    placed = _placed(carry, expected, arrays.placement)
    values, extra = _taken(placed, names_of(arrays), arrays)
    arrays.put(values, extra, {})
    replicas: ReplicaState = placed.replicas
    if calls % accumulate == 0:
        replicas = replicas._replace(gradients=(), losses=())
    engine.state.replace(replicas)
    return calls


def _check(expected: StepCarry, carry: StepCarry) -> None:
    one, other = map(_shapes, (expected, carry))
    for name in {**one, **other}:
        if one.get(name) != other.get(name):
            raise ValueError(
                f"TrainStep.load: carry{name} has shape {other.get(name)}, and the step's has "
                f"{one.get(name)} (None: it is not there). Load a carry of this step's pure(); of several, "
                "as jax.vmap gives them, one: jax.tree.map(lambda x: x[i], carry)."
            )


def _shapes(carry: StepCarry) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): np.shape(x) for path, x in jax.tree.leaves_with_path(carry)}


def _placed(carry: StepCarry, expected: StepCarry, placement: Placement | None) -> StepCarry:
    def place(x: Any, like: jax.Array) -> jax.Array:
        # A copy, since the step donates what it is given.
        x = jnp.array(x, like.dtype) if isinstance(x, np.ndarray) else jnp.copy(x)
        return x if placement is None else jax.device_put(x, like.sharding)

    placed: StepCarry = jax.tree.map(place, carry, expected)
    return placed
