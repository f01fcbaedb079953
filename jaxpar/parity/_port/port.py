"""port: a torch module becomes Flax source code, with the proof attached."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from flax import nnx
from torch import nn

from ...errors import PortError
from .._comparison import Comparison
from .._sides.step_data import Layout
from .changes import require_no_other_state
from .images.flow import Flow
from .kept import keep
from .layout import SAME, images_last
from .proof import imported, largest, prove, too_small
from .reading.building import Expressions, Inexpressible, maker_of, named, noted
from .reading.counting import lines_of
from .reading.watching import watch
from .training.lines import Given, Lines, Origin, optimizer_lines, scheduler_lines
from .translating.definitions import takes_rngs
from .translating.words import Hole
from .writing import Writer, Written, formatted, with_docstring

Make = Callable[[], nn.Module]
Build = Callable[[Any], nnx.Module]
"""Makes the Flax module with the names of the imported file."""


@dataclasses.dataclass(frozen=True)
class Port:
    """A torch module as Flax source code.

    Attributes:
      source: the text of the file.
      build: how the module is built with it: `ResNet(block=BasicBlock, layers=[2, 2, 2, 2], rngs=rngs)`.
      module: the Flax module, from the written file, with fresh weights; None if it cannot be built.
      comparisons: the proofs: five training steps, an evaluation, evaluations of other shapes. The last one
        is different if one is; empty if there are holes.
      holes: what could not be said in lines that run, with torch's words.
      notes: what was left out, and what did not run.
      failure: why there is no proof, where there is neither one nor a hole.
      torch_lines: how many lines the definitions and their imports have in torch, without empty ones.
      path: where the file was written, if it was.
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
    origin: Origin = dataclasses.field(repr=False, compare=False, kw_only=True)

    def optimizer(self, optimizer: Given) -> Lines:
        """A torch optimizer as a line of `jaxpar.optim`, for the ported module.

        Args:
          optimizer: one that has taken no step, of this module's parameters; or a function of the torch
            module that makes it, which says best which parameter is in which group.

        Returns:
          Lines. `lines.same` says whether five steps, and all options, are torch's.

        Raises:
          PortError: jaxpar.optim has no word for it, or it is not known which parameters it holds.
        """
        return optimizer_lines(self.origin, optimizer)

    def scheduler(self, scheduler: Given) -> Lines:
        """A torch scheduler as lines of `jaxpar.optim.lr_scheduler`, for the optimizer that it steps.

        Args:
          scheduler: one that has taken no step; or a function of the torch module that makes it, with its
            optimizer.

        Returns:
          Lines, with the functions that the scheduler calls. They are compared together with the optimizer's.

        Raises:
          PortError: jaxpar.optim has no word for it, or a function in it has no text.
        """
        return scheduler_lines(self.origin, scheduler)

    @property
    def status(self) -> int:
        """0 written and the same, 1 written and different, 2 holes, 3 written and without a proof."""
        if self.holes:
            return 2
        if self.failure or not self.comparisons:
            return 3
        return 0 if all(each.same for each in self.comparisons) else 1

    @property
    def same(self) -> bool:
        """Whether there are proofs, no holes, and no proof is different."""
        return self.status == 0

    @property
    def comparison(self) -> Comparison | None:
        """The first proof that is different; the first one, of training, if all are the same."""
        return next((each for each in self.comparisons if not each.same), (self.comparisons or (None,))[0])

    @property
    def largest(self) -> float:
        """The largest relative difference in all proofs."""
        return largest(self.comparisons)

    @property
    def lines(self) -> int:
        """How many lines the file has, without empty ones and without its docstring."""
        return lines_of(self.source)


def port(
    module: nn.Module | Make,
    *inputs: Any,
    out: str | os.PathLike[str] | None = None,
    record: bool = False,
    channels_last: bool = False,
    **kwargs: Any,
) -> Port:
    """Writes a torch module as Flax source code, and proves that it is the same.

    Args:
      module: a function or class that makes the module; or the module itself, if its constructor's
        arguments are attributes of their names, or have defaults.
      inputs: tensors of one call, small: the module runs on them to see which lines run. Lines that do not
        run are not proven; methods that do not run are not written.
      out: the path of the file that is written; without one it is only returned.
      record: whether torch's numbers are kept beside `out`, with a test that needs no torch.
      channels_last: whether images [N, C, H, W] are [N, H, W, C] in the file, inputs and outputs among them.
        Lines that need torch's axes turn them back, and `notes` name those lines. If a line cannot be
        written, inputs alone are turned, once, before the first line of the call; a note says why.
      kwargs: keyword arguments of the call.

    Returns:
      A Port. `port.same` says whether the proof succeeded.

    Raises:
      PortError: the module cannot be built or called, or its source cannot be read.

    The module is made and called several times, each time with the same random numbers. While it is watched,
    the user's functions have probes in them, for all threads; while it is proven, torch computes with one
    thread, in the whole process.

    No torch counterpart: `torch.export` keeps what was computed and not the code.
    """
    if record and out is None:
        raise PortError("jaxpar.parity.port: record=True keeps its files beside `out`; give out=.")
    make, written, build, builder, layout = _read(module, inputs, kwargs, channels_last)
    path = Path(out) if out is not None else None
    text = formatted(written.text, str(path or "port.py"))
    flax, proofs, failure, here = None, [], "", None
    notes: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory() as folder:
        target = path or Path(folder) / "port.py"
        target.write_text(text, encoding="utf-8")
        if not written.holes:
            try:
                here = imported(target)
                flax = builder(here)
                require_no_other_state(lambda: _seeded(make), inputs, kwargs)
                proofs = prove(make, flax, inputs, kwargs, layout)
                notes = () if all(each.same for each in proofs) else too_small(make, inputs, kwargs)
            except Exception as error:  # whatever a written file can do wrong: without a proof it is nothing
                failure = f"{type(error).__name__}: {error}".partition("\n")[0]
    if not written.holes and (said := _unproven(failure, proofs)):
        text = with_docstring(text, said)
        if path:
            path.write_text(text, encoding="utf-8")
    results = written.holes, (*written.notes, *notes), failure, written.torch_lines
    given = module if isinstance(module, nn.Module) else None
    origin = Origin(make, functools.partial(builder, here) if flax is not None else None, given)
    found = Port(text, build, flax, tuple(proofs), *results, path, origin=origin)
    if record and found.same and path:
        keep(path, build, _seeded(make), flax, inputs, kwargs, layout, written.layers)
    return found


def _unproven(failure: str, proofs: Sequence[Comparison]) -> str:
    """What a file without holes says of itself, for whoever meets it later; nothing if it is the same."""
    if failure or not proofs:
        return f"Not proven: {failure}"
    if proofs[-1].same:
        return ""
    return f"NOT THE SAME as torch. {str(proofs[-1]).partition(chr(10))[0]}"


def _read(
    module: nn.Module | Make, inputs: Sequence[Any], kwargs: Any, channels_last: bool
) -> tuple[Make, Written, str, Build, Layout]:
    """What makes the torch module, its classes as text, and how that is built: as text, and as a function.

    And how images come and go.
    """
    try:
        make = maker_of(module) if isinstance(module, nn.Module) else module
        net, calls = noted(lambda: _seeded(make))

        def call(nets: Sequence[nn.Module]) -> None:
            with torch.no_grad():
                for mode, each in zip((True, False), nets, strict=True):
                    each.train(mode)(*inputs, **kwargs)

        def made() -> Sequence[nn.Module]:
            nets[:] = [_seeded(make) for _ in range(2)]
            return nets

        nets: list[nn.Module] = []
        flow = Flow() if channels_last else None
        watched = watch(made, call, flow)
        writer = Writer(watched)
        layout = images_last(writer.needs, flow, nets, inputs, kwargs) if flow else SAME
        expressions = Expressions(calls, functools.partial(takes_rngs, watched=watched))
        if named(make):
            roots, build = [make], f"{make.__name__}({'rngs=rngs' if takes_rngs(make, watched) else ''})"
        else:
            build = expressions.construction(net)
            roots = list(dict.fromkeys(expressions.roots))
        writer.needs.imports.update(expressions.imports)
        written = writer.write(roots, _title(net))
        return make, written, build, functools.partial(_built, build, written.layers), layout
    except PortError:
        raise
    except (Inexpressible, LookupError, OSError, Hole, SyntaxError) as error:
        raise PortError(f"jaxpar.parity.port: {error}") from error
    except Exception as error:
        raise PortError(
            f"jaxpar.parity.port: torch's module fails: {type(error).__name__}: {error}"
        ) from error


def _built(build: str, layers: str, here: Any) -> nnx.Module:
    names = {"nnx": nnx, "nn": importlib.import_module(f"jaxpar.nn.{layers}"), "rngs": nnx.Rngs(0)}
    return eval(build, {"partial": functools.partial, **vars(here), **names})


def _title(net: nn.Module) -> str:
    return f"{type(net).__name__}, ported from {Path(inspect.getfile(type(net))).name} by `jaxpar port`."


def _seeded(make: Make) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = make()
    if not isinstance(made, nn.Module):
        raise PortError(f"jaxpar.parity.port: it made {type(made).__name__}, and not a torch.nn.Module")
    return made
