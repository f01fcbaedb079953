"""LRScheduler: the base class of all schedulers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx

from ..._groups import ParamGroup, check_optimizer, param_groups_of

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
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first value of the "
                "learning rate schedule is skipped. Train first, then step the scheduler.",
                UserWarning,
                stacklevel=2,
            )
        self._step_count += 1
        if epoch is not None:
            warnings.warn(EPOCH_IS_DEPRECATED, UserWarning, stacklevel=2)
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

        Raises: ValueError: it is not the state of a scheduler. Nothing has changed then.
        """
        require_key(self, state_dict, "_last_lr")
        self.__dict__.update(state_dict)
        for group, lr in zip(self._groups, self._last_lr, strict=True):
            group.remind("lr", float(lr))

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


def require_key(scheduler: LRScheduler, state: dict[str, Any], key: str) -> None:
    if key not in state:
        raise ValueError(
            f"{type(scheduler).__name__}.load_state_dict: the state has no {key!r}, so it is not the "
            f"state of a scheduler of this kind; it has {', '.join(map(repr, state)) or 'nothing'}."
        )


def attributes(function: Any) -> dict[str, Any] | None:
    """Return the part of a user's function that torch saves: an object's attributes, or None."""
    return None if type(function) is type(attributes) else dict(function.__dict__)
