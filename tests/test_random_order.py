"""The order of samplers and loaders against torch's own."""

from __future__ import annotations

import numpy as np
import pytest

from jaxpar.random import Generator, distributed_order, loader_order, sampler_order

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

SAMPLERS = [
    {},
    {"num_samples": 3},
    {"num_samples": 10},
    {"num_samples": 20},
    {"num_samples": 25},
    {"replacement": True},
    {"replacement": True, "num_samples": 32},
    {"replacement": True, "num_samples": 100},
]


@pytest.mark.parametrize("options", SAMPLERS, ids=str)
def test_random_sampler(options):
    theirs = torch.Generator().manual_seed(3)
    sampler = data.RandomSampler(range(10), **options, generator=theirs)
    ours = Generator(3)
    for _ in range(3):
        assert sampler_order(10, ours, **options).tolist() == list(sampler)
    assert np.array_equal(ours.get_state(), theirs.get_state())
    torch.manual_seed(4)
    default = Generator(4)
    for _ in range(2):
        want = list(data.RandomSampler(range(10), **options))
        assert sampler_order(10, default.draw_seed(), **options).tolist() == want


@pytest.mark.parametrize("n", [1, 7, 100])
def test_loader(n):
    rows = torch.arange(n)
    torch.manual_seed(5)
    loader = data.DataLoader(rows, batch_size=3, shuffle=True)
    default = Generator(5)
    for _ in range(3):
        want = torch.cat(list(loader)).tolist()
        assert loader_order(n, default).tolist() == want
    assert np.array_equal(default.get_state(), torch.get_rng_state())
    theirs, ours = torch.Generator().manual_seed(6), Generator(6)
    loader = data.DataLoader(rows, batch_size=3, shuffle=True, generator=theirs)
    for _ in range(3):
        assert loader_order(n, ours, given=True).tolist() == torch.cat(list(loader)).tolist()
    assert loader_order(n, 5).tolist() == loader_order(n, Generator(5)).tolist()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 10, 100])
def test_distributed_sampler(n):
    for replicas in (1, 2, 3, 8):
        for rank in range(replicas):
            for shuffle in (True, False):
                for drop_last in (True, False):
                    for seed, epoch in ((0, 0), (3, 0), (0, 3)):
                        options = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
                        sampler = data.DistributedSampler(range(n), replicas, rank, **options)
                        sampler.set_epoch(epoch)
                        got = distributed_order(n, replicas, rank, **options, epoch=epoch)
                        assert got.tolist() == list(sampler)
                        assert got.dtype == np.int64


def test_one_permutation_as_it_is():
    generator = torch.Generator().manual_seed(2)
    parts = data.random_split(range(10), [7, 3], generator=generator)
    subset = list(data.SubsetRandomSampler(range(10), generator=generator))
    g = Generator(2)
    assert g.randperm(10).tolist() == [*parts[0].indices, *parts[1].indices]
    assert g.randperm(10).tolist() == subset


REFUSED = [
    (lambda: sampler_order(0, 0), lambda: data.RandomSampler([])),
    (lambda: sampler_order(3, 0, num_samples=0), lambda: data.RandomSampler([1], num_samples=0)),
    (lambda: sampler_order(3, 0, num_samples=1.5), lambda: data.RandomSampler([1], num_samples=1.5)),
    (lambda: sampler_order(3, 0, replacement=1), lambda: data.RandomSampler([1], 1)),
    (lambda: loader_order(0, 0), lambda: data.DataLoader([], shuffle=True)),
    (lambda: distributed_order(3, 4, 4), lambda: data.DistributedSampler([1], 4, 4)),
    (lambda: distributed_order(3, 4, -1), lambda: data.DistributedSampler([1], 4, -1)),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refused_as_torch_refuses(case):
    ours, theirs = REFUSED[case]
    with pytest.raises((ValueError, TypeError)) as want:
        theirs()
    with pytest.raises(want.type) as got:
        ours()
    assert str(got.value) == str(want.value)
