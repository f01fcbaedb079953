"""Hyperparameters: numbers (constants of the program, exact), arrays and schedules `step -> value`.

Torch computes with scalars in Python's float64 whatever the parameters are. Here they are float64 under x64
and float32 otherwise, so differences such as 1 - beta**t are taken in a form that does not cancel. Steps are
integers of JAX's full width, so that schedules compute in float64 under x64, unlike from optax's int32.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .. import _exact
from .._arguments import NonNegative
from .._typing import PyTree

Scalar: TypeAlias = float | jax.Array
StartRate: TypeAlias = NonNegative | jax.Array
ScalarOrSchedule: TypeAlias = float | jax.Array | Callable[[jax.Array], Scalar]

SPELLED = {"lr": "learning rate", "eps": "epsilon value"}


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a plain number, known when the optimizer is built."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def is_zero(value: object) -> bool:
    return is_number(value) and value == 0


def check_nonnegative(**values: ScalarOrSchedule) -> None:
    """Raise torch's error for negative numbers; for arrays and schedules check the type only."""
    check_numbers(**values)
    for name, value in values.items():
        if is_number(value) and not value >= 0:
            raise ValueError(f"Invalid {SPELLED.get(name, name + ' value')}: {value}")


def check_least(name: str, value: object, least: float = 0) -> None:
    if is_number(value) and not value >= least:
        raise ValueError(f"{name} should be >= {least} but is: {value}")


def check_numbers(**values: ScalarOrSchedule) -> None:
    """Raise TypeError for text, None, and arrays of integers."""
    # optax.inject_hyperparams makes an array of a number's own type: 1.25 set over a rate of 20 would be 1.
    for name, value in values.items():
        if not (is_number(value) or callable(value) or isinstance(value, jax.Array | np.ndarray)):
            raise TypeError(f"{name} must be a number, an array or a schedule, not {value!r}.")
        if isinstance(value, jax.Array | np.ndarray) and not jnp.issubdtype(value.dtype, jnp.floating):
            raise TypeError(
                f"{name} is an array of {value.dtype}, which would cut values set later to whole numbers: "
                f"where optax.inject_hyperparams reads it, write {name}=1.0 and not {name}=1."
            )


def check_pair(name: str, values: Sequence[ScalarOrSchedule]) -> None:
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != 2:
        raise TypeError(f"{name} must be a pair of numbers, not {values!r}.")
    check_numbers(**{f"{name}[{i}]": value for i, value in enumerate(values)})


def check_betas(betas: Sequence[ScalarOrSchedule]) -> None:
    check_pair("betas", betas)
    for i, beta in enumerate(betas):
        if is_number(beta) and not 0 <= beta < 1:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")


def require_params(params: PyTree, function: str) -> None:
    if params is None:
        raise ValueError(
            f"{function}: the update depends on the parameters; pass them: tx.update(grads, state, params)."
        )


def new_counter() -> jax.Array:
    """Return a counter at zero. Each caller gets a fresh array: donated states must not share buffers."""
    return jnp.zeros((), int)


def value_at(value: ScalarOrSchedule, step: jax.Array) -> Scalar:
    return value(step) if callable(value) else value


def as_float(step: jax.Array | float) -> jax.Array:
    """Convert to a float of JAX's full width."""
    return jnp.asarray(step, float)


def bias_correction(beta: Scalar, step: jax.Array) -> jax.Array:
    """Return 1 - beta**step. In float32 the plain form loses up to three digits near beta**step = 1."""
    if is_number(beta):
        # Python's log is float64 even without x64, but raises at 0, where 0**step is 0.
        return -expm1(as_float(step) * (math.log(beta) if beta else -math.inf))
    return -expm1(as_float(step) * jnp.log(beta))


def expm1(x: jax.Array) -> jax.Array:
    """Return exp(x) - 1 for x <= 0. XLA's is up to 3 ulp off in float32, near 0 always to the same side."""
    series = jnp.ones_like(x)
    # Horner's rule for the terms up to x**17 / 17!. At x = -0.5 the first omitted one is below 1e-20, so this
    # is accurate in float64, too.
    for k in range(17, 1, -1):
        series = 1 + x / k * series
    return jnp.where(x > -0.5, x * series, jnp.exp(x) - 1)


# A compiled step reads arrays, so a number becomes an array of the state, and setting it needs no new
# program. `optax.inject_hyperparams` makes a whole number an integer array, and cannot reach into an
# existing chain.
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
            if numbers:
                tx = _keep(numbers, tx, lambda new: again(**_put(bound.arguments, new)))
            # `parity.compare_loops` reads the constructor's name and the arguments.
            tx.update.__dict__["made_with"] = make.__name__, bound.arguments
            return tx

        return build

    return decorate


def _keep(numbers: dict[str, float], tx: Tx, make: Callable[[dict[str, jax.Array]], Tx]) -> Tx:
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
