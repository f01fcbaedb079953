"""Bugs of losses and optimizers."""

import jax.numpy as jnp
import optax
from flax import nnx

from ..layers import losses, optimizers
from ..layers.losses import CLASSES, WEIGHT, picked
from ..layers.optimizers import RATE
from .bug import Bug, loss, optimizer


def loss_case(name):
    return next(case for case in losses.CASES if case.name == name)


def optimizer_case(name):
    return next(case for case in optimizers.CASES if case.name == name)


def smoothed_over_others(logits, labels):
    """The part taken from the label is shared by the other classes only."""
    labels = jnp.eye(CLASSES, dtype=logits.dtype)[labels]
    return optax.softmax_cross_entropy(logits, 0.9 * labels + 0.1 * (1 - labels) / (CLASSES - 1)).mean()


def weighted_by_rows(logits, labels):
    return (jnp.asarray(WEIGHT, logits.dtype)[labels] * picked(logits, labels)).mean()


def ignored_in_the_count(logits, labels):
    return jnp.where(labels != -100, picked(logits, jnp.maximum(labels, 0)), 0).mean()


def dampened_from_the_start(rate, momentum, dampening):
    """torch's first gradient enters the buffer whole."""
    return optax.chain(optax.scale(1 - dampening), optax.sgd(rate, momentum))


def rmsprop(decay=0.99, eps_in_sqrt=False):
    return optax.rmsprop(RATE, decay=decay, eps=1e-8, eps_in_sqrt=eps_in_sqrt)


LOSSES = [
    Bug(
        "label smoothing over the other classes",
        loss_case("CrossEntropyLoss, label_smoothing"),
        loss(smoothed_over_others),
        "over all classes",
    ),
    Bug(
        "class weights, mean over rows",
        loss_case("CrossEntropyLoss, weight"),
        loss(weighted_by_rows),
        "rows' weights",
    ),
    Bug(
        "ignore_index, mean over all rows",
        loss_case("CrossEntropyLoss, ignore_index"),
        loss(ignored_in_the_count),
        "rows that are kept",
    ),
    Bug(
        "l2_loss with its 1/2",
        loss_case("MSELoss"),
        loss(lambda y, t: optax.l2_loss(y, t).mean()),
        "optax.l2_loss",
    ),
    Bug(
        "KLDivLoss, mean over all elements",
        loss_case("KLDivLoss, batchmean"),
        loss(lambda y, t: optax.kl_divergence(nnx.log_softmax(y), t).mean() / CLASSES),
        "reduction='batchmean'",
    ),
    Bug(
        "SmoothL1 without 1/beta",
        loss_case("SmoothL1Loss, beta 0.5"),
        loss(lambda y, t: optax.huber_loss(y, t, delta=0.5).mean()),
        "beta=0.5",
    ),
]

OPTIMIZERS = [
    Bug(
        "AdamW, optax's weight_decay",
        optimizer_case("AdamW"),
        optimizer(optax.adamw(RATE)),
        "weight_decay=0.01",
    ),
    Bug(
        "Adam, weight decay decoupled",
        optimizer_case("Adam, weight_decay"),
        optimizer(optax.adamw(RATE, weight_decay=0.1)),
        "decoupled_weight_decay=False",
    ),
    Bug(
        "Adam, eps inside the root", optimizer_case("Adam"), optimizer(optax.adam(RATE, eps=0, eps_root=1e-8))
    ),
    Bug("RMSprop, optax's decay", optimizer_case("RMSprop"), optimizer(rmsprop(decay=0.9)), "alpha=0.99"),
    Bug(
        "RMSprop, eps inside the root",
        optimizer_case("RMSprop"),
        optimizer(rmsprop(eps_in_sqrt=True)),
    ),
    Bug(
        "SGD without nesterov",
        optimizer_case("SGD, nesterov"),
        optimizer(optax.sgd(RATE, 0.9)),
        "nesterov=True",
    ),
    Bug(
        "SGD, weight decay after momentum",
        optimizer_case("SGD, weight_decay"),
        optimizer(optax.chain(optax.trace(0.9), optax.add_decayed_weights(0.1), optax.scale(-RATE))),
    ),
    Bug(
        "SGD, dampened from the start",
        optimizer_case("SGD, dampening"),
        optimizer(dampened_from_the_start(RATE, 0.9, 0.5)),
    ),
]
BUGS = LOSSES + OPTIMIZERS
