"""CallRule: one line of a table, which binds the arguments of a torch call and writes JAX's."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable

Text = Callable[[ast.expr, str], str]
"""Writes an argument; the second argument is its form: "", "a", "t", "s" or "n"."""
SHAPE = "its shape depends on data"
"""The note of a rule that is for constructors alone, whose numbers are known."""
ALIASES: dict[str | None, str] = {"axis": "dim", "keepdims": "keepdim"}
"""NumPy's names of arguments, which torch takes as well."""
LINE = re.compile(r"([\w.|]+)\((.*?)\) -> +(.+?)(?:  # (.+))?")
PLACEHOLDER = re.compile(r"\{(\w+)(?::(\w))?\}")
OPTIONAL = re.compile(r"<([^<>]*\{[^<>]*)>")


@dataclasses.dataclass(frozen=True)
class CallRule:
    """A line of a table.

    The signature has the arguments' names with their marks: `dim=`, `*shape`, `out?`; `dim==0` must be passed
    and be 0, `dim==0?` must be 0 if it is passed. `note` tells how the replacement differs from torch, if it
    does.
    """

    signature: tuple[str, ...]
    template: str
    note: str = ""

    def apply(
        self, call: ast.Call, text: Text, self_node: ast.expr | None = None, rngs: str = "rngs"
    ) -> str | None:
        """Write the call in JAX; None if this rule does not accept its arguments."""
        bound = self._bound(call)
        if bound is None:
            return None
        if self_node is not None:
            bound["self"] = [self_node]
        return self._written(bound, text).replace("{rngs}", rngs)

    def accepts(self, call: ast.Call) -> bool:
        return self._bound(call) is not None

    def draws(self, call: ast.Call) -> bool:
        bound = self._bound(call)
        return bound is not None and "{rngs}" in self._template({**bound, "self": [call.func]})

    def _bound(self, call: ast.Call) -> dict[str, list[ast.expr]] | None:
        positional = list(call.args)
        names = {parameter.strip("*=?").partition("==")[0] for parameter in self.signature}
        named = {
            keyword.arg if keyword.arg in names else ALIASES.get(keyword.arg, keyword.arg): keyword.value
            for keyword in call.keywords
        }
        bound: dict[str, list[ast.expr]] = {}
        for parameter in self.signature:
            name, _, value = parameter.strip("*=?").partition("==")
            if parameter.startswith("*"):
                bound[name] = positional or [named.pop(name)] if positional or name in named else []
                positional = []
            # `*args` may hold any number of arguments, so only a starred parameter accepts it.
            elif positional and not isinstance(positional[0], ast.Starred):
                bound[name] = [positional.pop(0)]
            elif name in named:
                bound[name] = [named.pop(name)]
            elif parameter[-1] not in "=?":
                return None
            # Compared as text, so only a literal matches: a variable may change between calls.
            if value and name in bound and ast.unparse(bound[name][0]) != value:
                return None
        # Dropping an argument that the rule does not list would change numbers without a note.
        return None if positional or named else bound

    def _template(self, bound: dict[str, list[ast.expr]]) -> str:
        def optional(match: re.Match) -> str:
            needed = {name for name, _ in PLACEHOLDER.findall(match[1])} - {"rngs"}
            return match[1] if all(bound.get(name) for name in needed) else ""

        return OPTIONAL.sub(optional, self.template)

    def _written(self, bound: dict[str, list[ast.expr]], text: Text) -> str:
        def argument_text(match: re.Match) -> str:
            if match[1] == "rngs":
                return match[0]
            nodes, form = bound.get(match[1], []), match[2] or ""
            if form == "t" and len(nodes) != 1:
                elements = ", ".join(text(node, "") for node in nodes)
                return f"({elements})"
            return ", ".join(text(node, form) for node in nodes)

        return PLACEHOLDER.sub(argument_text, self._template(bound))


def table(lines: str) -> dict[str, list[CallRule]]:
    rules: dict[str, list[CallRule]] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"no rule: {line}")
        torch_names, signature, template, note = match.groups()
        names = tuple(name.strip() for name in signature.split(",") if name.strip())
        for torch_name in torch_names.split("|"):
            replacement = template.replace("{}", torch_name.rpartition(".")[2])
            rules.setdefault(torch_name, []).append(CallRule(names, replacement, note or ""))
    return rules
