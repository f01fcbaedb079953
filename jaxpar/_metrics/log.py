"""MetricsLog: a run's numbers, step by step, in files.

torch's SummaryWriter calls `.item()`, so every logged step waits for the device. Here the copy of a device
array to the host is started, and a later call writes it when it has arrived, so rows lag by a step or more.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from .._arguments import Count
from ..errors import MetricError
from .progress import is_first
from .rows import Csv, File, Json, Number, Row, check_scalar, is_device_array, is_ready, read

if TYPE_CHECKING:
    import jax

JSONL, CSV = "metrics.jsonl", "metrics.csv"

Waiting: TypeAlias = "deque[tuple[int, dict[str, Number | jax.Array]]]"
"""Logged steps that are not written yet, oldest first."""


class BoardWriter(Protocol):
    def add_scalar(self, tag: str, scalar_value: Number, global_step: int) -> object: ...
    def flush(self) -> object: ...


class MetricsLog:
    """Numbers by step, in `metrics.jsonl` and `metrics.csv`.

    >>> import jaxpar, tempfile
    >>> with tempfile.TemporaryDirectory() as directory, jaxpar.MetricsLog(directory) as log:
    ...     log.log(0, loss=2.5)
    ...     log.flush()
    ...     jaxpar.MetricsLog.read(directory)["loss"]
    array([2.5])

    Args:
      directory: created if necessary. An existing log there is continued.
      csv, jsonl: which files are written.
      tensorboard: an object with `add_scalar(tag, value, step)` and `flush()`; True: tensorboardX's
        SummaryWriter in the same directory (where torch is installed, tensorboardX imports it).

    Only process 0 writes; in all others `log` checks its arguments and drops them.

    Raises: MetricError: a file of that name has different contents. ImportError: `tensorboard=True` without
      tensorboardX. ValueError: both files are switched off.

    torch counterpart: `add_scalar` of `torch.utils.tensorboard.SummaryWriter`. Source:
    torch/utils/tensorboard/writer.py.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        csv: bool = True,
        jsonl: bool = True,
        tensorboard: bool | BoardWriter | None = None,
    ) -> None:
        if not csv and not jsonl:
            raise ValueError("MetricsLog: csv=False and jsonl=False leave no file to write.")
        self.directory = Path(directory)
        self._waiting: Waiting = deque()
        self._files: list[File] = []
        self._last: int | None = None
        self._board: BoardWriter | None = None
        self._closed = False
        if not is_first():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._board = _board(tensorboard, self.directory)
        rows = _reader(self.directory)
        # A process may have been killed between the two files: then the first one is right.
        self._files = [
            file for file, enabled in zip(_files(self.directory), (jsonl, csv), strict=True) if enabled
        ]
        for file in self._files:
            file.write(rows)
            rows = file.rows
        self._last = max((step for step, _ in rows()), default=None)
        # Not a bound method, which would keep the log alive until the interpreter ends.
        self._at_exit = weakref.finalize(self, _finish, self._waiting, self._files, self._board)

    def log(self, step: int, **values: object) -> None:
        """Log the values of a step. Never waits for a device.

        Args:
          step: the number of the step, on the host; not below the one before; it may be logged in several
            calls.
          values: numbers, or arrays with a single number.

        Raises: MetricError: text, an array with axes, a tracer, a donated array; a step that goes back.
        """
        if self._closed:
            raise MetricError("MetricsLog.log: the log is closed.")
        if isinstance(step, bool) or not isinstance(step, int | np.integer):
            raise MetricError(
                f"MetricsLog.log: step is {step!r:.40} of type {type(step).__qualname__}. Count on the host: "
                "reading a device's counter would wait for the device."
            )
        for name, value in values.items():
            if not name or not name.isprintable():
                raise MetricError(f"MetricsLog.log: {name!r} cannot be the name of a column.")
            check_scalar(value, name, "MetricsLog.log")
        # A step back usually means a restored checkpoint, whose later rows are stale.
        if self._last is not None and step < self._last:
            raise MetricError(
                f"MetricsLog.log: step {step} comes after step {self._last}, which {self.directory} holds "
                f"already. To write it and what follows again: log.resume_from({step})."
            )
        self._last = int(step)
        if not self._files:
            return
        self._waiting.append((int(step), {name: _sent(value) for name, value in values.items()}))
        _write(self._waiting, self._files, self._board, wait=False)

    def resume_from(self, step: Count) -> None:
        """Remove this step and all later ones, because a restored run will log them again."""
        self.flush()
        self._last = None
        if self._files:
            rows = _before(self._files[0].rows, step)
            for file in self._files:
                file.write(rows)
                rows = file.rows
            self._last = max((s for s, _ in rows()), default=None)

    def flush(self) -> None:
        """Write everything that was logged; waits for the device."""
        _write(self._waiting, self._files, self._board)

    def close(self) -> None:
        """Write everything that was logged and close the files. The interpreter's exit does this too."""
        if not self._closed:
            self._closed = True
            _finish(self._waiting, self._files, self._board)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
            return
        with suppress(Exception):  # the error that ended the block is the one to be seen
            self.close()

    @staticmethod
    def read(directory: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """Read the log in a directory; the run may still be active, or have been killed.

        Returns: `"step"`, int64 [n], each step once and in order, and every metric, float64 [n], NaN where it
        is absent.

        Raises: FileNotFoundError: the directory has no log. MetricError: a file is damaged.
        """
        if not any(file.path.exists() for file in _files(Path(directory))):
            raise FileNotFoundError(f"MetricsLog.read: neither {JSONL} nor {CSV} is in {directory}.")
        merged: dict[int, dict[str, Number]] = {}
        for step, values in _reader(Path(directory))():
            merged.setdefault(step, {}).update(values)
        names = dict.fromkeys(name for values in merged.values() for name in values)
        columns = {
            name: np.array([values.get(name, np.nan) for values in merged.values()], np.float64)
            for name in names
        }
        return {"step": np.array(list(merged), np.int64), **columns}

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Plot every metric over the steps, a panel for each: PNG, SVG or PDF; needs `jaxpar[report]`.

        The footer has the date, the versions and the command, and names the metrics without a finite number.

        Raises: MetricError: no metric has a finite number. ImportError: matplotlib is not installed.
        """
        if not self._closed:
            self.flush()
        if is_first():
            from .chart import draw

            draw(self.read(self.directory), path)


def _files(directory: Path) -> tuple[File, File]:
    return File(directory / JSONL, Json()), File(directory / CSV, Csv())


def _reader(directory: Path) -> Callable[[], Iterator[Row]]:
    objects, table = _files(directory)
    return objects.rows if objects.path.exists() else table.rows


def _before(rows: Callable[[], Iterator[Row]], end: int) -> Callable[[], Iterator[Row]]:
    return lambda: ((step, values) for step, values in rows() if step < end)


def _write(waiting: Waiting, files: list[File], board: BoardWriter | None, wait: bool = True) -> None:
    """Write the steps that are ready, in order; with `wait` all steps."""
    # Only the oldest step is tested: rows are written in order, even if a later step is ready.
    while waiting and (wait or all(map(is_ready, waiting[0][1].values()))):
        step, values = waiting.popleft()
        row = step, {name: _read(name, step, value) for name, value in values.items()}
        for file in files:
            file.append(row)
        if board is not None:
            for name, number in row[1].items():
                board.add_scalar(name, number, step)
    if board is not None and wait:
        board.flush()


def _finish(waiting: Waiting, files: list[File], board: BoardWriter | None) -> None:
    try:
        _write(waiting, files, board)
    finally:
        for file in files:
            file.close()


def _sent(value: object) -> Number | jax.Array:
    """Start a device array's copy to the host; convert anything else, since host arrays may be reused."""
    if not is_device_array(value):
        return read(value)
    value.copy_to_host_async()
    return value


def _read(name: str, step: int, value: Number | jax.Array) -> Number:
    try:
        return read(value)
    # A later step may have donated the logged array.
    except RuntimeError as error:
        error.add_note(f"MetricsLog: {name} of step {step} could not be read any more.")
        raise


def _board(tensorboard: bool | BoardWriter | None, directory: Path) -> BoardWriter | None:
    if tensorboard is None or tensorboard is False:
        return None
    if tensorboard is not True:
        if not (hasattr(tensorboard, "add_scalar") and hasattr(tensorboard, "flush")):
            raise TypeError(f"MetricsLog: tensorboard is {tensorboard!r}, without add_scalar or flush.")
        return tensorboard
    try:
        module = import_module("tensorboardX")
    except ImportError as error:
        raise ImportError(
            "MetricsLog: tensorboard=True needs tensorboardX: pip install tensorboardX."
        ) from error
    writer: BoardWriter = module.SummaryWriter(str(directory))
    return writer
