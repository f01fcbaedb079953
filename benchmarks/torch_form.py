"""Every layer and function in torch's form against torch: the largest difference, or why it is refused.

    python benchmarks/torch_form.py > docs/tables/torch_form.md
    python benchmarks/torch_form.py norms conv

The tables are those of the tests, tests/against_torch/cases/, and so is the law: five training steps
and an evaluation in float64 from the same weights; outputs, gradients by inputs and parameters,
parameters and buffers. It prints Markdown and ends with 1 if a row fails.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

import jax

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
jax.config.update("jax_enable_x64", True)

import torch  # noqa: E402
from against_torch.layers import Case, Refused, difference, refusal  # noqa: E402

HEAD = """# Layer by layer: PyTorch and jaxpar.nn

Every layer and function of [jaxpar.nn](../nn.md) beside torch's, and the largest difference between the two.

Each row was trained for five steps and then evaluated on both sides, in float64 from the same weights.
Compared were outputs, gradients by inputs and by parameters, parameters and buffers. The number is the
largest difference of any of them in any step, relative to the largest magnitude in its tensor: a
difference in meaning shows above 1e-12, and no row is above it. Inputs are in jaxpar's layout, channels
last where torch has channels.

`python benchmarks/torch_form.py > docs/tables/torch_form.md` prints this page, `tests/test_torch_form.py` holds it
to the tables of the tests. torch {torch}, jax {jax}.
"""


def tables(names: list[str]) -> dict[str, ModuleType]:
    """The modules of cases/ by name; all of them if none is named."""
    found = sorted(path.stem for path in (ROOT / "tests/against_torch/cases").glob("*.py"))
    unknown = set(names) - set(found)
    if unknown:
        raise SystemExit(f"torch_form: no table {sorted(unknown)}; there are {found}")
    return {name: importlib.import_module(f"against_torch.cases.{name}") for name in names or found}


def title(module: ModuleType) -> str:
    return (inspect.getdoc(module) or module.__name__).split(":")[0].split("\n")[0].rstrip(".")


def code(text: str) -> str:
    """A call in a cell of a table, without what makes it Python."""
    text = re.sub(r"^lambda [^:]*: ", "", " ".join(text.split()))
    return f"`{text}`".replace("|", "\\|")


def cells(row: Case | Refused) -> tuple[str, str]:
    """torch's call and jaxpar's."""
    ours = row.jaxpar or row.torch
    if isinstance(row, Refused):
        return code(row.torch), code(ours)
    said = "".join(f", {k}={v}" for k, v in row.options.items() if not hasattr(v, "shape"))
    return code(row.torch) + said, code(ours) + said


def shapes(case: Case) -> str:
    """Of the inputs that are given as shapes; others are values that matter."""
    return ", ".join(str(given) if isinstance(given, tuple) else "…" for given in case.inputs)


def measured(case: Case) -> tuple[str, bool]:
    try:
        return f"{difference(case):.0e}", True
    except Exception as error:
        return f"**FAILS**: {' '.join(str(error).split())}", False


def refused(row: Refused) -> tuple[str, bool]:
    try:
        return f"{row.error.__name__}: {' '.join(refusal(row).split())}".replace("|", "\\|"), True
    except Exception as error:
        return f"**FAILS**: {' '.join(str(error).split())}", False


def page(names: list[str]) -> bool:
    """Prints it; whether every row passed."""
    print(HEAD.format(torch=torch.__version__.split("+")[0], jax=jax.__version__), end="")
    passed = []
    for name, module in tables(names).items():
        print(f"\n## {title(module)}\n\n| torch | jaxpar | inputs | largest difference |\n|---|---|---|---|")
        for i, case in enumerate(module.CASES):
            if sys.stderr.isatty():
                print(f"{name} {i + 1}/{len(module.CASES)}", end="\r", file=sys.stderr)
            text, good = measured(case)
            passed.append(good)
            print("| " + " | ".join([*cells(case), shapes(case), text]) + " |", flush=True)
        for both, heading in ((True, "Refused, as torch does"), (False, "Not there, with the reason")):
            rows = [row for row in module.REFUSED if row.torch_too is both]
            if rows:
                print(f"\n{heading}:\n\n| torch | jaxpar | message |\n|---|---|---|")
            for row in rows:
                text, good = refused(row)
                passed.append(good)
                print("| " + " | ".join([*cells(row), text]) + " |", flush=True)
    return all(passed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's remarks on its own speed
    sys.exit(not page(sys.argv[1:]))
