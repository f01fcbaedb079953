"""The class: when to save, what to do when it fails, and which step to come back to."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Generic, Literal, NamedTuple, TypeVar

from .._training.watchdog import reached
from .._typing import PyTree
from ..errors import CheckpointError
from .background import Background
from .item import StatefulItem, TreeItem, item_of
from .ranks import Outcomes, agree, check_alike, preempted, rank, size, take_along
from .reading import Values, read_step
from .snapshot import Snapshot, on_host, snapshot
from .step import Arrays, Damage, Parts, State, check_step
from .store import Store
from .warn import warn

REQUEUE = 75
"""EX_TEMPFAIL: the state is saved, start me again. `jaxpar launch` and batch systems understand it."""


T = TypeVar("T")


class _Attempt(Generic[T]):
    """What a function returned or raised; calling it does the same."""

    def __init__(self, work: Callable[[], T]):
        self._error: Exception | None = None
        try:
            self._result = work()
        except Exception as error:
            self._error = error

    def __call__(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def failed(self) -> bool:
        return self._error is not None


class Restored(NamedTuple):
    """What `Checkpointer.restore` read: the step, and the items that are trees."""

    step: int
    trees: dict[str, PyTree]


class Checkpointer:
    """Saves a training run while it goes on, and resumes it with the same numbers.

    ```python
    with jaxpar.Checkpointer("run", save_every=100) as checkpointer:
        start = 0
        if checkpointer.latest_step() is not None:
            start = checkpointer.restore(net=net, optimizer=optimizer, rngs=rngs, loader=loader).step + 1
        for step in range(start, steps):
            ...
            checkpointer.save(step, net=net, optimizer=optimizer, rngs=rngs, loader=loader)
    ```

    Args:
      directory: a folder on a file system that all processes see; made if it is not there.
      max_to_keep: steps to keep, those with the highest numbers; None keeps all. Never removed are the
        step that was just saved, and what cannot be read.
      save_every: `save` does nothing at other steps than the multiples of this.
      asynchronous: whether the bytes are written while training goes on.
      on_save_error: `"raise"`, or `"warn"` to train on when a step cannot be written.

    With several processes all of them call every method; rank 0 writes, all read. One process at a time
    saves to a directory: the first `save` locks it, until `close` or the end of the process.

    Raises:
      CheckpointError: `directory` is a file.

    torch counterpart: `torch.save` and `torch.load`, which promise none of this.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_to_keep: int | None = 3,
        save_every: int = 1,
        asynchronous: bool = True,
        on_save_error: Literal["raise", "warn"] = "raise",
    ):
        if on_save_error not in ("raise", "warn"):
            raise ValueError(f"Checkpointer: on_save_error is 'raise' or 'warn', not {on_save_error!r}.")
        for name, number in (("save_every", save_every), ("max_to_keep", max_to_keep)):
            if number is None and name == "max_to_keep":
                continue
            if not isinstance(number, int):
                raise TypeError(f"Checkpointer: {name} is {number!r}; it must be a whole number.")
            if number < 1:
                raise ValueError(f"Checkpointer: {name} is {number}; it must be 1 or more.")
        self.directory = Path(os.path.abspath(os.fspath(directory)))
        self.save_every, self.asynchronous, self.on_save_error = save_every, asynchronous, on_save_error
        self._store = Store(self.directory, max_to_keep)
        self._background = Background()
        self._outcomes = Outcomes(self.directory)
        self._pending: int | None = None
        """Of every rank but 0: the step that it saved last, until it knows what became of it."""

    # ------------------------------------------------------------------------------------------- saving

    def save(self, step: int, /, *, force: bool = False, **items: PyTree) -> bool:
        """Saves a step, if it is one to save.

        What is saved is what the items hold now: they may change as soon as this returns. If the save
        before is still being written, this waits for it. After a SIGTERM to any process the step is saved in
        any case and written to the end, and the process exits with code 75. A damaged step of the same
        number is renamed and kept.

        Args:
          step: the number of the step.
          force: saves it whatever `save_every` says.
          items: NNX modules (also in `DataParallel` and the like), `nnx.Optimizer`, `nnx.Rngs`; pytrees;
            objects with `state_dict` and `load_state_dict`, or with `get_state` and `set_state`.

        Returns:
          Whether the step was saved, or is being written.

        Raises:
          CheckpointError: the step exists; the disk is full; an item whose state cannot be had; another
            process saves to the directory; the save before could not be written. With
            `on_save_error="warn"` the disk's errors are warnings.
          SystemExit: with code 75, after a SIGTERM.
        """
        step = operator.index(step)
        if step < 0:
            raise ValueError(f"Checkpointer.save: the step is {step}; it must be 0 or more.")
        leaving = preempted(step)
        if not (leaving or force or step % self.save_every == 0):
            return False
        if not items:
            raise TypeError("Checkpointer.save: there is nothing to save; pass items by name: net=net.")
        taken = _Attempt(lambda: snapshot(items))
        together = leaving or taken.failed or bool(taken().own)
        came, started = self._begin(step, taken, together)
        if leaving or not self.asynchronous:
            started = self.wait() and started
        if leaving and len(came) < size():
            take_along(f"rank 0 has saved step {step} after a SIGTERM, and ends all ranks.", REQUEUE)
        if leaving:
            raise SystemExit(REQUEUE)
        return started

    def _begin(self, step: int, taken: _Attempt[Snapshot], together: bool) -> tuple[list[int], bool]:
        """The ranks that take part, as far as that matters, and whether the step is being written."""
        arrays: Arrays = {}

        def take() -> tuple[int, State, dict[str, str], str | None, str | None]:
            found, before, full = taken(), None, None
            if rank() == 0:
                arrays.update(on_host(found.arrays))
                before = self._background.wait()
                self._make_way(step)
                full = self._store.full(step, arrays)
            return step, found.small, found.digests, before, full

        if rank() == 0:
            self._outcomes.begin()
        else:
            self._pending = step
        try:
            answers = agree("Checkpointer.save", self.directory, take, together)
            steps, states, digests, (before, *_), (full, *_) = zip(*answers.values(), strict=True)
            if len(set(steps)) > 1:
                raise CheckpointError(
                    f"Checkpointer.save: the ranks save different steps: {list(steps)}. All must call it "
                    "with the same one."
                )
            check_alike(digests)
            self._complain(before)
            self._complain(full)
        except Exception as error:
            self._pending = None
            if rank() == 0:
                self._outcomes.tell(step, str(error))
            raise
        if full is None and rank() == 0:
            parts: Parts | None = None
            if together and len(answers) < size():
                parts = {"ranks": list(answers), "size": size(), "items": taken().own}
            once = states[:1] if all(state == states[0] for state in states) else states
            self._background.start(lambda: self._write(step, arrays, list(once), parts))
        return list(answers), full is None

    def _write(self, step: int, arrays: Arrays, states: list[State], parts: Parts | None) -> None:
        trouble = ""
        try:
            self._store.write(step, arrays, states, parts)
        except Exception as error:
            trouble = str(error)
            raise
        finally:
            self._outcomes.tell(step, trouble)

    def _make_way(self, step: int) -> None:
        """Locks the directory, and sets a step aside whose number is needed, if it is damaged. That is found
        out here and now: a disk that failed while `restore` was looking may have come back since."""
        self._store.open()
        if step not in self._store.steps():
            return
        try:
            check_step(self._store.path(step))
        except Damage as damage:
            aside = self._store.set_aside(step)
            warn(
                f"Checkpointer.save: step {step} in {self.directory} is damaged, and was renamed to "
                f"{aside.name}: {damage}."
            )
        else:
            raise CheckpointError(
                f"Checkpointer.save: step {step} exists in {self.directory}. A step is never written over: "
                "restore the newest one and go on from there, or use another directory."
            )

    def _complain(self, trouble: str | None) -> None:
        if trouble and self.on_save_error == "raise":
            raise CheckpointError(trouble)
        if trouble:
            warn(trouble)

    def wait(self) -> bool:
        """Waits until the step that is being written is on disk.

        Returns:
          Whether it is. Raises CheckpointError if not, unless `on_save_error="warn"`.
        """
        trouble = self._background.wait()
        if self._pending is not None:
            step, self._pending = self._pending, None
            trouble = self._outcomes.ask(step)
        self._complain(trouble)
        return trouble is None

    def close(self) -> None:
        """Waits, and lets other processes save to the directory. Leaving a `with` block does this."""
        try:
            self.wait()
        finally:
            if self._background.idle:  # after a Ctrl-C while waiting, the step is still being written
                self._store.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        # The other ranks may not come here, and the error that is on its way matters more.
        trouble = self._background.wait()
        self._store.close()
        if trouble and error is not None:
            error.add_note(trouble)

    # ---------------------------------------------------------------------------------------- restoring

    def latest_step(self) -> int | None:
        """The newest step that is complete on disk, or None. Reads the folder's names, no bytes."""
        return max(self._store.steps(), default=None)

    def latest_valid(self) -> int | None:
        """The newest step of which every file has the bytes that were written, or None.

        Warns of every newer one that has not. Reads all bytes of the steps that it looks at.
        """
        self._background.join()
        for step in reversed(self._store.steps()):
            try:
                check_step(self._store.path(step))
            except Damage as damage:
                warn(f"Checkpointer.latest_valid: step {step} is damaged: {damage}.")
            else:
                return step
        return None

    def restore(self, step: int | None = None, /, *, strict_dtype: bool = True, **items: PyTree) -> Restored:
        """Puts a step's state into the items.

        Everything is read, compared leaf by leaf (names, shapes, dtypes) and checked against its digest
        before the first item changes. Arrays go where those are that they replace, so the number of
        devices may be another one.

        Args:
          step: the step; the newest one whose digests verify if left out, with a warning that names
            what is wrong with each newer one.
          strict_dtype: whether another dtype is an error, or converted with a warning.
          items: as given to `save`, or some of them. NNX objects and objects with a state are updated in
            place; a tree gives structure, shapes and dtypes (`jax.ShapeDtypeStruct`s will do) and another
            one is returned.

        Returns:
          `Restored(step, trees)`.

        Raises:
          CheckpointError: no such step; damaged; another object than the one that was saved; the newest
            step is of another format, which another version of jaxpar reads.
        """
        if not items:
            raise TypeError("Checkpointer.restore: there is nothing to restore; pass items by name: net=net.")
        self._background.join()
        held = {name: item_of(name, given) for name, given in items.items()}
        values: Values = {}

        def read(at: int | None) -> int:
            found, new = read_step(self._store, at, held, strict_dtype)
            values.update(new)
            return found

        answers = agree("Checkpointer.restore", self.directory, lambda: read(step) if rank() == 0 else -1)
        chosen = answers[0]
        if len(answers) > 1:
            agree("Checkpointer.restore: read", self.directory, lambda: rank() == 0 or read(chosen))
        # What may refuse its state goes first, so that nothing has changed if it does.
        order = sorted(held, key=lambda name: not isinstance(held[name], StatefulItem))
        put = {name: held[name].put(values[name]) for name in order}
        reached(chosen)
        return Restored(chosen, {name: put[name] for name in held if isinstance(held[name], TreeItem)})
