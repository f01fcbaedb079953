"""Match the arrays of two runs: by `names`, by names that mean the same, and by shape and initial values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .digests import layout_free
from .run import NORM, Table, TappedRun, TappedStep

WRAPPERS = frozenset({"module", "params", "model", "_orig_mod", "value", "batch_stats"})
SAME = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "mean": "running_mean",
    "var": "running_var",
    "mu": "exp_avg",
    "nu": "exp_avg_sq",
    "trace": "momentum_buffer",
    "square_avg": "exp_avg_sq",
}
STATE = ("exp_avg", "exp_avg_sq", "momentum_buffer", "acc_delta", "sum", "max_exp_avg_sq")
COUNTERS = frozenset({"num_batches_tracked", "count", "step"})


def plain_name(name: str, part: str) -> str:
    """Return a name without wrappers, in torch's terms: `params.fc.kernel` is `fc.weight`."""
    parts = [SAME.get(text, text) for text in name.split(".") if text not in WRAPPERS]
    if part == "optimizer":
        kinds = [i for i, text in enumerate(parts) if text in STATE]
        # Of optax's nested states, the kind and the parameter count; the way there does not.
        parts = parts[kinds[0] :] if kinds else parts
    return ".".join(parts)


@dataclass(frozen=True)
class MatchedNames:
    """Pairs of names for each part."""

    pairs: Mapping[str, list[tuple[str, str]]]
    unmatched: tuple[str, ...]


def matched(a: TappedRun, b: TappedRun, names: Mapping[str, str] | None) -> MatchedNames:
    """Match the arrays of both runs; `names` maps names of parameters in A to those in B.

    Raises:
      ValueError: `names` has a name that no run has.
    """
    tables = {
        part: (_union(a, part), _union(b, part)) for part in ("parameters", "gradients", "optimizer", "extra")
    }
    tapped = [
        {name for pair in tables.values() for table in pair[side : side + 1] if table for name in table.names}
        for side in (0, 1)
    ]
    for name, other in (names or {}).items():
        for text, side in ((name, 0), (other, 1)):
            if text not in tapped[side]:
                raise ValueError(
                    f"parity.bisect: names has {text}, which run {'AB'[side]} did not tap; it has "
                    f"{', '.join(sorted(tapped[side])[:8])}."
                )
    parameters = dict(names or {})
    pairs: dict[str, list[tuple[str, str]]] = {}
    unmatched: list[str] = []
    for part, (x, y) in tables.items():
        if x is None or y is None:
            continue
        pairs[part] = list(_pairs(part, x, y, parameters))
        if part == "parameters":
            parameters |= pairs[part]
        matched_names = [{pair[side] for pair in pairs[part]} for side in (0, 1)]
        for side, table in enumerate((x, y)):
            unmatched += [
                f"{part} {name}, which has no counterpart in run {'BA'[side]}"
                for name in table.names
                if name not in matched_names[side] and COUNTERS.isdisjoint(name.split("."))
            ]
    return MatchedNames(pairs, tuple(unmatched))


def _union(run: TappedRun, part: str) -> Table | None:
    """Return the first row of every array: of several networks, each may be tapped in a step of its own."""
    tables: dict[tuple[str, ...], Table] = {}
    for step in (run.start, *run.steps.values()):
        if part in step.parts:
            tables.setdefault(step.parts[part].names, step.parts[part])
    names = dict.fromkeys(name for table in tables.values() for name in table.names)
    firsts = [next(t for t in tables.values() if name in t.names).rows([name]) for name in names]
    if len(tables) < 2:
        return next(iter(tables.values()), None)
    shapes, dtypes = ([getattr(t, field)[0] for t in firsts] for field in ("shapes", "dtypes"))
    return Table(tuple(names), tuple(shapes), tuple(dtypes), np.concatenate([t.values for t in firsts]))


def _pairs(part: str, x: Table, y: Table, pairs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of names: of `pairs` first, then of equal plain names, then of equal content."""
    used: set[str] = set()
    open_x: list[str] = []
    plain: defaultdict[str, list[str]] = defaultdict(list)
    for name in y.names:
        plain[plain_name(name, part)].append(name)
    sizes = {
        name: layout_free(shape)
        for table in (x, y)
        for name, shape in zip(table.names, table.shapes, strict=True)
    }
    translated = {plain_name(k, part): plain_name(v, part) for k, v in pairs.items()}
    # Running statistics belong to the module whose weights are matched.
    modules = {k.rpartition(".")[0]: v.rpartition(".")[0] for k, v in translated.items() if "." in k}
    for name in x.names:
        key = plain_name(name, part)
        options = [pairs[name]] if pairs.get(name) in y.names else []
        options += plain.get(_translated(key, translated), [])
        module, _, kind = key.rpartition(".")
        options += plain.get(f"{modules.get(module)}.{kind}", [])
        other = next((option for option in options if option not in used), None)
        if other is not None and np.prod(sizes[name], dtype=float) == np.prod(sizes[other], dtype=float):
            used.add(other)
            yield name, other
        else:
            open_x.append(name)
    yield from _by_content(x.rows(open_x), y.rows([name for name in y.names if name not in used]))


def _translated(name: str, translated: Mapping[str, str]) -> str:
    """Return run B's plain name; an optimizer's state has its kind in front of the parameter's."""
    if name in translated:
        return translated[name]
    kind, _, parameter = name.partition(".")
    return f"{kind}.{translated[parameter]}" if parameter in translated else name


def _by_content(x: Table, y: Table) -> Iterator[tuple[str, str]]:
    """Yield pairs of arrays of one shape whose initial norms agree, the nearest and first ones first."""
    free = list(range(len(y.names)))
    for i, name in enumerate(x.names):
        shape, norm = layout_free(x.shapes[i]), x.values[i, NORM]
        options = [
            j for j in free if layout_free(y.shapes[j]) == shape
            and abs(y.values[j, NORM] - norm) <= 1e-4 * max(norm, y.values[j, NORM])
        ]  # fmt: skip
        if options:
            best = min(options, key=lambda j: float(np.abs(y.samples[j] - x.samples[i]).max()))
            free.remove(best)
            yield name, y.names[best]


class Aligned:
    """A part of one step in both runs, row by row."""

    def __init__(self, part: str, a: TappedStep, b: TappedStep, names: MatchedNames):
        x, y = a.parts.get(part), b.parts.get(part)
        pairs = names.pairs.get(part, []) if x is not None and y is not None else []
        if x is not None and y is not None:
            pairs = [pair for pair in pairs if pair[0] in x.names and pair[1] in y.names]
            self.a, self.b = (table.rows([pair[i] for pair in pairs]) for i, table in enumerate((x, y)))
        self.names = [pair[0] for pair in pairs]

    def __bool__(self) -> bool:
        return bool(self.names)

    @cached_property
    def sampled(self) -> np.ndarray:
        """Whether the sampled elements are the same ones: the shapes agree but for transposing."""
        shapes = zip(self.a.shapes, self.b.shapes, strict=True)
        return np.array([layout_free(x) == layout_free(y) for x, y in shapes])

    @cached_property
    def rms(self) -> np.ndarray:
        """The larger root mean square of each array, but no less than a hundredth of the whole part's."""
        sizes = self.a.sizes
        norms = np.maximum(self.a.values[:, NORM], self.b.values[:, NORM])
        typical = np.sqrt(np.sum(np.square(norms)) / sizes.sum())
        return np.maximum(norms / np.sqrt(sizes), 0.01 * typical)

    @cached_property
    def distances(self) -> np.ndarray:
        """The largest difference of an array's statistics and sampled elements, relative to `rms`."""
        with np.errstate(all="ignore"):
            x, y = self.a.values, self.b.values
            columns = np.abs(x[:, :4] - y[:, :4])
            columns[:, NORM] /= np.sqrt(self.a.sizes)
            elements = np.abs(self.a.samples - self.b.samples).max(1, initial=0.0)
            largest = np.maximum(columns.max(1), np.where(self.sampled, elements, 0.0))
            distance = np.where(largest == 0, 0.0, largest / self.rms)
        unequal = ~np.isfinite(x[:, :4]) != ~np.isfinite(y[:, :4])
        return np.where(np.isfinite(distance), distance, np.where(unequal.any(1), np.inf, 0.0))

    @cached_property
    def own_distances(self) -> np.ndarray:
        """The largest difference of an array's norm and sampled elements, relative to the array itself."""
        sizes = np.maximum(self.a.values[:, NORM], self.b.values[:, NORM]) / np.sqrt(self.a.sizes)
        norms = np.abs(self.a.values[:, NORM] - self.b.values[:, NORM]) / np.sqrt(self.a.sizes)
        elements = np.abs(self.a.samples - self.b.samples).max(1, initial=0.0)
        return np.maximum(norms, np.where(self.sampled, elements, 0.0)) / np.maximum(sizes, 1e-300)

    @cached_property
    def distance(self) -> float:
        return float(self.distances.max(initial=0.0))

    def values(self, i: int) -> tuple[float, float]:
        """Return the pair of sampled elements, or else of statistics, that differs most in an array."""
        columns = slice(None) if self.sampled[i] else slice(4)
        x, y = (np.delete(table.values[i], 4)[columns] for table in (self.a, self.b))
        with np.errstate(all="ignore"):
            at = int(np.nanargmax(np.abs(x - y))) if not np.isnan(x - y).all() else 0
        return float(x[at]), float(y[at])
