"""The tested versions of torch, and the warning and error for others."""

from __future__ import annotations

import warnings

import torch

OLDEST, NEWEST = "2.13", "2.15"
TESTED = f"{OLDEST} to {NEWEST}"


def warn_untested() -> None:
    """Warn if torch is not a tested version."""
    release = [int(part) for part in torch.__version__.split(".")[:2]]
    oldest, newest = ([int(part) for part in version.split(".")] for version in (OLDEST, NEWEST))
    if not oldest <= release <= newest:
        warnings.warn(
            f"torch_ref was tested with torch {TESTED}, and this is torch {torch.__version__}: run "
            "tests/reference before you trust its answers.",
            stacklevel=4,
        )


class UnsupportedTorch(RuntimeError):
    """The installed torch lacks a name that `pretend` has to replace.

    These names are private to torch, and move between releases. Install a tested release, or run on a
    machine with enough CUDA devices, where nothing is replaced.
    """

    def __init__(self, absent: str) -> None:
        super().__init__(
            f"cannot pretend to have devices: torch {torch.__version__} has no {absent}; "
            f"torch_ref was tested with torch {TESTED}"
        )
