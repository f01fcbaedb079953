"""Which instructions there are rules for, and of which kind."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..estimate.hlo import Instruction, Module


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LINEAR = _words(
    """
    bitcast broadcast convert copy divide dynamic-slice gather imag negate real
    reduce-precision reshape reverse slice transpose
    """
)
"""In the first operand. The others are numbers, indices or divisors."""
SUMS = {"add", "subtract", "concatenate", "pad", "dynamic-update-slice", "complex", "select"}
"""A choice by one condition everywhere is as good as a sum in which the other operand is zero."""
PRODUCTS = {"multiply", "dot", "convolution"}
FUNCTIONS = _words(
    """
    abs acos acosh and asin asinh atan2 atanh batch-norm-grad batch-norm-inference batch-norm-training
    bitcast-convert cbrt ceil cholesky clamp compare cosh cosine count-leading-zeros erf exponential
    exponential-minus-one fft floor iota is-finite log log-plus-one logistic map maximum minimum not or
    popcnt power reduce reduce-window remainder rng-bit-generator round-nearest-afz round-nearest-even
    rsqrt scatter select-and-scatter shift-left shift-right-arithmetic shift-right-logical sign sine
    sinh sort sqrt stochastic-convert tan tanh topk triangular-solve xor
    """
)
"""Equal operands give equal results, on each device."""
LAYOUT = {"copy", "bitcast", "reshape", "transpose", "convert"}
"""The result is still the operand's numbers."""
PLACED = {*LAYOUT, "negate", "real", "imag", "reduce-precision", "reverse", "slice"}
"""Each element of the result is made of one element of the operand."""
ELEMENTWISE = {*SUMS, "multiply", "divide", *FUNCTIONS} - {
    *("concatenate", "pad", "dynamic-update-slice", "batch-norm-grad", "batch-norm-inference", "scatter"),
    *("batch-norm-training", "bitcast-convert", "cholesky", "fft", "iota", "map", "reduce", "reduce-window"),
    *("rng-bit-generator", "select-and-scatter", "sort", "topk", "triangular-solve"),
}
"""Each element of the result is made of one element of each operand, or of scalars."""
SCALED = {"multiply", "divide", "slice", "dynamic-slice", "broadcast"}
"""What keeps a sum a sum, at most with a factor."""
PURE = _words(
    """
    __cublas$ __cudnn$ __triton triton_ __cub$ __gpu$TopK TopK cusolver lapack_ __onednn$ AllocateBuffer
    Sharding annotate_device_placement MoveToHost MoveToDevice SPMDFullToShardShape SPMDShardToFullShape
    cu_threefry blas_
    """
)
"""Beginnings of the names of libraries' functions without state."""
LINEAR_GEMM = ("__cublas$gemm", "__cublas$lt$matmul")
RANDOM = re.compile(
    r"threefry|random_bits|rng_bit_generator|random_gamma"
    r"|jit\(_?(?:bernoulli|uniform|normal|normal_real|truncated_normal|gumbel|exponential|randint|laplace)\)"
)
"""The names of instructions of JAX's random functions."""
COLLECTIVES = _words(
    """
    all-gather all-reduce all-to-all collective-broadcast collective-permute reduce-scatter
    """
)


class NoRuleError(Exception):
    """An instruction, or a part of one, that has no rule; what it computes is unknown."""


def called(i: Instruction, key: str) -> str:
    match = re.search(rf"\b{key}=%?([\w.\-]+)", i.attributes)
    if not match:
        raise NoRuleError(f"{i.operation} without {key}")
    return match.group(1)


def reducing_operation(i: Instruction, module: Module) -> str:
    """Return the operation by which an instruction reduces; conversions of types do not count.

    It is "parameter" for a scatter that replaces.
    """
    reduction = module.computations[called(i, "to_apply")]
    operations = [x.operation for x in reduction.instructions.values()]
    computed = [o for o in operations if o not in ("parameter", "convert", "bitcast", "copy")]
    if not computed and reduction.root.operation == "parameter":
        return "parameter"
    if len(computed) != 1:
        raise NoRuleError(f"a reduction by {', '.join(computed) or 'nothing'}")
    return computed[0]


def kind_of(i: Instruction, module: Module, kinds: Sequence[str]) -> str:
    """Return how an instruction's result depends on its operands, of these types: as `combined` takes it."""
    rounds = bool(i.results) and i.results[0].kind[0] not in "fbc"
    if rounds and (i.operation == "divide" or (i.operation == "convert" and kinds and kinds[0][0] in "fbc")):
        return "any"  # rounding a sum is not the sum of what is rounded
    reduces = i.operation in ("reduce", "reduce-window") and not i.is_tuple
    if reduces and reducing_operation(i, module) == "add":
        return "sum"
    if i.operation == "scatter" and reducing_operation(i, module) in ("add", "parameter"):
        return "sum"
    if i.operation in SUMS:
        return "sum"
    return "product" if i.operation in PRODUCTS else "linear" if i.operation in LINEAR else "any"
