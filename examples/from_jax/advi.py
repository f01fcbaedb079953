"""What advi_plain.py does, with its keys shared out over all devices."""

from functools import partial

import jax
import jax.numpy as jnp
from common import cast, main
from jax import random, vmap
from jax.example_libraries import optimizers
from jax.scipy.stats import norm

import jaxpar


def sample(rng, mean, log_std):
    return mean + jnp.exp(log_std) * random.normal(rng, mean.shape, mean.dtype)


def logpdf(x, mean, log_std):
    return jnp.sum(vmap(norm.logpdf)(x, mean, jnp.exp(log_std)))


def elbo(logprob, rng, params):
    mean, log_std = params
    x = sample(rng, mean, log_std)
    return logprob(x) - logpdf(x, mean, log_std)


def batch_elbo(logprob, rng, params, num_samples):
    rngs = random.split(rng, num_samples)
    vectorized_elbo = jaxpar.DataParallel(vmap(partial(elbo, logprob), in_axes=(0, None)))
    return jnp.mean(vectorized_elbo(rngs, jaxpar.replicated(params)))


def funnel(params):
    return norm.logpdf(params[0], 0, jnp.exp(params[1])) + norm.logpdf(params[1], 0, 1.35)


def train(dtype="float32"):
    @jax.jit
    def objective(params, t):
        return -batch_elbo(funnel, random.PRNGKey(t), params, 42)

    opt_init, opt_update, get_params = optimizers.momentum(step_size=0.01, mass=0.9)

    @jax.jit
    def update(i, opt_state):
        value, gradient = jax.value_and_grad(objective)(get_params(opt_state), i)
        return opt_update(i, gradient, opt_state), value

    opt_state = opt_init(cast((jnp.zeros(2), jnp.zeros(2)), dtype))
    for t in range(100):
        opt_state, value = update(t, opt_state)
        yield value, get_params(opt_state)


if __name__ == "__main__":
    main(train)
