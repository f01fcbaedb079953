"""Gradients that are collected, exchanged or passed around by hand: proofs agree with the numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxpar
from benchmarks.program.by_hand import BY_HAND
from benchmarks.program.drawn import draw, refuted
from benchmarks.program.faults import FAULTS, HEALTHY, OPEN
from benchmarks.program.passing import WAYS
from jaxpar._tools.program import combination, followed
from jaxpar._tools.program.combination import Bases, Factors, NotFollowedError, alone, joined, total, zeros

MEANS = [case for case in HEALTHY if case[0] in WAYS and case[1] != "both axes"]
OTHERS = [case for case in [*FAULTS, *OPEN] if case[0] in WAYS and case[1] != "other axis"]
UNCHANGED = {("collected", "again before"), ("ring", "again before"), ("collected", "again")}
"""Faults that are a factor."""


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]), ("data",))


def reduced(name: str, fault: str) -> tuple[list[np.ndarray], np.ndarray]:
    """What each device gets of a gradient, and the mean."""
    rows = np.random.default_rng(0).normal(size=(8, 8, 6))

    def body(g):
        return WAYS[name](g[0], fault)[None]

    run = jax.shard_map(body, mesh=mesh(), in_specs=P("data"), out_specs=P("data"), check_vma=False)
    return list(np.asarray(jax.jit(run)(rows))), rows.mean(0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", MEANS, ids=lambda case: "-".join(case).replace(" ", "_"))
def test_a_healthy_way_takes_the_mean(case):
    for on_device, mean in ((x, reduced(*case)[1]) for x in reduced(*case)[0]):
        np.testing.assert_allclose(on_device, mean, rtol=0, atol=1e-14)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", OTHERS, ids=lambda case: "-".join(case).replace(" ", "_"))
def test_a_faulty_way_does_not(case):
    devices, mean = reduced(*case)
    assert max(np.abs(x - mean).max() for x in devices) > 1e-3
    if case in UNCHANGED:
        np.testing.assert_allclose(devices[0] / mean, np.full(mean.shape, 8.0), rtol=1e-12)


# --------------------------------------------------------------------------- against arrays of numbers


class Simulated:
    """Arrays on four devices, as numbers and as a Combination of one base."""

    def __init__(self, shape=(4, 6)):
        self.factors, self.bases = Factors(4), Bases()
        self.base = np.random.default_rng(1).normal(size=(4, *shape))
        self.start = alone(self.bases, object(), self.base[0].size, self.factors)

    def numbers(self, c, shape):
        flat, grain = self.base.reshape(4, -1), c.grain
        result = np.zeros((4, c.index.shape[1] * grain))
        for device, (index, sums) in enumerate(zip(c.index, c.sums, strict=True)):
            for run, (i, n) in enumerate(zip(index, sums, strict=True)):
                if i >= 0:
                    terms = self.factors.rows[n] * c.scale @ flat[:, i : i + grain]
                    result[device, run * grain : (run + 1) * grain] = terms
        return result.reshape(4, *shape)

    def equal(self, c, expected):
        np.testing.assert_allclose(self.numbers(c, expected.shape[1:]), expected, rtol=0, atol=1e-12)


PAIRS = ((0, 2), (1, 3))


def test_moves_are_those_of_the_numbers():
    s, x = Simulated(), Simulated().base
    s.equal(s.start, x)
    for axis, starts, length in ((0, [2, 0, 1, 3], 1), (0, [0, 1, 2, 0], 2), (1, [0, 2, 4, 2], 2)):
        cut = np.stack([np.take(v, range(n, n + length), axis) for v, n in zip(x, starts, strict=True)])
        s.equal(s.start.sliced((4, 6), axis, starts, length), cut)
        new = x.copy()
        for device, n in enumerate(starts):
            part = [slice(None)] * 2
            part[axis] = slice(n, n + length)
            new[device][tuple(part)] = 2 * cut[device]
        doubled = s.start.sliced((4, 6), axis, starts, length).scaled(s.factors, [2.0] * 4)
        doubled = doubled.at_scale(s.factors, 1.0)
        s.equal(s.start.updated((4, 6), axis, starts, doubled, length), new)
    s.equal(s.start.transposed((4, 6), (1, 0)), x.transpose(0, 2, 1))
    s.equal(s.start.transposed((2, 2, 6), (1, 0, 2)), x.reshape(4, 2, 2, 6).transpose(0, 2, 1, 3))
    s.equal(s.start.from_devices([3, None, 0, 0]), np.stack([x[3], 0 * x[0], x[0], x[0]]))


def test_collections_and_exchanges_are_those_of_the_numbers():
    s, x = Simulated(), Simulated().base
    group_of = {d: g for g in PAIRS for d in g}
    for axis in (0, 1):
        every = np.stack([np.concatenate([x[m] for m in group_of[d]], axis) for d in range(4)])
        collection = s.start.gathered((4, 6), axis, PAIRS)
        s.equal(collection, every)
        pieces = [np.split(v, 2, axis) for v in x]
        sent = np.stack(
            [np.concatenate([pieces[m][group_of[d].index(d)] for m in group_of[d]], axis) for d in range(4)]
        )
        s.equal(s.start.exchanged((4, 6), axis, PAIRS), sent)
        beside = joined(s.factors, [(s.start, (4, 6)), (s.start.from_devices([1, 2, 3, 0]), (4, 6))], axis)
        s.equal(beside, np.concatenate([x, x[[1, 2, 3, 0]]], axis + 1))
    new = s.start.gathered((1, 4, 6), 0, PAIRS)
    s.equal(new.reduced(s.factors, (2, 4, 6), 0), np.stack([x[list(group_of[d])].sum(0) for d in range(4)]))
    s.equal(s.start.over_groups(s.factors, PAIRS), np.stack([x[list(group_of[d])].sum(0) for d in range(4)]))


def test_sums_have_the_factors_of_the_numbers():
    s, x = Simulated(), Simulated().base
    moved = s.start.from_devices([1, 2, 3, 0])
    added = total(s.factors, [s.start, moved.scaled(s.factors, [0.5] * 4)])
    s.equal(added, x + 0.5 * x[[1, 2, 3, 0]])
    s.equal(s.start.scaled(s.factors, [1.0, 0.0, 2.0, -1.0]), x * np.array([1, 0, 2, -1])[:, None, None])
    s.equal(total(s.factors, [s.start, zeros(4, 24)]), x)
    difference = total(s.factors, [s.start, s.start.scaled(s.factors, [-1.0] * 4)])
    assert (difference.index < 0).all()
    with pytest.raises(NotFollowedError):
        total(s.factors, [s.start, s.start.transposed((4, 6), (1, 0))])
    with pytest.raises(NotFollowedError):
        s.start.scaled(s.factors, [np.inf] * 4)


def test_what_has_too_many_runs_is_not_followed(monkeypatch):
    monkeypatch.setattr(combination, "MOST", 50)
    s = Simulated()
    with pytest.raises(NotFollowedError):
        s.start.transposed((4, 6), (1, 0))


# ------------------------------------------------------------------------------------ other programs


def judged(step):
    run = jax.shard_map(step, mesh=mesh(), in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    return jaxpar.program(run, jnp.zeros((4, 2), jnp.float32), jnp.ones((16, 4), jnp.float32))


def verdict(reduce):
    return judged(lambda w, x: w - 0.1 * reduce(jax.grad(lambda w: jnp.tanh(x @ w).mean())(w)))


def test_a_ring_in_which_what_goes_around_is_changed_is_not_proven():
    around = [(i, (i + 1) % 8) for i in range(8)]

    def ring(g):
        passed = g
        for _ in range(7):
            passed = jnp.tanh(lax.ppermute(passed, "data", around))
            g = g + passed
        return g / 8

    assert verdict(ring).verdict != "right"


def test_a_loop_of_which_the_turns_are_a_number_of_the_batch_is_not_proven():
    around = [(i, (i + 1) % 8) for i in range(8)]

    def ring(g):
        def turn(state):
            n, passed, added = state
            passed = lax.ppermute(passed, "data", around)
            return n + 1, passed, added + passed

        turns = jnp.where(lax.psum(jnp.abs(g).max(), "data") > 1e9, 6, 7)
        return lax.while_loop(lambda state: state[0] < turns, turn, (0, g, g))[2] / 8

    assert verdict(ring).verdict != "right"


@pytest.mark.parametrize("seed", [12007, 12049, 12240, 12313, 15120])
def test_a_part_of_a_sum_is_not_added_again(seed):
    """Slices of one vector, which is a complete sum, are added on all devices once more."""
    step = draw(seed)
    report = jaxpar.program(step.run, *step.arguments)
    right = {leaf.path.split("'")[1] for leaf in report.leaves if leaf.state and leaf.verdict == "right"}
    assert refuted(step, set(step.arguments[0])) == ["a sum has equal terms"]
    assert report.verdict != "right"
    assert not right


def test_slices_that_are_put_into_zeros_and_added_are_proven():
    def placed(g):
        part = lax.all_to_all(g.reshape(8, 1), "data", 0, 0).sum(0) / 8
        start = lax.axis_index("data")
        buffer = lax.dynamic_update_slice_in_dim(jnp.zeros((8, 1), g.dtype), part[None], start, 0)
        return lax.psum(buffer, "data").reshape(g.shape)

    verdict(placed).check()


def test_a_ring_of_means_is_not_proven_where_it_is_not_followed():
    # XLA computes the mean once for the ring and once more for what the ring adds it to.
    around = [(i, (i + 1) % 8) for i in range(8)]

    def twice(g):
        every = lax.all_gather(g, "data", axis=g.ndim)
        mean = added = sum(every[..., i] for i in range(8)) / 8
        for _ in range(7):
            mean = lax.ppermute(mean, "data", around)
            added = added + mean * jnp.cos(mean)
        return added

    report = verdict(twice)
    assert report.verdict == "not proven", str(report)
    assert "passed on" in report.leaves[0].why


def test_a_collected_mean_is_not_proven_where_it_is_not_followed(monkeypatch):
    monkeypatch.setattr(followed, "BUDGET", 0)
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]

    def twice(g):
        for groups in halves:
            g = lax.psum(g, "data", axis_index_groups=groups)
        return lax.all_gather(g / 8, "data").sum(0)

    report = verdict(twice)
    assert report.verdict == "not proven", str(report)
    assert "passed on" in report.leaves[0].why


def test_weights_from_a_ring_are_equal():
    step, shapes, options = BY_HAND["FSDP by a ring"]()
    jaxpar.program(step, *shapes, **options).check()


def test_sums_of_pairs_in_which_one_weighs_more_are_not_known_to_be_equal():
    def pairs(g):
        g = jnp.tanh(g + 2 * lax.ppermute(g, "data", [(i, i ^ 1) for i in range(8)]))
        for bit in (2, 4):
            g = g + lax.ppermute(g, "data", [(i, i ^ bit) for i in range(8)])
        return g / 4

    assert verdict(pairs).verdict == "not proven"


def test_what_a_loop_returns_is_another_array():
    # What a loop carries has one name in all of its turns, and other numbers in each.
    def step(w, x):
        g = jax.grad(lambda w: jnp.tanh(x @ w).mean())(w)
        passed = lax.ppermute(g, "data", [(i, i ^ 1) for i in range(8)])
        turns = 2 + (w.sum() > 0)
        changed = lax.while_loop(lambda s: s[0] < turns, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, g))[1]
        added = changed + passed
        for bit in (2, 4):
            added = added + lax.ppermute(added, "data", [(i, i ^ bit) for i in range(8)])
        return w - 0.1 * added

    assert judged(step).verdict != "right"


def test_a_collection_is_followed_backwards():
    # The derivative of a collection's mean is scattered copies of one array.
    def step(w, x):
        def loss(w):
            hidden = jnp.tanh(x @ w)
            return jnp.mean((hidden - lax.all_gather(hidden.mean(0), "data").mean(0)) ** 2)

        return w - 0.1 * lax.pmean(jax.grad(loss)(w), "data")

    judged(step).check()
