"""A library's builders: a class that makes layers, a registry of settings, a mixin of another package."""

import functools

import torch
import torch.nn.functional as F
from rich.jupyter import JupyterMixin
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    from not_installed import Fused
except ImportError:
    Fused = None

REGISTRY = {}


class Scale(nn.Module):
    def __init__(self, width, ratio=None):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.ratio = ratio

    def forward(self, x):
        return self.linear(x) * (self.ratio or 1)


class Unused(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


SCALES = {"scale": {"kind": Scale, "url": ["https://example.com"], "make": functools.partial(Scale, ratio=2)}}
REGISTRY.update(SCALES)
REGISTRY.update({"unused": {"kind": Unused, "url": []}})


class Builder:
    """Makes layers, and is none."""

    def __init__(self, kind):
        self.kind = REGISTRY[kind]
        self.made = None
        try:
            self.kind["kind"](4, ratio=1.0)
            self.has_ratio = True
        except TypeError:
            self.has_ratio = False

    def __call__(self, width, blocks):
        self.made = len(blocks)
        return nn.Sequential(*[self._block(width, **block) for block in blocks])

    def _block(self, width, kind, ratio):
        if kind == "missing":
            return Fused(width).special()
        return self.kind["make"](width) if kind == "made" else self.kind["kind"](width, ratio=ratio)


class Shown(JupyterMixin):
    """Of another package, which knows nothing of torch."""

    def show(self):
        return self.__rich_console__(None, None)


@torch.amp.autocast("cuda", enabled=False)
def half(x):
    return x / 2


class Base(nn.Module, Shown):
    def __new__(cls, *args, **kwargs):
        instance = super().__new__(cls)
        return instance  # noqa: RET504

    def start(self, reset):
        self.apply(functools.partial(self._start, reset=reset))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight)
        for m in self.modules():
            if isinstance(m, Scale):
                nn.init.ones_(m.linear.bias)

    def _start(self, m, reset):
        if reset and hasattr(m, "reset_parameters"):
            m.reset_parameters()


class Built(Base):
    inputs = ((2, 3, 4),)

    def __init__(self, kind="scale", width=4, blocks=({"kind": "made"}, {"kind": "other"}), skip=True):
        super().__init__()
        for number, block in enumerate(blocks):
            block.setdefault("ratio", number)
        self.frozen = False
        self.widths = [0, width, 0]
        self.kernels = [SDPBackend.MATH]
        for index in range(3):
            self.widths[index] = width + index
        self.norm, self.act = None, None
        if width > 3:
            self.norm = nn.LayerNorm(width)
        self.skip = skip
        if skip:
            self.skip = nn.Identity()
        self.table = nn.Parameter(torch.zeros(width, width))
        trunc_normal_(self.table)
        self.blocks = Builder(kind)(width, [dict(block) for block in blocks])
        self.start(False)
        self.fill()

    def fill(self):
        device = self.table.device
        self.register_buffer("mask", self.make_mask(device=device), persistent=False)

    def train(self, mode=True):
        """With a part that may be frozen."""
        self.training = mode
        for name, module in self.named_children():
            if self.frozen and name == "blocks":
                continue
            module.train(mode)
        return self

    def make_mask(self, device=None):
        return torch.eye(3, dtype=torch.bool, device=device)

    def forward(self, x):
        (x,) = filter(torch.is_tensor, (None, x))
        x = self.skip(x) + self.blocks(self.norm(x)) * self.widths[2]
        with sdpa_kernel(self.kernels):
            x = F.scaled_dot_product_attention(x, x, x @ self.table, self.mask)
        return half(x)


def trunc_normal_(tensor):
    with torch.no_grad():
        tensor.uniform_(-0.9, 0.9).erfinv_()
    return tensor


class Popping(nn.Module):
    """Changes the dict that it is made with."""

    inputs = ((2, 4),)

    def __init__(self, settings):
        super().__init__()
        self.kind = settings.pop("kind")
        self.layer = REGISTRY[self.kind]["kind"](**settings)

    def forward(self, x):
        return self.layer(x)


class Walked(nn.Module):
    """Changes its layers in a walk; gives an activation its argument by position."""

    inputs = ((2, 3, 6, 6),)

    def __init__(self, act=nn.ReLU):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), act(True)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps, module.momentum = 0.1, 0.3
        self.count = len([name for name, _ in self.named_modules() if name])

    def forward(self, x):
        return self.act(self.norm(self.conv(x))) * self.count


def popping():
    return Popping({"kind": "scale", "width": 4})
