"""Count one instruction's floating-point operations and the bytes that it reads and writes.

A slice of an array costs only the slice: an iteration of `lax.scan` reads one layer of the stacked weights.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

from .hlo import Array, Computation, Instruction, Module

FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "domain"),
    *("partition-id", "replica-id", "after-all", "add-dependency"),
    *("copy-done", "send", "send-done", "recv", "recv-done", "async-update"),
}
"""Operations that start no kernel."""

SLICES = ("slice", "dynamic-slice", "gather")
VIEWS = ("bitcast", "reshape", "copy")
ATTENTION_PRODUCTS = {"Backward": 5, "": 2}
"""Matrix products in fused attention: scores and outputs. Backward: the gradients of both operands
of both, and computes the scores again."""


@dataclasses.dataclass(frozen=True)
class KernelWork:
    """Operations, their type, and bytes; `counted` is False for an unknown library function's operations."""

    flops: float = 0.0
    bytes: float = 0.0
    kind: str = ""
    counted: bool = True


def work(instruction: Instruction, computation: Computation, module: Module) -> KernelWork | None:
    """Count one instruction; None if it starts no kernel."""
    if instruction.operation in FREE:
        return None
    products = list(_products(instruction, computation, module))
    flops = sum(n for n, _ in products)
    # A fusion may mix types. The largest product decides which rate applies.
    _, kind = max(products, default=(0, ""))
    library = instruction.operation == "custom-call" and not products
    # These targets are custom calls by name only: they compute no products.
    counted = not library or instruction.target in ("Sharding", "AllocateBuffer", "TopK", "__gpu$TopK")
    return KernelWork(float(flops), float(_bytes(instruction, computation, module)), kind, counted)


def _products(
    instruction: Instruction, computation: Computation, module: Module
) -> Iterator[tuple[int, str]]:
    for name in instruction.called:
        called = module.computations[name]
        for inner in called.instructions.values():
            yield from _products(inner, called, module)
    flops = _flops(instruction, computation)
    if flops:
        lhs, rhs = computation.operand(instruction, 0), computation.operand(instruction, 1)
        complex_ = lhs.kind.startswith("c")
        # Tensor cores run a mixed product at the rate of its wider operand.
        kind = _FLOATS.get(max((lhs, rhs), key=lambda x: x.bytes / x.size).kind)
        if kind:  # products of integers are not floating-point work
            # A complex multiplication has four real ones.
            yield flops * (4 if complex_ else 1), kind


_FLOATS = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "c64": "float32",
    "c128": "float64",
    "f8e4m3fn": "float8",
    "f8e5m2": "float8",
}


def _flops(instruction: Instruction, computation: Computation) -> int:
    """Return the multiplications and additions of a product or a convolution; 0 for anything else."""
    operation, target = instruction.operation, instruction.target
    if operation == "dot" or target.startswith(("__cublas$gemm", "__cublas$lt$matmul")):
        lhs = computation.operand(instruction, 0)
        contracted = instruction.numbers("lhs_contracting_dim(?:s|ensions)")
        return 2 * instruction.results[0].size * math.prod(lhs.shape[i] for i in contracted)
    if operation == "convolution" or target.startswith("__cudnn$conv"):
        results, kernel = _convolved(instruction, computation)
        labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.attributes)
        assert labels, instruction.name  # every convolution has dim_labels
        # Each output channel uses its part of the kernel only, also in a grouped convolution.
        return 2 * results.size * kernel.size // kernel.shape[labels.group(1).index("o")]
    if target.startswith("__cudnn$fmha"):
        return _attention(instruction, computation)
    return 0


def _convolved(instruction: Instruction, computation: Computation) -> tuple[Array, Array]:
    """Return the forward convolution's results and kernel; a gradient has them among its operands."""
    first, second, result = (
        computation.operand(instruction, 0),
        computation.operand(instruction, 1),
        instruction.results[0],
    )
    if instruction.target == "__cudnn$convBackwardInput":
        return first, second
    if instruction.target == "__cudnn$convBackwardFilter":
        return second, result
    return result, second


def _attention(instruction: Instruction, computation: Computation) -> int:
    # The scores [heads, rows, keys] are never in memory, so their shape is only in the configuration; a
    # causal mask leaves half of them uncomputed.
    scores = instruction.numbers("intermediate_tensor_shape.*?dimensions")
    queries = computation.operand(instruction, 0)
    features = queries.size // math.prod(scores[:-1])
    products = ATTENTION_PRODUCTS["Backward" if instruction.target.endswith("Backward") else ""]
    causal = '"CAUSAL"' in instruction.attributes
    return products * 2 * math.prod(scores) * features // (2 if causal else 1)


def _bytes(instruction: Instruction, computation: Computation, module: Module) -> int:
    # An operand that appears twice is read once, from the cache the second time.
    operands = [computation.instructions[name] for name in dict.fromkeys(instruction.operands)]
    if instruction.operation == "fusion":
        fused = module.computations[instruction.called[0]]
        read = sum(_read(i, fused) for i in fused.instructions.values() if i.operation == "parameter")
        return read + _written(fused.root, fused)
    if instruction.operation in SLICES:
        return 2 * instruction.bytes
    if instruction.operation == "dynamic-update-slice":
        return 2 * operands[1].bytes
    if instruction.operation == "scatter":  # in place: old rows, new rows, indices
        return 2 * operands[-1].bytes + operands[1].bytes
    return instruction.bytes + sum(x.bytes for x in operands)


def _read(source: Instruction, fused: Computation) -> int:
    """Return the bytes that a fusion reads of one of its parameters."""
    read = 0
    for user in fused.users[source.name]:
        first = bool(user.operands) and user.operands[0] == source.name
        if user.operation in VIEWS:
            read += _read(user, fused)
        elif user.operation in SLICES and first:
            read += user.bytes
        # The updated array itself is not read: the fusion writes the slice in place.
        elif user.operation != "dynamic-update-slice" or not first:
            return source.bytes
    # Several overlapping slices of an array cost at most the array.
    return min(read, source.bytes)


def _written(root: Instruction, fused: Computation) -> int:
    """Return the bytes that a fusion writes: all results, but only the slice of an array updated in place."""
    if root.operation == "tuple":
        return sum(_written(fused.instructions[name], fused) for name in root.operands)
    if root.operation in VIEWS and root.operands:
        inner = fused.instructions[root.operands[0]]
        if inner.operation == "dynamic-update-slice":
            return _written(inner, fused)
    if root.operation == "dynamic-update-slice":
        return fused.operand(root, 1).bytes
    return root.bytes
