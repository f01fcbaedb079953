"""The models of pytorch/examples, as their scripts have them."""

from __future__ import annotations

from ..case import Case

CASES: tuple[Case, ...] = ()
