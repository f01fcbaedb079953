"""Calls of torch's functions and layers, and of the user's own functions and classes.

Functions and methods follow the tables in `rules`. Functions that build layers take `rngs`.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
from collections.abc import Sequence
from types import FunctionType, NoneType
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from .. import rules
from ..reading.runtime import home_of
from ..reading.scope import (
    UNKNOWN,
    applied_function,
    defined_by_user,
    dotted,
    is_layer,
    is_torchs,
    jaxpar_layer,
    rule_name,
)
from .conditions import require_no_numbers
from .context import Context
from .drawing import DRAWN, builds, draws, function_rules, needs_rngs, passes_on, stream, targets_of
from .expressions import (
    argument,
    arguments_of,
    by_rule,
    expression,
    extended,
    is_placement,
    resolved,
    spliced,
    text,
    translated,
)
from .fragment import Fragment, Hole, parsed
from .losses import loss
from .memory import taken_by
from .methods import COLLECTIONS, method
from .names import LITERALS, layer_with, left_out, reference
from .omitted import is_of_batch_norm
from .packed import packed
from .pairs import pair
from .registries import registered_by_get

PARTIAL = "from functools import partial"
LISTED = {
    "torch.Tensor": "jnp.float32",
    "torch.FloatTensor": "jnp.float32",
    "torch.DoubleTensor": "jnp.float64",
    "torch.LongTensor": "int",
    "torch.BoolTensor": "bool",
}
"""Constructors that take either sizes or the elements, and the elements' types."""
JOINING = ("concatenate", "stack", "vstack", "hstack", "dstack", "column_stack")
"""NumPy's functions of a list of arrays."""
RANDOM_FUNCTIONS = ("randint", "randint_like", "multinomial", "normal")


@expression(ast.Call)
def call(ctx: Context, node: ast.Call) -> Fragment:
    if node in ctx.written:
        return Fragment(ctx.written[node])
    if sequence := packed(ctx, node):
        return sequence
    if isinstance(node.func, ast.Attribute) and (fragment := method(ctx, node, node.func)):
        return fragment
    if chosen := registered_by_get(ctx, node):
        return chosen
    target = ctx.scope.value(node.func)
    target = ctx.tensor_type(node.func) if target is UNKNOWN else target
    if target is None:
        raise Hole("the import of this name failed")
    if home_of(target).startswith("einops.layers.torch."):
        return _of_einops(ctx, node, target)
    # No value can be an instance of a class that is not written.
    if target is isinstance and left_out(ctx, ctx.scope.value(node.args[1])):
        return Fragment("False", value=False)
    if target is hasattr and is_torchs(owner := ctx.scope.value(node.args[0])):
        return resolved(ctx, node, hasattr(owner, ast.literal_eval(node.args[1])))
    if target is functools.partial and (written := _partial(ctx, node)):
        return written
    if target is copy.deepcopy and node.args and ctx.is_module(node.args[0]):
        return Fragment(f"nn.deepcopy({text(ctx, node.args[0])})")
    if applied_function(target) is not None:
        return spliced(ctx, node)
    if _takes_arrays(ctx, node, target):
        arguments = arguments_of(ctx, node)
        return Fragment(f"jnp.{target.__name__}({arguments})")
    if target is not UNKNOWN and (is_torchs(target) or rule_name(target)):
        return _of_torch(ctx, node, target)
    if target is not UNKNOWN and (chosen := _choice(ctx, node, target)):
        return chosen
    require_no_numbers(ctx, node)
    targets = [target for target in targets_of(ctx, node) if not _sees_rngs(ctx, target, node)]
    # A function that builds layers and draws takes one argument for both; layers that only accept `rngs` do
    # not make a function take it.
    constructs = getattr(ctx.source.around(node), "name", "") == "__init__"
    extra = [f"{variable}={variable}" for variable in taken_by(ctx, node)]
    if not passes_on(ctx, node) and any((needs_rngs if constructs else builds)(ctx, x) for x in targets):
        if ctx.kind and ctx.of_call(node) and not ctx.ran(node):
            raise Hole(DRAWN)  # only a constructor has rngs
        without = ", ".join(extra)
        return _with_rngs(ctx, node, targets, without, ", ".join([*extra, "rngs=rngs"]))
    if any(draws(ctx, target) for target in targets):
        extra.append(f"rngs={stream(ctx)}")
    return extended(ctx, node, ", ".join(extra))


def _with_rngs(ctx: Context, node: ast.Call, targets: Sequence[Any], without: str, extra: str) -> Fragment:
    """Write a call that passes `rngs`, except to the layers among its targets that take none."""
    written = extended(ctx, node, extra)
    others = [
        x for x in targets if inspect.isclass(x) and issubclass(x, nn.Module) and not needs_rngs(ctx, x)
    ]
    if not others or len(others) == len(targets) or not isinstance(node.func, ast.Name | ast.Attribute):
        return written
    kinds = [reference(ctx, node, x, x.__name__).text for x in others]
    is_other = f"is {kinds[0]}" if len(kinds) == 1 else f"in ({', '.join(kinds)})"
    return parsed(
        f"{extended(ctx, node, without).text} if {text(ctx, node.func)} {is_other} else {written.text}"
    )


def _takes_arrays(ctx: Context, node: ast.Call, target: Any) -> bool:
    """Return whether a call passes NumPy's arrays to NumPy's function; in Flax a module's are traced."""
    name = getattr(target, "__name__", "")
    # `np.str` warns.
    if not ctx.in_call(node) or vars(np).get(name) is not target or not hasattr(jnp, name):
        return False
    parts = (part for argument in (*node.args, *node.keywords) for part in ast.walk(argument))
    sites = [ctx.site(part) for part in parts if isinstance(part, ast.expr)]  # operators have no place
    kinds = {kind for site in sites if site for kind in site.kinds}
    return np.ndarray in kinds or (name in JOINING and bool(kinds & {list, tuple}))


def _partial(ctx: Context, node: ast.Call) -> Fragment | None:
    """Write `partial(torch.cat, dim=1)` as a lambda, because its keywords have different names in JAX."""
    target, bound = _of_partial(ctx, node.args[0]) if node.args else (None, {})
    name = rule_name(target)
    if name is None or len(node.args) > 1 or not node.keywords or not function_rules(ctx, node, name):
        return None
    passed = {keyword.arg for keyword in node.keywords}
    constants = {ast.Constant(value): key for key, value in bound.items() if key not in passed}
    keywords = [*(ast.keyword(key, constant) for constant, key in constants.items()), *node.keywords]
    used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    x = next(name for name in ("x", "y", "array", "_") if name not in used)
    # einops' reduce passes the axes as a second argument.
    parameters = [x, "axes"] if _reduces(ctx, node) else [x]
    passed_on: list[ast.expr] = [ast.Name(name, ast.Load()) for name in parameters]
    call = ast.copy_location(ast.Call(node.args[0], passed_on, keywords), node)

    def argument_text(part: ast.expr, form: str) -> str:
        if part in constants:
            return repr(part.value)
        return parameters[passed_on.index(part)] if part in passed_on else text(ctx, part, form)

    for rule in function_rules(ctx, node, name):
        written = rule.apply(call, argument_text)
        if written is not None and "{rngs}" not in rule.template:
            return Fragment(f"(lambda {', '.join(parameters)}: {written})")
    return None


def _reduces(ctx: Context, node: ast.Call) -> bool:
    """Return whether a function is passed to einops' reduce."""
    parent = ctx.source.parents[node]
    function = ctx.scope.value(parent.func) if isinstance(parent, ast.Call) else None
    return home_of(function).startswith("einops.") and getattr(function, "__name__", "") == "reduce"


def _of_partial(ctx: Context, node: ast.expr) -> tuple[Any, dict[str, Any]]:
    """Return the function that `partial` binds; of a variable that is a partial itself, its keywords, too."""
    target, site = ctx.scope.value(node), ctx.site(node)
    values = list(site.objects.values()) if target is UNKNOWN and site else []
    if not values or not all(type(x) is functools.partial and not x.args for x in values):
        return target, {}
    functions, keywords = {x.func for x in values}, [x.keywords for x in values]
    literals = all(isinstance(value, LITERALS) for value in keywords[0].values())
    if len(functions) > 1 or any(x != keywords[0] for x in keywords) or not literals:
        return UNKNOWN, {}
    return functions.pop(), keywords[0]


def _of_einops(ctx: Context, node: ast.Call, target: Any) -> Fragment:
    """Write a layer of einops as its function with the layer's arguments, which takes JAX's arrays."""
    function = {"Rearrange": "rearrange", "Reduce": "reduce"}.get(target.__name__)
    if function is None:
        raise Hole(f"there is no rule for einops' {target.__name__}")
    ctx.needs.imports |= {"partial": PARTIAL, function: f"from einops import {function}"}
    names = ("pattern", "reduction")
    parts = [f"{name}={text(ctx, part)}" for name, part in zip(names, node.args, strict=False)]
    parts += [text(ctx, part) for part in node.keywords]
    return Fragment(f"partial({function}, {', '.join(parts)})")


def _choice(ctx: Context, node: ast.Call, target: Any) -> Fragment | None:
    """Write what a library's function chose in the constructor, a class or a function, by its name."""
    if isinstance(ctx.source.parents[node], ast.Expr):
        return None  # it is called for what it does
    site = ctx.site(node)
    if not (isinstance(target, FunctionType) and defined_by_user(target) and site and len(site.objects) == 1):
        return None
    (value,) = site.objects.values()
    if target.__code__.co_filename == ctx.source.path or site.kinds - {type(value)} or ctx.in_call(node):
        return None
    if isinstance(value, bool | None):
        return resolved(ctx, node, value)
    if not (inspect.isclass(value) or isinstance(value, FunctionType)) or "<" in value.__qualname__:
        return None
    return Fragment(reference(ctx, node, value, value.__name__).text)


def _of_torch(ctx: Context, node: ast.Call, target: Any) -> Fragment:
    if is_layer(target):
        return layer(ctx, node, target)
    if target is nn.functional.batch_norm and is_of_batch_norm(ctx, node):
        return Fragment(f"super().__call__({text(ctx, node.args[0])})")
    if target is nn.Parameter:
        return parameter(ctx, node)
    keywords = [x for x in node.keywords if not is_placement(ctx, x) and not _is_empty(ctx, x)]
    if entries := _entries(ctx, keywords):
        ctx = dataclasses.replace(ctx, written={**ctx.written, **{x.value: y for x, y in entries.items()}})
        keywords = [x for x in keywords if x.arg is not None] + [*entries]
    if keywords != node.keywords:
        parent = ctx.source.parents[node]
        node = ast.copy_location(ast.Call(node.func, node.args, keywords), node)
        ctx.source.parents[node] = parent
    if dotted(target) in rules.CONTEXTS:
        return _context(ctx, node)
    if normed := _normed(ctx, node, target):
        return normed
    name = rule_name(target)
    if getattr(target, "__name__", "") in RANDOM_FUNCTIONS and ctx.of_call(node):
        raise Hole(DRAWN)
    if several := pair(ctx, node):
        return several
    if len(node.args) == 1 and name in LISTED and not ctx.is_int(node.args[0]):
        site = ctx.site(node.args[0])
        makes = "zeros" if site and site.kinds == {torch.Size} else "array"
        return Fragment(f"jnp.{makes}({text(ctx, node.args[0])}, {LISTED[name]})")
    fills = getattr(target, "__module__", "") == nn.init.__name__ and target.__name__.endswith("_")
    if fills and node.args and ctx.only_making(node):
        ctx.needs.note_initial_values()
        return translated(ctx, node.args[0])  # which it returns, filled
    candidates = function_rules(ctx, node, name)
    if not candidates:
        raise Hole(f"there is no rule for {dotted(target)}")
    if target is nn.functional.linear and (linear := _with_optional_bias(ctx, node)):
        return linear
    # Such a rule uses the `rngs` of a constructor: in a call, its numbers would be different each time.
    if "rngs." in candidates[0].template and ctx.of_call(node):
        raise Hole(DRAWN)
    return by_rule(ctx, node, candidates, str(name))


def _normed(ctx: Context, node: ast.Call, target: Any) -> Fragment | None:
    """Write weight_norm of a module whose weight is its own, with torch's axes; None for another call."""
    is_norm = target in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm)
    name = argument(node, 1, "name") if is_norm else None
    if not is_norm or len(node.args) + len(node.keywords) > 1 + (name is not None):
        return None
    leaf = name.value if isinstance(name, ast.Constant) else "weight"
    modules = ctx.modules(node.args[0])
    if not modules or any(layer_with(type(x), leaf) for x in modules):  # type: ignore[arg-type]
        return None
    return Fragment(f"nn.WeightNorm({text(ctx, node.args[0])}, name={leaf!r}, dim=0)")


def _is_empty(ctx: Context, part: ast.keyword) -> bool:
    """Return whether an argument is `**kwargs` that never had an entry, and note it."""
    site = ctx.site(part.value) if part.arg is None else None
    if site is None or site.kinds != {dict} or site.keys:
        return False
    ctx.note(part.value, "it was empty, and is left out")
    return True


def _entries(ctx: Context, keywords: Sequence[ast.keyword]) -> dict[ast.keyword, str]:
    """Return arguments for the entries of `**kwargs`, with their text."""
    written: dict[ast.keyword, str] = {}
    for part in keywords:
        site = ctx.site(part.value) if part.arg is None else None
        if site is None or site.kinds != {dict}:
            continue
        names = sorted(name for name in site.keys if isinstance(name, str))
        ctx.note(part.value, f"its entries are {', '.join(names)}, as in the example")
        for name in names:
            # A call, because a context has the text of calls.
            value = ast.copy_location(ast.Call(part.value, [], []), part.value)
            written[ast.keyword(name, value)] = f"{text(ctx, part.value, 'a')}[{name!r}]"
    return written


def _context(ctx: Context, node: ast.Call) -> Fragment:
    """Write a context that means nothing in JAX, and that a later `with` enters."""
    site = ctx.site(node)
    if any(getattr(x, "_enabled", False) for x in (site.objects.values() if site else ())):
        raise Hole("it computes in another type; give jaxpar.train_step a Precision")
    ctx.needs.imports["nullcontext"] = "from contextlib import nullcontext"
    return Fragment("nullcontext()")


def _with_optional_bias(ctx: Context, node: ast.Call) -> Fragment | None:
    """Write F.linear with a bias that is None, always or in some calls; None for any other call."""
    bias = argument(node, 2, "bias")
    site = ctx.site(bias) if bias else None
    if bias is None or site is None or NoneType not in site.kinds:
        return None
    named = [keyword for keyword in node.keywords if keyword.arg != "bias"]
    without = ast.copy_location(ast.Call(node.func, node.args[:2], named), node)
    product = by_rule(ctx, without, rules.FUNCTIONS["torch.nn.functional.linear"], "F.linear")
    if site.kinds == {NoneType}:
        return product
    written = text(ctx, bias)
    return parsed(f"{product.text} + (0 if {written} is None else {written})")


def parameter(ctx: Context, node: ast.Call) -> Fragment:
    value, flag = argument(node, 0, "data"), argument(node, 1, "requires_grad")
    assert value is not None
    if flag is None or isinstance(flag, ast.Constant):
        kind = "nnx.Param" if flag is None or flag.value else "nnx.Variable"
    else:
        kind = f"(nnx.Param if {text(ctx, flag)} else nnx.Variable)"
    return Fragment(f"{kind}({text(ctx, value)})", makes_variable=True)


def layer(ctx: Context, node: ast.Call, target: type) -> Fragment:
    """Write a layer's constructor without arguments that JAX has no use for."""
    if target in COLLECTIONS:
        return Fragment(f"nnx.{COLLECTIONS[target]}({arguments_of(ctx, node)})")
    jaxpars = jaxpar_layer(target)
    if jaxpars is None and (written := loss(ctx, node, target)):
        return written
    if jaxpars is None:
        raise Hole(f"jaxpar has no {target.__name__}")
    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
    positional = {} if starred else dict(zip(inspect.signature(target).parameters, node.args, strict=False))
    dropped: list[ast.AST] = [value for name, value in positional.items() if name in rules.DROPPED]
    dropped += [
        keyword for keyword in node.keywords if keyword.arg in rules.DROPPED or is_placement(ctx, keyword)
    ]
    remaining = [argument for argument in (*node.args, *node.keywords) if argument not in dropped]
    _check_arguments(target, jaxpars, remaining)
    extra = "rngs=rngs" if target.__name__ in rules.RANDOM else ""
    if extra and ctx.kind and getattr(ctx.source.around(node), "name", "") == "forward":
        raise Hole("a call makes a layer, and has no random numbers for it")
    if not dropped:
        return extended(ctx, node, extra)
    arguments = ", ".join(filter(None, [*(text(ctx, argument) for argument in remaining), extra]))
    return Fragment(f"{text(ctx, node.func)}({arguments})")


def _check_arguments(target: type, jaxpars: type, arguments: Sequence[ast.AST]) -> None:
    if target.__name__ in ("Softmax", "LogSoftmax") and not arguments:
        raise Hole("without dim torch chooses the axis by the number of axes")
    parameters = inspect.signature(jaxpars).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for part in arguments:
        if isinstance(part, ast.keyword) and part.arg and part.arg not in parameters:
            raise Hole(f"jaxpar's {target.__name__} has no {part.arg}")


def _sees_rngs(ctx: Context, target: Any, node: ast.Call) -> bool:
    """Return whether a function is nested in one whose `rngs` it uses, as the one around the call."""
    source = ctx.source
    in_file = isinstance(target, FunctionType) and target.__code__.co_filename == source.path
    function = source.function(target.__code__) if in_file else None
    outer, enclosing = source.around(function) if function else None, source.around(node)
    if isinstance(outer, ast.FunctionDef) and function and function.args.kwarg is None:
        return True
    while outer and enclosing and enclosing is not outer:
        enclosing = source.around(enclosing)
    return bool(outer and enclosing)
