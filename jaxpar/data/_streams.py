"""Where a sampler's random numbers come from, and how its place is kept.

torch has one default generator for the whole process. Here there is none: what stands for it is
given as `seed=`, a number or a `Generator` that several samplers and loaders draw from in turn.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ..random import Generator


def given(generator: Any, function: str) -> Generator | None:
    """The generator that a user gave, or None.

    Raises:
      TypeError: it is none of `jaxpar.random`'s.
    """
    if generator is None or isinstance(generator, Generator):
        return generator
    raise TypeError(
        f"{function}: generator must be a jaxpar.random.Generator, not {type(generator).__name__}. For a "
        "torch generator g: jaxpar.random.Generator(0).set_state(g.get_state().numpy())."
    )


def default(seed: Any, function: str) -> Generator:
    """What stands for torch's default generator: of a seed, a given one, or the operating system's."""
    if seed is None:
        generator = Generator()
        generator.seed()
        return generator
    try:
        return seed if isinstance(seed, Generator) else Generator(seed)
    except RuntimeError as error:
        raise TypeError(
            f"{function}: seed must be an int or a jaxpar.random.Generator, not {seed!r}."
        ) from error


def to_text(generator: Generator) -> str:
    """The generator's place as text, so that JSON can keep it."""
    return base64.b64encode(generator.get_state().tobytes()).decode()


def from_text(generator: Generator, text: str) -> None:
    generator.set_state(np.frombuffer(base64.b64decode(text), np.uint8))
