"""Warnings that point to the line that called the Checkpointer, regardless of the call depth."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

PACKAGE = str(Path(__file__).parent)


def warn(text: str) -> None:
    """Warn like `warnings.warn` with `skip_file_prefixes`, which Python has from 3.12 on."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
