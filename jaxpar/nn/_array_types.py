"""Arrays that layers and losses take: what torch refuses and JAX would take."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import jax
from jax.typing import ArrayLike

from .._arguments import FINITE, FLOATING

Floating: TypeAlias = Annotated[jax.Array, FLOATING]  # JAX would promote integers, which torch refuses
Finite: TypeAlias = Annotated[ArrayLike, FINITE]  # the weights of a loss: torch trains on with NaN
