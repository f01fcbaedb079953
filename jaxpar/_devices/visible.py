"""CUDA_VISIBLE_DEVICES: noticing that it was changed too late.

The driver reads the variable when JAX's backend starts, and never again. A script that sets it after its
first array goes on with the devices that it had, and nothing says so; torch.cuda surprises people in the
same way. Here the value at that moment is kept and compared.

If the first look at the devices starts the backend, the driver reads the value of that moment. If something
else has started it before, it read a value that was set some time between the start of the process and now.
Linux keeps the value at the start in /proc/self/environ, whatever is done to `os.environ`. The present one
is taken, because scripts set the variable in their first lines, unless the backend sees more GPUs than it
allows.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

VARIABLE = "CUDA_VISIBLE_DEVICES"
START = Path("/proc/self/environ")


class Change(NamedTuple):
    """The variable when the backend started and now; None where it is not set."""

    then: str | None
    now: str | None


class _Memory:
    """What this process has seen: one object, so that a test can have another."""

    then: str | None = None
    recorded = False
    warned: Change | None = None


_memory = _Memory()


def remember() -> None:
    """Keeps the value with which the backend starts, or has started. Only the first call counts.

    Call it before the first look at the devices.
    """
    if not _memory.recorded:
        _memory.then, _memory.recorded = _value_at_start(), True


def in_force() -> str | None:
    """The value that chose the devices of this process."""
    return _memory.then if _memory.recorded else os.environ.get(VARIABLE)


def changed_visible_devices() -> Change | None:
    """The two values if the variable has changed since the backend started, otherwise None."""
    now = os.environ.get(VARIABLE)
    return None if now == in_force() else Change(in_force(), now)


def check() -> None:
    """Warns, once for each change, if the variable was changed too late.

    Warns:
      UserWarning: names both values and the cure.
    """
    change = changed_visible_devices()
    if change and change != _memory.warned:
        _memory.warned = change
        then, now = ("unset" if value is None else repr(value) for value in change)
        warnings.warn(
            f"{VARIABLE} is {now} now and was {then} when JAX started. The devices of a running process do "
            "not change, so this has no effect. Set it before JAX is used for the first time: outside of the "
            f"script ({VARIABLE}={change.now or '0'} python script.py), or in its first lines.",
            stacklevel=3,
        )


def _value_at_start() -> str | None:
    from .._upstream import backends_are_initialized

    now = os.environ.get(VARIABLE)
    if not backends_are_initialized():
        return now
    original, readable = _original()
    return original if readable and original != now and _sees_more_than(now) else now


def _original() -> tuple[str | None, bool]:
    """The value with which the process began, and whether that is known."""
    try:
        entries = START.read_bytes().split(b"\0")
    except OSError:
        return None, False
    prefix = f"{VARIABLE}=".encode()
    values = [os.fsdecode(entry[len(prefix) :]) for entry in entries if entry.startswith(prefix)]
    return (values[0] if values else None), True


def _sees_more_than(value: str | None) -> bool:
    """Whether this process has more GPUs than the driver would have shown it with this value."""
    import jax

    gpus = sum(d.platform == "gpu" for d in jax.local_devices())
    return value is not None and gpus > _allowed(value)


def _allowed(value: str) -> int:
    """How many GPUs a value shows at most. The driver stops reading at the first entry that names none."""
    count = 0
    for entry in value.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        count += 1
    return count
