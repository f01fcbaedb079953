"""The proof of traces: cases recorded by torch, and judged where torch cannot be imported.

    python benchmarks/parity/from_trace.py [--sample N] [--bugs] [--healthy] [--out docs/tables/traces.md]

One process records with the packed recorder, another one judges: there, `torch` is an object without a
function, since a case's file defines both sides. The judge must give the verdict, the place and the causes of
`compare`, which a third process asks.
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


def judge(folder: Path, names: list[str]) -> None:
    sys.meta_path.insert(0, Blocked())
    import jax
    from flax import nnx

    from benchmarks.parity import run
    from jaxpar import parity

    cases = run.cases(True)
    sys.meta_path.pop(0)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torch", "torch_ref")]:
        del sys.modules[name]
    sys.modules["torch"] = None  # from here on an import raises
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--process", choices=("record", "judge", "live"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "jaxpar-traces")
    parser.add_argument("--sample", type=int, help="as many cases, drawn by seed 33")
    parser.add_argument("--bugs", action="store_true")
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--only", action="append", help="the cases whose name has this text")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.process:
        {"record": record, "judge": judge, "live": live}[chosen.process](chosen.folder, json.load(sys.stdin))
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
    answers = {what: ask(what, chosen.folder, names) for what in ("record", "judge", "live")}
    text = page(names, planted, answers)
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
