"""port: a torch module becomes Flax source code, with the proof attached."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flax import nnx
from torch import nn

from ...errors import PortError
from .._comparison import Comparison
from .building import Expressions, Inexpressible, maker_of, named, noted
from .proof import imported, largest, prove
from .translation import Hole
from .watching import watch
from .writing import Writer, Written, formatted


@dataclasses.dataclass(frozen=True)
class Port:
    """A torch module as Flax source code.

    Attributes:
      source: the text of the file.
      build: how the module is built with it: `ResNet(block=BasicBlock, layers=[2, 2, 2, 2], rngs=rngs)`.
      module: the Flax module, from the written file, with fresh weights; None if the file has holes.
      comparisons: the proofs: five training steps, an evaluation, evaluations of other shapes. The last one
        is different if one is; empty if there are holes.
      holes: what could not be said, with torch's lines.
      notes: what was left out.
      torch_lines: how many lines torch's classes have.
      path: where the file was written, if it was.
    """

    source: str
    build: str
    module: nnx.Module | None
    comparisons: tuple[Comparison, ...]
    holes: tuple[str, ...]
    notes: tuple[str, ...]
    torch_lines: int
    path: Path | None = None

    @property
    def comparison(self) -> Comparison | None:
        """The first proof that is different; the first one, of training, if all are the same."""
        return next((each for each in self.comparisons if not each.same), (self.comparisons or (None,))[0])

    @property
    def same(self) -> bool:
        """Whether there are proofs, and none is different."""
        return bool(self.comparisons) and all(each.same for each in self.comparisons)

    @property
    def largest(self) -> float:
        """The largest relative difference in all proofs."""
        return largest(self.comparisons)

    @property
    def lines(self) -> int:
        return len(self.source.splitlines())


def port(
    module: nn.Module | Callable[[], nn.Module],
    *inputs: Any,
    out: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Port:
    """Writes a torch module as Flax source code, and proves that it is the same.

    Args:
      module: a function or class that makes the module; or the module itself, if its constructor's
        arguments are attributes of their names, or have defaults.
      inputs: tensors of one call, small: the module runs on them to see which lines run. Lines that do not
        run are not proven; methods that do not run are not written.
      out: the path of the file that is written; without one it is only returned.
      kwargs: keyword arguments of the call.

    Returns:
      A Port. `port.same` says whether the proof succeeded.

    Raises:
      PortError: the module cannot be built or called, or its source cannot be read.

    No torch counterpart: `torch.export` keeps what was computed and not the code.
    """
    try:
        make = module if not isinstance(module, nn.Module) else maker_of(module)
        net, calls = noted(lambda: _seeded(make))
        written, build, maker = _written(make, net, calls, inputs, kwargs)
    except (Inexpressible, LookupError, OSError, Hole, SyntaxError) as error:
        raise PortError(f"jaxpar.parity.port: {error}") from error
    path = Path(out) if out is not None else None
    text = formatted(written.text, str(path or "port.py"))
    with tempfile.TemporaryDirectory() as folder:
        target = path or Path(folder) / f"{_file_name(net)}.py"
        target.write_text(text, encoding="utf-8")
        here = imported(target)
        flax, proofs = None, []
        if not written.holes:
            flax = maker(here)
            proofs = prove(make, lambda: maker(here), inputs, kwargs)
    return Port(text, build, flax, tuple(proofs), written.holes, written.notes, written.torch_lines, path)


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = make()
    if not isinstance(made, nn.Module):
        raise PortError(f"jaxpar.parity.port: it made {type(made).__name__}, and not a torch.nn.Module")
    return made


def _written(
    make: Callable[[], nn.Module], net: nn.Module, calls: Any, inputs: Any, kwargs: Any
) -> tuple[Written, str, Callable[[Any], nnx.Module]]:
    """The file, the expression that builds the module, and a function that does so with the imported file."""

    def run() -> None:
        with torch.no_grad():
            for mode in (True, False):
                _seeded(make).train(mode)(*inputs, **kwargs)

    watched = watch(run)
    writer = Writer(watched)
    title = f"{type(net).__name__}, ported from {Path(inspect.getfile(type(net))).name} by `jaxpar port`."
    if named(make):
        build = f"{make.__name__}(rngs=rngs)"
        roots = [make]
    else:
        expressions = Expressions(calls)
        build = expressions.construction(net, rngs=True)
        roots = list(dict.fromkeys(expressions.roots))
    written = writer.write(roots, title)

    def maker(here: Any) -> nnx.Module:
        names = {**vars(here), "nnx": nnx, "nn": importlib.import_module("jaxpar.nn.channels_first")}
        names |= {"partial": functools.partial, "rngs": nnx.Rngs(0)}
        return eval(build, names)

    return written, build, maker


def _file_name(net: nn.Module) -> str:
    return re.sub(r"(?<!^)(?=[A-Z][a-z])", "_", type(net).__name__).lower() + "_flax"
