"""`make gpu`: the tests that need GPUs, and every benchmark that says something on them, on this host.

    python benchmarks/gpu/run.py [--out benchmarks/gpu.md] [--cpu N] [--devices N] [--only tests steps others]
        [--model ResNet-50] [--precision tf32] [--side jaxpar] [--images 128] [--sequences 8] [--rounds 3]

The page is written after every visit, so whatever ends the run, it holds what was found until then. Exits 0
if everything ran, 1 if a test or a side of jaxpar's failed, 2 without a GPU, 130 after Ctrl-C. `--cpu N`
tries the same programs, small, on N virtual CPU devices.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

import host  # noqa: E402
from ask import MODELS, PRECISIONS, Answer, Ask, slowest  # noqa: E402
from page import Result, page, table  # noqa: E402
from side import SIDES  # noqa: E402

VISIT = Path(__file__).with_name("side.py")
PARTS = ("tests", "steps", "others")
ORDINARY = ["tests/against_torch/test_layers.py", "tests/test_optim.py", "tests/test_losses.py"]
"""Ordinary tests that name no device and count none: JAX runs them on the first accelerator."""
OTHERS = {
    "data_parallel.py": ["--devices", "{n}"],
    "uneven.py": ["--devices", "{n}"],
    "optim.py": [],
    "data.py": ["prefetch"],
}
"""Benchmarks that print their own numbers; their other options keep their defaults."""
SHORT = {
    "data_parallel.py": ["--rounds", "1"],
    "uneven.py": ["--rounds", "1", "--models", "MLP"],
    "optim.py": ["--rounds", "1", "--millions", "0.1"],
    "data.py": ["--rounds", "1"],
}
"""What keeps them short where the numbers mean nothing."""


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, help="the page; benchmarks/gpu.md, with --cpu .cache/gpu.md")
    add("--cpu", type=int, metavar="N", help="on N virtual CPU devices, small")
    add("--devices", type=int, help="of the host's GPUs; all if left out")
    add("--only", nargs="+", choices=PARTS, default=list(PARTS))
    add("--model", nargs="+", choices=list(MODELS), default=list(MODELS))
    add("--precision", nargs="+", choices=PRECISIONS, default=["tf32", "bfloat16"])
    add("--side", default="", help="those whose name has this text; by hand always runs")
    add("--images", type=int, default=128, help="rows of a device, ResNet-50")
    add("--sequences", type=int, default=8, help="rows of a device, GPT-2")
    add("--rounds", type=int, default=3, help="visits of each side")
    add("--steps", type=int, default=20, help="of a stretch; a visit has three")
    add("--minutes", type=float, default=15, help="of a visit, at most")
    chosen = parser.parse_args(arguments)
    chosen.out = chosen.out or ROOT / (".cache" if chosen.cpu else "benchmarks") / "gpu.md"
    if chosen.cpu:
        chosen.images, chosen.sequences, chosen.steps = 2, 2, min(chosen.steps, 2)
    return chosen


class Run:
    """What was found so far; `write` puts it on the page."""

    def __init__(self, chosen: argparse.Namespace):
        self.chosen, self.small = chosen, bool(chosen.cpu)
        found = host.environment(self.variables())
        backend, seen = found["backends"]["default_backend"], found["backends"]["devices"]
        if not self.small and backend not in ("gpu", "tpu"):
            hint = "jax sees only the CPU; for NVIDIA: pip install 'jaxpar[cuda13]'"
            print(host.NONE.format(found=hint), file=sys.stderr)
            sys.exit(2)
        self.devices = chosen.devices or len(seen)
        self.facts = host.facts(found, self.devices)
        self.results = {ask: Result(ask) for ask in self.asks()} if "steps" in chosen.only else {}
        self.tests: dict[str, str] = {}
        self.others: dict[str, str] = {}
        self.failed = False

    def variables(self, **more: str) -> dict[str, str]:
        """Of a process: the host's own, and the number of virtual devices."""
        few = {"JAX_PLATFORMS": "cpu", "JAXPAR_DEVICES": str(self.chosen.cpu)} if self.small else {}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        cache = {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "gpu")}
        return cache | os.environ | few | {"PYTHONPATH": path} | more

    def asks(self) -> list[Ask]:
        rows = {"ResNet-50": self.chosen.images, "GPT-2 124M": self.chosen.sequences}
        wanted = [side for side in SIDES if self.chosen.side in side or side.startswith("by hand")]
        return [
            Ask(side, model, precision, self.devices, rows[model], self.chosen.steps, self.small)
            for model in self.chosen.model
            for precision in self.chosen.precision
            for side in wanted
        ]

    def write(self) -> None:
        date = datetime.date.today().isoformat()
        text = page(date, self.facts, self.results.values(), self.tests, self.others, small=self.small)
        self.chosen.out.parent.mkdir(exist_ok=True)
        whole = self.chosen.out.with_suffix(".part")
        whole.write_text(text)
        whole.replace(self.chosen.out)

    # ------------------------------------------------------------------------------------------- steps

    def steps(self) -> None:
        """The sides in turn, in another order in every round; what fails once is not asked again."""
        cases = {(ask.model, ask.precision): None for ask in self.results}
        for case in cases:
            for i in range(self.chosen.rounds):
                sides = [ask for ask in self.results if (ask.model, ask.precision) == case]
                for ask in random.Random(i).sample(sides, len(sides)):
                    if not (self.results[ask].answers and self.results[ask].why):
                        self.visit(ask)

    def visit(self, ask: Ask) -> None:
        answer = self.answer(ask)
        self.results[ask] = Result(ask, (*self.results[ask].answers, answer))
        self.failed |= answer.why is not None and ask.side.startswith("jaxpar")
        ended = answer.why or f"{answer.seconds * 1e3:.2f} ms"
        print(f"{ask.model}, {ask.precision}, {ask.side}: {ended}", flush=True)
        self.write()

    def answer(self, ask: Ask) -> Answer:
        missing = self.torch_is_missing() if SIDES[ask.side].module == "torch_steps" else None
        if missing:
            return Answer(why=missing)
        ranks = ask.devices if SIDES[ask.side].ranks else 1
        with tempfile.TemporaryDirectory() as folder:
            return started(ask, ranks, self, Path(folder))

    def torch_is_missing(self) -> str | None:
        """Why torch's sides cannot run here, asked once."""
        if not hasattr(self, "_torch"):
            ask = "import torch; print(torch.__version__, torch.cuda.device_count())"
            run = subprocess.run(
                [sys.executable, "-c", ask], env=self.variables(), capture_output=True, text=True
            )
            version, cards = run.stdout.split() if not run.returncode else ("", "0")
            self._torch = "torch is not installed" if not version else None
            if version and not self.small and int(cards) < self.devices:
                self._torch = f"torch {version} sees {cards} GPUs"
        return self._torch

    # ------------------------------------------------------------------------------------ tests, others

    def ask_tests(self) -> None:
        own = ["--confcutdir=tests/gpu", "tests/gpu"]
        for name, what in {"tests/gpu": own, **{path: [path] for path in ORDINARY}}.items():
            self.tests[name] = self.pytest(what)
            print(f"{name}: {self.tests[name]}", flush=True)
            self.write()

    def pytest(self, what: list[str]) -> str:
        """The last line of pytest, and the tests that failed."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *what]
        run = subprocess.run(command, cwd=ROOT, env=self.variables(), capture_output=True, text=True)
        self.failed |= run.returncode != 0
        lines = (run.stdout + run.stderr).strip().splitlines() or ["no output"]
        bad = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))]
        return "; ".join([lines[-1].strip("= "), *bad])

    def ask_others(self) -> None:
        for name, arguments in OTHERS.items():
            short = SHORT[name] if self.small else []
            words = [word.format(n=self.devices) for word in (*arguments, *short)]
            run = subprocess.run(
                [sys.executable, str(ROOT / "benchmarks" / name), *words],
                env=self.variables(),
                capture_output=True,
                text=True,
            )
            title = " ".join(("python", f"benchmarks/{name}", *words))
            ended = "" if not run.returncode else f"\nexit {run.returncode}: {run.stderr.strip()[-500:]}"
            self.others[title] = run.stdout + ended
            print(f"{title}: {'done' if not run.returncode else ended.strip()}", flush=True)
            self.write()


def started(ask: Ask, ranks: int, run: Run, folder: Path) -> Answer:
    """Starts the processes of a visit and waits for their answers; none is left behind."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    few = {"JAXPAR_DEVICES": "1"} if run.small else {}
    command = [sys.executable, str(VISIT), ask.text(), str(folder / "answer")]
    with open(folder / "log", "w+") as log, contextlib.ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            mine = (
                shared | few | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if SIDES[ask.side].ranks else {}
            )
            process = subprocess.Popen(
                command, env=run.variables(**mine), stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(end, process)
            processes.append(process)
        late = wait(processes, 60 * run.chosen.minutes, folder)
        log.seek(0)
        return answered(folder, ranks, late, log.read())


def wait(processes: list[subprocess.Popen], seconds: float, folder: Path) -> str | None:
    """Until all have ended, or one has failed: the others would wait for it."""

    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes):
        failed = [path for path in folder.glob("answer.*") if '"why": "' in path.read_text()]
        if failed or any(process.poll() not in (None, 0) for process in processes):
            return None
        if time.monotonic() > deadline:
            return f"no answer after {seconds / 60:g} minutes"
        time.sleep(0.1)
    return None


def end(process: subprocess.Popen) -> None:
    """With everything that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def answered(folder: Path, ranks: int, late: str | None, log: str) -> Answer:
    """From the files of the ranks; a process that died left none, and its last line says something."""
    texts = [path.read_text() for path in sorted(folder.glob("answer.*"))]
    answers = [Answer(**json.loads(text)) for text in texts if text]
    if any(answer.why for answer in answers) or len(answers) == ranks:
        return slowest(answers)
    lines = [line for line in re.sub(r"\x1b\[[\d;]*m", "", log).splitlines() if line.strip()]
    return Answer(why=late or f"a process died; its last line: {lines[-1] if lines else 'none'}")


def main() -> int:
    chosen = options()
    if not chosen.cpu and not host.has_gpu():
        print(host.NONE.format(found="no driver of one"), file=sys.stderr)
        return 2
    run = Run(chosen)
    run.write()
    parts = {"tests": run.ask_tests, "steps": run.steps, "others": run.ask_others}
    try:
        for part in chosen.only:
            parts[part]()
    except KeyboardInterrupt:
        print(f"\n{table(run.results.values())}\nmake gpu: stopped")
        return 130
    finally:
        run.write()
        print(f"written: {chosen.out}")
    return int(run.failed)


if __name__ == "__main__":
    sys.exit(main())
