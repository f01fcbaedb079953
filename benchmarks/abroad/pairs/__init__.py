"""The table of pairs: a file for each kind of model."""

from __future__ import annotations

from . import decoders, encoders, images

SECTIONS = {
    "Encoders of text": encoders.PAIRS,
    "Decoders": decoders.PAIRS,
    "Images": images.PAIRS,
}
PAIRS = tuple(pair for section in SECTIONS.values() for pair in section)
BY_NAME = {pair.name: pair for pair in PAIRS}
