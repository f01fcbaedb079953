"""distributed_base: what a DistributedDataParallel of any kind of module has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from flax import nnx

from .._counterparts import TorchNames
from .._devices.context import returned
from .._parallel.batch_statistics import warn_of_replica_statistics
from .._parallel.data_parallel import forward
from .._parallel.parallel_apply import compiled
from .._parallel.placement import Placement
from .._parallel.programs import Programs
from .._tree import is_staged
from .._typing import PyTree
from ..comm_hooks import CommHook
from ..distributed.check_replicas import check_replicas
from ..errors import ParametersError
from .arrays import Arrays
from .batch_checks import check_rows
from .engine import Engine
from .engine_state import EngineState
from .initial_sync import NOTHING_TO_TRAIN
from .join import Join
from .misuse import check_staged, without_gradient
from .work import Objective, ReplicaWork
from .world import World


class Distributed(TorchNames):
    """What wrappers of all kinds of modules have."""

    module: Any
    world: World
    backend: str
    engine_state: EngineState
    of_nnx: Callable[..., Any]  # the wrapper of an NNX module

    def _remember(self, module: Any, world: World, backend: str, state: EngineState) -> None:
        self.module, self.world, self.backend, self.engine_state = module, world, backend, state
        self.programs = Programs(compiled)

    @property
    def device_ids(self) -> list[int]:
        return list(self.world.local.device_ids)

    @property
    def dim(self) -> int:
        return self.world.local.dim

    @property
    def replicas(self) -> int:
        return self.world.N

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Leave gradients of calls in this context on the replicas; the next call outside adds to them.

        >>> import jax.numpy as jnp, jaxpar
        >>> from flax import nnx
        >>> net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        >>> value_and_grad = net.value_and_grad(lambda net, x: net(x).mean())
        >>> with net.no_sync():
        ...     loss, gradients = value_and_grad(jnp.ones((8, 3)))
        >>> gradients is None
        True

        Inside, the loss is this process's mean. The next call outside returns the mean over the replicas of
        the sum over the calls, after one all-reduce.

        torch counterpart: `DistributedDataParallel.no_sync` (docs/semantics.md row D9).
        """
        return self.engine_state.unsynchronised()

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """A context in which ranks may have different numbers of batches, and batches of different sizes.

        >>> import jax.numpy as jnp, jaxpar
        >>> from flax import nnx
        >>> net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        >>> with net.join():
        ...     for x in (jnp.ones((8, 3)), jnp.ones((8, 3))):
        ...         loss, gradients = net.value_and_grad(lambda net, x: net(x).mean())(x)

        Args:
          divide_by_initial_world_size: gradients are divided by all replicas, or else by those with rows.
          enable: False does nothing, for ranks that are known to have as many batches.
          throw_on_early_termination: the first rank that has finished ends the training of all.

        Raises:
          RuntimeError: on all ranks, with `throw_on_early_termination`.
          DistributedError: a rank had no batch at all.
          DivergenceError: ranks differ in more than their numbers of rows.

        torch counterpart: `DistributedDataParallel.join` (docs/semantics.md section 2.3).
        """
        state, world = self.engine_state, self.world
        return Join(state, world, divide_by_initial_world_size, enable, throw_on_early_termination)

    def register_comm_hook(self, hook: CommHook) -> None:
        """Reduce gradients with `hook` from the next call on. Can be called once.

        >>> import jax.numpy as jnp, jaxpar
        >>> from flax import nnx
        >>> net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        >>> net.register_comm_hook(jaxpar.comm_hooks.bf16_compress)

        Raises:
          RuntimeError: there is one already. TypeError: it is not a hook.

        torch counterpart: `register_comm_hook(state, hook)` (docs/semantics.md row H1), without the state.
        """
        if not isinstance(hook, CommHook):
            raise TypeError(
                "Communication hook must be callable: give a jaxpar.comm_hooks.CommHook(init, reduce), not "
                f"{type(hook).__name__}."
            )
        self.engine_state.register(hook)

    def holding(self, module: nnx.Module) -> Any:
        """Return a wrapper of an NNX module in the place of this one's, with the same state."""
        return type(self).of_nnx(module, self.world, self.backend, self.engine_state, True)

    def _forward(self, module: Any, args: tuple, kwargs: dict, placement: Placement | None = None) -> PyTree:
        where = placement or self.world.local, self.backend, self.programs
        outputs = forward(module, args, kwargs, *where, function="DistributedDataParallel")
        return outputs if self.world.N == 1 else without_gradient(outputs)

    def _compare(self, what: str, values: PyTree) -> None:
        """Check once that user-held values match on all ranks (we cannot sync them)."""
        if self.engine_state.compared or is_staged():
            return
        if self.world.size > 1:
            check_replicas({what: values}, self.world.group)
        self.engine_state.compared = True  # for the life of the wrapper: later values come from equal steps

    def _gradients(
        self, arrays: Arrays, loss_fn: Callable[..., Any], has_aux: bool, batch: tuple, kwargs: dict[str, Any]
    ) -> tuple[Any, PyTree, PyTree]:
        if not arrays.parameters:
            raise ParametersError(NOTHING_TO_TRAIN)
        check_rows(batch, kwargs, "value_and_grad")
        state = self.engine_state
        check_staged(self.world, state)
        work = ReplicaWork(Objective(loss_fn, has_aux), self.world, state, self.backend, state.programs)
        engine = Engine(arrays, work, state, self.world, loss_fn)
        keep = not state.synchronises
        with warn_of_replica_statistics(self.module, "DistributedDataParallel", self.world.N):
            done = engine.step(batch, kwargs, keep)
        aux, (loss, committed) = returned(done.aux, self.dim), returned((done.loss, done.committed))
        value = (loss, aux) if has_aux else loss
        if keep:
            return value, None, committed
        return value, arrays.gradients(returned(self.world.local_shared(done.after))), committed
