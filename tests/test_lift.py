"""Sums over replicas with different numbers of rows: one batch, whatever the rows of each."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_trees
from flax import nnx

import jaxpar
from jaxpar._parallel.lift import traced
from jaxpar._typing import REPLICA
from jaxpar.errors import CollectiveError
from jaxpar.nn import BatchNorm, SyncBatchNorm

N, C, SPACE = 4, 3, 2
IDS = list(range(N))
ROWS = {10: (3, 3, 3, 1), 9: (3, 3, 3), 5: (2, 2, 1), 3: (1, 1, 1), 1: (1,)}


def batch(B: int, *shape: int) -> jax.Array:
    return jnp.asarray(2 + np.random.RandomState(B).randn(B, *shape))


# ------------------------------------------------------------------------------------ SyncBatchNorm


class Net(nnx.Module):
    """Two norms in a row, so that there are sums of sums, and a layer that sums nothing."""

    def __init__(self, norm):
        self.linear = nnx.Linear(C, C, use_bias=False, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        self.first, self.second = norm(C, param_dtype=jnp.float64), norm(C, param_dtype=jnp.float64)

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(self.linear(x))))


def step(net, x):
    """Outputs, gradients and statistics of a training step."""

    @nnx.jit
    def run(net, x):
        def loss(net, x):
            y = net(x)
            return (y**3 + jnp.sin(y)).sum(), y

        wrt = (nnx.DiffState(0, nnx.Param), 1)
        return nnx.grad(loss, argnums=wrt, has_aux=True)(net, x)

    (parameters, dx), y = run(net, x)
    inner = net.module if isinstance(net, jaxpar.DataParallel) else net
    flat = {f"d {path}": v[...] for path, v in nnx.to_flat_state(parameters)}
    flat = {name.replace("'module', ", ""): np.asarray(v) for name, v in flat.items()}
    statistics = {
        str(path): np.asarray(v[...]) for path, v in nnx.to_flat_state(nnx.state(inner, nnx.BatchStat))
    }
    return {"y": np.asarray(y), "dx": np.asarray(dx), **flat, **statistics}


# docs/semantics.md rows B2, B3, B4: torch's own test is called Diff_Input_Sizes
@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("B", ROWS)
def test_sync_batch_norm_is_one_batch_norm_on_all_rows(B):
    x = batch(B, SPACE, C)
    assert jaxpar.scatter(x, IDS).sizes == ROWS[B]
    backend = "pmap" if B == 5 else "shard_map"
    got = step(jaxpar.DataParallel(Net(SyncBatchNorm), IDS, backend=backend), x)
    want = step(Net(BatchNorm), x)
    assert_equal_trees(f"B = {B}", got, want, 1e-12)
    if B == 10:
        with pytest.raises(AssertionError, match="relative difference"):  # each replica for itself
            assert_equal_trees("planted", step(jaxpar.DataParallel(Net(BatchNorm), IDS), x), want, 1e-2)


# docs/semantics.md row B4: what torch refuses on one device is a batch on several
def test_one_row_on_each_replica_is_a_batch():
    x = batch(N, C)
    got = step(jaxpar.DataParallel(Net(SyncBatchNorm), IDS), x)
    assert_equal_trees("one row each", got, step(Net(BatchNorm), x), 1e-12)


# docs/semantics.md row B3
@pytest.mark.full
def test_gradients_that_are_taken_in_the_replica():
    """DistributedDataParallel's: the transpose of a sum is a sum, to which others add terms too."""
    x = batch(10, SPACE, C)
    net = jaxpar.DistributedDataParallel(Net(SyncBatchNorm), IDS)
    loss, gradients = net.value_and_grad(lambda net, x: (net(x) ** 3).mean())(x)

    def mean_of_losses(net, x):
        pieces = jnp.split(net(x), np.cumsum(ROWS[10])[:-1])
        return sum((piece**3).mean() for piece in pieces) / N

    alone = Net(BatchNorm)
    want_loss, want = nnx.jit(nnx.value_and_grad(mean_of_losses))(alone, x)
    got = {"loss": loss, **dict(enumerate(jax.tree.leaves(gradients)))}
    assert_equal_trees("inside", got, {"loss": want_loss, **dict(enumerate(jax.tree.leaves(want)))}, 1e-12)
    np.testing.assert_allclose(net.module.second.var[...], alone.second.var[...], rtol=1e-12)


def test_a_single_value_per_channel_is_refused():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        jaxpar.DataParallel(SyncBatchNorm(C), IDS)(batch(1, C))


# -------------------------------------------------------------------------------------- any function


def statistics(x):
    """Mean and spread of all rows, by hand."""
    total = jax.lax.psum(jnp.concatenate([x.sum(0), jnp.full((1,), len(x), x.dtype)]), REPLICA)
    mean = total[:-1] / total[-1]
    return mean, jax.lax.psum(((x - mean) ** 2).sum(0), REPLICA) / total[-1]


def normal(x):
    mean, var = statistics(x)
    return (x - mean) / jnp.sqrt(var + 1e-3)


def normal_alone(x):
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3)


@jax.custom_jvp
def tripled(x):
    return jax.lax.psum(x.sum(0), REPLICA)


@tripled.defjvp
def _(primals, tangents):
    return tripled(*primals), 3 * jax.lax.psum(tangents[0].sum(0), REPLICA)


def one_row(f):
    """A replica's result without rows as one row."""
    return lambda x: f(x)[None]


def first(y):
    np.testing.assert_array_equal(y, np.broadcast_to(y[:1], y.shape))
    return y[0]


FUNCTIONS = {
    "as written": (normal, normal_alone),
    "in checkpoint and jit": (jax.checkpoint(jax.jit(normal)), normal_alone),
    "called twice": (lambda x: jax.jit(normal)(jax.jit(normal)(x)), lambda x: normal_alone(normal_alone(x))),
    "masked by random numbers": (
        lambda x: normal(x) * jax.random.bernoulli(jax.random.key(len(x) * 0), shape=(C,)),
        lambda x: normal_alone(x) * jax.random.bernoulli(jax.random.key(0), shape=(C,)),
    ),
    "integers": (
        lambda x: x * jax.lax.psum((x > 2).sum(), REPLICA),
        lambda x: x * (x > 2).sum(),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives(name):
    ours, theirs = FUNCTIONS[name]
    x, net = batch(10, C), jaxpar.DataParallel(ours, IDS)
    # What is computed again for the backward pass meets again.
    ours = jax.checkpoint(lambda x: net(x)) if name == "as written" else net

    @functools.partial(jax.jit, static_argnums=0)
    def both(f, x):
        y, back = jax.vjp(f, x)
        return {"y": y, "dx": back(jnp.cos(y))[0]}

    assert_equal_trees(name, both(ours, x), both(theirs, x), 1e-12)


# docs/semantics.md row 71
@pytest.mark.full
def test_the_derivative_of_a_derivative():
    x = batch(5, C)

    @functools.partial(jax.jit, static_argnums=0)
    def second(f, x):
        return jax.grad(lambda x: (jax.grad(lambda x: jnp.sin(f(x)).sum())(x) ** 2).sum())(x)

    got, want = second(jaxpar.DataParallel(normal, IDS), x), second(normal_alone, x)
    assert_equal_trees("second", {"ddx": got}, {"ddx": want}, 1e-12)


def test_the_rule_of_a_function_in_a_branch_holds():
    x = batch(10, C)
    net = jaxpar.DataParallel(one_row(tripled), IDS)
    y, back = jax.vjp(net, x)
    np.testing.assert_allclose(first(y), x.sum(0), rtol=1e-12)
    np.testing.assert_array_equal(back(jnp.ones_like(y))[0], np.full(x.shape, 3.0 * N))


def test_devices_meet_outside_of_the_branches_only():
    net = jaxpar.DataParallel(normal, IDS)
    text = jax.jit(jax.grad(lambda x: jnp.sin(net(x)).sum())).lower(batch(9, C)).as_text()
    depth, outside, inside = 0, 0, 0
    for line in text.splitlines():
        if "stablehlo.case" in line:
            depth += 1
        if "stablehlo.all_reduce" in line:
            outside, inside = outside + (not depth), inside + bool(depth)
        if depth and re.match(r"\s*\}\)? : \(tensor<i32>\) ->", line):
            depth -= 1
    assert (depth, inside) == (0, 0)
    assert outside >= 4  # two sums, and their two transposes


# ----------------------------------------------------------------------------------------- refusals


def looped(x):
    return jax.lax.scan(lambda c, _: (c + jax.lax.psum(x.sum(0), REPLICA), None), x, length=2)[0]


@jax.custom_vjp
def own_vjp(x):
    return jax.lax.psum(x.sum(0), REPLICA)


own_vjp.defvjp(lambda x: (own_vjp(x), None), lambda _, g: (g,))

REFUSED = {
    "pmean": (lambda x: x - jax.lax.pmean(x.mean(0), REPLICA), "the number of replicas .*SyncBatchNorm does"),
    "psum of a number": (
        lambda x: x * jax.lax.psum(x.sum(0), REPLICA) / jax.lax.psum(len(x), REPLICA),
        "of a number",
    ),
    "Flax's BatchNorm": (lambda x: FLAX(x), "Flax's BatchNorm with axis_name"),
    "all_gather": (
        lambda x: x + jax.lax.all_gather(x.sum(0), REPLICA).sum(0),
        r"\(all_gather\).*only sums can",
    ),
    "pmax": (lambda x: x - jax.lax.pmax(x.max(0), REPLICA), r"\(pmax\).*only sums"),
    "ppermute": (lambda x: x + jax.lax.ppermute(x.sum(0), REPLICA, [(0, 1), (1, 0)]), r"\(ppermute\)"),
    "a loop": (looped, r"\(psum in scan\).*not from loops and conditions"),
    "own derivative": (lambda x: x + own_vjp(x), r"\(psum in (custom_vjp_call|call_hi_primitive)\)"),
    "groups": (
        lambda x: x + jax.lax.psum(x.sum(0), REPLICA, axis_index_groups=[[0, 1], [2, 3]]),
        "sums over groups of replicas",
    ),
    "another order": (lambda x: sums(x, [1, 2] if len(x) == 1 else [2, 1]), "depends on the number of rows"),
    "one after the other": (
        lambda x: chained(x) if len(x) == 1 else sums(x, [1, 1]),
        "depends on the number",
    ),
    "every row": (
        lambda x: x + jax.lax.psum(x, REPLICA),
        "depends on the number of rows.*Sum over the rows first",
    ),
}


def sums(x, widths):
    """Sums of so many columns, one beside the other; all of them are sent at once."""
    return x + sum(jax.lax.psum(x[:, :width].sum(0), REPLICA).sum() for width in widths)


def chained(x):
    return x + jax.lax.psum(x[:, :1].sum(0) * jax.lax.psum(x[:, :1].sum(0), REPLICA), REPLICA)


def FLAX(x):
    return nnx.BatchNorm(C, axis_name=REPLICA, rngs=nnx.Rngs(0))(x.astype(np.float32))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_sum_is_refused_in_an_uneven_batch_alone(name):
    f, message = REFUSED[name]
    net = jaxpar.DataParallel(f, IDS)
    jax.eval_shape(lambda x: net(x), batch(8, C))
    with pytest.raises(CollectiveError, match=message):
        jax.eval_shape(lambda x: net(x), batch(10, C))


def test_the_index_of_a_replica_is_nothing_that_it_says():
    y = jax.jit(jaxpar.DataParallel(lambda x: normal(x) * 0 + jax.lax.axis_index(REPLICA), IDS))(batch(10, C))
    np.testing.assert_array_equal(y[:, 0], [0, 0, 0, 1, 1, 1, 2, 2, 2, 3])


def test_only_the_number_of_replicas_makes_two_programs_different():
    x = batch(3, C)

    def program(f):
        return jax.jit(
            jax.shard_map(
                lambda x: traced(f, [x], N) and x,
                mesh=jaxpar.Placement(tuple(jaxpar.devices()[:N])).mesh,
                in_specs=jax.P(),
                out_specs=jax.P(),
                check_vma=False,
            )
        ).lower(x)

    table = np.arange(3.0)
    program(lambda x: jax.nn.gelu(normal(x @ np.eye(C))) * table)
    size = functools.partial(jax.lax.axis_size, REPLICA)
    for planted in (
        lambda x: normal(x) * size(),
        lambda x: normal(x) * (table * size()),
        lambda x: jax.jit(lambda x: x * size())(normal(x)),
        lambda x: normal(x)[: size() - 2],
        lambda x: jax.lax.scan(lambda c, _: (c, None), normal(x), length=size())[0],
    ):
        with pytest.raises(CollectiveError):
            program(planted)
