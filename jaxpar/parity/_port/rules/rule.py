"""Rule: one line of a table, which binds the arguments of a call and writes another one."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable

Text = Callable[[ast.expr, str], str]
"""How an argument is written; the second argument is "", "a", "t" or "s"."""
LINE = re.compile(r"([\w.]+)\((.*?)\) -> +(.+?)(?:  # (.+))?")
PLACE = re.compile(r"\{(\w+)(?::(\w))?\}")
OPTIONAL = re.compile(r"<([^<>]*\{[^<>]*)>")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A line of a table.

    Attributes:
      signature: the names of the arguments with their marks: `dim=`, `*shape`, `out?`; `dim==0` has to be
        there and to be 0, `dim==0?` is 0 if it is there.
      template: what is written.
      note: in what it means something else, if it does.
    """

    signature: tuple[str, ...]
    template: str
    note: str = ""

    def apply(
        self, call: ast.Call, text: Text, self_node: ast.expr | None = None, rngs: str = "rngs"
    ) -> str | None:
        """The call in JAX's words; None if this rule has no place for its arguments."""
        bound = self._bound(call)
        if bound is None:
            return None
        if self_node is not None:
            bound["self"] = [self_node]
        return self._written(bound, text).replace("{rngs}", rngs)

    def _bound(self, call: ast.Call) -> dict[str, list[ast.expr]] | None:
        positional = list(call.args)
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        bound: dict[str, list[ast.expr]] = {}
        for parameter in self.signature:
            name, _, value = parameter.strip("*=?").partition("==")
            if parameter.startswith("*"):
                bound[name] = positional or [named.pop(name)] if positional or name in named else []
                positional = []
            elif positional and not isinstance(positional[0], ast.Starred):
                bound[name] = [positional.pop(0)]
            elif name in named:
                bound[name] = [named.pop(name)]
            elif parameter[-1] not in "=?":
                return None
            if value and name in bound and ast.unparse(bound[name][0]) != value:
                return None
        return None if positional or named else bound

    def _written(self, bound: dict[str, list[ast.expr]], text: Text) -> str:
        def optional(found: re.Match) -> str:
            needed = {name for name, _ in PLACE.findall(found[1])} - {"rngs"}
            return found[1] if all(bound.get(name) for name in needed) else ""

        def place(found: re.Match) -> str:
            if found[1] == "rngs":
                return found[0]
            nodes, form = bound.get(found[1], []), found[2] or ""
            if form == "t" and len(nodes) != 1:
                inside = ", ".join(text(node, "") for node in nodes)
                return f"({inside})"
            return ", ".join(text(node, form) for node in nodes)

        return PLACE.sub(place, OPTIONAL.sub(optional, self.template))


def table(lines: str) -> dict[str, list[Rule]]:
    """The rules of a text, by the word that they are for."""
    found: dict[str, list[Rule]] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"no rule: {line}")
        word, signature, template, note = match.groups()
        names = tuple(name.strip() for name in signature.split(",") if name.strip())
        found.setdefault(word, []).append(Rule(names, template, note or ""))
    return found
