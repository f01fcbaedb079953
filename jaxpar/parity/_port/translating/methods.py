"""Methods of tensors and modules, and of a base class by `super()`."""

from __future__ import annotations

import ast
import dataclasses
from types import NoneType
from typing import Any

import torch
from flax import nnx
from torch import nn

from .. import rules
from ..reading.scope import UNKNOWN, is_layer, is_torchs, jaxpar_layer
from ..reading.watching import Site
from .constructors import buffer_by_name
from .context import Context
from .drawing import DRAWN, takes_rngs_as_base
from .expressions import arguments_of, by_rule, is_placement, name_of, text, translated
from .fragment import Fragment, Hole
from .hooks import registered
from .memory import entry_of
from .pairs import pair

COLLECTIONS = {nn.ParameterList: "List", nn.ParameterDict: "Dict"}
"""Collections of parameters, and the names of NNX's."""
OF_SIZES = {torch.prod: "math.prod", torch.sum: "sum", torch.max: "max", torch.min: "min"}
DISTRIBUTIONS = ("exponential_", "random_", "geometric_", "log_normal_", "cauchy_")
LEAVES = {"parameters": "nnx.Param", "buffers": "nnx.Not(nnx.Any(nnx.Param, nnx.RngState))"}
"""Methods that yield a module's tensors, and NNX's filters of them."""
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def method(ctx: Context, node: ast.Call, func: ast.Attribute) -> Fragment | None:
    """Write a call of a tensor's or module's method; None for any other."""
    owner, name = ctx.site(func.value), func.attr
    if entry := entry_of(ctx, node):
        return Fragment(entry)
    if isinstance(func.value, ast.Call) and name_of(func.value.func) == "super":
        return Fragment(_super(ctx, node, func))
    if owner and any(issubclass(kind, nn.Module) for kind in owner.kinds):
        return _of_module(ctx, node, func, owner)
    if name == "copy" and owner and owner.kinds == {list}:
        # Attributes that are lists become tuples, which have no `copy`.
        return Fragment(f"list({text(ctx, func.value)})")
    if name == "numel" and owner and owner.kinds == {torch.Size}:
        ctx.needs.imports["math"] = "import math"
        return Fragment(f"math.prod({text(ctx, func.value)})")
    # In a line that did not run, a method with a rule is assumed to be a tensor's.
    if owner is None and not ctx.ran(node) and name in (*rules.INITIAL, *DISTRIBUTIONS) and ctx.of_call(node):
        raise Hole(DRAWN)
    of_text = name == "split" and all(isinstance(getattr(x, "value", None), str) for x in node.args)
    unrecorded = owner is None and ctx.scope.value(func.value) is UNKNOWN and is_method(name) and not of_text
    if not (owner and owner.is_tensor) and not unrecorded:
        return None
    if owner and not all(issubclass(kind, torch.Tensor) for kind in owner.kinds):
        raise Hole("it is a tensor here and something else there")
    return _of_tensor(ctx, node, func, owner)


def _of_tensor(ctx: Context, node: ast.Call, func: ast.Attribute, owner: Site | None) -> Fragment:
    name = func.attr
    if name in ("item", "tolist") and ctx.only_making(node):
        return Fragment(f"{text(ctx, func.value, 'a')}.{name}()")
    if name == "item" and (number := _of_sizes(ctx, func.value)):
        return number
    if name in ("to", "type"):
        return _to(ctx, node, func.value)
    if name == "requires_grad_" and owner and owner.kinds & {nn.Parameter}:
        raise Hole("it is not clear which weights are frozen here")
    if name == "new" and len(node.args) == 1 and ctx.is_tensor(node.args[0]):
        return translated(ctx, node.args[0])  # with its numbers
    if several := pair(ctx, node):
        return several
    if name in rules.INITIAL or name in DISTRIBUTIONS:
        if not ctx.in_call(node):
            ctx.needs.note_initial_values()
            return translated(ctx, func.value)
        if not is_method(name):
            raise Hole(DRAWN)
    candidates = rules.METHODS.get(rules.IN_PLACE.get(name, name), [])
    return by_rule(ctx, node, candidates, f"a tensor's {name}", func.value)


def _of_sizes(ctx: Context, node: ast.expr) -> Fragment | None:
    """Write `torch.prod(torch.tensor(x.shape[1:]))`, a number of sizes, as a function of Python."""
    makes = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else None
    function = OF_SIZES.get(ctx.scope.value(node.func)) if isinstance(node, ast.Call) else None
    if function is None or not isinstance(makes, ast.Call) or len(makes.args) != 1 or makes.keywords:
        return None
    site = ctx.site(makes.args[0])
    if ctx.scope.value(makes.func) not in (torch.tensor, torch.as_tensor) or not site:
        return None
    if function == "math.prod":
        ctx.needs.imports["math"] = "import math"
    return Fragment(f"{function}({text(ctx, makes.args[0])})") if site.kinds == {torch.Size} else None


def is_method(name: str) -> bool:
    """Return whether a tensor's method has a rule."""
    return name in rules.METHODS or name in rules.IN_PLACE or name in rules.PAIRS


def _to(ctx: Context, node: ast.Call, owner: ast.expr) -> Fragment:
    """Write `to` and `type`: they convert to a type; a device is left out."""
    keywords = {
        k.arg: k.value
        for k in node.keywords
        if k.arg not in ("device", "copy", "non_blocking", "memory_format")
    }
    array = translated(ctx, owner)
    for argument in (*node.args, *keywords.values()):
        site, value = ctx.site(argument), ctx.scope.value(argument)
        value = ctx.tensor_type(argument) if value is UNKNOWN else value
        if isinstance(value, torch.dtype) or (site and torch.dtype in site.kinds):
            return Fragment(f"{array.grouped}.astype({text(ctx, argument)})")
        if site and site.is_tensor:
            return Fragment(f"{array.grouped}.astype({text(ctx, argument, 'a')}.dtype)")
        if other := _tensor_of_type(ctx, argument):
            return Fragment(f"{array.grouped}.astype({text(ctx, other, 'a')}.dtype)")
        if isinstance(dtype := getattr(value, "dtype", None), torch.dtype):  # torch.FloatTensor
            return Fragment(f"{array.grouped}.astype({rules.NAMES[str(dtype)]})")
        if site and site.kinds == {NoneType} and argument in node.args:
            ctx.note(node, f"{ctx.code(argument)} is None, and taken for a device")
            continue
        if isinstance(value, torch.device | torch.memory_format) or (site and site.kinds <= {torch.device}):
            continue
        if argument is keywords.get("dtype") and isinstance(owner, ast.Name | ast.Attribute):
            dtype = text(ctx, argument)
            return Fragment(f"({array.text} if {dtype} is None else {array.grouped}.astype({dtype}))")
        # "cuda" and "float" are both strings, but `to` takes only the name of a device, and `type` of a type.
        constant = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        named = constant or (site and site.kinds == {str})
        if not named or (isinstance(node.func, ast.Attribute) and node.func.attr == "type"):
            raise Hole("it is not clear whether this is a type or a device")
    return dataclasses.replace(array, text=array.grouped)


def _tensor_of_type(ctx: Context, node: ast.expr) -> ast.expr | None:
    """Return the tensor `y` of `y.type()`, the name of its type."""
    func = node.func if isinstance(node, ast.Call) and not node.args else None
    is_type = isinstance(func, ast.Attribute) and func.attr == "type" and ctx.is_tensor(func.value)
    return func.value if is_type else None  # type: ignore[union-attr]


def _of_module(ctx: Context, node: ast.Call, func: ast.Attribute, owner: Site) -> Fragment | None:
    """Write a call of a module's method; None for one of the user's own."""
    name = func.attr
    if name == "forward":
        return Fragment(f"{text(ctx, func.value)}({arguments_of(ctx, node)})")
    if is_placed(ctx, node):
        return translated(ctx, func.value)
    if hook := registered(ctx, node):
        return Fragment(hook)
    # jaxpar's containers have torch's methods; nnx.Module does not.
    if name == "add_module" and not any(issubclass(kind, CONTAINERS) for kind in owner.kinds):
        return Fragment(f"setattr({text(ctx, func.value)}, {arguments_of(ctx, node)})")
    if name == "register_buffer" and ctx.only_making(node):  # a lambda's
        return Fragment(buffer_by_name(ctx, node, func))
    if name == "__getattr__":
        return Fragment(f"getattr({text(ctx, func.value)}, {arguments_of(ctx, node)})")
    if name == "requires_grad_" and [ast.unparse(part) for part in node.args] == ["False"]:
        return Fragment(f"nn.freeze({text(ctx, func.value)})")
    if name in ("children", "named_children") and not all(
        issubclass(kind, CONTAINERS) for kind in owner.kinds
    ):
        return Fragment(f"nn.{name}({text(ctx, func.value)})")
    if name in ("modules", "named_modules") and not node.args and not node.keywords:
        return Fragment(f"nn.{name}({text(ctx, func.value)})")
    if name in LEAVES and not node.args and not node.keywords:
        leaves = f"jax.tree.leaves(nnx.state({text(ctx, func.value)}, {LEAVES[name]}))"
        parent = ctx.source.parents[node]
        is_next = isinstance(parent, ast.Call) and ctx.scope.value(parent.func) is next
        return Fragment(f"iter({leaves})" if is_next else leaves)
    methods = [getattr(kind, name, None) for kind in owner.kinds]
    if any(map(is_torchs, methods)) and not all(hasattr(_counterpart(kind), name) for kind in owner.kinds):
        raise Hole(f"Flax's modules have no {name}")
    return None


def is_placed(ctx: Context, node: ast.Call) -> bool:
    """Return whether a call only moves a module to a device: `net.to(device)`, `net.cuda()`."""
    if not isinstance(node.func, ast.Attribute) or not ctx.is_module(node.func.value):
        return False
    devices = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "device")]
    if len(devices) < len(node.args) + len(node.keywords) or node.func.attr not in ("to", "cuda", "cpu"):
        return False
    methods = {getattr(x, "__func__", x) for x in (getattr(ctx.site(node.func), "objects", {})).values()}
    sites = [(ctx.site(x), getattr(x, "value", None)) for x in devices]
    return methods <= {vars(nn.Module)[node.func.attr]} and all(
        isinstance(value, str) or (site and site.kinds <= {torch.device, str}) for site, value in sites
    )


def _counterpart(kind: type) -> Any:
    """Return the counterpart of the torch layer that a class is or derives from."""
    base = next(base for base in kind.__mro__ if is_layer(base))
    return getattr(nnx, COLLECTIONS[base]) if base in COLLECTIONS else jaxpar_layer(base) or nnx.Module


def _super(ctx: Context, node: ast.Call, func: ast.Attribute) -> str:
    name = "__call__" if func.attr == "forward" else func.attr
    if name in vars(nn.Module) and name not in ("__init__", "__call__", "extra_repr", "__repr__"):
        base = next((base for base in (ctx.kind or nn.Module).__mro__[1:] if name in vars(base)), object)
        if is_torchs(base):
            raise Hole(f"Flax's modules have another {name}")
    arguments = arguments_of(ctx, node)
    if func.attr == "__init__" and ctx.kind is not None:
        base = next((base for base in ctx.kind.__mro__[1:] if "__init__" in vars(base)), object)
        if is_layer(base):
            parts = (x for x in (*node.args, *node.keywords) if not is_placement(ctx, x))
            remaining = (x for x in parts if getattr(x, "arg", None) not in rules.DROPPED)
            arguments = ", ".join(text(ctx, part) for part in remaining)
        if takes_rngs_as_base(base):
            arguments = f"{arguments}, rngs=rngs" if arguments else "rngs=rngs"
    return f"super().{name}({arguments})"
