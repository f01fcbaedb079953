"""distributed_base: what a DistributedDataParallel of any kind of module has."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from .._counterparts import TorchNames
from .._devices.context import returned
from .._parallel.batch_statistics import warn_of_replica_statistics
from .._parallel.data_parallel import forward
from .._parallel.parallel_apply import compiled
from .._parallel.placement import Placement
from .._parallel.programs import Programs
from .._tree import is_staged
from .._typing import PyTree, ReplicaGroups
from ..comm_hooks import CommHook
from ..distributed import broadcast
from ..distributed.check_replicas import check_replicas
from ..distributed.exchange import exchange
from ..distributed.group import Group, NonMember
from ..distributed.guard import compare_environments
from ..errors import DivergenceError, GradientError, GroupError, ParametersError, StagedError
from .arrays import Arrays
from .engine import Engine
from .engine_state import EngineState
from .join import Join
from .local_batch import check_rows
from .work import Objective, ReplicaWork
from .world import World


def check_staged(world: World, state: EngineState) -> None:
    if not is_staged():
        return
    what = "several processes" if world.size > 1 else "no_sync()"
    if (
        world.size > 1
        or not state.synchronises
        or (state.replica_state is not None and state.replica_state.gradients)
    ):
        raise StagedError(
            f"value_and_grad: called inside jax.jit (or nnx.jit), which cannot be done with {what}: it "
            "compiles its own program over all devices. Call it outside, or use jaxpar.train_step, which "
            "compiles the whole step."
        )


@jax.custom_vjp
def without_gradient(outputs: PyTree) -> PyTree:
    return outputs


def _forward(outputs: PyTree) -> tuple[PyTree, None]:
    return outputs, None


def _backward(residual: None, cotangents: PyTree) -> Any:
    # Without this the gradient would be the sum over this process's replicas: no mean, and not the others'.
    raise GradientError(
        "DistributedDataParallel: net(x) is not differentiated, because nothing would average the gradient "
        "over the replicas. Write net.value_and_grad(loss_fn)(x, y), or jaxpar.train_step."
    )


without_gradient.defvjp(_forward, _backward)


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
        if state.divides_optimizer:
            raise RuntimeError(
                "value_and_grad: the wrapper has shard_optimizer=True, and an optimizer that is called with "
                "gradients is not divided. Call jaxpar.train_step(net, optimizer, loss_fn), which divides "
                "it, or leave shard_optimizer out."
            )
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


NOTHING_TO_TRAIN = (
    "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
)


def settle(arrays: Arrays, world: World, init_sync: bool) -> list:
    """Return the module's values as rank 0 has them (docs/semantics.md row D3); nothing for a topology."""
    if not arrays.parameters:
        raise ParametersError(NOTHING_TO_TRAIN)
    if world.local.of_topology:
        return []
    values = arrays.read()
    if world.size == 1 or not init_sync:
        return values
    compare_environments("DistributedDataParallel", world.group)
    pairs = zip(arrays.names, values, strict=True)
    _verify([f"{name}: {x.dtype}{list(x.shape)}" for name, x in pairs], world.group)
    synchronised = broadcast(values, group=world.group, group_src=0)
    return jax.device_put(synchronised, jax.tree.map(world.local.for_value, values))


def _verify(lines: list[str], group: Group | None) -> None:
    text = "\n".join(lines)
    digest = hashlib.sha256(text.encode()).hexdigest()
    digests = exchange("DistributedDataParallel: parameters", digest, group=group)
    if len(set(digests)) == 1:
        return
    # The complete list, which may have thousands of lines, is sent only after a mismatch.
    texts = exchange("DistributedDataParallel: all parameters", text, group=group)
    descriptions = [listing.split("\n") for listing in texts]
    ranks = group.ranks if group else range(len(descriptions))
    for r, rank_lines in zip(ranks, descriptions, strict=True):
        if len(rank_lines) != len(descriptions[0]):
            raise ParametersError(
                f"DDP expects same model across all ranks, but Rank {ranks[0]} has {len(descriptions[0])} "
                f"values, while rank {r} has {len(rank_lines)}."
            )
        for expected, actual in zip(descriptions[0], rank_lines, strict=True):
            if expected != actual:
                raise ParametersError(
                    f"DDP expects same model across all ranks, but they differ: rank {ranks[0]} has "
                    f"{expected}, rank {r} has {actual}."
                )


_WHAT = "DistributedDataParallel: process groups"


def settle_groups(module: nnx.Module, world: World) -> None:
    """Replace every layer's process group by ReplicaGroups, or by None for all replicas."""
    if world.local.of_topology:
        return
    layers = {
        "module." + ".".join(map(str, path)): layer
        for path, layer in nnx.iter_graph(module)
        if isinstance(getattr(layer, "process_group", None), Group | NonMember)
    }
    # A rank outside of the group is alone, as in torch.
    local_ranks = {path: list(layer.process_group.ranks) for path, layer in layers.items()}
    announcements = [json.loads(text) for text in exchange(_WHAT, json.dumps(local_ranks), group=world.group)]
    paths = dict.fromkeys(path for ranks in announcements for path in ranks)
    groups = {path: _groups(path, announcements, world) for path in paths}
    for path, layer in layers.items():
        layer.process_group = groups[path]


def _groups(path: str, announcements: list[dict[str, Any]], world: World) -> ReplicaGroups | None:
    ranks = world.group.ranks if world.group else (0,)
    groups: dict[int, tuple[int, ...]] = {}
    for rank, layers in zip(ranks, announcements, strict=True):
        if path not in layers:
            raise DivergenceError(f"{_WHAT}: {path} has one on other ranks, and none on rank {rank}.")
        groups[rank] = tuple(layers[path]) or (rank,)
    for rank, group in groups.items():
        if others := sorted(set(group) - set(ranks)):
            raise GroupError(
                f"DistributedDataParallel: the process group of {path} has ranks {others}, which do not "
                f"train this module; ranks {list(ranks)} do."
            )
        for other in group:
            if groups[other] != group:
                raise DivergenceError(
                    f"{_WHAT}: {path} has ranks {list(group)} on rank {rank}, and {list(groups[other])} on "
                    f"rank {other}."
                )
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups.values()))}
    if len(numbers) == 1:
        return None
    return ReplicaGroups(tuple(numbers[groups[rank]] for rank in ranks for _ in range(world.local.N)))
