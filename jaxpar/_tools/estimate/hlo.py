"""Parse a compiled program's HLO text, and count the work of its instructions."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping


@dataclasses.dataclass(frozen=True)
class Array:
    kind: str
    shape: tuple[int, ...]
    order: tuple[int, ...] | None = dataclasses.field(default=None, compare=False)
    """The order of the axes in memory, the innermost first; None if the text has no layout."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return math.ceil(self.size * _bits(self.kind) / 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    `operands` are names of instructions, `literal` is the text between the brackets, `attributes` the text
    after them.
    """

    name: str
    operation: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool = False
    literal: str = ""
    is_tuple: bool = False

    @property
    def bytes(self) -> int:
        return sum(x.bytes for x in self.results)

    @functools.cached_property
    def target(self) -> str:
        return self._attribute(r'custom_call_target="([^"]*)"')

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """The called computations: a fusion's, a loop's body, a conditional's branches."""
        several = self._attribute(r"branch_computations=\{([^}]*)\}")
        if several:
            return tuple(name.strip(" %") for name in several.split(","))
        # A reduction's to_apply adds two numbers and is not counted; a call's is part of the program.
        keys = "calls|body|true_computation|false_computation" + "|to_apply" * (self.operation == "call")
        return tuple(re.findall(rf"\b(?:{keys})=%([\w.\-]+)", self.attributes))

    @functools.cached_property
    def turns(self) -> int | None:
        count = self._attribute(r'"known_trip_count":\s*\{"n":\s*"(\d+)"')
        return int(count) if count else None

    @functools.cached_property
    def origin(self) -> str:
        """The operation in the user's program, without the prefixes of jit and shard_map."""
        path = self._attribute(r'op_name="([^"]*)"')
        return re.sub(r"^(?:(?:jit\([^/]*\)|shard_map)/)+", "", path)

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """Return the numbers of `lhs_contracting_dims={1,2}` or of JSON's `"dimensions": ["1", "2"]`."""
        digits = self._attribute(rf'{attribute}"?[=:]\s*[{{\[]([\d,\s"]*)[}}\]]')
        return tuple(int(n) for n in re.findall(r"\d+", digits))

    def _attribute(self, pattern: str) -> str:
        match = re.search(pattern, self.attributes)
        return match.group(1) if match else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    instructions: Mapping[str, Instruction]

    @property
    def root(self) -> Instruction:
        return next(i for i in self.instructions.values() if i.root)

    def operand(self, instruction: Instruction, number: int) -> Array:
        return self.instructions[instruction.operands[number]].results[0]

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        readers: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for name in dict.fromkeys(instruction.operands):
                if name in readers:
                    readers[name].append(instruction)
        return readers


@dataclasses.dataclass(frozen=True)
class Module:
    computations: Mapping[str, Computation]
    entry: str


def read(text: str) -> Module:
    computations: dict[str, dict[str, Instruction]] = {}
    entry, computation = None, None
    for line in text.splitlines():
        # A computation's header is the only line that ends in a brace after a parameter list.
        if header := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            computation = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
        elif computation is not None and (parsed := instruction(line)):
            computation[parsed.name] = parsed
    if entry is None:
        raise ValueError(
            "estimate: the compiler's text has no ENTRY computation, so there is no program to read."
        )
    return Module({name: Computation(instructions) for name, instructions in computations.items()}, entry)


def instruction(line: str) -> Instruction | None:
    """Parse a line, or return None if it is not an instruction."""
    begin = re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)
    if not begin:
        return None
    # A tuple's shape contains spaces and comments, so its end is found by counting brackets.
    middle = _closing(line, begin.end()) if line[begin.end()] == "(" else line.index(" ", begin.end())
    start = line.index("(", middle)
    end = _closing(line, start)
    return Instruction(
        name=begin.group(2),
        operation=line[middle:start].strip(),
        results=arrays(line[begin.end() : middle]),
        # Operands carry their shapes in some versions of XLA and not in others; the percent sign is in all.
        operands=tuple(re.findall(r"%([\w.\-]+)", line[start:end])),
        attributes=line[end:],
        root=bool(begin.group(1)),
        literal=line[start + 1 : end - 1],
        is_tuple=line[begin.end()] == "(",
    )


def arrays(text: str) -> tuple[Array, ...]:
    """Parse a shape."""
    matches = re.findall(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([\d,]*))?", text)
    return tuple(Array(kind, _numbers(shape), _numbers(order) or None) for kind, shape, order in matches)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def _closing(line: str, start: int) -> int:
    """Return the position after the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[position], 0)
        if not depth:
            return position + 1
    raise ValueError(f"estimate: a bracket stays open in the compiler's text: {line[:80]}")


def _bits(kind: str) -> int:
    # The only type without its width in the name; tokens and opaque values have no bytes.
    if kind == "pred":
        return 8
    digits = re.search(r"\d+", kind)
    return int(digits.group()) if digits else 0


# A slice of an array costs only the slice: an iteration of `lax.scan` reads one layer of the stacked weights.
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


def exchanged_bytes(instruction: Instruction, computation: Computation) -> int:
    """Return the larger of a collective's operands and results."""
    operand_bytes = sum(computation.instructions[name].bytes for name in instruction.operands)
    # A start's result tuple may repeat the operands; an all-reduce's does not.
    repeats = instruction.operation.endswith("-start") and instruction.operation != "all-reduce-start"
    return max(operand_bytes, instruction.bytes - operand_bytes * repeats)


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
