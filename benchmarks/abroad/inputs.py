"""What models are called with, in torch and in Flax.

Flax's modules lie below the models of transformers, which fill in positions and masks: here they are given.
Rows are of different lengths, so that a mask that is not used shows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .pair import Inputs

Both = tuple[Inputs, Inputs]
WORDS = 30
"""Of the vocabulary; 0 to 2 are left to padding, beginning and end."""
ROWS, LENGTH = 2, 7


def words(random: np.random.RandomState) -> np.ndarray:
    return random.randint(3, WORDS, (ROWS, LENGTH))


def positions() -> np.ndarray:
    return np.tile(np.arange(LENGTH), (ROWS, 1))


def padding() -> np.ndarray:
    """The second row has two words less."""
    return (np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 2]])).astype(np.int64)


def text(*names: str, flax: tuple[str, ...] = (), offset: int = 0) -> Callable[[np.random.RandomState], Both]:
    """Words and their mask, and others by name; what is in `flax` is for Flax alone."""

    def make(random: np.random.RandomState) -> Both:
        every = {
            "input_ids": words(random),
            "attention_mask": padding(),
            "token_type_ids": random.randint(0, 2, (ROWS, LENGTH)),
            "position_ids": positions() + offset,
            "head_mask": None,
        }
        there = {name: every[name] for name in ("input_ids", "attention_mask", *names)}
        return there, there | {name: every[name] for name in flax}

    return make


def two_texts(*flax: str) -> Callable[[np.random.RandomState], Both]:
    """Of an encoder and a decoder."""

    def make(random: np.random.RandomState) -> Both:
        there = {"input_ids": words(random), "attention_mask": padding()}
        there |= {"decoder_input_ids": words(random), "decoder_attention_mask": padding()}
        return there, there | {name: positions() for name in flax}

    return make


def image(size: int = 16, name: str = "pixel_values") -> Callable[[np.random.RandomState], Both]:
    def make(random: np.random.RandomState) -> Both:
        there = {name: random.randn(ROWS, 3, size, size)}
        return there, dict(there)

    return make


def image_and_text(*names: str) -> Callable[[np.random.RandomState], Both]:
    def make(random: np.random.RandomState) -> Both:
        there, _ = text("position_ids", *names)(random)
        there |= {"pixel_values": random.randn(ROWS, 3, 16, 16)}
        return there, dict(there)

    return make


def waves(random: np.random.RandomState) -> Both:
    """Sound, as its samples."""
    there = {"input_values": random.randn(ROWS, 100)}
    return there, there | {"return_dict": True}


def speech(random: np.random.RandomState) -> Both:
    """Sound, as its frequencies in 20 windows, and words."""
    there = {
        "input_features": random.randn(ROWS, 8, 20),
        "decoder_input_ids": words(random),
        "decoder_attention_mask": padding(),
    }
    return there, there | {"decoder_position_ids": positions()}


def denoising(random: np.random.RandomState) -> Both:
    there = {
        "sample": random.randn(ROWS, 4, 8, 8),
        "timestep": np.array([3, 500]),
        "encoder_hidden_states": random.randn(ROWS, 5, 16),
    }
    here = dict(there)
    here["timesteps"] = here.pop("timestep")
    return there, here
