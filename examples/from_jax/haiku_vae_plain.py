"""A variational autoencoder with Haiku. Structure: dm-haiku/examples/vae.py (noise from next_rng_keys)."""

import dataclasses
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main


@dataclasses.dataclass
class Encoder(hk.Module):
    latents: int

    def __call__(self, x):
        x = jax.nn.relu(hk.Linear(64)(hk.Flatten()(x)))
        return hk.Linear(self.latents)(x), jnp.exp(hk.Linear(self.latents)(x))


@dataclasses.dataclass
class Decoder(hk.Module):
    shape: tuple[int, ...]

    def __call__(self, z):
        pixels = hk.nets.MLP([64, self.shape[0] * self.shape[1]])(z)
        return pixels.reshape(-1, *self.shape)


class Output(NamedTuple):
    image: jax.Array
    mean: jax.Array
    variance: jax.Array
    logits: jax.Array


@dataclasses.dataclass
class VAE(hk.Module):
    encoder: Encoder
    decoder: Decoder

    def __call__(self, x):
        noise_key, image_key = hk.next_rng_keys(2)
        mean, deviation = self.encoder(x)
        noise = jax.random.normal(noise_key, mean.shape, mean.dtype)
        logits = self.decoder(mean + deviation * noise)
        image = jax.random.bernoulli(image_key, jax.nn.sigmoid(logits))
        return Output(image, mean, deviation**2, logits)


def net_fn(*inputs):
    return VAE(Encoder(10), Decoder((14, 14, 1)))(*inputs)


class TrainingState(NamedTuple):
    params: hk.Params
    opt_state: optax.OptState
    key: jax.Array


def train(dtype="float32"):
    model = hk.transform(net_fn)
    apply = model.apply
    tx = optax.adam(1e-3)

    def loss_fn(params, key, images):
        _, mean, variance, logits = apply(params, key, images)
        log_likelihood = jnp.sum(images * logits - jax.nn.softplus(logits), axis=(1, 2, 3))
        divergence = 0.5 * jnp.sum(variance + mean**2 - jnp.log(variance) - 1, axis=-1)
        return jnp.mean(divergence - log_likelihood)

    @jax.jit
    def update(state, images):
        key, next_key = jax.random.split(state.key)
        loss, gradients = jax.value_and_grad(loss_fn)(state.params, key, images)
        updates, opt_state = tx.update(gradients, state.opt_state)
        return TrainingState(optax.apply_updates(state.params, updates), opt_state, next_key), loss

    images, key = digits(14)[0].round(), jax.random.key(0)
    params = cast(model.init(key, jnp.asarray(images[:1])), dtype)
    state = TrainingState(params, tx.init(params), key)
    for (x,) in batches(32, images, dtype=dtype):
        state, loss = update(state, x)
        yield loss, state.params


if __name__ == "__main__":
    main(train)
