"""port: a torch module becomes Flax source code, with the proof attached."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import torch
from flax import nnx
from torch import nn

from ..._upstream import compiling_with
from ...errors import PortError
from .._comparison import Comparison
from .._sides.flax_side import compiler_options
from .._sides.step_data import Layout
from .._sides.torch_dropout import taking_fresh
from .._sides.torch_side import one_thread
from .as_used import differences
from .changes import Unread, require_no_other_state
from .images.flow import Flow
from .initial_values import Initialisation
from .layout import SAME, images_last
from .proof import imported, largest, prove, remembers, too_small, write_record
from .reading.backward import differentiate, has_functions
from .reading.building import (
    Constructions,
    Expressions,
    Inexpressible,
    is_plain_function,
    keeping_modules,
    kept_arguments,
    maker_of,
    record_constructions,
    typed_by_parameters,
)
from .reading.hooks import hook_names, hook_owners, with_copied_hooks
from .reading.scope import defined_by_user
from .reading.source import lines_of
from .reading.watching import Watched, watch
from .training.lines import Lines, Origin, TorchObject, optimizer_lines, scheduler_lines
from .translating.definitions import takes_rngs
from .translating.fragment import Hole
from .translating.needs import NOT_PORTED
from .writing import Writer, Written, formatted, with_docstring

_log = logging.getLogger("jaxpar.port")

SOURCES = {"torch": "0", "flax": "rngs", "none": ""}
"""What `initial_values` draws from, by `init`."""
Make = Callable[[], nn.Module]
Build = Callable[[Any], nnx.Module]
"""A function that makes the Flax module from the names of the imported file."""


@dataclasses.dataclass(frozen=True)
class Port:
    """A torch module as Flax source code.

    Attributes:
      source: the text of the file.
      build: the expression that builds it: `ResNet(block=BasicBlock, layers=[2, 2, 2, 2], rngs=rngs)`.
      module: the Flax module, from the written file, with fresh weights; None if it cannot be built.
      comparisons: the proofs: five training steps, an evaluation, evaluations with different shapes. The
        last one fails if any does; empty if there are holes.
      differences: what differs where the file is used in float32, eager or compiled, called twice, or on
        inputs with zeros, padding and ties; empty if there are holes.
      holes: torch's lines that have no counterpart in JAX, with the reason.
      notes: what was left out, and what did not run.
      failure: the error that prevented the proof of a file without holes; otherwise empty.
      torch_lines: the number of non-empty lines of the definitions and their imports in torch.
      path: the path of the written file, if any.
    """

    source: str
    build: str
    module: nnx.Module | None
    comparisons: tuple[Comparison, ...]
    holes: tuple[str, ...]
    notes: tuple[str, ...]
    failure: str
    torch_lines: int
    path: Path | None = None
    differences: tuple[str, ...] = ()
    origin: Origin = dataclasses.field(repr=False, compare=False, kw_only=True)

    def optimizer(self, optimizer: TorchObject) -> Lines:
        """Write a torch optimizer as a line of `jaxpar.optim`, for the ported module.

        Args:
          optimizer: an optimizer of this module's parameters that has not taken a step; or a function that
            makes it from the torch module, which identifies the parameters of each group reliably.

        Raises:
          PortError: jaxpar.optim has no counterpart, or the optimizer's parameters cannot be identified.
        """
        return optimizer_lines(self.origin, optimizer)

    def scheduler(self, scheduler: TorchObject) -> Lines:
        """Write a torch scheduler, and the functions that it calls, as lines of `jaxpar.optim.lr_scheduler`.

        Args:
          scheduler: a scheduler that has not taken a step; or a function that makes it, with its optimizer,
            from the torch module.

        Raises:
          PortError: as `optimizer`, or the source of a function cannot be written.
        """
        return scheduler_lines(self.origin, scheduler)

    @property
    def status(self) -> int:
        """0 written and the same, 1 written and different, 2 holes, 3 written but not proven."""
        if self.holes:
            return 2
        if self.failure or not self.comparisons:
            return 3
        return 0 if all(proof.same for proof in self.comparisons) and not self.differences else 1

    @property
    def same(self) -> bool:
        """Whether there are proofs, no holes, and every proof succeeded."""
        return self.status == 0

    @property
    def comparison(self) -> Comparison | None:
        """The first failed proof; the first proof, of training, if all succeeded."""
        return next((proof for proof in self.comparisons if not proof.same), (self.comparisons or (None,))[0])

    @property
    def largest(self) -> float:
        """The largest relative difference in all proofs."""
        return largest(self.comparisons)

    @property
    def lines(self) -> int:
        """The number of lines of the file, without empty ones, docstring and the table of initial values."""
        return lines_of(self.source.partition("\nINITIAL_VALUES = ")[0])


def port(
    module: nn.Module | Make,
    *inputs: Any,
    out: str | os.PathLike[str] | None = None,
    record: bool = False,
    channels_last: bool = False,
    init: str = "torch",
    **kwargs: Any,
) -> Port:
    """Write a torch module as Flax source code, and prove that both compute the same.

    The module is made and called several times, each time with the same random numbers. While it is watched,
    probes are in the user's functions, for all threads; torch computes with one thread in the whole process.

    No torch counterpart: `torch.export` records the computation, not the code.

    Args:
      module: a function or class that makes the module; or the module itself, if its constructor's
        arguments are attributes of the same names, or have defaults.
      inputs, kwargs: one small call: the module runs on it to record which lines run. Lines that do not run
        are not proven; methods that do not run are not written.
      out: the path of the written file; without it, the text is only returned.
      record: whether torch's numbers are stored next to `out`, with a test that runs without torch.
      channels_last: whether images [N, C, H, W] are [N, H, W, C] in the file, including inputs and outputs.
        Lines that need torch's axes transpose images back, and `notes` names those lines. If a line cannot
        be written, only the inputs are transposed, once, and a note gives the reason.
      init: where the module starts if torch's code sets initial values: "torch", with the numbers of
        torch.manual_seed(0); "flax", with numbers of the same distributions, drawn by `rngs`; or "none", with
        the values of the layers' constructors.

    Returns:
      A Port. `port.same` is True if the proof succeeded.

    Raises:
      PortError: the module cannot be built or called, or its source cannot be read; `out` is its source.
    """
    if record and out is None:
        raise PortError("jaxpar.parity.port: record=True keeps its files beside `out`; give out=.")
    path = Path(out) if out is not None else None
    if init not in SOURCES:
        raise PortError(f"jaxpar.parity.port: init={init!r}; choose one of {', '.join(SOURCES)}.")
    _log.info("running torch's module, to see which lines run")
    make, written, build, builder, layout, start = _read(module, inputs, kwargs, channels_last, path, init)
    # Formatted before the proof, which then imports the file that users get.
    text = formatted(written.text, str(path or "port.py"), unfinished=bool(written.holes))
    flax, file, proof = None, None, Proof()
    with tempfile.TemporaryDirectory() as folder:
        target = path or Path(folder) / "port.py"
        target.write_text(text, encoding="utf-8")
        if not written.holes:
            try:
                _log.info("proving that the file is the same: outputs, gradients, buffers")
                file = imported(target)
                build_file = functools.partial(builder, file)
                flax = build_file()  # as XLA compiles it by default: weights are drawn in loops that are long
                with compiling_with(compiler_options()):
                    proof = _proven(make, flax, build_file, inputs, kwargs, layout, written.unread)
            except Exception as error:  # whatever a written file can do wrong: without a proof it is nothing
                proof = Proof(failure=_failure(error))
    if not written.holes and (header := _unproven(proof)):
        text = with_docstring(text, header)
        if path:
            path.write_text(text, encoding="utf-8")
    notes = [*written.notes, *proof.notes, *_complex_weights(flax)]
    if start is not None and flax is not None:
        notes = [*(note for note in notes if note != NOT_PORTED), *start.notes(flax)]
    results = written.holes, tuple(notes), proof.failure, written.torch_lines
    instance = module if isinstance(module, nn.Module) else None
    origin = Origin(make, functools.partial(builder, file) if flax is not None else None, instance)
    result = Port(text, build, flax, proof.comparisons, *results, path, proof.differences, origin=origin)
    if record and result.same and path:
        with taking_fresh():
            write_record(path, build, _seeded(make), flax, inputs, kwargs, layout, written.layers)
    return result


def _complex_weights(flax: nnx.Module | None) -> list[str]:
    state = nnx.to_flat_state(nnx.state(flax, nnx.Param)) if flax is not None else ()
    names = [".".join(map(str, path)) for path, x in state if jnp.iscomplexobj(x[...])]
    text = "JAX's gradients of complex weights are the conjugates of torch's; an optimizer needs torch's"
    return [f"{text} ({', '.join(names)})"] if names else []


@dataclasses.dataclass(frozen=True)
class Proof:
    """The comparisons, other differences, notes on both, and why nothing was compared."""

    comparisons: tuple[Comparison, ...] = ()
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failure: str = ""


@one_thread()
def _proven(
    make: Make,
    flax: nnx.Module,
    build: Callable[[], nnx.Module],
    inputs: Any,
    kwargs: Any,
    layout: Layout,
    unread: Unread,
) -> Proof:
    # Before the comparisons, which would succeed although the port lacks such an effect.
    require_no_other_state(lambda: _seeded(make), inputs, kwargs, unread)
    with taking_fresh():
        listed, notes = prove(make, flax, build, inputs, kwargs, layout)
    comparisons = tuple(listed)
    if not comparisons:
        return Proof()
    if not all(comparison.same for comparison in comparisons):
        return Proof(comparisons, notes=(*notes, *too_small(make, inputs, kwargs)))
    return Proof(comparisons, differences(make, build, inputs, kwargs, layout), notes)


def _failure(error: Exception) -> str:
    """Return an error in one line; one without a text, as of an `assert`, with the line that raised it."""
    line = traceback.extract_tb(error.__traceback__)[-1].line if not str(error) else str(error)
    return f"{type(error).__name__}: {line}".partition("\n")[0]


def _unproven(proof: Proof) -> str:
    if proof.failure or not proof.comparisons:
        return f"Not proven: {proof.failure}"
    different = [str(x).partition("\n")[0] for x in proof.comparisons if not x.same]
    different += [f"Different: {text}." for text in proof.differences]
    return f"NOT THE SAME as torch. {' '.join(different)}" if different else ""


@one_thread()
def _read(
    module: nn.Module | Make,
    inputs: Sequence[Any],
    kwargs: Any,
    channels_last: bool,
    out: Path | None,
    init: str,
) -> tuple[Make, Written, str, Build, Layout, Initialisation | None]:
    flow = Flow() if channels_last else None
    make, net, nets, calls, watched = _ran(module, inputs, kwargs, flow, out)
    try:
        writer = Writer(watched)
        layout = images_last(writer.needs, flow, nets, inputs, kwargs) if flow else SAME
        expressions = Expressions(calls, functools.partial(takes_rngs, watched=watched))
        if is_plain_function(make) and not _is_of_another_file(net, make):
            roots, build = [make], f"{make.__name__}({'rngs=rngs' if takes_rngs(make, watched) else ''})"
        else:
            build = expressions.construction(net)
            roots = list(dict.fromkeys(expressions.roots))
        writer.needs.imports.update(expressions.imports)
        for name, value in expressions.objects.items():
            writer.needs.note(f"{name} in the constructor's call is the {type(value).__name__} of torch's")
        start = Initialisation.of(lambda: _seeded(make)) if init != "none" else None
        written = writer.write(roots, _title(net), start.table() if start else "")
        builder = functools.partial(_built, build, written.layers, expressions.objects)
        if start and start.rows:
            build = f"initial_values({build}, {SOURCES[init]})"
        return make, written, build, builder, layout, start
    except (Inexpressible, LookupError, OSError, Hole, SyntaxError) as error:
        raise PortError(f"jaxpar.parity.port: {error}") from error


def _ran(
    module: nn.Module | Make, inputs: Sequence[Any], kwargs: Any, flow: Flow | None, out: Path | None
) -> tuple[Make, nn.Module, list[nn.Module], Constructions, Watched]:
    """Return how the module is made, the module, one of each mode, and what ran."""
    try:
        make = maker_of(module) if isinstance(module, nn.Module) else module
        net, calls = record_constructions(lambda: _seeded(make))
        if out is not None:
            _refuse_source(out, [make, *{type(child) for child in net.modules()}])

        def call(nets: Sequence[nn.Module]) -> None:
            with torch.no_grad():
                for mode, net in zip((True, False), nets, strict=True):
                    net.train(mode)(*inputs, **kwargs)
            if has_functions():
                differentiate(nets[0].train()(*inputs, **kwargs))

        def make_nets() -> Sequence[nn.Module]:
            # One module per mode, so that evaluation starts from initial buffers. In place, because
            # `images_last` needs the modules of the last run, whose tensors `flow` recorded.
            nets[:] = [_seeded(make) for _ in range(2)]
            return nets

        nets: list[nn.Module] = []
        watched = watch(make_nets, call, flow)
        watched.kept_arguments = kept_arguments(calls)
        watched.typed_by_parameters = typed_by_parameters(functools.partial(_seeded, make), net)
        watched.keeping_modules = keeping_modules(net)
        watched.hook_names, watched.hook_owners = hook_names(net), hook_owners(net)
        watched.remembers = functools.cache(lambda: remembers(make, inputs, kwargs))
        return make, net, nets, calls, watched
    except PortError:
        raise
    except (Inexpressible, LookupError, OSError, SyntaxError) as error:
        raise PortError(f"jaxpar.parity.port: {error}") from error
    except Exception as error:
        raise PortError(
            f"jaxpar.parity.port: torch's module fails: {type(error).__name__}: {error}"
        ) from error


def _refuse_source(out: Path, definitions: Sequence[Any]) -> None:
    for definition in definitions:
        file = getattr(sys.modules.get(getattr(definition, "__module__", "")), "__file__", None)
        if file is not None and os.path.realpath(out) == os.path.realpath(file):
            raise PortError(
                f"jaxpar.parity.port: out={str(out)!r} is the source of {definition.__qualname__} and would "
                "be written over; choose another file."
            )


def _is_of_another_file(net: nn.Module, make: Any) -> bool:
    """Return whether a function makes a library's module, whose class is then the one to port."""
    kind = type(net)
    return defined_by_user(kind) and inspect.getfile(kind) != make.__code__.co_filename


def _built(build: str, layers: str, objects: dict[str, Any], file: Any) -> nnx.Module:
    # The build expression may use `nn` and `partial` although the file imports neither.
    names = {"nnx": nnx, "nn": importlib.import_module(f"jaxpar.nn.{layers}"), "rngs": nnx.Rngs(0)}
    return eval(build, {"partial": functools.partial, **vars(file), **objects, **names})


def _title(net: nn.Module) -> str:
    return f"{type(net).__name__}, ported from {Path(inspect.getfile(type(net))).name} by `jaxpar port`."


def _seeded(make: Make) -> nn.Module:
    # devices=[]: by default fork_rng also saves the generator of every GPU.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
    if not isinstance(module, nn.Module):
        raise PortError(f"jaxpar.parity.port: it made {type(module).__name__}, and not a torch.nn.Module")
    return with_copied_hooks(module)
