"""`to`, `cuda` and `cpu` move arrays, trees and modules to a device; `device_of` returns where they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from .._tree import check_alive, check_leaf, is_array, is_real, is_staged, warn_narrowed
from .._typing import DeviceLike, PyTree
from ..errors import DeviceError, LeafError, MixedDevicesError, UninitializedError
from . import devices as _devices
from .topology import refuse_topology


def to(x: PyTree, device: DeviceLike | jax.Array | None = None, dtype: DTypeLike | None = None) -> PyTree:
    """Move `x` to a device, change its dtype, or both; modules in place, as in torch. Differentiable.

    >>> import jaxpar, numpy as np
    >>> batch = {"x": np.ones(3, "float32"), "label": np.arange(3, dtype="int32")}
    >>> batch = jaxpar.to(batch, dtype="bfloat16")
    >>> batch["x"].dtype.name, batch["label"].dtype.name  # integers stay integers
    ('bfloat16', 'int32')

    Args:
      x: an array, any tree of arrays (a Linen module's variables, a batch), or an NNX module.
      device: the target; an array means its device and dtype; None leaves `x` on its device.
      dtype: any for a single array. In trees and modules floating leaves change, complex ones only if
        `dtype` is complex, integers never.

    Returns:
      The module itself; otherwise a tree of arrays, in which a leaf that needs no change is the same
      object. A module that `DataParallel` has replicated stays replicated if `device` is one of its devices.

    Raises:
      DeviceError: no such device. LeafError: a leaf is not an array.
      RangeError: integers that would overflow. DeletedError: a donated array.
      TypeError: an integer dtype for a tree or a module.

    torch counterpart: `Tensor.to` and `Module.to` (docs/semantics.md rows P12-P14).
    """
    if isinstance(device, jax.Array):
        target, dtype = device_of(device), dtype or device.dtype
    else:
        target = None if device is None else _devices.device(device)
    if dtype is not None and not is_array(x) and not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(
            f"to: only accepts floating point or complex dtypes for trees and modules, but got {dtype}."
        )
    if isinstance(x, nnx.Module):
        tables = [
            m
            for _, m in nnx.iter_modules(x, graph=True)
            if isinstance(m, nnx.Embed) and m.dtype == m.embedding.dtype
        ]
        # In place, so that optimizers and other references to the module stay valid.
        nnx.update(x, _move(nnx.state(x, graph=True), "module", target, dtype, stay_spread=True))
        # Embed is the only layer of Flax that stores a dtype for its results when it is created.
        for table in tables:
            table.dtype = table.embedding.dtype
        return x
    return _move(x, "x", target, dtype, stay_spread=False)


def cuda(x: PyTree, device: DeviceLike | None = None) -> PyTree:
    """Move `x` to `devices()[device]` or the current device, an accelerator or one of several CPU devices.

    ```python
    net = jaxpar.cuda(net)     # to the current device, in place
    x = jaxpar.cuda(x, 1)      # to devices()[1]
    ```

    Raises:
      DeviceError: neither accelerators nor several CPU devices, or `device` is not in `devices()`.

    torch counterpart: `Tensor.cuda`, `Module.cuda` (docs/semantics.md rows P12, P13).
    """
    if _devices.device_count() == 0:
        raise DeviceError(
            "cuda: JAX sees no accelerator and a single CPU device. Install jaxpar[cuda12] for NVIDIA GPUs, "
            "or make virtual devices with jaxpar.virtual_devices(n)."
        )
    target = _devices.device(device)
    if target not in _devices.devices():
        raise DeviceError(
            f"cuda: Invalid device, must be an accelerator, not {_devices.name(target)}; use jaxpar.cpu."
        )
    return to(x, target)


def cpu(x: PyTree) -> PyTree:
    """Move `x` to the first CPU device. torch: `Tensor.cpu`, `Module.cpu`.

    >>> import jax.numpy as jnp, jaxpar
    >>> jaxpar.device_of(jaxpar.cpu(jnp.ones(3))) == jaxpar.device("cpu")
    True
    """
    return to(x, _devices.device("cpu"))


def device_of(x: PyTree) -> jax.Device:
    """Return the device of an array, or of all arrays of a tree or module.

    For arrays on several devices it is the first one, as torch's parameters are on `device_ids[0]`.
    Uncommitted arrays count as being on the committed arrays' device, because JAX would move them.

    >>> import jaxpar, numpy as np
    >>> tree = {"w": jaxpar.to(np.ones(3), "cpu:0"), "name": "layer"}
    >>> jaxpar.device_of(tree) == jaxpar.device("cpu:0")
    True

    Raises:
      MixedDevicesError: two leaves are on different devices. LeafError: `x` has no array.

    torch counterpart: `Tensor.device` and "Expected all tensors to be on the same device" (rows P11, P15).
    """
    tree = nnx.state(x, graph=True) if isinstance(x, nnx.Module) else x
    placements: list[tuple[bool, jax.Device, str]] = [
        (not leaf.committed, _first(leaf), f"x{jax.tree_util.keystr(path)}")
        for path, leaf in jax.tree.leaves_with_path(tree)
        if is_real(leaf)
    ]
    if not placements:
        raise LeafError(
            "device_of: there is no array, so no device; give a jax.Array or a tree that holds one."
        )
    # Committed arrays first: JAX moves the others to them.
    placements.sort(key=lambda entry: entry[0])
    _, home, first = placements[0]
    for free, d, name in placements:
        if d != home and not free:
            raise MixedDevicesError(mixed(_devices.name(home), _devices.name(d), first, name))
    return home


def mixed(one: str, two: str, first: str, second: str) -> str:
    return (
        f"Expected all arrays to be on the same device, but found at least two devices, {one} and {two}! "
        f"{first} is on {one}, {second} on {two}; move one of them with jaxpar.to({second!r}, {one!r})."
    )


def _first(leaf: jax.Array) -> jax.Device:
    sharding = leaf.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        return sharding.mesh.devices.flat[0]
    return min(leaf.devices(), key=lambda d: d.id)


def _move(
    tree: PyTree, root: str, target: jax.Device | None, dtype: DTypeLike | None, *, stay_spread: bool
) -> PyTree:
    leaves_with_paths = jax.tree.leaves_with_path(tree)
    names = [root + jax.tree_util.keystr(path) for path, _ in leaves_with_paths]
    leaves = [leaf for _, leaf in leaves_with_paths]
    for leaf, name in zip(leaves, names, strict=True):
        _check(leaf, name)
    # All leaves are checked before the first one moves, so that an error leaves the tree unchanged.
    check_alive(leaves, names, "to")
    # As in torch, a single array may get any dtype, and a module's integers never change.
    alone = len(leaves) == 1 and is_array(tree)
    moved = [
        _move_leaf(leaf, target, dtype if alone else _dtype(leaf, dtype), stay_spread) for leaf in leaves
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), moved)


def _check(leaf: object, name: str) -> None:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise UninitializedError(
            f"to: Cannot move {name}, a shape ({leaf.dtype}{list(leaf.shape)}) without values; build the "
            "module first."
        )
    check_leaf(leaf, name, "to")
    if not is_array(leaf):
        raise LeafError(
            f"to: {name} is a {type(leaf).__name__}, not an array; use jnp.asarray, or leave it out."
        )
    warn_narrowed(leaf, name, "to")


def _dtype(leaf: jax.Array | np.ndarray, dtype: DTypeLike | None) -> DTypeLike | None:
    if dtype is None or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return None
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return dtype if jnp.issubdtype(dtype, jnp.complexfloating) else None
    return dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else None


def _move_leaf(
    leaf: jax.Array | np.ndarray, target: jax.Device | None, dtype: DTypeLike | None, stay_spread: bool
) -> jax.Array | np.ndarray:
    if isinstance(leaf, np.ndarray) and target is None:
        leaf = jnp.asarray(leaf)
    if target is not None and not _is_there(leaf, target, stay_spread):
        refuse_topology([target], "to")
        leaf = jax.device_put(leaf, target)
    return leaf if dtype is None or leaf.dtype == dtype else leaf.astype(dtype)


def _is_there(leaf: jax.Array | np.ndarray, target: jax.Device, stay_spread: bool) -> bool:
    if isinstance(leaf, np.ndarray):
        return False
    if not is_real(leaf):
        # The compiler places tracers, and a device_put would fix them to a device.
        return is_staged()
    home = leaf.devices()
    # A replicated module is on this device already; moving it would undo DataParallel's placement.
    if stay_spread and len(home) > 1 and target in home:
        return True
    return home == {target} and leaf.committed
