"""divergence_guard: before a rank runs a new program, all ranks compare what they are about to run."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._parallel.modules import Definition
from .._parallel.same_program import programs_in
from .._parallel.shards import separate
from .._tree import is_key, is_real
from .._upstream import Jaxpr, Literal, opened
from ..distributed.group import Group
from ..distributed.step_agreement import ledger
from ..errors import DivergenceError
from .local_batch import LocalRows
from .update import Update

Fingerprint = tuple[tuple[str, str], ...]  # more that must be the same on all ranks: names and values

_numbers = itertools.count(1)
_wrappers: collections.Counter[str] = collections.Counter()


def next_number(group: Group | None) -> int:
    where = group.folder if group else ""
    _wrappers[where] += 1
    return _wrappers[where]


@dataclasses.dataclass(frozen=True)
class StepMetadata:
    """Per-step metadata that must match on all ranks (besides batch shapes)."""

    number: int  # of the wrapper
    step: int  # of the wrapper's steps
    definition: Definition  # of the module
    trained: tuple[int, ...]  # which of its values are trained
    names: list[str]  # the values' names
    loss_fn: Callable[..., Any]
    keep: bool  # whether gradients stay on the replicas
    fingerprint: Fingerprint = ()  # of what follows the gradients
    group: Group | None = None  # the ranks that compare it


def compare(rows: LocalRows, metadata: StepMetadata) -> None:
    """Return when all ranks have the same metadata, or this rank has compared it before."""
    book = ledger(f"DistributedDataParallel {metadata.number}", metadata.group)
    if book is None:
        return
    arrays, statics, form = separate(rows.batch)
    dtypes = tuple(x.dtype for x in arrays)
    # Processes cannot compare function objects. Different code under one name is found by `compare_programs`.
    loss = getattr(metadata.loss_fn, "__qualname__", type(metadata.loss_fn).__qualname__)
    # Every step builds this key, so it is made of what exists already; `parts` runs only for a new key.
    key = (
        rows.kinds,
        form,
        dtypes,
        statics,
        metadata.definition,
        metadata.trained,
        loss,
        metadata.keep,
        metadata.fingerprint,
    )

    def parts() -> dict[str, str]:
        return {k: _without_addresses(v) for k, v in rows.describe().items()} | {
            "the loss function": loss,
            **dict(metadata.fingerprint),  # before the mode, which follows from `accumulate`
            "the mode": "no_sync()" if metadata.keep else "averaging",
            "what is trained": listed([metadata.names[i] for i in metadata.trained]),
            "the module's structure": _structure(metadata.definition),
        }

    book.check(metadata.step, key, parts)


ONE_PROGRAM = (
    "All ranks compile one program. Where a branch depends on the data or the rank (torch's "
    "find_unused_parameters=True), write it as nnx.cond or jax.lax.cond, and not as Python's if."
)

# Weak keys: the ledger must not keep programs alive.
_programs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def compare_programs(metadata: StepMetadata, program: Any, arguments: tuple) -> None:
    """Return when all ranks are about to run the same program, or this rank has run it before."""
    book = ledger(f"the program of DistributedDataParallel {metadata.number}", metadata.group)
    if book is None:
        return
    number = _programs.get(program) or _programs.setdefault(program, next(_numbers))
    # Tracing happens once: the first run reuses the trace.
    try:
        book.check(metadata.step, number, lambda: program_parts(program.trace(*arguments)))
    except DivergenceError as error:
        raise DivergenceError(f"{error} {ONE_PROGRAM}") from None


def fingerprint(update: Update, values: list, optimizer: list, names: Sequence[str]) -> Fingerprint:
    """Return what ranks could do differently after they have the same gradients."""
    state = [(name, x) for name, x in zip(names, optimizer, strict=True) if is_real(x)]
    # Numbers are compared by value, for the error to show; larger arrays by shape, which copies nothing.
    numbers = [(name, x) for name, x in state if x.size == 1 and not is_key(x)]
    kinds = digest("".join(f"{name} {x.dtype}{x.shape}" for name, x in state))
    return (
        ("accumulate", str(update.accumulate)),
        ("on_nonfinite", update.on_nonfinite),
        ("the precision", str(update.precision)),
        ("the optimizer's state", f"{len(state)} arrays ({kinds})"),
        *((f"the optimizer's {name}", str(x.addressable_data(0).item())) for name, x in numbers),
        ("the optimizer's update", _program(update, values, optimizer)),
    )


class OptimizerNumbers:
    """Numbers that are set in an optimizer between steps, such as a rate: ranks must set the same."""

    FIRST = 8

    def __init__(self) -> None:
        self._last: dict[str, float] | None = None
        self._changes = 0
        self._compared: Fingerprint = ()

    def fingerprint(self, numbers: dict[str, float]) -> Fingerprint:
        if numbers != self._last:
            self._changes += self._last is not None
            self._last = dict(numbers)
            # A comparison costs a round trip over the host, and a schedule may set a rate before every step.
            # A rank that has missed a change is found at the 16th, 32nd, ..., whose number is compared, too.
            if self._changes <= self.FIRST or self._changes & (self._changes - 1) == 0:
                self._compared = tuple(
                    (f"the optimizer's {name}", f"{x!r} (change {self._changes})")
                    for name, x in numbers.items()
                )
        return self._compared


def _program(update: Update, values: list, optimizer: list) -> str:
    closed, _ = update.traced(values, optimizer)
    # The printed program shows the types of closed-over arrays, not their contents.
    constants = [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in closed.consts]
    return digest(_without_addresses(str(closed.jaxpr)), *(x.tobytes() for x in constants))


def _structure(definition: Definition) -> str:
    # Sorted, because the order of a set differs between processes.
    text = _without_addresses(repr(getattr(definition, "graphdef", definition)))
    return digest(" ".join(sorted(text.split())))


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


LISTED = 40  # how many names or numbers are written out


def listed(entries: Sequence[str]) -> str:
    """Return some entries as text, many as a digest: each rank sends it to all ranks, and each answers."""
    text = ", ".join(entries)
    return text if len(entries) <= LISTED else f"{len(entries)} ({digest(text)})"


def program_parts(traced: jax.stages.Traced) -> dict[str, str]:
    """Return the parts by name, the plainest first."""
    counts: collections.Counter[str] = collections.Counter()
    numbers: set[str] = set()
    constants = hashlib.sha256()
    for jaxpr, consts in _with_inner(traced.jaxpr):
        for equation in jaxpr.eqns:
            counts[equation.primitive.name] += 1
            values = (x.val for x in equation.invars if isinstance(x, Literal))
            numbers |= {f"{value}" for value in values if np.ndim(value) == 0}
        for value in consts:
            constants.update(_bytes(value))
    # The last digest finds every difference; the other entries let the error name one.
    return {
        "the random implementation": str(jax.config.jax_default_prng_impl),  # type: ignore[attr-defined]
        "what goes into the step": digest(str(traced.jaxpr.in_avals)),
        **{f"how often the step does {name}": str(count) for name, count in sorted(counts.items())},
        "the numbers in the step": listed(sorted(numbers)),
        "the arrays that the step closes over": constants.hexdigest()[:12],
        "the program of the step": digest(traced.lower().as_text()),
    }


def _with_inner(program: Any) -> Iterator[tuple[Jaxpr, list[Any]]]:
    """Yield a program and all programs that it runs, each with its constants."""
    jaxpr, consts = opened(program)
    yield jaxpr, consts
    for equation in jaxpr.eqns:
        for inner in programs_in(equation.params):
            yield from _with_inner(inner)


def _bytes(value: Any) -> bytes:
    if not hasattr(value, "dtype"):
        return repr(value).encode()
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    # Parts of a global array are on other processes' devices, where this process cannot read them.
    if getattr(value, "is_fully_addressable", True):
        return f"{value.dtype}{value.shape}".encode() + np.asarray(value).tobytes()
    return f"{value.dtype}{value.shape}".encode()


def digest(text: str, *content: bytes) -> str:
    return hashlib.sha256(text.encode() + b"".join(content)).hexdigest()[:12]
