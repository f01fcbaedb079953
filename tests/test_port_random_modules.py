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


def modules(folder, numbers):
    path = folder / f"random_{numbers[0]}.py"
    path.write_text(
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
        + "".join(map(module, numbers))
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    file = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = file
    spec.loader.exec_module(file)
    return [getattr(file, f"Random{number}") for number in numbers]


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
            with torch.no_grad():
                try:
                    theirs, exact = net(x.clone()), copy.deepcopy(net).double()(x.double())
                except RuntimeError:
                    continue
            ours = np.asarray(port.module(jnp.asarray(x.numpy())))
            bound = 1e-4 * exact.abs().max().item() + 50 * (theirs - exact).abs().max().item() + 1e-6
            if not np.array_equal(np.isnan(ours), exact.isnan().numpy()):
                return np.inf
            worst = max(worst, float(np.nan_to_num(abs(ours - exact.numpy()), nan=0).max()) / bound)
    return worst


@pytest.mark.parametrize("first", range(0, MODULES, IN_A_FILE))
def test_no_random_module_passes_wrongly(first, tmp_path):
    statuses = {}
    for kind in modules(tmp_path, range(first, first + IN_A_FILE)):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
        try:
            kind()(x.clone())
        except RuntimeError:  # torch refuses the change in place
            continue
        try:
            port = parity.port(kind, x)
        except errors.PortError:
            continue
        statuses[kind.__name__] = port.status
        if port.status == 0:
            assert largest_error(port, kind, first + 1) < 1, port.source
    assert 0 in statuses.values(), "planted: some are the same"
