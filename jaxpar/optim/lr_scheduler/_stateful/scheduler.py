"""LRScheduler, the base class; ReduceLROnPlateau; and schedulers of schedulers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, ClassVar, Literal, SupportsFloat

from flax import nnx

from ...._arguments import Count, NonNegative, warn
from ..._groups import ParamGroup, PerGroup, check_optimizer, param_groups_of
from .._checks import check_milestones, check_not_empty, check_plateau, refuse_plateau

EPOCH_IS_DEPRECATED = (
    "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible. "
    "Please use `scheduler.step()`: with an epoch the scheduler takes its closed form where it has one."
)


class LRScheduler:
    """Write the next rate at every `step()`; the base class, as `torch.optim.lr_scheduler.LRScheduler`.

    Args:
      optimizer: a `jaxpar.optim.Optimizer`, or an `nnx.Optimizer`, whose rate is in its state: made by
        `jaxpar.optim` with a number, or by `optax.inject_hyperparams`.
      last_epoch: -1 begins anew; otherwise the groups' "initial_lr" must be there, as in torch.

    Attributes:
      optimizer: the optimizer. base_lrs: the groups' initial rates. last_epoch: the number of steps.

    A subclass defines `get_lr()`. A step never waits for a device. Each process steps its own scheduler.

    Raises: HyperparameterError: the optimizer's state holds no rate. TypeError: not an optimizer. KeyError:
      no "initial_lr" although `last_epoch` is set.

    >>> from flax import nnx
    >>> from jaxpar import optim
    >>> optimizer = optim.Optimizer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), optim.sgd(lr=0.1))
    >>> optim.lr_scheduler.StepLR(optimizer, step_size=30).get_last_lr()
    [0.1]
    """

    _is_initial = False
    _arguments: ClassVar[set[str]] = set()
    """The names of the arguments of all kinds that torch has."""

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith(f"{__package__}."):
            LRScheduler._arguments |= signature(cls).parameters.keys()

    def __init__(self, optimizer: nnx.Optimizer, last_epoch: int = -1):
        self.optimizer = check_optimizer(optimizer)
        for i, group in enumerate(self._groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with "
                    f"last_epoch >= 0: set optimizer.param_groups[{i}]['initial_lr'], or use load_state_dict."
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in self._groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def step(self, epoch: int | None = None) -> None:
        """Write the next rate, after the optimizer's step; with `epoch` (deprecated) that epoch's."""
        # torch detects this by wrapping optimizer.step; nnx's optimizer counts its steps.
        if self._step_count == 1 and int(self.optimizer.step[...]) == 0:
            warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first value of the "
                "learning rate schedule is skipped. Train first, then step the scheduler."
            )
        self._step_count += 1
        if epoch is not None:
            warn(EPOCH_IS_DEPRECATED)
        self._update_lr(epoch)

    def get_lr(self) -> list[float]:
        """Return each group's rate at `last_epoch`, from the current rates. Subclasses define this."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """Return the rates that were written last, one for each group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer, under torch's names: numbers, lists and dicts."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`, ours or torch's. The rate itself is in the optimizer's state.

        Raises: ValueError: it is the state of a scheduler of another kind, or of other groups. Nothing has
        changed then.
        """
        self._check_state(state_dict)
        self.__dict__.update(state_dict)
        for group, lr in zip(self._groups, self._last_lr, strict=True):
            group.remind("lr", float(lr))

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise ValueError unless a state has the arguments of this kind of scheduler and of no other kind.

        torch loads any, and its older releases have other attributes besides the arguments.
        """
        function, present = f"{type(self).__name__}.load_state_dict", vars(self).keys()
        names = signature(type(self)).parameters
        arguments = {key for name in names for key in (name, f"_{name}", f"{name}s")} & present
        for key in ("_last_lr", *sorted(arguments - {"optimizer"})):
            if key not in state:
                raise ValueError(
                    f"{function}: the state has no {key!r}, so it is not the state of a scheduler of this "
                    f"kind; it has {', '.join(map(repr, state)) or 'nothing'}."
                )
        if foreign := sorted(state.keys() & self._arguments - present):
            raise ValueError(
                f"{function}: the state has {foreign[0]!r}, so it is of a scheduler of another kind."
            )
        if len(state["_last_lr"]) != len(self._groups):
            raise ValueError(
                f"{function}: the state has {len(state['_last_lr'])} rates, and the optimizer "
                f"{len(self._groups)} groups of parameters."
            )

    @property
    def _groups(self) -> list[ParamGroup]:
        return param_groups_of(self.optimizer)

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def _update_lr(self, epoch: int | None = None) -> None:
        closed_form: Callable[[], list[float]] | None = getattr(self, "_get_closed_form_lr", None)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._write(self.get_lr() if epoch is None or closed_form is None else closed_form())

    def _write(self, rates: Sequence[float]) -> None:
        for group, lr in zip(self._groups, rates, strict=True):
            group["lr"] = lr
        self._last_lr = self._rates()

    def _rates(self) -> list[float]:
        return [group["lr"] for group in self._groups]


def attributes(function: Any) -> dict[str, Any] | None:
    """Return the part of a user's function that torch saves: an object's attributes, or None."""
    return None if type(function) is type(attributes) else dict(function.__dict__)


class ReduceLROnPlateau(LRScheduler):
    """Write the rates of `reduce_lr_on_plateau` into an optimizer, as torch's class of this name.

    `min_lr` may be a list with one for each group. All processes must pass the same metric
    (`jaxpar.distributed.all_reduce`), or their rates diverge.
    """

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: NonNegative = 0.1,
        patience: Count = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: Count = 0,
        min_lr: PerGroup = 0,
        eps: NonNegative = 1e-8,
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
        try:
            current = float(metrics)
        except (TypeError, ValueError):
            raise TypeError(f"ReduceLROnPlateau.step: the metric is {metrics!r}; give a number.") from None
        if epoch is not None:
            warn(EPOCH_IS_DEPRECATED)
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
        self._check_state(state_dict)
        saved = state_dict["_schedulers"]
        if len(saved) != len(self._schedulers):
            raise ValueError(
                f"{type(self).__name__}: the state has {len(saved)} schedulers, and this one "
                f"{len(self._schedulers)}."
            )
        pairs = list(zip(self._schedulers, saved, strict=True))
        for scheduler, state in pairs:
            scheduler._check_state(state)
        for scheduler, state in pairs:
            scheduler.load_state_dict(state)
        super().load_state_dict({**state_dict, "_schedulers": self._schedulers})


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
