"""Libraries: references to a library's runtime, and expressions about devices."""

from __future__ import annotations

import ast
from typing import Any

import torch

from .. import rules
from ..reading.runtime import Beyond, is_beyond, is_config, library_name, of_library, stand_in
from ..reading.scope import import_of_config
from .deciding import DECIDES, Deciding
from .words import Hole


class Libraries(Deciding):
    """Translates references to libraries."""

    def _reference(self, node: ast.AST, value: Any, name: str | None) -> str:
        written = self._of_library(node, value) if of_library(value) or stand_in(value) else None
        return written or super()._reference(node, value, name)

    def _of_library(self, node: ast.AST, value: Any) -> str | None:
        """Write a reference to a library's runtime; None if it is ported like a user's code."""
        if name := stand_in(value):
            self.needs.stand_ins[name] = None
            return name
        if name_ := rules.LIBRARY_NAMES.get(library_name(value)):
            return name_
        if is_config(value):
            self.needs.imports[value.__name__] = import_of_config(value)
            return value.__name__
        if not is_beyond(value, self.watched):
            return None
        if self._in_annotation(node) or not self.ran(node):
            raise Beyond(library_name(value))
        raise Hole("it belongs to the runtime of its library")

    def _expr_dict(self, node: ast.Dict) -> str:
        """Write a dict without a library's entries that did not run."""
        values = [self.scope.value(value) for value in node.values]
        pairs = list(zip(node.keys, node.values, values, strict=True))
        entries = [(key, entry) for key, entry, value in pairs if not self._is_beyond(value)]
        if len(entries) == len(pairs):
            return self.spliced(node)
        self.needs.note(f"{self.source.place(node)}: left out are entries that the example does not use")
        keys = (f"{self.text(key)}: " if key else "**" for key, _ in entries)
        return "{" + ", ".join(a + self.text(b) for a, (_, b) in zip(keys, entries, strict=True)) + "}"

    def _is_beyond(self, value: Any) -> bool:
        return of_library(value) and is_beyond(value, self.watched)

    def _expr_arg(self, node: ast.arg) -> str:
        """Write a parameter, without an annotation that has no counterpart."""
        try:
            return self.spliced(node)
        except Beyond:
            return node.arg

    def _expr_ifexp(self, node: ast.IfExp) -> str:
        if self.is_tensor(node.test):
            raise Hole(DECIDES)
        return self.spliced(node, self._operand)

    def _operand(self, node: ast.AST) -> str:
        """Write a part of a conditional expression; a hole if it did not run and has no counterpart."""
        try:
            return self.text(node)
        except Beyond as beyond:
            if not self.ran(self.source.parents[node]):
                raise
            return self.hole(node, f"it needs {beyond}")

    def _expr_attribute(self, node: ast.Attribute) -> str:
        site = self.site(node)
        return "None" if site and site.kinds == {torch.device} else super()._expr_attribute(node)

    def _expr_compare(self, node: ast.Compare) -> str:
        """Write a comparison; one of devices is replaced by its recorded value."""
        sites = [self.site(operand) for operand in (node.left, *node.comparators)]
        comparison = self.site(node)
        if (
            comparison is None
            or len(comparison.objects) != 1
            or all(s is None or s.kinds != {torch.device} for s in sites)
        ):
            return super()._expr_compare(node)
        (value,) = comparison.objects.values()
        return self._resolved(node, value)

    def _resolved(self, node: ast.AST, value: Any) -> str:
        """Write an expression's value in torch, as a constant."""
        self.needs.note(f"resolved: {self.source.place(node)}: {self.source.segment(node)} is {value}")
        return str(value)
