"""Reduce the rate when a metric has stopped improving."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, SupportsFloat

from flax import nnx

from ..._groups import check_optimizer
from .._checks import check_plateau
from .scheduler import EPOCH_IS_DEPRECATED, LRScheduler


class ReduceLROnPlateau(LRScheduler):
    """Write the rates of `reduce_lr_on_plateau` into an optimizer, as torch's class of this name.

    `min_lr` may be a list with one for each group. All processes must pass the same metric
    (`jaxpar.distributed.all_reduce`), or their rates diverge.
    """

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ):
        check_plateau(factor, mode, threshold_mode)
        self.optimizer = check_optimizer(optimizer)
        n = len(self._groups)
        several = isinstance(min_lr, (list, tuple))
        self.default_min_lr = None if several else min_lr
        self.min_lrs: list[Any] = [*min_lr] if isinstance(min_lr, (list, tuple)) else [min_lr] * n
        if len(self.min_lrs) != n:
            raise ValueError(f"expected {n} min_lrs, got {len(self.min_lrs)}")
        self.factor, self.patience, self.cooldown, self.eps = factor, patience, cooldown, eps
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.mode_worse = self.best = math.inf if mode == "min" else -math.inf
        self.last_epoch = self.cooldown_counter = self.num_bad_epochs = 0
        self._last_lr = self._rates()

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """Record an epoch's metric, waiting for it if it is on a device."""
        if metrics is None:
            raise TypeError("ReduceLROnPlateau.step: the metric is None; give the epoch's loss or score.")
        current = float(metrics)
        if epoch is not None:
            warnings.warn(EPOCH_IS_DEPRECATED, UserWarning, stacklevel=2)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current, self.best):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, lowest in zip(self._groups, self.min_lrs, strict=True):
                new = max(group["lr"] * self.factor, lowest)
                if group["lr"] - new > self.eps:
                    group["lr"] = new
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates()

    @property
    def in_cooldown(self) -> bool:
        """Whether epochs are not counted."""
        return self.cooldown_counter > 0

    def _is_better(self, a: float, best: float) -> bool:
        if self.threshold_mode == "rel":
            part = 1.0 - self.threshold if self.mode == "min" else self.threshold + 1.0
            return a < best * part if self.mode == "min" else a > best * part
        return a < best - self.threshold if self.mode == "min" else a > best + self.threshold
