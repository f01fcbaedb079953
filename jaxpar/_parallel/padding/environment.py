"""environment: the variables of programs that are walked side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._upstream import Literal
from .rows import DependentError, Rows, axis_of


class Environment:
    """The variables of all programs: which correspond to each other, and where they have rows."""

    def __init__(self, sizes: tuple[int, ...], programs: int):
        self._sizes = sizes
        self._rows: dict[Any, Rows | None] = {}  # by variables of the first program
        self._first: list[dict[Any, Any]] = [{} for _ in range(programs - 1)]  # of the others' variables

    def bind(self, variables: Sequence[Sequence[Any]], rows: Sequence[Rows | None]) -> None:
        """Pair variables, one list for each program, whose lengths must be what the rules derived."""
        for paired, where in zip(zip(*variables, strict=True), rows, strict=True):
            avals = [v.aval for v in paired]
            if len({a.dtype for a in avals}) > 1:
                raise DependentError("dtype")
            # The rules and the lengths are independent evidence. Only where both agree is the axis believed:
            # a length that happens to be the number of rows proves nothing.
            if axis_of([a.shape for a in avals], self._sizes) != (
                where and (where.axis, where.outer * where.inner)
            ):
                raise DependentError("rows")
            self._rows[paired[0]] = where
            for first, v in zip(self._first, paired[1:], strict=True):
                first[v] = paired[0]

    def rows(self, atoms: Sequence[Sequence[Any]]) -> list[Rows | None]:
        """Return where operands have rows, one list for each program, which must read the same variables."""
        for first, others in zip(self._first, atoms[1:], strict=True):
            for v, w in zip(atoms[0], others, strict=True):
                literal = isinstance(v, Literal)
                if literal != isinstance(w, Literal) or not (literal or first[w] is v):
                    raise DependentError("operands")
        return [None if isinstance(v, Literal) else self._rows[v] for v in atoms[0]]
