"""Schedulers that multiply the current rate by a factor."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from flax import nnx

from ...._arguments import Count, NonNegative, Positive
from ..._groups import check_optimizer, param_groups_of
from .._checks import check_constant, check_linear
from .scheduler import LRScheduler, attributes

Factor = Callable[[int], float]


class _ByFactor(LRScheduler):
    def _scale(self) -> float | None:
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        scale = self._scale()
        return [lr if scale is None else lr * scale for lr in self._rates()]


class StepLR(_ByFactor):
    """Write the rates of `step_lr` into an optimizer, as torch's class of this name."""

    def __init__(
        self, optimizer: nnx.Optimizer, step_size: Positive, gamma: NonNegative = 0.1, last_epoch: int = -1
    ):
        self.step_size, self.gamma = int(step_size), gamma
        super().__init__(optimizer, last_epoch)

    def _scale(self) -> float | None:
        return self.gamma if self.last_epoch and self.last_epoch % self.step_size == 0 else None

    def _get_closed_form_lr(self) -> list[float]:
        return [lr * self.gamma ** (self.last_epoch // self.step_size) for lr in self.base_lrs]


class MultiStepLR(_ByFactor):
    """Write the rates of `multi_step_lr` into an optimizer, as torch's class of this name."""

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        milestones: Iterable[Count],
        gamma: NonNegative = 0.1,
        last_epoch: int = -1,
    ):
        self.milestones = Counter(map(int, milestones))
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _scale(self) -> float | None:
        count = self.milestones.get(self.last_epoch, 0)
        return self.gamma**count if count else None

    def _get_closed_form_lr(self) -> list[float]:
        reached = bisect_right(sorted(Counter(self.milestones).elements()), self.last_epoch)
        return [lr * self.gamma**reached for lr in self.base_lrs]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        # JSON turns the keys into strings.
        self.milestones = Counter({int(epoch): n for epoch, n in self.milestones.items()})


class ConstantLR(LRScheduler):
    """Write the rates of `constant_lr` into an optimizer, as torch's class of this name."""

    def __init__(
        self, optimizer: nnx.Optimizer, factor: float = 1.0 / 3, total_iters: Count = 5, last_epoch: int = -1
    ):
        check_constant(factor)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return [lr * self.factor for lr in self._rates()]
        if self.last_epoch != self.total_iters:
            return self._rates()
        if not self.factor:  # dividing by zero cannot restore the rate; torch raises
            return list(self.base_lrs)
        return [lr * (1.0 / self.factor) for lr in self._rates()]

    def _get_closed_form_lr(self) -> list[float]:
        over = self.last_epoch >= self.total_iters
        return [lr * (self.factor + over * (1 - self.factor)) for lr in self.base_lrs]


class LinearLR(_ByFactor):
    """Write the rates of `linear_lr` into an optimizer, as torch's class of this name."""

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: Count = 5,
        last_epoch: int = -1,
    ):
        check_linear(start_factor, end_factor)
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def _scale(self) -> float | None:
        if self.last_epoch == 0:
            return self.start_factor
        if self._is_initial or self.last_epoch > self.total_iters:
            return None
        rise = self.end_factor - self.start_factor
        return 1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise)

    def _get_closed_form_lr(self) -> list[float]:
        rise = self.end_factor - self.start_factor
        done = min(self.total_iters, self.last_epoch)
        return [lr * (self.start_factor + rise * done / self.total_iters) for lr in self.base_lrs]


class ExponentialLR(_ByFactor):
    """Write the rates of `exponential_lr` into an optimizer, as torch's class of this name."""

    def __init__(self, optimizer: nnx.Optimizer, gamma: NonNegative, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _scale(self) -> float | None:
        return None if self._is_initial else self.gamma

    def _get_closed_form_lr(self) -> list[float]:
        return [lr * self.gamma**self.last_epoch for lr in self.base_lrs]


class PolynomialLR(_ByFactor):
    """Write the rates of `polynomial_lr` into an optimizer, as torch's class of this name."""

    def __init__(
        self, optimizer: nnx.Optimizer, total_iters: Count = 5, power: NonNegative = 1.0, last_epoch: int = -1
    ):
        self.total_iters, self.power = int(total_iters), power
        super().__init__(optimizer, last_epoch)

    def _scale(self) -> float | None:
        if self._is_initial or self.last_epoch > self.total_iters:
            return None
        remaining, before = (1.0 - t / self.total_iters for t in (self.last_epoch, self.last_epoch - 1))
        return float((remaining / before) ** self.power)

    def _get_closed_form_lr(self) -> list[float]:
        remaining = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [lr * remaining**self.power for lr in self.base_lrs]


class _ByFunction(LRScheduler):
    def __init__(self, optimizer: nnx.Optimizer, lr_lambda: Factor | list[Factor], last_epoch: int = -1):
        n = len(param_groups_of(check_optimizer(optimizer)))
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * n
        if len(self.lr_lambdas) != n:
            raise ValueError(f"Expected {n} lr_lambdas, but got {len(self.lr_lambdas)}")
        for function in self.lr_lambdas:
            if not callable(function):
                raise TypeError(f"lr_lambda should be a function, but got {type(function).__name__}")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; for functions that are objects their attributes, as in torch."""
        return {**super().state_dict(), "lr_lambdas": [attributes(function) for function in self.lr_lambdas]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._check_state(state_dict)
        super().load_state_dict({**state_dict, "lr_lambdas": self.lr_lambdas})
        for function, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                function.__dict__.update(saved)


class LambdaLR(_ByFunction):
    """Write the rates of `lambda_lr` into an optimizer, as torch's class of this name."""

    def get_lr(self) -> list[float]:
        return [
            lr * function(self.last_epoch)
            for function, lr in zip(self.lr_lambdas, self.base_lrs, strict=True)
        ]


class MultiplicativeLR(_ByFunction):
    """Write the rates of `multiplicative_lr` into an optimizer, as torch's class of this name."""

    def get_lr(self) -> list[float]:
        rates = self._rates()
        if self._is_initial:
            return rates
        return [lr * function(self.last_epoch) for function, lr in zip(self.lr_lambdas, rates, strict=True)]
