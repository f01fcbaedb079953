"""Tap a training run: one line in a loop of torch or JAX writes statistics of every step to a file."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import tap_file
from .digests import row_digests, statistics
from .leaves import array_of, dtype_of, leaves, settings
from .operation_types import OperationType

PARTS = ("gradients", "parameters", "optimizer", "extra")
CODES = 1 << 13
"""Batches of so few integers, such as labels and tokens, are written full: they show shifted labels."""


class Tap:
    """Writes what a training run computes, so that `bisect` can compare it with another run.

    Call it once a step, after the update. Each record has statistics and sampled elements of every array, and
    a digest of every row of the batch; neither changes with the layout (channels first or last, transposed
    weights) or, for rows, with the type. A record is complete or ignored, whenever the process is killed.

    Args:
      folder: gets one file for each rank. A run that continues appends to its file; steps that it repeats
        replace the earlier ones.
      start, extra: the parameters and the buffers before the first step, as in a call; a module has both.
      full: the steps whose arrays are written in full.
      seed: draws the sampled elements. Runs that are compared need the same.
      rank, world: this process and how many there are; default to the variables RANK and WORLD_SIZE, or to
        `jax.process_index()` and `jax.process_count()` of an initialized `jax.distributed`.
      precisions: the types of the model's operations, from `precisions`.

    Raises:
      ValueError: `rank` is negative, or `world` less than 1. TypeError: `full` holds other things than steps.
      FileError: the rank's file is not one of taps.
      OSError: the folder cannot be written.

    torch counterpart: none. Where neither JAX nor jaxpar is installed, `recorder.py` has this class
    (`python -m jaxpar.parity.recorder --copy recorder.py`).

    >>> import tempfile, numpy as np
    >>> from jaxpar import parity
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tap = parity.Tap(folder)
    ...     tap(0, batch=np.ones((2, 3)), loss=0.5, parameters={"w": np.ones(3)}, rate=0.1)
    ...     tap.close()
    ...     run = parity.bisect(folder, folder)
    >>> run.same
    True
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        start: Any = None,
        extra: Any = None,
        full: Collection[int] = (),
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        precisions: Iterable[OperationType] = (),
    ):
        for name, number, least in (("rank", rank, 0), ("world", world, 1)):
            if number is not None and number < least:
                raise ValueError(f"parity.Tap: {name} is {number}; it must be at least {least}.")
        _check_steps(full)
        self.folder, self.full, self.seed = Path(folder), full, seed
        self._rank, self._world = rank, world
        self._types = [vars(x) for x in precisions]
        self._file: int | None = None
        self._tables: dict[Any, int] = {}
        self._settings: Any = None
        self._lock = threading.Lock()
        if start is not None:
            self._write_start(start, _buffers(start) if extra is None else extra)

    def __call__(
        self,
        step: int,
        *,
        batch: Any = None,
        loss: Any = None,
        gradients: Any = None,
        parameters: Any = None,
        rate: Any = None,
        optimizer: Any = None,
        extra: Any = None,
    ) -> None:
        """Write one step. Calls with the same step add to it: the rows of accumulated batches, other parts.

        In a traced function (`jax.jit`, `lax.scan`) a record is written whenever the call runs, and `step`
        may be traced, too. In `jax.shard_map` every device writes its rows.

        Args:
          step: counts updates.
          batch: arrays with a row for each example, nested as the loop has them: `(x, y)`.
          loss: a number.
          gradients: as they enter the optimizer; of a torch module, the gradients of its parameters.
          parameters: after the update; a torch or NNX module, or a pytree.
          rate: the learning rate of this update, or one for each group.
          optimizer: a torch optimizer, or optax's state.
          extra: further arrays, such as BatchNorm's running statistics; of a module, its buffers.

        Raises:
          TypeError: a leaf that is not an array of numbers, or that other processes hold.
        """
        trees = {"gradients": gradients, "parameters": parameters, "optimizer": optimizer, "extra": extra}
        named = getattr(parameters, "named_parameters", None)
        names = {id(p): name for name, p in named()} if callable(named) else {}
        trees |= {"batch": batch, "loss": loss, "rate": rate}
        arrays = {part: leaves(tree, part, names) for part, tree in trees.items() if tree is not None}
        if _has_tracers(step, arrays):
            import jax

            jax.debug.callback(lambda step, arrays: self(int(step), **arrays), step, arrays)
            return
        if isinstance(step, bool) or not isinstance(step, int | np.integer):
            raise TypeError(f"parity.Tap: step is {step!r}; it must be an integer that counts updates.")
        with self._lock:  # of traced calls, the devices' threads write
            self._write(int(step), arrays, settings(optimizer, names))

    def _write_start(self, parameters: Any, extra: Any) -> None:
        """Write the arrays before the first step."""
        trees = {"parameters": parameters, "extra": extra}
        self._write(None, {part: leaves(tree, part) for part, tree in trees.items()})

    def _write(
        self, step: int | None, leaves_of: Mapping[str, Mapping[str, Any]], described: Any = None
    ) -> None:
        """Write the leaves of each part, by name, and an optimizer's settings if these have changed."""
        if self._file is None:
            self._open()
        arrays: dict[str, np.ndarray] = {}
        for part, members in leaves_of.items():
            values = {name: array_of(x, f"{part}.{name}") for name, x in members.items()}
            if part == "batch":
                for name, x in values.items():
                    arrays |= self._batch_arrays(name, x, step)
            elif part in PARTS and values:
                table = self._table(
                    {
                        name: (x.shape, dtype_of(leaf))
                        for (name, x), leaf in zip(values.items(), members.values(), strict=True)
                    }
                )
                arrays[f"{part}/{table}"] = statistics(list(values.values()), self.seed)
                if step in self.full:
                    arrays |= {f"full/{part}/{name}": _plain(x) for name, x in values.items()}
            else:
                numbers = {name: x.astype(np.float64) for name, x in values.items()}
                arrays |= {f"{part}/{name}": x.mean() if x.size else x for name, x in numbers.items()}
        header: dict[str, Any] = {"kind": "step", "step": step}
        if described and described != self._settings:
            header["settings"] = self._settings = described
        self._append(header, {name: np.asarray(x) for name, x in arrays.items()})

    def _batch_arrays(self, name: str, x: np.ndarray, step: int | None) -> dict[str, np.ndarray]:
        arrays = {
            f"batch/{name}/rows": row_digests(x),
            f"batch/{name}/shape": np.asarray(x.shape, np.int64),
            f"batch/{name}/statistics": statistics([x], self.seed)[0],
        }
        if step in self.full or (x.dtype.kind in "iub" and x.size <= CODES):
            arrays[f"full/batch/{name}"] = _plain(x)
        return arrays

    def _table(self, members: Mapping[str, tuple[tuple[int, ...], str]]) -> int:
        """Return the number of a table of names, shapes and types, which is written once."""
        key = tuple((name, *entry) for name, entry in members.items())
        if key not in self._tables:
            self._tables[key] = len(self._tables)
            rows = [[name, list(shape), dtype] for name, (shape, dtype) in members.items()]
            self._append({"kind": "table", "id": self._tables[key], "rows": rows}, {})
        return self._tables[key]

    def _open(self) -> None:
        rank, world = self._rank, self._world
        jax = sys.modules.get("jax")
        if rank is None and "RANK" not in os.environ and jax and jax.distributed.is_initialized():
            rank, world = jax.process_index(), jax.process_count()
        rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        world = int(os.environ.get("WORLD_SIZE", 1)) if world is None else world
        self._file = tap_file.opened(self.folder / f"rank-{rank:05}.tap")
        self._append({"kind": "open", "rank": rank, "world": world, "seed": self.seed}, {})
        if self._types:
            self._append({"kind": "types", "rows": self._types}, {})

    def _append(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        assert self._file is not None
        record = memoryview(tap_file.encoded(header, arrays))
        while record:
            record = record[os.write(self._file, record) :]

    def close(self) -> None:
        """Close the file. A later call opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._tables.clear()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _has_tracers(step: Any, arrays: Mapping[str, Mapping[str, Any]]) -> bool:
    jax = sys.modules.get("jax")
    if jax is None:
        return False
    values = [x for members in arrays.values() for x in members.values()]
    return any(isinstance(x, jax.core.Tracer) for x in (step, *values))


def _check_steps(full: Any) -> None:
    is_wrong = isinstance(full, str | bytes) or not isinstance(full, Collection)
    if not is_wrong and not isinstance(full, range):
        is_wrong = any(isinstance(x, bool) or not isinstance(x, int | np.integer) for x in full)
    if is_wrong:
        raise TypeError(
            f"parity.Tap: full is {full!r:.60}; it must be a collection of steps, such as (0, 100)."
        )


def _buffers(start: Any) -> Any:
    buffers: Callable[..., Any] | None = getattr(start, "named_buffers", None)
    nnx = sys.modules.get("flax.nnx")
    return start if buffers is not None or (nnx is not None and isinstance(start, nnx.Module)) else None


def _plain(x: np.ndarray) -> np.ndarray:
    """Return an array of a type that NumPy has by itself."""
    return x if x.dtype.kind in "fiub" and x.dtype.isbuiltin == 1 else x.astype(np.float32)
