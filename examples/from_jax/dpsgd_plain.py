"""Noisy SGD. Structure: optax/examples/contrib/differentially_private_sgd.ipynb (gradients of each image)."""

import jax
import optax
from common import batches, cast, digits, main
from jax.example_libraries import stax
from optax import contrib


def train(dtype="float32"):
    init, predict = stax.serial(
        stax.Conv(4, (4, 4), padding="SAME", strides=(2, 2)),
        stax.Relu,
        stax.MaxPool((2, 2), (1, 1)),
        stax.Flatten,
        stax.Dense(16),
        stax.Relu,
        stax.Dense(10),
    )

    def loss_fn(params, batch):
        images, labels = batch
        logits = predict(params, images)
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    noisy = contrib.differentially_private_aggregate(1.5, 1.3, key=jax.random.key(1337))
    tx = optax.chain(noisy, optax.sgd(0.25))
    grad_fn = jax.vmap(jax.value_and_grad(loss_fn, has_aux=True), in_axes=(None, 0))

    @jax.jit
    def train_step(params, opt_state, batch):
        batch = jax.tree.map(lambda x: x[:, None], batch)
        (loss, _), grads = grad_fn(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss.mean()

    images, labels = digits(14)
    _, params = init(jax.random.PRNGKey(1337), (-1, 14, 14, 1))
    params = cast(params, dtype)
    opt_state = tx.init(params)
    for batch in batches(32, images, labels, dtype=dtype):
        params, opt_state, loss = train_step(params, opt_state, batch)
        yield loss, params


if __name__ == "__main__":
    main(train)
