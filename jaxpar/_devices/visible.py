"""Warn if CUDA_VISIBLE_DEVICES was changed too late.

The driver reads the variable once, when JAX's backend starts. A script that sets it after its first array
continues with the same devices, without a message, as with torch.cuda. If the backend runs already, the
present value is assumed, because scripts set the variable in their first lines, unless the backend sees more
GPUs than it allows. Linux keeps the initial value in /proc/self/environ, unaffected by `os.environ`.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

VARIABLE = "CUDA_VISIBLE_DEVICES"
START = Path("/proc/self/environ")


class Change(NamedTuple):
    """The variable's value when the backend started and now; None where it is not set."""

    then: str | None
    now: str | None


class _Memory:
    """The state of this process, in one object so that a test can replace it."""

    then: str | None = None
    recorded = False
    warned: Change | None = None


_memory = _Memory()


def remember() -> None:
    """Store the value with which the backend starts, or has started; call it before the devices are read."""
    if not _memory.recorded:
        _memory.then, _memory.recorded = _value_at_start(), True


def in_force() -> str | None:
    return _memory.then if _memory.recorded else os.environ.get(VARIABLE)


def changed_visible_devices() -> Change | None:
    now = os.environ.get(VARIABLE)
    return None if now == in_force() else Change(in_force(), now)


def check() -> None:
    change = changed_visible_devices()
    # Every call of `devices` comes here, and one warning per change is enough.
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
    try:
        entries = START.read_bytes().split(b"\0")
    except OSError:
        return None, False
    prefix = f"{VARIABLE}=".encode()
    values = [os.fsdecode(entry[len(prefix) :]) for entry in entries if entry.startswith(prefix)]
    return (values[0] if values else None), True


def _sees_more_than(value: str | None) -> bool:
    import jax

    gpus = sum(d.platform == "gpu" for d in jax.local_devices())
    return value is not None and gpus > _allowed(value)


def _allowed(value: str) -> int:
    # The driver stops reading at the first entry that is empty or negative.
    invalid = [not entry.strip() or entry.strip().startswith("-") for entry in value.split(",")]
    return [*invalid, True].index(True)
