"""Restore a step: everything is read and compared before the first object changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .._typing import PyTree
from .item import StatefulItem, TreeItem, item_of
from .ranks import agree, rank
from .reading import Values, read_step
from .store import Store


class Restored(NamedTuple):
    """The result of `Checkpointer.restore`: the step number, and the items that are trees.

    >>> import jaxpar
    >>> jaxpar.Restored(4, {}).next
    5
    """

    step: int
    trees: dict[str, PyTree]

    @property
    def next(self) -> int:
        """The step to continue with, one after the restored step, which was complete when saved."""
        return self.step + 1


def restore(store: Store, step: int | None, items: Mapping[str, PyTree], strict_dtype: bool) -> Restored:
    """Restore a step of a directory, by default the newest, into the items.

    Raises as `Checkpointer.restore`.
    """
    targets = {name: item_of(name, target) for name, target in items.items()}
    values: Values = {}

    def read(wanted_step: int | None) -> int:
        read_number, new = read_step(store, wanted_step, targets, strict_dtype)
        values.update(new)
        return read_number

    answers = agree("Checkpointer.restore", store.directory, lambda: read(step) if rank() == 0 else -1)
    chosen = answers[0]
    # Rank 0 alone chooses the step: on a failing disk each rank might choose a different one.
    if len(answers) > 1:
        agree("Checkpointer.restore: read", store.directory, lambda: rank() == 0 or read(chosen))
    # Restore items that can reject their state first, so that a rejection leaves everything unchanged.
    order = sorted(targets, key=lambda name: not isinstance(targets[name], StatefulItem))
    put = {name: targets[name].put(values[name]) for name in order}
    return Restored(chosen, {name: put[name] for name in targets if isinstance(targets[name], TreeItem)})
