"""Apply one update rule to all leaves; the stages of an `optax.chain` that most optimizers share.

State fields of the stages written here have torch's names (`exp_avg`, `step`, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyperparameters import Scalar, ScalarOrSchedule, is_zero, new_counter, value_at


def leafwise(
    rule: Callable[..., tuple[Any, ...]],
    scalars: tuple[Any, ...],
    grads: PyTree,
    moments: Sequence[PyTree] = (),
    *others: PyTree,
) -> tuple[PyTree, ...]:
    """Apply `rule(scalars, gradient, *moments, *others)` to each leaf; return updates and new moments."""
    structure: Any
    leaves, structure = jax.tree.flatten(grads)
    # Unused moments are None at a leaf, so flatten only as deep as the gradients.
    columns = [structure.flatten_up_to(tree) for tree in (*moments, *others)]
    results = []
    for g, *inputs in zip(leaves, *columns, strict=True):
        wide = jnp.promote_types(jnp.result_type(g), jnp.float32)
        # A Python number stays one, so that it takes the leaf's type and the compiler sees a constant.
        cast = [s if isinstance(s, (int, float)) else jnp.asarray(s, wide) for s in scalars]
        update, *new = rule(cast, *(jnp.asarray(x, wide) for x in (g, *inputs)))
        # Moments keep their types: a donated state must have the same types before and after the step.
        stored = [y.astype(x.dtype) for x, y in zip(inputs[: len(moments)], new, strict=True)]
        results.append((update, *stored))
    return tuple(structure.unflatten([result[i] for result in results]) for i in range(1 + len(moments)))


def lerp(start: jax.Array, end: jax.Array, weight: float | jax.Array) -> jax.Array:
    """Return start + weight * (end - start) in the arrays' type, exact at both ends, as `torch.lerp` is."""
    # `near` is exact for weight 0 and `far` for weight 1. Both are computed because the weight may be traced.
    near = start + weight * (end - start)
    far = end - (end - start) * (1 - weight)
    return jnp.where(jnp.asarray(weight) < 0.5, near, far)


def zeros(params: PyTree) -> PyTree:
    return optax.tree.zeros_like(params)


def gradient_stages(weight_decay: Scalar, maximize: bool) -> list[optax.GradientTransformation]:
    """Return torch's first two operations: -g if `maximize`, then g + weight_decay * p."""
    # Negate before adding the decay, not after: with `maximize` torch still shrinks the parameters.
    stages = [optax.scale(-1.0)] if maximize else []
    return stages if is_zero(weight_decay) else [*stages, optax.add_decayed_weights(weight_decay)]


def refuse_complex(params: PyTree, function: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if jnp.iscomplexobj(leaf):
            raise TypeError(
                f"{function}: {jax.tree_util.keystr(path) or 'the parameter'} is {leaf.dtype}. Torch treats "
                "a complex number as two real ones: wrap the optimizer in "
                "optax.contrib.split_real_and_imaginary, which does that."
            )


class RateState(NamedTuple):
    step: jax.Array


def scale_by_lr(lr: ScalarOrSchedule, function: str) -> optax.GradientTransformation:
    """Scale updates by -lr. optax's stage counts in int32, from which schedules compute in float32."""

    def init(params):
        refuse_complex(params, function)
        return RateState(new_counter())

    def update(updates, state, params=None):
        (updates,) = leafwise(lambda s, u: (-s[0] * u,), (value_at(lr, state.step),), updates)
        return updates, RateState(optax.safe_increment(state.step))

    return optax.GradientTransformation(init, update)


def chain(
    before: list[optax.GradientTransformation],
    init: Callable[[PyTree], Any],
    update: Callable[..., tuple[PyTree, Any]],
    function: str,
) -> optax.GradientTransformationExtraArgs:
    """Chain the first stages with a rule that applies the learning rate itself."""

    def checked(params):
        refuse_complex(params, function)
        return init(params)

    return optax.chain(*before, optax.GradientTransformation(checked, update))


KeyPath: TypeAlias = tuple[Any, ...]


def leaf_path(path: KeyPath) -> str:
    """Join the keys by slashes, without the `value` of a Flax variable."""
    if path and isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name == "value":
        path = path[:-1]
    return jax.tree_util.keystr(path, simple=True, separator="/")
