"""The devices of this process, their names, and the device that a string or an integer selects.

An integer is an index into `devices()`, never a `jax.Device.id`, because ids do not start with 0 in the
second process of a job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax

from .._typing import DeviceLike
from .._upstream.gpu_compiler import compile_only
from ..errors import DeviceError
from . import virtual as _virtual
from . import visible as _visible
from .visible import card_of

_ACCELERATOR = ("cuda", "gpu", "rocm", "tpu")


def devices() -> list[jax.Device]:
    """Return this process's accelerators or, without any, all its CPU devices. Integers index this list.

    >>> import jaxpar
    >>> jaxpar.devices() == [jaxpar.device(i) for i in range(len(jaxpar.devices()))]
    True

    torch counterpart: `range(torch.cuda.device_count())` (docs/semantics.md row P2).
    """
    # `local_devices` may start the backend, which fixes the number of devices and the visible GPUs.
    _virtual.from_environment()
    _visible.remember()
    local = jax.local_devices()
    _visible.check()
    return local


def device_count() -> int:
    """Return how many devices `DataParallel(net)` uses: accelerators, or several CPU devices; otherwise 0.

    >>> import jaxpar
    >>> jaxpar.device_count() in (0, len(jaxpar.devices()))
    True

    torch counterpart: `torch.cuda.device_count()`. With 0, both DataParallels call the module directly.
    """
    available = devices()
    return len(available) if len(available) > 1 or available[0].platform != "cpu" else 0


def is_available() -> bool:
    """Return whether there is an accelerator. Never raises: a backend that does not start has none.

    >>> import jaxpar
    >>> jaxpar.is_available() == any(d.platform != "cpu" for d in jaxpar.devices())
    True

    torch counterpart: `torch.cuda.is_available()` (docs/semantics.md row P1).
    """
    try:
        return any(d.platform != "cpu" for d in devices())
    except RuntimeError:
        return False


def device(spec: DeviceLike | None = None) -> jax.Device:
    """Return the device that `spec` names.

    `spec` is an index into `devices()`, a `jax.Device`, or a string: `"cuda:1"` (also `gpu`, `rocm`,
    `tpu`) is an accelerator, `"cpu:3"` a CPU device. Without an index, `"cpu"` is the first CPU device, and
    an accelerator is the current device if that is one, else the first. `None` is the current device.

    >>> import jaxpar
    >>> jaxpar.device("cpu:0").platform
    'cpu'

    Raises:
      DeviceError: an unknown string, or no such device (torch accepts `"cuda:99"` until it is used).

    torch counterpart: `torch.device` (docs/semantics.md row P9).
    """
    if isinstance(spec, jax.Device):
        return spec
    if spec is None:
        return _current() or devices()[0]
    if isinstance(spec, str):
        return _from_text(spec)
    if isinstance(spec, int) and not isinstance(spec, bool):
        return _pick(devices(), spec, f"device id {spec}")
    raise DeviceError(
        f"device: {spec!r} is not a device; give an int, a text such as 'cuda:0', or a jax.Device."
    )


def name(d: jax.Device) -> str:
    """Return a device's name in tables and errors: `cuda:1`, `cpu:0`, or `h100:7` for a topology's device."""
    # They are not in `jax.local_devices`, and their id is their index in the topology.
    if compile_only(d):
        return f"{card_of(d.device_kind)}:{d.id}"
    kind = "cuda" if d.platform == "gpu" else d.platform
    peers = jax.local_devices(backend=d.platform) if d.process_index == jax.process_index() else []
    return f"{kind}:{peers.index(d)}" if d in peers else f"{kind}:{d.id}"


def _from_text(text: str) -> jax.Device:
    match = re.fullmatch(r"([a-z]+)(?::(0|[1-9]\d*))?", text)
    if match is None or match[1] not in ("cpu", *_ACCELERATOR):
        raise DeviceError(
            f"device: {text!r} is not a device; write a kind ({', '.join(('cpu', *_ACCELERATOR))}), and an "
            "index after a colon if you like: 'cpu', 'cuda:1'."
        )
    # The pattern has no sign and no leading zeros: `cuda:-1` and `cuda:01` are typing errors.
    kind, index = match[1], int(match[2] or 0)
    now = _current()
    if kind == "cpu":
        _virtual.from_environment()
        return _pick(jax.local_devices(backend="cpu"), index, repr(text))
    accelerators = [
        d for d in devices() if d.platform != "cpu" and (kind in ("cuda", "gpu") or d.platform == kind)
    ]
    if not accelerators:
        raise DeviceError(
            f"device: {text!r} asks for an accelerator and JAX sees none (backend "
            f"{jax.default_backend()!r}). For NVIDIA GPUs install jaxpar[cuda12]; without one write "
            "'cpu', or jaxpar.devices()[0] for whatever there is."
        )
    if match[2] is None and now in accelerators:
        return now
    return _pick(accelerators, index, repr(text))


def _current() -> jax.Device | None:
    now = jax.config.jax_default_device  # type: ignore[attr-defined]
    return jax.local_devices(backend=now)[0] if isinstance(now, str) else now


def _pick(candidates: Sequence[jax.Device], index: int, what: str) -> jax.Device:
    if not 0 <= index < len(candidates):
        names = (
            f"{name(candidates[0])} to {name(candidates[-1])}" if len(candidates) > 1 else name(candidates[0])
        )
        raise DeviceError(
            f"device: {what} is out of range: this process has {len(candidates)} {candidates[0].platform} "
            f"device{'s' * (len(candidates) > 1)} ({names})."
        )
    return candidates[index]
