"""A check that every function with a generator shares."""

from __future__ import annotations

from typing import Any

from ._generator import Generator


def checked_generator(function: str, generator: Any) -> Generator:
    if not isinstance(generator, Generator):
        raise TypeError(
            f"{function}: generator must be a jaxpar.random.Generator, not {type(generator).__name__}. "
            "For a torch generator g: jaxpar.random.Generator(0).set_state(g.get_state().numpy())."
        )
    return generator
