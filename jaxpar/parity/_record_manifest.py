"""The .json of a record: its fields, their validation, and the bounds of the comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FileError
from ._comparison import Comparison
from ._files import sealing
from ._files.sealing import digest, seal
from .measuring import Key, Kind, Level, Policy

if TYPE_CHECKING:
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
