"""Names and attributes: of modules, arrays, files, torch and libraries."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import inspect
import re
import sys
from types import ModuleType, NoneType
from typing import Any

import torch
from torch import nn

from .. import rules
from ..reading.packages import is_users
from ..reading.runtime import Beyond, is_beyond, is_config, library_name, of_library, stand_in
from ..reading.scope import (
    UNKNOWN,
    applied_function,
    assignment,
    defined_by_user,
    has_definition,
    import_of,
    import_of_config,
    imported_relatively,
    is_assigned,
    is_layer,
    is_set_by_functions,
    is_torchs,
    jaxpar_layer,
    rule_name,
)
from ..reading.source import Source, defined
from .context import Context, variables_of
from .expressions import expression, hole, is_none, resolved, root_of, text, translated
from .fragment import NOT, Fragment, Hole, parsed
from .memory import variable_of
from .packed import packed_name
from .pairs import FIELDS, pair

LITERALS = (bool, int, float, str, NoneType)


@expression(ast.Name)
def name(ctx: Context, node: ast.Name) -> Fragment:
    if node.id in ctx.unbound:
        site = ctx.site(node)
        if site is None:
            return hole(ctx, node, "no line that ran assigns it")
        if site.kinds == {torch.device}:  # its assignment is left out
            return Fragment("None", value=None)
    packed_name(ctx, node)
    value = ctx.scope.value(node)
    if value is not UNKNOWN:
        return reference(ctx, node, value, node.id)
    is_free = node.id not in ctx.scope.local and isinstance(node.ctx, ast.Load)
    if is_free and not ctx.ran(node) and not _is_bound(ctx, node):
        raise Hole("no written line defines this name")
    return Fragment(node.id)


def _is_bound(ctx: Context, node: ast.Name) -> bool:
    """Return whether a function around a name binds it by an import that is written, or an `except`."""
    function = ctx.source.around(node) or ctx.source.tree
    for child in ast.walk(function):
        if isinstance(child, ast.Import | ast.ImportFrom):
            home = getattr(child, "module", None) or child.names[0].name
            names = {alias.asname or alias.name.partition(".")[0] for alias in child.names}
            if node.id in names and home.partition(".")[0] != "torch":
                return True
        elif node.id == getattr(child, "name", "") and isinstance(child, ast.ExceptHandler | ast.ClassDef):
            return True
    return False


@expression(ast.Attribute)
def attribute(ctx: Context, node: ast.Attribute) -> Fragment:
    if local := variable_of(ctx, node):
        return Fragment(local)
    if node.attr in FIELDS.values() and (field := pair(ctx, node.value, node.attr)):
        return field
    site = ctx.site(node)
    # JAX places arrays by shardings; a device that is passed on is replaced by None, a default.
    if site and site.kinds == {torch.device}:
        return Fragment("None", value=None)
    value = ctx.scope.value(node)
    if value is not UNKNOWN:
        return reference(ctx, node, value, None)
    # The key of a layer that a registry has as an attribute, `Conv.CONV`.
    if isinstance(key := getattr(ctx.scope.registry(node.value), node.attr, None), str):
        return Fragment(repr(key))
    if node.attr == "training" and ctx.is_module(node.value):
        modes = [*site.objects.values()] if site and ctx.only_making(node) else []
        if len(modes) == 1:  # not every layer of Flax has one
            return resolved(ctx, node, modes[0])
        mode = f"{text(ctx, node.value)}.deterministic"
        return Fragment(f"not {mode}", NOT, negated=mode)
    owner = ctx.site(node.value)
    if owner and owner.is_tensor and node.attr == "data" and ctx.only_making(node):
        return translated(ctx, node.value)
    if owner and owner.is_tensor and node.attr == "data" and ctx.in_call(node):
        array = translated(ctx, node.value)
        asks_form = getattr(ctx.source.parents[node], "attr", "") in ("shape", "size", "dtype", "dim", "ndim")
        return array if asks_form else Fragment(f"jax.lax.stop_gradient({array.text})")
    if owner and owner.kinds == {torch.device}:
        raise Hole("JAX's devices are others")
    if owner and owner.kinds == {torch.dtype} and node.attr == "is_floating_point":
        return Fragment(f"jnp.issubdtype({text(ctx, node.value)}, jnp.floating)")
    if owner and owner.is_tensor and not _arrays_have(node.attr):
        raise Hole(f"JAX's arrays have no {node.attr}")
    modules = ctx.modules(node.value) if node.attr == "dtype" else []
    if modules and ctx.watched.typed_by_parameters.issuperset(map(type, modules)):
        return Fragment(f"jax.tree.leaves(nnx.state({text(ctx, node.value)}, nnx.Param))[0].dtype")
    if variable := _variable(ctx, node):
        return variable
    array = translated(ctx, node.value)
    # A variable has its array's dtype, so the array need not be read.
    if node.attr == "dtype" and array.variable and isinstance(root_of(node), ast.Name):
        return Fragment(f"{array.variable}.dtype")
    return Fragment(f"{array.grouped}.{node.attr}")


def _arrays_have(name: str) -> bool:
    """Return whether arrays have an attribute of tensors; methods have rules, others are the user's."""
    is_listed = not hasattr(torch.Tensor, name) or name in rules.ATTRIBUTES
    return is_listed or callable(getattr(torch.Tensor, name))


def _variable(ctx: Context, node: ast.Attribute) -> Fragment | None:
    """Write a read of a module's parameter or buffer as its array: `self.weight[...]`."""
    modules = [module for module in ctx.modules(node.value) if node.attr in variables_of(module)]
    parent = ctx.source.parents.get(node)
    is_compared = isinstance(parent, ast.Compare) and any(map(is_none, parent.comparators))
    # The variable itself is assigned, or compared with None; only its array is computed with.
    if not modules or isinstance(node.ctx, ast.Store):
        return None
    # Modules of several classes pass here: the text must be right for all of them.
    # mypy takes the class of an object of any type for one without a hash.
    layers: set[str | None] = {layer_with(type(module), node.attr) for module in modules}  # type: ignore[arg-type]
    layer = layers.pop()
    counterpart = rules.leaves(layer).get(node.attr) if layer else f"{node.attr}[...]"
    if layers or counterpart is None:
        raise Hole("Flax has this tensor in another form")
    leaf, _, transposed = counterpart.partition("[...]")
    variable = f"{text(ctx, node.value, 'a')}.{leaf}"
    if is_compared:
        return Fragment(variable)
    site = ctx.site(node)
    if site and NoneType in site.kinds:  # a layer without bias
        both = len(site.kinds) > 1
        return parsed(f"({variable}[...] if {variable} is not None else None)" if both else variable)
    return Fragment(f"{variable}[...]{transposed}", variable=variable, transposed=transposed)


@functools.cache
def layer_with(kind: type, name: str) -> str | None:
    """Return the torch layer that a class is or derives from; None if the user's class adds the tensor."""
    layers = [base for base in kind.__mro__ if is_layer(base) and base is not nn.Module]
    # Modules do not record which class added a tensor, but the source of torch's layer names its own.
    of_torch = re.compile(rf"self\.{name}\b|['\"]{name}['\"]|\b{name}:")
    recurrent = name.startswith(("weight_", "bias_"))  # torch computes `weight_ih_l0` from parts of the name
    if not layers or not (recurrent or any(of_torch.search(inspect.getsource(layer)) for layer in layers)):
        return None
    return layers[0].__name__


def reference(ctx: Context, node: ast.AST, value: Any, name: str | None) -> Fragment:
    """Write a global name, or an attribute of one, whose `name` is None."""
    if (of_library(value) or stand_in(value)) and (written := _of_library(ctx, node, value)):
        return Fragment(written)
    listed = rule_name(value)
    # A number such as `torch.pi` has no module; its name in the source is the only trace.
    if listed is None and isinstance(value, float | int) and name is None:
        root = ctx.scope.value(root_of(node))
        listed = f"torch.{ctx.source.segment(node).partition('.')[2]}" if is_torchs(root) else None
    if listed in rules.NAMES:
        return Fragment(rules.NAMES[listed])
    if (applied := applied_function(value)) is not None:
        return Fragment(f"{reference(ctx, node, applied, applied.__name__).text}.apply")
    if is_layer(value):
        if jaxpar_layer(value) is None:
            raise Hole(f"jaxpar has no {value.__name__}")
        return Fragment(f"nn.{value.__name__}")
    if (defined_by_user(value) or _is_outputs(value)) and has_definition(value):
        return Fragment(_users(ctx, node, value))
    if isinstance(value, ModuleType) and value.__name__ in rules.MODULES:
        return Fragment(rules.MODULES[value.__name__])
    if is_torchs(value):
        if function := rules.as_value(listed or ""):
            if function.startswith("partial("):
                ctx.needs.imports["partial"] = "from functools import partial"
            return Fragment(function)
        if isinstance(value, torch.device):  # a variable of the file
            return Fragment("None", value=None)
        if isinstance(value, torch.nn.attention.SDPBackend):  # of a context that is not written
            return Fragment(repr(value.name))
        if isinstance(value, str):  # torch's version
            ctx.needs.note(f"resolved: {ctx.source.place(node)}: {ctx.code(node)} is {str(value)!r}")
            return Fragment(repr(str(value)), value=str(value))
        raise Hole("there is no rule for it")
    if name is not None and is_set_by_functions(ctx.source, name) and isinstance(value, LITERALS):
        ctx.needs.note(f"resolved: {ctx.source.place(node)}: {name} is {value!r}")
        return Fragment(repr(value), value=value)
    return Fragment(_of_module(ctx, node) if name is None else _of_file(ctx, name, value))


def _is_outputs(value: Any) -> bool:
    """Return whether a class holds a library's outputs, in a file that need not import torch."""
    return dataclasses.is_dataclass(value) and any(map(stand_in, getattr(value, "__mro__", ())[1:]))


def _is_at(module: str, value: Any) -> bool:
    """Return whether a class or function can be imported from a module that needs no torch."""
    home, name = sys.modules.get(module), getattr(value, "__name__", "")
    file = getattr(home, "__file__", None)
    return getattr(home, name, None) is value and not (file and is_users(file))


def _of_library(ctx: Context, node: ast.AST, value: Any) -> str | None:
    """Write a reference to a library's runtime; None if it is ported like a user's code."""
    if name := stand_in(value):
        ctx.needs.stand_ins[name] = None
        return name
    if listed := rules.LIBRARY_NAMES.get(library_name(value)):
        return listed
    if is_config(value):
        ctx.needs.imports[value.__name__] = import_of_config(value)
        return value.__name__
    if not is_beyond(value, ctx.watched):
        return None
    if ctx.in_annotation(node) or not ctx.ran(node):
        raise Beyond(library_name(value))
    raise Hole("it belongs to the runtime of its library")


def left_out(ctx: Context, value: Any) -> bool:
    """Return whether a value is a part of a library that did not run."""
    return of_library(value) and is_beyond(value, ctx.watched)


def _users(ctx: Context, node: ast.AST, value: Any) -> str:
    """Write a user's class or function; a module that only annotates becomes `nnx.Module`."""
    # Writing a class that did not run only for an annotation would pull in code that cannot be proven.
    if inspect.isclass(value) and issubclass(value, nn.Module) and ctx.in_annotation(node):
        functions = {id(function) for function in ctx.watched.functions.values()}
        if not any(id(member) in functions for member in vars(value).values()):
            return "nnx.Module"
    ctx.needs.definitions.setdefault(id(value), value)
    return ctx.needs.name_for(id(value), value.__name__)


def _of_module(ctx: Context, node: ast.AST) -> str:
    """Write an attribute of a module or class; a module's constant is copied into the file."""
    assert isinstance(node, ast.Attribute)
    owner = ctx.scope.value(node.value)
    if isinstance(owner, ModuleType) and (constant := assignment(owner, node.attr)):
        return _constant(ctx, constant, node.attr)
    return f"{text(ctx, node.value)}.{node.attr}"


def _constant(ctx: Context, constant: tuple[Source, ast.stmt, ModuleType], name: str) -> str:
    names = defined(constant[1])
    first = name if name in names else names[0]
    key = f"{constant[0].path}:{first}"
    ctx.needs.constants[key] = constant
    return ctx.needs.name_for(key, first)


def _of_file(ctx: Context, name: str, value: Any) -> str:
    """Write a constant of the file, or a name that it imports."""
    module = sys.modules.get(ctx.scope.globals.get("__name__", ""))
    if module and (constant := assignment(module, name)):
        return _constant(ctx, constant, name)
    if isinstance(value, LITERALS) and is_assigned(ctx.source, name):
        return repr(value)  # the import failed, and the file assigns something else
    if line := import_of(ctx.source, name):
        ctx.needs.imports[name] = line
    elif name in imported_relatively(ctx.source) and isinstance(value, LITERALS):
        return repr(value)  # of a file of the same package that is not ported
    elif hasattr(builtins, name) and value is getattr(builtins, name):
        return name
    elif isinstance(home := getattr(value, "__module__", None), str) and _is_at(home, value):
        ctx.needs.imports[name] = f"from {home} import {value.__name__}" + f" as {name}" * (
            name != value.__name__
        )
    elif not hasattr(builtins, name) and not name.startswith("__"):
        raise Hole("it is not clear where this name comes from")
    return name
