"""program_parts: a description of a compiled step, in names and digests that ranks can compare."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .._parallel.same_program import programs_in
from .._upstream import Jaxpr, Literal, opened

NUMBERS = 40  # how many are written out; more are digested


def program_parts(traced: jax.stages.Traced) -> dict[str, str]:
    """Return the parts by name, the plainest first."""
    counts: collections.Counter[str] = collections.Counter()
    numbers: set[str] = set()
    constants = hashlib.sha256()
    for jaxpr, consts in _programs(traced.jaxpr):
        for equation in jaxpr.eqns:
            counts[equation.primitive.name] += 1
            values = (x.val for x in equation.invars if isinstance(x, Literal))
            numbers |= {f"{value}" for value in values if np.ndim(value) == 0}
        for value in consts:
            constants.update(_bytes(value))
    listed = sorted(numbers)
    # The last digest finds every difference; the other entries let the error name one.
    return {
        "the random implementation": str(jax.config.jax_default_prng_impl),  # type: ignore[attr-defined]
        "what goes into the step": digest(str(traced.jaxpr.in_avals)),
        **{f"how often the step does {name}": str(count) for name, count in sorted(counts.items())},
        "the numbers in the step": ", ".join(listed) if len(listed) <= NUMBERS else digest(" ".join(listed)),
        "the arrays that the step closes over": constants.hexdigest()[:12],
        "the program of the step": digest(traced.lower().as_text()),
    }


def _programs(program: Any) -> Iterator[tuple[Jaxpr, list[Any]]]:
    """Yield a program and all programs that it runs, each with its constants."""
    jaxpr, consts = opened(program)
    yield jaxpr, consts
    for equation in jaxpr.eqns:
        for inner in programs_in(equation.params):
            yield from _programs(inner)


def _bytes(value: Any) -> bytes:
    if not hasattr(value, "dtype"):
        return repr(value).encode()
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    # Parts of a global array are on other processes' devices, where this process cannot read them.
    if getattr(value, "is_fully_addressable", True):
        return f"{value.dtype}{value.shape}".encode() + np.asarray(value).tobytes()
    return f"{value.dtype}{value.shape}".encode()


def digest(text: str, *content: bytes) -> str:
    return hashlib.sha256(text.encode() + b"".join(content)).hexdigest()[:12]
