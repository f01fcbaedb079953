"""What stax_vae_plain.py does, with its batches shared out over all devices."""

import jax
import jax.numpy as jnp
from common import cast, digits, main
from jax import lax, random
from jax.example_libraries import optimizers, stax
from jax.example_libraries.stax import Dense, FanOut, Relu, Softplus

import jaxpar


def gaussian_kl(mu, sigmasq):
    return -0.5 * jnp.sum(1.0 + jnp.log(sigmasq) - mu**2.0 - sigmasq)


def gaussian_sample(rng, mu, sigmasq):
    return mu + jnp.sqrt(sigmasq) * random.normal(rng, mu.shape, mu.dtype)


def bernoulli_logpdf(logits, x):
    return -jnp.sum(jnp.logaddexp(0.0, jnp.where(x, -1.0, 1.0) * logits))


encoder_init, encode = stax.serial(
    Dense(32), Relu, FanOut(2), stax.parallel(Dense(4), stax.serial(Dense(4), Softplus))
)
decoder_init, decode = stax.serial(Dense(32), Relu, Dense(64))


def elbo(rng, params, images):
    enc, dec = params
    mu, sigmasq = jaxpar.DataParallel(encode)(jaxpar.replicated(enc), images)
    logits = jaxpar.DataParallel(decode)(jaxpar.replicated(dec), gaussian_sample(rng, mu, sigmasq))
    return bernoulli_logpdf(logits, images) - gaussian_kl(mu, sigmasq)


def train(dtype="float32"):
    batch_size, num_batches = 30, 3
    images = digits(8)[0][:100].reshape(100, -1).astype(dtype)
    _, enc = encoder_init(random.PRNGKey(1), (batch_size, 64))
    _, dec = decoder_init(random.PRNGKey(2), (batch_size, 4))
    opt_init, opt_update, get_params = optimizers.momentum(0.001, mass=0.9)

    @jax.jit
    def run_epoch(rng, opt_state, images):
        def body_fun(i, carry):
            rng, opt_state, images, total = carry
            rng, elbo_rng, data_rng = random.split(rng, 3)
            batch = lax.dynamic_slice_in_dim(images, i % num_batches * batch_size, batch_size)
            batch = random.bernoulli(data_rng, batch)

            def loss(params):
                return -elbo(elbo_rng, params, batch) / batch_size

            value, g = jax.value_and_grad(loss)(get_params(opt_state))
            return rng, opt_update(i, g, opt_state), images, total + value

        carry = rng, opt_state, images, jnp.zeros((), images.dtype)
        _, opt_state, _, total = lax.fori_loop(0, num_batches, body_fun, carry)
        return opt_state, total / num_batches

    rng, opt_state = random.PRNGKey(0), opt_init(cast((enc, dec), dtype))
    while True:
        rng, epoch_rng = random.split(rng)
        opt_state, value = run_epoch(epoch_rng, opt_state, images)
        yield value, get_params(opt_state)


if __name__ == "__main__":
    main(train)
