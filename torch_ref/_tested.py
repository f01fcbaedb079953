"""The tested version of torch, and the error for one that is built differently."""

from __future__ import annotations

import torch

TESTED = "2.13"


class UnsupportedTorch(RuntimeError):
    """The installed torch lacks something that pretending has to replace.

    The names replaced are private to torch, and torch moves them between releases. Install the
    tested release, or run on a machine with enough CUDA devices: there nothing is replaced.
    """

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"cannot pretend to have devices: torch {torch.__version__} has no {missing}; "
            f"torch_ref was tested with torch {TESTED}"
        )
