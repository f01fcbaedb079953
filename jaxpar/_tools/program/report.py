"""What `program` returns: a verdict for each leaf, findings, and the collectives."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from ...errors import ProgramError

RIGHT, WRONG, OPEN = "right", "wrong", "not proven"

CURES = {
    "missing": "Reduce the gradient over the devices of the batch: jax.lax.pmean(gradients, axis).",
    "part": "Reduce over all axes of the mesh that divide the batch.",
    "slices": "Reduce gradients over the axes of the batch alone, and norms over those of the array as well.",
    "rows": "Some devices' rows do not count; reduce what all of them computed.",
    "differs": "Make it the same everywhere, or let its sharding say that devices hold different numbers.",
    "again": "Sum once, or take a mean (jax.lax.pmean) where numbers are equal already.",
    "extreme": "A gradient is a sum over rows: use jax.lax.psum or pmean.",
    "keys": "Fold the device's index into the key: jax.random.fold_in(key, jax.lax.axis_index(axis)).",
    "stuck": "Take the collective out of the branch or loop, or decide by what is equal on all devices.",
    "undivided": "Give the batch a sharding over the mesh, NamedSharding(mesh, PartitionSpec(axis)).",
    "unsharded": "Give the new state the sharding of the old one: jax.lax.with_sharding_constraint.",
    "scale": "Take the mean of gradients of means, jax.lax.pmean, and the sum of gradients of sums, psum.",
    "loop": "Add up in the loop, and reduce once behind it.",
    "half": "Reduce in float32: convert before the reduction.",
    "gathered": "Keep the batch divided: constrain the sharding of what is computed of it.",
    "donation": "Return an array of the donated one's shape, type and sharding, or do not donate it.",
}
COSTS = ("loop", "half", "gathered", "donation")
"""Findings that leave the result right, or nearly so."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One fault: its kind, the leaves that it reaches, the user's line, and what is the matter.

    `kind` is a key of the table in docs/program.md; `costs` is True if the result is right all the same.
    """

    kind: str
    leaves: tuple[str, ...]
    line: str
    text: str

    @property
    def costs(self) -> bool:
        return self.kind in COSTS

    def __str__(self) -> str:
        shown = ", ".join(self.leaves[:3]) + (
            f" and {len(self.leaves) - 3} more" if len(self.leaves) > 3 else ""
        )
        where = f"\n    {self.line}" if self.line else ""
        return f"{self.kind}: {shown + ' ' if shown else ''}{self.text}{where}\n    {CURES[self.kind]}"


@dataclasses.dataclass(frozen=True)
class LeafVerdict:
    """One array that the step returns.

    Attributes:
      path: the leaf's path. state: whether it is part of the training state.
      verdict: "right", "wrong" or "not proven".
      why: for "not proven" the reason, with a line; otherwise what was proven.
      reductions: the names of the sums over devices through which the batch reaches it.
    """

    path: str
    state: bool
    verdict: str
    why: str
    reductions: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One collective: its operation, type, groups, the loops and branches around it, its line.

    `bytes` counts its operands or its results, whichever are more.
    """

    name: str
    operation: str
    type: str
    bytes: int
    groups: int
    devices: int
    context: tuple[str, ...]
    line: str

    @property
    def sent(self) -> float:
        """Return the bytes that a device sends if its group is a ring, which sends a sum twice around."""
        return self.bytes * (self.devices - 1) / self.devices * (2 if self.operation == "all-reduce" else 1)


@dataclasses.dataclass(frozen=True)
class ProgramReport:
    """The judgement of a compiled training step.

    Attributes:
      name: the program's name. devices: their number. platform: their kind. shares: how many parts of the
        batch they hold.
      leaves: a LeafVerdict for each array that the step returns. findings: the faults.
      exchanges: the collectives.
    """

    name: str
    platform: str
    devices: int
    shares: int
    leaves: tuple[LeafVerdict, ...]
    findings: tuple[Finding, ...]
    exchanges: tuple[Exchange, ...]

    @property
    def verdict(self) -> str:
        """Return "wrong" if a finding makes a result wrong, "not proven" if a leaf is, otherwise "right".

        A step that returns no array of a state is not proven.
        """
        if any(not f.costs for f in self.findings):
            return WRONG
        state = [leaf.verdict for leaf in self.leaves if leaf.state]
        return RIGHT if state and set(state) == {RIGHT} else OPEN

    @property
    def exit_code(self) -> int:
        """Return 0 for "right", 1 for "wrong", 2 for "not proven"."""
        return {RIGHT: 0, WRONG: 1, OPEN: 2}[self.verdict]

    def check(self) -> None:
        """Raise ProgramError, an AssertionError, unless the verdict is "right"."""
        if self.verdict != RIGHT:
            raise ProgramError(str(self))

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        state = [leaf for leaf in self.leaves if leaf.state]
        right = sum(leaf.verdict == RIGHT for leaf in state)
        lines = [
            f"{self.verdict}: {self.name} on {self.devices:,} x {self.platform}",
            f"  {right} of {len(state)} arrays of the state are proven: equal on all devices that",
            f"  hold them, and reached by the {self.shares:,} parts of the batch through complete sums only.",
        ]
        if not state:
            lines.append("  not proven: no result has the structure, shapes and types of an argument")
        lines += [f"  {'cost' if f.costs else 'fault'} {f}" for f in self.findings]
        unproven = [leaf for leaf in state if leaf.verdict == OPEN]
        lines += [f"  not proven: {leaf.path}: {leaf.why}" for leaf in unproven[:MOST]]
        if len(unproven) > MOST:
            lines.append(f"  and {len(unproven) - MOST} more that are not proven")
        sent = round(sum(e.sent for e in self.exchanges))
        lines.append(f"  {len(self.exchanges)} collectives; in rings, a device sends {sent:,} bytes")
        for e in self.exchanges[:MOST]:
            context = f", in {' in '.join(reversed(e.context))}" if e.context else ""
            groups = f"{e.groups} groups of {e.devices}"
            lines.append(f"    {e.operation} of {e.type}, {e.bytes:,} bytes, {groups}{context}  {e.line}")
        return "\n".join(lines)


MOST = 12
"""How many lines of one kind the text has; JSON has all."""
