"""Read a trace: every field is checked before use, and nothing is executed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...errors import FileError
from .._exactness import environment
from .._files import read_weights
from .._files.sealing import digest, read_manifest, seal
from .._sides.call_arguments import Arguments, Call, form_from_json
from .._sides.step_data import PARTS, Batch, Layout, Named, Observation, Task
from .._weights.source import WeightSource
from ..measuring import Key, Kind
from .outline import RecordedOutline
from .sketch import COLUMNS
from .writing import ARRAYS, FORMAT, MANIFEST, VERSION

LARGEST_MANIFEST = 1 << 28  # bytes
MOST = 1 << 16  # arrays that a layer returns
FIELDS = {
    **dict.fromkeys(("subject", "sha256", "seal"), str),
    **dict.fromkeys(("steps", "seed"), int),
    **dict.fromkeys(("training", "own_modes", "loss"), bool),
    **dict.fromkeys(("arrays", "numbers", "probes", "environment"), dict),
    **dict.fromkeys(
        ("calls", "modules", "tied", "layers", "lost_digits", "constants", "notes", "left_out"), list
    ),
}
Site = tuple[str, str, int, int]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class JaxCall:
    """One call of a JAX layer: its arrays by position, and what it returned."""

    inputs: Mapping[int, np.ndarray]
    outputs: list[np.ndarray]


class RecordedCall:
    """One call of a torch layer; what `flax_replay` needs of a LayerCall."""

    def __init__(self, entry: Mapping[str, Any], inputs: list[np.ndarray], outputs: list[np.ndarray]):
        self.path, self.nth = str(entry["path"]), int(entry["nth"])
        self.first, self.last, self.forced = int(entry["first"]), int(entry["last"]), bool(entry["forced"])
        self.inputs, self.outputs = inputs, outputs


class TraceFile:
    """The checked content of a trace; an accessor that cannot make sense of a field raises FileError."""

    def __init__(self, folder: Path, manifest: dict[str, Any], stored: Named):
        self.folder, self.manifest = folder, manifest
        names = manifest["arrays"]
        if absent := [x for x in names.values() if not isinstance(x, str) or x not in stored]:
            raise FileError(f"{folder / MANIFEST}: it names {absent[0]!r}, which is not in {ARRAYS}.")
        self.arrays = {name: stored[x] for name, x in names.items()}

    def sensibly(self, what: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
            message = f"{type(error).__name__}: {error}"
            raise FileError(f"{self.folder / MANIFEST}: its {what} make no sense: {message}.") from None

    def task(self, function: str, loss: Any, optimizer: Any, layout: Layout, outputs: Any) -> Task:
        """Return the recording's task; a ValueError if a call does not have the halves that it had."""
        for name, half in (("loss", loss), ("optimizer", optimizer)):
            if bool(self.manifest[name]) != (half is not None):
                condition = "with" if self.manifest[name] else "without"
                raise ValueError(
                    f"parity.{function}: {self.folder} was recorded {condition} {name}=...; "
                    f"call {function} likewise."
                )
        return Task(
            training=self.manifest["training"],
            own_modes=self.manifest["own_modes"],
            loss=(loss, loss) if loss else None,
            optimizer=(optimizer, optimizer) if optimizer else None,
            layout=layout,
            seed=self.manifest["seed"],
            outputs=outputs,
            channels_first=layout.in_torchs_axes,
        )

    def with_targets(self, batch: Callable[[int], Batch]) -> Callable[[int], Batch]:
        """Return the batches of all steps with the recorded targets."""
        return lambda step: dataclasses.replace(batch(step), targets=tuple(self.row(f"{step}/targets/")))

    def environment(self, task: Task) -> dict[str, str]:
        """Return what the judge's numbers depend on, and the recording's."""
        recorded = self.manifest["environment"].items()
        return environment(task, "float64") | {f"{name} (trace)": str(x) for name, x in recorded}

    def below(self, prefix: str) -> Named:
        return {name.removeprefix(prefix): x for name, x in self.arrays.items() if name.startswith(prefix)}

    def row(self, prefix: str) -> list[np.ndarray]:
        numbered = self.below(prefix)
        return self.sensibly("arrays", lambda: [numbered[str(i)] for i in range(len(numbered))])

    @property
    def steps(self) -> int:
        return self.manifest["steps"]

    def observation(self, step: int) -> Observation:
        parts = {part: self.below(f"{step}/{part}/") for part in PARTS}
        return Observation(**parts, masks=tuple(self.row(f"{step}/masks/")))

    def weights_and_state(self, step: int) -> Named:
        """Return the parameters and the state after a step; 0 for those before the first."""
        if step == 0:
            return self.below("start/")
        after = self.observation(step)
        return {**after.weights, **after.state}

    def form(self, step: int) -> Arguments:
        return self.sensibly("calls", lambda: form_from_json(self.manifest["calls"][step - 1]))

    def inputs(self, step: int) -> Any:
        """Return the arguments of a step's call, as `compare` takes them."""
        call = Call(self.below(f"{step}/inputs/"), self.form(step))
        return self.sensibly("calls", lambda: call.kwargs or call.args)

    def source(self) -> WeightSource:
        modules, tied = self.manifest["modules"], self.manifest["tied"]
        kinds = self.sensibly(
            "modules", lambda: {str(m["path"]): tuple(map(str, m["kinds"])) for m in modules}
        )
        groups = self.sensibly("tied", lambda: tuple(tuple(map(str, names)) for names in tied))
        return WeightSource(self.below("start/"), kinds, groups, True, f"the trace {self.folder}")

    def module(self, path: str) -> dict[str, Any]:
        modules = (m for m in self.manifest["modules"] if m["path"] == path)
        return next(modules, {"kinds": [""], "torchs": False, "settings": {}})

    def moves(self, table: list[Any]) -> dict[Key, tuple[float, float]]:
        def number(x: float | None) -> float:
            return float("inf") if x is None else float(x)

        def key(kind: str, name: str, step: int) -> Key:
            return Kind(kind), str(name), int(step)

        return self.sensibly(
            "noise floor", lambda: {key(*row[:3]): (number(row[3]), number(row[4])) for row in table}
        )

    def calls(self) -> list[RecordedCall]:
        def call(entry: Mapping[str, Any]) -> RecordedCall:
            prefix = f"layers/{entry['path']}/{entry['nth']}"
            return RecordedCall(entry, self.row(f"{prefix}/inputs/"), self.row(f"{prefix}/outputs/"))

        return self.sensibly("layers", lambda: [call(entry) for entry in self.manifest["layers"]])

    def jax_calls(self, step: int) -> dict[tuple[str, int], JaxCall]:
        """Return the calls of a JAX model's layers in a step, by path and number."""

        def call(entry: Mapping[str, Any]) -> JaxCall:
            prefix = f"{step}/layers/{entry['path']}/{entry['nth']}"
            inputs = {int(i): self.arrays[f"{prefix}/inputs/{int(i)}"] for i in entry["inputs"]}
            outputs = [self.arrays[f"{prefix}/outputs/{i}"] for i in range(min(entry["outputs"], MOST))]
            return JaxCall(inputs, outputs)

        entries = self.manifest["layers"]
        return self.sensibly(
            "layers", lambda: {(str(e["path"]), int(e["nth"])): call(e) for e in entries if e["step"] == step}
        )

    def outline(self) -> RecordedOutline:
        return self.sensibly("outline", lambda: RecordedOutline(self.manifest["outline"]))

    @property
    def framework(self) -> str:
        return "jax" if self.manifest.get("framework") == "jax" else "torch"

    def probes(self) -> tuple[list[tuple[str, str, int]], dict[Site, list[tuple[int, np.ndarray]]]]:
        """Return what was asked (text, stage, op), and by site the probes that change it with sketches."""

        def read() -> tuple:
            questions = [
                (str(text), str(stage), int(op)) for text, stage, op in self.manifest["probes"]["asked"]
            ]
            sites = [(str(a), str(b), int(c), int(d)) for a, b, c, d in self.manifest["probes"]["sites"]]
            rows, sketches = self.arrays["probes/rows"], self.arrays["probes/sketches"].reshape(-1, COLUMNS)
            by_site: dict[Site, list[tuple[int, np.ndarray]]] = {}
            for (probe, site), sketch in zip(rows.tolist(), sketches, strict=True):
                if not (0 <= probe < len(questions) and 0 <= site < len(sites)):
                    raise ValueError(f"a probe {probe} at a site {site}")
                by_site.setdefault(sites[site], []).append((probe, sketch))
            return questions, by_site

        return self.sensibly("probes", read)


def read(folder: str | os.PathLike[str], framework: str = "torch") -> TraceFile:
    """Read and check a trace of a framework; raises FileError with the path and the reason."""
    root = Path(folder)
    path, arrays = root / MANIFEST, root / ARRAYS
    for file in (path, arrays):
        if file.is_symlink() or not file.is_file():
            raise FileError(f"{file}: it is missing, or no plain file; a trace is written by the recorder.")
    if path.stat().st_size > LARGEST_MANIFEST:
        raise FileError(f"{path}: it has {path.stat().st_size:,} bytes, more than any trace.")
    manifest = read_manifest(path, "no trace of the recorder", FORMAT, VERSION, FIELDS)
    if manifest["seal"] != seal(manifest):
        raise FileError(f"{path}: it was changed after the recorder wrote it; record again.")
    if digest(arrays) != manifest["sha256"]:
        raise FileError(f"{arrays}: it is not the file that {MANIFEST} was written for; record again.")
    if not 1 <= manifest["steps"] <= len(manifest["calls"]) or len(manifest["lost_digits"]) != 2:
        raise FileError(f"{path}: it has {manifest['steps']} steps and {len(manifest['calls'])} calls.")
    trace = TraceFile(root, manifest, read_weights(arrays))
    if trace.framework != framework:
        other = {"torch": "parity.against", "jax": "parity.against_jax"}[trace.framework]
        raise FileError(f"{path}: it is a trace of {trace.framework}; judge by it with {other}.")
    for table in (*manifest["lost_digits"], manifest["constants"]):
        trace.moves(table)  # also where a verdict needs none of them
    return trace
