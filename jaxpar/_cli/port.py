"""`jaxpar port`: write a torch module as a Flax file, prove it, and return an exit code."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from .. import parity
from ..errors import SpecError
from .ending import leave, plain_ending
from .spec import OutputPath, check_source, failed

log = logging.getLogger("jaxpar.port")
COULD_NOT = 3
"""The exit code without a file or a proof. Other commands use 2, which means holes here."""


class Command(click.Command):
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.ClickException as error:
            # click's own code for wrong usage is 2, which means holes here.
            error.exit_code = COULD_NOT  # type: ignore[misc]  # click reads it from the instance
            raise


@contextlib.contextmanager
def phases() -> Iterator[None]:
    """Print what `parity.port` logs on stderr: a line when a phase begins, which can take a minute."""
    handler, level = logging.StreamHandler(), log.level
    handler.setFormatter(logging.Formatter("jaxpar port: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@click.command(cls=Command, short_help="Write a torch module as Flax source code, with its proof.")
@click.argument("module", metavar="MODELS.py:MAKE")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SHAPE",
    help="2,3,224,224, or 2,7:100 for integers below 100. Repeat it for a module with several inputs.",
)
@click.option(
    "--out", type=OutputPath(), required=True, metavar="FILE", help="The Python file that is written."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Of the inputs.")
@click.option("--record/--no-record", default=False, help="Keep torch's numbers, and a test of the file.")
@click.option("--channels-last/--channels-first", default=False, help="Images are [N, H, W, C] in the file.")
@click.option(
    "--init",
    type=click.Choice(["torch", "flax", "none"]),
    default="torch",
    show_default=True,
    help="Initial values: torch's numbers, others of the same distributions, or the layers' own.",
)
@click.option(
    "--optimizer",
    metavar="MODELS.py:MAKE",
    help="Makes a torch optimizer, a scheduler, or both, of the module: their lines, and five steps.",
)
@plain_ending(COULD_NOT)
@phases()
def port(
    module: str, inputs: tuple[str, ...], out: str, seed: int, optimizer: str | None, **options: Any
) -> None:
    """Write a torch module as Flax source code, and prove that it is the same.

    MAKE is a function or class of MODELS.py, or of an importable module, that builds the module. The module
    is called on random inputs to see which lines run; lines that do not run are not proven, and are marked in
    the file. The exit code is 0 if the file was written and is the same, 1 if it is different, 2 if it has
    holes, and 3 without a file or a proof.

    \b
      jaxpar port models.py:make --input 2,3,224,224 --out net_flax.py
      jaxpar port models.py:LanguageModel --input 2,16:1000 --out lm_flax.py --record
      jaxpar port models.py:make --input 2,3,224,224 --out net_flax.py --optimizer models.py:make_optimizer
    """
    if not out.endswith(".py"):
        raise click.UsageError(f"--out {out}: a Python file ends in .py.")
    for text in inputs:
        _sizes(text)
    check_maker(module)
    if optimizer is not None:
        check_maker(optimizer, "the module")
    lines: list[parity.Lines] = []
    if "torch" not in sys.modules:  # which reads them then: what is compiled has no lines that run
        os.environ.update(PYTORCH_JIT="0", TORCHDYNAMO_DISABLE="1")
    log.info("importing %s, PyTorch and JAX", module.rpartition(":")[0])
    make = _maker(module)
    examples = [example(text, seed) for text in inputs]
    port = parity.port(make, *examples, out=out, **options)
    if optimizer is not None and not port.holes:
        log.info("proving five steps of %s", optimizer)
        lines = trained(port, make, _maker(optimizer))
    click.echo(summary(port, out))
    for training in lines:
        verdict = f"the same: largest difference {training.largest:.2g}" if training.same else "different"
        click.echo(f"\n{training}\n{verdict}" + ("" if training.same else f"\n\n{training.comparison}"))
    # A file that is the same, with an optimizer that differs, is different.
    leave(port.status or int(not all(training.same for training in lines)))


def trained(port: parity.Port, make: Callable[[], Any], of: Callable[[Any], Any]) -> list[parity.Lines]:
    """Port the optimizer, the scheduler, or a tuple of both that a function of the module returns."""

    def parts(net: Any) -> tuple[Any, Any]:
        objects = of(net)
        if isinstance(objects, tuple | list):
            return objects[0], objects[1]
        return (objects.optimizer, objects) if hasattr(objects, "optimizer") else (objects, None)

    lines = [port.optimizer(lambda net: parts(net)[0])]
    if parts(make())[1] is not None:
        lines += [port.scheduler(lambda net: parts(net)[1])]
    return lines


def summary(port: parity.Port, out: str) -> str:
    verdict = {
        0: f"the same: {len(port.comparisons)} proofs, largest difference {port.largest:.2g}",
        1: "different",
        2: f"{len(port.holes)} holes",
        3: f"no proof: {port.failure}",
    }[port.status]
    lines = [f"{out}: {port.lines} lines for torch's {port.torch_lines}, {verdict}"]
    lines += [f"  hole: {hole}" for hole in port.holes] + [f"  note: {note}" for note in port.notes]
    lines += [f"  different: {difference}" for difference in port.differences]
    lines += [f"  build it with {port.build}"]
    if port.status == 1 and not port.differences:
        lines += ["", str(port.comparison)]
    return "\n".join(lines)


def example(text: str, seed: int) -> Any:
    import torch

    sizes, limit = _sizes(text)
    generator = torch.Generator().manual_seed(seed)
    if limit is not None:
        return torch.randint(limit, sizes, generator=generator)
    return torch.randn(sizes, generator=generator)


def _sizes(text: str) -> tuple[list[int], int | None]:
    """Parse 2,7:100 into the sizes and the limit of integers, which may be missing."""
    shape, _, limit = text.partition(":")
    try:
        sizes, bound = [int(size) for size in shape.split(",") if size], int(limit) if limit else None
        if min(sizes, default=0) < 0 or (bound is not None and bound < 1):
            raise ValueError("sizes are 0 or more, and integers are below 1 or more")
    except ValueError as error:
        raise SpecError(f"--input {text}: write 2,3,224,224, or 2,7:100 for integers ({error}).") from None
    return sizes, bound


def check_maker(spec: str, *arguments: str) -> None:
    """Check what shows without importing the file: that it parses, and that MAKE can be called like that."""
    source, _, name = spec.rpartition(":")
    if not source.endswith(".py"):
        return
    definition = _definition(check_source(source), name)
    if definition is None or definition.decorator_list:
        return  # imported, assigned or decorated: only running the file shows it
    shown, bound = name, 0
    if isinstance(definition, ast.ClassDef):
        definition = _definition(definition, "__init__")
        shown, bound = f"{name}.__init__", 1
    if not isinstance(definition, ast.FunctionDef):
        return
    signature = definition.args
    positional = [*signature.posonlyargs, *signature.args]
    required = positional[len(arguments) + bound : len(positional) - len(signature.defaults)]
    defaults = zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
    required += [argument for argument, default in defaults if default is None]
    if required:
        raise SpecError(
            f"{spec}: {shown} needs {', '.join(argument.arg for argument in required)}, and is called with "
            f"{', '.join(arguments) or 'no arguments'}. Write a function that calls it, for example "
            f"def make({'net' if arguments else ''}): return {name}(...), and name that one."
        )


def _definition(scope: ast.Module | ast.ClassDef, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return next((x for x in reversed(scope.body) if isinstance(x, kinds) and x.name == name), None)


def _maker(spec: str) -> Callable[..., Any]:
    source, _, name = spec.rpartition(":")
    if not source:
        raise SpecError(f"{spec}: write FILE.py:NAME or MODULE:NAME; NAME makes the module.")
    try:
        module = _file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except (Exception, SystemExit) as error:
        raise failed(source, "", error) from error
    if not hasattr(module, name):
        raise SpecError(f"{spec}: {source} has no {name}.")
    return getattr(module, name)


def _file(path: Path) -> Any:
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses and pickle look the module up by its name while it runs.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
