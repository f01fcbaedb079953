"""A tapped run: the files of its ranks, read, checked and merged into steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FileError
from . import tap_file
from .digests import COLUMNS, SAMPLES, layout_free
from .operation_types import OperationType, rows_of
from .tap import PARTS

NORM, MEAN, LEAST, LARGEST, BITS = range(len(COLUMNS))


@dataclass(frozen=True)
class Table:
    """MatchedNames, shapes and types of the arrays of a part, and their statistics [arrays, columns]."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    values: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        return np.array([max(np.prod(shape), 1.0) for shape in self.shapes])

    @property
    def samples(self) -> np.ndarray:
        return self.values[:, len(COLUMNS) :]

    def rows(self, names: Sequence[str]) -> Table:
        """Return the rows of these names, in this order."""
        at = {name: i for i, name in enumerate(self.names)}
        indices = [at[name] for name in names]
        return Table(
            tuple(names),
            tuple(self.shapes[i] for i in indices),
            tuple(self.dtypes[i] for i in indices),
            self.values[indices],
        )


@dataclass(frozen=True)
class BatchLeaf:
    """One array of a batch: digests [2, rows], statistics, and all values if they were written."""

    digests: np.ndarray
    shape: tuple[int, ...]
    values: np.ndarray
    full: np.ndarray | None

    @property
    def layout(self) -> tuple[int, ...]:
        return layout_free(self.shape[1:])


@dataclass
class TappedStep:
    """What the ranks wrote of one step: `ranks` has each rank's tables, `losses` each rank's of each call."""

    batch: dict[str, BatchLeaf] = field(default_factory=dict)
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)  # loss and rate
    parts: dict[str, Table] = field(default_factory=dict)
    ranks: dict[str, list[Table]] = field(default_factory=dict)
    full: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # if the step before has others

    @property
    def loss(self) -> float | None:
        losses = self.numbers.get("loss")
        return float(np.mean(list(losses.values()))) if losses else None


@dataclass
class TappedRun:
    """Steps by number; `start` has the parameters before the first."""

    path: str
    steps: dict[int, TappedStep]
    start: TappedStep
    world: int
    absent: list[int]  # ranks without a file
    notes: list[str]
    settings: dict[str, dict[str, Any]]
    seed: int
    types: tuple[OperationType, ...] = ()

    def before(self, step: int) -> TappedStep:
        """Return the step whose parameters are those with which `step` began."""
        earlier = [k for k in self.steps if k < step]
        return self.steps[max(earlier)] if earlier else self.start


def read_run(folder: str | os.PathLike[str]) -> TappedRun:
    """Read and merge the files of a run.

    Raises:
      FileError: the folder has no file, one is damaged, or they belong to different runs.
    """
    path = Path(folder)
    if not path.is_dir():
        raise FileError(f"{path}: it is no folder of taps, such as parity.Tap writes.")
    files = sorted(path.glob("rank-*.tap"))
    if not files:
        raise FileError(f"{path}: there are no files of taps (rank-00000.tap) in it.")
    ranks = [_Rank(file) for file in files]
    world = max(rank.world for rank in ranks)
    numbers = [rank.rank for rank in ranks]
    if len(set(numbers)) < len(numbers) or max(numbers) >= world or len({rank.seed for rank in ranks}) > 1:
        raise FileError(
            f"{path}: ranks {numbers} of {world} with seeds {[r.seed for r in ranks]} are not one run."
        )
    notes = [
        f"{file}: the last record is incomplete and was ignored"
        for file, r in zip(files, ranks, strict=True)
        if r.torn
    ]
    absent = sorted(set(range(world)) - set(numbers))
    if absent:
        notes.append(f"{path}: the files of ranks {absent} of {world} are not there")
    merged = {k: [rank.steps[k] for rank in ranks if k in rank.steps] for rank in ranks for k in rank.steps}
    starts = merged.pop(None, [TappedStep()])
    steps = {k: _merged(merged[k]) for k in sorted(k for k in merged if k is not None)}
    settings = next((rank.settings for rank in ranks if rank.settings), {})
    types = next((rank.types for rank in ranks if rank.types), ())
    return TappedRun(str(path), steps, _merged(starts), world, absent, notes, settings, ranks[0].seed, types)


def _merged(ranks: Sequence[TappedStep]) -> TappedStep:
    first = ranks[0]
    step = TappedStep(dict(first.batch), dict(first.numbers), dict(first.parts), {}, dict(first.full))
    step.settings = first.settings
    for part in first.parts:
        step.ranks[part] = [rank.parts[part] for rank in ranks if part in rank.parts]
    for name in first.batch:
        step.batch[name] = _joined([rank.batch[name] for rank in ranks if name in rank.batch])
    losses = [rank.loss for rank in ranks if rank.loss is not None]
    if losses:
        step.numbers["loss"] = {"": float(np.mean(losses))}
        step.losses = [x for rank in ranks for x in rank.numbers.get("loss", {}).values()]
    return step


def _joined(pieces: Sequence[BatchLeaf]) -> BatchLeaf:
    values = [x.full for x in pieces]
    complete = all(x is not None and x.ndim and x.shape[1:] == pieces[0].shape[1:] for x in values)
    return BatchLeaf(
        np.concatenate([x.digests for x in pieces], 1),
        (sum(x.digests.shape[1] for x in pieces), *pieces[0].shape[1:]),
        pieces[0].values if len(pieces) == 1 else np.full_like(pieces[0].values, np.nan),
        np.concatenate([x for x in values if x is not None])
        if complete
        else pieces[0].full
        if len(pieces) == 1
        else None,
    )


class _Rank:
    """One file."""

    def __init__(self, path: Path):
        self.path = path
        records, self.torn = tap_file.read(path)
        self.rank, self.world, self.seed = 0, 1, 0
        self.settings: dict[str, dict[str, Any]] = {}
        self.steps: dict[int | None, TappedStep] = {}
        self.types: tuple[OperationType, ...] = ()
        self._tables: dict[int, list[tuple[str, tuple[int, ...], str]]] = {}
        self._session: set[int | None] = set()
        for header, arrays in records:
            try:
                getattr(self, f"_{_kind(header)}")(header, arrays)
            except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
                raise FileError(f"{path}: a record is not readable: {error!r}.") from error

    def _open(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self.rank, self.world, self.seed = (int(header[key]) for key in ("rank", "world", "seed"))
        self._tables, self._session = {}, set()

    def _table(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        rows = [(str(name), tuple(map(int, shape)), str(dtype)) for name, shape, dtype in header["rows"]]
        self._tables[int(header["id"])] = rows

    def _types(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self.types = rows_of(header["rows"])

    def _step(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        number = None if header["step"] is None else int(header["step"])
        if number not in self._session:  # a run that continues repeats steps after its last checkpoint
            self.steps[number] = TappedStep()
            self._session.add(number)
        step = self.steps[number]
        if header.get("settings"):
            step.settings = {str(k): dict(v) for k, v in header["settings"].items()}
            self.settings = self.settings or step.settings
        batch: dict[str, dict[str, np.ndarray]] = {}
        for key, x in arrays.items():
            part, _, name = key.partition("/")
            if part in PARTS:
                names, shapes, dtypes = zip(*self._tables[int(name)], strict=True)
                rows = x.reshape(len(names), len(COLUMNS) + SAMPLES)
                step.parts[part] = Table(names, shapes, dtypes, rows)
            elif part == "full":
                kind, _, leaf = name.partition("/")
                if kind == "batch":
                    batch.setdefault(leaf, {})["full"] = x
                else:
                    step.full.setdefault(kind, {})[leaf] = x
            elif part == "batch":
                leaf, _, column = name.rpartition("/")
                batch.setdefault(leaf, {})[column] = x
            else:
                numbers = step.numbers.setdefault(part, {})
                # The losses of accumulated batches are all kept; of rates, the last one counts.
                leaf = name if name not in numbers or part != "loss" else f"{name}+{len(numbers)}"
                numbers[leaf] = float(x)
        for leaf, columns in batch.items():
            digests, shape = columns["rows"].reshape(2, -1), tuple(int(n) for n in columns["shape"].ravel())
            row = columns["statistics"].reshape(len(COLUMNS) + SAMPLES)
            piece = BatchLeaf(digests, shape, row, columns.get("full"))
            step.batch[leaf] = _joined([step.batch[leaf], piece]) if leaf in step.batch else piece


def _kind(header: Mapping[str, Any]) -> str:
    kind = header.get("kind")
    if kind not in ("open", "table", "types", "step"):
        raise ValueError(f"its kind is {kind!r}")
    return kind
