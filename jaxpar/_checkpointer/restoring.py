"""A step goes into the objects: everything is read and compared before the first one changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .._typing import PyTree
from .item import StatefulItem, TreeItem, item_of
from .ranks import agree, rank
from .reading import Values, read_step
from .store import Store


class Restored(NamedTuple):
    """What `Checkpointer.restore` read: the step, and the items that are trees."""

    step: int
    trees: dict[str, PyTree]

    @property
    def next(self) -> int:
        """The step to go on with: what is saved is a step that was finished."""
        return self.step + 1


def restore(store: Store, step: int | None, items: Mapping[str, PyTree], strict_dtype: bool) -> Restored:
    """Puts a step of a directory, the newest one if it is None, into the items. Raises as
    `Checkpointer.restore`."""
    targets = {name: item_of(name, target) for name, target in items.items()}
    values: Values = {}

    def read(wanted_step: int | None) -> int:
        read_number, new = read_step(store, wanted_step, targets, strict_dtype)
        values.update(new)
        return read_number

    answers = agree("Checkpointer.restore", store.directory, lambda: read(step) if rank() == 0 else -1)
    chosen = answers[0]
    if len(answers) > 1:
        agree("Checkpointer.restore: read", store.directory, lambda: rank() == 0 or read(chosen))
    # What may refuse its state goes first, so that nothing has changed if it does.
    order = sorted(targets, key=lambda name: not isinstance(targets[name], StatefulItem))
    put = {name: targets[name].put(values[name]) for name in order}
    return Restored(chosen, {name: put[name] for name in targets if isinstance(targets[name], TreeItem)})
