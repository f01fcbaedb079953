"""Samplers: the same rows as torch's, one by one, and generators that are left in the same place."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from processes import outputs, ranks

import jaxpar.data
from jaxpar.random import Generator

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

ROWS = [1, 2, 3, 7, 10, 31, 64, 100]


def twins(seed: int) -> tuple[Generator, torch.Generator]:
    return Generator(seed), torch.Generator().manual_seed(seed)


def same_place(ours: Generator, theirs: torch.Generator) -> bool:
    return np.array_equal(ours.get_state(), theirs.get_state().numpy())


def fuzz(cases: int) -> list[tuple[int, int]]:
    """(n, seed) of many data sets."""
    random = np.random.default_rng(0)
    return [(int(random.integers(1, 120)), int(random.integers(2**40))) for _ in range(cases)]


RANDOM = [{}, {"num_samples": 3}, {"num_samples": 250}, {"replacement": True}]
RANDOM += [{"replacement": True, "num_samples": k} for k in (1, 31, 32, 33, 100)]


@pytest.mark.parametrize("options", RANDOM, ids=str)
def test_random_sampler(options):
    for n, seed in fuzz(60):
        ours, theirs = twins(seed)
        mine = jaxpar.data.RandomSampler(range(n), **options, generator=ours)
        twin = data.RandomSampler(range(n), **options, generator=theirs)
        assert len(mine) == len(twin)
        for _ in range(2):
            assert list(mine) == list(twin)
        assert same_place(ours, theirs)


# docs/semantics.md section 2.4: without a generator, each epoch makes one, of a number from the default one
@pytest.mark.parametrize("options", RANDOM, ids=str)
def test_a_seed_stands_for_the_default_generator(options):
    torch.manual_seed(4)
    default = Generator(4)
    mine = [jaxpar.data.RandomSampler(range(n), **options, seed=default) for n in (10, 20)]
    twin = [data.RandomSampler(range(n), **options) for n in (10, 20)]
    for i in (0, 1, 0, 0, 1):
        assert list(mine[i]) == list(twin[i])
    assert np.array_equal(default.get_state(), torch.get_rng_state().numpy())
    torch.manual_seed(5)
    assert list(jaxpar.data.RandomSampler(range(9), seed=5)) == list(data.RandomSampler(range(9)))


@pytest.mark.parametrize("options", RANDOM, ids=str)
@pytest.mark.parametrize("taken", [0, 1, 10, 11, 20])
def test_an_epoch_left_early_leaves_the_generator_where_torch_does(options, taken):
    ours, theirs = twins(3)
    for sampler in (
        jaxpar.data.RandomSampler(range(10), **options, generator=ours),
        data.RandomSampler(range(10), **options, generator=theirs),
    ):
        list(itertools.islice(sampler, taken))
    assert same_place(ours, theirs)


def test_subset_random_sampler():
    rows = [5, 3, 8, 8, 0]
    ours, theirs = twins(7)
    mine, twin = (
        jaxpar.data.SubsetRandomSampler(rows, ours),
        data.SubsetRandomSampler(rows, generator=theirs),
    )
    assert [list(mine), list(mine), len(mine)] == [list(twin), list(twin), len(twin)]
    torch.manual_seed(8)
    assert list(jaxpar.data.SubsetRandomSampler(rows, seed=8)) == list(data.SubsetRandomSampler(rows))
    assert list(jaxpar.data.SubsetRandomSampler([])) == []


@pytest.mark.parametrize("replacement", [True, False])
def test_weighted_random_sampler(replacement):
    random = np.random.default_rng(1)
    for n, seed in fuzz(200):
        weights = random.random(n) * 10.0 ** random.integers(-3, 4, n)
        weights[random.random(n) < 0.2] = 0
        weights[0] = 0.5
        most = 70 if replacement else np.count_nonzero(weights)
        k = int(random.integers(1, most + 1))
        ours, theirs = twins(seed)
        mine = jaxpar.data.WeightedRandomSampler(weights, k, replacement, ours)
        twin = data.WeightedRandomSampler(weights, k, replacement, theirs)
        for _ in range(2):
            assert list(mine) == list(twin), (n, seed)
        assert len(mine) == len(twin)
        assert same_place(ours, theirs)


def test_weights_whose_sum_overflows():
    """Inf by inf is NaN, which is above every number that is looked up."""
    torch.manual_seed(0)
    want = list(data.WeightedRandomSampler([1e308, 1e308, 1.0], 6))
    assert list(jaxpar.data.WeightedRandomSampler([1e308, 1e308, 1.0], 6, seed=0)) == want


def test_weights_equal_to_each_other_and_many():
    for n in (1000, 20_000):
        for replacement in (True, False):
            ours, theirs = twins(n)
            want = data.WeightedRandomSampler([1.0] * n, n // 2, replacement, theirs)
            assert list(jaxpar.data.WeightedRandomSampler([1.0] * n, n // 2, replacement, ours)) == list(want)


def test_exponential_numbers_have_torchs_bits():
    """The order of rows would not tell the last bit, except once in a million million."""
    from jaxpar.random._multinomial import exponential

    ours, theirs = twins(3)
    want = torch.empty(10_000, dtype=torch.float64).exponential_(generator=theirs).numpy()
    assert np.array_equal(exponential(10_000, ours), want)
    assert not np.array_equal(-np.log(1 - Generator(3).rand(10_000, dtype=np.float64)), want)


def test_weights_of_zero_are_not_drawn():
    with pytest.raises(RuntimeError, match="2 of 2 columns cannot be drawn from 1 positive weights"):
        list(jaxpar.data.WeightedRandomSampler([0, 1], 2, False))


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("n", [0, *ROWS])
def test_batch_sampler(n, drop_last):
    for size in (1, 2, 3, 7, 10, 101):
        mine = jaxpar.data.BatchSampler(jaxpar.data.SequentialSampler(range(n)), size, drop_last)
        twin = data.BatchSampler(data.SequentialSampler(range(n)), size, drop_last)
        assert list(mine) == list(twin)
        assert len(mine) == len(twin) == len(list(mine))
    assert list(jaxpar.data.BatchSampler(iter("abcde"), 2, drop_last)) == list(
        data.BatchSampler(iter("abcde"), 2, drop_last)
    )


# docs/semantics.md section 2.4: 6,912 combinations
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 7, 8, 10, 64])
def test_distributed_sampler(n):
    for R, shuffle, drop_last, seed in itertools.product((1, 2, 3, 8), (True, False), (True, False), (0, 3)):
        for rank in range(R):
            options = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
            mine = jaxpar.data.DistributedSampler(range(n), R, rank, **options)
            twin = data.DistributedSampler(range(n), R, rank, **options)
            for epoch in (0, 1, 7):
                mine.set_epoch(epoch)
                twin.set_epoch(epoch)
                assert list(mine) == list(twin)
            assert (len(mine), mine.num_samples, mine.total_size) == (
                len(twin),
                twin.num_samples,
                twin.total_size,
            )


def test_a_data_set_that_has_grown():
    rows = [0] * 4
    samplers = [kind(rows, 2, 0) for kind in (jaxpar.data.DistributedSampler, data.DistributedSampler)]
    rows += [0] * 5
    for sampler in samplers:
        with pytest.raises(AssertionError, match="does not match"):
            list(sampler)


@pytest.mark.parametrize("interleaved", [True, False])
def test_every_row_is_evaluated_exactly_once(interleaved):
    for n, R in itertools.product(range(40), range(1, 10)):
        samplers = [jaxpar.data.EvaluationSampler(range(n), R, r, interleaved=interleaved) for r in range(R)]
        rows = [list(sampler) for sampler in samplers]
        counts = [len(sampler) for sampler in samplers]
        assert counts == [len(r) for r in rows]
        assert sorted(itertools.chain(*rows)) == list(range(n))
        assert max(counts) - min(counts) <= 1
        assert interleaved or list(itertools.chain(*rows)) == list(range(n))
    # The planted fault: torch's sampler repeats rows.
    assert sorted(itertools.chain(*(data.DistributedSampler(range(5), 2, r, False) for r in (0, 1)))) != [
        *range(5)
    ]


def test_a_mean_over_ranks_is_exact():
    losses = np.random.default_rng(0).random(10)
    pairs = [
        (losses[rows].sum(), len(rows))
        for rows in (list(jaxpar.data.EvaluationSampler(losses, 4, r)) for r in range(4))
    ]
    assert sum(s for s, _ in pairs) / sum(c for _, c in pairs) == pytest.approx(losses.mean(), abs=1e-15)


@pytest.mark.slow
def test_rank_and_replicas_are_those_of_the_group():
    script = """
        import jaxpar
        from jaxpar.data import DistributedSampler, EvaluationSampler
        jaxpar.distributed.init_process_group()
        print(list(DistributedSampler(range(5), shuffle=False)), list(EvaluationSampler(range(5))))
        jaxpar.distributed.destroy_process_group()
    """
    assert [out.strip() for out in outputs(ranks(2, script))] == [
        "[0, 2, 4] [0, 1, 2]",
        "[1, 3, 0] [3, 4]",
    ]


# ------------------------------------------------------------------------------------------- states


DRAWING = {
    "random": lambda seed: jaxpar.data.RandomSampler(range(10), seed=seed),
    "replacement": lambda seed: jaxpar.data.RandomSampler(range(10), True, 40, Generator(seed)),
    "subset": lambda seed: jaxpar.data.SubsetRandomSampler(range(10), seed=seed),
    "weighted": lambda seed: jaxpar.data.WeightedRandomSampler([1, 2, 3, 4], 9, seed=seed),
    "batches": lambda seed: jaxpar.data.BatchSampler(
        jaxpar.data.RandomSampler(range(10), seed=seed), 3, False
    ),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_states_go_through_json(kind):
    one, other = DRAWING[kind](0), DRAWING[kind](1)
    list(one)
    state = json.loads(json.dumps(one.state_dict()))
    want = [list(one), list(one)]
    assert [list(other), list(other)] != want
    other.load_state_dict(state)
    assert [list(other), list(other)] == want


def test_the_state_of_a_distributed_sampler():
    one, other = (jaxpar.data.DistributedSampler(range(10), 2, 1, seed=s) for s in (3, 3))
    one.set_epoch(4)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert list(other) == list(one)
    for field, (theirs, mine) in {
        "num_replicas": (2, 3),
        "shuffle": (True, False),
        "seed": (3, 4),
        "drop_last": (False, True),
    }.items():
        options = {"num_replicas": 2, "seed": 3} | {field: mine}
        another = jaxpar.data.DistributedSampler(range(10), rank=1, **options)
        with pytest.raises(
            ValueError, match=f"saved with {field}={theirs} and this sampler has {field}={mine}"
        ):
            another.load_state_dict(one.state_dict())


# ----------------------------------------------------------------------------------------- bad input

BAD = {
    "empty": lambda d: d.RandomSampler([]),
    "no samples": lambda d: d.RandomSampler([1], num_samples=0),
    "half a sample": lambda d: d.RandomSampler([1], num_samples=1.5),
    "replacement": lambda d: d.RandomSampler([1], 1),
    "no length": lambda d: d.RandomSampler(5),
    "nothing to permute": lambda d: list(d.RandomSampler([], num_samples=3)),
    "nothing to draw from": lambda d: list(d.RandomSampler([], True, 3)),
    "batch of 0": lambda d: d.BatchSampler([1], 0, False),
    "batch of -1": lambda d: d.BatchSampler([1], -1, False),
    "batch of True": lambda d: d.BatchSampler([1], True, False),
    "batch of 1.5": lambda d: d.BatchSampler([1], 1.5, False),
    "drop_last": lambda d: d.BatchSampler([1], 1, 1),
    "rank too high": lambda d: d.DistributedSampler([1], 4, 4),
    "rank below 0": lambda d: d.DistributedSampler([1], 4, -1),
    "no group": lambda d: d.DistributedSampler([1]),
    "no group for the rank": lambda d: d.DistributedSampler([1], 2),
    "no rows drawn": lambda d: d.WeightedRandomSampler([1], 0),
    "True rows drawn": lambda d: d.WeightedRandomSampler([1], True),
    "weighted replacement": lambda d: d.WeightedRandomSampler([1], 1, 1),
    "weights of two axes": lambda d: d.WeightedRandomSampler([[1.0, 2.0]], 1),
    "negative weight": lambda d: list(d.WeightedRandomSampler([-1, 2], 3)),
    "NaN weight": lambda d: list(d.WeightedRandomSampler([float("nan"), 2], 3)),
    "infinite weight": lambda d: list(d.WeightedRandomSampler([float("inf"), 2], 3)),
    "weights of zero": lambda d: list(d.WeightedRandomSampler([0, 0], 3)),
    "no weights": lambda d: list(d.WeightedRandomSampler([], 3)),
    "more than there are": lambda d: list(d.WeightedRandomSampler([1, 1], 3, False)),
    "negative weight, one row": lambda d: list(d.WeightedRandomSampler([-1, 2], 1)),
    "infinite weight, no replacement": lambda d: list(d.WeightedRandomSampler([float("inf"), 2], 1, False)),
    "weights of zero, no replacement": lambda d: list(d.WeightedRandomSampler([0, 0], 2, False)),
}


OWN_WORDS = {"no length"}
"""Python's own errors, which do not name the argument."""


@pytest.mark.parametrize("case", BAD)
def test_refused_as_torch_refuses(case):
    with pytest.raises(Exception) as want:  # noqa: PT011
        BAD[case](data)
    with pytest.raises(want.type) as got:
        BAD[case](jaxpar.data)
    assert got.type is want.type
    assert case in OWN_WORDS or str(got.value) == str(want.value)


def test_generators_of_torch_are_refused():
    with pytest.raises(TypeError, match=r"must be a jaxpar\.random\.Generator, not Generator.*get_state"):
        jaxpar.data.RandomSampler(range(3), generator=torch.Generator())
    with pytest.raises(ValueError, match="either generator or seed"):
        jaxpar.data.RandomSampler(range(3), generator=Generator(0), seed=0)
    with pytest.raises(TypeError, match="seed must be an int or a jaxpar"):
        jaxpar.data.RandomSampler(range(3), seed="0")
