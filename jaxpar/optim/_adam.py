"""Adam, AdamW, NAdam, RAdam and Adamax.

`optax.adam` computes 1 - beta**t literally, which makes it many times as noisy as torch in float32
(docs/optim.md has numbers). `optax.amsgrad` maximises the corrected second moment, torch the raw one.
optax.nadam lacks torch's momentum schedule, and optax.radam adds eps to the corrected root.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from . import _hyperparameters as hyper
from ._hyperparameters import Scalar, ScalarOrSchedule, settable
from ._leafwise import chain, gradient_stages, leafwise, zeros


class AdamState(NamedTuple):
    step: jax.Array
    exp_avg: PyTree
    exp_avg_sq: PyTree
    max_exp_avg_sq: PyTree | None


class NAdamState(NamedTuple):
    step: jax.Array
    mu_product: jax.Array
    exp_avg: PyTree
    exp_avg_sq: PyTree


class RAdamState(NamedTuple):
    step: jax.Array
    exp_avg: PyTree
    exp_avg_sq: PyTree


class AdamaxState(NamedTuple):
    step: jax.Array
    exp_avg: PyTree
    exp_inf: PyTree


class _Now(NamedTuple):
    """The number of a step, counted from 1, and its hyperparameters."""

    step: jax.Array
    rate: Scalar
    beta1: Scalar
    beta2: Scalar


@settable("lr", "beta1")
def adam(
    lr: ScalarOrSchedule = 1e-3,
    betas: tuple[ScalarOrSchedule, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    amsgrad: bool = False,
    *,
    maximize: bool = False,
    decoupled_weight_decay: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adam as `torch.optim.Adam` (torch/optim/adam.py), with its errors and no more float32 noise.

    Args:
      lr: a number, an array or a schedule; so may `betas[0]` be.
      betas: decay of the two moments.
      eps: added to the root of the corrected second moment.
      weight_decay: added to the gradient times the parameter, unless `decoupled_weight_decay`.
      amsgrad: divide by the largest second moment so far, before correction.
      maximize: ascend.
      decoupled_weight_decay: AdamW: shrink the parameter by lr * weight_decay instead.

    >>> import jax.numpy as jnp
    >>> from jaxpar import optim
    >>> tx = optim.adam(lr=0.1)
    >>> update, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    >>> print(update.round(3))
    [-0.1 -0.1]
    """

    def create(params):
        return AdamState(
            hyper.new_counter(), zeros(params), zeros(params), zeros(params) if amsgrad else None
        )

    def scalars(state, now):
        # eps may be a float64 array, which would widen float32 leaves unless it is cast as the scalars are.
        size = now.rate / hyper.bias_correction(now.beta1, now.step)
        return (size, jnp.sqrt(hyper.bias_correction(now.beta2, now.step)), eps), {}

    def move(s, g, m, v):
        # torch divides the root of v by the root of its correction. The root of the quotient, which torch's
        # NAdam takes, rounds differently.
        size, root, eps = s
        return -size * (m / (jnp.sqrt(v) / root + eps))

    function = "adamw" if decoupled_weight_decay else "adam"
    decay = (weight_decay, decoupled_weight_decay)
    return _two_moments(function, lr, betas, eps, *decay, maximize, create, scalars, move, amsgrad)


def adamw(
    lr: ScalarOrSchedule = 1e-3,
    betas: tuple[ScalarOrSchedule, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    amsgrad: bool = False,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """`adam` with decoupled weight decay, as `torch.optim.AdamW` (torch/optim/adamw.py).

    `optax.adamw` decays by 1e-4.

    >>> from jaxpar import optim
    >>> tx = optim.adamw(lr=1e-3, weight_decay=0.1)
    """
    return adam(lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True)


@settable("lr", "beta1")
def nadam(
    lr: ScalarOrSchedule = 2e-3,
    betas: tuple[ScalarOrSchedule, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    momentum_decay: Scalar = 4e-3,
    decoupled_weight_decay: bool = False,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """NAdam as torch does it.

    Args:
      lr, betas, eps, weight_decay, decoupled_weight_decay, maximize: as for `adam`; so are the errors.
      momentum_decay: psi in mu_t = beta1 * (1 - 0.96**(t * psi) / 2).

    torch counterpart: `torch.optim.NAdam`, whose `mu_product` is float32 by default; here it is float64 under
    x64. Source: torch/optim/nadam.py.

    >>> from jaxpar import optim
    >>> tx = optim.nadam(lr=2e-3, momentum_decay=4e-3)
    """
    hyper.check_nonnegative(momentum_decay=momentum_decay)

    def create(params):
        return NAdamState(hyper.new_counter(), jnp.ones((), float), zeros(params), zeros(params))

    def scalars(state, now):
        mu, mu_next = (
            0.5 * now.beta1 * (1 - hyper.expm1(t * (momentum_decay * math.log(0.96))))
            for t in (hyper.as_float(now.step), hyper.as_float(now.step) + 1)
        )
        # The type must not depend on beta1's, for a scan's carry and a donated buffer keep theirs.
        product = (state.mu_product * mu).astype(state.mu_product.dtype)
        current, coming = now.rate * (1 - mu) / (1 - product), now.rate * mu_next / (1 - product * mu_next)
        return (current, coming, hyper.bias_correction(now.beta2, now.step), eps), {"mu_product": product}

    def move(s, g, m, v):
        current, coming, correction, eps = s
        # Torch divides twice, once for each term; division is what costs here.
        return -(current * g + coming * m) / (jnp.sqrt(v / correction) + eps)

    decay = (weight_decay, decoupled_weight_decay)
    return _two_moments("nadam", lr, betas, eps, *decay, maximize, create, scalars, move)


@settable("lr", "beta1")
def radam(
    lr: ScalarOrSchedule = 1e-3,
    betas: tuple[ScalarOrSchedule, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    decoupled_weight_decay: bool = False,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Rectified Adam as `torch.optim.RAdam` (torch/optim/radam.py).

    Args:
      lr, betas, weight_decay, decoupled_weight_decay, maximize: as for `adam`; so are the errors.
      eps: added to the root of the second moment, before correction.

    >>> from jaxpar import optim
    >>> tx = optim.radam(lr=1e-3, decoupled_weight_decay=True)
    """

    def create(params):
        return RAdamState(hyper.new_counter(), zeros(params), zeros(params))

    def scalars(state, now):
        # Zero means that the variance is unreliable; the step then uses plain momentum.
        adaptive = _rectification(now.beta2, now.step) * jnp.sqrt(hyper.bias_correction(now.beta2, now.step))
        return (now.rate / hyper.bias_correction(now.beta1, now.step), adaptive, eps), {}

    def move(s, g, m, v):
        size, adaptive, eps = s
        return -size * m * jnp.where(adaptive > 0, adaptive / (jnp.sqrt(v) + eps), 1)

    decay = (weight_decay, decoupled_weight_decay)
    return _two_moments("radam", lr, betas, eps, *decay, maximize, create, scalars, move)


def _rectification(beta2: Scalar, step: jax.Array) -> jax.Array:
    """Return the paper's r_t where the average's length rho_t is above 5, else zero."""
    longest, rho = 2 / (1 - beta2) - 1, _average_length(beta2, step)
    # Below rho = 4 this may be negative; the inner `where` keeps the root real.
    square = (rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho)
    return jnp.where(rho > 5, jnp.sqrt(jnp.where(rho > 5, square, 1)), 0)


def _average_length(beta2: Scalar, step: jax.Array) -> jax.Array:
    # rho_t = 2 / (1 - b) - 1 - 2 * t * b**t / (1 - b**t), without cancellation: for L = -log(b), x = t * L
    # it is a constant plus 2 / L * (1 - x / (exp(x) - 1)), by a series (Bernoulli numbers) for small x.
    if hyper.is_zero(beta2):
        return jnp.ones((), float)
    L = -math.log(beta2) if hyper.is_number(beta2) else -jnp.log(beta2)
    x = hyper.as_float(step) * L
    small = x * (1 / 2 - x * (1 / 12 - x**2 * (1 / 720 - x**2 * (1 / 30240 - x**2 * (1 / 1209600)))))
    # At x = 0.3 the first omitted term, x**10 / 47900160, is about 1e-13. Above, 1 - x / expm1(x) is larger
    # than 0.14, so the subtraction costs less than one digit.
    part = jnp.where(x < 0.3, small, 1 - x / jnp.expm1(x))
    return 2 / (1 - beta2) - 1 - 2 / L + 2 / L * part


def _two_moments(
    function: str,
    lr: ScalarOrSchedule,
    betas: tuple[ScalarOrSchedule, Scalar],
    eps: Scalar,
    weight_decay: Scalar,
    decoupled: bool,
    maximize: bool,
    create: Callable[[PyTree], Any],
    scalars: Callable[[Any, _Now], tuple[tuple[Any, ...], dict[str, jax.Array]]],
    move: Callable[..., jax.Array],
    amsgrad: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Build Adam, NAdam or RAdam.

    `create(params)` returns the initial state, `scalars(state, now)` the scalars for `move` and the state
    fields that change, `move(scalars, gradient, *moments)` the update without decoupled decay.
    """
    hyper.check_nonnegative(lr=lr, eps=eps)
    hyper.check_betas(betas)
    hyper.check_nonnegative(weight_decay=weight_decay)
    decay = weight_decay if decoupled else 0
    # amsgrad's maximum is the only optional moment, so it is last.
    fields = ("exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * amsgrad)

    def update(grads, state, params=None):
        if not hyper.is_zero(decay):
            hyper.require_params(params, function)
        step = optax.safe_increment(state.step)
        now = _Now(step, *(hyper.value_at(value, state.step) for value in (lr, *betas)))
        method_scalars, changed = scalars(state, now)

        # The mean is torch's exp_avg.lerp_(g, 1 - b1), in the form that torch takes for weights below 0.5.
        def rule(s, g, m, v, *extra):
            b1, b2, shrink, *method_scalars = s
            m = m + (1 - b1) * (g - m)
            v = b2 * v + (1 - b2) * g * g
            # torch's amsgrad compares the raw moments and corrects the largest afterwards.
            largest = [jnp.maximum(extra[0], v)] if amsgrad else []
            moved = move(method_scalars, g, m, [v, *largest][-1])
            # torch scales p by 1 - lr * weight_decay; optax adds updates to p, so they contain the decay.
            return (moved if hyper.is_zero(decay) else moved - shrink * extra[-1]), m, v, *largest

        # lr * weight_decay is multiplied at full width, as torch multiplies Python floats, and cast.
        common = (now.beta1, now.beta2, now.rate * decay)
        old_moments = [getattr(state, field) for field in fields]
        # params may be None without decay, and the rule must not read an array that it does not need.
        others = () if hyper.is_zero(decay) else (params,)
        updates, *moments = leafwise(rule, (*common, *method_scalars), grads, old_moments, *others)
        return updates, state._replace(step=step, **changed, **dict(zip(fields, moments, strict=True)))

    return chain(gradient_stages(0 if decoupled else weight_decay, maximize), create, update, function)


@settable("lr", "beta1")
def adamax(
    lr: ScalarOrSchedule = 2e-3,
    betas: tuple[ScalarOrSchedule, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adamax as torch does it, with float32 noise no larger than torch's.

    Args:
      lr, betas[0], weight_decay, maximize: as for `adam`; so are the errors.
      betas: decay of the mean and of the largest magnitude.
      eps: added to every magnitude.

    torch counterpart: `torch.optim.Adamax`; `optax.adamax` has a noisier correction.
    Source: torch/optim/adamax.py.

    >>> from jaxpar import optim
    >>> tx = optim.adamax(lr=2e-3, betas=(0.9, 0.99))
    """
    hyper.check_nonnegative(lr=lr, eps=eps)
    hyper.check_betas(betas)
    hyper.check_nonnegative(weight_decay=weight_decay)

    def init(params):
        return AdamaxState(hyper.new_counter(), zeros(params), zeros(params))

    def update(grads, state, params=None):
        step = optax.safe_increment(state.step)
        beta1, beta2 = (hyper.value_at(value, state.step) for value in betas)

        def rule(s, g, m, u):
            size, b1, b2, eps = s
            m = m + (1 - b1) * (g - m)
            # eps is added to the new magnitude; added to the maximum, it would accumulate over the steps.
            u = jnp.maximum(b2 * u, jnp.abs(g) + eps)
            return -size * (m / u), m, u

        size = hyper.value_at(lr, state.step) / hyper.bias_correction(beta1, step)
        updates, *moments = leafwise(rule, (size, beta1, beta2, eps), grads, state[1:])
        return updates, AdamaxState(step, *moments)

    return chain(gradient_stages(weight_decay, maximize), init, update, "adamax")
