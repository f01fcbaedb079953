"""The table of pairs: a file for each kind of model."""

from __future__ import annotations

from . import decoders, encoders, images, translators

SECTIONS = {
    "Encoders of text": encoders.PAIRS,
    "Decoders of text": decoders.PAIRS,
    "Encoders with decoders, and sound": translators.PAIRS,
    "Images": images.PAIRS,
}
PAIRS = tuple(pair for section in SECTIONS.values() for pair in section)
BY_NAME = {pair.name: pair for pair in PAIRS}
