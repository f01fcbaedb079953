"""told: what ranks could do differently after they have the same gradients, for the guard.

torch's ranks each build their optimizer; one with another learning rate trains other weights from then on,
and nobody notices. Here every rank says once what its update is, and the guard compares it at the first step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._tree import is_array
from .divergence_guard import Told
from .update import Update


def tell(update: Update, values: list, optimizer: list, names: Sequence[str]) -> Told:
    """`names` are those of the optimizer's values."""
    state = [(name, x) for name, x in zip(names, optimizer, strict=True) if is_array(x)]
    numbers = [(name, x) for name, x in state if x.size == 1 and not _is_key(x)]
    kinds = _digest("".join(f"{name} {x.dtype}{x.shape}" for name, x in state).encode())
    return (
        ("accumulate", str(update.accumulate)),
        ("on_nonfinite", update.on_nonfinite),
        ("the precision", str(update.precision)),
        ("the optimizer's state", f"{len(state)} arrays ({kinds})"),
        *((f"the optimizer's {name}", str(x.addressable_data(0).item())) for name, x in numbers),
        ("the optimizer's update", _program(update, values, optimizer)),
    )


def _program(update: Update, values: list, optimizer: list) -> str:
    """A digest of what is computed, with constants such as a learning rate."""
    gradients = [values[i] for i in update.parameters]
    closed = jax.make_jaxpr(update.advance)(values, optimizer, gradients, {})
    text = re.sub(r" at 0x[0-9a-f]+", "", str(closed.jaxpr))
    constants = [np.asarray(jax.random.key_data(x) if _is_key(x) else x) for x in closed.consts]
    return _digest(text.encode() + b"".join(x.tobytes() for x in constants))


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
