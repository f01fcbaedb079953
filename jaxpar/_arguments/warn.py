"""Warnings that point to the line that called the library, regardless of the call depth."""

from __future__ import annotations

import sys
import warnings

_LIBRARIES = {"jaxpar", "flax", "jax"}


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called the library, like `skip_file_prefixes`, which Python has from 3.12 on."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
