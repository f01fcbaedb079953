"""Virtual CPU devices: one host pretending to have N devices, without ever hanging.

Left alone, a loop that trains on virtual devices and does not wait after every step stops for ever
in an all-reduce. What happens (XLA's CPU client in jax 0.10):

* One pool of threads serves all virtual devices, by default one thread for each core, at least N.
* A program for N devices is first *launched*: N short tasks in the pool, one for each device. A
  device takes 32 programs; when it has them, the task of the next launch keeps its thread until one
  has ended. A Python thread waits for its launch, so it has one at a time: at most N threads for
  each Python thread that launches programs.
* Then it is *executed*: N tasks again, each waiting in the all-reduce until all N have come. XLA
  executes one program for several devices at a time: at most N threads.

So with T Python threads that launch programs, a pool of (T + 1) N always has a thread left for the
one execution that the others wait for, and a smaller one has not: launches keep the threads that
the all-reduce waits for, and wait for the all-reduce. Programs for a single device wait for nobody
and change nothing. Measured for N = 2, 4, 8 and 16 (`benchmarks/virtual_devices.py bound`): a loop
that never waits stops with 2N - 1 threads and runs with 2N; two such loops in two threads stop with
3N - 1 and run with 3N; and with N threads a loop runs if it waits every 30 steps, and stops if it
waits every 40.

jaxpar takes 3N: a training loop, and one more thread that launches programs beside it (a prefetcher,
an evaluation). The pool size is read once, when the backend starts, from `PJRT_NPROC`, which is why
device count and pool are set together and first. Threads that wait cost nothing: large matmuls and
small training steps take the same time as with the default pool (`... matmul`).
"""

from __future__ import annotations

import functools
import os
import warnings

from .errors import BackendError, DeviceError

LAUNCHING_THREADS = 2
"""Python threads that may launch programs at the same time: the training loop and one beside it."""

_VARIABLES = ("PJRT_NPROC", "NPROC")
"""Where XLA looks for the pool size, in this order."""

_OURS = "JAXPAR_PJRT_NPROC"
"""Repeats a `PJRT_NPROC` that jaxpar has set, so that a child process does not take it for the user's."""

_asked: int | None = None


def virtual_devices(n: int) -> None:
    """Make this process see `n` CPU devices. Call it before JAX is used for the first time.

    It also gives XLA enough threads for them: with fewer, a training loop on virtual devices hangs.
    Calling it again with the same `n` does nothing. A `PJRT_NPROC` that is already set is
    respected, with a warning if it is too small to be safe. The call is stronger than `JAXPAR_DEVICES`
    in the environment. Where there are accelerators JAX still prefers them; `JAX_PLATFORMS=cpu` hides
    them.

    Raises:
      DeviceError: `n` is not a positive integer.
      BackendError: JAX has already started with another number of devices.
    """
    global _asked
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DeviceError(f"virtual_devices: n must be a positive integer, not {n!r}.")
    if not _set(n) and (have := _running()) != n:
        raise BackendError(
            f"virtual_devices: JAX already runs with {_devices(have)}, so {n} cannot be had any more. Call "
            f"jaxpar.virtual_devices before anything makes an array, or start again with {_outside(n)}."
        )
    _asked = n
    _warn_of_few_threads(n)


@functools.cache
def from_environment() -> int | None:
    """Does what `JAXPAR_DEVICES=n` says, once, and returns n; None if it says nothing.

    A process that has called `virtual_devices` is left alone, and so is, with a warning, one in which
    JAX already runs with another number of devices.

    Raises:
      DeviceError: `JAXPAR_DEVICES` is not a positive integer.
    """
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
        warnings.warn(
            f"JAXPAR_DEVICES={n} came too late: JAX already runs with {_devices(have)}. Ask for "
            f"jaxpar.devices() before anything makes an array, or start again with {_outside(n)}.",
            stacklevel=3,
        )
        return None
    _warn_of_few_threads(n)
    return n


def _set(n: int) -> bool:
    """Sets device count and pool; False if JAX already runs."""
    import jax

    try:
        # The one place where jaxpar touches jax.config: the caller has asked for exactly this.
        jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError:
        return False
    if os.environ.get(_OURS) == os.environ.get("PJRT_NPROC"):
        # Nothing, or what jaxpar has set for another n, here or in the parent process.
        os.environ.pop("PJRT_NPROC", None)
    if _pool_of_the_user() is None and _safe(n) > max(n, _cores()):
        os.environ["PJRT_NPROC"] = os.environ[_OURS] = str(_safe(n))
    return True


def _safe(n: int, launching: int = LAUNCHING_THREADS) -> int:
    """The smallest safe pool; one device needs no rendezvous."""
    return (launching + 1) * n if n > 1 else 1


def _warn_of_few_threads(n: int) -> None:
    """Warns if even a single training loop can stop: a small pool of the user's, or a JAX started before."""
    given, least, safe = _pool_of_the_user(), _safe(n, launching=1), _safe(n)
    if given:
        variable, threads = given
        what, cure = f"{variable}={threads} gives XLA", f"Unset it, or set it to {safe}."
    else:
        threads, what = _cores(), "JAX started before jaxpar and has"
        cure = f"Call jaxpar.virtual_devices before anything makes an array, or start with PJRT_NPROC={safe}."
    if max(threads, n) < least:
        warnings.warn(
            f"{what} fewer than {least} threads, and a training loop on {n} virtual devices may stop for "
            f"ever in an all-reduce. {cure}",
            stacklevel=3,
        )


def _pool_of_the_user() -> tuple[str, int] | None:
    """The variable that sizes XLA's pool, as XLA reads it: the first that is an integer."""
    for variable in _VARIABLES:
        try:
            return variable, max(0, int(os.environ[variable]))
        except (KeyError, ValueError):
            continue
    return None


def _cores() -> int:
    """What XLA takes when no variable says anything."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _running() -> int:
    """How many CPU devices a JAX that has started has."""
    import jax

    try:
        return len(jax.local_devices(backend="cpu"))
    except RuntimeError:  # JAX_PLATFORMS=cuda: no CPU devices at all
        return 0


def _devices(n: int) -> str:
    return f"{n} CPU device{'s' * (n != 1)}"


def _outside(n: int) -> str:
    """What does the same from outside of the program, whatever it does first."""
    return f"JAXPAR_DEVICES={n} (or, for a program that uses JAX before jaxpar, JAX_NUM_CPU_DEVICES={n}" + (
        f" PJRT_NPROC={_safe(n)})" if n > 1 else ")"
    )
