"""Cosine annealing, with restarts and without."""

from __future__ import annotations

import math

from flax import nnx

from .._checks import check_restarts
from .scheduler import LRScheduler


class CosineAnnealingLR(LRScheduler):
    """Write the rates of `cosine_annealing_lr` into an optimizer, as torch's class of this name."""

    def __init__(self, optimizer: nnx.Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1):
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        t, T, low, rates = self.last_epoch, self.T_max, self.eta_min, self._rates()
        if self._is_initial:
            return rates
        if self._step_count == 1 and t > 0:
            return [low + (lr - low) * (1 + math.cos(t * math.pi / T)) / 2 for lr in self.base_lrs]
        if (t - 1 - T) % (2 * T) == 0:  # from the bottom, where the recursion would divide by zero
            pairs = zip(self.base_lrs, rates, strict=True)
            return [lr + (base - low) * (1 - math.cos(math.pi / T)) / 2 for base, lr in pairs]
        ratio = (1 + math.cos(math.pi * t / T)) / (1 + math.cos(math.pi * (t - 1) / T))
        return [ratio * (lr - low) + low for lr in rates]

    def _get_closed_form_lr(self) -> list[float]:
        low = self.eta_min
        part = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return [low + (lr - low) * part / 2 for lr in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Write the rates of `cosine_annealing_warm_restarts` into an optimizer, as torch's scheduler of the same
    name.
    """

    def __init__(
        self, optimizer: nnx.Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ):
        check_restarts(T_0, T_mult, eta_min)
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        low = self.eta_min
        part = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [low + (lr - low) * part / 2 for lr in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Write the rate of the next epoch, or of `epoch`: `scheduler.step(epoch + i / len(loader))`."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        elif epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        else:
            self._go_to(epoch)
        self.last_epoch = math.floor(epoch)
        self._write(self.get_lr())

    def _go_to(self, epoch: float) -> None:
        if epoch < self.T_0:
            self.T_cur, self.T_i = epoch, self.T_0
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**n
