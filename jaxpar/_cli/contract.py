"""`jaxpar contract` and `jaxpar skill`: what a port must meet, and an answer that a program can act on."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout

import click

from .ending import leave, plain_ending
from .spec import check_source

SKILL = """\
# Port a PyTorch model to JAX, and prove it

1. Where torch is installed: `jaxpar contract make torch_side.py contract/`. The file defines torch_module and
   inputs, and optionally targets, loss, optimizer, steps, training. Without jaxpar there, write one file with
   `python -m jaxpar.parity.recorder --copy recorder.py`, run `python recorder.py torch_side.py trace/` where
   torch is, and give the folder: `jaxpar contract make trace/ contract/`.
2. Read contract/contract.json: entry_points (what to define), inputs, weights, outputs (names and shapes in
   torch's layout), steps, tolerance.
3. Write contract/port.py. Name modules as torch does, or define mapping. Load no weights and draw no random
   numbers: the judge copies torch's weights and dropout masks by name.
4. `jaxpar contract check contract/` prints one JSON document. Torch is not needed.
   Exit code 0: met. 1: not met. 2: no verdict, see `error` (type, text, line of the port). 130: stopped.
5. If it is not met, look at `place` first: everything before it agrees. Then
   - `cause.proven` is true: with `edit.diff` applied, a run agreed at this place and nothing else got worse.
     Save the diff, apply it with `patch -p1`, and check again.
   - `cause.proven` is false: the text is a guess. Read the code at `place` before you believe it.
     `other_edits` agreed as well: compare them with torch's code, and apply only one.
   - `cause` is null: only the place is known. Compare the code there with torch's, line by line.
   Mend one place, and check again: later differences are often consequences. `reproduction` is a small
   program, which takes seconds and ends with 1 while the place differs:
   `python contract/reproduction.py contract/port.py`.
6. `met` covers only what was run. `unreached` lists what was not: make a contract that reaches it (training
   mode, more steps, other inputs) before you report the port as the same.

Never change contract/trace, the tolerance, or the inputs to get a verdict. A trace is sealed, and an edited
one is refused.
"""


@click.group()
def contract() -> None:
    """Make a contract that a JAX port must meet, and check a port against it."""


@contract.command(short_help="Record the torch side, and write the contract's folder.")
@click.argument("side", metavar="TORCH_SIDE", type=click.Path())
@click.argument("folder", type=click.Path())
@plain_ending()
def make(side: str, folder: str) -> None:
    """Write FOLDER, which says what a port of the model in TORCH_SIDE must define and compute.

    TORCH_SIDE is a Python file that defines torch_module and inputs, and optionally targets, loss, optimizer,
    steps, training, outputs, seed; or a trace that the recorder wrote. FOLDER gets contract.json, trace/, a
    port.py to fill in, and a README.md.
    """
    from ..parity.contract.making import is_trace
    from ..parity.contract.making import make as run

    if not is_trace(side):
        check_source(side)
    click.echo(f"{run(side, folder, SKILL)}: the contract is made; define its entry points in port.py.")


@contract.command(short_help="Judge a port in JSON; needs no torch.")
@click.argument("folder", type=click.Path())
@click.argument("port", required=False, type=click.Path())
@click.option("--seconds", type=click.FloatRange(min=0), default=300, help="After which no edit is tried.")
@plain_ending()
def check(folder: str, port: str | None, seconds: float) -> None:
    """Judge PORT, by default FOLDER/port.py, and print the answer as one JSON document.

    Ctrl-C while edits are searched ends the search, and the answer has what is known; elsewhere the exit
    code is 130. It is 0 if the contract is met, 1 if not, and 2 without a verdict.
    """
    from ..parity.contract.checking import check as run

    # A port may print, and the answer is all of standard output.
    with redirect_stdout(sys.stderr):
        answer, code = run(folder, port, seconds, lambda line: click.echo(line, err=True))
    click.echo(json.dumps(answer, indent=1, allow_nan=False))
    leave(code)


@click.command(short_help="Print a page for programs that port models.")
def skill() -> None:
    """Print how an agent ports a model with a contract: the commands, the answer, and its rules."""
    click.echo(SKILL, nl=False)
