"""What ranks send in tests/test_distributed.py: values of every dtype that any order adds up exactly."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np

DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex128"),
    *("int64", "int32", "int8", "uint8", "bool"),
)
FLOATS = DTYPES[:5]


def value(dtype: str, rank: int) -> np.ndarray:
    """[3, 2], the same in every process; quarters and small integers."""
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    x = np.random.RandomState(100 * rank + 7).randint(0, 4, (3, 2))
    if kind.kind == "c":
        return (x / 4 + 1j * x.T.reshape(3, 2)).astype(kind)
    return (x / 4 if dtype in FLOATS else x % 2 if dtype == "bool" else x).astype(kind)


def report(case: str, tree: dict) -> None:
    """One line on stdout: every leaf's dtype, shape and bytes."""
    leaves = {}
    for name, leaf in tree.items():
        x = np.asarray(leaf)
        leaves[name] = [str(x.dtype), list(x.shape), x.tobytes().hex()]
    print("REPORT " + json.dumps([case, leaves]), flush=True)


def reports(out: str) -> dict[str, dict[str, np.ndarray]]:
    """The reports on one rank's stdout, by case."""
    found = {}
    for line in out.splitlines():
        if "REPORT " in line:
            case, leaves = json.loads(line.split("REPORT ", 1)[1])
            found[case] = {
                name: np.frombuffer(
                    bytes.fromhex(raw), np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
                ).reshape(shape)
                for name, (dtype, shape, raw) in leaves.items()
            }
    return found
