"""Run a step on one device and on several, on the same numbers: do their updates differ by a factor?"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._training.train_step import TrainStep
from .arguments import Step, compiled_step
from .judge import FOUND
from .report import WRONG, Finding, ProgramReport

PROPORTIONAL = 1e-3
"""How far changes may be from a multiple of others, and factors from a number of devices, in float32."""


def with_scale(
    report: ProgramReport, step: Any, arguments: tuple, several: Step, alone: tuple[Any, tuple]
) -> ProgramReport:
    """Name the arrays of the state that other rows move by a multiple of what they move on one device.

    Both steps run twice, on one drawn state and two drawn batches. Other changes than multiples are
    left as they are: statistics of a device's rows are another function on one device.
    """
    one_step, one_args = alone
    if any(isinstance(x, TrainStep) for x in (step, one_step)):
        raise TypeError("program: alone= runs functions of arrays, and a train_step keeps its state itself.")
    one = compiled_step(one_step, one_args, {}, None)
    before = _changes(one_step, (one_args, {}), one, one, several)
    after = _changes(step, arguments, several, one, several)
    factors: dict[float, list[str]] = {}
    for path, change in after.items():
        factor = _factor(before.get(path), change, several.devices)
        if factor is not None:
            factors.setdefault(factor, []).append(path)
    on = f"on {several.devices} devices as on one, with the same numbers"
    scales = tuple(
        Finding("scale", tuple(paths), "", f"changes {factor:g} times as much {on}")
        for factor, paths in factors.items()
    )
    named = {path for paths in factors.values() for path in paths}
    judged = tuple(
        dataclasses.replace(x, verdict=WRONG, why=FOUND[1]) if x.state and x.path in named else x
        for x in report.leaves
    )
    return dataclasses.replace(report, leaves=judged, findings=report.findings + scales)


def _changes(function: Any, arguments: tuple, step: Step, one: Step, several: Step) -> dict[str, np.ndarray]:
    """Return by how much the arrays of the state differ after two batches."""
    after = []
    for batch in (1, 2):
        args, kwargs = _drawn(arguments, batch, step, one, several)  # anew, because a step may donate them
        after.append(jax.tree.leaves(function(*args, **kwargs)))
    changes = {}
    for result, argument in step.state.items():
        first, second = (leaves[result] for leaves in after)
        if jnp.issubdtype(first.dtype, jnp.floating):
            difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)
            changes[step.arguments[argument].path] = difference[0] if step.copies else difference
    return changes


def _drawn(arguments: tuple, batch: int, step: Step, one: Step, several: Step) -> tuple:
    leaves, form = jax.tree.flatten(arguments)
    values = []
    for n, leaf in enumerate(leaves):
        seed = [n, batch if n in several.batch else 0]
        shape = one.arguments[n].shape
        value = _placed_like(leaf, _numbers(shape, leaf.dtype, seed), n in step.state.values())
        values.append(value)
    return jax.tree.unflatten(form, values)


def _numbers(shape: tuple[int, ...], kind: Any, seed: list[int]) -> Any:
    """Draw positive numbers, so that they may be squares; of integers only 0 and 1, which are indices."""
    random = np.random.default_rng(seed)
    if jnp.issubdtype(kind, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(seed[0]), shape) if shape else jax.random.key(seed[0])
    if jnp.issubdtype(kind, jnp.floating):
        return jnp.asarray(random.uniform(0.1, 1, shape), kind)
    return jnp.asarray(random.integers(0, 2, shape), kind)


def _placed_like(leaf: Any, value: Any, is_state: bool) -> Any:
    if value.shape != leaf.shape:
        if is_state and value.shape[1:] == leaf.shape[1:] and value.shape[0] == 1:
            value = jnp.broadcast_to(value, leaf.shape)  # jax.pmap's copies
        elif value.size == leaf.size and not is_state:
            value = value.reshape(leaf.shape)
        else:
            raise ValueError(
                f"program: an argument is {list(value.shape)} on one device and {list(leaf.shape)} on "
                "several. Give both the same rows in all."
            )
    sharding = getattr(leaf, "sharding", None)
    return value if sharding is None else jax.device_put(value, sharding)


def _factor(one: np.ndarray | None, several: np.ndarray, devices: int) -> float | None:
    """Return how many times the second change the first is, if that comes of a number of devices."""
    if one is None or one.shape != several.shape or not one.any() or not several.any():
        return None
    factor = float(np.vdot(one, several) / np.vdot(one, one))
    error = np.abs(several - factor * one).max() / np.abs(several).max()
    counts = [n for n in range(2, devices + 1) if devices % n == 0]
    for count in counts:
        for expected in (count, 1 / count, count**2, 1 / count**2):
            if error < PROPORTIONAL and abs(factor / expected - 1) < PROPORTIONAL:
                return float(expected)
    return None
