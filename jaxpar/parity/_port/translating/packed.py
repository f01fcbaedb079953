"""Packed sequences, as padded arrays and the `lengths` of recurrent layers.

A variable that holds a packed sequence holds its padded array in the file. What it was packed with is read
from the assignments of its function: from `pack_padded_sequence`, through the layers that were called.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .. import rules
from .context import Context
from .expressions import argument, text
from .fragment import Fragment, Hole

ONLY_LAYERS = "a packed sequence can only be the input of a recurrent layer or of pad_packed_sequence"
TOTAL_LENGTH = "the result has the steps of the padded input, which total_length has to be"
LONGEST = "the result has the steps of the padded input: torch's has those of the longest sequence"


class Packing(NamedTuple):
    """The text of a sequence's lengths, and whether the batch is its first axis."""

    lengths: str
    batch_first: bool


def packed(ctx: Context, node: ast.Call) -> Fragment | None:
    """Write a call of a recurrent layer or of pad_packed_sequence; None for any other call."""
    if not node.args:
        return None
    value = ctx.scope.value(node.func)
    if value is pad_packed_sequence:
        return Fragment(f"({', '.join(_padded(ctx, node))})")
    site = ctx.site(node.args[0])
    layers = [module for module in ctx.modules(node.func) if isinstance(module, nn.RNNBase)]
    if not site or PackedSequence not in site.kinds or not layers:
        return None
    packing, array = _packing(ctx, node.args[0]), _array(ctx, node.args[0])
    lengths = ast.keyword("lengths", ast.Name(packing.lengths))
    if {layer.batch_first for layer in layers} != {packing.batch_first}:
        raise Hole("batch_first of the layer is not that of pack_padded_sequence")
    more = [text(ctx, part) for part in (*node.args[1:], *node.keywords)]
    return Fragment(f"{text(ctx, node.func)}({', '.join([array, *more, ast.unparse(lengths)])})")


def packed_assignment(ctx: Context, node: ast.Assign) -> str | None:
    """Write what packs, pads, or takes apart what was padded; "" for nothing, None for another assignment."""
    target, call = node.targets[0], node.value
    if not isinstance(call, ast.Call) or len(node.targets) > 1:
        return None
    value = ctx.scope.value(call.func)
    if value is pack_padded_sequence and isinstance(target, ast.Name):
        lengths = _packing_of(ctx, call, target.id).lengths
        pairs = [(target.id, text(ctx, call.args[0]))]
        if lengths == f"{target.id}_lengths":
            pairs.append((lengths, _lengths(ctx, call)))
    elif value is pad_packed_sequence and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        names = [text(ctx, element) for element in target.elts]
        pairs = [pair for pair in zip(names, _padded(ctx, call), strict=True) if pair[0] != "_"]
    else:
        return None
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    sides = (", ".join(side) for side in zip(*pairs, strict=True))
    return " = ".join(sides)


def packed_name(ctx: Context, node: ast.Name) -> None:
    """Refuse a packed sequence wherever it is neither padded nor the input of a layer.

    Raises:
      Hole: it is read.
    """
    site = ctx.watched.site(ctx.source, node)
    if site and PackedSequence in site.kinds:
        raise Hole(ONLY_LAYERS)


def _padded(ctx: Context, node: ast.Call) -> tuple[str, str]:
    packing, first = _packing(ctx, node.args[0]), argument(node, 1, "batch_first")
    if argument(node, 2, "padding_value"):
        raise Hole("jaxpar's layers pad with zeros")
    ctx.note(node, TOTAL_LENGTH if argument(node, 3, "total_length") else LONGEST)
    array = _array(ctx, node.args[0])
    swapped = _flag(first) != packing.batch_first
    return f"{array}.swapaxes(0, 1)" if swapped else array, packing.lengths


def _array(ctx: Context, node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    assert isinstance(node, ast.Call)
    return text(ctx, node.args[0])


def _packing(ctx: Context, node: ast.expr, before: int | None = None) -> Packing:
    """Return the packing of an expression, from earlier assignments."""
    if isinstance(node, ast.Call) and ctx.scope.value(node.func) is pack_padded_sequence:
        return _packing_of(ctx, node)
    packings, line = set(), before or node.lineno
    for child in ast.walk(ctx.source.around(node) or node):
        if not isinstance(child, ast.Assign) or child.lineno >= line or not isinstance(child.value, ast.Call):
            continue
        target, call = child.targets[0], child.value
        first = target.elts[0] if isinstance(target, ast.Tuple) else target
        if not isinstance(node, ast.Name) or ast.unparse(first) != node.id:
            continue
        if ctx.scope.value(call.func) is pack_padded_sequence:
            packings.add(_packing_of(ctx, call, node.id))
        elif any(isinstance(module, nn.RNNBase) for module in ctx.modules(call.func)):
            packings.add(_packing(ctx, call.args[0], child.lineno))
    if len(packings) != 1:
        raise Hole("its lengths are not those of one pack_padded_sequence of this function")
    return packings.pop()


def _packing_of(ctx: Context, node: ast.Call, name: str = "") -> Packing:
    function = ctx.source.around(node)
    assert function is not None
    stored = [x for x in ast.walk(function) if isinstance(getattr(x, "ctx", None), ast.Store)]
    methods = [x for x in ast.walk(function) if isinstance(x, ast.Attribute) and x.attr in rules.IN_PLACE]
    # `n[0] = 1`, `n = ...`, `n.clamp_(1)`
    changed = [x.value if isinstance(x, ast.Subscript | ast.Attribute) else x for x in (*stored, *methods)]
    arguments = {x.arg for x in ast.walk(function) if isinstance(x, ast.arg)}
    written = _lengths(ctx, node)
    # The text is the same lengths wherever the function reads it, if nothing is assigned to it again.
    count = sum(isinstance(x, ast.Name) and x.id == written for x in changed) + (written in arguments)
    if not (written.isidentifier() and count == 1):
        if not name:
            raise Hole("assign the packed sequence to a variable")
        written = f"{name}_lengths"
    return Packing(written, _flag(argument(node, 2, "batch_first")))


def _lengths(ctx: Context, node: ast.Call) -> str:
    """Write lengths, which torch needs on the CPU, as an array."""
    lengths = argument(node, 1, "lengths")
    assert lengths is not None
    while (
        isinstance(lengths, ast.Call)
        and isinstance(lengths.func, ast.Attribute)
        and lengths.func.attr in ("cpu", "tolist", "numpy", "long")
    ):
        lengths = lengths.func.value
    written = text(ctx, lengths)
    if ctx.is_tensor(lengths):
        return written
    ctx.needs.imports["jnp"] = "import jax.numpy as jnp"
    return f"jnp.asarray({written})"


def _flag(node: ast.expr | None) -> bool:
    if node is not None and not isinstance(node, ast.Constant):
        raise Hole("whether the batch is the first axis is not in the line")
    return bool(node and node.value)
