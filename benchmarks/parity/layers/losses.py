"""Losses, of the outputs of one Linear layer so that parameters have gradients too."""

import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

from ..case import Case, integers, normal, signs, uniform

ROWS, FEATURES, CLASSES = 6, 5, 4
WEIGHT = np.array([0.5, 1.0, 2.0, 4.0])
LABELS, LIKE = integers(CLASSES, ROWS), normal(ROWS, CLASSES)


def some_ignored(random):
    labels = random.randint(CLASSES, size=ROWS)
    labels[::3] = -100
    return labels


def distribution(random):
    return random.dirichlet(np.ones(CLASSES), ROWS)


def picked(logits, labels):
    """Cross-entropy of each row."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def ignoring(logits, labels):
    """The mean is over the rows that are kept."""
    kept = labels != -100
    each = jnp.where(kept, picked(logits, jnp.where(kept, labels, 0)), 0)
    return each.sum() / kept.sum()


def weighted(logits, labels):
    """The mean is weighted: divided by the sum of the weights, not by the number of rows."""
    weight = jnp.asarray(WEIGHT, logits.dtype)[labels]
    return (weight * picked(logits, labels)).sum() / weight.sum()


def smoothed(logits, labels):
    labels = optax.smooth_labels(jnp.eye(CLASSES, dtype=logits.dtype)[labels], 0.1)
    return optax.softmax_cross_entropy(logits, labels).mean()


def smoothed_and_weighted(logits, labels):
    """torch gives every class its weight in the smooth part, and divides by that of the labels."""
    weight = jnp.asarray(WEIGHT, logits.dtype)
    log_p = nnx.log_softmax(logits)
    hard = -jnp.take_along_axis(log_p, labels[:, None], -1)[:, 0] * weight[labels]
    smooth = -(log_p * weight).sum(-1) / CLASSES
    return (0.9 * hard + 0.1 * smooth).sum() / weight[labels].sum()


def positives_weighted(logits, labels):
    weight = jnp.asarray(WEIGHT, logits.dtype)
    each = weight * labels * nnx.softplus(-logits) + (1 - labels) * nnx.softplus(logits)
    return each.mean()


def torch_weight(logits):
    return torch.tensor(WEIGHT, dtype=logits.dtype)


def poisson(outputs, targets):
    """torch's default: the outputs are logarithms, Stirling's term is left out."""
    return (jnp.exp(outputs) - targets * outputs).mean()


def cosine(outputs, targets):
    """torch adds 1e-12 to both squared lengths."""
    lengths = [jnp.square(x).sum(-1) + 1e-12 for x in (outputs, targets)]
    return (1 - (outputs * targets).sum(-1) / jnp.sqrt(lengths[0] * lengths[1])).mean()


PAIRS = {
    "CrossEntropyLoss": (LABELS, F.cross_entropy, lambda y, t: picked(y, t).mean()),
    "CrossEntropyLoss, ignore_index": (some_ignored, F.cross_entropy, ignoring),
    "CrossEntropyLoss, weight": (
        LABELS,
        lambda y, t: F.cross_entropy(y, t, torch_weight(y)),
        weighted,
    ),
    "CrossEntropyLoss, label_smoothing": (
        LABELS,
        lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1),
        smoothed,
    ),
    "CrossEntropyLoss, label_smoothing and weight": (
        LABELS,
        lambda y, t: F.cross_entropy(y, t, torch_weight(y), label_smoothing=0.1),
        smoothed_and_weighted,
    ),
    "CrossEntropyLoss, probabilities": (
        distribution,
        F.cross_entropy,
        lambda y, t: optax.softmax_cross_entropy(y, t).mean(),
    ),
    "NLLLoss": (
        LABELS,
        lambda y, t: F.nll_loss(F.log_softmax(y, -1), t),
        lambda y, t: -jnp.take_along_axis(nnx.log_softmax(y), t[:, None], -1).mean(),
    ),
    "MSELoss": (LIKE, F.mse_loss, lambda y, t: optax.squared_error(y, t).mean()),
    "L1Loss": (LIKE, F.l1_loss, lambda y, t: jnp.abs(y - t).mean()),
    "SmoothL1Loss, beta 0.5": (
        LIKE,
        lambda y, t: F.smooth_l1_loss(y, t, beta=0.5),
        lambda y, t: optax.huber_loss(y, t, delta=0.5).mean() / 0.5,
    ),
    "HuberLoss": (LIKE, F.huber_loss, lambda y, t: optax.huber_loss(y, t).mean()),
    "BCEWithLogitsLoss": (
        uniform(ROWS, CLASSES),
        F.binary_cross_entropy_with_logits,
        lambda y, t: optax.sigmoid_binary_cross_entropy(y, t).mean(),
    ),
    "BCEWithLogitsLoss, pos_weight": (
        uniform(ROWS, CLASSES),
        lambda y, t: F.binary_cross_entropy_with_logits(y, t, pos_weight=torch_weight(y)),
        positives_weighted,
    ),
    "KLDivLoss, batchmean": (
        distribution,
        lambda y, t: F.kl_div(F.log_softmax(y, -1), t, reduction="batchmean"),
        lambda y, t: optax.kl_divergence(nnx.log_softmax(y), t).mean(),
    ),
    "PoissonNLLLoss": (uniform(ROWS, CLASSES), F.poisson_nll_loss, poisson),
    "SoftMarginLoss": (
        signs(ROWS, CLASSES),
        F.soft_margin_loss,
        lambda y, t: nnx.softplus(-t * y).mean(),
    ),
    "CosineEmbeddingLoss": (
        LIKE,
        lambda y, t: F.cosine_embedding_loss(y, t, torch.ones(len(y), dtype=y.dtype)),
        cosine,
    ),
}


def loss(name, targets, torch_loss, jax_loss):
    return Case(
        name,
        lambda: nn.Linear(FEATURES, CLASSES),
        lambda rngs: nnx.Linear(FEATURES, CLASSES, rngs=rngs),
        (normal(ROWS, FEATURES),),
        (targets,),
        (torch_loss, jax_loss),
    )


CASES = [loss(name, *rest) for name, rest in PAIRS.items()]
