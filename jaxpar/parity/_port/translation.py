"""Translation: a statement or an expression of torch, with its line breaks and comments, in JAX's words.

What no rule knows stays as it was written: only the words that change are exchanged in the text. What cannot
be said becomes a hole, `hole("models.py:12: x.sum() > 0 ...")`, in the place of the expression.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from . import rules
from .rules import Rule
from .scope import (
    UNKNOWN,
    Scope,
    assignment,
    defined_by_user,
    definition,
    dotted,
    has_definition,
    import_of,
    is_layer,
    is_torchs,
    own_layer,
    word_of,
)
from .source import Function, Source, end_of, start_of
from .watching import Site, Watched

WORDS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Tuple, ast.Dict)
WORDS += (ast.ListComp, ast.JoinedStr)
DELETED = "\0"
"""A statement that is left out, with its line."""


class Hole(Exception):
    """What has no counterpart, and why."""


class Needs:
    """What the written text refers to.

    Attributes:
      definitions: classes and functions of the user, in the order in which they were met.
      constants: assignments of modules, by name.
      imports: lines by the name that they bind.
      holes: what could not be said, with the places in the source.
      notes: what was left out.
    """

    def __init__(self) -> None:
        self.definitions: dict[int, Any] = {}
        self.constants: dict[str, tuple[Source, ast.stmt, ModuleType]] = {}
        self.imports: dict[str, str] = {}
        self.holes: list[str] = []
        self.notes: list[str] = []

    def hole(self, text: str) -> None:
        if text not in self.holes:
            self.holes.append(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class Translation:
    """Translates the nodes of one file."""

    def __init__(
        self, source: Source, watched: Watched, scope: Scope, needs: Needs, kind: type | None = None
    ):
        self.source, self.watched, self.scope, self.needs, self.kind = source, watched, scope, needs, kind

    def inside(self, function: ast.AST) -> Translation:
        return Translation(self.source, self.watched, self.scope.inside(function), self.needs, self.kind)

    # Expressions

    def text(self, node: ast.AST, form: str = "") -> str:
        """A node in JAX's words; form "a" with parentheses where it is more than a word, "t" as a tuple."""
        written = self._written(node)
        if form == "t":
            return self._as_tuple(node, written)
        if form == "a" and not _is_word(written):
            return f"({written})"
        return written

    def _as_tuple(self, node: ast.AST, written: str) -> str:
        if isinstance(node, ast.List):
            inside = written[1:-1].rstrip()
            return f"({inside}{',' if len(node.elts) == 1 and not inside.endswith(',') else ''})"
        site = self.watched.site(self.source, node)
        if site and site.kinds & {list, torch.Size} and not isinstance(node, ast.Tuple):
            return f"tuple({written})"
        return written

    def _written(self, node: ast.AST) -> str:
        try:
            method = getattr(self, f"_expr_{type(node).__name__.lower()}", None)
            return method(node) if method else self.spliced(node)
        except Hole as hole:
            if not isinstance(node, ast.expr):
                raise
            return self.hole(node, str(hole))

    def hole(self, node: ast.AST, reason: str) -> str:
        """An expression that raises with torch's line."""
        words = " ".join(self.source.segment(node).split())
        said = f"{self.source.place(node)}: {words}: {reason}"
        if self.ran(node):
            self.needs.hole(said)
        else:
            self.needs.note(f"did not run, and has no counterpart: {said}")
        return f"hole({said!r})"

    def spliced(self, node: ast.AST) -> str:
        """The text of a node as it is, with its parts translated."""
        parts = sorted(positioned(node), key=start_of)
        written, at = [], start_of(node)
        for part in parts:
            written += [self.source.between(at, start_of(part)), self.text(part)]
            at = end_of(part)
        return "".join([*written, self.source.between(at, end_of(node))])

    def _expr_joinedstr(self, node: ast.JoinedStr) -> str:
        # Its parts have no positions in older Pythons. What it says of a tensor's shape is the same in JAX.
        return self.source.segment(node)

    def _expr_name(self, node: ast.Name) -> str:
        value = self.scope.value(node)
        return node.id if value is UNKNOWN else self._reference(node, value, node.id)

    def _expr_attribute(self, node: ast.Attribute) -> str:
        value = self.scope.value(node)
        if value is not UNKNOWN:
            return self._reference(node, value, None)
        if node.attr == "training" and self._is_module(node.value):
            return f"not {self.text(node.value)}.deterministic"
        owner = self.site(node.value)
        if owner and owner.is_tensor and node.attr in ("data", "grad", "is_cuda"):
            raise Hole("JAX's arrays have no such thing")
        leaf = self._leaf(node)
        return leaf if leaf else f"{self.text(node.value, 'a')}.{node.attr}"

    def _leaf(self, node: ast.Attribute) -> str | None:
        """`self.weight` of a module, if it is a parameter or buffer: the array, where it is read."""
        owner = self.site(node.value)
        modules = [each for each in owner.objects.values() if isinstance(each, nn.Module)] if owner else []
        holding = [each for each in modules if node.attr in {**each._parameters, **each._buffers}]
        if not holding or isinstance(node.ctx, ast.Store) or self._compared_with_none(node):
            return None
        written = f"{self.text(node.value, 'a')}."
        layers = {_layer_of(type(each)) for each in holding}
        if layers == {None}:
            return f"{written}{node.attr}[...]"
        if None not in layers and len(layers) == 1:
            leaf = rules.LEAVES.get((layers.pop(), node.attr))
            if leaf:
                return written + leaf
        raise Hole("Flax has this tensor in another form")

    def _compared_with_none(self, node: ast.AST) -> bool:
        parent = self.source.parents.get(node)
        return isinstance(parent, ast.Compare) and any(
            isinstance(each, ast.Constant) and each.value is None for each in parent.comparators
        )

    def _reference(self, node: ast.AST, value: Any, name: str | None) -> str:
        """A global name, or an attribute of one."""
        word = word_of(value)
        if word is None and isinstance(value, float | int) and name is None:
            root = self.scope.value(_root(node))
            word = f"torch.{self.source.segment(node).partition('.')[2]}" if is_torchs(root) else None
        if word in rules.NAMES:
            return rules.NAMES[word]
        if is_layer(value):
            if own_layer(value) is None:
                raise Hole(f"jaxpar has no {value.__name__}")
            return f"nn.{value.__name__}"
        if defined_by_user(value) and has_definition(value):
            return self._own(node, value)
        if is_torchs(value) and not isinstance(value, ModuleType):
            raise Hole("there is no rule for it")
        if name is None:  # an attribute of a module or of a class
            return self._of_module(node)
        return self._imported(name)

    def _own(self, node: ast.AST, value: Any) -> str:
        """A class or function of the user. A module that is only in an annotation is just a module."""
        if inspect.isclass(value) and issubclass(value, nn.Module) and self._in_annotation(node):
            functions = {id(each) for each in self.watched.functions.values()}
            if not any(id(each) in functions for each in vars(value).values()):
                return "nnx.Module"
        self.needs.definitions.setdefault(id(value), value)
        return value.__name__

    def _in_annotation(self, node: ast.AST) -> bool:
        parent = self.source.parents.get(node)
        while parent is not None and not isinstance(parent, ast.stmt | ast.arg):
            node, parent = parent, self.source.parents.get(parent)
        return any(getattr(parent, name, None) is node for name in ("annotation", "returns"))

    def _of_module(self, node: ast.AST) -> str:
        assert isinstance(node, ast.Attribute)
        owner = self.scope.value(node.value)
        if isinstance(owner, ModuleType) and assignment(owner, node.attr):
            self.needs.constants[node.attr] = assignment(owner, node.attr)  # type: ignore[assignment]
            return node.attr
        return f"{self.text(node.value)}.{node.attr}"

    def _imported(self, name: str) -> str:
        """A constant of the file, or a name that it imports."""
        import builtins
        import sys

        module = sys.modules.get(self.scope.globals.get("__name__", ""))
        found = assignment(module, name) if module else None
        if found:
            self.needs.constants[name] = found
        elif line := import_of(self.source, name):
            self.needs.imports[name] = line
        elif not hasattr(builtins, name) and not name.startswith("__"):
            raise Hole("it is not clear where this name comes from")
        return name

    # Calls

    def _expr_call(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute):
            written = self._method(node, node.func)
            if written is not None:
                return written
        target = self.scope.value(node.func)
        if target is not UNKNOWN and (is_torchs(target) or word_of(target)):
            return self._of_torch(node, target)
        return self._with_rngs(node, self._targets(node))

    def _method(self, node: ast.Call, func: ast.Attribute) -> str | None:
        """A method of a tensor or of a module."""
        owner, name = self.site(func.value), func.attr
        if isinstance(func.value, ast.Call) and _is_super(func.value):
            return self._super(node, func)
        if owner and any(issubclass(kind, nn.Module) for kind in owner.kinds):
            return self._of_module_method(node, func, owner)
        known = owner is None and self.scope.value(func) is UNKNOWN and name in rules.METHODS
        if not (owner and owner.is_tensor) and not known:
            return None
        if owner and not all(issubclass(kind, torch.Tensor) for kind in owner.kinds):
            raise Hole("it is a tensor here and something else there")
        if name in ("to", "type"):
            return self._to(node, func.value)
        if name in ("max", "min", "sort", "topk", "median") and node.args + node.keywords:
            return self._two_results(node, func.value, name)
        if name in rules.INITIAL:
            self.needs.note("initial values are not ported: they come with torch's weights")
            return self.text(func.value)
        found = rules.METHODS.get(rules.IN_PLACE.get(name, name), [])
        return self._ruled(node, found, f"a tensor's {name}", func.value)

    def _ruled(self, node: ast.Call, found: Sequence[Rule], what: str, owner: ast.expr | None = None) -> str:
        for rule in found:
            written = rule.apply(node, self.text, owner)
            if written is not None:
                return written
        raise Hole(f"there is no rule for {what} with these arguments")

    def _to(self, node: ast.Call, owner: ast.expr) -> str:
        """`to` and `type` with a type change it; with a device they do nothing."""
        given = [
            *node.args,
            *(k.value for k in node.keywords if k.arg not in ("device", "copy", "non_blocking")),
        ]
        written = self.text(owner, "a")
        for each in given:
            site, value = self.site(each), self.scope.value(each)
            if isinstance(value, torch.dtype) or (site and torch.dtype in site.kinds):
                return f"{written}.astype({self.text(each)})"
            if site and site.is_tensor:
                return f"{written}.astype({self.text(each, 'a')}.dtype)"
            if isinstance(value, torch.device) or (site and site.kinds <= {torch.device}):
                continue
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                continue
            raise Hole("it is not clear whether this is a type or a device")
        return written

    def _two_results(self, node: ast.Call, owner: ast.expr, name: str) -> str:
        """`x.max(dim)` gives values and places; one of them is taken where it stands."""
        parent = self.source.parents.get(node)
        wanted = None
        if isinstance(parent, ast.Attribute):
            wanted = parent.attr
        elif isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
            wanted = {0: "values", 1: "indices"}.get(parent.slice.value)
        if name not in ("max", "min") or wanted not in ("values", "indices"):
            tensors = [each for each in node.args if (site := self.site(each)) and site.is_tensor]
            if name in ("max", "min") and len(node.args) == 1 == len(tensors):
                return f"jnp.{name}imum({self.text(owner)}, {self.text(node.args[0])})"
            raise Hole("it gives values and places")
        rule = Rule(
            ("dim", "keepdim="),
            "{self:a}.%s({dim}<, keepdims={keepdim}>)" % (name if wanted == "values" else f"arg{name}"),
        )
        return self._ruled(node, [rule], name, owner) + "\1"  # the parent leaves its choice out

    def _expr_subscript(self, node: ast.Subscript) -> str:
        written = self.text(node.value)
        if written.endswith("\1"):
            return written[:-1]
        if written.endswith("[...]"):
            return f"{written[:-5]}[{self.text(node.slice)}]"
        return self.spliced(node)

    def _of_module_method(self, node: ast.Call, func: ast.Attribute, owner: Site) -> str | None:
        if func.attr == "forward":
            return f"{self.text(func.value)}({self._arguments(node)})"
        if func.attr == "add_module" and not any(
            issubclass(kind, nn.Sequential | nn.ModuleList | nn.ModuleDict) for kind in owner.kinds
        ):
            return f"setattr({self.text(func.value)}, {self._arguments(node)})"
        return None

    def _super(self, node: ast.Call, func: ast.Attribute) -> str:
        name = "__call__" if func.attr == "forward" else func.attr
        arguments = self._arguments(node)
        if func.attr == "__init__" and self.kind is not None:
            base = next((each for each in self.kind.__mro__[1:] if "__init__" in vars(each)), object)
            if self._takes_rngs_as_base(base):
                arguments = f"{arguments}, rngs=rngs" if arguments else "rngs=rngs"
        return f"super().{name}({arguments})"

    def _takes_rngs_as_base(self, base: type) -> bool:
        return (defined_by_user(base) and issubclass(base, nn.Module)) or (
            is_layer(base) and base.__name__ in rules.ACCEPTING
        )

    def _arguments(self, node: ast.Call) -> str:
        """What stands between a call's parentheses."""
        given = [*node.args, *node.keywords]
        if len(given) == 1 and isinstance(given[0], ast.GeneratorExp):
            return self.text(given[0])[1:-1]
        written, at = "", min(map(start_of, given), default=(0, 0))
        for part in sorted(given, key=start_of):
            written += self.source.between(at, start_of(part)) + self.text(part)
            at = end_of(part)
        return written

    def _of_torch(self, node: ast.Call, target: Any) -> str:
        if is_layer(target):
            return self._layer(node, target)
        if target is nn.Parameter:
            return self._parameter(node)
        word = word_of(target)
        if word is None or word not in rules.FUNCTIONS:
            raise Hole(f"there is no rule for {dotted(target)}")
        if (
            word in ("torch.max", "torch.min")
            and len(node.args) + len(node.keywords) > 1
            and not self._binary(node)
        ):
            call = ast.Call(node.func, node.args[1:], node.keywords)
            self.source.parents[call] = self.source.parents[node]
            return self._two_results(call, node.args[0], word[6:])
        return self._ruled(node, rules.FUNCTIONS[word], word)

    def _binary(self, node: ast.Call) -> bool:
        site = self.site(node.args[1]) if len(node.args) > 1 else None
        return bool(site and site.is_tensor)

    def _parameter(self, node: ast.Call) -> str:
        keywords = {each.arg: each.value for each in node.keywords}
        flag = keywords.get("requires_grad", node.args[1] if len(node.args) > 1 else None)
        value = node.args[0] if node.args else keywords["data"]
        trained = flag is None or (isinstance(flag, ast.Constant) and flag.value)
        return f"nnx.{'Param' if trained else 'Variable'}({self.text(value)})"

    def _layer(self, node: ast.Call, target: type) -> str:
        """A layer's constructor without the arguments that mean nothing here."""
        if target in PARAMETERS:
            return f"nnx.{PARAMETERS[target]}({self._arguments(node)})"
        ours = own_layer(target)
        if ours is None:
            raise Hole(f"jaxpar has no {target.__name__}")
        names = list(inspect.signature(target).parameters)
        by_place = dict(zip(names, node.args, strict=False)) if _plain(node) else {}
        dropped: set[ast.AST] = {arg for name, arg in by_place.items() if name in rules.DROPPED}
        dropped |= {each for each in node.keywords if each.arg in rules.DROPPED}
        kept = [each for each in (*node.args, *node.keywords) if each not in dropped]
        self._check_arguments(target, ours, kept)
        extra = "rngs=rngs" if target.__name__ in rules.RANDOM else ""
        if not dropped:
            return self._extended(node, extra)
        inside = ", ".join(filter(None, [*(self.text(each) for each in kept), extra]))
        return f"{self.text(node.func)}({inside})"

    def _check_arguments(self, target: type, ours: type, kept: Sequence[ast.AST]) -> None:
        if target.__name__ in ("Softmax", "LogSoftmax") and not kept:
            raise Hole("without dim torch chooses the axis by the number of axes")
        taken = inspect.signature(ours).parameters
        if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
            return
        for each in kept:
            if isinstance(each, ast.keyword) and each.arg and each.arg not in taken:
                raise Hole(f"jaxpar's {target.__name__} has no {each.arg}")

    def _with_rngs(self, node: ast.Call, targets: list[Any]) -> str:
        """A call of the user's, with `rngs` if what it calls builds layers."""
        extra = "rngs=rngs" if any(self.needs_rngs(target) for target in targets) else ""
        return self._extended(node, extra)

    def _extended(self, node: ast.Call, extra: str) -> str:
        if not extra:
            return self.spliced(node)
        inside = [*node.args, *node.keywords]
        if not inside:
            return f"{self.text(node.func)}({extra})"
        last = max(inside, key=end_of)
        if len(inside) == 1 and isinstance(last, ast.GeneratorExp):
            return f"{self.text(node.func)}({self.text(last)}, {extra})"
        parts = sorted(positioned(node), key=start_of)
        written, at = [], start_of(node)
        for part in parts:
            written += [self.source.between(at, start_of(part)), self.text(part)]
            at = end_of(part)
            if part is last:
                written.append(f", {extra}")
        return "".join([*written, self.source.between(at, end_of(node))])

    def _targets(self, node: ast.Call) -> list[Any]:
        """What a call calls: as was seen, or as the name says."""
        site = self.site(node.func)
        if site:
            return list(site.objects.values())
        value = self.scope.value(node.func)
        return [] if value is UNKNOWN else [value]

    def needs_rngs(self, target: Any) -> bool:
        """Whether something that is called needs `rngs` to build layers with."""
        if isinstance(target, functools.partial):
            return self.needs_rngs(target.func)
        if isinstance(target, MethodType):
            target = target.__func__
        if is_layer(target):
            return target.__name__ in rules.ACCEPTING
        if inspect.isclass(target) and issubclass(target, nn.Module):
            base = next(each for each in target.__mro__ if "__init__" in vars(each))
            return defined_by_user(base) or (is_layer(base) and base.__name__ in rules.ACCEPTING)
        return isinstance(target, FunctionType) and self._builds(target)

    def _builds(self, function: FunctionType) -> bool:
        """Whether a function of the user builds layers."""
        function = inspect.unwrap(function)
        known = _BUILDS.get(function)
        if known is None:
            _BUILDS[function] = False  # for those that call themselves
            _BUILDS[function] = known = self._looks_building(function)
        return known

    def _looks_building(self, function: FunctionType) -> bool:
        if "." in function.__qualname__ and function.__name__ in ("forward", "__call__"):
            return False
        try:
            source, node = definition(function)
        except (LookupError, OSError, SyntaxError):
            return False
        from .watching import is_users

        if not is_users(source.path):
            return False
        there = Translation(source, self.watched, Scope(function.__globals__).inside(node), Needs(), None)
        calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
        return any(
            (self.needs_rngs(target) and (not is_layer(target) or target.__name__ in rules.RANDOM))
            or _draws(target)
            for call in calls
            for target in there._targets(call)
        )

    # What was seen

    def site(self, node: ast.AST) -> Site | None:
        return self.watched.site(self.source, node)

    def ran(self, node: ast.AST) -> bool:
        """Whether the statement of a node ran, or what stands outside of functions."""
        inside: ast.AST | None = node
        while inside is not None and not isinstance(inside, ast.stmt):
            inside = self.source.parents.get(inside)
        function = inside
        while function is not None and not isinstance(function, Function):
            function = self.source.parents.get(function)
        if function is None or inside is function or inside is None:
            return True
        return (self.source.path, inside.lineno) in self.watched.lines

    def is_tensor(self, node: ast.AST) -> bool:
        site = self.site(node)
        return bool(site and site.is_tensor)

    def _is_module(self, node: ast.AST) -> bool:
        site = self.site(node)
        return bool(site and any(issubclass(kind, nn.Module) for kind in site.kinds))

    def test(self, node: ast.expr) -> str:
        """The condition of an `if`, of a `while` or of an `assert`."""
        if self.is_tensor(node):
            return self.hole(node, "it decides by data")
        return self.text(node)

    def _expr_ifexp(self, node: ast.IfExp) -> str:
        if self.is_tensor(node.test):
            raise Hole("it decides by data")
        return self.spliced(node)

    def _expr_boolop(self, node: ast.BoolOp) -> str:
        if any(self.is_tensor(each) for each in node.values):
            raise Hole("it decides by data")
        return self.spliced(node)

    def _expr_unaryop(self, node: ast.UnaryOp) -> str:
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Attribute):
            written = self.text(node.operand)
            if written.startswith("not "):
                return written.removeprefix("not ")
        if isinstance(node.op, ast.Not) and self.is_tensor(node.operand):
            raise Hole("it decides by data")
        return self.spliced(node)


PARAMETERS = {nn.ParameterList: "List", nn.ParameterDict: "Dict"}
_BUILDS: dict[FunctionType, bool] = {}


def _draws(target: Any) -> bool:
    return target in (torch.randn, torch.rand)


def _layer_of(kind: type) -> str | None:
    """The layer of torch that a class is or derives from; None if its own tensors are the user's."""
    layer = next((each for each in kind.__mro__ if is_layer(each)), None)
    return None if layer is nn.Module or layer is None else layer.__name__


def _is_super(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "super"


def _plain(node: ast.Call) -> bool:
    return not any(isinstance(each, ast.Starred) for each in node.args)


def _root(node: ast.AST) -> ast.AST:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


@functools.lru_cache(maxsize=4096)
def _is_word(text: str) -> bool:
    """Whether a text can stand before a dot or in an operation without parentheses."""
    try:
        node = ast.parse(textwrap.dedent(text).strip(), mode="eval").body
    except SyntaxError:
        return text.startswith("(") and text.endswith(")")
    return isinstance(node, WORDS)


def positioned(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that have a place in the text."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr_context | ast.operator | ast.unaryop | ast.boolop | ast.cmpop):
            continue
        if hasattr(child, "lineno"):
            yield child
        else:
            yield from positioned(child)
