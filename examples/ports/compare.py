"""Both sides of every port: how many lines differ, and how far the numbers of the first epoch are apart.

    python examples/ports/compare.py                 # the table of README.md
    python examples/ports/compare.py mnist --time    # one of them, and what an epoch takes beside torch

Each side runs in a process of its own, in float64 with dropout off. Compared are every training loss, what
the evaluation says, and the weights at the end. A difference is relative to the number itself, for weights to
the largest of their array. Times are of float32: of one epoch with all that comes before it, and of an epoch
more.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
EXAMPLES = "https://github.com/pytorch/examples/tree/main"


class Port(NamedTuple):
    original: str
    arguments: str  # of an epoch that takes seconds
    epochs: str = "--epochs"
    processes: int = 1


PORTS = {
    "mnist": Port(f"{EXAMPLES}/mnist", "--dropout 0"),
    "imagenet": Port(
        f"{EXAMPLES}/imagenet",
        "{folder}/images --make-data 512 --size 32 --width 16 -b 64 --lr 0.01 --out {folder}",
    ),
    "word_language_model": Port(
        f"{EXAMPLES}/word_language_model", "--dropout 0 --emsize 64 --nhid 64 --save {folder}/model.pt"
    ),
    "dcgan": Port(f"{EXAMPLES}/dcgan", "--ngf 16 --ndf 16", "--niter"),
    "vae": Port(f"{EXAMPLES}/vae", ""),
    "ddp_tutorial": Port(
        f"{EXAMPLES}/distributed/ddp-tutorial-series", "1 --snapshot {folder}/snapshot", "", 2
    ),
    "mingpt": Port("https://github.com/karpathy/minGPT", "--dropout 0 --batch-size 64", "--max-iters"),
}
EPOCH = {"mingpt": 64}
"""Batches, where the script counts those."""


class Result(NamedTuple):
    lines: int  # of torch's script
    changed: int
    numbers: int  # that were compared
    difference: float
    weights: float


def code(path: Path) -> list[str]:
    """A script's lines, without its head and empty lines."""
    lines = path.read_text().split('"""', 2)[2].splitlines()
    return [line for line in lines if line.strip()]


def changed_lines(old: list[str], new: list[str]) -> int:
    """How many lines of `old` are changed in `new` or gone."""
    pieces = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return len(old) - sum(piece.size for piece in pieces)


def arguments_of(name: str, folder: Path, epochs: int = 1, dtype: str = "float64") -> list[str]:
    port = PORTS[name]
    count = [port.epochs, str(epochs * EPOCH.get(name, 1))] if port.epochs else [str(epochs)]
    return [*port.arguments.format(folder=folder).split(), *count, "--dtype", dtype]


def run_side(module: str, folder: Path, arguments: list[str], processes: int = 1) -> dict[str, Any]:
    """Runs one side in processes of its own, and returns what `side` wrote."""
    command = [str(Path(__file__)), "--side", module, str(folder), *arguments]
    if processes == 1:
        start = [sys.executable]
    elif module.endswith("_torch"):
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    else:
        start = [sys.executable, "-m", "jaxpar", "launch", "-n", str(processes)]
    (folder / f"{module}.json").unlink(missing_ok=True)
    done = subprocess.run([*start, *command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{module} {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return json.loads((folder / f"{module}.json").read_text())


def side(module: str, folder: Path, arguments: list[str]) -> None:
    """In its process: runs a script's `main`, and writes its numbers, its weights and the seconds it took."""
    sys.path.insert(0, str(HERE))
    main = importlib.import_module(module).main
    begun = time.perf_counter()
    model, numbers = main(arguments)
    written = {"numbers": [float(number) for number in numbers], "seconds": time.perf_counter() - begun}
    if int(os.environ.get("RANK", 0)) > 0:
        return
    weights = folder / "weights.pt"
    if module.endswith("_torch"):
        import torch

        torch.save(model.state_dict(), weights)
    elif weights.exists():
        written["weights"] = largest_weight_difference(model, weights)
    (folder / f"{module}.json").write_text(json.dumps(written))


def largest_weight_difference(model: Any, weights: Path) -> float:
    """Between a Flax model's arrays and those that torch's weights become in it."""
    import jax
    from flax import nnx

    from jaxpar import parity

    ours = jax.tree.map(np.array, nnx.state(model, nnx.Not(nnx.RngState)))
    theirs = nnx.state(parity.load_torch(nnx.clone(model), weights), nnx.Not(nnx.RngState))
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(relative(a, np.array(b)) for a, b in pairs)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the largest element."""
    return float(np.abs(a - b).max() / max(np.abs(b).max(), np.finfo(np.float64).tiny))


def compare(name: str, folder: Path) -> Result:
    arguments, processes = arguments_of(name, folder), PORTS[name].processes
    theirs = run_side(f"{name}_torch", folder, arguments, processes)
    for path in folder.glob("snapshot*"):  # or the other side would go on from it
        path.unlink()
    ours = run_side(name, folder, arguments, processes)
    pairs = list(zip(theirs["numbers"], ours["numbers"], strict=True))
    difference = max((relative(np.array(b), np.array(a)) for a, b in pairs), default=0.0)
    old, new = code(HERE / f"{name}_torch.py"), code(HERE / f"{name}.py")
    return Result(len(old), changed_lines(old, new), len(pairs), difference, ours["weights"])


def seconds(name: str, folder: Path) -> list[float]:
    """One epoch with all that comes before it, and an epoch more: of torch, of jaxpar."""
    found = []
    for module in (f"{name}_torch", name):
        times = []
        for epochs in (1, 3):
            own = folder / f"{module}_{epochs}"  # a run goes on from what it finds
            own.mkdir()
            arguments = arguments_of(name, own, epochs, "float32")
            times.append(run_side(module, own, arguments, PORTS[name].processes)["seconds"])
        found += [times[0], (times[1] - times[0]) / 2]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PORTS)}; all if left out")
    parser.add_argument("--time", action="store_true", help="what an epoch takes, too")
    options = parser.parse_args()
    heads = ["port", "torch's script", "lines that change", "numbers", "largest difference", "of weights"]
    if options.time:
        heads += ["torch: first epoch, one more", "jaxpar: first epoch, one more", "ratio"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in options.names or PORTS:
        with tempfile.TemporaryDirectory() as folder:
            print(row(name, Path(folder), options.time), flush=True)


def row(name: str, folder: Path, timed: bool) -> str:
    found = compare(name, folder)
    cells = [
        f"[{name}.py]({name}.py)",
        f"[{name}_torch.py]({name}_torch.py), after [this]({PORTS[name].original})",
        f"{found.changed} of {found.lines} ({found.changed / found.lines:.0%})",
        str(found.numbers),
        f"{found.difference:.0e}" if found.numbers else "",
        f"{found.weights:.0e}",
    ]
    if timed:
        a, b, c, d = seconds(name, folder)
        cells += [f"{a:.1f} s, {b:.2f} s", f"{c:.1f} s, {d:.2f} s", f"{d / b:.2f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    else:
        main()
