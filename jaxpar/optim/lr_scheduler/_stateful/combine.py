"""Schedulers of schedulers: in sequence, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from flax import nnx

from .._checks import check_milestones, check_not_empty, refuse_plateau
from .plateau import ReduceLROnPlateau
from .scheduler import LRScheduler, require_key


class _Combined(LRScheduler):
    _schedulers: Sequence[LRScheduler]

    def _check(self, schedulers: Sequence[LRScheduler], optimizer: nnx.Optimizer) -> None:
        me = type(self).__name__
        for i, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(f"{me} at index {i} should have `optimizer` as its attribute.")
            refuse_plateau(me, i, isinstance(scheduler, ReduceLROnPlateau))
            if scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"{me} expects all schedulers to belong to the same optimizer, but got scheduler "
                    f"{type(scheduler).__name__} at index {i}, which has another one."
                )

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        require_key(self, state_dict, "_schedulers")
        saved = state_dict["_schedulers"]
        if len(saved) != len(self._schedulers):
            raise ValueError(
                f"{type(self).__name__}: the state has {len(saved)} schedulers, and this one "
                f"{len(self._schedulers)}."
            )
        for scheduler, state in zip(self._schedulers, saved, strict=True):
            scheduler.load_state_dict(state)
        super().load_state_dict({key: x for key, x in state_dict.items() if key != "_schedulers"})


class SequentialLR(_Combined):
    """Write the rates of `sequential_lr` into an optimizer, as torch's class of this name."""

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ):
        check_not_empty("SequentialLR", schedulers)
        self._check(schedulers, optimizer)
        check_milestones(schedulers, milestones)
        self._schedulers, self._milestones = schedulers, milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # Each scheduler made its first step when it was constructed. Undo them all, and let the first
        # scheduler repeat its own from the initial rate.
        for group in self._groups:
            group["lr"] = group["initial_lr"]
        _undo(self)
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self) -> None:  # type: ignore[override]
        self.last_epoch += 1
        i = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[i]
        if i > 0 and self._milestones[i - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Combined):
    """Write the rates of `chained_scheduler` into an optimizer, as torch's class of this name."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: nnx.Optimizer | None = None):
        check_not_empty("ChainedScheduler", schedulers)
        optimizer = getattr(schedulers[0], "optimizer", None) if optimizer is None else optimizer
        self._check(schedulers, optimizer)
        self._schedulers, self.optimizer = schedulers, optimizer
        self._last_lr = self._rates()

    def step(self) -> None:  # type: ignore[override]
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._rates()


def _undo(scheduler: Any) -> None:
    for member in getattr(scheduler, "_schedulers", ()):
        _undo(member)
    if not hasattr(scheduler, "_schedulers"):
        scheduler.last_epoch -= 1
