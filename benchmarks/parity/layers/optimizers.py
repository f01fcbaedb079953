"""Optimizers: five steps of a small network, with what optax must be told to have torch's rule.

optax's own defaults are other ones for AdamW (weight_decay) and RMSprop (decay, eps inside the root), and
weight decay that is part of the gradient has to be added before the rule. What optax does not have, or
has in another form, is jaxpar.optim's: dampening, NAdam, RAdam, Rprop, and Adagrad's eps outside the root.
"""

import optax
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

from jaxpar import optim

from ..case import Case, normal

RATE = 0.05


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class FlaxSmall(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.tanh(self.first(x)))


def l2(decay, rule):
    """torch's `weight_decay` of every optimizer but AdamW: a gradient of its own, before the rule."""
    return optax.chain(optax.add_decayed_weights(decay), rule)


PAIRS = {
    "SGD": (lambda p: torch.optim.SGD(p, RATE), optax.sgd(RATE)),
    "SGD, momentum": (lambda p: torch.optim.SGD(p, RATE, 0.9), optax.sgd(RATE, 0.9)),
    "SGD, nesterov": (
        lambda p: torch.optim.SGD(p, RATE, 0.9, nesterov=True),
        optax.sgd(RATE, 0.9, nesterov=True),
    ),
    "SGD, weight_decay": (
        lambda p: torch.optim.SGD(p, RATE, 0.9, weight_decay=0.1),
        l2(0.1, optax.sgd(RATE, 0.9)),
    ),
    "SGD, dampening": (
        lambda p: torch.optim.SGD(p, RATE, 0.9, dampening=0.5),
        optim.sgd(RATE, 0.9, dampening=0.5),
    ),
    "Adam": (lambda p: torch.optim.Adam(p, RATE), optax.adam(RATE)),
    "Adam, weight_decay": (
        lambda p: torch.optim.Adam(p, RATE, weight_decay=0.1),
        l2(0.1, optax.adam(RATE)),
    ),
    "AdamW": (lambda p: torch.optim.AdamW(p, RATE), optax.adamw(RATE, weight_decay=1e-2)),
    "Adamax": (lambda p: torch.optim.Adamax(p, RATE), optax.adamax(RATE)),
    "RMSprop": (
        lambda p: torch.optim.RMSprop(p, RATE),
        optax.rmsprop(RATE, decay=0.99, eps=1e-8, eps_in_sqrt=False),
    ),
    "RMSprop, centered, momentum": (
        lambda p: torch.optim.RMSprop(p, RATE, momentum=0.9, centered=True),
        optax.rmsprop(RATE, decay=0.99, eps=1e-8, eps_in_sqrt=False, centered=True, momentum=0.9),
    ),
    "Adadelta": (lambda p: torch.optim.Adadelta(p), optax.adadelta(1.0)),
    "Adagrad": (lambda p: torch.optim.Adagrad(p, RATE), optim.adagrad(RATE)),
    "RAdam": (lambda p: torch.optim.RAdam(p, RATE), optim.radam(RATE)),
    "NAdam": (lambda p: torch.optim.NAdam(p, RATE), optim.nadam(RATE)),
    "Rprop": (lambda p: torch.optim.Rprop(p, RATE), optim.rprop(RATE)),
}


def optimizer(name, torch_optimizer, transformation):
    return Case(
        name,
        Small,
        FlaxSmall,
        (normal(6, 4),),
        (normal(6, 2),),
        (F.mse_loss, lambda y, t: optax.squared_error(y, t).mean()),
        (torch_optimizer, transformation),
        steps=5,
    )


CASES = [optimizer(name, *pair) for name, pair in PAIRS.items()]
