"""The matrix products and convolutions of a program, counted before it is compiled.

XLA's cost analysis counts the body of a loop once, however often it turns, and what a vendor's
library computes not at all. Products are nearly all the work of a network, and how often a
`lax.scan` turns is known, so they are counted here as well and the larger figure is taken. A
`lax.while_loop` still counts once, since nobody knows how often it turns.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from ..._upstream import PROGRAMS, opened


@dataclasses.dataclass(frozen=True)
class Products:
    """Operations of all products, the bytes of their operands and results, and the commonest type."""

    flops: float
    bytes: float
    kind: str | None


def products(jaxpr: Any) -> Products:
    """Those of a jaxpr and of all that it calls."""
    flops: collections.Counter[str] = collections.Counter()
    moved = 0
    for equation, times in _equations(jaxpr, 1):
        operations = _operations(equation)
        if operations:
            kind = max((v.aval.dtype for v in equation.invars[:2]), key=lambda d: d.itemsize)
            flops[jnp.dtype(kind).name] += times * operations
            variables = (*equation.invars[:2], *equation.outvars)
            moved += times * sum(v.aval.size * v.aval.dtype.itemsize for v in variables)
    # An integer product is no floating-point work.
    floats = {kind: n for kind, n in flops.items() if jnp.issubdtype(kind, jnp.inexact)}
    most = max(floats, key=lambda kind: floats[kind]) if floats else None
    return Products(float(sum(floats.values())), float(moved), most)


def _equations(jaxpr: Any, times: int) -> Iterator[tuple[Any, int]]:
    """Every equation with how often it runs; of the branches of a cond, the longest."""
    for equation in jaxpr.eqns:
        yield equation, times
        turns = times * equation.params["length"] if equation.primitive.name == "scan" else times
        inner = [list(_equations(sub, turns)) for sub in _inside(equation.params)]
        if equation.primitive.name == "cond" and inner:
            inner = [max(inner, key=lambda branch: sum(_operations(e) * n for e, n in branch))]
        for branch in inner:
            yield from branch


def _inside(params: dict[str, Any]) -> list[Any]:
    """The programs among an equation's parameters."""
    values = [v for p in params.values() for v in (p if isinstance(p, (tuple, list)) else (p,))]
    return [opened(v)[0] for v in values if isinstance(v, PROGRAMS)]


def _operations(equation: Any) -> int:
    """Multiplications and additions of a product or a convolution; 0 for anything else."""
    name = equation.primitive.name
    if name not in ("dot_general", "conv_general_dilated"):
        return 0
    left, right = (v.aval.shape for v in equation.invars[:2])
    results = math.prod(equation.outvars[0].aval.shape)
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2 * results * math.prod(left[i] for i in contracted)
    numbers = equation.params["dimension_numbers"]
    features = right[numbers.rhs_spec[0]]
    return 2 * results * math.prod(right) // features
