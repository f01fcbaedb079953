"""torch modules with hooks that store features or change them, and modes in a constructor."""

import torch
from torch import nn


class Bank:
    """A plain object that hooks fill."""

    def __init__(self, layer):
        self.means = []
        layer.register_forward_hook(self.keep)

    def keep(self, layer, inputs, output):
        self.means.append(output.mean())


class Features(nn.Module):
    """Hooks of a function, a method and an object fill a dict and lists; others change inputs and outputs."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)
        self.features = {}
        self.kept = []
        self.handles = []
        for name, layer in self.net.named_children():
            layer.register_forward_hook(self.keeping(name))
        self.bank = Bank(self.net[2])
        self.last = None
        self.net[2].register_forward_hook(self.store)
        self.handles.append(self.head.register_forward_hook(self.keep))
        self.handle = self.head.register_forward_pre_hook(lambda layer, inputs: inputs[0].tanh())
        self.net[1].register_forward_hook(lambda layer, inputs, output: output * 2)

    def keeping(self, name):
        def hook(layer, inputs, output):
            self.features[name] = output

        return hook

    def keep(self, layer, inputs, output):
        self.kept.append(inputs[0] + 1)

    def store(self, layer, inputs, output):
        self.last = output

    def forward(self, x):
        self.kept.clear()
        self.bank.means.clear()
        y = self.head(self.net(x))
        return y * self.bank.means[0], self.features["0"] * self.features["1"], self.kept[0] + self.last


class Sized(nn.Module):
    """timm's constructors: one runs a part in evaluation, to see its shapes, and restores modes; one method
    fills the parameters and the table that is not in the state."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        modes = [(layer, layer.training) for layer in self.body.modules()]
        self.body.eval()
        with torch.no_grad():
            size = self.body(torch.zeros(1, 4)).shape[-1]
        for layer, mode in modes:
            layer.training = mode
        self.bias = nn.Parameter(torch.empty(size))
        self.register_buffer("places", torch.empty(size, dtype=torch.long), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.bias)
        self.places.copy_(torch.arange(5).flip(0) // 2)

    def forward(self, x):
        return self.body(x) * self.bias[self.places]
