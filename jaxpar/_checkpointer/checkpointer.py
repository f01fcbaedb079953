"""The class: when to save, what to do when it fails, and which step to come back to."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from .._training.watchdog import reached
from .._typing import PyTree
from ..errors import CheckpointError
from .best import BEST, BestStore
from .item import TreeItem, item_of
from .metric import Metric
from .ranks import preempted, size, take_along
from .restoring import Restored as Restored
from .restoring import restore
from .saver import Saver
from .step import Damage, check_step
from .store import Store
from .warn import warn

REQUEUE = 75
"""EX_TEMPFAIL: the state is saved, start me again. `jaxpar launch` and batch systems understand it."""


class Checkpointer:
    """Saves a training run while it goes on, and resumes it with the same numbers.

    ```python
    with jaxpar.Checkpointer("run") as checkpointer:
        for epoch in checkpointer.epochs(90, net=net, optimizer=optimizer, loader=loader):
            ...
            checkpointer.save_best(epoch, accuracy, mode="max", net=net)
    ```

    `epochs` restores, goes on with the epoch after the last one that was finished, and saves. The same by
    hand, for steps as well:

    ```python
    for step in range(checkpointer.resume(net=net, optimizer=optimizer, loader=loader), steps):
        ...
        checkpointer.save(step, net=net, optimizer=optimizer, loader=loader)
    ```

    Args:
      directory: a folder on a file system that all processes see; made if it is not there.
      max_to_keep: steps to keep, those with the highest numbers; None keeps all. Never removed are the
        step that was just saved, and what cannot be read.
      keep_best: of what `save_best` saves, how many to keep; `max_to_keep` does not touch them.
      save_every: `save` does nothing at other steps than the multiples of this.
      asynchronous: whether the bytes are written while training goes on.
      on_save_error: `"raise"`, or `"warn"` to train on when a step cannot be written.

    With several processes rank 0 writes. It may call every method alone, as in torch's tutorials; what is
    something else on each rank is saved when all call. One process at a time saves to a directory: the first
    `save` locks it, until `close` or the end of the process.

    Raises:
      CheckpointError: `directory` is a file.

    torch counterpart: `torch.save` and `torch.load`, which promise none of this.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_to_keep: int | None = 3,
        keep_best: int = 1,
        save_every: int = 1,
        asynchronous: bool = True,
        on_save_error: Literal["raise", "warn"] = "raise",
    ):
        if on_save_error not in ("raise", "warn"):
            raise ValueError(f"Checkpointer: on_save_error is 'raise' or 'warn', not {on_save_error!r}.")
        numbers = {"save_every": save_every, "max_to_keep": max_to_keep, "keep_best": keep_best}
        for name, number in numbers.items():
            if number is None and name == "max_to_keep":
                continue
            if not isinstance(number, int):
                raise TypeError(f"Checkpointer: {name} is {number!r}; it must be a whole number.")
            if number < 1:
                raise ValueError(f"Checkpointer: {name} is {number}; it must be 1 or more.")
        self.directory = Path(os.path.abspath(os.fspath(directory)))
        self.save_every, self.asynchronous, self.on_save_error = save_every, asynchronous, on_save_error
        self._store = Store(self.directory, max_to_keep)
        self._saver = Saver(self._store, on_save_error)
        self._best_store = BestStore(self.directory / BEST, keep_best)
        self._best = Saver(self._best_store, on_save_error)

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
        step = _number(step, "save")
        leaving = preempted(step)
        if not (leaving or force or step % self.save_every == 0):
            return False
        if not items:
            raise TypeError("Checkpointer.save: there is nothing to save; pass items by name: net=net.")
        ranks, started = self._saver.begin(step, items, together=leaving)
        if leaving or not self.asynchronous:
            started = self.wait() and started
        if leaving and len(ranks) < size():
            take_along(f"rank 0 has saved step {step} after a SIGTERM, and ends all ranks.", REQUEUE)
        if leaving:
            raise SystemExit(REQUEUE)
        return started

    def save_best(
        self, step: int, metric: Any, /, *, mode: Literal["min", "max"] = "min", **items: PyTree
    ) -> bool:
        """Saves a step if it is among the `keep_best` best ones, by a metric, to the folder `best`.

        These steps are of a series of their own: `save` and `restore` do not see them. What was best before
        an interruption is compared, too.

        Args:
          step: as for `save`. metric: one number. Not a number is never the best, and of equal steps the
            earlier one is.
          mode: whether the best is the least ("min") or the largest ("max").
          items: as for `save`.

        With several processes rank 0's metric decides.

        Returns:
          Whether the step was saved.

        Raises:
          CheckpointError: as `save`; the steps there are of the other mode.

        torch counterpart: `if is_best: shutil.copyfile(..., "model_best.pth.tar")` of its imagenet example.
        """
        step, score = _number(step, "save_best"), Metric.of(metric, mode)
        if not items:
            raise TypeError("Checkpointer.save_best: there is nothing to save; pass items by name: net=net.")
        _, started = self._best.begin(step, items, together=True, metric=score)
        if started and not self.asynchronous:
            started = self._best.wait()
        return started

    def wait(self) -> bool:
        """Waits until what is being written is on disk.

        Returns:
          Whether it is. Raises CheckpointError if not, unless `on_save_error="warn"`.
        """
        both = [self._saver.wait(), self._best.wait()]
        return all(both)

    def close(self) -> None:
        """Waits, and lets other processes save to the directory. Leaving a `with` block does this."""
        try:
            self.wait()
        finally:
            self._saver.close()
            self._best.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        # The other ranks may not come here, and the error that is on its way matters more.
        for saver in (self._saver, self._best):
            trouble = saver.abandon()
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
        self._saver.join()
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
        self._saver.join()
        restored = restore(self._store, step, items, strict_dtype)
        reached(restored.step)
        return restored

    def restore_best(self, *, strict_dtype: bool = True, **items: PyTree) -> Restored:
        """Puts the best step's state into the items: the best one whose digests verify.

        Args, Returns and Raises: as `restore`.
        """
        if not items:
            raise TypeError("Checkpointer.restore_best: there is nothing to restore; pass items: net=net.")
        self._best.join()
        return restore(self._best_store, None, items, strict_dtype)

    def best_step(self) -> int | None:
        """The best step on disk, or None. Stop early with it, also after an interruption:

        ```python
        for epoch in checkpointer.epochs(90, net=net):
            if epoch - (checkpointer.best_step() or 0) > patience:
                break  # before the epoch, so that the last one is saved
        ```
        """
        self._best.join()
        return self._best_store.best()

    # --------------------------------------------------------------------------------------- going on

    def resume(self, **items: PyTree) -> int:
        """Restores the newest step into the items, if there is one.

        Returns:
          The step to go on with: the one after it, or 0.

        Raises:
          CheckpointError: as `restore`; an item is a tree, which cannot be updated in place.
        """
        for name, target in items.items():
            if isinstance(item_of(name, target), TreeItem):
                raise CheckpointError(
                    f"Checkpointer.resume: {name} is a tree, which cannot be updated in place. Give it to "
                    "restore, which returns another one and the `next` step."
                )
        return self.restore(**items).next if self.latest_step() is not None else 0

    def epochs(self, n: int, /, **items: PyTree) -> Iterator[int]:
        """The epochs that are left of `n`, from the one after the last that was finished.

        Before the first one the newest step is restored into the items. After each one, when the loop comes
        back for the next, it is saved; the last one whatever `save_every` says. So an epoch is never left out
        and, but for one in which the run ended or a `break` left the loop, never trained again.

        Args:
          n: epochs from the first start on. items: as for `resume`. All ranks iterate.
        """
        start = self.resume(**items)
        for epoch in range(start, n):
            yield epoch
            self.save(epoch, force=epoch == n - 1, **items)


def _number(step: int, function: str) -> int:
    step = operator.index(step)
    if step < 0:
        raise ValueError(f"Checkpointer.{function}: the step is {step}; it must be 0 or more.")
    return step
