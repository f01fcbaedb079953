"""The generator's state as the bytes of torch's `Generator.get_state()`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

WORDS = 624

_LAYOUT = np.dtype(
    [
        ("seed", "<u8"),
        ("left", "<i4"),
        ("seeded", "<i4"),
        ("next", "<u8"),
        ("words", "<u8", (WORDS,)),
        ("normal_x", "<f8"),
        ("normal_y", "<f8"),
        ("normal_rho", "<f8"),
        ("normal_is_valid", "<i4"),
        ("unused", "V12"),
    ]
)


class State(NamedTuple):
    """`position`: used numbers of `key`; `fresh`: no draw since seeding; `normal`: a buffered number."""

    seed: int
    key: np.ndarray
    position: int
    fresh: bool
    normal: float | None


def to_bytes(state: State) -> np.ndarray:
    """[5056] uint8. Source: `CPUGeneratorImplState`, ATen/CPUGeneratorImpl.cpp."""
    record = np.zeros((), _LAYOUT)
    record["seed"] = state.seed
    record["seeded"] = 1
    record["words"] = state.key
    # torch counts down to 1, not 0, when all numbers are used.
    record["left"] = WORDS + 1 - state.position
    record["next"] = 0 if state.fresh else state.position
    if state.normal is not None:
        record["normal_y"] = state.normal
        record["normal_is_valid"] = 1
    return np.frombuffer(record.tobytes(), np.uint8).copy()


def from_bytes(data: ArrayLike) -> State:
    array = np.asarray(data)
    if array.dtype != np.uint8 or array.ndim != 1:
        raise TypeError(
            f"set_state expects an array of uint8 with one axis, but got {array.dtype} of shape {array.shape}"
        )
    if array.size != _LAYOUT.itemsize:
        raise RuntimeError(
            f"Expected a CPUGeneratorImplState of size {_LAYOUT.itemsize} but found the input RNG state "
            f"size to be {array.size}"
        )
    record = np.frombuffer(array.tobytes(), _LAYOUT)[0]
    remaining, position = int(record["left"]), int(record["next"])
    used_up = remaining == 1 and position in (0, WORDS)
    if record["seeded"] != 1 or not (used_up or 0 < position == WORDS + 1 - remaining):
        raise RuntimeError("Invalid mt19937 state")
    return State(
        seed=int(record["seed"]),
        key=record["words"].astype(np.uint32),
        position=WORDS if used_up else position,
        fresh=used_up and position == 0,
        normal=float(record["normal_y"]) if record["normal_is_valid"] else None,
    )
