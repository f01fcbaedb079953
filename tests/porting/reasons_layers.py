"""A library's layers: a registry, a variable that a function sets, and a name that `reasons` defines."""

# ruff: noqa: SIM102, SIM108 (as torch's BatchNorm has it)

import functools

import torch
import torch.nn.functional as F
from torch import nn

_ACTIVATIONS = {}
_FUSED = None


def set_fused(value):
    global _FUSED
    _FUSED = value


def use_fused():
    if _FUSED is None:
        return hasattr(F, "scaled_dot_product_attention")
    return _FUSED > 0


def register(kind):
    _ACTIVATIONS[kind.__name__.lower()] = kind
    return kind


@register
class Swish(nn.Module):
    def forward(self, x):
        return x * x.sigmoid()


@register
class Unused(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


def create_activation(name):
    return _ACTIVATIONS[name]()


def get_norm(name):
    return {"layer": nn.LayerNorm, "batch": NormAct}[name]


def trunc_normal_(tensor, std):
    with torch.no_grad():
        tensor.uniform_(-0.9, 0.9).erfinv_().mul_(std)


def initialize(module, name=""):
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, 0.02)
        nn.init.zeros_(module.bias)
    for child_name, child in module.named_children():
        initialize(child, f"{name}.{child_name}")


class Block(nn.Module):
    def __init__(self, width, device=None, dtype=None):
        dd = {"device": device, "dtype": dtype}
        super().__init__()
        self.linear = nn.Linear(width, width, **dd)
        self.scale = nn.Parameter(torch.full((width,), 0.5, **dd))

    def forward(self, x):
        return self.linear(x) * self.scale


class NormAct(nn.BatchNorm2d):
    """BatchNorm and an activation, with torch's `forward` repeated."""

    def __init__(self, num_features, eps=1e-5, activation="swish", device=None, dtype=None):
        factory_kwargs = {"device": device, "dtype": dtype}
        super().__init__(num_features, eps=eps, **factory_kwargs)
        self.act = create_activation(activation)

    def forward(self, x):
        if self.momentum is None:
            exponential_average_factor = 0.0
        else:
            exponential_average_factor = self.momentum

        if self.training and self.track_running_stats:
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                if self.momentum is None:
                    exponential_average_factor = 1.0 / float(self.num_batches_tracked)
                else:
                    exponential_average_factor = self.momentum

        if self.training:
            bn_training = True
        else:
            bn_training = (self.running_mean is None) and (self.running_var is None)
        x = F.batch_norm(
            x,
            self.running_mean if not self.training or self.track_running_stats else None,
            self.running_var if not self.training or self.track_running_stats else None,
            self.weight,
            self.bias,
            bn_training,
            exponential_average_factor,
            self.eps,
        )
        return self.act(x)


class StandardConv2d(nn.Conv2d):
    def forward(self, x):
        rows, gain = self.weight.reshape(1, self.out_channels, -1), self.bias.exp()
        weight = F.batch_norm(rows, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6)
        weight = weight.reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def dilate(module, rate):
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.stride, layer.dilation = (1, 1), (rate, rate)
            layer.padding = (layer.kernel_size[0] // 2 * rate,) * 2


@functools.lru_cache
def positions(length):
    return torch.arange(length)
