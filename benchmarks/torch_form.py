"""Every layer and function of jaxpar.nn against torch: the largest difference, or why it is refused.

    python benchmarks/torch_form.py                # measure and print all of them, some minutes
    python benchmarks/torch_form.py norms conv     # only these tables

The tables are those of the tests, tests/against_torch/cases/, and so is the law: five training steps and an
evaluation in float64 from the same weights; outputs, gradients by inputs and parameters, parameters and
buffers. It prints Markdown and exits with 1 if a row fails. The site has the same page without the measured
column: `docs/_extensions/layers.py`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
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

Each row is trained for five steps and then evaluated on both sides, in float64 from the same weights.
Compared are outputs, gradients by inputs and by parameters, parameters and buffers. The largest difference of
any of them in any step, relative to the largest magnitude in its tensor, is at most 1e-12 in every row:
`tests/against_torch` fails otherwise. Inputs are in jaxpar's layout, channels last where torch has channels.

`python benchmarks/torch_form.py` measures the differences. torch {torch}, jax {jax}.
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


def measured(case: Case) -> str:
    try:
        return f"{difference(case):.0e}"
    except Exception as error:
        return failure(error)


def refused(row: Refused) -> str:
    try:
        return f"{row.error.__name__}: {' '.join(refusal(row).split())}".replace("|", "\\|")
    except Exception as error:
        return failure(error)


FAILS = "**FAILS**"


def failure(error: Exception) -> str:
    return f"{FAILS}: {' '.join(str(error).split())}"


def lines(names: list[str], measure: bool = True) -> Iterator[str]:
    """The page's lines, as they are measured; without the measured column if not `measure`.

    Raises:
      SystemExit: a name without a table.
    """
    yield HEAD.format(torch=torch.__version__.split("+")[0], jax=jax.__version__)
    columns = ["torch", "jaxpar", "inputs", *(["largest difference"] if measure else [])]
    for name, module in tables(names).items():
        yield from (f"## {title(module)}", "", row(columns), row(["---"] * len(columns)))
        for i, case in enumerate(module.CASES):
            if sys.stderr.isatty():
                print(f"{name} {i + 1}/{len(module.CASES)}", end="\r", file=sys.stderr)
            yield row([*cells(case), shapes(case), *([measured(case)] if measure else [])])
        for both, heading in ((True, "Refused, as torch does"), (False, "Not there, with the reason")):
            refusals = [refusal for refusal in module.REFUSED if refusal.torch_too is both]
            if refusals:
                yield from ("", f"{heading}:", "", row(["torch", "jaxpar", "message"]), row(["---"] * 3))
            yield from (row([*cells(refusal), refused(refusal)]) for refusal in refusals)
        yield ""


def row(texts: list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def main() -> int:
    """Print the page; 1 if a row failed."""
    failed = False
    for line in lines(sys.argv[1:]):
        print(line, flush=True)
        failed |= FAILS in line
    return int(failed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's remarks on its own speed
    sys.exit(main())
