"""What equinox_gan_plain.py does, with its batches shared out over all devices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from common import batches, cast, digits, main

import jaxpar

LATENTS = 8


def norm(channels):
    return eqx.nn.BatchNorm(channels, axis_name="batch", mode="batch")


class Layers(eqx.Module):
    layers: list

    def __call__(self, x, state):
        for layer in self.layers:
            if isinstance(layer, eqx.nn.BatchNorm):
                x, state = layer(x, state)
            else:
                x = layer(x)
        return x, state


class Generator(Layers):
    def __init__(self, key, width=4):
        sizes = [(LATENTS, 2 * width, 4, 1, 0), (2 * width, width, 4, 2, 1), (width, 1, 4, 2, 1)]
        first, second, third = (
            eqx.nn.ConvTranspose2d(*size, use_bias=False, key=key)
            for size, key in zip(sizes, jax.random.split(key, 3), strict=True)
        )
        self.layers = [first, norm(2 * width), jax.nn.relu, second, norm(width), jax.nn.relu, third, jnp.tanh]


class Discriminator(Layers):
    def __init__(self, key, width=4):
        sizes = [(1, width, 4, 2, 1), (width, 2 * width, 4, 2, 1), (2 * width, 1, 4, 1, 0)]
        first, second, third = (
            eqx.nn.Conv2d(*size, use_bias=False, key=key)
            for size, key in zip(sizes, jax.random.split(key, 3), strict=True)
        )
        self.layers = [first, eqx.nn.PReLU(0.2), second, norm(2 * width), eqx.nn.PReLU(0.2), third]


def run(model, state, x):
    return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)


def cross_entropy(logits, label):
    return optax.sigmoid_binary_cross_entropy(logits, jnp.full_like(logits, label)).mean()


def judged(discriminator, generator, states, images, key):
    """What the discriminator loses by true images and by drawn ones."""
    noise = jax.random.normal(key, (len(images), LATENTS, 1, 1), images.dtype)
    drawn, generator_state = run(generator, states[1], noise)
    logits, discriminator_state = run(discriminator, states[0], drawn)
    loss = cross_entropy(logits, 0.0)
    logits, discriminator_state = run(discriminator, discriminator_state, images)
    return (loss + cross_entropy(logits, 1.0)) / 2, (discriminator_state, generator_state)


def fooled(generator, discriminator, states, images, key):
    """What the generator loses where the discriminator is right."""
    noise = jax.random.normal(key, (len(images), LATENTS, 1, 1), images.dtype)
    drawn, generator_state = run(generator, states[1], noise)
    logits, discriminator_state = run(discriminator, states[0], drawn)
    return cross_entropy(logits, 1.0), (discriminator_state, generator_state)


def in_dtype(model, dtype):
    arrays, static = eqx.partition(model, eqx.is_array)
    return eqx.combine(cast(arrays, dtype), static)


def train(dtype="float32"):
    generator, generator_state = eqx.nn.make_with_state(Generator)(jax.random.key(0))
    discriminator, discriminator_state = eqx.nn.make_with_state(Discriminator)(jax.random.key(1))
    generator = jaxpar.DataParallel(in_dtype(generator, dtype))
    discriminator = jaxpar.DataParallel(in_dtype(discriminator, dtype))
    states = cast((discriminator_state, generator_state), dtype)
    tx = optax.adam(2e-4, b1=0.5, b2=0.999)
    opt_states = [tx.init(eqx.filter(model, eqx.is_array)) for model in (discriminator, generator)]

    @eqx.filter_jit
    def step(loss_fn, model, other, opt_state, states, images, key):
        gradient_of = eqx.filter_value_and_grad(loss_fn, has_aux=True)
        (loss, states), gradients = gradient_of(model, other, states, images, key)
        updates, opt_state = tx.update(gradients, opt_state)
        return eqx.apply_updates(model, updates), opt_state, states, loss

    key = jax.random.key(2)
    for (images,) in batches(64, 2 * digits(16)[0].transpose(0, 3, 1, 2) - 1, dtype=dtype):
        key, first, second = jax.random.split(key, 3)
        discriminator, opt_states[0], states, loss = step(
            judged, discriminator, generator, opt_states[0], states, images, first
        )
        generator, opt_states[1], states, other_loss = step(
            fooled, generator, discriminator, opt_states[1], states, images, second
        )
        yield loss + other_loss, (eqx.filter((generator, discriminator), eqx.is_array), states)


if __name__ == "__main__":
    main(train)
