"""SWALR: anneal to a constant rate, at which weights are averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from flax import nnx

from .._groups import check_optimizer, for_each_group
from ..lr_scheduler import LRScheduler


class SWALR(LRScheduler):
    """Anneal to `swa_lr` in `anneal_epochs` steps, then stay, as `torch.optim.swa_utils.SWALR`.

    `swa_lr` is one for all groups, or a list; `anneal_strategy` a cosine or a straight line.

    Raises: ValueError: an unknown strategy; epochs that are not a whole number, or below 0.
    """

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        last_epoch: int = -1,
    ):
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self.optimizer = check_optimizer(optimizer)
        for group, lr in zip(self._groups, for_each_group("swa_lr", optimizer, swa_lr), strict=True):
            group["swa_lr"] = lr
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step = self._step_count - 1
        step = max(1, step) if self.anneal_epochs == 0 else step
        before, now = self._part(step - 1), self._part(step)
        rates = []
        for group in self._groups:
            lr, goal = group["lr"], group["swa_lr"]
            first = goal if before == 1 else (lr - before * goal) / (1 - before)
            rates.append(goal * now + first * (1 - now))
        return rates

    def _part(self, step: int) -> float:
        t = max(0, min(1, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self._anneal_strategy == "cos" else t
