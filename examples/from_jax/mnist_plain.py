"""Digits with an NNX module. Structure: flax/examples/mnist (a CNN with BatchNorm, nnx.jit, MultiMetric)."""

from functools import partial

import optax
from common import batches, cast, digits, main
from flax import nnx


class CNN(nnx.Module):
    def __init__(self, dropout, rngs):
        self.conv1 = nnx.Conv(1, 8, (3, 3), use_bias=False, rngs=rngs)
        self.norm1 = nnx.BatchNorm(8, rngs=rngs)
        self.drop1 = nnx.Dropout(dropout)
        self.conv2 = nnx.Conv(8, 16, (3, 3), use_bias=False, rngs=rngs)
        self.norm2 = nnx.BatchNorm(16, rngs=rngs)
        self.pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.hidden = nnx.Linear(784, 64, rngs=rngs)
        self.drop2 = nnx.Dropout(dropout)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x, rngs):
        x = self.pool(nnx.relu(self.norm1(self.drop1(self.conv1(x), rngs=rngs))))
        x = self.pool(nnx.relu(self.norm2(self.conv2(x))))
        x = nnx.relu(self.drop2(self.hidden(x.reshape(len(x), -1)), rngs=rngs))
        return self.out(x)


def loss_fn(model, images, labels, rngs):
    logits = model(images, rngs)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits


@nnx.jit
def train_step(model, optimizer, metrics, images, labels, rngs):
    gradient_of = nnx.value_and_grad(loss_fn, has_aux=True)
    (loss, logits), gradients = gradient_of(model, images, labels, rngs)
    metrics.update(loss=loss, logits=logits, labels=labels)
    optimizer.update(model, gradients)
    return loss


def train(dtype="float32", dropout=0.025):
    model = CNN(dropout, nnx.Rngs(0))
    nnx.update(model, cast(nnx.state(model), dtype))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    nnx.update(metrics, cast(nnx.state(metrics), dtype))
    rngs = nnx.Rngs(0)
    model.train()
    for images, labels in batches(32, *digits(), dtype=dtype):
        yield train_step(model, optimizer, metrics, images, labels, rngs), model


if __name__ == "__main__":
    main(train)
