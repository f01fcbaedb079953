"""The tested versions of torch, and what is said of others."""

from __future__ import annotations

import warnings

import torch

OLDEST, NEWEST = "2.13", "2.15"
TESTED = f"{OLDEST} to {NEWEST}"


def warn_untested() -> None:
    """Warns of a torch outside of the tested versions."""
    release = [int(word) for word in torch.__version__.split(".")[:2]]
    oldest, newest = ([int(word) for word in version.split(".")] for version in (OLDEST, NEWEST))
    if not oldest <= release <= newest:
        warnings.warn(
            f"torch_ref was tested with torch {TESTED}, and this is torch {torch.__version__}: run "
            "tests/reference before you trust its answers.",
            stacklevel=4,
        )


class UnsupportedTorch(RuntimeError):
    """The installed torch lacks something that pretending has to replace.

    The names replaced are private to torch, and torch moves them between releases. Install the
    tested releases, or run on a machine with enough CUDA devices: there nothing is replaced.
    """

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"cannot pretend to have devices: torch {torch.__version__} has no {missing}; "
            f"torch_ref was tested with torch {TESTED}"
        )
