"""Omitted statements: initial values, because torch's weights are copied, and what JAX has no use for.

What runs in a constructor and only changes the values of parameters sets initial values. The others are a
library's log messages, variables that hold a device, registrations with torch, and the numbers that only
decide branches that are taken at random.
"""

from __future__ import annotations

import ast
import functools
import inspect

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import rules
from ..reading.runtime import is_logger, library_name
from ..reading.scope import UNKNOWN, dotted, is_layer
from ..reading.source import Function
from .context import TENSOR_TYPE, Context
from .expressions import is_placement, text

SEEDS = {"torch.random.manual_seed", "torch.cuda.random.manual_seed", "torch.cuda.random.manual_seed_all"}
"""Names, because torch's compiler wraps the functions when it is imported."""
_EXAMINED: set[ast.stmt] = set()
"""Assignments under examination, to end recursion."""


def is_omitted(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement is left out; a note reports initial values."""
    if isinstance(node, ast.Pass):
        return False
    if is_initial(ctx, node) or _starts_layer(ctx, node) or _seeds(ctx, node):
        ctx.needs.note_initial_values()
        return True
    return (
        _is_silent(ctx, node)
        or _is_logging(ctx, node)
        or is_drawn_for_chance(ctx, node)
        or _marks(ctx, node)
        or (isinstance(node, ast.For) and _is_loop_of_marks(ctx, node))
        or _is_for_checks(ctx, node)
        or _is_device(ctx, node)
        or _is_for_placement(ctx, node)
        or _is_for_initial_values(ctx, node)
        or (not isinstance(node, ast.Return) and is_of_batch_norm(ctx, node))
    )


def _marks(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement is `setattr(self.weight, "_no_decay", True)`, which no line reads."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or ctx.scope.value(call.func) is not setattr or len(call.args) != 3:
        return False
    name = call.args[1]
    return isinstance(name, ast.Constant) and is_mark(ctx, node, call.args[0], str(name.value))


def _is_loop_of_marks(ctx: Context, node: ast.For) -> bool:
    """Return whether a loop only marks tensors, and binds variables that no other line reads."""
    inner = {child for child in ast.walk(node) if isinstance(child, ast.stmt)} - {node}
    marks = [child for child in inner if _marks(ctx, child)]
    assigned = [child for child in inner if isinstance(child, ast.Assign)]
    if not marks or node.orelse or not all(map(_is_local, assigned)):
        return False
    loops = {child for child in inner if isinstance(child, ast.For)}
    names = {*_names(node)}
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    others = {name.id for name in _names(ctx.source.around(node) or node) if name not in names}
    return inner == {*marks, *assigned, *loops} and not bound & others


def is_mark(ctx: Context, node: ast.stmt, owner: ast.expr, name: str) -> bool:
    """Return whether a constructor sets an attribute of a tensor that no line reads; note it for a weight.

    An optimizer's groups may read `weight._no_weight_decay`.
    """
    site = ctx.site(owner)
    if not ctx.only_making(node) or site is None or not site.kinds <= {torch.Tensor, nn.Parameter}:
        return False
    loads = (x for x in ast.walk(ctx.source.tree) if isinstance(x, ast.Attribute) and x.attr == name)
    if hasattr(nn.Parameter, name) or not all(isinstance(x.ctx, ast.Store) for x in loads):
        return False
    if nn.Parameter in site.kinds:
        ctx.note(node, f"left out; where an optimizer's groups read {name}, name these weights there")
    return True


def _is_for_checks(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement decides by data, for variables that only checks read which raise."""
    function = ctx.source.around(node)
    if function is None or not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    decides = isinstance(node.value, ast.BoolOp | ast.UnaryOp | ast.Compare | ast.Call)
    if len(node.targets) > 1 or not decides or not ctx.in_call(node):
        return False
    loads = [x for x in _names(function) if x.id == node.targets[0].id and isinstance(x.ctx, ast.Load)]
    if not loads or not all(_is_checked(ctx, x) for x in loads):
        return False
    if ctx.needs.without_holes(lambda: text(ctx, node.value)):
        return False
    ctx.note(node, "what it checks depends on data; left out")
    return True


def _is_checked(ctx: Context, node: ast.AST) -> bool:
    """Return whether an expression is a part of the condition of an `if` that only raises."""
    parent = ctx.source.parents[node]
    while isinstance(parent, ast.BoolOp | ast.UnaryOp):
        node, parent = parent, ctx.source.parents[parent]
    is_test = isinstance(parent, ast.If) and node is parent.test and not parent.orelse
    return is_test and all(isinstance(x, ast.Raise) for x in parent.body)  # type: ignore[attr-defined]


def _seeds(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement that no call runs seeds torch's random numbers."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or ctx.of_call(node):
        return False
    function = ctx.scope.value(call.func)
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}" in SEEDS


def _starts_layer(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a constructor sets a weight, `self.table.weight = nn.Parameter(x)`, or its data."""
    if not isinstance(node, ast.Assign) or len(node.targets) > 1 or ctx.in_call(node):
        return False
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Attribute) and target.attr == "data" and ctx.only_making(node):
        return getattr(ctx.site(target.value), "kinds", None) == {nn.Parameter}
    if not isinstance(target, ast.Attribute) or not isinstance(value, ast.Call) or value.keywords:
        return False
    if len(value.args) != 1 or ctx.scope.value(value.func) is not nn.Parameter:
        return False
    layers = ctx.modules(target.value)
    return bool(layers) and all(
        is_layer(type(x)) and x._parameters.get(target.attr) is not None for x in layers
    )


@functools.cache
def _batch_norm() -> frozenset[str]:
    """The statements of BatchNorm's `forward` in torch, and its call of F.batch_norm."""
    # Inside of a class, as its text has the indent that a subclass repeats.
    forward = ast.parse(f"class BatchNorm:\n{inspect.getsource(_BatchNorm.forward)}").body[0].body[0]  # type: ignore[attr-defined]
    calls = [child for child in ast.walk(forward) if isinstance(child, ast.Call)]
    return frozenset(_dump(node) for node in (*forward.body, *calls))


def _dump(node: ast.AST) -> str:
    # Whatever is normalized, and however it is annotated.
    changed = ast.parse(ast.unparse(node)).body[0]
    call = changed.value if isinstance(changed, ast.Expr) else None
    if isinstance(call, ast.Call) and call.args:
        call.args[0] = ast.Constant(None)
    return ast.dump(changed)


def is_of_batch_norm(ctx: Context, node: ast.AST) -> bool:
    """Return whether a subclass of BatchNorm repeats this part of torch's `forward`, for `super()`."""
    return ctx.kind is not None and issubclass(ctx.kind, _BatchNorm) and _dump(node) in _batch_norm()


def is_initial(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement only changed the values of parameters, in the constructor."""
    func = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    owner = func.value if isinstance(func, ast.Attribute) and func.attr.endswith("_") else None
    # `.data` of a weight that is computed anew, as weight_norm's is, changes nothing at all.
    if isinstance(owner, ast.Attribute) and owner.attr == "data" and ctx.only_making(node):
        return True
    if not ctx.watched.initial.is_initial(ctx.source, node) or ctx.in_call(node):
        return False
    if isinstance(node, ast.Expr):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if isinstance(node, ast.Assign | ast.AugAssign) and not isinstance(targets[0], ast.Name):
        return True
    names = {name.id for name in _names(node) if isinstance(name.ctx, ast.Store)}
    function = ctx.source.around(node)
    inner = set(_names(node))
    uses = [name for name in _names(function) if name not in inner] if function else []
    used = {name.id for name in uses if isinstance(name.ctx, ast.Load) and not _is_of_other_loop(ctx, name)}
    statements = [child for child in ast.walk(node) if isinstance(child, ast.Expr) and ctx.ran(child)]
    return not names & used and all(ctx.watched.initial.is_initial(ctx.source, child) for child in statements)


def _is_of_other_loop(ctx: Context, name: ast.Name) -> bool:
    """Return whether a name that is read has its value from a `for` around it."""
    child: ast.AST = name
    parent = ctx.source.parents[name]
    while not isinstance(parent, Function | ast.Lambda | ast.Module):
        targets = _names(parent.target) if isinstance(parent, ast.For) and child in parent.body else ()
        if name.id in {target.id for target in targets}:
            return True
        child, parent = parent, ctx.source.parents[parent]
    return False


def _names(node: ast.AST) -> list[ast.Name]:
    return [child for child in ast.walk(node) if isinstance(child, ast.Name)]


def _is_for_initial_values(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement binds variables that only such statements read as set initial values."""
    function = ctx.source.around(node)
    if function is None or node in _EXAMINED or ctx.in_call(node):
        return False
    if isinstance(node, ast.Assign):
        elements = [element for target in node.targets for element in getattr(target, "elts", [target])]
        names = {element.id if isinstance(element, ast.Name) else "" for element in elements}
    else:
        names = {node.name} if isinstance(node, ast.FunctionDef) else {""}
    _EXAMINED.add(node)
    try:
        reads = [n for n in _names(function) if n.id in names and isinstance(n.ctx, ast.Load)]
        return "" not in names and bool(reads) and all(_is_read_for_initial(ctx, read) for read in reads)
    finally:
        _EXAMINED.discard(node)


def _is_read_for_initial(ctx: Context, node: ast.AST) -> bool:
    while not isinstance(node, ast.FunctionDef | ast.Lambda | ast.Module):
        node = ctx.source.parents[node]
        if isinstance(node, ast.stmt) and (
            node in _EXAMINED or is_initial(ctx, node) or _is_for_initial_values(ctx, node)
        ):
            return True
    return False


def _is_silent(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement only sets initial values, or registers something with torch."""
    if _trains(ctx, node):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and _is_silent_call(ctx, node.value)
    blocks = [getattr(node, name, []) for name in ("body", "orelse")]
    inner = (
        [child for block in blocks for child in block]
        if isinstance(node, ast.If | ast.For | ast.With)
        else []
    )
    return bool(inner) and all(_is_silent(ctx, child) for child in inner)


def _trains(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a constructor marks weights as trained, which they are anyway."""
    owner: ast.expr | None = None
    value: ast.expr | None = None
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        owner, value = node.targets[0], node.value
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        owner = node.value.func
        value = node.value.args[0] if node.value.args else ast.Constant(True)
    if not isinstance(owner, ast.Attribute) or not owner.attr.startswith("requires_grad"):
        return False
    site = ctx.site(owner.value)
    is_weight = site is not None and site.kinds == {nn.Parameter}
    return is_weight and ctx.only_making(node) and getattr(value, "value", False) is True


def _is_silent_call(ctx: Context, node: ast.Call) -> bool:
    value = ctx.scope.value(node.func)
    if value is not UNKNOWN and dotted(value).startswith(rules.SILENT):
        return True
    site = ctx.site(node.func) if isinstance(node.func, ast.Attribute) else None
    functions = list(site.objects.values()) if site else []
    return bool(functions) and (
        all(library_name(function) in rules.LIBRARY_SILENT for function in functions)
        or all(dotted(function).startswith(rules.SILENT) for function in functions)
    )


def is_docstring(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _is_logging(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement only calls a library's logger."""
    if isinstance(node, ast.If):
        return not node.orelse and all(_is_logging(ctx, child) for child in node.body)
    call = node.value if isinstance(node, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    return isinstance(func, ast.Attribute) and is_logger(ctx.scope.value(func.value))


def is_drawn_for_chance(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement draws a number that only conditions of branches use."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return False
    call, target, function = node.value, node.targets[0], ctx.source.around(node)
    is_scalar = bool(call.args) and ctx.source.segment(call.args[0]) == "[]"
    if ctx.scope.value(call.func) is not torch.rand or not is_scalar:
        return False
    if function is None or not isinstance(target, ast.Name):
        return False
    names = (child for child in ast.walk(function) if isinstance(child, ast.Name) and child.id == target.id)
    return all(is_below(ctx, name) for name in names if isinstance(name.ctx, ast.Load))


def is_below(ctx: Context, node: ast.AST) -> bool:
    """Return whether a name is on the left of `if x < p`, whose branch did not run."""
    check = ctx.source.parents[node]
    parent = ctx.source.parents.get(check)
    less = isinstance(check, ast.Compare) and check.left is node and isinstance(check.ops[0], ast.Lt)
    return less and isinstance(parent, ast.If) and parent.test is check and not ctx.ran(parent.body[0])


def _is_local(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)


def _is_device(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement assigns a device or its name to a variable, or a type that is called."""
    site = ctx.site(node.value) if isinstance(node, ast.Assign) and _is_local(node) else None
    if isinstance(node, ast.Assign) and site and site.kinds == {TENSOR_TYPE}:
        names, function = {ast.unparse(target) for target in node.targets}, ctx.source.around(node)
        loads = [x for x in _names(function or node) if x.id in names and isinstance(x.ctx, ast.Load)]
        return all(isinstance(ctx.source.parents[x], ast.Call) for x in loads)
    if not isinstance(node, ast.Assign) or site is None or not site.kinds <= {torch.device, str}:
        return False
    parts = (ctx.site(part) for part in ast.walk(node.value) if isinstance(part, ast.expr))
    return any(part_site.kinds == {torch.device} for part_site in parts if part_site)


def _is_for_placement(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement assigns a device and a type that only arguments which are left out read."""
    function = ctx.source.around(node)
    if not (
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and _is_local(node) and function
    ):
        return False
    targets = {ast.unparse(target) for target in node.targets}
    reads = [name for name in _names(function) if name.id in targets and isinstance(name.ctx, ast.Load)]
    return bool(reads) and all(is_placement(ctx, ctx.source.parents[name]) for name in reads)
