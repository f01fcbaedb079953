"""stamp: when a report or picture was made, with which versions and by which command."""

from __future__ import annotations

import os
import re
import sys
import time
from importlib.metadata import PackageNotFoundError, version

SHOWN = ("jaxpar", "jax", "flax", "torch")  # the packages that a picture names, where they are loaded
SECRET = re.compile(r"(--?[\w-]*(?:token|secret|password|key)[\w-]*)[= ]\S+", re.I)
LONGEST = 200  # characters of a command


def when() -> str:
    """Return the time in UTC; SOURCE_DATE_EPOCH, seconds since 1970, overrides it."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is not None and not re.fullmatch(r"\d{1,11}", epoch):
        raise ValueError(f"SOURCE_DATE_EPOCH={epoch!r} is no number of seconds since 1970.")
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(None if epoch is None else int(epoch)))


def command() -> str:
    """Return how this process was started: the program without its folders, no secrets, on one line."""
    program, *arguments = sys.argv or [""]
    name = os.path.basename(program)
    if name == "__main__.py":  # python -m package
        name = "python -m " + os.path.basename(os.path.dirname(program))
    shown = SECRET.sub(r"\1=...", " ".join([name, *arguments]))
    shown = " ".join(shown.split())
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def versions() -> str:
    return ", ".join(f"{name} {installed(name)}" for name in SHOWN if name in sys.modules)


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def line() -> str:
    """Return time, versions and command, for the foot of a picture."""
    return " · ".join(filter(None, (when(), versions(), command())))
