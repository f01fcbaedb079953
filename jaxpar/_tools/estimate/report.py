"""Estimate: the figures of a training step, and the ways to show them."""

from __future__ import annotations

import json
import os

from rich.console import RenderableType

from . import chart, table
from .figures import Figures


class Estimate(Figures):
    __doc__ = Figures.__doc__

    def to_json(self) -> str:
        """The figures as a JSON document."""
        return json.dumps(self.as_dict(), indent=1, allow_nan=False)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture; the ending of `path` says the format (`.png`, `.svg`, `.pdf`).

        Raises:
          ImportError: matplotlib is not installed.
        """
        chart.draw(self, path)

    def __rich__(self) -> RenderableType:
        return table.text(self)
