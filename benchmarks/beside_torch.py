"""One example beside its torch twin: how far their losses are apart in float64.

    python benchmarks/beside_torch.py 07_digits_cnn --devices 4 --steps 8

The example runs as it stands, with four changes: it has so many virtual devices, all its numbers are float64,
nothing is computed in bfloat16, and it ends after so many steps. Each step that it makes with
`jaxpar.train_step`, `jaxpar.eval_step` or `nnx.jit` is taken by the twin too: the file of the same name in
benchmarks/twins/, which begins with the same weights and trains in torch, with torch's own nn.DataParallel.

A twin is a function `twin(example, net, n, accumulate)` of the example's names, its module, the number of
replicas and the batches of one update. It returns a dict with one function for each step, named as the
function that the step was made from: the same step in torch, from the same batch to the same result.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch
from flax import nnx

import jaxpar
import torch_ref

ROOT = Path(__file__).resolve().parents[1]
Twin = dict[str, Callable[..., torch.Tensor]]


class Enough(BaseException):
    """So many steps were compared. Not an Exception, so that no example takes it for one of its own."""


class Beside:
    """What is compared: the twins of an example's modules, how often each step was taken, how far apart."""

    def __init__(self, example: types.ModuleType, make: Callable[..., Twin], n: int, steps: int):
        self.example, self.make, self.n, self.steps = example, make, n, steps
        self.twins: dict[int, tuple[Any, Twin]] = {}
        self.twin: Twin = {}
        self.taken: collections.Counter = collections.Counter()
        self.apart = 0.0

    def begin(self, net: nnx.Module, accumulate: int = 1) -> Twin:
        """The twin of a module, made at its first step; the module is kept, so that its id stays its own."""
        if id(net) not in self.twins:
            self.twins[id(net)] = net, self.make(self.example, net, self.n, accumulate)
            self.taken.clear()
        self.twin = self.twins[id(net)][1]
        return self.twin

    def compare(self, twin: Twin, name: str, ours: Any, batch: Any) -> None:
        if name not in twin:
            return
        ours = ours[0] if isinstance(ours, tuple) else ours
        theirs = twin[name](*jax.tree.map(tensor, batch)).detach().numpy()
        self.apart = max(self.apart, float(np.abs(np.asarray(ours) - theirs).max()))
        self.taken[name] += 1
        if all(self.taken[each] >= self.steps for each in twin):
            raise Enough


class Recorded:
    """A step of the example, and of the twin after it; with the attributes of what it records."""

    def __init__(self, step: Callable[..., Any], name: str, beside: Beside, twin: Twin | None):
        self.step, self.name, self.beside, self.twin = step, name, beside, twin

    def __call__(self, *batch: Any) -> Any:
        batch = jax.tree.map(double, batch)
        ours = self.step(*batch)
        self.beside.compare(self.beside.twin if self.twin is None else self.twin, self.name, ours, batch)
        return ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)


def double(x: Any) -> Any:
    return x.astype(np.float64) if np.issubdtype(getattr(x, "dtype", None), np.floating) else x


def tensor(x: Any) -> torch.Tensor:
    found = torch.tensor(np.asarray(x))
    return found if found.is_floating_point() else found.long()


def in_float64(net: nnx.Module, optimizer: nnx.Optimizer | None = None) -> None:
    jaxpar.to(net, dtype=np.float64)
    if optimizer is not None:
        nnx.update(optimizer, jax.tree.map(double, nnx.state(optimizer)))


@contextlib.contextmanager
def recording(beside: Beside) -> Iterator[None]:
    """Inside it, whatever makes a compiled step makes one that is compared."""
    train_step, eval_step, jit = jaxpar.train_step, jaxpar.eval_step, nnx.jit

    def recorded_train_step(net: Any, optimizer: Any, loss_fn: Callable, **settings: Any) -> Recorded:
        settings.pop("precision", None)
        in_float64(net, optimizer)
        twin = beside.begin(net, settings.get("accumulate", 1))
        return Recorded(train_step(net, optimizer, loss_fn, **settings), loss_fn.__name__, beside, twin)

    def recorded_eval_step(net: Any, function: Callable | None = None, **_: Any) -> Recorded:
        in_float64(net)
        return Recorded(eval_step(net, function), getattr(function, "__name__", ""), beside, None)

    def recorded_jit(function: Callable, **settings: Any) -> Callable:
        compiled = jit(function, **settings)
        if function.__module__ != beside.example.__name__:  # Flax and jaxpar use it too
            return compiled

        def step(net: Any, optimizer: Any, *batch: Any) -> Any:
            in_float64(net, optimizer)
            taken = functools.partial(compiled, net, optimizer)
            return Recorded(taken, function.__name__, beside, beside.begin(net))(*batch)

        return step

    steps = {"train_step": recorded_train_step, "eval_step": recorded_eval_step}
    with (
        mock.patch.multiple(jaxpar, virtual_devices=lambda n: None, **steps),
        mock.patch.object(nnx, "jit", recorded_jit),
    ):
        yield


def largest_difference(name: str, devices: int, steps: int, twin: Path) -> float:
    """Of the first so many losses of an example and its twin.

    Raises:
      ValueError: the example made fewer steps.
    """
    jax.config.update("jax_enable_x64", True)
    jaxpar.virtual_devices(devices)
    torch.set_num_threads(1)  # each replica is a thread of its own
    example = types.ModuleType(name)
    n = max(1, jaxpar.device_count())  # one CPU device is none
    beside = Beside(example, runpy.run_path(str(twin))["twin"], n, steps)
    source = (ROOT / "examples" / f"{name}.py").read_text()
    with recording(beside), torch_ref.pretend(n), contextlib.redirect_stdout(sys.stderr):
        try:
            exec(compile(source, f"{name}.py", "exec"), example.__dict__)
        except Enough:
            return beside.apart
    raise ValueError(f"{name} makes fewer than {steps} steps: {dict(beside.taken)}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", help="of the example, without .py")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--twin", type=Path, help="another twin than the example's own")
    options = parser.parse_args()
    twin = options.twin or ROOT / "benchmarks" / "twins" / f"{options.name}.py"
    apart = largest_difference(options.name, options.devices, options.steps, twin)
    print(f"losses of jaxpar and torch over {options.steps} steps: largest difference {apart:.1e}")


if __name__ == "__main__":
    main()
