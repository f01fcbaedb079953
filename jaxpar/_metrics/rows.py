"""Rows of numbers in an append-only file: whole lines, one system call each.

Lines of a killed process survive; a power failure may leave a torn last line, which is dropped later.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from ..errors import MetricError

if TYPE_CHECKING:
    import jax


Number = bool | int | float


def check_scalar(value: object, name: str, function: str) -> None:
    """Raise MetricError unless `value` is a single real number; never waits for a device."""
    if isinstance(value, Number | np.number | np.bool_) and not isinstance(value, np.complexfloating):
        return
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.core.Tracer):
        raise MetricError(
            f"{function}: {name} is being traced: it has a value only when the compiled function runs. "
            "Return it from the function and pass the result."
        )
    if not isinstance(value, np.ndarray) and not is_device_array(value):
        raise MetricError(
            f"{function}: {name} is {value!r:.40} of type {type(value).__qualname__}, and a metric is a "
            "number or an array with a single one."
        )
    if value.shape != ():
        raise MetricError(
            f"{function}: {name} has shape {tuple(value.shape)}, and a metric is one number. Take its mean "
            "or sum, or give each value a name of its own."
        )
    # The dtype of JAX's random keys has no `kind`. bfloat16's is V, which is accepted.
    if getattr(value.dtype, "kind", "O") in "cOSUmM":
        raise MetricError(f"{function}: {name} has dtype {value.dtype}, and a metric is a real number.")
    if not isinstance(value, np.ndarray):
        _check_array(value, name, function)


def is_device_array(value: object) -> TypeGuard[jax.Array]:
    # By attribute, because isinstance would need JAX to be imported.
    return hasattr(value, "is_deleted")


def _check_array(value: jax.Array, name: str, function: str) -> None:
    if value.is_deleted():
        raise MetricError(
            f"{function}: {name} was donated to a later computation or deleted; pass the value before, or "
            "keep the one that the computation returned."
        )
    if not value.is_fully_addressable and not value.is_fully_replicated:
        raise MetricError(
            f"{function}: {name} is spread over several processes. Make it the same on all of them first: "
            "jaxpar.distributed.all_reduce, or a mean inside of the step."
        )


def is_ready(value: object) -> bool:
    """Return whether reading a value waits for nothing; true for host numbers and deleted arrays."""
    if not is_device_array(value) or value.is_deleted():  # a deleted array raises if it is asked
        return True
    return value.is_ready()  # type: ignore[attr-defined]  # JAX declares it for its own class only


def read(value: object) -> Number:
    """Return the Python number; waits for a device array that is not ready."""
    array = np.asarray(value)
    # bfloat16 is not a float to NumPy: `item` would return an ml_dtypes scalar.
    return array.item() if array.dtype.kind in "biu" else float(array.astype(np.float64))


Row = tuple[int, dict[str, Number]]
"""A step and its values."""

ODD = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Floats without a JSON number, named as in JavaScript."""


class Json:
    """One JSON object per line; NaN and the infinities are strings."""

    def header(self, columns: Sequence[str]) -> str:
        return ""

    def line(self, row: Row, columns: Sequence[str]) -> str:
        values = {name: self._text(value) for name, value in row[1].items()}
        return json.dumps({"step": row[0], **values}, ensure_ascii=False, allow_nan=False) + "\n"

    def _text(self, value: Number) -> Number | str:
        if not isinstance(value, float) or math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

    def parse(self, lines: Iterable[str]) -> Iterator[Row]:
        for line in lines:
            values = json.loads(line)
            step = values.pop("step")
            yield step, {k: ODD[v] if isinstance(v, str) else v for k, v in values.items()}


class Csv:
    """A table with a column for `step` and each of `columns`. Absent values are empty cells."""

    def header(self, columns: Sequence[str]) -> str:
        return self._join(["step", *columns])

    def line(self, row: Row, columns: Sequence[str]) -> str:
        step, values = row
        # repr keeps all digits of a float, and True distinct from 1.
        return self._join([step, *(repr(values[c]) if c in values else "" for c in columns)])

    def _join(self, cells: Sequence[object]) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerow(cells)
        return out.getvalue()

    def parse(self, lines: Iterable[str]) -> Iterator[Row]:
        rows = csv.reader(lines)
        columns = next(rows, ["step"])[1:]
        for step, *cells in rows:
            pairs = zip(columns, cells, strict=True)
            yield int(step), {name: _number(cell) for name, cell in pairs if cell}


def _number(cell: str) -> Number:
    if cell in ("True", "False"):
        return cell == "True"
    try:
        return int(cell)
    except ValueError:
        return float(cell)


class File:
    """A file of rows: read when it is opened, then only appended to."""

    def __init__(self, path: Path, form: Json | Csv) -> None:
        self.path, self.form = path, form
        self.columns: list[str] = []
        self._file: io.FileIO | None = None

    def rows(self) -> Iterator[Row]:
        """Yield the rows on disk, without a torn last line; MetricError for a line that is not a row."""
        if not self.path.exists():
            return
        # A torn line may end inside a UTF-8 character: reading it must not raise before the line is dropped.
        with open(self.path, encoding="utf-8", newline="", errors="replace") as file:
            complete = (line for line in file if line.endswith("\n"))
            number = 0

            def counted() -> Iterator[str]:
                nonlocal number
                for number, line in enumerate(complete, 1):  # noqa: B007
                    yield line

            try:
                yield from self.form.parse(counted())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise MetricError(
                    f"MetricsLog: line {number} of {self.path} is not a row of metrics ({error}). Move the "
                    "file away, or take the line out."
                ) from error

    def write(self, rows: Callable[[], Iterator[Row]], more: Sequence[str] = ()) -> None:
        """Replace the file by these rows atomically; `more`: columns that no row has yet."""
        self.close()
        names = (name for _, values in rows() for name in values)
        self.columns = list(dict.fromkeys([*self.columns, *names, *more]))
        partial = self.path.with_name(self.path.name + ".partial")
        with _named(partial), open(partial, "w", encoding="utf-8", newline="") as file:
            file.write(self.form.header(self.columns))
            file.writelines(self.form.line(row, self.columns) for row in rows())
            file.flush()
            # Otherwise a power failure after the rename could leave an empty log.
            os.fsync(file.fileno())
        os.replace(partial, self.path)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def append(self, row: Row) -> None:
        more = [name for name in row[1] if name not in self.columns]
        # JSON lines have no header and need no rewrite.
        if more and self.form.header(more):
            self.write(self.rows, more)  # a table gets a column: its header is written again
        self.columns += [name for name in more if name not in self.columns]
        assert self._file is not None
        with _named(self.path):
            _append(self._file, self.form.line(row, self.columns).encode())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _append(file: io.FileIO, line: bytes) -> None:
    """Append a whole line or nothing: a full disk may accept a part, which would corrupt the next line."""
    size, remaining = os.fstat(file.fileno()).st_size, memoryview(line)
    try:
        while remaining:
            # An unbuffered write may accept a part without an error; the next one then raises.
            remaining = remaining[file.write(remaining) :]
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the file's name to write errors; the system names only files that it could not open."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise
