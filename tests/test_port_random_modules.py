"""Random modules of the rules' calls, aliases, containers, options and changes in place: none passes wrongly.

The independent check calls both modules on other inputs, with other weights, in float32. Twenty of them take
a minute; `JAXPAR_RANDOM_MODULES=200` in the environment draws as many.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import random
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxpar import errors, parity

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
MODULES, IN_A_FILE = int(os.environ.get("JAXPAR_RANDOM_MODULES", 20)), 10
ONE = (
    *("{x}.abs()", "{x}.clamp(-1, 1)", "F.relu6({x})", "{x}.std(1, keepdim=True)", "{x} - {x}.mean(0)"),
    *(
        "{x}.max(1).values[:, None]",
        "{x}.sort(1)[0]",
        "{x}.cummax(1).values",
        "{x}.norm(dim=1, keepdim=True)",
    ),
    *(
        "{x}.softmax(-1)",
        "{x}.flip(1)",
        "{x}.roll(1, 0)",
        "F.hardswish({x})",
        "F.celu({x}, 0.7)",
        "{x}.t().t()",
    ),
    *(
        "{x}.view(-1).view_as({x})",
        "torch.cat([{x}, {x}], 1)[:, :4]",
        "{x}.masked_fill({x} > 0, 0.5)",
        "{x}.frac()",
    ),
    *(
        "{x}.unbind(1)[0][:, None] + {x}",
        "{x}.tril()",
        "{x}.clone()",
        "F.normalize({x})",
        "{x}.square().sqrt()",
    ),
    *(
        "self.linear({x})",
        "self.layers[0]({x})",
        "self.named['b']({x})",
        "self.norm({x})",
        "{x} * self.scale",
    ),
    *(
        "self.apply_all({x})",
        "sum(layer({x}) for layer in self.named.values())",
        "{x}.chunk(2, 1)[1].repeat(1, 2)",
    ),
)
TWO = (
    *(
        "{x} + {y}",
        "{x} * {y}",
        "torch.maximum({x}, {y})",
        "torch.where({x} > {y}, {x}, {y})",
        "{x}.lerp({y}, 0.3)",
    ),
    *(
        "torch.stack([{x}, {y}]).sum(0)",
        "{x} @ {y}.t() @ {x}",
        "{x}.addcmul({y}, {x})",
        "torch.atan2({x}, {y})",
    ),
    *(
        "torch.cdist({x}, {y}) @ {y}",
        "{x}.fmod({y}.abs() + 1)",
        "torch.einsum('ij,ij->i', {x}, {y})[:, None] + {x}",
    ),
)
IN_PLACE = (
    *(
        "{x} += {y}",
        "{x}.mul_(0.5)",
        "{x}[0] = {y}[1]",
        "{x}[:, 1:] *= 2",
        "{x}.clamp_(min=0)",
        "{x}[{x} > 1] = 0",
    ),
    *("{x}.add_({y}, alpha=2)", "{x}[..., 0].zero_()"),
)
ALIASES = ("{z} = {x}", "{z} = {x}.view(-1, 4)", "{z} = {x}[:]", "{z} = {x}.t().t()", "{z}, _ = {x}, {y}")
OPTIONS = ("if shift is not None:", "if self.training:", "if self.flag and shift is None:")


def module(number):
    """Return the text of a module whose forward is drawn."""
    draw = random.Random(number)
    names, lines = ["x"], []
    for step in range(draw.randint(4, 9)):
        x, y, kind = draw.choice(names), draw.choice(names), draw.random()
        new = f"v{step}"
        if kind < 0.2 and len(names) > 1:
            lines.append(draw.choice(IN_PLACE).format(x=draw.choice(names[1:]), y=y))
            continue
        if kind < 0.3:
            lines.append(draw.choice(ALIASES).format(x=x, y=y, z=new))
        elif kind < 0.42:
            lines += [f"{new} = {x} * 1", draw.choice(OPTIONS), f"    {new} = {draw.choice(ONE).format(x=x)}"]
        else:
            expression = draw.choice(ONE).format(x=x) if kind < 0.75 else draw.choice(TWO).format(x=x, y=y)
            lines.append(f"{new} = {expression}")
        names.append(new)
    lines.append(f"return self.linear({names[-1]}) + {draw.choice(names)}")
    body = "\n        ".join(lines)
    return f"""
class Random{number}(nn.Module):
    def __init__(self, flag={draw.random() < 0.5}):
        super().__init__()
        self.flag = flag
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])
        self.named = nn.ModuleDict({{"b": nn.Linear(4, 4), "a": nn.ReLU()}})
        self.scale = nn.Parameter(torch.ones(4))

    def apply_all(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x, shift=None):
        {body}
"""


TRAPS = {
    "Alias": "v = y\nv.mul_(2)\nv = v + y",
    "View": "v = y.view(-1)\nv[0] = 3.0\nv = y + 1",
    "Part": "v = y[:, :2]\nv += 1\nv = y * 2",
    "Overflow": "v = y + ((torch.arange(4) * 73856093) % 101)",
    "Negative": "v = y + torch.tensor(2) ** (torch.arange(4) - 2).abs() + 2.0 ** (torch.arange(4) - 2)",
    "Keys": "d = {'z': y, 'a': x}\nv = sum((i + 1) * part for i, part in enumerate(d.values()))",
    "Names": "v = y\nfor i, layer in enumerate(self.named.values()):\n    v = layer(v) * (i + 1)",
    "Kept": "self.kept = y\nv = self.kept * 2",
    "Rows": "v = y * x.shape[0] if x.shape[0] > 3 else y",
    "Decides": "v = y if x.sum() > 0 else -y",
}
"""Lines that a careless translation has wrong; each in four surroundings."""
SURROUNDINGS = {
    "Plain": "{lines}",
    "Training": "v = y\nif self.training:\n    v = y * 1\nelse:\n{indented}",
    "NotRun": "v = y\nif shift is not None:\n{indented}",
    "Nested": "def inner(x, y):\n{indented}\n    return v\nv = inner(x, y)",
}


def trap(number):
    """Return the text of a trap in a surrounding, by its number."""
    (name, lines), (around, template) = (
        [*TRAPS.items()][number // len(SURROUNDINGS)],
        [*SURROUNDINGS.items()][number % len(SURROUNDINGS)],
    )
    body = template.format(lines=lines, indented=textwrap.indent(lines, "    "))
    return f"""
class Trap{number}(nn.Module):
    \"\"\"{name}, {around}.\"\"\"

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.named = nn.ModuleDict({{"b": nn.Linear(4, 4), "a": nn.ReLU()}})

    def forward(self, x, shift=None):
        y = self.linear(x)
{textwrap.indent(body, " " * 8)}
        return v + y
"""


def modules(folder, numbers, text=module, kind="Random"):
    path = folder / f"{kind}_{numbers[0]}.py"
    path.write_text(
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n" + "".join(map(text, numbers))
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    file = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = file
    spec.loader.exec_module(file)
    return [getattr(file, f"{kind}{number}") for number in numbers]


def largest_error(port, kind, seed):
    """Return how far the written module is from torch's, relative to its numbers and torch's rounding."""
    generator = torch.Generator().manual_seed(seed)
    net = kind().eval()
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    worst = 0.0
    with jax.enable_x64(False):
        parity.load_torch(port.module, net, lossy=True)
        port.module.eval()
        for x in (torch.randn(5, 4, generator=generator), torch.zeros(3, 4), torch.ones(3, 4)):
            for shift in ((), (torch.ones(1),)):
                with torch.no_grad():
                    try:
                        theirs, exact = (
                            net(x.clone(), *shift),
                            copy.deepcopy(net).double()(x.double(), *shift),
                        )
                    except RuntimeError:
                        continue
                try:
                    ours = np.asarray(port.module(*map(jnp.asarray, (x.numpy(), *shift))))
                except NotImplementedError:  # a line that the example did not run, with its hole
                    continue
                except AttributeError as error:  # a method that only such a line calls, of which a note tells
                    if any(f".{error.name} is not ported" in note for note in port.notes):
                        continue
                    raise
                bound = 1e-4 * exact.abs().max().item() + 50 * (theirs - exact).abs().max().item() + 1e-6
                if not np.array_equal(np.isnan(ours), exact.isnan().numpy()):
                    return np.inf
                worst = max(worst, float(np.nan_to_num(abs(ours - exact.numpy()), nan=0).max()) / bound)
    return worst


def statuses(kinds, seed):
    """Port each module that torch takes; what passes must be right on other inputs and weights."""
    by_name = {}
    for kind in kinds:
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
        try:
            kind()(x.clone())
        except RuntimeError:  # torch refuses the change in place
            continue
        try:
            port = parity.port(kind, x)
        except errors.PortError:
            continue
        by_name[kind.__name__] = port.status
        if port.status == 0:
            assert largest_error(port, kind, seed) < 1, port.source
    return by_name


@pytest.mark.parametrize("first", range(0, MODULES, IN_A_FILE))
def test_no_random_module_passes_wrongly(first, tmp_path):
    by_name = statuses(modules(tmp_path, range(first, first + IN_A_FILE)), first + 1)
    assert 0 in by_name.values(), "planted: some are the same"


@pytest.mark.parametrize("first", range(0, len(TRAPS) * len(SURROUNDINGS), IN_A_FILE))
def test_no_trap_in_any_surrounding_passes_wrongly(first, tmp_path):
    by_name = statuses(modules(tmp_path, range(first, first + IN_A_FILE), trap, "Trap"), first + 1)
    assert by_name, "planted: torch takes some of them"
    print(by_name)
