"""Definitions: the text of a user's class, function or constant, without the members that did not run."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from ..reading.packages import INSTALLED
from ..reading.runtime import Beyond, for_runtime, of_runtime, stand_in
from ..reading.scope import Scope, defined_by_user, definition
from ..reading.source import Function, Source, defined, end_of, start_of
from ..reading.watching import Watched
from .blocks import begin_of, blocks_of, written_statement
from .caches import only_empties_caches, only_sets_modes
from .calls import PARTIAL
from .constructors import MODE, calling_chosen, reads_training_first
from .context import Context
from .drawing import STREAM, draws, draws_first, is_static, method_needs_rngs, needs_rngs
from .expressions import pieces, text
from .functions import decorator, function, head_parts, registers
from .memory import memory_of
from .names import LITERALS, left_out, reference
from .needs import Needs
from .omitted import is_docstring

RNGS = "nnx.Rngs"
EMPTY = '"""Not ported, for the example does not run it."""'


def takes_rngs(value: Any, watched: Watched) -> bool:
    """Return whether a user's class or function takes `rngs` in the written file."""
    return needs_rngs(_context(value, watched, Needs()), value)


def definition_text(value: Any, watched: Watched, needs: Needs) -> tuple[Source, ast.stmt, str]:
    """Return a class's or function's file and definition in torch, and its text in JAX."""
    source, node = definition(value)
    ctx = _context(value, watched, needs)
    if isinstance(node, ast.ClassDef):
        return source, node, _class(ctx, value, node)
    value = inspect.unwrap(value)
    assert isinstance(node, Function)
    if needs_rngs(ctx, value):
        return source, node, function(ctx, node, RNGS)
    return source, node, function(ctx, node, "nnx.RngStream" if draws(ctx, value) else "")


def constant_text(source: Source, node: ast.stmt, module: ModuleType, watched: Watched, needs: Needs) -> str:
    """Write the assignment of a module's constant; of a dict of functions and classes, the used entries."""
    ctx = Context(source, watched, Scope(dict(vars(module))), needs)
    (name, *_) = defined(node)
    if used := _used_entries(ctx, vars(module).get(name)):
        return f"{name} = {_entries(ctx, node, used)}"
    return written_statement(ctx, node) or ""


def _used_entries(ctx: Context, value: Any) -> dict[Any, Any]:
    """Return the entries of a dict of functions and classes that the example used, if not all of them.

    An entry may be a dict itself, of some of them and of plain values.
    """
    if type(value) is not dict:
        return {}
    callables = {key: list(_callables(entry)) for key, entry in value.items()}
    if not all(callables.values()):
        return {}
    used = {
        key: value[key] for key, entries in callables.items() if {*map(id, entries)} & ctx.watched.callables
    }
    return used if len(used) < len(value) and _is_writable(used) else {}


def _callables(entry: Any) -> Iterator[Any]:
    """Yield the functions and classes of a dict's entry."""
    if isinstance(entry, FunctionType | type):
        yield entry
    elif type(entry) is dict:
        for inner in entry.values():
            yield from _callables(inner)


def _is_writable(entry: Any) -> bool:
    if type(entry) is dict:
        return all(isinstance(key, str | int) and _is_writable(value) for key, value in entry.items())
    if type(entry) in (list, tuple):
        return all(map(_is_writable, entry))
    if isinstance(entry, functools.partial):
        return all(map(_is_writable, (entry.func, *entry.args, *entry.keywords.values())))
    if isinstance(entry, FunctionType | type):
        return "<" not in entry.__qualname__
    return isinstance(entry, LITERALS)


def _entries(ctx: Context, node: ast.stmt, entry: Any) -> str:
    if type(entry) is dict:
        return f"{{{', '.join(f'{key!r}: {_entries(ctx, node, value)}' for key, value in entry.items())}}}"
    if type(entry) in (list, tuple):
        elements = "".join(f"{_entries(ctx, node, value)}, " for value in entry)
        return f"[{elements}]" if type(entry) is list else f"({elements})"
    if isinstance(entry, functools.partial):
        ctx.needs.imports["partial"] = PARTIAL
        parts = [_entries(ctx, node, value) for value in (entry.func, *entry.args)]
        parts += [f"{name}={_entries(ctx, node, value)}" for name, value in entry.keywords.items()]
        return f"partial({', '.join(parts)})"
    if isinstance(entry, FunctionType | type):
        return reference(ctx, node, entry, entry.__name__).text
    return repr(entry)


def _context(value: Any, watched: Watched, needs: Needs) -> Context:
    names = vars(sys.modules[inspect.unwrap(value).__module__])
    kind = value if inspect.isclass(value) and issubclass(value, nn.Module) else None
    return Context(definition(value)[0], watched, Scope(dict(names)), needs, kind)


def _class(ctx: Context, value: type, node: ast.ClassDef) -> str:
    """Write a class without the methods that did not run.

    A class that is not a module has all methods without holes, even if they did not run.
    """
    written: list[str] = []
    previous: ast.stmt | None = None
    for member, member_text in _members(ctx, value, node):
        if member_text is None:
            continue
        separated = any(isinstance(x, Function | ast.ClassDef) for x in (member, previous))
        written.append(("\n" if separated and previous is not None else "") + member_text)
        previous = member
    # Members are separated by one line, and methods by an empty one, which has no indent.
    line = "\n" + " " * node.body[0].col_offset
    body = line.join(written).replace(f"{line}\n", f"\n{line}") or (EMPTY if ctx.kind else "pass")
    return _head(ctx, value, node) + body


def _members(ctx: Context, value: type, node: ast.ClassDef) -> Iterator[tuple[ast.stmt, str | None]]:
    """Yield a class's statements; additions for a missing constructor follow the docstring."""
    documented = ast.get_docstring(node) is not None
    if documented:
        yield node.body[0], written_statement(ctx, node.body[0])
    for name in sorted(memory_of(ctx, node).within_call):
        ctx.needs.stand_ins["WithinCall"] = None
        ctx.needs.unread.add((value, name))
        yield ast.Pass(), f"{name} = WithinCall()"
    if "__init__" not in vars(value):
        yield from _state(ctx, value, node)
    for member in node.body[documented:]:
        assigned = ctx.scope.value(member.value) if isinstance(member, ast.Assign) else None
        if any(for_runtime(value, name) for name in defined(member)) or left_out(ctx, assigned):
            continue
        if isinstance(member, Function):
            yield member, _method(ctx, value, member)
        elif isinstance(member, ast.ClassDef):
            inner = vars(value)[member.name]
            yield member, _class(_context(inner, ctx.watched, ctx.needs), inner, member)
        else:
            yield member, written_statement(ctx, member)
    if calling := calling_chosen(ctx, node):
        yield ast.parse("def __call__(self): ...").body[0], calling


def _state(ctx: Context, value: type, node: ast.ClassDef) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the mode as a class attribute, or a constructor that makes a random stream."""
    mode = [MODE] if reads_training_first(ctx.kind) else []
    if draws_first(ctx, ctx.kind) and value.__init__ is nn.Module.__init__:  # type: ignore[misc]
        indent = "\n" + " " * (2 * node.body[0].col_offset)
        head = f"def __init__(self, *, rngs: {RNGS}):"
        yield ast.parse(f"{head} ...").body[0], indent.join([head, *mode, STREAM])
    elif mode:
        yield ast.Pass(), MODE.removeprefix("self.")


def _base(ctx: Context, part: ast.AST, same_named: Mapping[Any, type]) -> str:
    if part not in same_named:
        return text(ctx, part)
    return reference(ctx, part, same_named[part], same_named[part].__name__).text


def _head(ctx: Context, value: type, node: ast.ClassDef) -> str:
    """Write `class Net(nnx.Module):` up to its first statement."""
    parts, start, begin = head_parts(node), start_of(node), begin_of(node.body[0])
    values = {part: ctx.scope.value(part) for part in parts}
    remaining = [
        part
        for part, base in values.items()
        if not (left_out(ctx, base) or (ctx.kind and _is_mixin(ctx, base)))
    ]
    # `class Net(Net)`: the name is the base's until the class is there.
    same_named = {
        part: base for part, base in zip(node.bases, value.__bases__, strict=False) if values[part] is value
    }
    keeps = value in ctx.watched.keeping_modules and not ctx.kind
    if keeps and not any(map(defined_by_user, value.__bases__)):
        # Otherwise a compiled program would take the weights as constants.
        others = [text(ctx, part) for part in remaining if values[part] is not object]
        written = f"class {node.name}({', '.join([*others, 'nnx.Module'])}" + ")" * (not parts)
    elif same_named or len(remaining) < len(parts):
        written = f"class {node.name}({', '.join(_base(ctx, part, same_named) for part in remaining)}"
    else:
        written = pieces(ctx, parts, start)
    after = ctx.source.between(end_of(parts[-1]) if parts else start, begin)
    if written.endswith(")") and not parts:
        after = f":{after.partition(':')[2]}"
    decorators = [_decorator(ctx, node, expression) for expression in node.decorator_list]
    if dataclasses.is_dataclass(value) and not decorators and any(map(_is_output, value.__mro__[1:])):
        decorators = ["struct.dataclass"]  # JAX registers each class of outputs, torch's dataclass its base
    lines = "".join(f"@{decorated}\n" for decorated in decorators if decorated)
    return lines + written + after


def _is_mixin(ctx: Context, base: Any) -> bool:
    """Return whether a module's base derives from a library's class and none of its methods ran."""
    if not inspect.isclass(base) or issubclass(base, nn.Module):
        return False
    functions = [function_in(kind, name) for kind in base.__mro__ for name in vars(kind)]
    ran = any(function.__code__ in ctx.watched.functions for function in functions if function)
    return not ran and any(_is_installed(kind) for kind in base.__mro__)


def _is_installed(kind: type) -> bool:
    """Return whether a class is of a package."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return bool(INSTALLED & set(Path(file).parts))


def _only_makes(node: Function) -> bool:
    """Return whether a `__new__` only returns what its base's makes, for which Flax has its own."""
    statements = [statement for statement in node.body if not is_docstring(statement)]
    value = statements[0].value if statements and isinstance(statements[0], ast.Assign | ast.Return) else None
    is_bases = isinstance(value, ast.Call) and ast.unparse(value.func) == "super().__new__"
    return is_bases and all(
        isinstance(x, ast.Return) and isinstance(x.value, ast.Name) for x in statements[1:]
    )


def _is_mixed_in(value: type) -> bool:
    """Return whether a class is a base of modules."""
    kinds: list[type] = value.__subclasses__()
    return any(issubclass(kind, nn.Module) or _is_mixed_in(kind) for kind in kinds)


def _only_asks_base(ctx: Context, node: Function) -> bool:
    """Return whether all that a `__getattr__` returned was nn.Module's parameters, buffers and submodules."""
    results = [x.value for x in ast.walk(node) if isinstance(x, ast.Return) and ctx.ran(x)]
    return all(x is not None and ast.unparse(x).startswith("super().__getattr__(") for x in results)


def _is_output(kind: type) -> bool:
    return bool(of_runtime(kind) or stand_in(kind))


def _decorator(ctx: Context, node: ast.ClassDef, expression: ast.expr) -> str | None:
    """Write a class's decorator; a library's output classes become trees of arrays."""
    called = expression.func if isinstance(expression, ast.Call) else expression
    is_dataclass = ctx.scope.value(called) is dataclasses.dataclass
    bases = [ctx.scope.value(base) for base in node.bases]
    if is_dataclass and any(_is_output(x) for base in bases for x in getattr(base, "__mro__", ())):
        return "struct.dataclass"
    written = None if registers(ctx, expression) else decorator(ctx, expression)
    value = ctx.scope.value(ast.Name(node.name))
    if is_dataclass and written and value in ctx.watched.kinds_in_call and not issubclass(value, dict):
        return f"jax.tree_util.register_dataclass\n@{written}"  # what the call returns is a tree of arrays
    return written


def _method(ctx: Context, value: type, node: Function) -> str | None:
    """Write a method; None if it is left out.

    Methods of modules must have run; methods of plain classes must not have holes.
    """
    method = function_in(value, node.name)
    if method is None or ctx.source.function(method.__code__) is not node:
        method = _decorated(ctx, method, node)
    if method is None:
        return None  # an overload, or replaced by a decorator
    name = f"{value.__name__}.{node.name}"
    if ctx.kind and node.name == "__new__" and _only_makes(node):
        return None
    if ctx.kind and node.name == "__getattr__" and _only_asks_base(ctx, node):
        ctx.needs.note(f"{name} is not ported: it returned what nn.Module's does")
        return None
    if ctx.kind is None and method.__code__ not in ctx.watched.functions and _is_mixed_in(value):
        ctx.needs.note(f"{name} is not ported: the example does not run it")
        return None
    if node.name == "dtype" and any(issubclass(kind, value) for kind in ctx.watched.typed_by_parameters):
        return None  # what reads it has the parameters' type
    if ctx.kind is None:
        rngs = RNGS if method_needs_rngs(ctx, method) else ""
        with contextlib.suppress(Beyond):
            ran = method.__code__ in ctx.watched.functions
            if any(map(ctx.in_call, node.body)) or (ran and node.name == "__init__"):
                return function(ctx, node, rngs)  # what runs needs it, with its holes
            if written := ctx.needs.without_holes(lambda: function(ctx, node, rngs), in_lines_that_ran=ran):
                return written
        ctx.needs.note(f"{name} is not ported: it has no counterpart")
        return None
    if not any((ctx.source.path, statement.lineno) in ctx.watched.lines for statement in node.body):
        if method.__code__ not in ctx.watched.functions:
            ctx.needs.note(f"{name} is not ported: the example does not run it")
        return None
    if is_static(method) and draws(ctx, method):
        return function(dataclasses.replace(ctx, kind=None), node, "nnx.RngStream")
    if only_empties_caches(ctx, node) or only_sets_modes(ctx, node):
        not_run(ctx.source, node, ctx.watched, lambda child: ctx.note(child, "did not run, and is left out"))
        return None
    return function(ctx, node, RNGS if node.name == "__init__" or needs_rngs(ctx, method) else "")


def function_in(value: type, name: str) -> Any:
    """Return the plain function of a method, a property, a static or a class method."""
    member = vars(value).get(name)
    member = member.func if isinstance(member, functools.cached_property) else member
    member = getattr(member, "__func__", getattr(member, "fget", member))
    member = inspect.unwrap(member) if callable(member) else member
    return member if isinstance(member, FunctionType) else None


def _decorated(ctx: Context, wrapper: FunctionType | None, node: Function) -> FunctionType | None:
    """Return the method that a decorator's function calls, if it keeps it among its variables."""
    cells = [cell.cell_contents for cell in (wrapper.__closure__ or ())] if wrapper else []
    functions = [x for x in cells if isinstance(x, FunctionType)]
    return next((x for x in functions if ctx.source.function(x.__code__) is node), None)


def not_run(source: Source, node: ast.AST, watched: Watched, report: Callable[[ast.stmt], None]) -> None:
    """Report the first statements of blocks that did not run although the code around them did."""
    if isinstance(node, ast.stmt) and watched.initial.is_initial(source, node):
        return  # it ran, and what it did is in the initial values
    for body in blocks_of(node):
        if not isinstance(node, ast.ClassDef) and (source.path, body[0].lineno) not in watched.lines:
            # Refusals need not run.
            if not isinstance(node, Function) and not isinstance(body[0], ast.Raise):
                report(body[0])
            continue
        for child in body:
            not_run(source, child, watched, report)
