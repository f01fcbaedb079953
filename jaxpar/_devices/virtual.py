"""Virtual CPU devices: one host that behaves as if it had n devices, and does not hang.

One pool of threads serves all virtual devices. Launching a program for n devices takes n threads (the full
queue of a device blocks its launch), executing it n more, and copying arguments for a host callback one. With
2n + 1 threads there is always a free one for the task on which the others wait; docs/virtual_devices.md has
the details. XLA reads the size of the pool once, from `PJRT_NPROC`, when the backend starts.
"""

from __future__ import annotations

import functools
import os
import sys

from .._arguments import warn
from ..errors import BackendError, DeviceError

_VARIABLES = ("PJRT_NPROC", "NPROC")
"""The variables from which XLA reads the pool size, in this order."""

_OURS = "JAXPAR_PJRT_NPROC"
"""Repeats a `PJRT_NPROC` that jaxpar has set, so that a child process does not mistake it for the user's."""

_asked: int | None = None


def virtual_devices(n: int) -> None:
    """Make this process see `n` CPU devices. Call it before JAX is used for the first time.

    It also gives XLA enough threads: with fewer, a training loop on virtual devices hangs. A `PJRT_NPROC`
    that is set already is respected, with a warning if it is too small. The call overrides
    `JAXPAR_DEVICES`. JAX still prefers accelerators; `JAX_PLATFORMS=cpu` hides them.

    >>> import jax, jaxpar
    >>> n = len(jax.devices("cpu"))  # JAX has started now, so only its own number is accepted
    >>> jaxpar.virtual_devices(n)
    >>> jaxpar.virtual_devices(n + 1)
    Traceback (most recent call last):
    jaxpar.errors.BackendError: virtual_devices: JAX already runs with ...

    Raises:
      DeviceError: `n` is not a positive integer.
      BackendError: JAX has already started with a different number of devices.
    """
    global _asked
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DeviceError(f"virtual_devices: n must be a positive integer, not {n!r}.")
    if not _set(n) and (have := _running()) != n:
        raise BackendError(
            f"virtual_devices: JAX already runs with {_devices(have)}, so {n} cannot be had any more. "
            f"{_started()}. Call jaxpar.virtual_devices before that (a default value such as "
            f"rngs=nnx.Rngs(0) is made at import: take rngs without one), or start again with {_outside(n)}."
        )
    _asked = n
    _warn_of_few_threads(n)


@functools.cache
def from_environment() -> int | None:
    """Apply `JAXPAR_DEVICES=n` once, unless `virtual_devices` was called, and return n; None if unset."""
    text = os.environ.get("JAXPAR_DEVICES", "").strip()
    if not text or _asked is not None:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise DeviceError(
            f"JAXPAR_DEVICES={text!r} must be a positive integer: the number of virtual CPU devices. "
            "Unset it to see the devices that there are."
        )
    n = int(text)
    if not _set(n) and (have := _running()) != n:
        raise BackendError(
            f"JAXPAR_DEVICES={n} came too late: JAX already runs with {_devices(have)}. "
            f"{_started()}. Ask for jaxpar.devices() before that, or start again with {_outside(n)}."
        )
    _warn_of_few_threads(n)
    return n


def _set(n: int) -> bool:
    """Set the number of devices and the size of the pool; return False if JAX already runs."""
    import jax

    try:
        # The only place where jaxpar changes jax.config, because the caller has asked for exactly this. A
        # running JAX refuses a new value but accepts the present one, so setting n alone would not show it.
        jax.config.update("jax_num_cpu_devices", n + 1)
        jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError:
        return False
    if os.environ.get(_OURS) == os.environ.get("PJRT_NPROC"):
        # Not set, or set by jaxpar for a previous n, in this process or its parent.
        os.environ.pop("PJRT_NPROC", None)
    # XLA's default pool has max(n, cores) threads, which may be enough.
    if _pool_of_the_user() is None and _safe(n) > max(n, cores()):
        os.environ["PJRT_NPROC"] = os.environ[_OURS] = str(_safe(n))
    from .._upstream import start  # imports JAX, which `import jaxpar` must not

    # Records which line starts JAX, so that the error of a later call can name it.
    start.watch()
    return True


def hide_accelerators() -> None:
    """Leave only CPU devices to this process, which must not take a GPU's memory. Does not import JAX."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_platforms", "cpu")


def _safe(n: int) -> int:
    """Return the smallest safe pool. A single device never waits for a peer."""
    return 2 * n + 1 if n > 1 else 1


def _warn_of_few_threads(n: int) -> None:
    setting, least = _pool_of_the_user(), _safe(n)
    if setting:
        variable, threads = setting
        what, cure = f"{variable}={threads} gives XLA", f"Unset it, or set it to {least}."
    else:
        threads, what = cores(), "JAX started before jaxpar and has"
        cure = (
            f"Call jaxpar.virtual_devices before anything makes an array, or start with PJRT_NPROC={least}."
        )
    if max(threads, n) < least:
        warn(
            f"{what} fewer than {least} threads, and a training loop on {n} virtual devices may stop for "
            f"ever in an all-reduce. {cure}"
        )


def _pool_of_the_user() -> tuple[str, int] | None:
    """Return the variable that sizes XLA's pool, as XLA reads it: the first that is an integer."""
    for variable in _VARIABLES:
        try:
            return variable, max(0, int(os.environ[variable]))
        except (KeyError, ValueError):
            continue
    return None


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _running() -> int:
    import jax

    try:
        return len(jax.local_devices(backend="cpu"))
    except RuntimeError:  # JAX_PLATFORMS=cuda: no CPU devices at all
        return 0


def _started() -> str:
    from .._upstream.start import started_by

    return started_by()


def _devices(n: int) -> str:
    return f"{n} CPU device{'s' * (n != 1)}"


def _outside(n: int) -> str:
    return f"JAXPAR_DEVICES={n} (or, for a program that uses JAX before jaxpar, JAX_NUM_CPU_DEVICES={n}" + (
        f" PJRT_NPROC={_safe(n)})" if n > 1 else ")"
    )
