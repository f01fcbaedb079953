"""A library's runtime: decorators that keep arguments and wrap methods, a base of outputs."""

import functools
import inspect
from collections import OrderedDict
from dataclasses import dataclass, fields

import torch
from torch import nn

from .records import Record


def register(init):
    @functools.wraps(init)
    def wrapped(self, *args, **kwargs):
        bound = inspect.signature(init).bind(self, *args, **kwargs)
        bound.apply_defaults()
        self.keep(**{name: x for name, x in bound.arguments.items() if name != "self"})
        init(self, *args, **kwargs)

    return wrapped


def hooked(method):
    def wrapper(self, *args, **kwargs):
        if hasattr(self, "hook"):
            self.hook()
        return method(self, *args, **kwargs)

    return wrapper


class Settings(dict):
    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Base(nn.Module):
    """Finds parameters as nn.Module does, and says which type they have."""

    def __getattr__(self, name):
        if name in self.__dict__.get("settings", ()):
            return self.settings[name]
        return super().__getattr__(name)

    def keep(self, **arguments):
        self.settings = Settings(arguments)

    @property
    def dtype(self):
        for _, parameter in self.named_parameters():
            if parameter.is_floating_point():
                return parameter.dtype
        return None


class Output(OrderedDict):
    """Fields by name and number."""

    def __post_init__(self):
        for field in fields(self):
            if (value := getattr(self, field.name)) is not None:
                self[field.name] = value

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())


@dataclass
class Sample(Output):
    sample: torch.Tensor
    hidden: torch.Tensor | None = None


@dataclass
class Latent(Sample):
    pass


class Scores(Sample):
    """A class of outputs that no decorator makes a dataclass."""


class Record(Record):
    """A class with its base's name."""


class Registered(Base):
    inputs = ((3, 4),)

    @register
    def __init__(self, width=4, depths=(1, 2), scale=2.0):
        super().__init__()
        self.make_layers(width=width, depths=depths)
        self.alpha = nn.Parameter(torch.ones(width))
        self.alpha.requires_grad = True
        self.register_buffer("shift", torch.arange(float(width)), persistent=len(depths) > 2)
        self.register_buffer("step", torch.ones(width), persistent=len(depths) > 1)

    def make_layers(self, width, depths):
        self.layers = []
        for depth in depths:
            self.layers += [nn.Linear(width, width) for _ in range(depth)]
        self.layers = nn.ModuleList(self.layers)

    @hooked
    def encode(self, x):
        for layer in self.layers:
            x = layer(x)
        return Latent(x, hidden=x * self.settings.scale)

    def forward(self, x):
        from .records import Attends

        output = self.encode(x.to(self.dtype))
        if torch.is_grad_enabled() and self.settings["scale"] < 0:
            raise ValueError(Attends)
        y = output[0] * self.alpha + self.shift * self.step + len(self.settings.depths)
        (y,) = Latent(y * self.settings.get("scale", 1.0)).to_tuple()
        return Scores(y, hidden=Record(output.hidden.round_()).scores)
