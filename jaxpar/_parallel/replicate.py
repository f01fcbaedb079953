"""replicate: one copy of the module on every device, made once (docs/semantics.md row 34)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, overload

import jax
from flax import linen, nnx

from .._arguments import EXPLAINED
from .._devices.context import outside
from .._tree import is_real
from .._typing import DeviceLike, PyTree
from .._upstream import concrete
from .modules import Module, View, view
from .placement import Placement, place


@dataclasses.dataclass(frozen=True, eq=False)
class Replicas(Sequence):
    """A module on the first k of N devices: `replicas[i]` on device i, `replicas[:k]` the first k replicas.

    `parallel_apply` keeps in `module` what replica 0 does to its buffers (docs/semantics.md rows 35, 39).
    """

    module: Module
    placement: Placement
    k: int
    detach: bool = False
    function: str = "DataParallel"  # the wrapper, for errors

    def __len__(self) -> int:
        return self.k

    @overload
    def __getitem__(self, i: int) -> Any: ...
    @overload
    def __getitem__(self, i: slice) -> Replicas: ...
    @outside
    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            indices = range(*i.indices(self.k))
            if indices.start != 0 or indices.step != 1:
                raise IndexError(
                    "Replicas: a slice must start at replica 0, replicas[:k]; device i holds replica i."
                )
            return dataclasses.replace(self, k=len(indices))
        if not -self.k <= i < self.k:
            raise IndexError(f"Replicas: replica {i} of {self.k}")
        return _copy(self.module, self.values(self.split()), self.placement.devices[i % self.k])

    def split(self) -> View:
        return view(self.module)

    def values(self, split: View) -> PyTree:
        values = split.values(self.placement, self.function)
        return jax.lax.stop_gradient(values) if self.detach else values


@outside
def replicate(
    network: Annotated[Module, EXPLAINED], devices: Iterable[DeviceLike] | Placement, detach: bool = False
) -> Replicas:
    """A copy of a module on each device.

    >>> import jaxpar
    >>> from flax import nnx
    >>> placement = jaxpar.Placement(tuple(jaxpar.devices()[:1]))
    >>> replicas = jaxpar.replicate(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), placement)
    >>> len(replicas), type(replicas[0]).__name__
    (1, 'Linear')

    Args:
      network: an NNX module, a bound Linen module (`module.bind(variables)`) or a function. NNX
        variables are replaced by arrays that all devices hold, in place; the module goes on working.
      devices: ids, texts, `jax.Device`s, or a `Placement`.
      detach: no gradient flows from the replicas to the module.

    Raises:
      MisplacedError: a parameter or buffer is committed to a device other than `devices[0]`.
      UninitializedError: a parameter is a shape without values.

    torch counterpart: `torch.nn.parallel.replicate` (docs/semantics.md section 1.3).
    """
    placement = place(devices, function="replicate")
    replicas = Replicas(network, placement, placement.N, detach)
    replicas.values(replicas.split())
    return replicas


def _copy(module: Module, values: PyTree, d: jax.Device) -> Module:
    def on_device(x: Any) -> Any:
        underlying = concrete(x)
        if not is_real(underlying):
            return x
        if x is not underlying:
            return jax.device_put(x, d, src=underlying.sharding)
        return (
            next((s.data for s in x.addressable_shards if s.device == d), None)
            if x.is_fully_replicated
            else x
        )

    if isinstance(module, nnx.Module):
        graphdef, state = nnx.split(module, graph=True)
        paths = [path for path, _ in nnx.to_flat_state(state)]
        flat = [jax.tree.map(on_device, value) for value in values]
        return nnx.merge(graphdef, nnx.from_flat_state(zip(paths, flat, strict=True)))
    if isinstance(module, linen.Module):
        inner, _ = module.unbind()
        local_values = jax.tree.map(on_device, values)
        return inner.bind(local_values["variables"], rngs=local_values["rngs"])
    return module
