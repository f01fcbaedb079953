"""Context: what surrounds the syntax that is translated, and what was recorded about it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from ..reading.scope import UNKNOWN, Scope
from ..reading.source import Function, Source
from ..reading.watching import PROBED_NODES, Site, Watched
from .needs import Needs

TENSOR_TYPE = type(torch.FloatTensor)
Handler = TypeVar("Handler", bound=Callable[..., Any])


class Registry(dict[type[ast.AST], Callable[..., Any]]):
    """The functions that translate nodes, by the node's type."""

    def __call__(self, *kinds: type[ast.AST]) -> Callable[[Handler], Handler]:
        """Register a function for nodes of these types."""

        def register(handler: Handler) -> Handler:
            self.update(dict.fromkeys(kinds, handler))
            return handler

        return register


@dataclasses.dataclass(frozen=True)
class Context:
    """The surroundings of a node.

    Attributes:
      source, scope: its file, and the names that are visible.
      watched: the recorded values and lines.
      needs: what the written text refers to; the only part that translating changes.
      kind: the module class whose body is translated, if any.
      stops: whether it is under `torch.no_grad()`, so that values carry no gradient.
      unbound: variables that none of the written lines assign.
      written: the text of calls of which a line before the statement does a part, and of selected rows.
    """

    source: Source
    watched: Watched
    scope: Scope
    needs: Needs
    kind: type | None = None
    stops: bool = False
    unbound: frozenset[str] = frozenset()
    written: Mapping[ast.expr, str] = dataclasses.field(default_factory=dict)

    def inside(self, function: ast.AST) -> Context:
        """Return the context of a function's body."""
        scope = self.scope.inside(function)
        return dataclasses.replace(self, scope=scope, stops=False, unbound=frozenset())

    def stopping(self) -> Context:
        return dataclasses.replace(self, stops=True)

    def elsewhere(self, source: Source, names: Mapping[str, Any], kind: type | None = None) -> Context:
        """Return a context in a different file, for reading without writing."""
        return Context(source, self.watched, Scope(dict(names)), Needs(), kind)

    def code(self, node: ast.AST) -> str:
        """Return torch's code in one line."""
        return " ".join(self.source.segment(node).split())

    def note(self, node: ast.AST, remark: str) -> None:
        self.needs.note(f"{self.source.place(node)}: {self.code(node)}: {remark}")

    def site(self, node: ast.AST) -> Site | None:
        """Return an expression's values; for a variable that did not run, those from other lines."""
        site = self.watched.site(self.source, node)
        # Only local variables: two functions can use one name for different things.
        if site is None and isinstance(node, ast.Name) and node.id in self.scope.local:
            site = self.watched.variables(self.source).get((self.source.around(node), node.id))
            # Where an optional argument was None, a line that did not run reads it as a tensor.
            return site if site and site.kinds != {type(None)} else None
        return site

    def ran(self, node: ast.AST) -> bool:
        """Return whether the statement of a node ran; code outside of functions always did."""
        child: ast.AST | None = node
        while child is not None and not isinstance(child, ast.stmt):
            parent = self.source.parents.get(child)
            # Of a conditional expression's line only one branch ran; `and` and `or` end early.
            chosen = isinstance(parent, ast.IfExp) and child is not parent.test
            chosen = chosen or (isinstance(parent, ast.BoolOp) and child is not parent.values[0])
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
        return self._line(node) in self.watched.called

    def of_call(self, node: ast.AST) -> bool:
        """Return whether the module's call ran a statement, or would run it: its function ran only there."""
        if self._line(node) in self.watched.lines:
            return self.in_call(node)
        function = self.source.around(node)
        ran = [inner for inner in getattr(function, "body", ()) if self.ran(inner)]
        return bool(ran) and all(map(self.in_call, ran))

    def only_making(self, node: ast.AST) -> bool:
        """Return whether an expression ran only in the constructor, where arrays are concrete."""
        line = self._line(node)
        return line in self.watched.lines and line not in self.watched.called

    def _line(self, node: ast.AST) -> tuple[str, int]:
        while not isinstance(node, ast.stmt):
            node = self.source.parents[node]
        return self.source.path, node.lineno

    def is_tensor(self, node: ast.AST) -> bool:
        site = self.site(node)
        return bool(site and site.is_tensor)

    def is_int(self, node: ast.AST) -> bool:
        site = self.site(node)
        return isinstance(node, ast.Constant) or bool(site and site.kinds <= {int})

    def is_module(self, node: ast.AST) -> bool:
        site = self.site(node)
        if site is None and isinstance(node, ast.Name) and node.id == "self":  # a line that did not run
            return self.kind is not None
        return bool(site and any(issubclass(kind, nn.Module) for kind in site.kinds))

    def modules(self, node: ast.AST) -> list[nn.Module]:
        """Return the modules that an expression was."""
        site = self.site(node)
        return [value for value in site.objects.values() if isinstance(value, nn.Module)] if site else []

    def tensor_type(self, node: ast.AST) -> Any:
        """Return the `torch.FloatTensor` that a variable was; UNKNOWN if it was anything else."""
        site = self.site(node) if isinstance(node, ast.Name) else None
        kinds = [*site.objects.values()] if site and site.kinds == {TENSOR_TYPE} else []
        return kinds[0] if len(kinds) == 1 else UNKNOWN

    def in_annotation(self, node: ast.AST) -> bool:
        parent = self.source.parents.get(node)
        while parent is not None and not isinstance(parent, ast.stmt | ast.arg):
            node, parent = parent, self.source.parents.get(parent)
        return any(getattr(parent, name, None) is node for name in ("annotation", "returns"))


def variables_of(module: nn.Module) -> set[str]:
    """Return the names of a module's own variables; a buffer that is not persistent is a plain array."""
    return {*module._parameters, *module._buffers} - module._non_persistent_buffers_set
