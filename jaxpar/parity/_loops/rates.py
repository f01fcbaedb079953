"""Name how the rates of two loops differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from .fitting import Fit
from .schedules import other_end, power, rate_limit, ratio_pieces, shapes

Rates = Mapping[str, Sequence[float]]
Row = tuple[np.ndarray, np.ndarray, np.ndarray]  # torch's rates, JAX's, and their rounding errors
Candidate = tuple[str, Callable[[np.ndarray], np.ndarray]]

NEAR = 2e-7
"""Relative to the largest rate: optax's schedules divide an int32 count in float32, even with x64 enabled."""
VAGUE = 1e-4
"""The relative error of a rate that is too uncertain to compare."""
LEAST = 3
"""Rates that a named change must explain."""


def rate_changes(torch_rates: Rates, result: Fit) -> tuple[str, ...] | None:
    """Return sentences that name the difference; none if the rates are equal, None if no name fits."""
    tables = {name: _table(torch_rates, result, name) for name in result.rates}
    different = {name: table for name, table in tables.items() if not _equal(*table)}
    if not different:
        return ()
    ratio = _common_ratio(different.values())
    # A schedule may count all updates, or those alone that are not skipped.
    for rows in (list(different.values()), [_taken(*table) for table in different.values()]):
        count = min(len(q) for q, _, _ in rows)
        texts = [_first_fit(rows, _candidates(count))]
        if ratio is None:  # few steps of a schedule may be far too late, or too seldom: then both are named
            texts.append(_first_fit(rows, _far_shifts(count)))
        if any(texts):
            return ("; or ".join(text + _whose(different, tables) for text in texts if text),)
    if ratio == 0:
        return (f"torch trains it (JAX does not){_whose(different, tables)}",)
    if ratio is not None:
        return (
            f"torch's rate is not JAX's (JAX's is {ratio:.6g} times as large){_whose(different, tables)}",
        )
    names = (ratio_pieces, rate_limit, other_end, power)
    sentences = {next(filter(None, (name(q, r) for name in names)), "") for q, r, _ in different.values()}
    text = sentences.pop()
    return (text + _whose(different, tables),) if text and not sentences else None


def _first_fit(rows: Sequence[Row], candidates: Iterable[Candidate]) -> str:
    """Return the first sentence whose change of torch's rates makes JAX's, or nothing."""
    return next(
        (text for text, change in candidates if all(_fits(change(q), r, bound, q) for q, r, bound in rows)),
        "",
    )


def equal_rates(torch_rates: Rates, result: Fit, names: Iterable[str]) -> bool:
    """Whether the rates of these leaves are equal, up to rounding."""
    return all(_equal(*_table(torch_rates, result, name)) for name in names)


def first_rates(torch_rates: Rates, result: Fit) -> str:
    """Return the first update with different rates, and how the schedules differ in shape."""
    updates = []
    for name in result.rates:
        q, r, bound = _table(torch_rates, result, name)
        with np.errstate(invalid="ignore"):
            unequal = np.abs(q - r) > NEAR * np.nanmax(np.abs(q), initial=0.0) + bound
        updates += [(int(i), name) for i in np.flatnonzero(unequal)]
    i, name = min(updates)
    rates = torch_rates[name][i], result.rates[name][i]
    leaf = f" ({name})" if len(result.rates) > 1 else ""
    shape = shapes(*_table(torch_rates, result, name)[:2])
    with np.errstate(all="ignore"):
        ratios = [np.divide(result.rates[leaf][i], torch_rates[leaf][i]) for leaf in result.rates]
        by_other_factors = np.nanmax(ratios) - np.nanmin(ratios) > VAGUE * np.nanmax(np.abs(ratios))
    if by_other_factors:
        shape = "; other arrays differ by other factors"
    return f"the rates differ from update {i + 1} on: {rates[0]:.6g} and {rates[1]:.6g}{leaf}{shape}"


def _table(torch_rates: Rates, result: Fit, name: str) -> Row:
    """Return torch's rates, JAX's and their rounding errors, in the updates that both loops make."""
    columns = torch_rates[name], result.rates[name], result.bounds[name]
    count = min(map(len, columns))
    q, r, bound = (np.array(column[:count], float) for column in columns)
    return q, r, bound


def _taken(q: np.ndarray, r: np.ndarray, bound: np.ndarray) -> Row:
    """Return the rates of updates that the first loop takes."""
    applied = np.isfinite(q)
    return q[applied], r[applied], bound[applied]


def _equal(q: np.ndarray, r: np.ndarray, bound: np.ndarray) -> bool:
    # NaN: an update without a gradient, or a rate beyond the end of a shifted schedule.
    unknown = np.isnan(q) | np.isnan(r) | ~np.isfinite(bound)
    largest = np.abs(q[np.isfinite(q)]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        return bool((unknown | (np.abs(q - r) <= NEAR * largest + bound)).all())


def _fits(changed: np.ndarray, r: np.ndarray, bound: np.ndarray, q: np.ndarray) -> bool:
    """Whether changed rates are JAX's: enough to exclude chance, and some that differ from torch's."""
    certain = np.isfinite(changed) & np.isfinite(r) & np.isfinite(bound)
    return (
        certain.sum() >= LEAST
        and _equal(changed, r, bound)
        and not _equal(q[certain], r[certain], bound[certain])
    )


def _common_ratio(tables: Iterable[Row]) -> float | None:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios, errors = (
            np.concatenate(columns)
            for columns in zip(*[(r / q, bound / np.abs(q)) for q, r, bound in tables], strict=True)
        )
    certain = np.isfinite(ratios) & (errors < VAGUE * np.abs(ratios))
    certain |= np.isfinite(ratios) & (errors < NEAR)
    if not certain.any():
        return None
    middle = float(np.median(ratios[certain]))
    spread = np.abs(ratios - middle)[certain]
    return middle if (spread <= 2 * NEAR * abs(middle) + 2 * errors[certain]).all() else None


def _whose(different: Mapping, tables: Mapping) -> str:
    return "" if len(different) == len(tables) else f", for {', '.join(different)}"


def _far_shifts(count: int) -> Iterator[Candidate]:
    """Yield shifts by many updates; a schedule that begins so late has its first rate until then."""
    for steps in range(4, count // 2 + 1):
        yield f"the rate's schedule (JAX's is {steps} updates ahead)", partial(_shifted, steps=steps)
        yield f"the rate's schedule (JAX's is {steps} updates late)", partial(_delayed, steps=steps)


def _candidates(count: int) -> Iterator[Candidate]:
    """Yield sentences with the function that makes JAX's rates of torch's."""
    schedule = "the rate's schedule"
    for steps in range(1, min(4, count)):
        updates = "1 update" if steps == 1 else f"{steps} updates"
        yield f"{schedule} (JAX's is {updates} ahead)", partial(_shifted, steps=steps)
        yield f"{schedule} (JAX's is {updates} late)", partial(_shifted, steps=-steps)
    yield f"{schedule} (JAX's rate stays constant)", lambda q: np.full_like(q, q[0])
    for period in range(2, max(count // 2 + 1, min(count, 5))):
        text = f"{schedule} (JAX's moves on once in {period} updates, torch's in each"
        yield f"{text})", partial(_repeated, period=period)
        yield f"{text}, from another start)", partial(_repeated, period=period, start=1)
        text = f"{schedule} (JAX's keeps its rate for {period} updates, torch's changes in each)"
        yield text, partial(_held, period=period)
        text = f"{schedule} (JAX's moves on in each update {period} times as far as torch's)"
        yield text, partial(_stretched, period=period)
        yield text, partial(_stretched, period=period, start=period - 1)
        text = f"{schedule} (torch's moves on once in {period} updates, JAX's in each)"
        yield text, partial(_unrepeated, period=period)
    for steps, direction in ((1, "ahead"), (-1, "late")):
        for end in range(1, count):
            text = f"the warm-up (JAX's is 1 update {direction} in the first {end} updates)"
            yield text, partial(_shifted_until, steps=steps, end=end)
            text = f"{schedule} after update {end} (JAX's is 1 update {direction} from there on)"
            yield text, partial(_shifted_after, steps=steps, start=end)


def _shifted_until(q: np.ndarray, steps: int, end: int) -> np.ndarray:
    return np.concatenate([_shifted(q, steps)[:end], q[end:]])


def _shifted_after(q: np.ndarray, steps: int, start: int) -> np.ndarray:
    return np.concatenate([q[:start], _shifted(q, steps)[start:]])


def _repeated(q: np.ndarray, period: int, start: int = 0) -> np.ndarray:
    return q[(np.arange(len(q)) + start) // period]


def _held(q: np.ndarray, period: int) -> np.ndarray:
    """Return the first rate of each period, or infinity if torch's rates rarely change."""
    if (np.diff(q) == 0).mean() > 0.5:
        return np.full_like(q, np.inf)
    return q[np.arange(len(q)) // period * period]


def _shifted(q: np.ndarray, steps: int) -> np.ndarray:
    unknown = np.full(abs(steps), np.nan)
    return np.concatenate([q[steps:], unknown] if steps > 0 else [unknown, q[:steps]])


def _delayed(q: np.ndarray, steps: int) -> np.ndarray:
    return np.concatenate([np.full(steps, q[0]), q[:-steps]])


def _stretched(q: np.ndarray, period: int, start: int = 0) -> np.ndarray:
    indices = np.arange(len(q)) * period + start
    return np.where(indices < len(q), q[np.minimum(indices, len(q) - 1)], np.nan)


def _unrepeated(q: np.ndarray, period: int) -> np.ndarray:
    """Return NaN unless each rate of torch's is repeated `period` times; then JAX's are its distinct ones."""
    if not np.array_equal(q, q[np.arange(len(q)) // period * period], equal_nan=True):
        return np.full_like(q, np.inf)
    distinct = q[::period]
    return np.concatenate([distinct, np.full(len(q) - len(distinct), np.nan)])
