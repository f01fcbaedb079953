"""Convolutions inside a branch, at their usual speed on CPU devices.

XLA's CPU compiler uses the layout of its fast kernel only outside of branches; in a branch, a convolution's
gradients run ten to thirty times slower (jaxlib 0.10). Delete this file when XLA canonicalises branches too.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import jax
from jax.lax import ConvDimensionNumbers, conv_general_dilated_p

from .._upstream import ClosedJaxpr, Jaxpr, Primitive, ad, batching, jaxpr_as_fun, mlir, opened, rewritten

_conv_p = Primitive("convolution_in_branch")


P = TypeVar("P", ClosedJaxpr, Jaxpr)


def for_branch(program: P) -> P:
    """Return the same program with every convolution replaced, at any depth."""

    def param(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr | Jaxpr):
            return for_branch(value)  # type: ignore[type-var]
        return tuple(map(param, value)) if type(value) is tuple else value

    return rewritten(
        program,
        eqns=[
            eqn.replace(
                primitive=_conv_p if eqn.primitive is conv_general_dilated_p else eqn.primitive,
                params={key: param(value) for key, value in eqn.params.items()},
            )
            for eqn in opened(program)[0].eqns
        ],
    )


def _plain(lhs: jax.Array, rhs: jax.Array, **params: Any) -> jax.Array:
    return conv_general_dilated_p.bind(lhs, rhs, **params)


def _canonical(lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: Any, **params: Any) -> jax.Array:
    """Convolve with rows first, channels last and kernels [..., in, out], transposing before and after."""
    n = lhs.ndim
    lhs_spec, rhs_spec, out_spec = dimension_numbers  # positions of (batch, feature, *space) and so on
    lhs = lhs.transpose(lhs_spec[0], *lhs_spec[2:], lhs_spec[1])
    rhs = rhs.transpose(*rhs_spec[2:], rhs_spec[1], rhs_spec[0])
    space = tuple(range(1, n - 1))
    fast = ConvDimensionNumbers((0, n - 1, *space), (n - 1, n - 2, *range(n - 2)), (0, n - 1, *space))
    out = _plain(lhs, rhs, dimension_numbers=fast, **params)
    order = (out_spec[0], *out_spec[2:], out_spec[1])
    return out.transpose(sorted(range(n), key=order.__getitem__))


def _transpose(side: int, cotangent: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """JAX's own rule for the plain convolution, its convolutions replaced in turn."""
    operand, other = (lhs, rhs) if side == 0 else (rhs, lhs)

    def rule(cotangent: jax.Array, other: jax.Array) -> jax.Array:
        def along(x: jax.Array) -> jax.Array:
            return _plain(x, other, **params) if side == 0 else _plain(other, x, **params)

        return jax.linear_transpose(along, operand.aval)(cotangent)[0]

    # JAX's rule writes its own convolutions, in the layout that is slow in a branch.
    return jaxpr_as_fun(for_branch(jax.make_jaxpr(rule)(cotangent, other)))(cotangent, other)[0]


def _batch(args: Any, dims: Any, **params: Any) -> Any:
    return jax.vmap(functools.partial(_plain, **params), in_axes=dims)(*args), 0


_conv_p.def_impl(_canonical)
_conv_p.def_abstract_eval(lambda *avals, **params: conv_general_dilated_p.abstract_eval(*avals, **params)[0])
ad.defbilinear(_conv_p, functools.partial(_transpose, 0), functools.partial(_transpose, 1))
batching.primitive_batchers[_conv_p] = _batch
mlir.register_lowering(_conv_p, mlir.lower_fun(_canonical, multiple_results=False))
