"""The proof of traces: cases recorded by torch, and judged where torch cannot be imported.

    python benchmarks/parity/from_trace.py [--sample N] [--bugs] [--healthy] [--out docs/tables/traces.md]
    python benchmarks/parity/from_trace.py --of-jax ...

One process records with the packed recorder, another one judges: there, `torch` is an object without a
function, since a case's file defines both sides. The judge must give the verdict, the place and the causes of
`compare`, which a third process asks. With `--of-jax`, the process without torch records the JAX side, with
weights in a file that torch wrote, and the other one judges, without making a JAX model.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import random
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


class Inert(type):
    """A class that stands for any of torch's names: to be inherited from, called at import, never run."""

    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(name, (), {"__init__": lambda self, *a, **k: None})

    def __call__(cls, *arguments, **options):
        return super().__call__()

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Blocked(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves inert modules for torch, and counts what else of torch is asked for."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("torch", "torch_ref"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        class Module(types.ModuleType):
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return Inert(name, (), {"__init__": lambda self, *a, **k: None})

        return Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []


def record(folder: Path, names: list[str]) -> None:
    from benchmarks.parity import proof, run
    from jaxpar.parity import recorder

    write, cases = recorder.load().record, run.cases(True)
    for name in names:
        case = cases[name]
        module, _, options = proof.pair(case, 0)
        options.pop("layout")
        for half in ("loss", "optimizer"):
            options[half] = options[half][0] if options[half] else None
        started = time.perf_counter()
        write(folder / place(name), module, **options)
        seconds = time.perf_counter() - started
        size = sum(file.stat().st_size for file in (folder / place(name)).iterdir())
        print(json.dumps({"name": name, "bytes": size, "seconds": seconds}), flush=True)


def place(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name) + f"-{sum(name.encode()) % 9973}"


def cases_without_torch() -> dict:
    sys.meta_path.insert(0, Blocked())
    from benchmarks.parity import run

    cases = run.cases(True)
    sys.meta_path.pop(0)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torch", "torch_ref")]:
        del sys.modules[name]
    sys.modules["torch"] = None  # from here on an import raises
    return cases


def judge(folder: Path, names: list[str]) -> None:
    cases = cases_without_torch()
    import jax
    from flax import nnx

    from jaxpar import parity

    for name in names:
        case, started = cases[name], time.perf_counter()
        answer = {"name": name}
        try:
            comparison = parity.against(
                folder / place(name),
                case.flax(nnx.Rngs(0)),
                loss=case.loss[1] if case.loss else None,
                optimizer=case.optimizer[1] if case.optimizer else None,
                layout=case.layout,
            )
            answer |= told(comparison)
        except Exception as error:
            answer |= {"error": f"{type(error).__name__}: {error}"}
        assert sys.modules["torch"] is None
        print(json.dumps(answer | {"seconds": time.perf_counter() - started}), flush=True)
        jax.clear_caches()


def weights(folder: Path, names: list[str]) -> None:
    from benchmarks.parity import proof, run
    from jaxpar import parity

    cases = run.cases(True)
    folder.mkdir(exist_ok=True)
    for name in names:
        module, _, _ = proof.pair(cases[name], 0)
        parity.write_weights(folder / f"{place(name)}.safetensors", module.state_dict())
        print(json.dumps({"name": name}), flush=True)


def record_jax(folder: Path, names: list[str]) -> None:
    cases = cases_without_torch()
    import jax
    import numpy as np
    from flax import nnx

    from jaxpar import parity

    for name in names:
        case, started, answer = cases[name], time.perf_counter(), {"name": name}
        random = np.random.RandomState(0)
        inputs, targets = (tuple(make(random) for make in makers) for makers in (case.inputs, case.targets))
        try:
            net = case.flax(nnx.Rngs(0))
            source = folder / f"{place(name)}.safetensors"
            linen = not isinstance(net, nnx.Module)
            loaded = parity.load_torch(net, source, inputs=laid(case, inputs) if linen else None)
            trace = parity.record_jax(
                folder / f"{place(name)}-jax",
                net if linen else loaded,
                inputs,
                targets=targets,
                loss=case.loss[1] if case.loss else None,
                optimizer=case.optimizer[1] if case.optimizer else None,
                steps=case.steps,
                training=case.training,
                layout=case.layout,
                variables=loaded if linen else None,
            )
            answer |= {"bytes": sum(file.stat().st_size for file in trace.iterdir())}
        except Exception as error:
            answer |= {"bytes": 0, "error": f"{type(error).__name__}: {error}"}
        assert sys.modules["torch"] is None
        print(json.dumps(answer | {"seconds": time.perf_counter() - started}), flush=True)
        jax.clear_caches()


def laid(case, inputs: tuple) -> tuple:
    from jaxpar.parity import Layout

    return tuple(map(Layout.parse(case.layout).inputs, inputs))


def judge_jax(folder: Path, names: list[str]) -> None:
    import jax

    from benchmarks.parity import run
    from jaxpar import parity

    cases = run.cases(True)
    for name in names:
        case, started, answer = cases[name], time.perf_counter(), {"name": name}
        try:
            comparison = parity.against_jax(
                folder / f"{place(name)}-jax",
                case.torch(),
                loss=case.loss[0] if case.loss else None,
                optimizer=case.optimizer[0] if case.optimizer else None,
            )
            answer |= told(comparison)
        except Exception as error:
            answer |= {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer | {"seconds": time.perf_counter() - started}), flush=True)
        jax.clear_caches()


def told(comparison) -> dict:
    divergence = comparison.divergence
    return {
        "same": comparison.same,
        "tensors": len(comparison.rows),
        "place": [divergence.candidate, divergence.kind] if divergence else None,
        "causes": [cause.text for cause in divergence.causes] if divergence else [],
    }


def live(folder: Path, names: list[str]) -> None:
    import jax

    from benchmarks.parity import proof, run
    from jaxpar import parity

    cases = run.cases(True)
    for name in names:
        torch_module, flax_module, options = proof.pair(cases[name], 0)
        started = time.perf_counter()
        answer = told(parity.compare(torch_module, flax_module, **options))
        print(json.dumps({"name": name, **answer, "seconds": time.perf_counter() - started}), flush=True)
        jax.clear_caches()


def ask(what: str, folder: Path, names: list[str]) -> dict[str, dict]:
    """Run one of the three in a process, and return its answers by name."""
    command = [sys.executable, __file__, "--process", what, "--folder", str(folder)]
    done = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.stdin
    assert done.stdout
    done.stdin.write(json.dumps(names))
    done.stdin.close()
    answers = {}
    for line in done.stdout:
        if line.startswith("{"):
            answer = json.loads(line)
            answers[answer["name"]] = answer
            print(what, line.strip()[:300], file=sys.stderr, flush=True)
    if done.wait():
        raise SystemExit(f"{what}: the process ended with {done.returncode}")
    return answers


PROCESSES = {
    "record": record, "judge": judge, "weights": weights, "record_jax": record_jax, "judge_jax": judge_jax,
    "live": live,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--process", choices=PROCESSES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "jaxpar-traces")
    parser.add_argument("--sample", type=int, help="as many cases, drawn by seed 33")
    parser.add_argument("--bugs", action="store_true")
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--only", action="append", help="the cases whose name has this text")
    parser.add_argument("--of-jax", action="store_true", help="record the JAX side")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.process:
        PROCESSES[chosen.process](chosen.folder, json.load(sys.stdin))
        return 0
    from benchmarks.parity import architectures, bugs, layers

    planted = {bug.name: bug for bug in bugs.BUGS}
    names = [*planted] if chosen.bugs or not chosen.healthy else []
    if chosen.healthy or not chosen.bugs:
        names += [case.name for case in (*layers.CASES, *architectures.cases(True))]
    if chosen.only:
        names = [name for name in names if any(text in name for text in chosen.only)]
    if chosen.sample:
        names = sorted(random.Random(33).sample(names, min(chosen.sample, len(names))), key=names.index)
    asked = ("weights", "record_jax", "judge_jax", "live") if chosen.of_jax else ("record", "judge", "live")
    answers = {what: ask(what, chosen.folder, names) for what in asked}
    text = page(names, planted, {what.removesuffix("_jax"): answer for what, answer in answers.items()})
    chosen.out.write_text(text) if chosen.out else print(text)
    return 0


def page(names: list[str], planted: dict, answers: dict[str, dict]) -> str:
    judged, compared, recorded = (answers[what] for what in ("judge", "live", "record"))
    verdicts = sum(judged[n].get("same") == compared[n]["same"] for n in names)
    wrong = [n for n in names if n in planted]
    places = sum(judged[n].get("place") == compared[n]["place"] for n in wrong)
    with_causes = [n for n in wrong if compared[n]["causes"]]
    equal = sum(set(judged[n].get("causes", ())) == set(compared[n]["causes"]) for n in with_causes)
    named = [n for n in wrong if planted[n].cause]
    hits = sum(any(planted[n].cause in text for text in judged[n].get("causes", ())) for n in named)
    sizes = sorted(recorded[n]["bytes"] for n in names)
    lines = [
        "# Traces: the verdict without torch",
        "",
        f"{len(names)} cases of [the proof](parity_proof.md), recorded by the one file and judged from the",
        "trace in a process where torch cannot be imported.",
        "",
        "| asked | passed |",
        "|---|---|",
        f"| verdict of compare | {verdicts} of {len(names)} |",
        f"| place of compare, planted bugs | {places} of {len(wrong)} |",
        f"| a cause that compare names | {equal_any(with_causes, judged, compared)} of {len(with_causes)} |",
        f"| all causes that compare names, and no other | {equal} of {len(with_causes)} |",
        f"| the planted bug is named | {hits} of {len(named)} |",
        "",
        f"A trace has {sizes[len(sizes) // 2]:,} bytes in the median, {sizes[-1]:,} at most.",
        "",
    ]
    for n in names:
        mine, other = judged[n], compared[n]
        if (mine.get("same"), mine.get("place")) != (other["same"], other["place"]) or (
            other["causes"] and not set(mine.get("causes", ())) & set(other["causes"])
        ):
            lines += [f"* {n}: from the trace {mine}; compare {other}"]
    return "\n".join(lines) + "\n"


def equal_any(names: list[str], judged: dict, compared: dict) -> int:
    return sum(bool(set(judged[n].get("causes", ())) & set(compared[n]["causes"])) for n in names)


if __name__ == "__main__":
    sys.exit(main())
