"""The class: when to save, what to do when it fails, and which step to come back to."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from .._training.watchdog import reached
from .._typing import PyTree
from ..errors import CheckpointError
from .background import Background
from .item import item_of
from .manifest import FORMAT, Damage, check_files, describe, read_manifest
from .ranks import agree, preempted, rank, size
from .reading import exactly, newest
from .snapshot import on_host, small_of
from .store import HostArrays, Store

REQUEUE = 75
"""EX_TEMPFAIL: the state is saved, start me again. `jaxpar launch` and batch systems understand it."""


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
      max_to_keep: steps to keep; None keeps all.
      save_every: `save` does nothing at other steps than the multiples of this.
      asynchronous: whether the bytes are written while training goes on.
      on_save_error: `"raise"`, or `"warn"` to train on when a step cannot be written.

    With several processes all of them call every method; rank 0 writes, all read.

    Raises:
      CheckpointError: `directory` is a file or cannot be made.

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
            if number is not None and number < 1:
                raise ValueError(f"Checkpointer: {name} is {number}; it must be 1 or more.")
        self.directory = Path(os.path.abspath(os.fspath(directory)))
        self.save_every, self.asynchronous, self.on_save_error = save_every, asynchronous, on_save_error
        self._store = Store(self.directory, max_to_keep)
        self._background = Background()
        self._damaged: set[int] = set()

    # ------------------------------------------------------------------------------------------- saving

    def save(self, step: int, /, *, force: bool = False, **items: Any) -> bool:
        """Saves a step, if it is one to save.

        What is saved is what the items hold now: they may change as soon as this returns. If the save
        before is still being written, it is waited for. After a SIGTERM to any process the step is saved in
        any case and written to the end, and the process exits with code 75.

        Args:
          step: the number of the step.
          force: saves it whatever `save_every` says.
          items: NNX modules (also in `DataParallel` and the like), `nnx.Optimizer`, `nnx.Rngs`; pytrees;
            objects with `state_dict` and `load_state_dict`, or with `get_state` and `set_state`.

        Returns:
          Whether the step was saved, or is being written.

        Raises:
          CheckpointError: the step exists; the disk is full; an item whose state cannot be had; the save
            before could not be written. With `on_save_error="warn"` the disk's errors are warnings.
          SystemExit: with code 75, after a SIGTERM.
        """
        step = _checked_step(step)
        leaving = preempted(step)
        if not (leaving or force or step % self.save_every == 0):
            return False
        if not items:
            raise TypeError("Checkpointer.save: there is nothing to save; pass items by name: net=net.")
        started = self._begin(step, items)
        if leaving or not self.asynchronous:
            started = self.wait() and started
        if leaving:
            raise SystemExit(REQUEUE)
        return started

    def _begin(self, step: int, items: Mapping[str, Any]) -> bool:
        error: CheckpointError | None = None
        small: dict[str, Any] = {}
        troubles: list[str] = []
        kinds: dict[str, str] = {}
        arrays: HostArrays = {}
        room = True
        try:
            held = {name: item_of(name, given) for name, given in items.items()}
            leaves = {name: item.leaves() for name, item in held.items()}
            kinds = {name: item.kind for name, item in held.items()}
            small = {name: small_of(name, each) for name, each in leaves.items()}
            if rank() == 0:
                arrays = {name: on_host(name, each) for name, each in leaves.items()}
                troubles, room = self._prepare(step, arrays)
        except CheckpointError as found:
            error = found
        answers = agree("Checkpointer.save", [step, small, troubles, room], error)
        _check_one_step([answer[0] for answer in answers])
        _, _, troubles, room = answers[0]
        self._complain(troubles)
        if room and rank() == 0:
            states = [answer[1] for answer in answers]
            self._background.start(lambda: self._write(step, kinds, arrays, states))
        return room

    def _prepare(self, step: int, arrays: HostArrays) -> tuple[list[str], bool]:
        """Rank 0: what went wrong with the save before, and whether there is room for this one."""
        before = self._background.wait()
        for damaged in self._damaged:  # a step that could not be restored makes room for its successor
            self._store.discard(damaged)
        self._damaged.clear()
        self._store.open()
        if step in self._store.steps():
            raise CheckpointError(
                f"Checkpointer.save: step {step} exists in {self.directory}. A step is never written over: "
                "restore the newest one and go on from there, or use another directory."
            )
        try:
            self._store.check_space(step, sum(x.nbytes for each in arrays.values() for x in each.values()))
        except CheckpointError as full:
            return [*([str(before)] if before else []), str(full)], False
        return [str(before)] if before else [], True

    def _write(self, step: int, kinds: Mapping[str, str], arrays: HostArrays, states: list[Any]) -> None:
        items = {
            name: {"kind": kinds[name], "arrays": {leaf: describe(x) for leaf, x in each.items()}}
            for name, each in arrays.items()
        }
        if all(state == states[0] for state in states):
            states = states[:1]
        self._store.write(step, arrays, {"format": FORMAT, "step": step, "items": items, "states": states})
        reached(step)

    def _complain(self, troubles: list[str]) -> None:
        for trouble in troubles:
            if self.on_save_error == "raise":
                raise CheckpointError(trouble)
            warnings.warn(trouble, stacklevel=4)

    def wait(self) -> bool:
        """Waits until the step that is being written is on disk.

        Returns:
          Whether it is. Raises CheckpointError if not, unless `on_save_error="warn"`.
        """
        before = self._background.wait() if rank() == 0 else None
        (trouble, *_) = agree("Checkpointer.wait", None if before is None else str(before))
        self._complain([trouble] if trouble else [])
        return trouble is None

    def close(self) -> None:
        """Waits, and gives orbax's threads back. Leaving a `with` block does this."""
        try:
            self.wait()
        finally:
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
        if trouble is not None and error is not None:
            error.add_note(str(trouble))

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
                read_manifest(self._store.path(step))
                check_files(self._store.path(step))
            except (Damage, FileNotFoundError) as damage:
                warnings.warn(f"Checkpointer.latest_valid: step {step} is damaged: {damage}.", stacklevel=2)
            else:
                return step
        return None

    def restore(self, step: int | None = None, /, *, strict_dtype: bool = True, **items: Any) -> Restored:
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
          CheckpointError: no such step; damaged; another object than the one that was saved.
        """
        if not items:
            raise TypeError("Checkpointer.restore: there is nothing to restore; pass items by name: net=net.")
        self._background.join()
        held = {name: item_of(name, given) for name, given in items.items()}
        error, read = None, None
        if rank() == 0:
            try:
                read = (
                    newest(self._store, held, strict_dtype, self._damaged)
                    if step is None
                    else exactly(self._store, step, held, strict_dtype)
                )
            except CheckpointError as found:
                error = found
        (chosen, *_) = agree("Checkpointer.restore", None if read is None else read[0], error)
        if read is None:
            try:
                read = exactly(self._store, chosen, held, strict_dtype)
            except CheckpointError as found:
                error = found
        if size() > 1:
            agree("Checkpointer.restore: read", None, error)
        assert read is not None
        values = read[1]
        # What may refuse its state goes first, so that nothing has changed if it does.
        order = sorted(held, key=lambda name: held[name].kind != "state")
        put = {name: held[name].put(values[name]) for name in order}
        reached(chosen)
        return Restored(chosen, {name: put[name] for name in held if held[name].kind == "tree"})


def _checked_step(step: Any) -> int:
    step = operator.index(step)
    if step < 0:
        raise ValueError(f"Checkpointer.save: the step is {step}; it must be 0 or more.")
    return step


def _check_one_step(steps: list[int]) -> None:
    if len(set(steps)) > 1:
        raise CheckpointError(
            f"Checkpointer.save: the ranks save different steps: {steps}. All must call it with the same one."
        )
