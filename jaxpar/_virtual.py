"""Virtual CPU devices: one host pretending to have N devices.

XLA runs every virtual device's program on one pool of threads, sized by the number of cores. An
all-reduce holds a thread of each device until all devices have come to it; when the next step has
been dispatched meanwhile (any loop that does not wait after every step), its executions can take
the threads for which the all-reduce waits, and the process stops for ever. With two threads for
each device, one for the program that runs and one for its successor, this does not happen. The pool
size is read once, from `PJRT_NPROC`, when the backend starts, which is why device count and pool
are set together and first.
"""

from __future__ import annotations

import os
import warnings

from .errors import BackendError, DeviceError

THREADS_PER_DEVICE = 2


def virtual_devices(n: int) -> None:
    """Make this process see `n` CPU devices. Call it before JAX is used for the first time.

    Calling it again with the same `n` does nothing. A `PJRT_NPROC` that is already set is
    respected, with a warning if it is too small to be safe.

    Raises:
      DeviceError: `n` is not a positive integer.
      BackendError: JAX has already started with another number of devices.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DeviceError(f"virtual_devices: n must be a positive integer, not {n!r}.")
    import jax

    try:
        # The one place where jaxpar touches jax.config: the caller has asked for exactly this.
        jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError:
        _check_running(n)
        return
    if n > 1:
        _set_pool(THREADS_PER_DEVICE * n)


def _check_running(n: int) -> None:
    import jax

    have = len(jax.local_devices(backend="cpu"))
    if have != n:
        raise BackendError(
            f"virtual_devices: JAX already runs with {have} CPU device{'s' * (have > 1)}, so {n} cannot "
            "be had any more. Call jaxpar.virtual_devices before anything makes an array, or set "
            f"JAXPAR_DEVICES={n} in the environment and start again."
        )


def _set_pool(threads: int) -> None:
    for variable in ("PJRT_NPROC", "NPROC"):
        value = os.environ.get(variable, "")
        if value.isdigit():
            if int(value) < threads:
                warnings.warn(
                    f"{variable}={value} gives XLA fewer than {threads} threads; a training loop on this "
                    "many virtual devices may stop in an all-reduce. Unset it, or raise it.",
                    stacklevel=3,
                )
            return
    os.environ["PJRT_NPROC"] = str(max(threads, os.cpu_count() or 1))
