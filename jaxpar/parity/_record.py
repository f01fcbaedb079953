"""record and check: what torch computed, kept in a file, so that a test needs only JAX.

    record:  torch, Flax ─► compare ─► same? ─► name.safetensors (arrays) + name.json (all else)
    check:   name.safetensors, name.json, Flax ─► Comparison

Everything is kept in Flax's layout and by the paths of Flax's leaves. No torch counterpart.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FileError, MatchError
from ._circumstances import environment, exact
from ._comparison import Comparison, require_same
from ._files import read_weights, write_weights
from ._judge import Key, Level, Policy, judge
from ._measure import Difference, Kind
from ._noise import noise, noise_elements
from ._sides.flax_side import FlaxSide
from ._sides.task import Batch, Named, Seen, Task
from ._step import measured, resolved_updates

if TYPE_CHECKING:
    from ._request import Request

FORMAT = "jaxpar parity record"
VERSION = 1
PARTS = ("outputs", "loss", "input_gradients", "gradients", "state", "weights")
"""The attributes of Seen, in its order."""


def record(
    path: str | os.PathLike[str], torch_module: Any, flax_module: Any, inputs: Any, **arguments: Any
) -> Comparison:
    """Compares, and if both are the same keeps what torch computed, for `check`.

    Args:
      path: of the `.safetensors` file; a `.json` of the same name is written beside it.
      torch_module, flax_module, inputs, arguments: those of `compare`, at the levels semantic and numeric.

    Returns:
      The comparison.

    Raises:
      ParityError: both are not the same; nothing is written.
      ValueError: a trajectory, which has no fixed values to keep.
      OSError: the folder is missing or not writable.
    """
    from ._compare import compare
    from ._request import Request

    bound = inspect.signature(compare).bind(torch_module, flax_module, inputs, **arguments)
    bound.apply_defaults()
    request = Request(**{name: value for name, value in bound.arguments.items() if name != "progress"})
    if Level.parse(request.level) is Level.TRAJECTORY:
        raise ValueError(
            "parity.record: a trajectory has no fixed values; record level='semantic' or 'numeric'."
        )
    comparison = compare(*bound.args, **bound.kwargs)
    require_same(comparison)
    with exact():
        arrays, noise = _tape(request)
    target = _target(path)
    write_weights(target, arrays, metadata={"format": FORMAT})
    manifest = _manifest(comparison, request, noise, _digest(target))
    target.with_suffix(".json").write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    return comparison


def check(
    path: str | os.PathLike[str],
    flax_module: Any,
    *,
    loss: Any = None,
    optimizer: Any = None,
    variables: Any = None,
    flax_kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Whether a Flax model still computes what torch computed when the record was made.

    Needs no torch. A ratio that has grown to more than twice the recorded one is a difference, even
    where it is within the bound.

    Args:
      path: of the `.safetensors` file.
      flax_module: the model; its weights are the record's.
      loss: JAX's loss, if the record was made with one.
      optimizer: the optax transformation, if the record was made with one.
      variables: of a Linen module, to start from: `module.init(...)`.
      flax_kwargs: keyword arguments of every call of the model.

    Raises:
      FileError: the record is missing, damaged, or of another version.
      MatchError: the model has other leaves than the record.
      ValueError: the record was made with a loss or optimizer and there is none, or the reverse.
    """
    started = time.perf_counter()
    target = _target(path)
    manifest = _read_manifest(target)
    arrays = read_weights(target)
    level = Level(manifest["level"])
    policy = _policy(manifest["policy"], level)
    for name, what in (("loss", loss), ("optimizer", optimizer)):
        if manifest[name] != (what is not None):
            made = "with" if manifest[name] else "without"
            raise ValueError(f"parity.check: {target} was made {made} {name}=...; call check likewise.")
    task = Task(
        training=manifest["training"],
        replicas=manifest["replicas"],
        loss=(loss, loss) if loss else None,
        optimizer=(optimizer, optimizer) if optimizer else None,
        flax_kwargs=dict(flax_kwargs or {}),
        seed=manifest["seed"],
    )
    with exact():
        side = FlaxSide(flax_module, task, manifest["dtype"], variables, _below(arrays, "factors/"))
        _load(side, _below(arrays, "start/"), target)
        differences = list(_differences(side, arrays, manifest["steps"], level, manifest["noise"]))
    ratios = {(Kind(kind), name, step): ratio for kind, name, step, ratio in manifest["ratios"]}
    # The file has no order of its own; that of the record is the order of computation.
    order = {key: i for i, key in enumerate(ratios)}
    differences.sort(key=lambda d: order.get((d.kind, d.name, d.step), len(order)))
    recorded = {key: ratio for key, ratio in ratios.items() if ratio is not None}
    return Comparison(
        level=level,
        rows=judge(differences, policy, manifest["noise"], recorded),
        steps=manifest["steps"],
        replicas=manifest["replicas"],
        environment={**environment(task, manifest["dtype"]), **_recorded(manifest["environment"])},
        notes=tuple(side.net.notes),
        seconds=time.perf_counter() - started,
        policy=policy,
        subject=f"{type(flax_module).__name__} against the record of {manifest['subject']}",
    )


def _tape(request: Request) -> tuple[Named, dict[str, str]]:
    """All arrays of a record, and the parameters whose gradient is noise."""
    pair = request.pair()
    sides = pair.sides(Level.parse(request.level), request.dtype)
    first = sides.oracle or sides.reference
    second = sides.reference if sides.oracle else sides.single
    move = pair.task.layout.inputs
    start = {**sides.reference.weights(), **sides.reference.state()}
    arrays = {f"start/{name}": x for name, x in start.items()}
    found: dict[str, str] = {}
    for step in range(1, request.steps + 1):
        batch = request.batch(step)
        expected = first.step(batch)
        other = second.step(batch) if second and (sides.oracle or step == 1) else None
        if step == 1 and other:
            found = noise(expected.gradients, other.gradients)
            parts = noise_elements(expected.gradients, other.gradients)
            arrays |= {f"noise/{name}": mask for name, mask in parts.items()}
        if step == 1 and not pair.task.loss:
            factors = sides.candidate.projection(batch, expected.masks)
            arrays |= {f"factors/{name}": np.asarray(x) for name, x in factors.items()}
        for kind, several in (("inputs", batch.inputs), ("targets", batch.targets)):
            arrays |= {f"{step}/{kind}/{i}": move(x) for i, x in enumerate(several)}
        arrays |= {f"{step}/masks/{i}": x for i, x in enumerate(expected.masks)}
        arrays |= _named(f"{step}/expected/", expected)
        if sides.oracle and other:
            arrays |= _named(f"{step}/reference/", other)
    return {name: np.array(x, order="C") for name, x in arrays.items()}, found


def _named(prefix: str, seen: Seen) -> Named:
    return {f"{prefix}{part}/{name}": x for part in PARTS for name, x in getattr(seen, part).items()}


def _differences(
    side: FlaxSide, arrays: Named, steps: int, level: Level, noise: Collection[str]
) -> Iterator[Difference]:
    """The steps of the record, taken by the Flax model."""
    before = (side.weights(), side.weights())
    for step in range(1, steps + 1):
        here = _below(arrays, f"{step}/")
        candidate = side.step(Batch(_row(here, "inputs/"), _row(here, "targets/")), _row(here, "masks/"))
        expected = _seen(_below(here, "expected/"))
        if level is Level.NUMERIC:
            yield from measured(candidate, _seen(_below(here, "reference/")), step, expected)
        else:
            yield from measured(candidate, expected, step)
            if side.tx:
                yield from resolved_updates(before, (candidate, expected), step, _below(arrays, "noise/"))
        side.load({name: expected.weights[name] for name in noise}, {})  # as compare does
        before = (side.weights(), expected.weights)


def _below(arrays: Mapping[str, Any], prefix: str) -> Named:
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def _row(arrays: Named, prefix: str) -> tuple[np.ndarray, ...]:
    found = _below(arrays, prefix)
    return tuple(found[str(i)] for i in range(len(found)))


def _seen(arrays: Named) -> Seen:
    outputs, loss, input_gradients, gradients, state, weights = (_below(arrays, f"{part}/") for part in PARTS)
    return Seen(outputs, loss, input_gradients, gradients, state, weights)


def _load(side: FlaxSide, start: Named, target: Path) -> None:
    leaves = {**side.weights(), **side.state()}
    here, there = ({name: x.shape for name, x in arrays.items()} for arrays in (leaves, start))
    if here != there:
        apart = [name for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)]
        only = [f"{name} {here.get(name, '-')} / {there.get(name, '-')}" for name in apart]
        raise MatchError(
            f"parity.check: {len(only)} leaves of the model and of {target} do not agree (model / record): "
            f"{'; '.join(only[:8])}{' ...' if len(only) > 8 else ''}"
        )
    side.load(start, start)


def _manifest(comparison: Comparison, request: Request, noise: dict[str, str], digest: str) -> dict[str, Any]:
    task = request.task
    policy = dataclasses.asdict(comparison.policy)
    return {
        "format": FORMAT,
        "version": VERSION,
        "subject": comparison.subject,
        "level": comparison.level.value,
        "dtype": request.compute_dtype,
        "steps": comparison.steps,
        "replicas": task.replicas,
        "training": task.training,
        "seed": task.seed,
        "loss": task.loss is not None,
        "optimizer": task.optimizer is not None,
        "environment": dict(comparison.environment),
        "policy": {**policy, "level": comparison.level.value},
        "noise": noise,
        "ratios": [[*_kinded(key), ratio] for key, ratio in _ratios(comparison)],
        "sha256": digest,
    }


def _ratios(comparison: Comparison) -> Iterator[tuple[Key, float | None]]:
    for row in comparison.rows:
        d = row.difference
        both = [ratio for ratio in (d.ratio_rms, d.ratio_max) if ratio is not None and np.isfinite(ratio)]
        yield (d.kind, d.name, d.step), max(both, default=None)


def _kinded(key: Key) -> tuple[str, str, int]:
    return key[0].value, key[1], key[2]


def _read_manifest(target: Path) -> dict[str, Any]:
    """Raises FileError for whatever is wrong with the two files."""
    beside = target.with_suffix(".json")
    try:
        manifest = json.loads(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"{beside}: there is no such file; make the record with parity.record.") from None
    except (ValueError, OSError) as error:
        raise FileError(f"{beside}: it cannot be read: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FileError(f"{beside}: it is not a record of parity.record.")
    if manifest.get("version") != VERSION:
        raise FileError(
            f"{beside}: it is of version {manifest.get('version')}, and this is jaxpar's {VERSION}."
        )
    expected = {f.name for f in dataclasses.fields(Policy)}
    needed = {
        "level",
        "dtype",
        "steps",
        "replicas",
        "training",
        "seed",
        "loss",
        "optimizer",
        "noise",
        "ratios",
    }
    if missing := (needed | {"sha256", "subject", "environment", "policy"}) - manifest.keys():
        raise FileError(f"{beside}: {', '.join(sorted(missing))} is missing.")
    if set(manifest["policy"]) != expected:
        raise FileError(f"{beside}: its policy has other bounds: {sorted(manifest['policy'])}.")
    if not target.is_file() or _digest(target) != manifest["sha256"]:
        raise FileError(f"{target}: it is missing, or not the file that {beside.name} was written for.")
    return manifest


def _target(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix != ".safetensors":
        raise FileError(f"{target}: a record ends in .safetensors.")
    return target


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _policy(fields: Mapping[str, Any], level: Level) -> Policy:
    overrides = tuple((pattern, bound) for pattern, bound in fields["overrides"])
    return Policy(**{**fields, "level": level, "overrides": overrides})


def _recorded(environment: Mapping[str, str]) -> dict[str, str]:
    return {f"{name} (record)": value for name, value in environment.items()}
