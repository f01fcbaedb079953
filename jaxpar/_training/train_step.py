"""train_step: forward, loss, backward and optimizer as one compiled program that gives its memory back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from .._arguments import EXPLAINED, Positive
from .._devices.context import outside_for, returned
from .._devices.topology import refuse_topology
from .._parallel.data_parallel import DataParallel
from .._parallel.modules.bundle import nets_of, set_aside
from .._typing import PyTree
from .._upstream import is_traced
from ..errors import NonFiniteError, StagedError
from . import function_net, networks
from .call_lock import CallLock
from .engine import StepOutcome
from .local_batch import Batches, check_batch, check_rows, without_torch
from .nonfinite import NONE, Reports
from .on_update import StepUpdate, UpdateHook
from .precision import Precision, check_precision
from .pure_step import PureStep, StepCarry, carry_of, load_carry
from .readable_state import ReadableState
from .step_state import counts, restore, saved
from .throttle import Throttle
from .training_engine import training_engine
from .update import update_of
from .work import Objective

# A Linen module and a function with their states are accepted, too: `networks` recognises them.
Nets: TypeAlias = Annotated[nnx.Module | Sequence[nnx.Module], EXPLAINED]
Optimizers: TypeAlias = Annotated[nnx.Optimizer | Sequence[nnx.Optimizer], EXPLAINED]


def train_step(
    net: Nets,
    optimizer: Optimizers,
    loss_fn: Callable[..., Any],
    *,
    accumulate: Positive = 1,
    has_aux: bool = False,
    precision: Precision | None = None,
    on_nonfinite: str = "raise",
    on_update: Callable[[StepUpdate], Any] | None = None,
) -> TrainStep:
    """A function that trains: `loss = step(*batch)`.

    >>> import jax, jax.numpy as jnp, jaxpar, optax
    >>> from flax import nnx
    >>> net = jaxpar.DataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    >>> losses = [float(step(jnp.ones((8, 3)))) for _ in range(3)]
    >>> losses[2] < losses[0], step.updates
    (True, 3)

    Args:
      net: an NNX or a Linen module: plain, a DataParallel, or a DistributedDataParallel. It holds the results
        after every step, and may be read, changed, saved and evaluated between two of them. Or several such
        modules, `(a, b)`, all wrapped alike; a loss function is then given `(a, b)`.
        A function of parameters, an Equinox module or a Haiku transform is one too (docs/functions.md).
      optimizer: made from `net`; what its `wrt` lets through is trained. One per module. For
        Linen, the `TrainState`, whose arrays the step takes over; `step.state` is the next one. For a
        function `(params, tx)`, `(params, tx, opt_state)`, a `FunctionState` or a TrainState; for Equinox
        also `tx`.
      loss_fn: `loss_fn(net, *batch)`, one number; for several modules also a tuple with one for each, which
        trains that module alone. A DistributedDataParallel evaluates it on every replica's own rows with the
        module that it wraps. The batch may also hold modules, `nnx.Rngs` and metrics, which the step uses and
        does not train. As in torch their statistics, counters and streams move on.
      accumulate: an update after every so many calls, with the mean of their gradients.
      has_aux: the loss function returns `(loss, aux)`, and so does the step.
      precision: the computing type, if not the parameters' type.
      on_nonfinite: a gradient that is infinite or not a number raises some steps later ("raise"; nothing
        moves in between), leaves the update out ("skip"), or is not looked for ("ignore"). With a loss
        scale such updates are always left out.
      on_update: `on_update(update)`, a function of a `StepUpdate` that is compiled into the step. What it
        returns, a tree of arrays, is `step.metrics`. Its Variables move with the step if it is an NNX
        module, or binds them: `functools.partial(hook, module)`. Where the update is left out they do not,
        unless its attribute `on_skipped` is True.

    Returns:
      A TrainStep. The loss stays on the device: nothing waits until it is read. Arrays that the net
      and the optimizer held before are donated, so use what they hold now.

    Raises:
      OptimizerError: `optimizer` was made for another module.
      ValueError, TypeError: bad arguments, and modules that are wrapped in different ways.
      When called: LossError, BatchError, NonFiniteError, and as `scatter`; net and optimizer are then as
      they were before the step.

    torch counterpart: `optimizer.zero_grad(); loss_fn(...).backward(); optimizer.step()`.
    """
    net, optimizer = (tuple(x) if isinstance(x, list) else x for x in (net, optimizer))
    net, optimizer = networks.as_nnx(net, optimizer)
    networks.check_nets(net, optimizer)
    if on_nonfinite not in ("raise", "skip", "ignore"):
        raise ValueError(f"train_step: on_nonfinite={on_nonfinite!r} must be 'raise', 'skip' or 'ignore'.")
    check_precision(precision, "train_step")
    if not callable(loss_fn):
        raise TypeError(f"train_step: loss_fn is {loss_fn!r}; it must be a function loss_fn(net, *batch).")
    hook = None if on_update is None else UpdateHook(on_update)
    if hook is not None:
        hook.function = function_net.adapted(
            net if isinstance(net, tuple) else (net,), hook.function, function_net.FunctionHook
        )
    return TrainStep(net, optimizer, loss_fn, accumulate, has_aux, precision, on_nonfinite, hook)


class TrainStep:
    """What `train_step` returns.

    >>> import jax, jax.numpy as jnp, jaxpar, optax
    >>> from flax import nnx
    >>> net = jaxpar.DataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    >>> step(jnp.ones((8, 3))).shape, step.calls
    ((), 1)

    Attributes: `net` and `optimizer`; the numbers of `calls` and of the optimizer's `updates`; `metrics`,
    what `on_update` returned at the last update, on the device.
    """

    def __init__(
        self,
        net: Any,
        optimizer: Any,
        loss_fn: Callable[..., Any],
        accumulate: int,
        has_aux: bool,
        precision: Precision | None,
        on_nonfinite: str,
        hook: UpdateHook | None = None,
    ):
        self.net, self.optimizer = net, optimizer
        self.calls = self.updates = 0
        self.metrics: PyTree = None
        self._accumulate, self._has_aux = accumulate, has_aux
        self._nets = net if isinstance(net, tuple) else (net,)
        self._placement = networks.local_placement(self._nets[0])
        make = functools.partial(
            update_of, accumulate=accumulate, on_nonfinite=on_nonfinite, precision=precision
        )
        # One device, or none, calls the module as it is: no replica casts anything there.
        replicas = all(isinstance(module, DataParallel) and module.placement.N > 1 for module in self._nets)
        traced_loss = function_net.adapted(self._nets, loss_fn, function_net.FunctionLoss)
        self._objective = Objective(traced_loss, has_aux, precision, make, replicas)
        one, its = networks.as_one(net), networks.as_one(optimizer)
        with outside_for(self._placement):
            self._engine, self._arrays = training_engine(self._nets, one, its, self._objective, loss_fn, hook)
        self._batches = Batches()
        self._reports = Reports(together=self._engine.world.size > 1)
        self._throttle = Throttle()
        self._lock = CallLock()
        self._state = ReadableState(self._nets, nets_of(its))

    def __call__(self, *batch: PyTree, **kwargs: PyTree) -> Any:
        """Train on one batch; return the loss, or `(loss, aux)`."""
        if self._placement is not None:
            refuse_topology(self._placement.devices, "train_step")
        if is_traced():
            raise StagedError(
                "train_step: the step was called inside of jax.jit, scan, vmap, grad or the like, where it "
                "cannot change net and optimizer. Make a pure function of it, function, carry = step.pure(), "
                "and call carry, loss = function(carry, *batch) there."
            )
        # Two threads would donate the same arrays, which ends the process.
        with self._lock, outside_for(self._placement):
            done = self._step(batch, kwargs)
            loss = returned(done.loss)
            if not self._has_aux:
                return loss
            return loss, returned(done.aux, 0 if self._placement is None else self._placement.dim)

    def _step(self, batch: tuple, kwargs: dict[str, Any]) -> StepOutcome:
        brought = without_torch(*self._bring(batch, kwargs))
        signature = self._batches.check(*brought)
        self._raise_if_reported(wait=False)
        networks.refuse_context(self._nets, self._engine.state, self._accumulate)
        last = (self.calls + 1) % self._accumulate == 0
        with function_net.call_noted(self._nets, batch, kwargs):
            done = self._engine.step(*brought, keep=not last)
        # After the step: a batch that raised must neither count nor constrain later ones.
        self._batches.remember(*signature)
        self.calls += 1
        self.updates += last
        if done.report is not None:
            self._reports.add(done.report)
        if last:
            self.metrics = returned(done.metrics)
        self._throttle.add(jax.tree.leaves(done.loss)[0])
        return done

    def lower(self, *batch: PyTree, **kwargs: PyTree) -> jax.stages.Lowered:
        """The program of a call that updates, for shapes, without running it.

        >>> import jax, jax.numpy as jnp, jaxpar, optax
        >>> from flax import nnx
        >>> net = jaxpar.DataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
        >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
        >>> compiled = step.lower(jax.ShapeDtypeStruct((64, 3), "float32")).compile()
        >>> compiled.memory_analysis().temp_size_in_bytes >= 0  # on each device
        True

        Args: batch: as for a call, but only shapes are read, so arrays may be `jax.ShapeDtypeStruct`s.

        Returns: JAX's `Lowered`; its `compile()` gives `as_text`, `memory_analysis` and `cost_analysis`. With
          `accumulate=k` it is the last of k calls. Net, optimizer and step stay as they are.

        Raises: LossError, BatchError, and as `scatter`.

        Net and optimizer may be shapes too, and the devices a `jaxpar.topology`'s. Ranks do not compare
        programs.

        torch counterpart: none. JAX's is `jax.jit(f).lower`.
        """
        with outside_for(self._placement):
            return self._engine.trace(*self._shapes(batch, kwargs), adds=self._accumulate > 1).lower()

    def compile(self, *batch: PyTree, **kwargs: PyTree) -> jax.stages.Compiled:
        """Compile for batches of these shapes, so that the first call does not have to.

        >>> import jax, jax.numpy as jnp, jaxpar, optax
        >>> from flax import nnx
        >>> net = jaxpar.DataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
        >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
        >>> compiled = step.compile(jax.ShapeDtypeStruct((64, 3), "float32"))
        >>> loss = step(jnp.ones((64, 3)))  # compiles nothing

        Args, Raises: as `lower`.
        Returns: JAX's `Compiled` of a call that updates. `accumulate` has more programs, compiled as well.
        """
        batch, kwargs = self._shapes(batch, kwargs)
        with outside_for(self._placement):
            return self._engine.compile(batch, kwargs, self._accumulate)

    def _shapes(self, batch: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        with self._lock:
            batch, kwargs = self._bring(batch, kwargs)
        check_batch(batch, kwargs, jax.tree.leaves((batch, kwargs)), "train_step")
        check_rows(batch, kwargs, "train_step")
        return batch, kwargs

    def pure(self) -> tuple[Callable[..., tuple[StepCarry, Any]], StepCarry]:
        """Return the step as a pure function, for `jax.jit`, `lax.scan` and `jax.vmap`, and its carry.

        >>> import jax, jax.numpy as jnp, jaxpar, optax
        >>> from flax import nnx
        >>> net = jaxpar.DataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
        >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
        >>> function, carry = step.pure()
        >>> carry, losses = jax.lax.scan(function, carry, jnp.ones((5, 8, 3)))  # five steps, one program
        >>> step.load(carry)
        >>> step.calls, losses.shape
        (5, (5,))

        Returns: `function(carry, *batch) -> (carry, loss)`, or `(carry, (loss, aux))`; with `on_update` what
          it returned comes last, zeros in calls that do not update. And the carry as it is now, a copy of all
          that a step changes. `step.load(carry)` puts one back.

        Raises: RuntimeError: there are several processes, or no_sync() or join() are active.
          When called: LossError, BatchError, as `scatter`; TypeError: an NNX object is an argument.
          A gradient that is not finite raises in the first call after `load`, or in `check`.

        torch counterpart: none; `torch.func` has no training step.
        """
        if self._placement is not None:
            refuse_topology(self._placement.devices, "TrainStep.pure")
        if self._engine.world.size > 1:
            raise RuntimeError(
                f"TrainStep.pure: each of {self._engine.world.size} processes brings its own rows, which is "
                "no function of one program's arrays. Call the step itself, or wrap the net for one process, "
                "in DataParallel or DistributedDataParallel(process_group=new_group([rank]))."
            )
        networks.refuse_context(self._nets, self._engine.state, self._accumulate)
        with self._lock, outside_for(self._placement):
            self._state.write_back()
            self._arrays.bring(())
            carry = carry_of(self._engine, self._arrays, self._accumulate, self.calls)
            self._objective.prepare(self._arrays)
        return PureStep(self._engine, self._arrays, self._accumulate, self._has_aux), carry

    def load(self, carry: StepCarry) -> None:
        """Put a carry of `pure` into net, optimizer and step. An error leaves all as it was.

        Raises: ValueError, TypeError: it is a different step's, or a stack of several, from `jax.vmap`.
        """
        with self._lock, outside_for(self._placement):
            self._state.forget()
            self._arrays.bring(())
            self.calls = load_carry(self._engine, self._arrays, self._accumulate, carry)
        self.updates = self.calls // self._accumulate
        self._reports.clear()
        if "trouble" in carry.step:
            self._reports.add(jnp.copy(carry.step["trouble"]))

    @property
    def state(self) -> Any:
        """The TrainState of a Linen module or the FunctionState of a function; a tuple for several.

        >>> import jax.numpy as jnp, jaxpar, optax
        >>> net = jaxpar.DistributedDataParallel(lambda params, x: x @ params["w"])
        >>> tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
        >>> step = jaxpar.train_step(net, ({"w": jnp.ones((3, 1))}, tx), lambda net, x: net(x).mean())
        >>> step.state.opt_state.hyperparams["learning_rate"] = 0.01
        >>> loss = step(jnp.ones((8, 3)))
        >>> step.state.params["w"][0]
        Array([0.99], dtype=float...)

        The next step donates its arrays. It takes over what has been written into a dict of the state that
        was read last; `step.state = state` writes all of a state with the same structure and shapes.

        Raises: AttributeError: an NNX module has none. When set: TypeError, ValueError: it is a different
          model's or optimizer's; nothing has changed then.
        """
        with self._lock:
            states = self._state.read()
        return states if isinstance(self.net, tuple) else states[0]

    @state.setter
    def state(self, state: Any) -> None:
        with self._lock:
            self._state.write(state if isinstance(self.net, tuple) else (state,))

    def check(self) -> None:
        """Wait for the last step; raise NonFiniteError for a gradient so far. All processes must call it."""
        with self._lock, outside_for(self._placement):
            self._raise_if_reported(wait=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state not held by net or optimizer, for a checkpoint. All processes must call it.

        >>> import jax, jax.numpy as jnp, jaxpar, optax
        >>> from flax import nnx
        >>> net = jaxpar.DataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
        >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
        >>> loss = step(jnp.ones((8, 3)))
        >>> sorted(step.state_dict())
        ['calls', 'gradients', 'hook', 'step', 'updates']

        Returns:
          `calls` and `updates`; `step`, the loss scale and its count of good steps, or the number of updates
          that were looked at; `gradients`, those that `accumulate` keeps; `hook`, the leaves of the
          communication hook's state. Arrays are NumPy's; what every replica keeps has shape [N, ...].

        torch counterpart: `GradScaler.state_dict` and `PowerSGDState.__getstate__`.
        """
        with self._lock, outside_for(self._placement):
            return {"calls": self.calls, "updates": self.updates} | saved(self._engine, self._arrays)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`: the next call is bit-identical to the one that would have followed.

        >>> import jax, jax.numpy as jnp, jaxpar, optax
        >>> from flax import nnx
        >>> net = jaxpar.DataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
        >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
        >>> step.load_state_dict(step.state_dict())

        Raises: CheckpointError: it belongs to a different step (accumulation, precision, hook, module or
          number of replicas). Nothing has changed then.
        """
        calls, updates = counts(state_dict, self._accumulate)
        with self._lock, outside_for(self._placement):
            restore(self._engine, self._arrays, state_dict)
        self.calls, self.updates = calls, updates
        self._reports.clear()

    def _bring(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        args, kwargs, objects = set_aside(args, kwargs)
        if objects:
            networks.check_objects(self._nets, objects, "train_step")
        self._state.write_back()
        self._arrays.bring(tuple(map(networks.unwrapped, objects)))
        return self._arrays.apart((args, kwargs))

    def _raise_if_reported(self, wait: bool) -> None:
        leaf, number = self._reports.read(wait) or (NONE, 0)
        if leaf == NONE:
            return
        update = self._objective.update
        assert update is not None
        self._reports.clear()
        self._arrays.reset(update.start())
        raise NonFiniteError(
            f"train_step: the gradient of {update.name(leaf)} was not finite at update {number} (from 0). "
            "Parameters, statistics and optimizer are as they were before it. Lower the learning rate, clip "
            'gradients, or leave such updates out with on_nonfinite="skip".'
        )
