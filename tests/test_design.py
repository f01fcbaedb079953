"""What docs/design.md counts about a training step is counted here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jax.numpy as jnp
import optax
from flax import nnx

import jaxpar

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = str(ROOT / "jaxpar")
TEXT = (ROOT / "docs" / "design.md").read_text()


def touched(call) -> tuple[set[str], set[tuple[str, str]]]:
    """The files of jaxpar that run during a call, and the functions in them."""
    functions: set[tuple[str, str]] = set()

    def profiler(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(profiler)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {file for file, _ in functions}, functions


def test_a_warm_step_calls_as_many_functions_as_the_page_counts():
    net = jaxpar.DistributedDataParallel(nnx.Linear(4, 1, rngs=nnx.Rngs(0)))
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    x = jnp.ones((16, 4))
    step(x), step(x)
    files, functions = touched(lambda: step(x))
    (counted,) = re.findall(r"calls (\d+) functions in (\d+) files", TEXT)
    # Python 3.12 and later do not call comprehensions, so they count fewer functions.
    assert 0.8 * int(counted[0]) <= len(functions) <= int(counted[0])
    assert 0.8 * int(counted[1]) <= len(files) <= int(counted[1])
