"""Indices and changes in place: of arrays, parts of arrays, and arguments.

The shape of `x[i]`, `x[:n]` and `x[mask]` must not depend on data. JAX's arrays are immutable: `x[0] = y` is
`x = x.at[0].set(y)`, and a module's own array is replaced as a whole.
"""

from __future__ import annotations

import ast
from types import FunctionType

import torch

from ..reading.effects import changed
from ..reading.scope import definition, has_definition, is_torchs
from ..reading.source import Function
from ..rules import SHAPE
from .context import Context
from .drawing import targets_of
from .expressions import spliced, text, translated
from .fragment import Fragment, Hole
from .gradients import is_in_place, stopped, value_of
from .pairs import FIELDS, literal, pair

SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**"}
PART = "it changes a part of an array in place"
CHANGES_WEIGHT = "the call changes a weight, which in JAX only an optimizer does"
PARTS = {"zero_": "set", "fill_": "set", "copy_": "set", "add_": "add", "mul_": "multiply"}
"""In-place methods, and the method of `.at[...]` that applies them to a part of an array."""


def subscript(ctx: Context, node: ast.Subscript) -> Fragment:
    chosen_index = literal(node.slice)
    field = FIELDS.get(chosen_index) if isinstance(chosen_index, int) else None
    if field and (fragment := pair(ctx, node.value, field)):
        return fragment
    if not ctx.is_tensor(node.value):
        return spliced(ctx, node)
    array, indices = translated(ctx, node.value), per_axis(node.slice)
    if any(is_mask(ctx, index) for index in indices) or _is_cut_by_data(ctx, indices):
        raise Hole(SHAPE)
    if any(map(ctx.is_tensor, indices)):
        ctx.note(node, "an index outside of the array raises in torch; JAX takes the nearest one")
    if array.is_whole_variable:
        return Fragment(f"{array.variable}[{index_of(ctx, node.slice).text}]")
    return spliced(
        ctx, node, lambda part: index_of(ctx, part) if part is node.slice else translated(ctx, part)
    )


def index_of(ctx: Context, node: ast.AST) -> Fragment:
    """Translate an index; JAX only accepts arrays, not lists."""
    if isinstance(node, ast.Tuple) and not ctx.needs.rewritten(ctx.source, node):
        return spliced(ctx, node, lambda part: index_of(ctx, part))
    site, index = ctx.site(node), translated(ctx, node)
    is_list = isinstance(node, ast.List | ast.ListComp) or bool(site and site.kinds == {list})
    return Fragment(f"jnp.array({index.text})") if is_list else index


def per_axis(node: ast.expr) -> list[ast.expr]:
    """Return the indices of the individual axes."""
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _is_cut_by_data(ctx: Context, indices: list[ast.expr]) -> bool:
    slices = (index for index in indices if isinstance(index, ast.Slice))
    bounds = (bound for part in slices for bound in (part.lower, part.upper, part.step))
    return any(bound is not None and ctx.is_tensor(bound) for bound in bounds)


def is_mask(ctx: Context, node: ast.AST) -> bool:
    site = ctx.site(node)
    return bool(site and site.types & {torch.bool, torch.uint8})


def is_array(ctx: Context, node: ast.AST) -> bool:
    """Return whether an index selects several elements, possibly with repetition."""
    site = ctx.site(node)
    return isinstance(node, ast.List) or bool(site and (site.is_tensor or site.kinds & {list}))


def changed_in_place(ctx: Context, call: ast.Call, func: ast.Attribute) -> str:
    """Write `x.add_(y)` as `x = x + y`; a module's own array is replaced."""
    name, target = func.attr, func.value
    detached = "data" in {part.attr for part in _chain(target) if isinstance(part, ast.Attribute)}
    if isinstance(target, ast.Subscript) and name in PARTS:
        return set_part(ctx, target, PARTS[name], value_of(ctx, call.args[0]) if call.args else Fragment("0"))
    if name == "copy_" and len(call.args) == 1:
        value = value_of(ctx, call.args[0]).text
    elif name in ("zero_", "fill_"):
        fill = text(ctx, call.args[0]) if call.args else "0"
        value = f"jnp.full_like({text(ctx, target)}, {fill})"
    else:
        value = stopped(ctx, call, translated(ctx, call)).text
    root = _chain(target)[-1]
    writes = name != "requires_grad_" and isinstance(root, ast.Attribute) and ctx.in_call(target)
    owners = ctx.modules(root.value) if writes else []  # type: ignore[attr-defined]
    weights = [owner._parameters.get(root.attr) for owner in owners]  # type: ignore[attr-defined]
    if any(weight is not None and weight.requires_grad for weight in weights):
        raise Hole(CHANGES_WEIGHT)
    if detached and ctx.in_call(call):
        value = f"jax.lax.stop_gradient({value})"
    return f"{_changed_variable(ctx, root)} = {value}"


def _chain(target: ast.expr) -> list[ast.expr]:
    """Return a chain of methods and its parts: `x.data.mul_(2)`, `x.data` and `x`."""
    parts = [target]
    while True:
        if isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            if not is_in_place(target.func.attr):
                return parts
            target = target.func.value
        elif isinstance(target, ast.Attribute) and target.attr == "data":
            target = target.value
        else:
            return parts
        parts.append(target)


def _changed_variable(ctx: Context, target: ast.expr) -> str:
    """Write the variable that is changed: a name, or a module's own array."""
    if isinstance(target, ast.Name):
        return target.id
    fragment = translated(ctx, target)
    if isinstance(target, ast.Attribute) and fragment.is_whole_variable:
        return fragment.text
    if isinstance(target, ast.Attribute) and ctx.is_module(target.value) and ctx.only_making(target):
        return fragment.text
    raise Hole(PART)


def set_part(ctx: Context, target: ast.Subscript, verb: str, value: Fragment) -> str:
    """Write `x[i] = value`, or an operation on the part if the verb is one of `SIGNS`."""
    array = translated(ctx, target.value)
    if not (isinstance(target.value, ast.Name) or array.is_whole_variable):
        raise Hole(PART)
    indices = per_axis(target.slice)
    if any(is_mask(ctx, index) for index in indices):
        return f"{array.text} = {_where(ctx, target, array.text, verb, value)}"
    at = index_of(ctx, target.slice).text
    if verb != "set" and any(is_array(ctx, index) for index in indices):
        # torch changes an index that appears twice once; `.at[].add` would change it twice.
        part = f"{array.text}[{at}] {SIGNS[verb]} {value.grouped}"
        return f"{array.text} = {array.text}.at[{at}].set({part})"
    return f"{array.text} = {array.text}.at[{at}].{verb}({value.text})"


def _where(ctx: Context, target: ast.Subscript, array: str, verb: str, value: Fragment) -> str:
    """Write `x[mask] = 0`; where values of an array would go depends on data.

    A mask of the first axes takes a number, or one row for all that it selects.
    """
    of_tensor, of_mask = ctx.site(target.value), ctx.site(target.slice)
    assigned = getattr(ctx.source.parents[target], "value", None)
    of_value = ctx.site(assigned) if assigned is not None else None
    of_value_axes = {0} if of_value is None or not of_value.is_tensor else of_value.axes
    if not (of_tensor and of_mask and len(of_tensor.axes) == len(of_mask.axes) == 1):
        raise Hole(SHAPE)
    trailing = min(of_tensor.axes) - min(of_mask.axes)
    mask = text(ctx, target.slice, "a" if trailing else "")
    axes = f"[..., {', '.join(['None'] * trailing)}]" if trailing else ""
    if of_value_axes not in ({0}, {trailing}) or isinstance(target.slice, ast.Tuple):
        raise Hole(SHAPE)
    new = value.text if verb == "set" else f"{array} {SIGNS[verb]} {value.grouped}"
    return f"jnp.where({mask}{axes}, {new}, {array})"


def rebound(ctx: Context, node: ast.stmt) -> str | None:
    """Return the variable that `f(x)` changes in place and returns, for `x = f(x)`.

    Raises:
      Hole: the function does not return it, or it is not a variable.
    """
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return None
    for target in targets_of(ctx, call):
        if not isinstance(target, FunctionType) or not has_definition(target) or is_torchs(target):
            continue
        function = definition(target)[1]
        assert isinstance(function, Function)
        arguments = _by_parameter(ctx, call, function)
        for name, returned in changed(function).items():
            value = arguments.get(name)
            if value is None or not (ctx.is_tensor(value) or ctx.site(value) is None):
                continue
            if returned and isinstance(value, ast.Name):
                return value.id
            raise Hole(f"it changes its argument {name} in place")
    return None


def _by_parameter(ctx: Context, call: ast.Call, function: Function) -> dict[str, ast.expr]:
    """Return the arguments of a call by the function's parameter names."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    is_method = isinstance(call.func, ast.Attribute) and ctx.is_module(call.func.value)
    positional = dict(zip(names[is_method:], call.args, strict=False))
    return {**positional, **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}}
