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
from .report import OPEN, RIGHT, WRONG, Finding, LeafVerdict, ProgramReport

PROPORTIONAL = 1e-3
"""How far changes may be from a multiple of others, and factors from a number of devices, in float32."""
OTHERWISE, LEAST = 1e-2, 1000
"""Changes farther from a multiple are others than on one device; fewer units of rounding show nothing."""

Change = tuple[np.ndarray, float]


def with_scale(
    report: ProgramReport, step: Any, arguments: tuple, several: Step, alone: tuple[Any, tuple]
) -> ProgramReport:
    """Name the arrays of the state that other rows move by a multiple of what they move on one device.

    Both steps run twice, on one drawn state and two drawn batches. Other changes than multiples are
    left as they are, because statistics of a device's rows are another function on one device, unless
    devices hold slices of the state: then nothing proves that the slices are one model's.
    """
    one_step, one_args = alone
    if any(isinstance(x, TrainStep) for x in (step, one_step)):
        raise TypeError("program: alone= runs functions of arrays, and a train_step keeps its state itself.")
    one = compiled_step(one_step, one_args, {}, None)
    before = _changes(one_step, (one_args, {}), one, one, several)
    after = _changes(step, arguments, several, one, several)
    factors: dict[float, list[str]] = {}
    judged = {x.path: x for x in report.leaves if x.state}
    state = [several.arguments[n] for n in several.state.values()]
    is_divided = not several.copies and any(x.divided for x in state)
    for path, (change, rounding) in after.items():
        alone_change, leaf = before.get(path, (None, 0.0))[0], judged[path]
        factor = _factor(alone_change, change, several.devices)
        if factor is not None:
            factors.setdefault(factor, []).append(path)
            judged[path] = dataclasses.replace(leaf, verdict=WRONG, why=FOUND[1])
        elif is_divided and alone_change is not None and leaf.verdict == RIGHT:
            judged[path] = _as_alone(leaf, alone_change, change, LEAST * rounding)
    on = f"on {several.devices} devices as on one, with the same numbers"
    scales = tuple(
        Finding("scale", tuple(paths), "", f"changes {factor:g} times as much {on}")
        for factor, paths in factors.items()
    )
    leaves = tuple(judged[x.path] if x.state else x for x in report.leaves)
    return dataclasses.replace(report, leaves=leaves, findings=report.findings + scales)


def _as_alone(leaf: LeafVerdict, one: np.ndarray, several: np.ndarray, least: float) -> LeafVerdict:
    """Return "not proven" for an array that changes otherwise than on one device, and else its verdict."""
    size = max(float(np.abs(x).max(initial=0)) for x in (one, several))
    if one.shape != several.shape or size < least:
        return leaf
    factor = float(np.vdot(one, several) / max(np.vdot(one, one), 1e-300))
    distance = float(np.abs(several - factor * one).max()) / size
    if distance < OTHERWISE and factor > 0:
        return leaf
    why = (
        f"it changes otherwise than on one device, by {distance:.1%} of the change: a sum over the axis of a "
        "divided layer is left out, or devices have statistics or random numbers of their own"
    )
    return dataclasses.replace(leaf, verdict=OPEN, why=why)


def _changes(function: Any, arguments: tuple, step: Step, one: Step, several: Step) -> dict[str, Change]:
    """Return by how much the arrays of the state differ after two batches, and their rounding."""
    after = []
    for batch in (1, 2):
        args, kwargs = _drawn(arguments, batch, step, one, several)  # anew, because a step may donate them
        after.append(jax.tree.leaves(function(*args, **kwargs)))
    changes = {}
    for result, argument in step.state.items():
        first, second = (leaves[result] for leaves in after)
        if jnp.issubdtype(first.dtype, jnp.floating):
            difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)
            rounding = float(jnp.finfo(first.dtype).eps * jnp.abs(first).max())
            changes[step.arguments[argument].path] = difference[0] if step.copies else difference, rounding
    return changes


def _drawn(arguments: tuple, batch: int, step: Step, one: Step, several: Step) -> tuple:
    leaves, form = jax.tree.flatten(arguments)
    values = []
    for n, leaf in enumerate(leaves):
        seed = [n, batch if n in several.batch else 0]
        shape = one.arguments[n].shape
        drawn, is_state = _numbers(shape, leaf.dtype, seed), n in step.state.values()
        if is_state and len(shape) > 1 and jnp.issubdtype(leaf.dtype, jnp.floating):
            drawn = drawn / shape[-2]  # the mean of what comes in: no activation is saturated
        values.append(_placed_like(leaf, drawn, is_state))
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
