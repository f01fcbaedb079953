"""update: from gradients to the next parameters, and what is done when they are not finite."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._parallel.modules.bundle import Bundle, nets_of
from .._parallel.modules.nnx_view import NNXDefinition, NNXView, view_nnx
from .._parallel.placement import Placement
from .._tree import is_real
from .._typing import PyTree, Shape
from .._upstream import ClosedJaxpr
from ..errors import OptimizerError
from .divided_program import Operand, Slice, is_divided, sliced, whole
from .divided_update import collected, divided_advance, divided_shapes, is_operand, smallest
from .division import whole_shape
from .nonfinite import NONE, first_bad, first_bad_on_cpu
from .on_update import StepUpdate, TracedHook, check_values
from .optimizer_calls import Evaluation, OptimizerCall, optimizer_calls, unknown
from .precision import Precision
from .state_optimizer import StateOptimizer
from .training_arrays import TrainingArrays
from .world import is_flat


class UpdateStrategy(NamedTuple):
    branches: bool  # skip an update by not computing it, rather than by selecting the old values
    first_bad: Callable[[list], jax.Array]  # finds the first gradient that is not finite


def strategy_for(platform: str) -> UpdateStrategy:
    # A selection between results reads what it would overwrite, so XLA's CPU compiler copies donated state
    # first; an accelerator's does not, and its host would have to wait before a branch.
    return UpdateStrategy(True, first_bad_on_cpu) if platform == "cpu" else UpdateStrategy(False, first_bad)


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """An optimizer update, traced into a step. One for each TrainStep, compared by identity."""

    net: NNXDefinition  # of one network or a bundle
    optimizer: NNXDefinition  # likewise
    parameters: tuple[int, ...]  # which of the net's values are trained
    calls: list[OptimizerCall]  # each optimizer's
    accumulate: int  # gradients are the sum over this many calls
    on_nonfinite: str  # "raise" and "skip" leave everything as it was, "ignore" does not check
    precision: Precision | None  # which may scale the gradients
    strategy: UpdateStrategy
    keeps_losses: bool = False  # whether it uses the loss, the mean over the accumulated calls
    hook: TracedHook | None = None  # the user's function of what it did
    module: NNXDefinition | None = None  # what the loss function is given, for the hook
    divided: tuple[Shape | None, ...] = ()  # shapes of the optimizer's values that replicas divide
    flat: bool = False  # whether small parameters are collected together

    def name(self, i: int) -> str:
        """Return the i-th trained parameter's name for users."""
        return ".".join(map(str, self.net.paths[self.parameters[i]])).removeprefix("net.")

    def start(self) -> dict[str, Any]:
        if self.precision is not None and self.precision.loss_scale is not None:
            # An overflow only shows that the scale is too large, so it is not reported as trouble.
            return {"scale": jnp.float32(self.precision.loss_scale), "good": jnp.int32(0)}
        if self.on_nonfinite != "raise":
            return {}
        return {"trouble": jnp.array([NONE, 0], jnp.int32)}

    def __call__(
        self,
        values: list,
        extra: dict[str, Any],
        gradients: list,
        changes: dict[int, Any],
        evaluation: Evaluation,
    ) -> tuple[list, dict[str, Any]]:
        """Return the net's values after the step, and the extra state with the next optimizer.

        Where the optimizer is divided, gradients are Slices, and of its values a replica has its elements.
        """
        factor = 1 / self.accumulate
        if "scale" in extra:
            factor = factor / extra["scale"]
        if "scale" in extra or self.accumulate > 1:
            gradients = jax.tree.map(lambda g: g * jnp.asarray(factor, g.dtype), gradients)
        extra = dict(extra)
        old = values, extra["optimizer"], gradients, changes
        advance = functools.partial(self.advance, evaluation=evaluation)
        if self.divided:
            # Collected after the branches, so that no device waits for a collective in a branch.
            old = self._sliced(values), *old[1:]
            advance = functools.partial(self.advance_divided, evaluation=evaluation)
        if self.on_nonfinite == "ignore" and "scale" not in extra:
            after, extra["optimizer"] = advance(*old)
            good = jnp.array(True)
        else:
            first = self.strategy.first_bad(jax.tree.leaves(gradients))
            good, extra = self._judge(smallest(first, NONE) if self.divided else first, extra)
            after, extra["optimizer"] = self._advance_if(good, advance, *old)
        after = collected(after, self.flat)
        if self.hook is not None:
            after, extra = self._call_hook(self.hook, good, after, extra, (values, gradients, evaluation))
        return after, extra

    def _call_hook(
        self,
        hook: TracedHook,
        good: jax.Array,
        after: list,
        extra: dict[str, Any],
        step: tuple[list, list, Evaluation],
    ) -> tuple[list, dict[str, Any]]:
        """Return the net's values and the extra state after the user's function of the update."""
        values, gradients, evaluation = step
        gradients = collected(gradients, self.flat)  # a compiler leaves out what the function does not read
        assert self.module is not None
        module, optimizer = self.module.merge(after), self.optimizer.merge(extra["optimizer"])
        nets = nets_of(module)
        several = isinstance(module, Bundle) and module.several

        def trees(flat: list) -> PyTree:
            pairs = zip(self.calls, nets, nets_of(optimizer), strict=True)
            of_nets = tuple(call.user_tree(net, its, flat) for call, net, its in pairs)
            return of_nets if several else of_nets[0]

        before, params = ([x[i] for i in self.parameters] for x in (values, after))
        updates = [jnp.subtract(a, b) for a, b in zip(params, before, strict=True)]
        gradients, updates, before, params = map(trees, (gradients, updates, before, params))
        update = StepUpdate(
            evaluation.value, gradients, updates, before, params, good, nets if several else nets[0]
        )
        extra["metrics"], hook_values = hook(update, extra["on_update"])
        changed = self.module.read(module)
        names = [".".join(map(str, path)) for path in self.module.paths]
        check_values(names, after, changed, "on_update")
        if not hook.hook.always:
            # An update that was left out leaves the hook's objects as they were, like the optimizer.
            pairs = (after, extra["on_update"]), (changed, hook_values)
            changed, hook_values = jax.tree.map(
                lambda old, new: old if old is new else jnp.where(good, new, old), *pairs
            )
        extra["on_update"] = hook_values
        return changed, extra

    def advance(
        self,
        values: list,
        optimizer_values: list,
        gradients: list,
        changes: dict[int, Any],
        evaluation: Evaluation | None = None,
    ) -> tuple[list, list]:
        net, optimizer = self.net.merge(values), self.optimizer.merge(optimizer_values)
        parameters = [values[i] for i in self.parameters]
        loss = unknown(parameters) if evaluation is None else evaluation
        for k, (call, one, its) in enumerate(zip(self.calls, nets_of(net), nets_of(optimizer), strict=True)):
            call(one, its, parameters, gradients, loss.of(k))
        trained, after = self.net.read(net), list(values)
        for i in self.parameters:
            after[i] = trained[i]
        for i, value in changes.items():
            after[i] = value
        return after, self.optimizer.read(optimizer)

    def traced(self, values: list, optimizer_values: list) -> tuple[ClosedJaxpr, tuple[list, list]]:
        """Return the program of `advance` and the shapes of its results.

        The check of an optimizer and the fingerprint for other ranks share one trace, which JAX keeps for one
        function and equal types. They have different arrays, whose types contain the mesh; a shape's do not.
        """
        types = jax.tree.map(jax.typeof, (values, optimizer_values))
        shapes = jax.tree.map(lambda t: jax.ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak_type), types)
        gradients = [shapes[0][i] for i in self.parameters]
        return jax.make_jaxpr(self._one_function, return_shape=True)(*shapes, gradients, {})

    @functools.cached_property
    def _one_function(self) -> Callable[..., tuple[list, list]]:
        return self.advance  # Python makes a new object of a method each time

    def advance_divided(
        self,
        values: list,
        optimizer_values: list,
        gradients: list[Operand],
        changes: dict[int, Any],
        evaluation: Evaluation | None = None,
    ) -> tuple[list, list]:
        """`advance` on a replica with its elements of parameters, gradients and the optimizer's values."""
        optimizer = [
            x if shape is None else Slice(x, shape)
            for x, shape in zip(optimizer_values, self.divided, strict=True)
        ]
        after, optimizer = divided_advance(self.advance, evaluation)(values, optimizer, gradients, changes)
        optimizer = [
            jax.tree.map(whole, x, is_leaf=is_operand) if shape is None else sliced(x).elements
            for x, shape in zip(optimizer, self.divided, strict=True)
        ]
        return self._sliced(after), optimizer

    def _sliced(self, values: list) -> list:
        """Return the net's values with this replica's elements of what is trained."""
        values = list(values)
        for i in self.parameters:
            values[i] = sliced(values[i]) if is_divided(values[i].shape) else whole(values[i])
        return values

    def _advance_if(self, good: jax.Array, advance: Callable[..., Any], *args: Any) -> tuple[list, list]:
        """Return the results of `advance`, or the values and the optimizer as they were."""
        if self.strategy.branches:
            types: list[PyTree] = []

            def advanced(*old: Any) -> tuple[list, list]:
                results = advance(*old)
                types.append(jax.tree.map(jax.typeof, results))
                return results

            def kept(*old: Any) -> tuple[list, list]:
                # A cond requires equal types from both branches, and a user's buffer may have changed its
                # type. It traces `advanced` first; without jit one of the two runs.
                return _as(old[:2], types[0] if types else jax.eval_shape(advance, *old))

            return jax.lax.cond(good, advanced, kept, *args)
        new, old = advance(*args), args[:2]
        return jax.tree.map(lambda a, b: a if a is b else jnp.where(good, a, b), new, old)

    def _judge(self, first: jax.Array, extra: dict[str, Any]) -> tuple[jax.Array, dict[str, Any]]:
        good = first == NONE
        if "scale" in extra:
            assert self.precision is not None
            grown = extra["good"] + 1 >= self.precision.growth_interval
            larger = jnp.where(grown, extra["scale"] * 2, extra["scale"])
            extra["scale"] = jnp.where(good, larger, extra["scale"] / 2)
            extra["good"] = jnp.where(good & ~grown, extra["good"] + 1, 0)
        if "trouble" in extra:
            # Once there was trouble nothing counts any more until it is reported, some steps later.
            leaf, update = extra["trouble"]
            good &= leaf == NONE
            leaf = jnp.where(leaf == NONE, first, leaf)
            extra["trouble"] = jnp.stack([leaf, jnp.where(leaf == NONE, update + 1, update)])
            extra["report"] = extra["trouble"]  # not donated to the next step, so it can be read
        return good, extra


def _as(tree: PyTree, types: PyTree) -> PyTree:
    return jax.tree.map(lambda x, like: x if x.dtype == like.dtype else x.astype(like.dtype), tree, types)


def check(update: Update, values: list, optimizer_values: list, names: list[str]) -> str | None:
    """Return None if an optimizer fits a module, or the reason why not. Raises what the optimizer raises."""
    _, (new, after) = update.traced(values, optimizer_values)
    for i in update.parameters:
        if new[i].shape != values[i].shape:
            return f"{names[i]} would change its shape from {values[i].shape} to {new[i].shape}"
    # An optimizer of some parameters has an empty tree (optax.MaskedNode) for each of the others.
    for x, y in zip(jax.tree.leaves(optimizer_values), jax.tree.leaves(after), strict=True):
        if np.shape(x) != y.shape:
            return f"a state of shape {np.shape(x)} would become one of {y.shape}"
    return None


def misfit(net: nnx.Module, optimizer: nnx.Optimizer) -> str | None:
    """Return how an optimizer's state differs from a new one for this module, or None."""
    if optimizer.tx is None:
        return None
    if isinstance(optimizer, StateOptimizer):
        state = optimizer.state(net)
        parameters, actual = state.params, state.opt_state
    else:
        parameters = nnx.as_pure(nnx.state(net, optimizer.wrt, graph=True))
        actual = nnx.as_pure(optimizer.opt_state)
    fresh = jax.tree.leaves_with_path(jax.eval_shape(optimizer.tx.init, parameters))
    shapes = {jax.tree_util.keystr(path): np.shape(x) for path, x in jax.tree.leaves_with_path(actual)}
    for path, x in fresh:
        name = jax.tree_util.keystr(path)
        if name not in shapes:
            return f"its state has no {name}, which one for this module has"
        if shapes[name] != x.shape:
            return f"its state {name} is of shape {shapes[name]}, and one for this module of {x.shape}"
    if len(shapes) > len(fresh):
        return f"its state has {len(shapes)} arrays, and one for this module {len(fresh)}"
    return None


def uses_loss(update: Update, values: list, optimizer_values: list) -> bool:
    """Whether an accumulating update uses the loss. Raises ValueError if it evaluates others."""

    def at(parameters: list) -> PyTree:
        raise ValueError(
            f"train_step: the optimizer evaluates the loss at other parameters (value_fn), and with "
            f"accumulate={update.accumulate} the rows of earlier calls are gone. Leave accumulate out, or "
            "take an optimizer without a line search."
        )

    def advance(value: jax.Array, values: list, optimizer_values: list, gradients: list) -> Any:
        return update.advance(values, optimizer_values, gradients, {}, Evaluation(value, at))

    gradients = [values[i] for i in update.parameters]
    program = jax.make_jaxpr(advance)(jnp.zeros((), float), values, optimizer_values, gradients).jaxpr
    value = program.invars[0]
    return value in program.outvars or any(value in eqn.invars for eqn in program.eqns)


def _platform(values: list, placement: Placement | None) -> str:
    if placement is not None and placement.devices:
        return placement.devices[0].platform
    shardings = (x.sharding for x in values if is_real(x) or isinstance(x, jax.ShapeDtypeStruct))
    return next((d.platform for where in shardings if where is not None for d in where.device_set), "cpu")


def _refuse_integers(net: NNXView, optimizer: nnx.Optimizer) -> None:
    """Raise OptimizerError for a selected parameter without a gradient."""
    selects = nnx.filterlib.to_predicate(optimizer.wrt)
    trained = net.parameters(optimizer.wrt)
    for i, (path, leaf) in enumerate(zip(net.definition.paths, net.leaves, strict=True)):
        if i not in trained and selects(path, leaf):
            name, dtype = ".".join(map(str, path)), leaf[...].dtype
            raise OptimizerError(
                f"train_step: {name} is a {type(leaf).__name__} of {dtype}, which has no gradient: only "
                "floating arrays are trained. Make it another kind of nnx.Variable, nnx.BatchStat for one, "
                f'or leave it out: wrt=nnx.All(nnx.Param, nnx.Not(nnx.PathContains("{path[-1]}"))).'
            )


def update_of(
    arrays: TrainingArrays, accumulate: int, on_nonfinite: str, precision: Precision | None
) -> Update:
    """Return the update of these networks by their optimizers, after checking that they fit."""
    net, optimizer = arrays.net, arrays.optimizer.thing
    split, other = view_nnx(net), view_nnx(optimizer)
    parameters, calls = optimizer_calls(net, optimizer, split)
    values, optimizer_values = split.current_values(), list(map(whole_shape, other.leaves))
    update = Update(
        split.definition,
        other.definition,
        parameters,
        calls,
        accumulate,
        on_nonfinite,
        precision,
        strategy_for(_platform(values, arrays.placement)),
        hook=None if arrays.hook is None else arrays.hook.traced(),
        module=None if arrays.hook is None else view_nnx(arrays.thing).definition,
    )
    pairs = list(zip(nets_of(net), nets_of(optimizer), strict=True))
    try:
        wrong = check(update, values, optimizer_values, split.names)
    except Exception:
        for one, its in pairs:
            _refuse_integers(view_nnx(one), its)
        wrong = next(filter(None, (misfit(one, its) for one, its in pairs)), None)
        if wrong is None:
            raise  # the optimizer's own error
    if wrong is None and accumulate > 1:
        uses = uses_loss(update, values, optimizer_values) or update.hook is not None
        update = dataclasses.replace(update, keeps_losses=uses)
    if wrong is None and not all(call.order for call in calls):
        wrong = "nothing in the module is trained by it"
    if wrong is not None:
        for one, its in pairs:
            _refuse_integers(view_nnx(one), its)
        names = " and ".join(type(module).__name__ for module in nets_of(net))
        raise OptimizerError(
            f"train_step: the optimizer was not made for this {names}: {wrong}. Make it from "
            "the object that train_step is given: nnx.Optimizer(net, tx, wrt=nnx.Param)."
        )
    if not arrays.divides:
        return update
    divided = divided_shapes(update.advance, parameters, values, optimizer_values, arrays.world.N)
    return dataclasses.replace(update, divided=divided, flat=is_flat(arrays.world.everywhere))
