"""record and check: store torch's results in a file, so that a test needs only JAX.

    record:  torch, Flax ─► compare ─► same? ─► name.safetensors (arrays) + name.json (everything else)
    check:   name.safetensors, name.json, Flax ─► the same loop, torch's side replayed ─► Comparison

All arrays have Flax's layout and are named by the paths of Flax's leaves. No torch counterpart.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FileError, MatchError
from . import _levels
from ._comparison import Comparison, require_same
from ._exactness import environment, exact
from ._files import read_weights, sealing, write_weights
from ._files.sealing import digest, seal
from ._levels import Findings, LevelStep, Sides
from ._sides.call_arguments import Arguments, Call, form_from_json, form_to_json
from ._sides.candidate import Candidate, candidate_side
from ._sides.flax_mode import in_mode
from ._sides.step_data import PARTS, Batch, Named, Observation, Task, same
from ._weights.pytree_model import as_flax, name_of
from ._weights.tree import JaxModel, Variables
from .measuring import Key, Kind, Level, Policy, judge, key_of

if TYPE_CHECKING:
    import jax
    import optax
    import torch

    from ._model_pair import Inputs, ModelPair
    from ._request import Request

FORMAT = "jaxpar parity record"
VERSION = 3
Ratios = dict[Key, float | None]
FIELDS = {
    **dict.fromkeys(("level", "dtype", "subject", "sha256", "seal"), str),
    **dict.fromkeys(("steps", "replicas", "seed"), int),
    **dict.fromkeys(("training", "loss", "optimizer"), bool),
    **dict.fromkeys(("environment", "policy", "noise"), dict),
    **dict.fromkeys(("ratios", "calls", "outputs"), list),
}

Calls = tuple[Arguments, Call]


def record(
    path: str | os.PathLike[str],
    torch_module: torch.nn.Module,
    flax_module: JaxModel,
    inputs: Inputs = None,
    **arguments: Any,
) -> Comparison:
    """Compare both models, and if they are the same store torch's results for `check`.

    Args:
      path: the `.safetensors` file to write, next to a `.json` file of the same name.
      torch_module, flax_module, inputs, arguments: as for `compare`, at the levels semantic and numeric.

    Raises:
      ParityError: the models differ; nothing is written.
      ValueError: the levels trajectory and "as it runs", which have no fixed values.
      OSError: the folder is missing or not writable.

    >>> import os, tempfile, torch
    >>> import numpy as np
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> torch_module, flax_module = torch.nn.Linear(3, 4), nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "linear.safetensors")
    ...     comparison = parity.record(path, torch_module, flax_module, np.ones((2, 3), np.float32))
    ...     sorted(os.listdir(folder))
    ['linear.json', 'linear.safetensors']
    """
    from ._compare import CALLBACKS, compare, run  # torch, which `check` does without
    from ._request import Request

    bound = inspect.signature(compare).bind(torch_module, flax_module, inputs, **arguments)
    bound.apply_defaults()
    progress, on_result = (bound.arguments.pop(name) for name in CALLBACKS)
    request = Request(**bound.arguments)
    request = request.shaken() if request.shake else request
    if request.parsed_level not in (Level.SEMANTIC, Level.NUMERIC):
        raise ValueError(
            f"parity.record: level={request.parsed_level.value!r} has no fixed values; record "
            "level='semantic' or 'numeric'."
        )
    target = _target(path)
    findings = Findings()
    steps: list[LevelStep] = []
    comparison = run(request, findings, (progress, on_result), steps.append)
    require_same(comparison)
    with exact():
        pair = request.pair()
        arrays = _start(pair, request.compute_dtype, steps[0]) | _tape(request, findings, steps)
    contiguous = {name: np.array(x, order="C") for name, x in arrays.items()}
    write_weights(target, contiguous, metadata={"format": FORMAT})
    manifest = manifest_of(comparison, request, findings.noise, digest(target))
    manifest["calls"] = [form_to_json(step.batch.flax_call.form) for step in steps]
    manifest["ignored"] = sorted(pair.links.ignored)
    manifest["seal"] = seal(manifest)
    # The .json last: it holds the digest of the arrays, so an interrupted write leaves no usable record.
    target.with_suffix(".json").write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    return comparison


def check(
    path: str | os.PathLike[str],
    flax_module: JaxModel,
    *,
    loss: Callable[..., jax.Array] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    variables: Variables | None = None,
    flax_kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Check that a Flax model still computes what torch computed when the record was made.

    Does not need torch. A ratio that has grown to more than twice the recorded one counts as different, even
    if it is within the bound.

    Args:
      path: the `.safetensors` file.
      flax_module: the model, which gets the record's weights.
      loss: JAX's loss, if the record was made with a loss.
      optimizer: the optax transformation, if the record was made with an optimizer.
      variables: a Linen module's variables: `module.init(...)`.
      flax_kwargs: keyword arguments of every call, which replace the recorded ones.

    Raises:
      FileError: the record is missing, damaged, or has a different version.
      MatchError: the model's leaves are not the record's.
      ValueError: the record has a loss or optimizer and the call does not, or the reverse.

    >>> import os, tempfile, torch
    >>> import numpy as np
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> flax_module = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "linear.safetensors")
    ...     _ = parity.record(path, torch.nn.Linear(3, 4), flax_module, np.ones((2, 3), np.float32))
    ...     parity.check(path, flax_module)
    <Comparison: semantic, same, 4 tensors>
    """
    started = time.perf_counter()
    flax_module = as_flax(flax_module)
    target = _target(path)
    manifest = read_manifest(target)
    arrays = read_weights(target)
    policy, ratios = bounds(manifest, target)
    level = policy.level
    for name, what in (("loss", loss), ("optimizer", optimizer)):
        if manifest[name] != (what is not None):
            condition = "with" if manifest[name] else "without"
            raise ValueError(f"parity.check: {target} was made {condition} {name}=...; call check likewise.")
    task = Task(
        training=manifest["training"],
        replicas=manifest["replicas"],
        loss=(loss, loss) if loss else None,
        optimizer=(optimizer, optimizer) if optimizer else None,
        seed=manifest["seed"],
        outputs=dict(manifest["outputs"]) or None,
        channels_first=manifest.get("channels_first", False),
    )
    calls = _calls(manifest, target, flax_kwargs)
    findings = Findings(noise=manifest["noise"], noise_elements=_below(arrays, "noise/"))
    with exact():
        factors, ignored = _below(arrays, "factors/"), manifest.get("ignored", ())
        side = candidate_side(flax_module, task, manifest["dtype"], variables, factors, ignored)
        _load(side, _below(arrays, "start/"), target)
        numeric, expected = level is Level.NUMERIC, _Played(arrays, "expected", side)
        reference = _Played(arrays, "reference", side) if numeric else expected
        sides = Sides(reference, side, oracle=expected if numeric else None)
        run = _levels.numeric if numeric else _levels.semantic
        batches = partial(_batch, arrays, calls, lambda call: in_mode(flax_module, call, task))
        for _ in run(sides, batches, manifest["steps"], findings):
            pass  # the results are collected in findings
    # safetensors orders tensors by element size; the manifest has the order of computation.
    order = {key: i for i, key in enumerate(ratios)}
    findings.differences.sort(key=lambda d: order.get(key_of(d), len(order)))
    recorded_in = {f"{name} (record)": value for name, value in manifest["environment"].items()}
    recorded = {key: ratio for key, ratio in ratios.items() if ratio is not None}
    return Comparison(
        level=level,
        rows=judge(findings.differences, policy, manifest["noise"], recorded),
        steps=manifest["steps"],
        replicas=manifest["replicas"],
        environment=environment(task, manifest["dtype"]) | recorded_in,
        notes=tuple(side.notes),
        seconds=time.perf_counter() - started,
        policy=policy,
        subject=f"{name_of(flax_module)} against the record of {manifest['subject']}",
    )


def _start(pair: ModelPair, dtype: str, first: LevelStep) -> Named:
    reference = pair.reference(dtype)
    arrays = {f"start/{name}": x for name, x in {**reference.weights(), **reference.state()}.items()}
    if not pair.task.loss:
        factors = pair.candidate(reference).loss_factors(first.batch, first.reference.masks)
        arrays |= {f"factors/{name}": np.asarray(x) for name, x in factors.items()}
    return arrays


def _tape(request: Request, findings: Findings, steps: list[LevelStep]) -> Named:
    """Return torch's arrays at every step: `expected` in float64, `reference` in the dtype under test."""
    arrays = {f"noise/{name}": mask for name, mask in findings.noise_elements.items()}
    move = request.task.layout.inputs
    for step in steps:
        prefix, expected = f"{step.number}/", step.oracle or step.reference
        arrays |= {f"{prefix}inputs/{name}": x for name, x in step.batch.flax_call.arrays.items()}
        arrays |= {f"{prefix}targets/{i}": move(x) for i, x in enumerate(step.batch.targets)}
        arrays |= {f"{prefix}masks/{i}": x for i, x in enumerate(expected.masks)}
        arrays |= _named(f"{prefix}expected/", expected)
        if step.oracle:
            arrays |= _named(f"{prefix}reference/", step.reference)
    return arrays


def _named(prefix: str, results: Observation) -> Named:
    return {f"{prefix}{part}/{name}": x for part in PARTS for name, x in getattr(results, part).items()}


class _Played:
    """torch's side, replayed from a record; it starts from the candidate's weights."""

    def __init__(self, arrays: Named, which: str, candidate: Candidate):
        self.arrays, self.which, self.start, self.steps = arrays, which, candidate.weights(), 0

    def step(self, batch: Batch) -> Observation:
        self.steps += 1
        step_arrays = _below(self.arrays, f"{self.steps}/")
        recorded = _below(step_arrays, f"{self.which}/")
        outputs, loss, of_inputs, gradients, state, weights = (_below(recorded, f"{part}/") for part in PARTS)
        return Observation(outputs, loss, of_inputs, gradients, state, weights, _row(step_arrays, "masks/"))

    def weights(self) -> Named:
        return self.start


def _batch(arrays: Named, calls: list[Calls], in_its_mode: Callable[[Call], Call], step: int) -> Batch:
    step_arrays = _below(arrays, f"{step}/")
    form, replacements = calls[step - 1]
    call = in_its_mode(Call(_below(step_arrays, "inputs/"), form).with_kwargs(replacements))
    common = {name: (name, same) for name in _below(step_arrays, "expected/input_gradients/")}
    return Batch(flax_call=call, targets=_row(step_arrays, "targets/"), common=common)


def _calls(manifest: Mapping[str, Any], target: Path, flax_kwargs: Mapping[str, Any] | None) -> list[Calls]:
    """Return the form of each step's call, and the keyword arguments that replace recorded ones."""
    replacements = Call.of((), flax_kwargs)
    try:
        forms = [form_from_json(call) for call in manifest["calls"]]
        unrecorded = {
            name: kind for form in forms for name, kind in Call({}, form).with_kwargs(replacements).missing()
        }
    except (ValueError, AttributeError) as error:
        raise FileError(f"{target.with_suffix('.json')}: its calls make no sense: {error}.") from None
    if unrecorded:
        names = ", ".join(f"{name} ({kind})" for name, kind in unrecorded.items())
        raise ValueError(
            f"parity.check: {target} was made with {names}, which a record cannot hold. Give it again, as "
            "flax_kwargs={...}."
        )
    return [(form, replacements) for form in forms]


def _below(arrays: Mapping[str, Any], prefix: str) -> Named:
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def _row(arrays: Named, prefix: str) -> tuple[np.ndarray, ...]:
    numbered = _below(arrays, prefix)
    return tuple(numbered[str(i)] for i in range(len(numbered)))


def _load(side: Candidate, start: Named, target: Path) -> None:
    leaves = {**side.weights(), **side.state()}
    shapes = [{name: x.shape for name, x in arrays.items()} for arrays in (leaves, start)]
    both = {name: [side.get(name, "-") for side in shapes] for name in sorted(leaves.keys() | start.keys())}
    only = [f"{name} {model} / {recorded}" for name, (model, recorded) in both.items() if model != recorded]
    if only:
        raise MatchError(
            f"parity.check: {len(only)} leaves of the model and of {target} do not agree (model / record): "
            f"{'; '.join(only[:8])}{' ...' if len(only) > 8 else ''}"
        )
    side.load(start, start)


def _target(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix != ".safetensors":
        raise FileError(f"{target}: a record ends in .safetensors.")
    return target


def manifest_of(
    comparison: Comparison, request: Request, noise: dict[str, str], sha256: str
) -> dict[str, Any]:
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
        "channels_first": task.channels_first,
        "seed": task.seed,
        "loss": task.loss is not None,
        "optimizer": task.optimizer is not None,
        "outputs": [*(task.outputs or {}).items()],
        "environment": dict(comparison.environment),
        # asdict keeps the enum member, which JSON cannot write.
        "policy": {**policy, "level": comparison.level.value},
        "noise": noise,
        "ratios": list(_ratios(comparison)),
        "sha256": sha256,
    }


def _ratios(comparison: Comparison) -> Iterator[tuple[str, str, int, float | None]]:
    for row in comparison.rows:
        d = row.difference
        # Strict JSON has no infinity; a row without a ratio has no bound on the ratio's growth.
        both = [ratio for ratio in (d.ratio_rms, d.ratio_max) if ratio is not None and np.isfinite(ratio)]
        yield d.kind.value, d.name, d.step, max(both, default=None)


def bounds(manifest: Mapping[str, Any], target: Path) -> tuple[Policy, Ratios]:
    """Return the record's bounds, and each row's ratio in the order of computation."""
    try:
        overrides = tuple((str(pattern), float(bound)) for pattern, bound in manifest["policy"]["overrides"])
        level = Level(manifest["level"])
        policy = Policy(**{**manifest["policy"], "level": level, "overrides": overrides})
        return policy, {(Kind(kind), name, step): ratio for kind, name, step, ratio in manifest["ratios"]}
    except (ValueError, TypeError) as error:
        manifest_path = target.with_suffix(".json")
        raise FileError(f"{manifest_path}: its level, policy or ratios make no sense: {error}.") from None


def read_manifest(target: Path) -> dict[str, Any]:
    """Read and validate the .json; raises FileError if either file is unusable."""
    manifest_path = target.with_suffix(".json")
    if not manifest_path.exists():
        raise FileError(f"{manifest_path}: there is no such file; make the record with parity.record.")
    manifest = sealing.read_manifest(manifest_path, "not a record of parity.record", FORMAT, VERSION, FIELDS)
    if manifest["seal"] != seal(manifest):
        raise FileError(
            f"{manifest_path}: it was changed after parity.record wrote it. A record's bounds are those of "
            "the comparison that made it; to get others, make it again with policy=... ."
        )
    if manifest["policy"].keys() != {field.name for field in dataclasses.fields(Policy)}:
        raise FileError(f"{manifest_path}: its policy has other bounds: {sorted(manifest['policy'])}.")
    if not target.is_file() or digest(target) != manifest["sha256"]:
        raise FileError(
            f"{target}: it is missing, or not the file that {manifest_path.name} was written for."
        )
    return manifest
