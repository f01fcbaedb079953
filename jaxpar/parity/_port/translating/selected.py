"""Rows that a mask selects, computes with and puts back: how many there are depends on data.

`i, j = torch.where(mask)` has as many places as the mask has numbers. Those that are left over are outside
of every array, where JAX writes nothing. `y[mask] = f(x[mask])` computes f of all rows.
"""

from __future__ import annotations

import ast
import dataclasses

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..reading.source import Function
from .context import Context
from .expressions import text, translated
from .gradients import value_of
from .indexing import SIGNS, is_mask

BY_ROWS = ("to", "type", "type_as", "float", "unsqueeze", "relu", "sigmoid", "tanh", "mul", "contiguous")
"""Methods that treat the rows of an array one by one."""
FUNCTIONS = ("silu", "gelu", "relu", "sigmoid", "tanh", "leaky_relu", "linear")
ADDING = ("index_add_", "index_add", "index_copy_", "index_copy")
COUNTS = ("len({})", "{}.numel()", "{}.nelement()", "{}.shape[0]", "{}.size(0)")
"""How many rows are selected, by the places."""
COMPUTED = "it computes all rows, of which torch computes those that are selected"


def places(ctx: Context, node: ast.Assign) -> str | None:
    """Write `i, j = torch.where(mask)` whose places only choose rows; None for any other."""
    target, mask = node.targets[0], _mask(ctx, node.value)
    elements = target.elts if isinstance(target, ast.Tuple) else []
    names = {element.id for element in elements if isinstance(element, ast.Name)}
    function = ctx.source.around(node)
    if mask is None or not names or len(names) < len(elements) or not ctx.in_call(node) or function is None:
        return None
    loads = [x for x in _loads(function) if x.id in names]
    if not loads or not all(_is_put_back(ctx, function, x, names, frozenset()) for x in loads):
        return None
    ctx.note(node, COMPUTED)
    sized = mask.left if isinstance(mask, ast.Compare) and ctx.is_tensor(mask.left) else mask
    size = f"{text(ctx, sized, 'a')}.size"
    return f"{text(ctx, target)} = jnp.where({text(ctx, mask)}, size={size}, fill_value={size})"


def _mask(ctx: Context, node: ast.expr) -> ast.expr | None:
    """Return the mask of `torch.where(mask)` and `mask.nonzero(as_tuple=True)`."""
    if not isinstance(node, ast.Call):
        return None
    function, is_tuple = (
        ctx.scope.value(node.func),
        [ast.unparse(x) for x in node.keywords] == ["as_tuple=True"],
    )
    if len(node.args) == 1 and (
        (function is torch.where and not node.keywords) or (function is torch.nonzero and is_tuple)
    ):
        return node.args[0]
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "nonzero" and not node.args
    return node.func.value if is_method and is_tuple and ctx.is_tensor(node.func.value) else None  # type: ignore[attr-defined]


def _loads(node: ast.AST) -> list[ast.Name]:
    return [x for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)]


def _is_put_back(
    ctx: Context, function: ast.AST, name: ast.Name, names: set[str], earlier: frozenset[str]
) -> bool:
    """Return whether a place only chooses rows, which are put back to places of the same names."""
    node: ast.AST = name
    if _is_of_skip(ctx, node):
        return True
    parent = ctx.source.parents[node]
    while isinstance(parent, ast.Tuple):
        node, parent = parent, ctx.source.parents[parent]
    if isinstance(parent, ast.Call) and _adds(parent, names):
        return True
    if not (isinstance(parent, ast.Subscript) and node is parent.slice):
        return False
    return isinstance(parent.ctx, ast.Store) or _flows_back(ctx, function, parent, names, earlier)


def _flows_back(
    ctx: Context, function: ast.AST, node: ast.AST, names: set[str], earlier: frozenset[str]
) -> bool:
    """Return whether rows are only computed with row by row, until they are put back."""
    parent = ctx.source.parents[node]
    while not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.Call) and _adds(parent, names):
            return True
        if not _is_by_rows(ctx, parent, node):
            return False
        node, parent = parent, ctx.source.parents[parent]
    if isinstance(parent, Function) or not isinstance(parent, ast.Assign | ast.AugAssign):
        return False
    target = parent.targets[0] if isinstance(parent, ast.Assign) else parent.target
    if isinstance(target, ast.Subscript):
        return any(x.id in names for x in _loads(target.slice))
    if not isinstance(target, ast.Name) or target.id in earlier:
        return isinstance(target, ast.Name)
    loads = [x for x in _loads(function) if x.id == target.id]
    return all(_flows_back(ctx, function, x, names, earlier | {target.id}) for x in loads)


def _adds(node: ast.Call, names: set[str]) -> bool:
    """Return whether a call is `x.index_add_(0, places, rows)`."""
    is_adding = isinstance(node.func, ast.Attribute) and node.func.attr in ADDING and len(node.args) == 3
    return is_adding and ast.unparse(node.args[1]) in names


def _is_by_rows(ctx: Context, node: ast.AST, part: ast.AST) -> bool:
    """Return whether an expression treats the rows of its part one by one."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add | ast.Sub | ast.Mult)
    if isinstance(node, ast.Attribute):
        return node.attr in BY_ROWS or (node.attr in ("view", "reshape") and _keeps_rows(ctx, node))
    if not isinstance(node, ast.Call):
        return False
    if node.func is part:
        return True  # a method, whose name was examined
    modules = [inner for module in ctx.modules(node.func) for inner in module.modules()]
    if modules:
        return not any(map(_mixes_rows, modules))
    function = ctx.scope.value(node.func)
    is_torchs = getattr(function, "__name__", "") in FUNCTIONS and function in vars(nn.functional).values()
    return is_torchs and node.args[:1] == [part]


def _keeps_rows(ctx: Context, node: ast.Attribute) -> bool:
    """Return whether a call has the form `x.reshape(-1, width)`."""
    call = ctx.source.parents[node]
    return isinstance(call, ast.Call) and len(call.args) > 1 and ast.unparse(call.args[0]) == "-1"


def _mixes_rows(module: nn.Module) -> bool:
    """Return whether what a module computes of a row depends on how many rows there are."""
    return isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)


def put_back(ctx: Context, target: ast.expr, value: ast.expr, verb: str) -> str | None:
    """Write `y[mask] = f(x[mask])`, or an operation on the part, with f of all rows; None for any other."""
    if not (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Name)
        and is_mask(ctx, target.slice)
    ):
        return None
    mask = target.slice.id
    parts = [x for x in ast.walk(value) if isinstance(x, ast.Subscript) and ast.unparse(x.slice) == mask]
    others = [x for x in _loads(value) if x.id == mask and ctx.source.parents[x] not in parts]
    sites = [ctx.site(x) for x in (target.value, target.slice, value)]
    axes = [min(site.axes) for site in sites if site and len(site.axes) == 1]
    if not parts or others or len(axes) < len(sites) or not all(_is_computed(ctx, x, value) for x in parts):
        return None
    trailing = axes[0] - axes[1]
    array = translated(ctx, target.value)
    if axes[2] != 1 + trailing or not (isinstance(target.value, ast.Name) or array.is_whole_variable):
        return None
    written: dict[ast.expr, str] = dict(ctx.written)
    written.update({x: text(ctx, x.value, "a") for x in parts})
    rows = value_of(dataclasses.replace(ctx, written=written), value)
    new = rows.text if verb == "set" else f"{array.text} {SIGNS[verb]} {rows.grouped}"
    if value not in parts:
        ctx.note(value, COMPUTED)
    everywhere = (
        f"{text(ctx, target.slice, 'a')}[..., {', '.join(['None'] * trailing)}]" if trailing else mask
    )
    return f"{array.text} = jnp.where({everywhere}, {new}, {array.text})"


def only_fills(ctx: Context, node: ast.If) -> list[ast.expr] | None:
    """Return the other conditions of `if mask.any():` whose lines only change an array there; or None."""
    conditions = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    masks = {x: mask for x in conditions if (mask := _asked_for_any(x)) is not None}
    if len(masks) != 1 or node.orelse or isinstance(getattr(node.test, "op", None), ast.Or):
        return None
    ((condition, mask),) = masks.items()
    if not is_mask(ctx, mask) or not ctx.ran(node.body[0]):
        return None
    if not all(_fills(ctx, x, ast.unparse(mask)) for x in node.body):
        return None
    return [x for x in conditions if x is not condition]


def _asked_for_any(node: ast.expr) -> ast.expr | None:
    """Return the mask of `mask.any()`, `torch.any(mask)`, `mask.any().item()` and `bool(mask.any())`."""
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    if isinstance(node.func, ast.Name):
        return _asked_for_any(node.args[0]) if node.func.id == "bool" and len(node.args) == 1 else None
    if not isinstance(node.func, ast.Attribute):
        return None
    if ast.unparse(node.func) == "torch.any":
        return node.args[0] if len(node.args) == 1 else None
    if node.args or node.func.attr not in ("any", "item"):
        return None
    return node.func.value if node.func.attr == "any" else _asked_for_any(node.func.value)


def _fills(ctx: Context, node: ast.stmt, mask: str) -> bool:
    """Return whether a statement only changes `x` where the mask is true."""
    if isinstance(node, ast.If):
        return all(_fills(ctx, x, mask) for x in (*node.body, *node.orelse))
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    if isinstance(target, ast.Subscript):
        return ast.unparse(target.slice) == mask and ctx.is_tensor(target.value)
    value = node.value if isinstance(node, ast.Assign | ast.Expr) else None
    while isinstance(value, ast.Call) and _converts(value):
        value = value.func.value  # type: ignore[attr-defined]
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or len(value.args) < 2:
        return False
    owner: ast.expr = value.args[2] if ast.unparse(value.func) == "torch.where" else value.func.value
    while isinstance(owner, ast.Call) and _converts(owner):
        owner = owner.func.value  # type: ignore[attr-defined]
    names = {"masked_fill_"} if isinstance(node, ast.Expr) else {"masked_fill", "where"}
    is_own = isinstance(node, ast.Expr) or (isinstance(target, ast.Name) and ast.unparse(owner) == target.id)
    return is_own and value.func.attr in names and _of_mask(value.args[0]) == mask


def _converts(node: ast.Call) -> bool:
    """Return whether a call only changes an array's type: `x.float()`."""
    return isinstance(node.func, ast.Attribute) and node.func.attr in ("float", "type_as", "to")


def _of_mask(node: ast.expr) -> str:
    """Return the mask of which an expression has all elements, with more axes: `mask[:, None]`."""
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if all(ast.unparse(x) in ("None", ":", "...") for x in parts):
            return ast.unparse(node.value)
    is_wider = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "unsqueeze"
    )
    return ast.unparse(node.func.value if is_wider else node)  # type: ignore[attr-defined]


def _is_computed(ctx: Context, node: ast.AST, value: ast.expr) -> bool:
    while node is not value:
        parent = ctx.source.parents[node]
        if not _is_by_rows(ctx, parent, node):
            return False
        node = parent
    return True


def skips(ctx: Context, node: ast.If) -> bool:
    """Return whether an `if` ends a loop's turn if a mask selects nothing, and later lines only put back."""
    loop, function = ctx.source.parents[node], ctx.source.around(node)
    if not isinstance(loop, ast.For) or function is None or node not in loop.body or node.orelse:
        return False
    chosen = [x for x in loop.body if isinstance(x, ast.Assign) and _mask(ctx, x.value) is not None]
    if len(chosen) != 1 or not isinstance(node.body[0], ast.Continue):
        return False
    mask = _mask(ctx, chosen[0].value)
    names = {x.id for x in ast.walk(chosen[0].targets[0]) if isinstance(x, ast.Name)}
    if mask is None or not _selects_none(ctx, node.test, names, mask):
        return False
    later = loop.body[loop.body.index(node) + 1 :]
    inner = {x for part in later for x in ast.walk(part)}
    bound = {x.id for x in inner if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    # What a turn binds is of that turn alone: `scale = scale / 2` would need every turn.
    if any(x.id in bound for x in _loads(function) if x not in inner):
        return False
    for part in later:
        if any(x.id in bound for x in _loads(part)) or not _only_puts_back(part, names):
            return False
        bound -= {x.id for x in ast.walk(part) if isinstance(x, ast.Name)}
    return True


def counts_for_skips(ctx: Context, node: ast.Assign) -> bool:
    """Return whether a statement counts rows, `counts = torch.bincount(x).tolist()`, for `skips` alone."""
    function, target = ctx.source.around(node), node.targets[0]
    if function is None or not isinstance(target, ast.Name) or _counted(ctx, node.value) is None:
        return False
    loads = [x for x in _loads(function) if x.id == target.id]
    return bool(loads) and all(_is_of_skip(ctx, x) for x in loads)


def _is_of_skip(ctx: Context, node: ast.AST) -> bool:
    while not isinstance(node, ast.stmt):
        node, child = ctx.source.parents[node], node
    return isinstance(node, ast.If) and child is node.test and skips(ctx, node)


def _only_puts_back(node: ast.stmt, names: set[str]) -> bool:
    """Return whether a statement binds a variable, or changes an array in selected rows alone."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and _adds(node.value, names)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return False
    if isinstance(targets[0], ast.Subscript):
        return any(x.id in names for x in _loads(targets[0].slice))
    elements = getattr(targets[0], "elts", targets)
    return isinstance(node, ast.Assign) and all(isinstance(x, ast.Name) for x in elements)


def _selects_none(ctx: Context, node: ast.expr, names: set[str], mask: ast.expr) -> bool:
    """Return whether a condition is that no row is selected: `len(i) == 0`, `not mask.any()`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        array = _asked_for_any(node.operand)
        return array is not None and ast.unparse(array) == ast.unparse(mask)
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq) or len(node.ops) > 1:
        return False
    if ast.unparse(node.comparators[0]) != "0":
        return False
    number, selecting = ast.unparse(node.left), ast.unparse(mask)
    if number in {form.format(name) for form in COUNTS for name in names} | {f"{selecting}.sum()"}:
        return True
    counts = node.left.value if isinstance(node.left, ast.Subscript) else None
    function = ctx.source.around(node)
    if not isinstance(counts, ast.Name) or function is None:
        return False
    rows = [_counted(ctx, x) for x in _values(function, counts.id)]
    masks = _values(function, mask.id) if isinstance(mask, ast.Name) else [mask]
    comparisons = {f"{row} == {ast.unparse(node.left.slice)}" for row in rows}  # type: ignore[attr-defined]
    return len(rows) == len(masks) == 1 and comparisons == {ast.unparse(masks[0])}


def _values(function: ast.AST, name: str) -> list[ast.expr]:
    """Return what a function assigns to a variable."""
    assigned = (x for x in ast.walk(function) if isinstance(x, ast.Assign))
    return [x.value for x in assigned if ast.unparse(x.targets[0]) == name]


def _counted(ctx: Context, node: ast.expr) -> str | None:
    """Return the array whose numbers `torch.bincount(x.flatten()).tolist()` counts; None for another call."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "tolist":
        node = node.func.value
    if not isinstance(node, ast.Call) or ctx.scope.value(node.func) is not torch.bincount:
        return None
    text_of = ast.unparse(node.args[0]) if len(node.args) == 1 else ""
    flat = next((form for form in (".flatten()", ".view(-1)", ".reshape(-1)") if text_of.endswith(form)), "")
    return text_of.removesuffix(flat) or None
