"""Save steps to one directory: the ranks agree first, then a thread writes."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401, must be imported before `_finish` is registered below
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import jax
import numpy as np

from .._arguments import warn
from .._tree import check_alive, is_array
from .._typing import PyTree
from .._upstream import before_thread_pools_close
from ..distributed.group import rank, size
from ..errors import CheckpointError
from .item import StatefulItem, item_of
from .json_values import Array, encode, flat_bytes, is_storable
from .ranks import Outcomes, agree, check_equal, of_rank
from .step import Arrays, Damage, Metric, Parts, State, check_step, digest
from .store import Store


class RankReport(NamedTuple):
    """A rank's report about the step that it saves; only rank 0 fills in the last three fields."""

    step: int
    state: State
    digests: dict[str, str]
    previous_error: str | None
    disk_error: str | None
    accepted: bool


class Saver:
    def __init__(self, store: Store, on_save_error: Literal["raise", "warn"]):
        self._store, self._on_save_error = store, on_save_error
        self._background = Background()
        self._outcomes = Outcomes(store.directory)
        self._pending: int | None = None
        """On ranks other than 0, the last saved step until its outcome is received."""

    def begin(
        self,
        step: int,
        items: Mapping[str, PyTree],
        *,
        together: bool,
        metric: Metric | None = None,
        overwrite: bool = False,
    ) -> tuple[list[int], bool]:
        """Start writing a step; raises as `Checkpointer.save`.

        `together` makes ranks wait for each other even if they have nothing to exchange. With a `metric`, the
        step is written only if that is among the best; `overwrite` replaces an existing step. Returns the
        ranks that take part, if they had to meet, and whether the step is being written.
        """
        contents, failure = _snapshot_or_error(items)
        together = together or contents is None or bool(contents.per_rank)
        # Filled on rank 0 inside `make_report`, so that a failed transfer is reported to all ranks too.
        arrays: Arrays = {}

        def make_report() -> RankReport:
            if failure is not None:
                raise failure
            assert contents is not None
            previous_error = disk_error = None
            accepted = True
            if rank() == 0:
                previous_error = self._background.wait()
                self._store.open()
                accepted = self._store.accepts(metric)
                if accepted:
                    arrays.update(on_host(contents.arrays))
                    self._make_way(step, overwrite or metric is not None)
                    disk_error = self._store.disk_error(step, arrays)
            return RankReport(step, contents.small, contents.digests, previous_error, disk_error, accepted)

        if rank() == 0:
            self._outcomes.begin()
        else:
            self._pending = step
        try:
            answers = agree("Checkpointer.save", self._store.directory, make_report, together)
            reports = {i: RankReport(*answer) for i, answer in answers.items()}
            first, *_ = reports.values()
            self._check(list(reports.values()))
        except Exception as error:
            self._pending = None
            if rank() == 0:
                self._outcomes.report(step, str(error))
            raise
        started = first.accepted and first.disk_error is None
        if not started:
            self._pending = None
        elif rank() == 0:
            assert contents is not None
            # Without values that differ between ranks, a rank that did not take part lacks nothing.
            parts: Parts | None = None
            if together and len(reports) < size():
                parts = {"ranks": list(reports), "size": size(), "items": contents.per_rank}
            states = [report.state for report in reports.values()]
            distinct = states[:1] if all(state == states[0] for state in states) else states
            self._background.start(lambda: self._write(step, arrays, distinct, parts, metric))
        return list(reports), started

    def _check(self, reports: list[RankReport]) -> None:
        steps = [report.step for report in reports]
        if len(set(steps)) > 1:
            raise CheckpointError(
                f"Checkpointer.save: the ranks save different steps: {steps}. All must call it with the same "
                "one."
            )
        check_equal([report.digests for report in reports])
        self._complain(reports[0].previous_error)
        self._complain(reports[0].disk_error)

    def _write(
        self, step: int, arrays: Arrays, states: list[State], parts: Parts | None, metric: Metric | None
    ) -> None:
        trouble = ""
        try:
            self._store.write(step, arrays, states, parts, metric)
        except Exception as error:
            trouble = str(error)
            raise
        finally:
            self._outcomes.report(step, trouble)

    def _make_way(self, step: int, overwrite: bool) -> None:
        if step not in self._store.steps():
            return
        try:
            # Checked again, because a disk that failed during `restore` may work again.
            check_step(self._store.path(step))
        except Damage as damage:
            aside = self._store.set_aside(step)
            warn(
                f"Checkpointer.save: step {step} in {self._store.directory} is damaged, and was renamed to "
                f"{aside.name}: {damage}."
            )
        else:
            # A better step with the same number was trained again after an interruption.
            if not overwrite:
                raise CheckpointError(
                    f"Checkpointer.save: step {step} exists in {self._store.directory}. Go on from the "
                    "newest step, use another directory, or replace this one: overwrite=True."
                )

    def _complain(self, trouble: str | None) -> None:
        if trouble and self._on_save_error == "raise":
            raise of_rank(0, CheckpointError(trouble))  # the only rank that writes
        if trouble:
            warn(trouble)

    def join(self) -> None:
        self._background.join()

    def wait(self) -> bool:
        """Wait for the running write and return whether the step is on disk; raises as `_complain`."""
        trouble = self._background.wait()
        if self._pending is not None:
            step, self._pending = self._pending, None
            trouble = self._outcomes.receive(step)
        self._complain(trouble)
        return trouble is None

    def close(self) -> None:
        if self._background.idle:  # after a Ctrl-C during `wait`, the step is still being written
            self._store.close()

    def abandon(self) -> str | None:
        trouble = self._background.wait()
        self._store.close()
        return trouble


def _snapshot_or_error(items: Mapping[str, PyTree]) -> tuple[StateSnapshot | None, Exception | None]:
    try:
        return snapshot(items), None
    except Exception as error:  # raised again in `agree`, on all ranks
        return None, error


class Background:
    """Runs one write job at a time in a thread and stores its error until `wait`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        _all.add(self)

    @property
    def idle(self) -> bool:
        return self._thread is None

    def start(self, job: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(job,), name="jaxpar-checkpointer")
        self._thread.start()

    def wait(self) -> str | None:
        """Wait for the running job, if any, and return the text of its exception once."""
        self.join()
        trouble, self._trouble = self._trouble, None
        return trouble

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()  # a Ctrl-C while joining leaves the job running
            self._thread = None

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            # The text alone: the exception would keep the arrays of its frames alive until the next save.
            self._trouble = str(error)


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _finish() -> None:
    for background in list(_all):
        if trouble := background.wait():
            print(f"jaxpar.Checkpointer: at exit: {trouble}", file=sys.stderr)


# orbax writes with thread pools, which must still work while the last step is finished.
before_thread_pools_close(_finish)


class StateSnapshot(NamedTuple):
    """The items' values at one moment, by item and leaf; `arrays` still refers to the items' own arrays.

    With several ranks, `digests` covers the large arrays in state dicts. `per_rank` lists items that may
    differ between ranks.
    """

    small: State
    arrays: dict[tuple[str, str], Array]
    digests: dict[str, str]
    per_rank: list[str]


def snapshot(items: Mapping[str, PyTree]) -> StateSnapshot:
    contents = StateSnapshot({}, {}, {}, [])
    for name, source in items.items():
        item = item_of(name, source)
        small = contents.small[name] = {}
        if isinstance(item, StatefulItem):
            large: dict[str, Array] = {}
            small["state"] = {"value": encode(item.give(), name, "state", large), "stream": False}
            contents.arrays.update({(name, leaf): value for leaf, value in large.items()})
            # Hashing needs the bytes on the host, so a single process skips it.
            if size() > 1:
                for leaf, value in large.items():
                    x = np.asarray(_local(f"{name}: {leaf}", value))
                    contents.digests[f"{name}: {leaf}"] = f"{x.dtype}{x.shape} {digest(flat_bytes(x).data)}"
            if not item.replicated:
                contents.per_rank.append(name)
            continue
        for leaf, (value, stream, _) in item.leaves(complete=True).items():
            # Random streams stay small values even if they are arrays, since they may differ between ranks.
            if is_array(value) and not stream and value.size and is_storable(value):
                contents.arrays[name, leaf] = value
            else:
                small[leaf] = {"value": encode(value, name, leaf), "stream": stream}
        if small and not item.replicated:
            contents.per_rank.append(name)
    return contents


def on_host(arrays: Mapping[tuple[str, str], Array]) -> Arrays:
    # A view of a CPU device's array suffices: as long as it exists, JAX allocates new memory for the results
    # of a computation to which the array is donated. A NumPy array's owner may write to it.
    local_arrays = {at: _local(": ".join(at), x) for at, x in arrays.items()}
    return {at: np.array(x) if isinstance(x, np.ndarray) else np.asarray(x) for at, x in local_arrays.items()}


def _local(name: str, x: Array) -> Array:
    """Return one copy of an array on this process's devices and start its transfer to the host."""
    check_alive([x], [name], "Checkpointer.save")
    if isinstance(x, jax.Array):
        if not x.is_fully_addressable:
            if not x.is_fully_replicated:
                raise CheckpointError(
                    f"Checkpointer.save: {name} is spread over several processes, and only rank 0 writes. "
                    "Gather it first (jax.experimental.multihost_utils.process_allgather)."
                )
            x = x.addressable_data(0)
        x.copy_to_host_async()  # start all transfers before waiting for one
    return x
