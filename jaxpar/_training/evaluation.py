"""evaluation: the loss as some optimizers need it, besides the gradients: optax's extra arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree


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
