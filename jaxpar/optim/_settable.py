"""settable: hyperparameters stored in the optimizer's state, read and set between steps.

A compiled step reads arrays, so a number becomes an array of the state, and setting it needs no new program.
`optax.inject_hyperparams` makes a whole number an integer array, and cannot reach into an existing chain.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeAlias

import jax
import optax

from .. import _exact
from .._typing import PyTree
from ._hyperparameters import is_number

P = ParamSpec("P")
Tx: TypeAlias = optax.GradientTransformationExtraArgs


class HyperparametersState(NamedTuple):
    hyperparams: dict[str, jax.Array]
    inner_state: PyTree


def settable(*names: str) -> Callable[[Callable[P, Tx]], Callable[P, Tx]]:
    """Decorate an optimizer's constructor: numbers passed for `names` become float arrays of its state.

    Arrays, schedules, and a momentum of zero (no buffer) are unchanged. "beta1" is the first of `betas`.
    """

    def decorate(make: Callable[P, Tx]) -> Callable[P, Tx]:
        signature = inspect.signature(make)

        @functools.wraps(make)
        def build(*args: P.args, **kwargs: P.kwargs) -> Tx:
            # The first build validates the arguments while they are still Python numbers.
            tx = make(*args, **kwargs)  # checks all arguments, and serves `init`
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            values = {name: _get(bound.arguments, name) for name in names}
            # A rate of zero can be raised later, as a warm-up does; a momentum of zero has no buffer.
            numbers = {
                name: float(value)
                for name, value in values.items()
                if is_number(value) and (name == "lr" or value != 0)
            }
            # Later builds happen inside `update`, with the state's arrays in place of the numbers.
            again: Callable[..., Tx] = make
            return _keep(numbers, tx, lambda new: again(**_put(bound.arguments, new))) if numbers else tx

        return build

    return decorate


def _keep(
    numbers: dict[str, float],
    tx: Tx,
    make: Callable[[dict[str, jax.Array]], Tx],
) -> Tx:
    def init(params):
        return HyperparametersState({name: _exact.scalar(x) for name, x in numbers.items()}, tx.init(params))

    def update(updates, state, params=None, **extra):
        updates, inner = make(state.hyperparams).update(updates, state.inner_state, params, **extra)
        return updates, HyperparametersState(state.hyperparams, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def _get(arguments: dict[str, Any], name: str) -> Any:
    return arguments["betas"][0] if name == "beta1" else arguments[name]


def _put(arguments: dict[str, Any], new: dict[str, jax.Array]) -> dict[str, Any]:
    if "beta1" in new:
        arguments = {**arguments, "betas": (new["beta1"], arguments["betas"][1])}
    return {**arguments, **{name: value for name, value in new.items() if name != "beta1"}}
