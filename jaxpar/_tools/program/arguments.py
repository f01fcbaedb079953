"""A compiled step with its arguments and results: paths, shardings, what is state and what is batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..._training.train_step import TrainStep
from ..._upstream.gpu_compiler import is_pmap, kept_arguments, lowered_for_topology
from .slices import numbered
from .values import Slices


@dataclasses.dataclass(frozen=True)
class StepArray:
    """An argument or a result. `part` is the slice that each device holds."""

    path: str
    shape: tuple[int, ...]
    type: str
    part: tuple[Any, ...]
    donated: bool = False

    @property
    def divided(self) -> bool:
        return len(set(self.part)) > 1

    @property
    def part_shape(self) -> tuple[int, ...]:
        bounds = self.part[0] or ((None, None),) * len(self.shape)
        pairs = zip(bounds, self.shape, strict=True)
        return tuple((n if stop is None else stop) - (start or 0) for (start, stop), n in pairs)

    @property
    def slices(self) -> Slices:
        """The numbers of the slices that the devices hold, along each axis that is divided."""
        if not self.divided:
            return frozenset()
        starts = ([bounds[axis][0] or 0 for bounds in self.part] for axis in range(len(self.shape)))
        pairs = zip(starts, self.part_shape, strict=True)
        return frozenset().union(*(numbered(offsets, length) for offsets, length in pairs))

    @property
    def stacked(self) -> bool:
        """Whether each device holds one entry along an axis that is divided, as of a stack of copies."""
        return any(1 == length < size for length, size in zip(self.part_shape, self.shape, strict=True))


@dataclasses.dataclass
class Step:
    """A compiled step.

    `state` is the argument that a result replaces, `retyped` the results whose type differs, `batch` the
    arguments with rows, `parameters` those that the program takes, `buffers` the results that are not
    trained. `copies`: the state's arrays are stacks of equal copies, one for each device, as with `jax.pmap`.
    """

    name: str
    platform: str
    devices: int
    text: str
    arguments: list[StepArray]
    parameters: tuple[int, ...]
    results: list[StepArray]
    state: dict[int, int]
    batch: frozenset[int]
    copies: bool = False
    buffers: frozenset[int] = frozenset()
    retyped: frozenset[int] = frozenset()
    unsimplified: Callable[[], str] = str
    """Compiles the step without XLA's algebra, which makes one factor of the means of several sums."""


def compiled_step(step: Any, args: tuple, kwargs: dict[str, Any], batch: Sequence[int | str] | None) -> Step:
    """Lower and compile a step, which does not run."""
    lower = step.lower if hasattr(step, "lower") else jax.jit(step).lower
    lowered = lower(*args, **kwargs)
    options: Any = {"xla_gpu_autotune_level": "0"} if lowered_for_topology(lowered) else {}
    executable = lowered.compile(compiler_options=options)
    parameters = kept_arguments(executable)
    shardings = dict(zip(parameters, jax.tree.leaves(executable.input_shardings), strict=True))
    returned = jax.tree.leaves(executable.output_shardings)
    devices = _order([*shardings.values(), *returned])
    infos = jax.tree.leaves_with_path(lowered.args_info)
    arguments = [
        StepArray(_name(path), x.shape, str(x.dtype), _parts(shardings.get(n), x.shape, devices), x.donated)
        for n, (path, x) in enumerate(infos)
    ]
    results = [
        StepArray(jax.tree_util.keystr(path), x.shape, str(x.dtype), _parts(sharding, x.shape, devices))
        for (path, x), sharding in zip(jax.tree.leaves_with_path(lowered.out_info), returned, strict=True)
    ]
    positions = [_position(path) for path, _ in infos]
    named = frozenset(n for n, position in enumerate(positions) if position in (batch or ()))
    trees = lowered.args_info, lowered.out_info
    state = Replaced(arguments, results, named).match(*trees)
    rows = named if batch is not None else _rows_of(positions, arguments, set(state.values()))
    if not rows:
        # What is divided and comes back in a new type may be the batch, as with an autoencoder.
        state = Replaced(arguments, results, named, retypes=False).match(*trees)
        rows = named if batch is not None else _rows_of(positions, arguments, set(state.values()))

    def unsimplified() -> str:
        return (
            lowered.compile(compiler_options=options | {"xla_disable_hlo_passes": "algsimp"}).as_text() or ""
        )

    step_read = Step(
        name=getattr(step, "__name__", type(step).__name__),
        platform=devices[0].device_kind,
        devices=len(devices),
        text=executable.as_text() or "",
        arguments=arguments,
        parameters=parameters,
        results=results,
        state=state,
        batch=rows,
        retyped=frozenset(r for r, n in state.items() if results[r].type != arguments[n].type),
        copies=is_pmap(step),
        unsimplified=unsimplified,
    )
    return _named(step_read, step) if isinstance(step, TrainStep) else step_read


def _order(shardings: list[Any]) -> list[jax.Device]:
    """The devices in the order of the program's partitions."""
    for sharding in shardings:
        if hasattr(sharding, "mesh"):
            return list(sharding.mesh.devices.flat)
    several = max(shardings, key=lambda s: len(s.device_set))
    return list(getattr(several, "_device_assignment", several.device_set))


def _parts(sharding: Any, shape: tuple[int, ...], devices: list[jax.Device]) -> tuple[Any, ...]:
    if sharding is None or sharding.is_fully_replicated:
        return ((),) * len(devices)
    indices = sharding.devices_indices_map(shape)
    return tuple(tuple((s.start, s.stop) for s in indices[d]) for d in devices)


def _position(path: tuple[Any, ...]) -> int | str:
    """The position of an argument: its number, or its keyword."""
    return path[1].idx if path[0].idx == 0 else path[1].key


def _name(path: tuple[Any, ...]) -> str:
    """`args[0]['w']`, as JAX writes it, without the pair of positional arguments and keywords."""
    return f"{'args' if path[0].idx == 0 else 'kwargs'}{jax.tree_util.keystr(path[1:])}"


class Replaced:
    """Pairs results of a step with the arguments that they replace, by their numbers.

    A pair has equal structure, shapes and types. Its floating types may differ if both are divided alike: a
    float32 momentum is float64 after an update by a float64 gradient. Single arrays whose types differ are
    a pair only if the argument is donated, because it may be the batch. No result replaces `rows`.
    """

    def __init__(
        self,
        arguments: Sequence[StepArray],
        results: Sequence[StepArray],
        rows: frozenset[int],
        retypes: bool = True,
    ) -> None:
        self.arguments, self.results, self.rows, self.retypes = arguments, results, rows, retypes
        self.candidates: list[tuple[Any, range]] = []
        self.pairs: dict[int, int] = {}

    def match(self, args_info: Any, out_info: Any) -> dict[int, int]:
        start = 0
        for tree in [*args_info[0], *args_info[1].values()]:
            size = len(jax.tree.leaves(tree))
            self.candidates += [(tree, range(start, start + size)), *_subtrees(tree, start)]
            start += size
        self._match(out_info, 0)
        return self.pairs

    def _match(self, tree: Any, start: int) -> int:
        end = start + len(jax.tree.leaves(tree))
        numbers = self._argument(tree, range(start, end)) if end > start else None
        if numbers is not None:
            self.pairs.update(zip(range(start, end), numbers, strict=True))
            return end
        for child in _children(tree):
            start = self._match(child, start)
        return end

    def _argument(self, tree: Any, result_numbers: range) -> range | None:
        used = self.rows.union(self.pairs.values())
        free = [(x, numbers) for x, numbers in self.candidates if not used & set(numbers)]
        same = next((numbers for x, numbers in free if _alike(tree, x)), None)
        if not self.retypes or (same is not None and self._parts(result_numbers, same)):
            return same
        return next((numbers for x, numbers in free if self._retyped(tree, result_numbers, x, numbers)), same)

    def _retyped(self, tree: Any, result_numbers: range, argument: Any, numbers: range) -> bool:
        if not _alike(tree, argument, types=False) or not self._parts(result_numbers, numbers):
            return False
        return bool(_children(argument)) or all(self.arguments[n].donated for n in numbers)

    def _parts(self, result_numbers: range, numbers: range) -> bool:
        pairs = zip(result_numbers, numbers, strict=True)
        return all(self.results[r].part == self.arguments[n].part for r, n in pairs)


def _children(tree: Any) -> list[Any]:
    # JAX sorts the keys of a dict.
    return (
        [tree[k] for k in sorted(tree)]
        if isinstance(tree, dict)
        else list(tree)
        if isinstance(tree, tuple | list)
        else []
    )


def _subtrees(tree: Any, start: int) -> list[tuple[Any, range]]:
    """The containers in an argument. A single array is left out: a loss has the shape of any counter."""
    compiled: list[tuple[Any, range]] = []
    for child in _children(tree):
        end = start + len(jax.tree.leaves(child))
        if _children(child):
            compiled += [(child, range(start, end)), *_subtrees(child, start)]
        start = end
    return compiled


def _alike(first: Any, second: Any, types: bool = True) -> bool:
    forms: list[Any] = [jax.tree.structure(x) for x in (first, second)]
    if forms[0] != forms[1]:
        return False
    pairs = list(zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return False
    return all(
        a.dtype == b.dtype or (not types and all(jnp.issubdtype(x.dtype, jnp.floating) for x in (a, b)))
        for a, b in pairs
    )


def _rows_of(positions: list[int | str], arguments: list[StepArray], state: set[int]) -> frozenset[int]:
    """The arguments with rows: those that are divided between devices and belong to no state."""
    divided = {p for n, p in enumerate(positions) if n not in state and arguments[n].divided}
    return frozenset(n for n, p in enumerate(positions) if p in divided and n not in state)


def _named(compiled: Step, step: TrainStep) -> Step:
    """Take paths from a train_step's module and optimizer. Buffers may be the first device's own."""
    arrays, paths = step._arrays, {}
    for n, name in enumerate(arrays.view.names):
        paths[f"args[0][{n}]"] = name.replace("module.", "")
    for n, name in enumerate(arrays.optimizer.view.names):
        paths[f"args[1]['optimizer'][{n}]"] = "optimizer." + name.replace("module.", "")
    trained = {f"args[0][{n}]" for n in arrays.parameters}
    before = compiled.arguments
    buffers = (
        r
        for r, n in compiled.state.items()
        if before[n].path.startswith("args[0]") and before[n].path not in trained
    )
    named = [dataclasses.replace(a, path=paths.get(a.path, a.path)) for a in before]
    return dataclasses.replace(
        compiled, name=f"train_step of {type(step.net).__name__}", arguments=named, buffers=frozenset(buffers)
    )
