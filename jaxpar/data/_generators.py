"""The generators that samplers draw from, and their state as text; `seed=` replaces torch's default one."""

from __future__ import annotations

import base64

import numpy as np

from ..random import Generator


def source(generator: Generator | None, seed: int | Generator | None, function: str) -> Generator:
    """Return `generator`, or the one for `seed` (torch's default one), or a randomly seeded one."""
    if generator is not None:
        if not isinstance(generator, Generator):
            raise TypeError(
                f"{function}: generator must be a jaxpar.random.Generator, not {type(generator).__name__}. "
                "For a torch generator g: jaxpar.random.Generator(0).set_state(g.get_state().numpy())."
            )
        if seed is not None:
            raise ValueError(f"{function}: give either generator or seed (torch's default one), not both.")
        return generator
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


def generator_to_text(generator: Generator) -> str:
    return base64.b64encode(generator.get_state().tobytes()).decode()


def generator_from_text(generator: Generator, text: str) -> None:
    generator.set_state(np.frombuffer(base64.b64decode(text), np.uint8))
