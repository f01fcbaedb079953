"""rules: the effect of each primitive on an axis of rows.

A rule returns where the results have rows, and which operands need a mask: those whose rows are summed, or
whose maximum is taken. It raises DependentError for any other equation that combines rows. A primitive
without a rule may not touch rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._upstream import JaxprEqn
from .rows import DependentError, Rows, reshaped, unified


class Mask(NamedTuple):
    """Operand `operand` gets `neutral` in its padding before the equation runs."""

    operand: int
    rows: Rows
    neutral: Any


class RowEffect(NamedTuple):
    rows: Sequence[Rows | None]
    masks: tuple[Mask, ...] = ()


Where = Sequence[Rows | None]
RowRule = Callable[[JaxprEqn, Where, Rows | None], RowEffect]
"""`rule(eqn, where, result_rows)`: `result_rows` is the axis on which the first result differs in length, as
one block."""

# fmt: off
ELEMENTWISE = frozenset(
    {
        "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
        "bessel_i0e", "bessel_i1e", "bitcast_convert_type", "cbrt", "ceil", "clamp", "complex", "conj",
        "convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div", "eq", "eq_to", "erf",
        "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "igammac", "imag",
        "integer_pow", "is_finite", "le", "le_to", "lgamma", "log", "log1p", "logistic", "lt", "lt_to",
        "max", "min", "mul", "ne", "neg", "nextafter", "not", "optimization_barrier", "or", "polygamma",
        "population_count", "pow", "real", "reduce_precision", "regularized_incomplete_beta", "rem",
        "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical",
        "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "threefry2x32",
        "xor", "zeta",
    }
)
# fmt: on

SHAPES = {
    "broadcast_in_dim": ("shape",),
    "dynamic_slice": ("slice_sizes",),
    "gather": ("slice_sizes",),
    "iota": ("shape",),
    "random_bits": ("shape",),
    "reshape": ("new_sizes",),
    "slice": ("limit_indices",),
}  # parameters that are lengths of axes, and therefore differ with the number of rows


def rule_of(name: str) -> RowRule | None:
    return _elementwise if name in ELEMENTWISE else RULES.get(name)


def _shape(eqn: Any, i: int = 0) -> tuple[int, ...]:
    return eqn.invars[i].aval.shape


def _dtype(eqn: Any) -> Any:
    return eqn.invars[0].aval.dtype


def _result(eqn: Any) -> tuple[int, ...]:
    return eqn.outvars[0].aval.shape


def _elementwise(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    # A barrier's operands are independent of each other and may have rows on different axes.
    if eqn.primitive.name == "optimization_barrier":
        return RowEffect(where)
    return RowEffect([unified(where)] * len(eqn.outvars))


def _broadcast(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    rows = where[0]
    if rows is None:
        # All rows are copies of one value, which fits any order of rows.
        return RowEffect([result_rows and result_rows._replace(constant=True)])
    return RowEffect([rows._replace(axis=eqn.params["broadcast_dimensions"][rows.axis])])


def _reshape(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    # `dimensions` would permute the elements before the reshape.
    if where[0] is None or result_rows is None or eqn.params["dimensions"] is not None:
        raise DependentError("reshape")
    return RowEffect([reshaped(where[0], _shape(eqn), _result(eqn), result_rows.axis)])


def _without(rows: Rows, gone: Sequence[int]) -> Rows:
    return rows._replace(axis=rows.axis - sum(i < rows.axis for i in gone))


def _squeeze(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    assert where[0] is not None
    return RowEffect([_without(where[0], eqn.params["dimensions"])])


def _transpose(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    assert where[0] is not None
    return RowEffect([where[0]._replace(axis=eqn.params["permutation"].index(where[0].axis))])


def _reduction(neutral: Callable[[Any], Any]) -> RowRule:
    def rule(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
        rows = where[0]
        assert rows is not None
        if rows.axis not in eqn.params["axes"]:
            return RowEffect([_without(rows, eqn.params["axes"])])
        return RowEffect([None], (Mask(0, rows, neutral(_dtype(eqn))),))

    return rule


def lowest(dtype: Any) -> Any:
    if dtype == jnp.bool_:
        return False
    # Infinity rather than the lowest finite number: the maximum of rows that are all -inf is -inf.
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    if dtype == jnp.bool_:
        return True
    return np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


def _along_other_axes(*names: str) -> RowRule:
    """Return a rule for primitives that run along the axes in these parameters, but not along rows."""

    def rule(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
        rows = unified(where)
        along = [i for name in names for i in np.ravel(eqn.params[name]).tolist()]
        if rows is None or rows.axis in along:
            raise DependentError(eqn.primitive.name)
        return RowEffect([rows] * len(eqn.outvars))

    return rule


def _argument(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    rows = where[0]
    if rows is None or rows.axis in eqn.params["axes"]:
        raise DependentError("argmax")
    return RowEffect([_without(rows, eqn.params["axes"])])


def _dot(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    (contract, batch), (lhs, rhs) = eqn.params["dimension_numbers"], where
    roles = [_role(rows, contract[i], batch[i]) for i, rows in enumerate(where)]
    if lhs is not None and rhs is not None:
        kind, at = roles[0]
        rows = unified([lhs._replace(axis=0), rhs._replace(axis=0)])
        # Rows that are free on both sides become two axes of rows, which `Rows` cannot describe.
        if roles[0] != roles[1] or kind == "free" or rows is None:
            raise DependentError("dot_general")
        if kind == "batch":
            return RowEffect([rows._replace(axis=at)])
        # Mask both: 0 times a value that is not finite would not be 0.
        return RowEffect(
            [None], tuple(Mask(i, rows._replace(axis=r.axis), 0) for i, r in enumerate((lhs, rhs)))
        )
    side = 0 if lhs is not None else 1
    rows = where[side]
    if rows is None or roles[side][0] != "free":
        raise DependentError("dot_general")
    gone = [*contract[side], *batch[side]]
    before = len(batch[0]) + (side and len(_shape(eqn, 0)) - len(contract[0]) - len(batch[0]))
    free = sum(i not in gone for i in range(rows.axis))
    return RowEffect([rows._replace(axis=before + free)])


def _role(rows: Rows | None, contract: Sequence[int], batch: Sequence[int]) -> tuple[str, int]:
    """Return the role of an operand's axis of rows in a product, and its position there."""
    if rows is None:
        return "none", 0
    if rows.axis in contract:
        return "contract", list(contract).index(rows.axis)
    if rows.axis in batch:
        return "batch", list(batch).index(rows.axis)
    return "free", 0


def _convolution(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["batch_group_count"]
    lhs, rhs = where
    # With groups of the batch the result's batch axis is not the operand's.
    if rhs is None and lhs is not None and lhs.axis == numbers.lhs_spec[0] and groups == 1:
        return RowEffect([lhs._replace(axis=numbers.out_spec[0])])
    raise DependentError("convolution")


def _pad(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    rows, value = where
    if rows is None or value is not None or tuple(eqn.params["padding_config"][rows.axis]) != (0, 0, 0):
        raise DependentError("pad")
    return RowEffect([rows])


def _slice(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    rows, params = where[0], eqn.params
    assert rows is not None
    i = rows.axis
    extent = params["start_indices"][i], params["limit_indices"][i], (params["strides"] or {i: 1})[i]
    if extent != (0, _shape(eqn)[i], 1):
        raise DependentError("slice")
    return RowEffect([rows])


def _dynamic_slice(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    rows = where[0]
    # A slice of full length starts at 0, whatever its start index.
    if rows is None or any(where[1:]) or eqn.params["slice_sizes"][rows.axis] != _shape(eqn)[rows.axis]:
        raise DependentError("dynamic_slice")
    return RowEffect([rows])


def _dynamic_update(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    rows = unified(where[:2])
    if rows is None or any(where[2:]) or _shape(eqn, 1)[rows.axis] != _shape(eqn)[rows.axis]:
        raise DependentError("dynamic_update_slice")
    return RowEffect([rows])


def _gather(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    operand, indices = where
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    offsets = numbers.offset_dims
    batch = [i for i in range(len(_result(eqn))) if i not in offsets]
    last = len(_shape(eqn, 1)) - 1
    if operand is None:  # a row's own entries of a table
        assert indices is not None
        if indices.axis == last:
            raise DependentError("gather")
        return RowEffect([indices._replace(axis=batch[indices.axis])])
    if operand.axis in numbers.operand_batching_dims:  # each row's own entries
        at = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(operand.axis)]
        if indices is None or indices.axis != at:
            raise DependentError("gather")
        rows = unified([operand._replace(axis=at), indices])
        assert rows is not None
        return RowEffect([rows._replace(axis=batch[at])])
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    remaining_axes = [i for i in range(len(_shape(eqn))) if i not in gone]
    if indices is not None or operand.axis in gone or sizes[operand.axis] != _shape(eqn)[operand.axis]:
        raise DependentError("gather")
    return RowEffect([operand._replace(axis=offsets[remaining_axes.index(operand.axis)])])


def _iota(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    return RowEffect(
        [result_rows and result_rows._replace(constant=eqn.params["dimension"] != result_rows.axis)]
    )


def _random_bits(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    # In JAX's default generator each number is a function of the key and of its position, so rows that are
    # appended to the first axis change none.
    kind = jax.dtypes.prng_key
    key = _dtype(eqn)
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if (
        result_rows is None
        or result_rows.axis
        or where[0] is not None
        or not jnp.issubdtype(key, kind)
        or not partitionable
    ):
        raise DependentError("random_bits")
    if "fry" not in str(key) or _shape(eqn):
        raise DependentError("random_bits")
    return RowEffect([result_rows])


def _window(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    rows, params = unified(where), eqn.params
    if rows is None:
        raise DependentError("reduce_window")
    i = rows.axis
    for name in ("window_dimensions", "window_strides", "base_dilation", "window_dilation"):
        if (params.get(name) or {i: 1})[i] != 1:
            raise DependentError("reduce_window")
    if tuple(params["padding"][i]) != (0, 0):
        raise DependentError("reduce_window")
    return RowEffect([rows])


def _concatenate(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    rows = unified(where)
    if rows is None or None in where or rows.axis == eqn.params["dimension"]:
        raise DependentError("concatenate")
    return RowEffect([rows])


def _last(eqn: JaxprEqn, where: Where, result_rows: Rows | None) -> RowEffect:
    rows = where[0]
    if rows is None or rows.axis == eqn.params.get("axis", len(_shape(eqn)) - 1):
        raise DependentError("top_k")
    return RowEffect([rows] * len(eqn.outvars))


RULES: dict[str, RowRule] = {
    **dict.fromkeys(("argmax", "argmin"), _argument),
    **dict.fromkeys(("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"), _along_other_axes("axis")),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_window_sum"), _window),
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "gather": _gather,
    "iota": _iota,
    "pad": _pad,
    "random_bits": _random_bits,
    "reduce_and": _reduction(lambda dtype: True),
    "reduce_max": _reduction(lowest),
    "reduce_min": _reduction(highest),
    "reduce_or": _reduction(lambda dtype: False),
    "reduce_prod": _reduction(lambda dtype: 1),
    "reduce_sum": _reduction(lambda dtype: 0),
    "reshape": _reshape,
    "rev": _along_other_axes("dimensions"),
    "slice": _slice,
    "sort": _along_other_axes("dimension"),
    "split": _along_other_axes("axis"),
    "squeeze": _squeeze,
    "top_k": _last,
    "transpose": _transpose,
}
