"""optimizer_calls: which optimizer updates which network, with which gradients and which loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .._parallel.modules.bundle import nets_of
from .._parallel.modules.nnx_view import NNXView, view_nnx
from .._typing import PyTree, TreeDef
from .arrays import order_of_gradients
from .division import usable


class OptimizerCall(NamedTuple):
    form: TreeDef  # the structure in which the optimizer takes gradients
    order: tuple[int, ...]  # each leaf's index in the step's gradients

    def __call__(
        self,
        net: nnx.Module,
        optimizer: nnx.Optimizer,
        parameters: list,
        gradients: list,
        evaluation: Evaluation,
    ) -> None:
        def parameters_of(params: PyTree) -> list:
            leaves_of, moved = getattr(optimizer, "leaves_of", None), list(parameters)
            leaves = jax.tree.leaves(params) if leaves_of is None else leaves_of(net, params, self.form)
            for i, x in zip(self.order, leaves, strict=True):
                moved[i] = x
            return moved

        tx = optimizer.tx
        optimizer.tx = with_extra_arguments(usable(tx), evaluation, parameters_of)
        optimizer.update(net, self.tree(gradients))
        optimizer.tx = tx

    def user_tree(self, net: nnx.Module, optimizer: nnx.Optimizer, flat: list) -> PyTree:
        """Return gradients, or parameters, in the structure that the user has: an NNX state, or params."""
        tree_of = getattr(optimizer, "tree_of", None)
        return self.tree(flat) if tree_of is None else tree_of(net, self.tree(flat))

    def tree(self, flat: list) -> nnx.State:
        return self.form.unflatten([flat[i] for i in self.order])


def optimizer_calls(net: Any, optimizer: Any, split: NNXView) -> tuple[tuple[int, ...], list[OptimizerCall]]:
    """Return which values in `split`, the view of `net` or of what it wraps, are trained, and the calls."""
    pairs = list(zip(nets_of(net), nets_of(optimizer), strict=True))
    trained = [_trained(*pair, split) for pair in pairs]
    parameters = tuple(sorted(set().union(*trained)))
    at = {i: k for k, i in enumerate(parameters)}
    calls = []
    for (one, its), indices in zip(pairs, trained, strict=True):
        form, order = order_of_gradients(one, its.wrt, view_nnx(one), root=0)
        calls.append(OptimizerCall(form, tuple(at[indices[i]] for i in order)))
    return parameters, calls


def _trained(net: nnx.Module, optimizer: nnx.Optimizer, split: NNXView) -> list[int]:
    view = view_nnx(net)
    parameters = view.parameters(optimizer.wrt)
    if len(view.leaves) == len(split.leaves):
        return list(parameters)
    # By identity: a variable that two networks share is one value, and both optimizers move it.
    position = {id(leaf): i for i, leaf in enumerate(split.leaves)}
    return [position[id(view.leaves[i])] for i in parameters]


class Evaluation(NamedTuple):
    """The loss of a step, a mean over its replicas and accumulated calls; for several networks a tuple."""

    value: PyTree
    at: Callable[[list], PyTree]  # the loss of the same rows at other trained parameters

    def of(self, network: int) -> Evaluation:
        """Return the loss that trains one of several networks."""
        if not isinstance(self.value, tuple):
            return self
        return Evaluation(self.value[network], lambda parameters: self.at(parameters)[network])


def unknown(parameters: list) -> Evaluation:
    """Return zeros in place of a loss, to trace an update before there is a batch."""
    zero = jnp.zeros((), jnp.result_type(float, *(x.dtype for x in parameters)))
    return Evaluation(zero, lambda parameters: sum((0 * x.real.sum() for x in parameters), zero).real)


def with_extra_arguments(
    tx: Any, evaluation: Evaluation, parameters_of: Callable[[PyTree], list]
) -> optax.GradientTransformation:
    """Return a transformation that passes `value`, `grad` and `value_fn` on to `tx`, if it takes them.

    `parameters_of` maps the tree of parameters that `tx` is given to the list that `evaluation.at` takes.
    """
    if not isinstance(tx, optax.GradientTransformationExtraArgs):
        return tx
    accepted = inspect.signature(tx.update).parameters
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **others: Any) -> tuple[PyTree, PyTree]:
        arguments = {
            "value": evaluation.value,
            "grad": updates,
            "value_fn": lambda params: evaluation.at(parameters_of(params)),
        }
        arguments = {name: x for name, x in arguments.items() if every or name in accepted}
        return tx.update(updates, state, params, **{**arguments, **others})

    return optax.GradientTransformationExtraArgs(tx.init, update)


def mean_with_gradients(
    evaluate: Callable[[list], tuple[PyTree, list]], mean: Callable[[PyTree], PyTree]
) -> Callable[[list], PyTree]:
    """Return the mean over replicas of their losses, as a function that a replica may differentiate.

    A derivative of a sum over replicas, taken on one of them, would be that many times too large, so the
    gradients that `evaluate` returns with the loss are averaged instead.
    """

    @jax.custom_vjp
    def value(parameters: list) -> PyTree:
        return mean(evaluate(parameters)[0])

    def forward(parameters: list) -> tuple[PyTree, list]:
        loss, gradients = mean(evaluate(parameters))
        return loss, gradients

    def backward(gradients: list, cotangent: PyTree) -> tuple[list]:
        # Of several networks' losses one at a time is differentiated, by its own network's parameters.
        total = jnp.stack(jax.tree.leaves(cotangent)).sum()
        return ([total.astype(g.dtype) * g for g in gradients],)

    value.defvjp(forward, backward)
    return value
