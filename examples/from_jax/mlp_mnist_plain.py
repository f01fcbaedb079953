"""Digits with an NNX module. Structure: optax/examples/mlp_mnist.ipynb (nnx.jit, an accuracy)."""

import jax.numpy as jnp
import optax
from common import batches, cast, digits, main
from flax import nnx


class MLP(nnx.Module):
    def __init__(self, inputs, outputs, hidden, rngs):
        self.layer1 = nnx.Linear(inputs, hidden[0], rngs=rngs)
        self.layer2 = nnx.Linear(hidden[0], hidden[1], rngs=rngs)
        self.out = nnx.Linear(hidden[1], outputs, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.layer2(nnx.relu(self.layer1(x)))))


def loss_and_accuracy(model, images, labels):
    logits = model(images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, jnp.mean(logits.argmax(-1) == labels)


@nnx.jit
def train_step(model, optimizer, images, labels):
    gradient_of = nnx.value_and_grad(loss_and_accuracy, has_aux=True)
    (loss, accuracy), gradients = gradient_of(model, images, labels)
    optimizer.update(model, gradients)
    return loss, {"accuracy": accuracy}


def train(dtype="float32"):
    model = MLP(196, 10, [64, 64], nnx.Rngs(0))
    nnx.update(model, cast(nnx.state(model), dtype))
    optimizer = nnx.Optimizer(model, optax.adam(2e-3), wrt=nnx.Param)
    images, labels = digits(14)
    for batch in batches(32, images.reshape(-1, 196), labels, dtype=dtype):
        loss, _ = train_step(model, optimizer, *batch)
        yield loss, model


if __name__ == "__main__":
    main(train)
