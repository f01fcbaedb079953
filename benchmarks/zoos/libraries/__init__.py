"""The rows of each library."""

from __future__ import annotations

from . import bonsai_, eqxvision_, haiku_, linen_

PAIRS = (*eqxvision_.PAIRS, *bonsai_.PAIRS, *linen_.PAIRS, *haiku_.PAIRS)
BY_NAME = {pair.name: pair for pair in PAIRS}
