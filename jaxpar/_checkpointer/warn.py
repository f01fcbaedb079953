"""Warnings that show the line which called the Checkpointer, however deep below it they come from."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

PACKAGE = str(Path(__file__).parent)


def warn(text: str) -> None:
    """What `skip_file_prefixes` of `warnings.warn` does from Python 3.12 on."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
