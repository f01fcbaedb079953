"""What haiku_vqvae_plain.py does, with its batches shared out over all devices."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main

import jaxpar


class Residual(hk.Module):
    def __call__(self, x):
        h = hk.Conv2D(4, 3)(jax.nn.relu(x))
        return jax.nn.relu(x + hk.Conv2D(8, 1)(jax.nn.relu(h)))


class VQVAE(hk.Module):
    def __init__(self, variance):
        super().__init__()
        smaller = [hk.Conv2D(channels, 4, stride=2) for channels in (4, 8)]
        self.encoder = hk.Sequential([smaller[0], jax.nn.relu, smaller[1], Residual(), hk.Conv2D(6, 1)])
        axis = None if hk.running_init() else "replica"
        self.codes = hk.nets.VectorQuantizerEMA(6, 16, 0.25, decay=0.99, cross_replica_axis=axis)
        larger = [hk.Conv2DTranspose(channels, 4, stride=2) for channels in (4, 1)]
        self.decoder = hk.Sequential([hk.Conv2D(8, 3), Residual(), larger[0], jax.nn.relu, larger[1]])
        self.variance = variance

    def __call__(self, x, is_training):
        codes = self.codes(self.encoder(x), is_training=is_training)
        image = self.decoder(codes["quantize"])
        error = jnp.mean((image - x) ** 2) / self.variance
        return {"image": image, "loss": error + codes["loss"], "error": error, "codes": codes}


def train(dtype="float32"):
    images = digits(16)[0] - 0.5
    variance = float(images.var())
    model = hk.transform_with_state(lambda x, is_training: VQVAE(variance)(x, is_training))

    def forward(params, state, x):
        outputs, state = model.apply(params, state, None, x, is_training=True)
        return outputs, jaxpar.replicated(state)

    apply = jaxpar.DataParallel(forward)
    tx = optax.adam(3e-4)

    @jax.jit
    def train_step(params, state, opt_state, x):
        def loss_fn(params):
            outputs, new_state = apply(jaxpar.replicated(params), jaxpar.replicated(state), x)
            return jnp.mean(outputs["loss"]), (outputs, new_state)

        (loss, (_, new_state)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = tx.update(gradients, opt_state)
        return optax.apply_updates(params, updates), new_state, opt_state, loss

    params, state = cast(model.init(jax.random.key(0), jnp.asarray(images[:1]), is_training=True), dtype)
    opt_state = tx.init(params)
    for (x,) in batches(32, images, dtype=dtype):
        params, state, opt_state, loss = train_step(params, state, opt_state, x)
        yield loss, (params, state)


if __name__ == "__main__":
    main(train)
