"""Parts of a model on devices of their own, and one optimizer for all of them.

OnDevice is a link in a chain of programs that wait for nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from flax import linen, nnx

from .._devices import devices as _devices
from .._devices.move import device_of, mixed, to
from .._tree import is_real, is_staged
from .._typing import DeviceLike, PyTree
from ..errors import MixedDevicesError
from .branch import check_outputs
from .modules import Definition, view
from .placement import Placement
from .programs import Programs
from .shards import combine, separate


class OnDevice(nnx.Module):
    """A module that is stored, and computed, on one device.

    >>> import jax.numpy as jnp, jaxpar
    >>> from flax import nnx
    >>> embed = jaxpar.OnDevice(nnx.Embed(100, 8, rngs=nnx.Rngs(0)), "cpu")
    >>> head = jaxpar.OnDevice(nnx.Linear(8, 2, rngs=nnx.Rngs(0)), 0)
    >>> head(jaxpar.to(embed(jnp.array([3, 1])), 0)).shape
    (2, 2)

    Args:
      module: an NNX module, which is moved in place, or a function.
      device: an id, a text or a `jax.Device`.

    Gradients flow through by `nnx.grad` of the whole model. Inside `jax.jit` the module is simply called: the
    program around it decides where everything runs.

    Raises:
      MixedDevicesError: at a call, an input is on a different device.

    torch counterpart: `module.to(device)` in a model that is split over devices.
    """

    def __init__(self, module: Callable[..., Any], device: DeviceLike):
        if isinstance(module, linen.Module):
            raise TypeError(
                f"OnDevice: {type(module).__name__} is a Linen module, whose arrays are not inside of it; "
                "move its variables with jaxpar.to(variables, device) and call jax.jit(module.apply)."
            )
        self.module = to(module, device) if isinstance(module, nnx.Module) else module
        self.placement = Placement((_devices.device(device),))
        self.programs = Programs(_compiled)

    @property
    def device(self) -> jax.Device:
        return self.placement.devices[0]

    def __call__(self, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        if is_staged():
            return self.module(*inputs, **kwargs)
        self._check_inputs(inputs, kwargs)
        split = view(self.module)
        arrays, statics, form = separate((inputs, kwargs))
        arrays = [x if isinstance(x, jax.core.Tracer) else jax.device_put(x, self.device) for x in arrays]
        outputs, changes = self.programs(split.definition)(
            (statics, form), split.values(self.placement), arrays
        )
        split.commit(changes)
        return outputs

    def _check_inputs(self, inputs: tuple, kwargs: dict) -> None:
        for path, x in jax.tree.leaves_with_path((inputs, kwargs)):
            if is_real(x) and x.committed and x.devices() != {self.device}:
                (i, *inner_path) = path
                name = ("inputs", "kwargs")[i.idx] + jax.tree_util.keystr(tuple(inner_path))
                expected, actual = (
                    _devices.name(self.device),
                    ", ".join(sorted(map(_devices.name, x.devices()))),
                )
                raise MixedDevicesError(mixed(expected, actual, type(self.module).__name__, name))


def _compiled(definition: Definition) -> Any:
    @functools.partial(jax.jit, static_argnums=0)
    def run(form: Any, values: PyTree, arrays: list[jax.Array]) -> tuple[PyTree, PyTree]:
        inputs, kwargs = combine(arrays, *form)
        outputs, changes = definition(values, None, inputs, kwargs)
        check_outputs(outputs, "OnDevice")
        return outputs, changes

    return run


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
