"""The `Checkpointer` class: when to save, how to report failures, and which step to restore."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from .._arguments import Count, Positive, warn, whole
from .._training.watchdog import reached
from .._typing import PyTree
from ..errors import CheckpointError
from .item import TreeItem, item_of
from .ranks import preempted, size, take_along
from .reading import Restored as Restored
from .reading import restore
from .saver import Saver
from .step import Damage, Metric, check_step
from .store import BEST, BestStore, Store

P = ParamSpec("P")
T = TypeVar("T")


def _exclusive(
    method: Callable[Concatenate[Checkpointer, P], T],
) -> Callable[Concatenate[Checkpointer, P], T]:
    """Let one thread at a time use a Checkpointer. A signal handler may save in the middle of a save."""

    @functools.wraps(method)
    def exclusive(self: Checkpointer, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._threads:
            return method(self, *args, **kwargs)

    return exclusive


REQUEUE = 75
"""Exit code EX_TEMPFAIL, by which `jaxpar launch` and batch systems know that a job should be restarted."""


class Checkpointer:
    """Saves a training run in the background and resumes it with bit-identical results.

    ```python
    with jaxpar.Checkpointer("run") as checkpointer:
        for epoch in checkpointer.epochs(90, net=net, optimizer=optimizer, loader=loader):
            ...
            checkpointer.save_best(epoch, accuracy, mode="max", net=net)
    ```

    `epochs` restores the newest step, continues with the following epoch, and saves after each epoch. The
    same loop by hand, which also works for steps:

    ```python
    for step in range(checkpointer.resume(net=net, optimizer=optimizer, loader=loader), steps):
        ...
        checkpointer.save(step, net=net, optimizer=optimizer, loader=loader)
    ```

    Args:
      directory: a folder on a file system shared by all processes; created if necessary.
      max_to_keep: the number of steps to keep, highest step numbers first; None keeps all. The step that was
        just saved and unreadable steps are never removed.
      keep_best: the number of steps from `save_best` to keep, independently of `max_to_keep`.
      save_every: `save` skips steps that are not a multiple of this.
      asynchronous: whether files are written while training continues.
      on_save_error: `"raise"`, or `"warn"` to continue training when a step cannot be written.

    With several processes, rank 0 writes. Rank 0 may call every method alone, as in torch's tutorials; values
    that differ between ranks are saved when all ranks call. Only one process at a time may save to a
    directory: the first `save` locks it until `close` or the end of the process.

    Raises:
      CheckpointError: `directory` is a file.

    torch counterpart: `torch.save` and `torch.load`, without these guarantees.

    >>> import tempfile, jaxpar
    >>> with jaxpar.Checkpointer(tempfile.mkdtemp()) as checkpointer:
    ...     checkpointer.save(3, weights={"w": 0.5})
    ...     checkpointer.wait()
    ...     checkpointer.restore(weights={"w": 0.0})
    True
    True
    Restored(step=3, trees={'weights': {'w': 0.5}})
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_to_keep: Positive | None = 3,
        keep_best: Positive = 1,
        save_every: Positive = 1,
        asynchronous: bool = True,
        on_save_error: Literal["raise", "warn"] = "raise",
    ):
        if on_save_error not in ("raise", "warn"):
            raise ValueError(f"Checkpointer: on_save_error is 'raise' or 'warn', not {on_save_error!r}.")
        self.directory = Path(os.path.abspath(directory))
        self.save_every, self.asynchronous, self.on_save_error = save_every, asynchronous, on_save_error
        self._store = Store(self.directory, max_to_keep)
        self._saver = Saver(self._store, on_save_error)
        self._best_store = BestStore(self.directory / BEST, keep_best)
        self._best = Saver(self._best_store, on_save_error)
        self._threads = threading.RLock()

    # ------------------------------------------------------------------------------------------- saving

    @_exclusive
    def save(self, step: int, /, *, force: bool = False, overwrite: bool = False, **items: PyTree) -> bool:
        """Save the step if it is due.

        The items may change as soon as this returns; it waits until the previous save has finished. After any
        process receives SIGTERM, the step is saved even if it is not due, written completely, and the process
        exits with code 75. A damaged step with the same number is renamed and kept.

        Args:
          step: the step number.
          force: save regardless of `save_every`.
          overwrite: replace a step with the same number, which stays on disk until the other is complete.
          items: NNX modules (also in `DataParallel` and the like), `nnx.Optimizer`, `nnx.Rngs`; pytrees;
            objects with `state_dict` and `load_state_dict`, or with `get_state` and `set_state`.

        Returns:
          Whether the step was saved or is being written.

        Raises:
          CheckpointError: the step exists, unless `overwrite`; an item has no saveable state; a different
            process saves to the directory; the disk is full or the previous save failed (warnings with
            `on_save_error="warn"`).
          SystemExit: with code 75, after a SIGTERM.

        >>> import tempfile, jaxpar
        >>> checkpointer = jaxpar.Checkpointer(tempfile.mkdtemp(), save_every=2)
        >>> [checkpointer.save(step, counts=[step]) for step in range(4)]
        [True, False, True, False]
        >>> checkpointer.close()
        """
        step = whole("Checkpointer.save", "the step", step, 0)
        leaving = preempted(step)
        if not (leaving or force or step % self.save_every == 0):
            return False
        if not items:
            raise TypeError("Checkpointer.save: there is nothing to save; pass items by name: net=net.")
        # Before exiting, the ranks meet in any case, which reveals the ranks that do not save.
        ranks, started = self._saver.begin(step, items, together=leaving, overwrite=overwrite)
        if leaving or not self.asynchronous:
            started = self.wait() and started
        # The other ranks do not call `save`, so they would not exit on their own.
        if leaving and len(ranks) < size():
            take_along(f"rank 0 has saved step {step} after a SIGTERM, and ends all ranks.", REQUEUE)
        if leaving:
            raise SystemExit(REQUEUE)
        return started

    @_exclusive
    def save_best(
        self, step: int, metric: Any, /, *, mode: Literal["min", "max"] = "min", **items: PyTree
    ) -> bool:
        """Save the step to the folder `best` if its metric is among the `keep_best` best, on rank 0.

        `save` and `restore` do not use best steps. A resumed run also compares with those from before the
        interruption.

        Args:
          step, items: as for `save`.
          metric: one number. NaN is never the best; of equal steps, the earlier one is better.
          mode: whether the lowest ("min") or the highest ("max") metric is the best.

        Returns:
          Whether the step was saved.

        Raises:
          CheckpointError: as for `save`; the stored best steps use the other mode.

        torch counterpart: `if is_best: shutil.copyfile(..., "model_best.pth.tar")` of its imagenet example.

        >>> import tempfile, jaxpar
        >>> checkpointer = jaxpar.Checkpointer(tempfile.mkdtemp())
        >>> [checkpointer.save_best(i, loss, counts=[i]) for i, loss in enumerate([3.0, 1.0, 2.0])]
        [True, True, False]
        >>> checkpointer.close()
        """
        step, score = whole("Checkpointer.save_best", "the step", step, 0), Metric.of(metric, mode)
        if not items:
            raise TypeError("Checkpointer.save_best: there is nothing to save; pass items by name: net=net.")
        _, started = self._best.begin(step, items, together=True, metric=score)
        if started and not self.asynchronous:
            started = self._best.wait()
        return started

    @_exclusive
    def wait(self) -> bool:
        """Wait for the step being written; return whether it is on disk, or raise CheckpointError."""
        # A list, not `and`: both must be waited for even if the first one was not written.
        both = [self._saver.wait(), self._best.wait()]
        return all(both)

    @_exclusive
    def close(self) -> None:
        """Wait for the last save and unlock the directory. Leaving a `with` block does this."""
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
        # No collective wait: the other ranks may not have raised, and the pending error matters more.
        for saver in (self._saver, self._best):
            trouble = saver.abandon()
            if trouble and error is not None:
                error.add_note(trouble)

    # ---------------------------------------------------------------------------------------- restoring

    def latest_step(self) -> int | None:
        """Return the newest complete step on disk, or None, by listing the directory only.

        >>> import tempfile, jaxpar
        >>> print(jaxpar.Checkpointer(tempfile.mkdtemp()).latest_step())
        None
        """
        return max(self._store.steps(), default=None)

    @_exclusive
    def latest_valid(self) -> int | None:
        """Return the newest step whose files all match their digests, or None.

        Reads all files of the steps that it checks, and warns about every newer, damaged step.

        >>> import tempfile, jaxpar
        >>> with jaxpar.Checkpointer(tempfile.mkdtemp()) as checkpointer:
        ...     saved = checkpointer.save(4, counts=[1, 2]) and checkpointer.wait()
        ...     checkpointer.latest_valid()
        4
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

    @_exclusive
    def restore(self, step: int | None = None, /, *, strict_dtype: bool = True, **items: PyTree) -> Restored:
        """Restore a step's state into the items.

        Before the first item changes, all data is read, compared leaf by leaf (names, shapes, dtypes) and
        verified against its digest. Arrays are placed on the devices of the arrays that they replace, so the
        number of devices may differ from the saved run's.

        Args:
          step: by default the newest step whose digests verify; each newer, damaged step causes a warning.
          strict_dtype: whether a different dtype is an error, instead of a conversion with a warning.
          items: the items passed to `save`, or some of them. NNX objects and stateful objects are updated in
            place; a tree provides structure, shapes and dtypes (`jax.ShapeDtypeStruct` leaves suffice) and
            the restored tree is returned.

        Returns:
          `Restored(step, trees)`.

        Raises:
          CheckpointError: the step does not exist, is damaged, or needs another jaxpar; an item
            does not match the saved one.

        >>> import tempfile, jaxpar
        >>> with jaxpar.Checkpointer(tempfile.mkdtemp()) as checkpointer:
        ...     saved = checkpointer.save(7, position={"epoch": 2}) and checkpointer.wait()
        ...     checkpointer.restore(position={"epoch": 0}).trees
        {'position': {'epoch': 2}}
        """
        if not items:
            raise TypeError("Checkpointer.restore: there is nothing to restore; pass items by name: net=net.")
        self._saver.join()
        restored = restore(self._store, step, items, strict_dtype)
        # The watchdog records a restored step as safe, like a written one.
        reached(restored.step)
        return restored

    @_exclusive
    def restore_best(self, *, strict_dtype: bool = True, **items: PyTree) -> Restored:
        """Restore the best step whose digests verify into the items, as `restore`.

        >>> import tempfile, jaxpar
        >>> with jaxpar.Checkpointer(tempfile.mkdtemp()) as checkpointer:
        ...     saved = checkpointer.save_best(2, 0.9, mode="max", position={"epoch": 2})
        ...     checkpointer.wait()
        ...     checkpointer.restore_best(position={"epoch": 0})
        True
        Restored(step=2, trees={'position': {'epoch': 2}})
        """
        if not items:
            raise TypeError("Checkpointer.restore_best: there is nothing to restore; pass items: net=net.")
        self._best.join()
        return restore(self._best_store, None, items, strict_dtype)

    @_exclusive
    def best_step(self) -> int | None:
        """Return the best step on disk, or None. Early stopping, also after an interruption:

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
        """Restore the newest step, if any, into the items, and return the step to continue with, or 0.

        Raises:
          CheckpointError: as for `restore`; an item is a tree, which cannot be updated in place.

        >>> import tempfile, jaxpar
        >>> from flax import nnx
        >>> rngs = nnx.Rngs(0)
        >>> with jaxpar.Checkpointer(tempfile.mkdtemp()) as checkpointer:
        ...     saved = checkpointer.save(9, rngs=rngs) and checkpointer.wait()
        ...     checkpointer.resume(rngs=rngs)
        10
        """
        for name, target in items.items():
            if isinstance(item_of(name, target), TreeItem):
                raise CheckpointError(
                    f"Checkpointer.resume: {name} is a tree, which cannot be updated in place. Give it to "
                    "restore, which returns another one and the `next` step."
                )
        return self.restore(**items).next if self.latest_step() is not None else 0

    def epochs(self, n: Count, /, **items: PyTree) -> Iterator[int]:
        """Yield the remaining epochs of `n`, starting after the last saved one, which is restored first.

        Each epoch is saved when the loop asks for the next one, the last epoch regardless of `save_every`.
        Thus no epoch is skipped, and only an epoch that was interrupted, or that a `break` left, is trained
        again.

        Args:
          n: the number of epochs, counted from the first start of the run.
          items: as for `resume`. All ranks iterate.

        >>> import tempfile, jaxpar
        >>> from flax import nnx
        >>> directory, rngs = tempfile.mkdtemp(), nnx.Rngs(0)
        >>> for n in (2, 3):
        ...     with jaxpar.Checkpointer(directory) as checkpointer:
        ...         print(list(checkpointer.epochs(n, rngs=rngs)))
        [0, 1]
        [2]
        """
        start = self.resume(**items)
        for epoch in range(start, n):
            yield epoch
            self.save(epoch, force=epoch == n - 1, **items)
