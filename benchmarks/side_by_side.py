"""Prints docs/side_by_side.md: three torch models, and what `jaxpar port` makes of them.

    python benchmarks/side_by_side.py > docs/side_by_side.md

Classes of the same name stand side by side. The port runs when the page is printed, and is proven by
tests/test_side_by_side.py.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from line_by_line import PAIR, PORTS, block, parts

from jaxpar import parity

sys.path.insert(0, str(PORTS))
import resnet_torch
import vit_torch
import word_language_model_torch as language


class Model(NamedTuple):
    """A model of the page.

    Attributes:
      call: what a user writes, which is what runs.
      text: what the reader should look at.
      optimizer: a function of the torch module that makes optimizer and scheduler.
    """

    title: str
    file: str
    call: str
    text: str
    optimizer: Callable[[Any], Any] | None = None


MODELS = [
    Model(
        "ResNet-18",
        "resnet_torch.py",
        "parity.port(resnet_torch.resnet18, torch.randn(4, 3, 64, 64))",
        "The loop that makes the layers, the branch that is there or not, and `mean((2, 3))`, which means "
        "the same because axes are torch's. Initial values are in a table behind the "
        "classes, which is not shown: [port](port.md#initial-values).",
    ),
    Model(
        "A vision transformer",
        "vit_torch.py",
        "parity.port(vit_torch.ViT, torch.randn(3, 3, 32, 32))",
        "`permute` is JAX's `transpose`, and torch's `transpose` is `swapaxes`; a parameter is read by "
        "`[...]`. The comment stays where it was.",
        vit_torch.make_optimizer,
    ),
    Model(
        "An LSTM language model",
        "word_language_model_torch.py",
        "parity.port(\n"
        "    lambda: language.RNNModel(ntoken=50, ninp=8, nhid=8, nlayers=2, dropout=0.0),\n"
        "    torch.randint(50, (7, 3)),\n"
        "    (torch.zeros(2, 3, 8), torch.zeros(2, 3, 8)),\n"
        ")",
        "The state is a tuple on both sides, and time comes first as in torch. `init_hidden` is not called "
        "by `forward`, so it is not ported, and `port.notes` says so.",
    ),
]

HEAD = """\
# Three ports, side by side with PyTorch

What `jaxpar port` makes of a ResNet, a vision transformer and an LSTM: on the left the torch model as it is
in `examples/ports`, on the right the file that was written, unchanged. Each is the same as torch in five
steps of training, in evaluation, and for other shapes, to 1e-10: a test ports and proves all three anew. How
a port is made: [port](port.md). `benchmarks/side_by_side.py` prints this page.
"""


def ported(model: Model) -> parity.Port:
    torch.manual_seed(0)
    names = {"parity": parity, "torch": torch, "resnet_torch": resnet_torch, "vit_torch": vit_torch}
    port: parity.Port = eval(model.call, {**names, "language": language})
    return port


def lines_of(port: parity.Port, make: Callable[[Any], Any]) -> list[parity.Lines]:
    return [port.optimizer(lambda net: make(net)[0]), port.scheduler(lambda net: make(net)[1])]


def script(several: list[parity.Lines]) -> str:
    """One text of several, with all imports at its head."""
    lines = [line for each in several for line in str(each).splitlines()]
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    rest = "\n".join(line for line in lines if line not in imports)
    return "\n".join([*imports, "", rest.strip().replace("\n\n\n", "\n\n")])


def section(model: Model) -> str:
    """The definitions that both sides have, in torch's order; and the optimizer, if there is one."""
    port = ported(model)
    theirs, ours = parts((PORTS / model.file).read_text()), parts(port.source)
    both = [name for name in theirs if name in ours and " " not in name]
    pairs = [PAIR.format(torch=block(theirs[name]), port=block(ours[name])) for name in both]
    text = textwrap.fill(model.text, 120, break_on_hyphens=False)
    found = [f"## {model.title}", text, block(model.call), *pairs]
    if model.optimizer:
        lines = script(lines_of(port, model.optimizer))
        torchs = theirs[model.optimizer.__name__]
        found += [
            "Its optimizer and its schedule, by\n"
            "[port.optimizer and port.scheduler](port.md#optimizer-and-schedule):",
            PAIR.format(torch=block(torchs), port=block(lines)),
        ]
    return "\n\n".join(found) + "\n"


def page() -> str:
    return "\n".join([HEAD, *map(section, MODELS)])


if __name__ == "__main__":
    print(page(), end="")
