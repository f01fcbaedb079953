"""The step in JAX: jaxpar.train_step, by hand, and in the other ways there are.

A side is `side(N, model, x, t, loss=..., tx=...)`: it gives a function that makes one step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from batches import strides
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpar

TX = optax.sgd(0.01, momentum=0.9)


class Block(nnx.Module):
    def __init__(self, i, o, stride, rngs):
        conv = lambda i, o, k, s: nnx.Conv(i, o, (k, k), strides=s, use_bias=False, rngs=rngs)  # noqa: E731
        self.c1, self.b1 = conv(i, o, 3, stride), jaxpar.nn.BatchNorm(o)
        self.c2, self.b2 = conv(o, o, 3, 1), jaxpar.nn.BatchNorm(o)
        self.short = conv(i, o, 1, stride) if stride > 1 or i != o else None

    def __call__(self, x):
        y = self.b2(self.c2(nnx.relu(self.b1(self.c1(x)))))
        return nnx.relu(y + (x if self.short is None else self.short(x)))


class ResNet18(nnx.Module):
    def __init__(self, rngs):
        self.stem, self.norm = nnx.Conv(3, 64, (3, 3), use_bias=False, rngs=rngs), jaxpar.nn.BatchNorm(64)
        widths = [(o, s) for o in (64, 128, 256, 512) for s in strides(o)]
        self.blocks = nnx.List([Block(o // 2 if s > 1 else o, o, s, rngs) for o, s in widths])
        self.head = nnx.Linear(512, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(64, 64, rngs=rngs) for _ in range(3)])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


MODELS = {"mlp": MLP, "resnet18": ResNet18}


def squared(net, x, t):
    return ((net(x) - t) ** 2).mean()


def mesh_of(N):
    return Mesh(np.array(jaxpar.devices()[:N]), ("d",), axis_types=(AxisType.Auto,))


def ours(wrap):
    def make(N, model, x, t, loss=squared, tx=TX):
        net = wrap(model, list(range(N)))
        step = jaxpar.train_step(net, nnx.Optimizer(net, tx, wrt=nnx.Param), loss)
        return lambda: step(x, t)

    return make


def by_hand(N, model, x, t, loss=squared, tx=TX):
    """jit(shard_map) with donation: the loss of each device, gradients summed, device 0's statistics."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def per_device(params, rest, opt, x, t):
        def loss_of(params):
            net = nnx.merge(graphdef, params, rest, copy=True)
            return loss(net, x, t) / N, nnx.state(net, nnx.Not(nnx.Param))

        (value, new), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        first = jax.lax.axis_index("d") == 0
        new = jax.tree.map(lambda a: jnp.where(first, a, jnp.zeros_like(a)), new)
        value, gradients, new = jax.lax.psum((value, gradients, new), "d")
        updates, opt = tx.update(gradients, opt, params)
        return optax.apply_updates(params, updates), new, opt, value

    specs = (P(), P(), P(), P("d"), P("d"))
    mapped = jax.shard_map(per_device, mesh=mesh_of(N), in_specs=specs, out_specs=P(), check_vma=False)
    return repeated(N, jax.jit(mapped, donate_argnums=(0, 1, 2)), params, rest, x, t, tx)


def named_sharding(N, model, x, t, loss=squared, tx=TX):
    """jit over sharded arrays: XLA divides the program; BatchNorm sees all rows."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def step(params, rest, opt, x, t):
        def loss_of(params):
            net = nnx.merge(graphdef, params, rest, copy=True)
            return loss(net, x, t), nnx.state(net, nnx.Not(nnx.Param))

        (value, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt = tx.update(gradients, opt, params)
        return optax.apply_updates(params, updates), rest, opt, value

    return repeated(N, jax.jit(step, donate_argnums=(0, 1, 2)), params, rest, x, t, tx)


def repeated(N, step, params, rest, x, t, tx):
    mesh = mesh_of(N)
    copies = lambda tree: jax.device_put(jax.tree.map(jnp.copy, tree), NamedSharding(mesh, P()))  # noqa: E731
    state = [copies(params), copies(rest), copies(tx.init(params))]

    def once():
        *state[:], loss = step(*state, *jax.device_put((x, t), NamedSharding(mesh, P("d"))))
        return loss

    return once


def nnx_jit(N, model, x, t):
    """The idiom of Flax's guide: nnx.jit around net and optimizer, batch sharded."""
    mesh, optimizer = mesh_of(N), nnx.Optimizer(model, TX, wrt=nnx.Param)
    for thing in (model, optimizer):
        nnx.update(thing, jax.device_put(nnx.state(thing), NamedSharding(mesh, P())))

    @nnx.jit
    def step(net, optimizer, x, t):
        loss, gradients = nnx.value_and_grad(squared)(net, x, t)
        optimizer.update(net, gradients)
        return loss

    return lambda: step(model, optimizer, *jax.device_put((x, t), NamedSharding(mesh, P("d"))))


def flax_pmap(N, model, x, t):
    """Flax's imagenet example: replicated state, pmap, prefetch_to_device."""
    from flax import jax_utils

    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    devices = jaxpar.devices()[:N]

    def step(state, batch):
        params, rest, opt = state
        x, t = batch

        def loss_of(params):
            net = nnx.merge(graphdef, params, rest, copy=True)
            return squared(net, x, t), nnx.state(net, nnx.Not(nnx.Param))

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        gradients, loss = jax.lax.pmean((gradients, loss), "d")
        updates, opt = TX.update(gradients, opt)
        return (optax.apply_updates(params, updates), rest, opt), loss

    def forever():
        while True:
            yield tuple(a.reshape(N, len(a) // N, *a.shape[1:]) for a in (x, t))

    mapped = jax.pmap(step, "d", devices=devices, donate_argnums=(0,))
    state = [jax_utils.replicate((params, rest, TX.init(params)), devices)]
    batches = jax_utils.prefetch_to_device(forever(), 2, devices)

    def once():
        state[0], loss = mapped(state[0], next(batches))
        return loss

    return once
