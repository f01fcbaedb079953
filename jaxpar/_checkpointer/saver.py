"""Save steps to one directory: the ranks agree first, then a thread writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from .._typing import PyTree
from ..errors import CheckpointError
from .background import Background
from .ranks import Outcomes, agree, check_equal, rank, size
from .snapshot import StateSnapshot, on_host, snapshot
from .step import Arrays, Damage, Metric, Parts, State, check_step
from .store import Store
from .warn import warn


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
            raise CheckpointError(trouble)
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
