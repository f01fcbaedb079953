"""The public function, and the step object that it returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx

from .._parallel.modules.nnx_view import view_nnx
from .._tree import is_array
from .._typing import PyTree
from ..errors import NonFiniteError, OptimizerError
from .batches import Batches
from .distributed_data_parallel import DistributedDataParallel
from .distributed_step import Replicas
from .held import order_of_gradients
from .local_step import Whole
from .nonfinite import NONE
from .precision import Precision
from .reports import Reports
from .throttle import Ahead
from .update import Update, check, way
from .watchdog import beat


def train_step(
    net: nnx.Module,
    optimizer: nnx.Optimizer,
    loss_fn: Callable[..., Any],
    *,
    accumulate: int = 1,
    has_aux: bool = False,
    precision: Precision | None = None,
    on_nonfinite: str = "raise",
) -> TrainStep:
    """A function that trains: `loss = step(*batch)`.

    ```python
    net = jaxpar.DataParallel(net)
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, lambda net, x, y: ((net(x) - y) ** 2).mean())
    for x, y in batches:
        loss = step(x, y)
    ```

    Args:
      net: an NNX module: plain, a DataParallel, or a DistributedDataParallel. It holds the results after
        every step, and may be read, changed, saved and evaluated between two of them.
      optimizer: made from `net`; what its `wrt` lets through is trained.
      loss_fn: `loss_fn(net, *batch)`, one number. A DistributedDataParallel evaluates it on every replica's
        own rows with the module that it wraps.
      accumulate: an update after every so many calls, with the mean of their gradients.
      has_aux: the loss function returns `(loss, aux)`, and so does the step.
      precision: computes in another type than that of the parameters.
      on_nonfinite: a gradient that is infinite or not a number raises some steps later ("raise"; nothing
        moves in between), leaves the update out ("skip"), or is not looked for ("ignore"). With a loss
        scale such updates are always left out.

    Returns:
      A TrainStep. The loss stays on the device: nothing waits for it until it is read. Arrays that the net
      and the optimizer held before are donated, so use what they hold now.

    Raises:
      OptimizerError: `optimizer` was made for another module. ValueError, TypeError: bad arguments.
      When called: LossError, BatchError, NonFiniteError, and as `scatter`; net and optimizer are then as
      they were before the step.

    torch counterpart: `optimizer.zero_grad(); loss_fn(...).backward(); optimizer.step()`.
    """
    if not isinstance(net, nnx.Module):
        raise TypeError(f"train_step: net must be an nnx.Module, not {type(net).__name__}.")
    if not isinstance(optimizer, nnx.Optimizer):
        raise TypeError(f"train_step: optimizer must be an nnx.Optimizer, not {type(optimizer).__name__}.")
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise ValueError(f"train_step: accumulate must be a positive int, not {accumulate!r}.")
    if on_nonfinite not in ("raise", "skip", "ignore"):
        raise ValueError(f"train_step: on_nonfinite={on_nonfinite!r} must be 'raise', 'skip' or 'ignore'.")
    return TrainStep(net, optimizer, loss_fn, accumulate, has_aux, precision, on_nonfinite)


class TrainStep:
    """What `train_step` returns.

    Attributes:
      net, optimizer: what it trains.
      calls: how often it was called; updates: how often the optimizer moved.
    """

    def __init__(
        self,
        net: nnx.Module,
        optimizer: nnx.Optimizer,
        loss_fn: Callable[..., Any],
        accumulate: int,
        has_aux: bool,
        precision: Precision | None,
        on_nonfinite: str,
    ):
        self.net, self.optimizer = net, optimizer
        self.calls = self.updates = 0
        self._accumulate, self._has_aux = accumulate, has_aux
        make = functools.partial(_update, net, optimizer, accumulate, on_nonfinite, precision)
        distributed = isinstance(net, DistributedDataParallel)
        self._program: Any = (Replicas if distributed else Whole)(
            net, optimizer, loss_fn, has_aux, precision, make
        )
        self._batches = Batches()
        self._reports = Reports(together=distributed and net.world.size > 1)
        self._ahead = Ahead()

    def __call__(self, *batch: PyTree, **kwargs: PyTree) -> Any:
        """Trains on one batch; the loss, or `(loss, aux)`."""
        seen = self._batches.check(batch, kwargs)
        self._raise_if_reported(wait=False)
        last = (self.calls + 1) % self._accumulate == 0
        loss, aux, report = self._program.step(batch, kwargs, last)
        self._batches.remember(*seen)
        self.calls += 1
        self.updates += last
        if report is not None:
            self._reports.add(report)
        self._ahead.add(loss)
        beat()
        return (loss, aux) if self._has_aux else loss

    def check(self) -> None:
        """Waits for the last step, and raises NonFiniteError if a gradient was not finite since the last
        time. Of several processes all call it: one alone would go on while the others stand."""
        self._raise_if_reported(wait=True)

    def _raise_if_reported(self, wait: bool) -> None:
        leaf, update = self._reports.read(wait) or (NONE, 0)
        if leaf == NONE:
            return
        self._reports.clear()
        self._program.forget_trouble()
        raise NonFiniteError(
            f"train_step: the gradient of {self._program.name(leaf)} was not finite at update {update} "
            "(from 0). Parameters, statistics and optimizer are as they were before it. Lower the learning "
            'rate, clip gradients, or leave such updates out with on_nonfinite="skip".'
        )


def _update(
    net: nnx.Module, optimizer: nnx.Optimizer, accumulate: int, on_nonfinite: str, precision: Precision | None
) -> Update:
    """The update of this net by this optimizer, if they belong together."""
    split: Any = view_nnx(net)
    other: Any = view_nnx(optimizer)
    form, order = order_of_gradients(net, optimizer.wrt, split, root=0)
    parameters = split.parameters(optimizer.wrt)

    def gradients(flat: list) -> Any:
        return form.unflatten([flat[i] for i in order])

    values = split.held()
    platform = next((d.platform for x in values if is_array(x) for d in x.devices()), "cpu")
    trained = [values[i] for i in parameters]
    nbytes = sum(jnp.size(x) * jnp.result_type(x).itemsize for x in trained)
    made = Update(
        split.definition,
        other.definition,
        parameters,
        gradients,
        accumulate,
        on_nonfinite,
        precision,
        way(platform, nbytes),
    )
    names = split.names
    wrong = check(made, values, other.held(), names)
    if wrong is None and not parameters:
        wrong = "nothing in the module is trained by it"
    if wrong is not None:
        raise OptimizerError(
            f"train_step: the optimizer was not made for this {type(net).__name__}: {wrong}. Make it from "
            "the object that train_step is given: nnx.Optimizer(net, tx, wrt=nnx.Param)."
        )
    return made
