"""Compare the rows of two runs' batches, and name how they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .digests import COLUMNS, layout_free
from .operation_types import representable
from .run import BITS, MEAN, NORM, BatchLeaf, TappedRun, TappedStep

ROUNDED = 1e-5
"""Relative to the array: what float32 loses in a mean and a deviation of rows."""
SMALL = 1000
"""Elements among which a different one changes the mean by more than rounding does."""


def same_rows(a: TappedStep, b: TappedStep) -> bool:
    """Whether both steps have the same rows, in any order.

    Arrays of one length have rows together. Others have rows of their own, such as the labels of sequences
    whose first axis is the time.
    """
    columns = [_comparable(x, y) for x, y in leaf_pairs(a, b) if not differ_by_rounding(x, y)]
    if not a.batch or any(x.shape != y.shape for x, y in columns):
        return False
    by_length = [[pair for pair in columns if len(pair[0]) == n] for n in {len(x) for x, _ in columns}]
    ids = [[_identities([pair[side] for pair in group]) for side in (0, 1)] for group in by_length]
    return all(np.array_equal(np.sort(one), np.sort(other)) for one, other in ids)


def differ_by_rounding(x: BatchLeaf, y: BatchLeaf) -> bool:
    """Whether rows were computed in both runs, such as normalised advantages, and differ by rounding alone.

    Rounding leaves norms and means as they are, and in large arrays it changes most rows: one row that is
    different would be lost in those. Whole numbers are not computed.
    """
    if x.shape != y.shape or np.isnan([x.values[NORM], y.values[NORM]]).any():
        return False
    size = float(np.prod(x.shape))
    one, other = (np.delete(leaf.values, BITS) for leaf in (x, y))
    one[NORM], other[NORM] = one[NORM] / size**0.5, other[NORM] / size**0.5
    distances, scale = np.abs(one - other), np.abs(one).max()
    near = distances.max() <= ROUNDED * scale and distances[[NORM, MEAN]].max() <= 0.1 * ROUNDED * scale
    changed = (x.digests[0] != y.digests[0]).mean()
    return bool(near and changed >= (0.5 if size > SMALL else 1e-9) and (one != np.round(one)).any())


def leaf_pairs(a: TappedStep, b: TappedStep) -> list[tuple[BatchLeaf, BatchLeaf]]:
    """Return the arrays of both batches: by name if the names agree, else in order."""
    names = list(a.batch) if a.batch.keys() == b.batch.keys() else None
    return list(
        zip(a.batch.values(), (b.batch[n] for n in names) if names else b.batch.values(), strict=False)
    )


def _comparable(x: BatchLeaf, y: BatchLeaf) -> tuple[np.ndarray, np.ndarray]:
    """Return digests of the rows that agree for equal rows; flattened rows have no common positions."""
    index = 0 if x.layout == y.layout else 1
    return x.digests[index], y.digests[index]


def _identities(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return one number for each row, of all its arrays that have as many rows as the first."""
    total = np.zeros(len(columns[0]), np.uint64)
    for i, digests in enumerate(columns):
        if len(digests) == len(total):
            total = total * np.uint64(0x9E3779B97F4A7C15 + 2 * i) + digests
    return total


def sequence(
    run: TappedRun, other: TappedRun, steps: Sequence[int], first_only: bool = False
) -> list[np.ndarray]:
    """Return the rows' numbers of each step in order; comparable with the other run's."""
    rows = []
    for k in steps:
        if k not in run.steps or k not in other.steps:
            continue
        pairs = leaf_pairs(run.steps[k], other.steps[k])[: 1 if first_only else None]
        rows.append(_identities([_comparable(x, y)[0] for x, y in pairs]))
    return rows


def batch_causes(a: TappedRun, b: TappedRun, steps: Sequence[int], k: int) -> list[str]:
    """Name why the rows of step `k` differ; `steps` are those that both runs have."""
    later = [step for step in steps if step >= k]
    rows = [sequence(run, other, later, True) for run, other in ((a, b), (b, a))]
    one, other = rows[0][0], rows[1][0]
    if len(one) == len(other) and np.array_equal(np.sort(one), np.sort(other)):
        return list(_target_causes(a.steps[k], b.steps[k], one, other))
    if len(one) != len(other):
        usual = [max(map(len, sequence(*pair, steps, True))) for pair in ((a, b), (b, a))]
        return [_count_cause(one, other, usual, (a.absent, b.absent))]
    order = list(_order_causes(a, b, steps, k, rows))
    return (
        list(_exchanged(a.steps[k], b.steps[k]))
        or list(_value_causes(a.steps[k], b.steps[k]))
        or order
        or ["run B has other rows than run A: other data"]
    )


def _count_cause(
    one: np.ndarray, other: np.ndarray, usual: Sequence[int], absent: Sequence[Sequence[int]]
) -> str:
    few, many, fewer, more = ("A", "B", one, other) if len(one) < len(other) else ("B", "A", other, one)
    counts = f"{len(one)} rows in run A and {len(other)} in run B"
    if any(absent):
        return f"the step has {counts}: the files of ranks {[*absent[0], *absent[1]]} are missing"
    if usual[0] != usual[1]:
        return f"the step has {counts}: another batch size"
    if np.isin(fewer, more).all():
        return f"run {many} fills the last batch of {len(fewer)} rows up to {len(more)}"
    return f"run {few} takes the {len(fewer)} rows of the last batch, run {many} drops them (drop_last)"


REPEATS = "repeats the order of its first epoch (is the sampler's set_epoch called?)"


def _is_periodic(rows: Sequence[np.ndarray]) -> bool:
    """Return whether all steps have the rows of the steps a period earlier, in their order."""
    return any(all(map(np.array_equal, rows, rows[period:])) for period in range(2, len(rows) - 1))


def _order_causes(
    a: TappedRun, b: TappedRun, steps: Sequence[int], k: int, rows: Sequence[Sequence[np.ndarray]]
) -> Iterator[str]:
    flat = [np.concatenate(r) for r in rows]
    size = len(rows[0][0])
    periodic = [_is_periodic(sequence(*pair, steps, True)) for pair in ((a, b), (b, a))]
    if periodic[0] != periodic[1] and k > steps[0]:  # a run that is not shuffled has another first epoch
        yield f"run {'AB'[periodic[1]]} {REPEATS}"
        return
    repeated = [len(np.unique(r[0])) < len(r[0]) for r in rows]
    if repeated[0] != repeated[1]:
        text = "takes the same rows more than once in a step: do all processes read them?"
        yield f"run {'AB'[repeated[1]]} {text}"
        return
    for i, (name, run, other) in enumerate((("B", b, a), ("A", a, b))):
        earlier = np.concatenate(sequence(run, other, steps, True))
        since = len(earlier) - len(flat[i - 1])
        count = min(since, len(flat[i - 1]))
        if count and np.array_equal(flat[i - 1][:count], earlier[:count]):
            yield f"run {name} {REPEATS}"
            return
    shift = _shift(flat[0], flat[1])
    if shift:
        distance = f"{abs(shift) // size} steps" if abs(shift) % size == 0 else f"{abs(shift)} rows"
        yield f"run B takes the rows of run A {distance} {'earlier: it skips some' if shift > 0 else 'later'}"
        return
    everything = [np.concatenate(sequence(run, other, steps, True)) for run, other in ((a, b), (b, a))]
    common = np.isin(everything[1], everything[0]).mean()
    if common >= 0.3:
        yield f"the same rows in another order ({common:.0%} are in both runs): another shuffle or seed"


def _shift(x: np.ndarray, y: np.ndarray) -> int:
    """Return by how many rows y is ahead of x, or 0."""
    least = max(len(x) // 4, 2)
    for shift in [*np.flatnonzero(x == y[0]), *(-np.flatnonzero(y == x[0]))]:
        count = len(x) - abs(int(shift))
        one, other = (x[shift:], y[:count]) if shift > 0 else (x[:count], y[-shift:])
        if shift and count >= least and np.array_equal(one, other):
            return int(shift)
    return 0


# ------------------------------------------------------------------------------------------- values of rows


def _exchanged(a: TappedStep, b: TappedStep) -> Iterator[str]:
    """Name arrays of one batch that are another array of the other."""
    pairs = leaf_pairs(a, b)
    for i, (x, _) in enumerate(pairs):
        for j, (_, y) in enumerate(pairs):
            if i != j and x.shape == y.shape and np.array_equal(x.digests[0], y.digests[0]):
                yield f"run B's {_label(a, j)} is run A's {_label(a, i)}: arrays of the batch are exchanged"
                return


def _label(step: TappedStep, i: int) -> str:
    name = list(step.batch)[i]
    return f"batch[{name}]" if name.isdigit() else name


def _value_causes(a: TappedStep, b: TappedStep) -> Iterator[str]:
    for i, (x, y) in enumerate(leaf_pairs(a, b)):
        name = _label(a, i)
        if np.array_equal(np.sort(x.digests[0]), np.sort(y.digests[0])):
            continue
        if x.layout == y.layout and np.array_equal(x.digests[1], y.digests[1]):
            moved = int((x.digests[0] != y.digests[0]).sum())
            yield f"{moved} rows of {name} have the same values in other positions: flipped or shifted"
            return
        if layout_free(x.shape) != layout_free(y.shape):
            continue
        # Channels first and last have the same sample, though the order of all elements differs.
        one, other = (
            _elements(leaf) if x.shape == y.shape else leaf.values[len(COLUMNS) :] for leaf in (x, y)
        )
        if np.isnan(one).any() or np.isnan(other).any():
            continue
        kind = representable(other)
        if kind and not representable(one) and np.allclose(one, other, rtol=2.0**-6, atol=1e-30):
            yield f"run B's {name} is rounded to {kind}"
        elif relation := _linear(one, other):
            yield f"run B's {name} is {relation}: scaled or normalised otherwise"


def _elements(leaf: BatchLeaf) -> np.ndarray:
    return leaf.values[len(COLUMNS) :] if leaf.full is None else np.ravel(leaf.full).astype(float)


def _linear(x: np.ndarray, y: np.ndarray) -> str:
    """Return "r * run A's + c" if that is what y is, else nothing."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return ""
    slope, constant = np.polyfit(x, y, 1)
    if np.abs(slope * x + constant - y).max() > 1e-4 * np.ptp(y):
        return ""
    text = f"{slope:.5g} times run A's"
    return text if abs(constant) <= 1e-5 * np.ptp(y) else f"{text} {constant:+.5g}"


def _target_causes(a: TappedStep, b: TappedStep, rows_a: np.ndarray, rows_b: np.ndarray) -> Iterator[str]:
    """Name how labels differ whose inputs are the same."""
    by_row = np.argsort(rows_a, kind="stable"), np.argsort(rows_b, kind="stable")
    for i, (x, y) in enumerate(leaf_pairs(a, b)):
        name, count = _label(a, i), len(x.digests[0])
        order = by_row if count == len(rows_a) else (np.arange(count), np.arange(len(y.digests[0])))
        if x.digests.shape == y.digests.shape and np.array_equal(
            x.digests[0][order[0]], y.digests[0][order[1]]
        ):
            continue
        if x.full is None or y.full is None or x.shape != y.shape:
            relation = _linear(_elements(x), _elements(y)) if x.shape == y.shape else ""
            scaled = f": run B's is {relation}: scaled or normalised otherwise" if relation else ""
            yield f"the inputs are the same, and {name} is not{_repetition(a, b, i) or scaled}"
            continue
        one, other = (np.asarray(leaf.full) for leaf in (x, y))
        yield f"the inputs are the same, and {name} is not: " + _label_text(
            one, other, one[order[0]], other[order[1]]
        )


def _repetition(a: TappedStep, b: TappedStep, i: int) -> str:
    """Return which run has one row everywhere in this array, or another array once more."""
    for run, leaves in zip("AB", zip(*leaf_pairs(a, b), strict=True), strict=True):
        digests = leaves[i].digests[0]
        if (different := len(np.unique(digests))) * 4 <= len(digests):
            return f": its {len(digests)} rows in run {run} are {different} different ones"
        for j, leaf in enumerate(leaves):
            if j != i and leaf.shape == leaves[i].shape and np.array_equal(leaf.digests[0], digests):
                return f": it is {_label(a, j)} once more in run {run}"
    return ""


def _label_text(x: np.ndarray, y: np.ndarray, sorted_x: np.ndarray, sorted_y: np.ndarray) -> str:
    x64, y64 = sorted_x.astype(np.int64), sorted_y.astype(np.int64)
    offset = np.unique(y64 - x64)
    if len(offset) == 1:
        return f"run B's is {offset[0]:+d} everywhere (classes counted from another number)"
    for axis, unit in ((1, "position"), (0, "row")):
        for steps in (1, 2, -1, -2):
            if x.ndim > axis and x.shape[axis] > abs(steps) + 1:
                xs, ys = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
                one, other = (xs[steps:], ys[:-steps]) if steps > 0 else (xs[:steps], ys[-steps:])
                if np.array_equal(one, other) and len(one) > 1:
                    side = "ahead" if steps > 0 else "behind"
                    return f"run B's is shifted by {abs(steps)} {unit}{'s' * (abs(steps) > 1)} ({side})"
    changed = x64 != y64
    values = np.unique(y64[changed])
    if len(values) == 1 and changed.sum() > 1:
        return f"run B's is {values[0]} at {changed.sum()} of {changed.size} positions (ignored ones?)"
    if np.array_equal(np.sort(x64, None), np.sort(y64, None)):
        return "run B's has the same labels at other rows: they were shuffled apart from the inputs"
    return f"{changed.sum()} of {changed.size} labels differ"
