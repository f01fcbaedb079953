"""What vae_plain.py does, with its batches shared out over all devices."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main
from flax.training.train_state import TrainState

import jaxpar


class Encoder(nn.Module):
    latents: int

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(self.latents)(x), nn.Dense(self.latents)(x)


class Decoder(nn.Module):
    pixels: int

    @nn.compact
    def __call__(self, z):
        return nn.Dense(self.pixels)(nn.relu(nn.Dense(64)(z)))


class VAE(nn.Module):
    latents: int = 8

    @nn.compact
    def __call__(self, x, noise):
        mean, logvar = Encoder(self.latents)(x)
        z = mean + jnp.exp(0.5 * logvar) * noise
        return Decoder(x.shape[-1])(z), mean, logvar


def losses(logits, x, mean, logvar):
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1).mean()
    divergence = -0.5 * (1 + logvar - mean**2 - jnp.exp(logvar)).sum(-1).mean()
    return reconstruction + divergence


@jax.jit
def train_step(state, x, z_key):
    noise = jax.random.normal(z_key, (len(x), 8), x.dtype)

    def loss_fn(params):
        logits, mean, logvar = state.apply_fn({"params": params}, x, noise)
        return losses(logits, x, mean, logvar)

    loss, gradients = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=gradients), loss


def train(dtype="float32"):
    images = digits(14)[0].reshape(-1, 196).round()
    model = jaxpar.DataParallel(VAE())
    params = cast(model.init(jax.random.key(0), images[:1], 0.0)["params"], dtype)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))
    key = jax.random.key(1)
    for (x,) in batches(32, images, dtype=dtype):
        key, z_key = jax.random.split(key)
        state, loss = train_step(state, x, z_key)
        yield loss, state.params


if __name__ == "__main__":
    main(train)
