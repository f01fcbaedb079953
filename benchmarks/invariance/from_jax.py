"""A program of examples/from_jax with a tap beside it, for `jaxpar invariance`.

jaxpar invariance benchmarks/invariance/from_jax.py --worlds 1x1,1x4 -- seq2seq
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

from jaxpar import parity

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "from_jax"))


def main() -> None:
    train = importlib.import_module(sys.argv[1]).train
    options = {"dropout": 0.0} if "--no-dropout" in sys.argv else {}
    assert options.keys() <= inspect.signature(train).parameters.keys()
    tap = parity.Tap("taps")
    for step, (loss, params) in enumerate(train(dtype="float64", **options)):
        tap(step, loss=loss, parameters=params)


main()
