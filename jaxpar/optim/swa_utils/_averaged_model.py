"""AveragedModel, a running average of weights, and the two means: exponential, and of equal weights.

Integers are averaged as floats and cut, as in torch.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from .._groups import PerGroup, check_optimizer, for_each_group
from .._leafwise import lerp
from ..lr_scheduler import LRScheduler

AvgFn: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
MultiAvgFn: TypeAlias = Callable[[Sequence[jax.Array], Sequence[jax.Array], jax.Array], Sequence[jax.Array]]


def get_ema_avg_fn(decay: float = 0.999) -> AvgFn:
    """Return torch's function `decay * average + (1 - decay) * parameter` of one array.

    Raises: ValueError: a decay outside of [0, 1].

    >>> from jaxpar.optim import swa_utils
    >>> swa_utils.get_ema_avg_fn(0.5)(1.0, 3.0, 0)
    2.0
    """
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")

    def ema_update(averaged: jax.Array, current: jax.Array, num_averaged: jax.Array) -> jax.Array:
        return decay * averaged + (1 - decay) * current

    return ema_update


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAvgFn:
    """Return `average + (1 - decay) * (parameter - average)`, by lerp, for lists of arrays of one type.

    torch's function writes into the first list. Raises: ValueError: a decay outside of [0, 1].
    """
    return _by_lerp(get_ema_avg_fn(decay), lambda num_averaged: 1 - decay)


def get_swa_avg_fn() -> AvgFn:
    """Return torch's function `average + (parameter - average) / (n + 1)` of one array: the mean of all.

    >>> from jaxpar.optim import swa_utils
    >>> swa_utils.get_swa_avg_fn()(1.0, 4.0, 2)
    2.0
    """

    def swa_update(averaged: jax.Array, current: jax.Array, num_averaged: jax.Array) -> jax.Array:
        return averaged + (current - averaged) / (num_averaged + 1)

    return swa_update


def get_swa_multi_avg_fn() -> MultiAvgFn:
    """Return the mean of all parameters for lists of arrays of one type.

    torch's function writes into the first list.
    """
    return _by_lerp(get_swa_avg_fn(), lambda num_averaged: 1 / (num_averaged + 1))


def _by_lerp(of_integers: AvgFn, weight: Callable[[jax.Array], float | jax.Array]) -> MultiAvgFn:
    def update(
        averaged: Sequence[jax.Array], current: Sequence[jax.Array], num_averaged: jax.Array
    ) -> list[jax.Array]:
        pairs = zip(averaged, current, strict=True)
        if jnp.issubdtype(averaged[0].dtype, jnp.inexact):
            return [_lerp(a, p, weight(num_averaged)) for a, p in pairs]
        return [of_integers(a, p, num_averaged) for a, p in pairs]

    return update


def _lerp(start: jax.Array, end: jax.Array, weight: float | jax.Array) -> jax.Array:
    wide = jnp.promote_types(start.dtype, jnp.float32)
    return lerp(start.astype(wide), end.astype(wide), jnp.asarray(weight, jnp.finfo(wide).dtype))


class AveragedModel(nnx.Module):
    """A copy of a module whose parameters are running averages over training.

    ```python
    ema = swa_utils.AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.999))
    for x, y in batches:
        loss = step(x, y)
        ema.update_parameters(net)
    ```

    Args:
      model: an NNX module, also in DataParallel or DistributedDataParallel. It is copied.
      device: the `jax.Device` for the average; the module's if omitted.
      avg_fn: `avg_fn(averaged, current, num_averaged)`, the new average of one array; by default the mean.
      multi_avg_fn: instead of `avg_fn`; takes lists of all arrays of a type, returns the list of averages.
      use_buffers: whether buffers (Variables that are neither `nnx.Param`s nor random streams) are averaged,
        too; otherwise they are copied at each update.

    Attributes:
      module: the averaged module; n_averaged: a Variable, how many were averaged.

    The average can be called, saved, and given to `eval_step`; nothing waits for an update.

    Raises: AssertionError: both functions are given. ValueError, from `update_parameters`: different arrays.

    torch counterpart: `torch.optim.swa_utils.AveragedModel`, which pairs arrays by order alone.
    """

    def __init__(
        self,
        model: nnx.Module,
        device: jax.Device | None = None,
        avg_fn: AvgFn | None = None,
        multi_avg_fn: MultiAvgFn | None = None,
        use_buffers: bool = False,
    ):
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        # A step donates the arrays of the module that it trains, so the average needs its own.
        self.module = copy.deepcopy(model)
        self.n_averaged = nnx.Variable(jnp.zeros((), int))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers
        if device is not None:
            nnx.update(self, jax.device_put(nnx.state(self), device))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: nnx.Module) -> None:
        """Add the module's current parameters to the average; the first call copies them."""
        variables, other = _variables(self.module), _variables(model)
        _check_same(variables, other)
        averaged = [x.get_value() for x in variables]
        current = [x.get_value() for x in other]
        for i, (x, mean) in enumerate(zip(current, averaged, strict=True)):
            # Inside of a compiled step, as its `on_update`, the program determines where arrays are.
            if not isinstance(x, jax.core.Tracer) and x.sharding != mean.sharding:
                current[i] = jax.device_put(x, mean.sharding)
        kinds = tuple(isinstance(x, nnx.Param) for x in variables)
        average = _averager(self.avg_fn, self.multi_avg_fn, self.use_buffers, kinds)
        new, count = average(averaged, current, self.n_averaged.get_value())
        for variable, value in zip((*variables, self.n_averaged), (*new, count), strict=True):
            variable.set_value(value)


@functools.lru_cache(maxsize=64)
def _averager(
    avg_fn: AvgFn | None, multi_avg_fn: MultiAvgFn | None, use_buffers: bool, kinds: tuple[bool, ...]
) -> Callable[[list, list, jax.Array], tuple[list, jax.Array]]:
    def one_type(averaged: list, current: list, n: jax.Array) -> Sequence[jax.Array]:
        if multi_avg_fn is not None:
            return multi_avg_fn(averaged, current, n)
        by_one = avg_fn or get_swa_avg_fn()
        return [by_one(a, p, n) for a, p in zip(averaged, current, strict=True)]

    @jax.jit
    def update(averaged: list, current: list, n: jax.Array) -> tuple[list, jax.Array]:
        new = list(current)
        groups: dict[Any, list[int]] = {}
        # torch groups tensors by device and type for multi_avg_fn; one program has one device set.
        for i, x in enumerate(averaged):
            if use_buffers or kinds[i]:
                groups.setdefault(x.dtype, []).append(i)
        for where in groups.values():
            means = one_type([averaged[i] for i in where], [current[i] for i in where], n)
            for i, mean in zip(where, means, strict=True):
                new[i] = jnp.where(n == 0, current[i], jnp.asarray(mean).astype(averaged[i].dtype))
        return new, n + 1

    return update


def _variables(module: nnx.Module) -> list[nnx.Variable]:
    return [
        node
        for _, node in nnx.iter_graph(module, graph=True)
        if isinstance(node, nnx.Variable) and not isinstance(node, nnx.RngState)
    ]


def _check_same(averaged: list[nnx.Variable], other: list[nnx.Variable]) -> None:
    expected, received = ([x.get_value().shape for x in side] for side in (averaged, other))
    if expected != received:
        i = next(
            (i for i, both in enumerate(zip(expected, received, strict=False)) if both[0] != both[1]), None
        )
        what = (
            f"{len(expected)} arrays, and {len(received)} are given"
            if i is None
            else f"array {i} of shape {expected[i]}, and {received[i]} is given"
        )
        raise ValueError(
            f"AveragedModel.update_parameters: the average has {what}. Give it the module that it was made "
            "from."
        )


class SWALR(LRScheduler):
    """Anneal to `swa_lr` in `anneal_epochs` steps, then stay, as `torch.optim.swa_utils.SWALR`.

    `swa_lr` is one for all groups, or a list; `anneal_strategy` a cosine or a straight line.

    Raises: ValueError: an unknown strategy; epochs that are not a whole number, or below 0.
    """

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        swa_lr: PerGroup,
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


MODES = ("use_running_average", "deterministic")
"""What `train()` and `eval()` set; torch has one flag for both."""


def update_bn(loader: Iterable[Any], model: nnx.Module, device: jax.Device | None = None) -> None:
    """Set BatchNorm statistics to their mean over a loader, as `torch.optim.swa_utils.update_bn`.

    Args:
      loader: batches; a tuple's or list's first item is the module's input.
      model: an NNX module, averaged or not. Modes and momenta are restored afterwards.
      device: where inputs are moved first.

    This covers the BatchNorm layers of Flax, whose variance has the divisor n and not torch's n - 1, and of
    `jaxpar.nn`. A module without such layers is not run.
    """
    norms = [node for _, node in nnx.iter_graph(model, graph=True) if _is_batch_norm(node)]
    if not norms:
        return
    with _restored_modes(model), _every_batch_alike(norms):
        model.train()
        for n, batch in enumerate(loader, 1):
            x = batch[0] if isinstance(batch, (list, tuple)) else batch
            statistics = [
                statistic
                for norm in norms
                if not _averages_itself(norm)
                for statistic in (norm.mean, norm.var)
            ]
            before = [statistic.get_value() for statistic in statistics]
            _forward(model, x if device is None else jax.device_put(x, device))
            for statistic, old in zip(statistics, before, strict=True):
                statistic.set_value((1 - 1 / n) * old + 1 / n * statistic.get_value())


@nnx.jit
def _forward(model: Any, x: Any) -> None:
    model(x)


def _is_batch_norm(node: Any) -> bool:
    # By name, because this package must not import `jaxpar.nn`; covers Flax's, ours and subclasses.
    named = isinstance(node, nnx.Module) and any("BatchNorm" in kind.__name__ for kind in type(node).__mro__)
    return named and isinstance(node.mean, nnx.Variable)


def _averages_itself(norm: Any) -> bool:
    """Return whether a layer counts its batches, as torch's do, and averages them without a momentum."""
    return hasattr(norm, "num_batches_tracked")


@contextlib.contextmanager
def _every_batch_alike(norms: list[Any]) -> Iterator[None]:
    """Reset the statistics, and make each batch replace them (Flax) or count equally (torch)."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.mean.set_value(jnp.zeros_like(norm.mean.get_value()))
        norm.var.set_value(jnp.ones_like(norm.var.get_value()))
        if _averages_itself(norm):
            norm.num_batches_tracked.set_value(jnp.zeros_like(norm.num_batches_tracked.get_value()))
        norm.momentum = None if _averages_itself(norm) else 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


@contextlib.contextmanager
def _restored_modes(model: nnx.Module) -> Iterator[None]:
    modes = [
        (node, mode, getattr(node, mode))
        for _, node in nnx.iter_graph(model, graph=True)
        for mode in MODES
        if isinstance(node, nnx.Module) and hasattr(node, mode)
    ]
    try:
        yield
    finally:
        for node, mode, value in modes:
            setattr(node, mode, value)
