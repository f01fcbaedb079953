"""Assignments to variables, attributes of modules, and parts of arrays."""

from __future__ import annotations

import ast

import torch
from torch import nn

from ..reading.runtime import Beyond
from ..reading.scope import defined_by_user
from ..reading.source import end_of, start_of
from .attributes import converted, own_attribute
from .blocks import statement
from .caches import is_kept
from .constructors import chosen_forward
from .context import Context, variables_of
from .counters import is_unread_count
from .expressions import expression, is_none, list_as_tuple, spliced, text, translated
from .fragment import Fragment, Hole
from .gradients import value_of
from .hooks import filled, fills
from .indexing import PART, set_part, subscript
from .memory import KEEPS, computed_first, entry_of, memory_of, stored, without_memory
from .omitted import is_mark
from .packed import packed_assignment
from .pairs import assigned_field
from .registries import registered
from .selected import counts_for_skips, places, put_back

VERBS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power"}
GROWING = ("append", "extend", "insert", "pop", "add", "update")


@statement(ast.Assign)
def assign(ctx: Context, node: ast.Assign) -> str | None:
    target, single = node.targets[0], len(node.targets) == 1
    if memory := stored(ctx, node):
        return kept_in_variable(ctx, node, *memory)
    if forward := chosen_forward(ctx, node):
        return forward
    if computed_first(ctx, node) or is_unread_count(ctx, node) or counts_for_skips(ctx, node):
        return None
    if (remaining := without_memory(ctx, node)) is not None:
        ctx.source.parents.update(dict.fromkeys(remaining, ctx.source.parents[node]))
        lines = [line for part in remaining if (line := assign(ctx, part))]
        return f"\n{' ' * node.col_offset}".join(lines) or None
    if chosen := (put_back(ctx, target, node.value, "set") if single else None) or places(ctx, node):
        return chosen
    if single and isinstance(target, ast.Subscript) and ctx.is_tensor(target.value):
        return set_part(ctx, target, "set", value_of(ctx, node.value))
    is_entry = isinstance(target, ast.Subscript) and ctx.in_call(node) and is_kept(ctx, target)
    if is_entry and not fills(ctx, target):
        raise Hole(KEEPS)
    if (written := packed_assignment(ctx, node)) is not None:
        return written or None
    if (written := assigned_field(ctx, node)) is not None:
        return written
    if isinstance(target, ast.Tuple) and any(
        isinstance(element, ast.Subscript) and ctx.is_tensor(element.value) for element in target.elts
    ):
        raise Hole(PART)
    within_call = memory_of(ctx, node).within_call
    if single and own_attribute(target) in within_call and ctx.only_making(node):
        return None  # None, which it starts with
    is_array = not single and ctx.in_call(node) and ctx.is_tensor(node.value)
    if is_array and {*map(own_attribute, node.targets)} - {"", *within_call}:
        raise Hole(KEEPS)
    if single and isinstance(target, ast.Attribute):
        if target.attr == "training" and ctx.is_module(target.value) and ctx.only_making(node):
            layer = text(ctx, target.value)
            return f"{layer}.train() if {text(ctx, node.value)} else {layer}.eval()"
        if _is_trained_already(ctx, node, target) or _only_marks(ctx, node, target):
            return None
        if ctx.in_call(node) and text(ctx, node.value) == ctx.source.segment(target):
            return None  # self.table = self.table.to(x.device)
        if converted(node) and ctx.in_call(node) and not _is_buffer(ctx, target):
            ctx.note(node, f"self.{target.attr} keeps the type that the constructor has given it")
            return None
        owner, value = _set_attribute(ctx, node, target)
        return f"{owner.text} = {value}"
    if single and isinstance(target, ast.Name) and text(ctx, node.value) == target.id:
        return None  # x = x.contiguous()
    if single and isinstance(target, ast.Subscript) and (element := _set_element(ctx, node, target)):
        return element
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        values = _elements(ctx, target, node.value)
        return spliced(ctx, node, lambda part: values if part is node.value else translated(ctx, part)).text
    return spliced(ctx, node, lambda part: (value_of if part is node.value else translated)(ctx, part)).text


def kept_in_variable(ctx: Context, node: ast.stmt, name: str, value: ast.expr) -> str | None:
    """Write what a call keeps as a local variable, if it is read; what the constructor sets is left out."""
    if ctx.only_making(node):
        return None
    if name not in memory_of(ctx, node).read:
        ctx.note(node, f"no line reads self.{name}, so it is left out")
        ctx.needs.unread.add((ctx.kind, name))
        return None
    ctx.note(node, f"self.{name} is computed in each call, and not kept")
    variable, written = memory_of(ctx, node).names[name], value_of(ctx, value).text
    return None if written == variable else f"{variable} = {written}"


def _elements(ctx: Context, target: ast.Tuple, value: ast.Tuple) -> Fragment:
    """Write the right side of `self.norm, self.act = None, None`."""
    attributes = dict(zip(value.elts, target.elts, strict=False))

    def element(part: ast.AST) -> Fragment:
        attribute = attributes.get(part)  # type: ignore[call-overload]
        if isinstance(attribute, ast.Attribute) and _is_replaced(ctx, attribute, part):
            return Fragment(f"nnx.data({text(ctx, part)})")
        return value_of(ctx, part)

    return spliced(ctx, value, element)


def _set_element(ctx: Context, node: ast.Assign, target: ast.Subscript) -> str | None:
    """Write `self.widths[i] = x` of a module's list, which is a tuple in the file."""
    owner, site = target.value, ctx.site(target.value)
    if not (
        isinstance(owner, ast.Attribute) and ctx.is_module(owner.value) and site and site.kinds == {list}
    ):
        return None
    if isinstance(target.slice, ast.Slice) or _grows(ctx, owner):
        return None
    name, index = text(ctx, owner), translated(ctx, target.slice)
    before, after = f"*{name}[:{index.text}]", f"*{name}[{index.grouped} + 1 :]"
    return f"{name} = ({before}, {value_of(ctx, node.value).text}, {after})"


@expression(ast.Subscript)
def item(ctx: Context, node: ast.Subscript) -> Fragment:
    """Write an entry of a cache as the variable that has it; any other as an index."""
    if node in ctx.written:
        return Fragment(ctx.written[node])
    if chosen := registered(ctx, node):
        return chosen
    owner = node.value.value if isinstance(node.value, ast.Attribute) else None
    if owner is not None and node.value.attr == "_modules" and ctx.is_module(owner):  # type: ignore[attr-defined]
        return Fragment(f"getattr({text(ctx, owner)}, {text(ctx, node.slice)})")
    return Fragment(entry) if (entry := entry_of(ctx, node)) else subscript(ctx, node)


@statement(ast.AnnAssign)
def annotated(ctx: Context, node: ast.AnnAssign) -> str | None:
    """Leave out an annotation without a counterpart; a field of a class becomes `Any`."""
    try:
        if memory := stored(ctx, node):
            return kept_in_variable(ctx, node, *memory)
        if node.value is None or not isinstance(node.target, ast.Attribute):
            return spliced(ctx, node).text
        owner, value = _set_attribute(ctx, node, node.target)
        annotation = "" if owner.variable else f": {text(ctx, node.annotation)}"
        return f"{owner.text}{annotation} = {value}"
    except Beyond:
        value = f" = {text(ctx, node.value)}" if node.value else ""
    if not isinstance(ctx.source.parents[node], ast.ClassDef):
        return text(ctx, node.target) + value if value else None
    ctx.needs.imports["Any"] = "from typing import Any"
    return f"{ctx.source.segment(node.target)}: Any{value}"


def _set_attribute(
    ctx: Context, node: ast.Assign | ast.AnnAssign, target: ast.Attribute
) -> tuple[Fragment, str]:
    """Return an attribute, or the variable's array that is replaced, and the new value."""
    assert node.value is not None
    if tied := _tied(ctx, node.value, target):
        return tied
    if target.attr == "requires_grad" and ast.unparse(node.value) == "False" and ctx.is_tensor(target.value):
        variable = translated(ctx, target.value).variable
        if variable and not ctx.in_call(node):
            return Fragment(variable), f"nnx.Variable({variable}[...])"
    if ctx.is_tensor(target.value):
        raise Hole(f"JAX's arrays have no {target.attr}")
    if kind := filled(ctx, target, node.value):
        return Fragment(f"{text(ctx, target.value)}.{target.attr}"), kind
    value = value_of(ctx, node.value)
    site, written = ctx.site(node.value), value.text
    if value.is_whole_variable and ctx.only_making(node) and site and site.kinds == {nn.Parameter}:
        return Fragment(
            f"{text(ctx, target.value)}.{target.attr}"
        ), value.variable  # one weight of two modules
    in_constructor = getattr(ctx.source.around(node), "name", "") == "__init__"
    # NNX fixes at the first assignment whether an attribute can hold arrays; None alone would be static.
    grows = bool(site and site.kinds & {list}) and _grows(ctx, target)
    if _is_replaced(ctx, target, node.value) or (
        ctx.only_making(target) and (_has_data(ctx, target) or (grows and _holds_modules(ctx, target)))
    ):
        written = f"nnx.data({written})"
    elif site and site.kinds & {list} and not _grows(ctx, target):
        # NNX puts static attributes into the key of a compiled program, which must be hashable.
        listed = node.value if isinstance(node.value, ast.List) else None
        written = list_as_tuple(listed, written) if listed else f"tuple({written})"
    elif site and site.kinds & {set} and not _grows(ctx, target):
        written = "frozenset()" if ctx.source.segment(node.value) == "set()" else f"frozenset({written})"
    # The variable must stay the same object: compiled steps and checkpoints refer to it.
    elif _is_buffer(ctx, target) and not value.makes_variable:
        variable = f"{text(ctx, target.value)}.{target.attr}"
        return Fragment(f"{variable}[...]", variable=variable), written
    elif ctx.is_tensor(node.value) and not (
        in_constructor
        or ctx.only_making(node)
        or value.makes_variable
        or _is_ctx(ctx, target)
        or _is_record(ctx, target)
        or own_attribute(target) in memory_of(ctx, node).within_call
    ):
        raise Hole(KEEPS)
    # The source's parentheses around a value belong to the text between the nodes.
    before = ctx.source.between(end_of(target), start_of(node.value))
    written = f"({written})" if "(" in before and "\n" in written else written
    return Fragment(f"{text(ctx, target.value)}.{target.attr}"), written


def _is_ctx(ctx: Context, target: ast.Attribute) -> bool:
    """Return whether an attribute is one of the `ctx` of a torch.autograd.Function."""
    site = ctx.site(target.value)
    return bool(site and all(issubclass(kind, torch.autograd.function.FunctionCtx) for kind in site.kinds))


def _is_trained_already(ctx: Context, node: ast.Assign, target: ast.Attribute) -> bool:
    """Return whether a constructor's `self.weight.requires_grad = True` changes nothing."""
    weight = target.value
    if target.attr != "requires_grad" or ast.unparse(node.value) != "True" or ctx.in_call(node):
        return False
    owners = ctx.modules(weight.value) if isinstance(weight, ast.Attribute) else []
    weights = [owner._parameters.get(weight.attr) for owner in owners]  # type: ignore[attr-defined]
    return bool(weights) and all(x is not None and x.requires_grad for x in weights)


def _only_marks(ctx: Context, node: ast.Assign, target: ast.Attribute) -> bool:
    """Return whether a constructor sets what a plain tensor has anyway, or an attribute that no line reads.

    The first is `table.requires_grad = False`, the second often `table.require_grad = False`.
    """
    site = ctx.site(target.value)
    if ctx.only_making(node) and site and site.kinds == {torch.Tensor} and target.attr == "requires_grad":
        return ast.unparse(node.value) == "False"
    return is_mark(ctx, node, target.value, target.attr)


def _is_record(ctx: Context, target: ast.Attribute) -> bool:
    """Return whether a variable is a user's object, not a module; the proof finds one that stays."""
    site = ctx.site(target.value) if isinstance(target.value, ast.Name) else None
    return bool(
        site and all(defined_by_user(kind) and not issubclass(kind, nn.Module) for kind in site.kinds)
    )


def _grows(ctx: Context, target: ast.Attribute) -> bool:
    """Return whether the file changes a list attribute of this name."""
    parents = ctx.source.parents
    uses = (child for child in ast.walk(ctx.source.tree) if isinstance(child, ast.Attribute))
    return any(
        isinstance(parents[use], ast.AugAssign) or getattr(parents[use], "attr", "") in GROWING
        for use in uses
        if use.attr == target.attr
    )


def _holds_modules(ctx: Context, target: ast.Attribute) -> bool:
    """Return whether an attribute that was a list is a module in the end: `nn.ModuleList(self.layers)`."""
    owners = ctx.modules(target.value)
    return bool(owners) and all(target.attr in owner._modules for owner in owners)


def _has_data(ctx: Context, target: ast.Attribute) -> bool:
    """Return whether an attribute ends as a list or dict of tensors, or of modules registered elsewhere."""
    values = [vars(owner).get(target.attr) for owner in ctx.modules(target.value)]
    rows = [x.values() if isinstance(x, dict) else x for x in values if isinstance(x, dict | list)]
    return any(isinstance(x, nn.Module | torch.Tensor) for row in rows for x in row)


def _is_buffer(ctx: Context, target: ast.Attribute) -> bool:
    modules = ctx.modules(target.value)
    return any(target.attr in variables_of(module) - {*module._parameters} for module in modules)


def _is_replaced(ctx: Context, target: ast.Attribute, value: ast.AST) -> bool:
    """Return whether a module's attribute may hold arrays later: None or a flag is not its last value."""
    site = ctx.site(value)
    if not ctx.is_module(target.value) or not (is_none(value) or (site and site.kinds in ({bool}, {str}))):
        return False
    owner: ast.AST | None = target
    while owner is not None and not isinstance(owner, ast.ClassDef):
        owner = ctx.source.parents.get(owner)
    others = [
        child
        for child in ast.walk(owner or ctx.source.tree)
        if isinstance(child, ast.Attribute) and child is not target
        if child.attr == target.attr and isinstance(child.ctx, ast.Store)
    ]
    if is_none(value):
        return bool(others)
    parents = ctx.source.parents
    # `self.pool, self.head = make(pool)`: what a function returned is taken for modules.
    tuples = [parents[parents[child]] for child in others if isinstance(parents[child], ast.Tuple)]
    if any(isinstance(other, ast.Assign) and isinstance(other.value, ast.Call) for other in tuples):
        return True
    assignments = (parents[child] for child in others)
    return any(isinstance(other, ast.Assign) and ctx.is_module(other.value) for other in assignments)


def _tied(ctx: Context, value: ast.expr, target: ast.Attribute) -> tuple[Fragment, str] | None:
    """Write `self.decoder.weight = self.embedding.weight`: one variable with two paths."""
    if not (isinstance(value, ast.Attribute) and isinstance(target.value, ast.Attribute | ast.Subscript)):
        return None
    if not (ctx.is_module(target.value) and ctx.is_module(value.value)):
        return None
    # As the target of an assignment it has no array, so the same attribute is translated as a value.
    read = ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    one, other = translated(ctx, read), translated(ctx, value)
    if one.variable and other.variable and one.transposed == other.transposed in ("", ".T"):
        return Fragment(one.variable), other.variable
    # `kernel` and `embedding` are each other's transpose, so one variable cannot be both.
    linear, embedding = sorted(
        (target.value, value.value), key=lambda part: _is_layer(ctx, part, nn.Embedding)
    )
    kinds = _is_layer(ctx, linear, nn.Linear) and _is_layer(ctx, embedding, nn.Embedding)
    if target.attr == value.attr == "weight" and kinds:
        layer = text(ctx, linear)
        return Fragment(layer), f"nn.TiedLinear({layer}, {text(ctx, embedding)})"
    raise Hole("these layers keep it in different forms; F.linear with the one weight can be ported")


def _is_layer(ctx: Context, node: ast.expr, layer: type[nn.Module]) -> bool:
    site = ctx.site(node)
    return bool(site and site.kinds == {layer})


@statement(ast.AugAssign)
def augmented(ctx: Context, node: ast.AugAssign) -> str | None:
    target, verb = node.target, VERBS.get(type(node.op))
    if isinstance(target, ast.Subscript) and ctx.is_tensor(target.value):
        if verb is None:
            raise Hole(PART)
        if rows := put_back(ctx, target, node.value, verb):
            return rows
        return set_part(ctx, target, verb, value_of(ctx, node.value))
    if isinstance(target, ast.Attribute) and _is_buffer(ctx, target):
        middle = ctx.source.between(end_of(target), start_of(node.value))
        return f"{text(ctx, target.value)}.{target.attr}[...]{middle}{value_of(ctx, node.value).text}"
    if is_unread_count(ctx, node):
        return None
    if isinstance(target, ast.Attribute) and ctx.is_module(target.value) and ctx.in_call(node):
        raise Hole("it counts in the module, where a compiled step would not")
    return spliced(ctx, node).text
