"""Expressions without calls: torch's text, with its line breaks and comments, in JAX.

An expression without a rule keeps its text; only the parts with a counterpart are replaced. An expression
without a counterpart becomes a hole, `hole("models.py:12: x.sum() > 0 ...")`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Self

import torch
from torch import nn

from .. import rules
from ..reading.runtime import Beyond
from ..reading.scope import (
    UNKNOWN,
    Scope,
    assignment,
    defined_by_user,
    has_definition,
    import_of,
    is_layer,
    is_torchs,
    jaxpar_layer,
    rule_name,
)
from ..reading.source import Function, Source, end_of, start_of
from ..reading.watching import PROBED_NODES, Site, Watched
from .annotations import QUOTED, is_literal, names_in
from .needs import Needs
from .precedence import joined, parsed

WORDS = (
    *(ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Tuple, ast.Dict),
    *(ast.ListComp, ast.JoinedStr),
)


LEAF = re.compile(r"([\w.]+)\[\.\.\.\](\.T|\.transpose\([\d, ]+\))?")
"""The text of a layer's array, in torch's layout."""


class Hole(Exception):
    """Source without a counterpart in JAX; the message is the reason."""


class Words:
    """Translates the expressions of one file.

    Attributes:
      unbound: variables that none of the written lines assign.
    """

    unbound: frozenset[str] = frozenset()

    def __init__(
        self, source: Source, watched: Watched, scope: Scope, needs: Needs, kind: type | None = None
    ):
        self.source, self.watched, self.scope, self.needs, self.kind = source, watched, scope, needs, kind

    def inside(self, function: ast.AST) -> Self:
        """Return the translator for the body of a function."""
        return type(self)(self.source, self.watched, self.scope.inside(function), self.needs, self.kind)

    def text(self, node: ast.AST, form: str = "") -> str:
        """Write a node in JAX; `form` is an argument's form in `rules`."""
        written = self._written(node)
        if form == "n":
            return {"True": "1", "False": "0"}.get(written, f"int({written})")
        if form == "t":
            return self._as_tuple(node, written)
        if form == "s":
            return self._as_several(node, written)
        if form == "a" and not _is_word(written):
            return f"({written})"
        return written

    def _as_several(self, node: ast.AST, written: str) -> str:
        if isinstance(node, ast.List):
            return written[1:-1].strip().removesuffix(",")
        site = self.site(node)
        return f"*{written}" if site and site.kinds <= {list, tuple} else written

    def _as_tuple(self, node: ast.AST, written: str) -> str:
        if isinstance(node, ast.Starred):
            return self.text(node.value, "t")
        if isinstance(node, ast.List):
            elements = written[1:-1].rstrip()
            return f"({elements}{',' if len(node.elts) == 1 and not elements.endswith(',') else ''})"
        site = self.watched.site(self.source, node)
        if site and site.kinds & {list, torch.Size} and not isinstance(node, ast.Tuple):
            return f"tuple({written})"
        return written

    def _written(self, node: ast.AST) -> str:
        """Write a node; the axes of images with their channels last are adapted."""
        images = self.needs.images
        if images is None or not isinstance(node, ast.expr):
            return self._in_order(node)
        key = self.source.key(node)
        if key in images.replaced:
            return "".join(x if isinstance(x, str) else self.text(x) for x in images.replaced[key])
        written = self._in_order(node)
        move = images.moved.get(key)
        return f"jnp.moveaxis({written}, {move[0]}, {move[1]})" if move else written

    def _in_order(self, node: ast.AST) -> str:
        try:
            method = getattr(self, f"_expr_{type(node).__name__.lower()}", None)
            return method(node) if method else self.spliced(node)
        except Hole as hole:
            if not isinstance(node, ast.expr):
                raise
            if self._in_annotation(node):
                raise Beyond(str(hole)) from hole
            return self.hole(node, str(hole))

    def hole(self, node: ast.AST, reason: str) -> str:
        """Write an expression that raises with torch's line."""
        code = " ".join(self.source.segment(node).split())
        message = f"{self.source.place(node)}: {code}: {reason}"
        if self.ran(node) and not (isinstance(node, ast.Name) and node.id in self.unbound):
            self.needs.hole(message)
        else:
            self.needs.note(f"did not run, and has no counterpart: {message}")
        self.needs.written_holes += 1
        return f"hole({message!r})"

    def spliced(self, node: ast.AST, text: Callable[[ast.AST], str] | None = None) -> str:
        """Write a node's own text, with its parts translated."""
        text = text or self.text
        parts = sorted(positioned(node), key=start_of)
        written, at = [], start_of(node)
        for part in parts:
            written += [
                self.source.between(at, start_of(part)),
                joined(node, part, text(part)),
            ]
            at = end_of(part)
        return "".join([*written, self.source.between(at, end_of(node))])

    def _expr_constant(self, node: ast.Constant) -> str:
        """Write a constant; quoted annotations of torch are replaced or, like unknown ones, left out."""
        value = node.value
        if not (isinstance(value, str) and self._in_annotation(node) and not is_literal(self.source, node)):
            return self.source.segment(node)
        if replacement := rules.NAMES.get(f"torch.{value.removeprefix('torch.')}"):
            return replacement
        names = names_in(value)
        if QUOTED.match(value) or not names or any(self._quoted(node, name) != name.id for name in names):
            raise Beyond(value)
        return self.source.segment(node)

    def _quoted(self, node: ast.Constant, name: ast.Name) -> str:
        """Write a name in a quoted annotation; "" if it is unknown."""
        value = self.scope.value(name)
        return "" if value is UNKNOWN else self._reference(node, value, name.id)

    def _expr_joinedstr(self, node: ast.JoinedStr) -> str:
        # Its parts have no positions in older Pythons. A shape is formatted the same way in JAX.
        return self.source.segment(node)

    def _expr_name(self, node: ast.Name) -> str:
        if node.id in self.unbound and self.site(node) is None:
            return self.hole(node, "no line that ran assigns it")
        value = self.scope.value(node)
        return node.id if value is UNKNOWN else self._reference(node, value, node.id)

    def _expr_attribute(self, node: ast.Attribute) -> str:
        value = self.scope.value(node)
        if value is not UNKNOWN:
            return self._reference(node, value, None)
        if node.attr == "training" and self._is_module(node.value):
            return f"not {self.text(node.value)}.deterministic"
        owner = self.site(node.value)
        if owner and owner.kinds == {torch.device}:
            raise Hole("JAX's devices are others")
        if owner and owner.is_tensor and hasattr(torch.Tensor, node.attr) and not self._known(node):
            raise Hole(f"JAX's arrays have no {node.attr}")
        if node.attr == "dtype" and (of := LEAF.fullmatch(self.text(node.value, "a"))):
            return f"{of[1]}.dtype"
        leaf = self._leaf(node)
        return leaf if leaf else f"{self.text(node.value, 'a')}.{node.attr}"

    def _known(self, node: ast.Attribute) -> bool:
        """Return whether arrays have the same attribute; methods have rules."""
        return node.attr in rules.ATTRIBUTES or callable(getattr(torch.Tensor, node.attr))

    def _leaf(self, node: ast.Attribute) -> str | None:
        """Write a read of a module's parameter or buffer as its array: `self.weight[...]`."""
        owner = self.site(node.value)
        modules = (
            [module for module in owner.objects.values() if isinstance(module, nn.Module)] if owner else []
        )
        holding = [module for module in modules if node.attr in kept_tensors(module)]
        if not holding or isinstance(node.ctx, ast.Store) or self._compared_with_none(node):
            return None
        written = f"{self.text(node.value, 'a')}."
        layers = {_layer_of(type(module), node.attr) for module in holding}
        if layers == {None}:
            return f"{written}{node.attr}[...]"
        if None not in layers and len(layers) == 1:
            leaf = rules.leaves(str(layers.pop())).get(node.attr)
            if leaf:
                return written + leaf
        raise Hole("Flax has this tensor in another form")

    def _compared_with_none(self, node: ast.AST) -> bool:
        parent = self.source.parents.get(node)
        return isinstance(parent, ast.Compare) and any(
            isinstance(operand, ast.Constant) and operand.value is None for operand in parent.comparators
        )

    def _reference(self, node: ast.AST, value: Any, name: str | None) -> str:
        """Write a global name, or an attribute of one."""
        name_ = rule_name(value)
        if name_ is None and isinstance(value, float | int) and name is None:
            root = self.scope.value(_root(node))
            name_ = f"torch.{self.source.segment(node).partition('.')[2]}" if is_torchs(root) else None
        if name_ in rules.NAMES:
            return rules.NAMES[name_]
        if is_layer(value):
            if jaxpar_layer(value) is None:
                raise Hole(f"jaxpar has no {value.__name__}")
            return f"nn.{value.__name__}"
        if defined_by_user(value) and has_definition(value):
            return self._own(node, value)
        if isinstance(value, ModuleType) and value.__name__ in rules.MODULES:
            return rules.MODULES[value.__name__]
        if is_torchs(value):
            raise Hole("there is no rule for it")
        if name is None:  # an attribute of a module or of a class
            return self._of_module(node)
        return self._imported(name)

    def _own(self, node: ast.AST, value: Any) -> str:
        """Write a user's class or function; a module that only annotates becomes `nnx.Module`."""
        if inspect.isclass(value) and issubclass(value, nn.Module) and self._in_annotation(node):
            functions = {id(function) for function in self.watched.functions.values()}
            if not any(id(attribute) in functions for attribute in vars(value).values()):
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
        if isinstance(owner, ModuleType) and (constant := assignment(owner, node.attr)):
            self.needs.constants[f"{constant[0].path}:{node.attr}"] = constant
            return node.attr
        return f"{self.text(node.value)}.{node.attr}"

    def _imported(self, name: str) -> str:
        """Write a constant of the file, or a name that it imports."""
        import builtins
        import sys

        module = sys.modules.get(self.scope.globals.get("__name__", ""))
        constant = assignment(module, name) if module else None
        if constant:
            self.needs.constants[f"{constant[0].path}:{name}"] = constant
        elif line := import_of(self.source, name):
            self.needs.imports[name] = line
        elif not hasattr(builtins, name) and not name.startswith("__"):
            raise Hole("it is not clear where this name comes from")
        return name

    def site(self, node: ast.AST) -> Site | None:
        """Return an expression's values; for a variable that did not run, those from other lines."""
        site = self.watched.site(self.source, node)
        if site is None and isinstance(node, ast.Name) and node.id in self.scope.local:
            return self.watched.variables(self.source).get((self.source.around(node), node.id))
        return site

    def ran(self, node: ast.AST) -> bool:
        """Return whether the statement of a node ran; code outside of functions always did."""
        child: ast.AST | None = node
        while child is not None and not isinstance(child, ast.stmt):
            parent = self.source.parents.get(child)
            chosen = isinstance(parent, ast.IfExp) and child is not parent.test
            if chosen and isinstance(child, PROBED_NODES) and self.watched.site(self.source, child) is None:
                return False
            child = parent
        function: ast.AST | None = child
        while function is not None and not isinstance(function, Function):
            function = self.source.parents.get(function)
        if function is None or child is function or child is None:
            return True
        return (self.source.path, child.lineno) in self.watched.lines

    def in_call(self, node: ast.AST) -> bool:
        """Return whether the statement of a node ran when the module was called."""
        while not isinstance(node, ast.stmt):
            node = self.source.parents[node]
        return (self.source.path, node.lineno) in self.watched.called

    def only_making(self, node: ast.AST) -> bool:
        """Return whether an expression ran only in the constructor, where arrays are concrete."""
        while not isinstance(node, ast.stmt):
            node = self.source.parents[node]
        location = self.source.path, node.lineno
        return location in self.watched.lines and location not in self.watched.called

    def is_tensor(self, node: ast.AST) -> bool:
        site = self.site(node)
        return bool(site and site.is_tensor)

    def _is_module(self, node: ast.AST) -> bool:
        site = self.site(node)
        if site is None and isinstance(node, ast.Name) and node.id == "self":  # a line that did not run
            return self.kind is not None
        return bool(site and any(issubclass(kind, nn.Module) for kind in site.kinds))


def kept_tensors(module: nn.Module) -> set[str]:
    """Return the names of a module's own tensors; a buffer that is not persistent is a plain array."""
    return {*module._parameters, *module._buffers} - module._non_persistent_buffers_set


def _layer_of(kind: type, name: str) -> str | None:
    """Return the torch layer that a class is or derives from; None if the user's class adds the tensor."""
    layers = [base for base in kind.__mro__ if is_layer(base) and base is not nn.Module]
    of_torch = re.compile(rf"self\.{name}\b|['\"]{name}['\"]|\b{name}:")
    recurrent = name.startswith(("weight_", "bias_"))  # `weight_ih_l0` is in no text
    if not layers or not (recurrent or any(of_torch.search(inspect.getsource(layer)) for layer in layers)):
        return None
    return layers[0].__name__


def _root(node: ast.AST) -> ast.AST:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _is_word(text: str) -> bool:
    """Return whether a text needs no parentheses before a dot or in an operation."""
    return isinstance(parsed(text), WORDS)


def positioned(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that have a position in the text."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr_context | ast.operator | ast.unaryop | ast.boolop | ast.cmpop):
            continue
        if hasattr(child, "lineno"):
            yield child
        else:
            yield from positioned(child)
