"""Uneven rows as one program: what is proved, what is not, and that padding reaches nothing.

Pins rows 15 and 75 of docs/semantics.md: a replica computes on its own rows, whatever the others have.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxpar
from jaxpar._parallel import program
from jaxpar._parallel.padding import evaluation, planned
from jaxpar._parallel.padding.rows import Rows

C = 4
ROWS = [(4, 15), (4, 11), (4, 14), (5, 11)]
"""Devices and rows: 4443, 3332, 4442, and 3332 with a device that has none."""


W = np.linspace(-1.0, 2.0, C * C).reshape(C, C)


class Net(nnx.Module):
    """A function of weights and rows, as a module."""

    def __init__(self, f, w=W):
        self.w, self.f = nnx.Param(jnp.asarray(w)), f

    def __call__(self, x):
        return self.f(self.w[...], x)


def softened(x):
    return jnp.log(1 + x * x)


BY_ITSELF = {
    "a product": lambda w, x: x @ w,
    "norms": lambda w, x: (x - x.mean(-1, keepdims=True)) / (1 + x.std(-1, keepdims=True)) @ w,
    "softmax": lambda w, x: jax.nn.softmax(x @ w),
    "a function with a rule": lambda w, x: jax.nn.relu(x @ w) + jax.nn.silu(x),
    "rows in blocks": lambda w, x: (x.reshape(-1, 2) @ w[:2, :2]).reshape(x.shape),
    "another order of axes": lambda w, x: jnp.einsum("bc,cd->db", x, w).T,
    "attention inside of a row": lambda w, x: jnp.einsum("bq,bk->bqk", x, x @ w).sum(-1),
    "a table": lambda w, x: w[jnp.clip(jnp.abs(x[:, 0] * 2).astype(int), 0, C - 1)] * x,
    "an entry of each row": lambda w, x: jnp.take_along_axis(x @ w, jnp.argmax(x, 1)[:, None], 1),
    "a loop": lambda w, x: jax.lax.scan(lambda c, v: (jnp.tanh(c @ w + v), c), x, jnp.arange(3.0))[0],
    "a loop over time": lambda w, x: (
        jax.lax.scan(lambda c, v: (c + v, c * v), jnp.zeros(x.shape[0]), (x @ w).T)[1].T
    ),
    "a choice": lambda w, x: jax.lax.cond(w[0, 0] < 0, lambda y: y @ w, lambda y: y, x),
    "a checkpoint": lambda w, x: jax.checkpoint(lambda y: jnp.sin(y @ w))(x),
    "sorted entries": lambda w, x: jnp.sort(x @ w, axis=1)[:, ::-1],
    "summed entries": lambda w, x: jnp.cumsum(x @ w, axis=1),
    "convolution": lambda w, x: jax.lax.conv(x[:, None], w[:3, None, :2], (1,), "SAME").sum(1),
    "pooling": lambda w, x: jaxpar.nn.MaxPool(2)((x @ w)[:, None, :, None].repeat(4, 1)).sum((1, 3)),
    "a logarithm of rows": lambda w, x: jnp.log(x * x) @ w,
    "positions of rows": lambda w, x: x @ w + jnp.arange(x.shape[0])[:, None],
    "joined entries": lambda w, x: jnp.concatenate([x, x @ w, jnp.ones((x.shape[0], 2))], axis=1),
    "random numbers": lambda w, x: x @ w * jax.random.bernoulli(jax.random.key(3), 0.5, x.shape),
}

SUMMED = {
    "mean": lambda w, x: softened(x @ w).mean(0, keepdims=True),
    "mean of everything": lambda w, x: softened(x @ w).mean().reshape(1),
    "variance": lambda w, x: (x @ w).var(0, keepdims=True),
    "largest and smallest": lambda w, x: ((-1 - softened(x @ w)).max(0) + (1 + softened(x)).min(0))[None],
    "smallest whole numbers": lambda w, x: (
        softened(x @ w) * jnp.rint(8 + 8 * softened(x)).astype(int).min(0)[None]
    ),
    "product of rows": lambda w, x: (1 + x / 8).prod(0)[None] @ w,
    "any and all": lambda w, x: (
        jnp.where((x * x < 1e-9).any(0) | ~(x * x > 1e-9).all(0), w[0], w[1])[None] * x
    ),
    "rows times rows": lambda w, x: x.T @ softened(x @ w),
    "logsumexp": lambda w, x: jax.nn.logsumexp(x @ w, axis=0)[None],
    "how many": lambda w, x: x @ w / jnp.ones(x.shape[0]).sum() + x.shape[0],
    "blocks of rows": lambda w, x: softened(x @ w).reshape(-1).mean().reshape(1),
    "rows in blocks of columns": lambda w, x: jnp.mean(
        softened(x @ w).reshape(-1, 2, 2).swapaxes(0, 1).reshape(-1), keepdims=True
    ),
    "normalised by the batch": lambda w, x: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5) @ w,
    "BatchNorm": lambda w, x: jaxpar.nn.functional.batch_norm(x @ w, None, None, w[0], w[1], True)[0],
    "behind a jit": lambda w, x: jax.jit(lambda y: softened(y - y.mean(0)))(x @ w),
}

MIXED = {
    "one row and the next": lambda w, x: x @ w + jnp.roll(x, 1, 0),
    "the other way round": lambda w, x: x[::-1] @ w,
    "all but the first": lambda w, x: jnp.concatenate([x[:1], x[1:] - x[:-1]]) @ w,
    "each with each": lambda w, x: jax.nn.softmax(x @ x.T) @ x,
    "summed up to each": lambda w, x: jnp.cumsum(x, axis=0) @ w,
    "sorted rows": lambda w, x: jnp.sort(x, axis=0) @ w,
    "the last row": lambda w, x: x - x[-1],
    "which row": lambda w, x: x @ w + jnp.argmax(x, axis=0),
    "every other row": lambda w, x: x.at[::2].mul(2.0) @ w,
    "another program": lambda w, x: x @ w if x.shape[0] > 3 else x + w[0],
    "random numbers along the rows": lambda w, x: (
        (x.T * jax.random.bernoulli(jax.random.key(3), 0.5, x.T.shape)).T @ w
    ),
    "a transform": lambda w, x: jnp.fft.fft(x, axis=0).real @ w,
    "a mean in a loop": lambda w, x: jax.lax.scan(lambda c, _: (c - c.mean(0), None), x @ w, None, 2)[0],
    "neighbours": lambda w, x: jax.lax.conv(x.T[:, None], jnp.ones((1, 1, 3)), (1,), "SAME")[:, 0].T,
    "a print": lambda w, x: (jax.debug.callback(lambda y: None, x), x @ w)[1],
}
CASES = BY_ITSELF | SUMMED | MIXED


def chunks(x, N):
    """As torch.chunk cuts."""
    size = -(-len(x) // N)
    return [x[i : i + size] for i in range(0, len(x), size)]


def rows(B, C=C):
    return np.random.default_rng(B).normal(size=(B, C)) + 0.1


def parallel(net, N=4):
    return jaxpar.DataParallel(net, range(N))


def one_by_one(net, N=4):
    """What every replica computes, with nothing of ours."""
    return lambda x: jnp.concatenate([net(piece) for piece in chunks(x, N)])


def outcome(wrap, f, x, N):
    """Outputs and gradients, with respect to weights and rows, of a function of all outputs."""

    def loss(w, x):
        y = wrap(Net(f, w), N)(x)
        return jnp.sum(jnp.sin(y) * jnp.arange(1.0, y.size + 1).reshape(y.shape)), y

    (_, y), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(W, x)
    return y, *gradients


def compared(name, N=4, B=15):
    """The largest difference of outputs and gradients from `one_by_one`; whether it was one program."""
    x, f, found, united = rows(B), CASES[name], [], program._united

    def spy(*args, **kwargs):
        found.append(united(*args, **kwargs))
        return found[-1]

    want = outcome(one_by_one, f, x, N)
    assert all(np.isfinite(leaf).all() for leaf in want), "the case itself"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "_united", spy)
        got = outcome(parallel, f, x, N)
    return np.max([np.abs(a - b).max() for a, b in zip(got, want, strict=True)]), None not in found


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("N", "B"), ROWS)
@pytest.mark.parametrize("name", CASES)
def test_every_replica_sees_its_own_rows_alone(name, N, B):
    difference, _ = compared(name, N, B)
    assert difference < 1e-10


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", CASES)
def test_one_program_where_padding_provably_reaches_nothing(name):
    _, united = compared(name)
    assert united == (name not in MIXED)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SUMMED)
def test_without_masks_sums_would_be_wrong(name, monkeypatch):
    """The comparison catches a mask that is left out, with one padding or another."""
    monkeypatch.setattr(evaluation, "masked", lambda x, *rest: x)
    copies, united = compared(name)
    monkeypatch.setattr(evaluation, "repeated", with_zeros)
    zeros, _ = compared(name)
    assert united
    assert not max(copies, zeros) < 1e-6


def with_zeros(x, rows, b, n):
    return jnp.where((jnp.arange(x.shape[0]) < n)[:, None], x, 0)


def test_without_a_row_in_the_padding_gradients_would_not_be_numbers(monkeypatch):
    """0 times the infinite derivative of a logarithm at 0."""
    monkeypatch.setattr(evaluation, "repeated", with_zeros)
    difference, _ = compared("a logarithm of rows")
    assert np.isnan(difference)


@pytest.mark.full
@pytest.mark.parametrize("name", ["norms", "normalised by the batch", "a function with a rule", "BatchNorm"])
def test_differentiated_twice(name):
    def gradient(wrap):
        call = wrap(Net(CASES[name]))
        first = jax.grad(lambda x: jnp.sum(jnp.sin(call(x))))
        return jax.jit(jax.grad(lambda x: jnp.sum(jnp.cos(first(x)))))(rows(15))

    np.testing.assert_allclose(gradient(parallel), gradient(one_by_one), atol=1e-10)


@pytest.mark.parametrize("name", ["softmax", "BatchNorm"])
def test_derivatives_forward(name):
    def both(wrap):
        call = wrap(Net(CASES[name]))
        return jax.jit(lambda x: jax.jvp(call, (x,), (jnp.cos(x),)))(rows(15))

    for got, want in zip(both(parallel), both(one_by_one), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-10)


def programs(f, *sizes):
    return [jax.make_jaxpr(f)(jnp.ones((b, C)), jnp.ones((b, C))) for b in sizes]


def test_a_length_that_happens_to_be_the_number_of_rows_is_not_taken_for_it():
    """C is the number of rows of the largest replica, and nothing is summed over rows."""
    plan = planned(programs(lambda x, y: (x @ jnp.ones((C, C)) + y).sum(1), C, C - 1))
    assert plan.plain
    assert [rows.axis for rows in plan.result_rows] == [0]


LENGTHS = {
    "twice the rows, one after the other": (lambda x, y: jnp.concatenate([x, y]), None),
    "rows of one block among rows of two": (lambda x, y: x.reshape(-1) + y.T.reshape(-1), None),
    "torn rows": (lambda x, y: (x + y).T.reshape(-1, C), None),
    "blocks of rows": (lambda x, y: (x + y).T.reshape(-1), [Rows(0, C, 1)]),
    "rows in blocks": (lambda x, y: (x + y).reshape(-1), [Rows(0, 1, C)]),
    "one row less": (lambda x, y: x[1:] * y[1:], None),
    "rows and rows": (lambda x, y: x @ y.T, None),
    "positions in blocks": (lambda x, y: (x + y).reshape(-1) + jnp.arange(x.size), [Rows(0, 1, C)]),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_explained_or_refused(name):
    f, rows = LENGTHS[name]
    plan = planned(programs(f, 3, 2))
    assert (plan and list(plan.result_rows)) == rows


def test_the_first_program_has_the_most_rows():
    f = lambda x, y: x + y  # noqa: E731
    assert planned(programs(f, 2, 3)) is None
    assert planned(programs(f, 3, 2, 1)) is not None


def test_results_have_zeros_for_padding():
    plan = planned(programs(lambda x, y: x + y + 1, 3, 2))
    x = rows(3)
    (found,) = evaluation.Padded(plan)(jnp.int32(1), [x, x])
    np.testing.assert_array_equal(found, np.concatenate([(x + x + 1)[:2], np.zeros((1, C))]))


def test_rules_that_look_at_rows_count():
    """A function may treat every row by itself, and its derivative's rule may not."""

    @jax.custom_vjp
    def clipped(x):
        return x * 1.0

    clipped.defvjp(lambda x: (x * 1.0, None), lambda _, g: (g / (1 + jnp.abs(g).sum()),))

    @jax.custom_jvp
    def shifted(x):
        return x * 1.0

    shifted.defjvp(lambda x, t: (x[0] * 1.0, jnp.roll(t[0], 1, 0)))

    @jax.custom_vjp
    def plain(x):
        return x * 1.0

    plain.defvjp(lambda x: (x * 1.0, None), lambda _, g: (g * 2,))
    assert planned(programs(lambda x, y: clipped(x) + y, 3, 2)) is None
    assert planned(programs(lambda x, y: shifted(x) + y, 3, 2)) is None
    assert planned(programs(lambda x, y: plain(x) + y, 3, 2)) is not None


def test_another_generator_is_not_trusted():
    """The numbers of JAX's rbg generator are not known to depend on their position alone."""

    def f(impl):
        return lambda x, y: x * jax.random.normal(jax.random.key(0, impl=impl), x.shape) + y

    assert planned(programs(f("threefry2x32"), 3, 2)) is not None
    assert planned(programs(f("rbg"), 3, 2)) is None


class Normed(nnx.Module):
    """Statistics, and random numbers of which every replica has its own."""

    def __init__(self):
        self.norm, self.drop = jaxpar.nn.BatchNorm(C), nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.drop(self.norm(x))


@pytest.mark.parametrize(
    ("net", "B", "branches"),
    [
        (Normed(), 15, False),
        (Net(MIXED["sorted rows"]), 15, True),
        (jaxpar.nn.SyncBatchNorm(C), 15, False),
        (jaxpar.nn.SyncBatchNorm(C), 9, True),  # 3, 3 and 3 on four devices
    ],
    ids=["BatchNorm", "sorted rows", "SyncBatchNorm", "SyncBatchNorm, a device without rows"],
)
def test_branches_are_compiled_where_nothing_is_proved(net, B, branches):
    graphdef, state = nnx.split(parallel(net))
    program = jax.jit(lambda state, x: nnx.merge(graphdef, state)(x)).lower(state, rows(B))
    assert ("stablehlo.case" in program.as_text()) == branches
