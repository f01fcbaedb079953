"""each_device: one optimizer for parameters on several devices, each of which has an update of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from .._devices import devices as _devices
from .._devices.move import device_of
from .._tree import is_real
from .._typing import PyTree


class EachDeviceState(NamedTuple):
    """`each_device`: the state of every device. They are one group, with one rate."""

    each_device: Any


def each_device(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same transformation, applied separately to the parameters of each device.

    >>> import jax.numpy as jnp, jaxpar, optax
    >>> tx = jaxpar.each_device(optax.sgd(0.1))
    >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.zeros(2)}))
    >>> [round(float(u), 3) for u in updates["w"]]
    [-0.1, -0.1]

    A global norm is then each device's. Parameters must not change devices between updates. Inside `jax.jit`
    all parameters are one part.

    torch counterpart: any `torch.optim` optimizer over a model that is split over devices.
    """

    if not isinstance(tx, optax.GradientTransformation):
        raise TypeError(f"each_device: tx is {tx!r}; it must be an optax transformation.")

    # optax compiles parts of an update for the whole tree, which JAX refuses for leaves on different devices.
    def label(leaf: Any) -> str:
        return _devices.name(device_of(leaf)) if is_real(leaf) else "all"

    def labels(tree: PyTree) -> PyTree:
        return jax.tree.map(label, tree)

    everywhere = {*_devices.devices(), *jax.local_devices(backend="cpu")}
    names = ["all", *sorted(map(_devices.name, everywhere))]
    parts = optax.partition(dict.fromkeys(names, tx), labels)

    def update(
        updates: PyTree, state: EachDeviceState, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, EachDeviceState]:
        updates, inner = parts.update(updates, state.each_device, params, **extra)
        return updates, EachDeviceState(inner)

    return optax.GradientTransformationExtraArgs(lambda params: EachDeviceState(parts.init(params)), update)
