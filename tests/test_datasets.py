"""Data sets: rows, lengths, random numbers and errors are torch's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import jaxpar.data
from jaxpar.data import DataLoader
from jaxpar.random import Generator

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402


def rows_of(kit):
    """A data set class of this library or torch's: row i is (name, i)."""

    class Rows(kit.Dataset):
        def __init__(self, name, n):
            self.name, self.n = name, n

        def __len__(self):
            return self.n

        def __getitem__(self, i):
            if not 0 <= i < self.n:
                raise IndexError(i)
            return self.name, i

    return Rows


def together_of(kit):
    class Together(rows_of(kit)):
        asked: list = []  # noqa: RUF012

        def __getitems__(self, rows):
            self.asked.append(list(rows))
            return [(self.name, -i) for i in rows]

    return Together


def stream_of(kit):
    class Stream(kit.IterableDataset):
        def __init__(self, *rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __iter__(self):
            return iter(self.rows)

    return Stream


def concat(kit):
    Rows = rows_of(kit)
    return kit.ConcatDataset([Rows("a", 3), Rows("none", 0), Rows("b", 1), Rows("c", 4)])


CASES = {
    "concat": concat,
    "sum": lambda kit: rows_of(kit)("a", 2) + rows_of(kit)("b", 3) + [("c", 10), ("d", 20)],
    "subset": lambda kit: kit.Subset(rows_of(kit)("a", 9), [3, 1, 1, 8]),
    "subset of a subset": lambda kit: kit.Subset(kit.Subset(rows_of(kit)("a", 9), [3, 1, 8]), [2, 0]),
    "subset by many": lambda kit: kit.Subset(together_of(kit)("a", 9), [3, 1, 8]),
    "subset of a concat": lambda kit: kit.Subset(concat(kit), range(0, 8, 3)),
    "stack": lambda kit: kit.StackDataset(rows_of(kit)("a", 3), [10, 20, 30]),
    "stack by many": lambda kit: kit.StackDataset(rows_of(kit)("a", 3), together_of(kit)("b", 3)),
    "named stack": lambda kit: kit.StackDataset(x=rows_of(kit)("a", 3), y=together_of(kit)("b", 3)),
}


def plain(kit, make):
    """Every row, all of them at once, the length, and what a loader makes of it."""
    dataset = make(kit)
    n = len(dataset)
    many = getattr(dataset, "__getitems__", lambda rows: [dataset[i] for i in rows])
    loader = [_lists(batch) for batch in kit.DataLoader(dataset, 2)]
    return n, [dataset[i] for i in range(n)], many(list(range(n))), loader


def _lists(x):
    if isinstance(x, dict):
        return {key: _lists(value) for key, value in x.items()}
    return [_lists(v) for v in x] if isinstance(x, (list, tuple)) else np.asarray(x).tolist()


@pytest.mark.parametrize("case", CASES)
def test_rows_are_torchs(case):
    assert plain(jaxpar.data, CASES[case]) == plain(data, CASES[case])


def test_a_wrong_row_is_found():
    wrong = lambda kit: kit.Subset(rows_of(kit)("a", 9), [3, 1, 1, 8 if kit is data else 7])  # noqa: E731
    assert plain(jaxpar.data, wrong) != plain(data, wrong)


@pytest.mark.parametrize("i", [-8, -5, -1, 0, 2, 3, 7])
def test_a_row_of_a_concat_counted_from_either_end(i):
    assert concat(jaxpar.data)[i] == concat(data)[i]


def test_a_concat_ends_and_knows_its_sizes():
    ours, theirs = concat(jaxpar.data), concat(data)
    assert list(ours) == list(theirs)
    assert ours.cumulative_sizes == theirs.cumulative_sizes
    assert list(jaxpar.data.ConcatDataset.cumsum(["ab", "c"])) == data.ConcatDataset.cumsum(["ab", "c"])


def test_a_subset_takes_a_list():
    for kit in (jaxpar.data, data):
        assert kit.Subset(np.arange(10) * 2, [3, 1, 8])[[0, 2]].tolist() == [6, 16]


@pytest.mark.parametrize("n", [0, 2])
def test_chains(n):
    def chains(kit):
        Stream = stream_of(kit)
        return kit.ChainDataset([Stream(1, 2), Stream(), Stream(3)]), Stream(1) + Stream(2, 3)

    for ours, theirs in zip(chains(jaxpar.data), chains(data), strict=True):
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)
        got = [b.tolist() for b in DataLoader(ours, 2, num_workers=n)]
        assert got == [b.tolist() for b in data.DataLoader(theirs, 2)]


# ------------------------------------------------------------------------------------- random_split

LENGTHS = [
    (10, [3, 7]),
    (10, [10]),
    (10, [0, 10, 0]),
    (0, []),
    (30, [0.3, 0.3, 0.4]),
    (29, [0.5, 0.25, 0.25]),
    (31, [0.9, 0.05, 0.05]),
    (7, [1.0]),
    (7, [1]),
    (1000, [0.1] * 10),
    (2, [0.4, 0.3, 0.3]),
]


@pytest.mark.parametrize(("n", "lengths"), LENGTHS, ids=str)
def test_random_split(n, lengths):
    def indices(kit, **draw):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            parts = kit.random_split(range(n), lengths, **draw)
        return [list(part.indices) for part in parts], [(w.category, str(w.message)) for w in said]

    for seed in (0, 7):
        ours, theirs = Generator(seed), torch.Generator().manual_seed(seed)
        want = outcome(lambda theirs=theirs: indices(data, generator=theirs))
        assert outcome(lambda ours=ours: indices(jaxpar.data, generator=ours)) == want
        assert np.array_equal(ours.get_state(), theirs.get_state().numpy())
        torch.manual_seed(seed)
        assert outcome(lambda seed=seed: indices(jaxpar.data, seed=seed)) == outcome(lambda: indices(data))


def outcome(call):
    """What it returns, or the class and the first sentence of what it raises."""
    try:
        return call()
    except ValueError as error:
        return type(error), str(error).partition("!")[0]


def test_the_subsets_of_a_split_are_of_the_data_set():
    (a, b) = jaxpar.data.random_split(rows_of(jaxpar.data)("a", 5), [2, 3], seed=1)
    assert {*a, *b} == {("a", i) for i in range(5)}
    assert (len(a), len(b)) == (2, 3)


def test_a_split_of_arrays_is_looked_up_at_once(monkeypatch):
    arrays = np.arange(40.0).reshape(20, 2), np.arange(20)
    tensors = data.TensorDataset(*map(torch.from_numpy, arrays))
    (theirs, _) = data.random_split(tensors, [15, 5], torch.Generator().manual_seed(3))
    want = [_lists(b) for b in data.DataLoader(data.Subset(theirs, range(0, 15, 2)), 3)]
    monkeypatch.setattr(jaxpar.data.TensorDataset, "__getitem__", None)
    (ours, _) = jaxpar.data.random_split(jaxpar.data.TensorDataset(*arrays), [15, 5], Generator(3))
    inner = jaxpar.data.Subset(ours, range(0, 15, 2))
    assert [_lists(b) for b in DataLoader(inner, 3)] == want
    assert [b[0].shape for b in DataLoader(inner, batch_sampler=[[], [0]])] == [(0, 2), (1, 2)]


# ---------------------------------------------------------------------------------------- bad input


def _own_row(kit):
    class Own(kit.Subset):
        def __getitem__(self, i):
            return i

    return Own([1, 2], [0])


def _short(kit):
    class Short(together_of(kit)):
        def __getitems__(self, rows):
            return [0]

    return kit.StackDataset(Short("a", 3)).__getitems__([0, 1])


BAD = {
    "no row": lambda kit: kit.Dataset()[0],
    "a concat of nothing": lambda kit: kit.ConcatDataset([]),
    "a concat of streams": lambda kit: kit.ConcatDataset([stream_of(kit)(1)]),
    "before a concat": lambda kit: concat(kit)[-9],
    "beyond a concat": lambda kit: concat(kit)[8],
    "a chain of rows": lambda kit: list(kit.ChainDataset([rows_of(kit)("a", 1)])),
    "the length of a chain of rows": lambda kit: len(kit.ChainDataset([rows_of(kit)("a", 1)])),
    "the length of a stream without": lambda kit: len(kit.ChainDataset([kit.IterableDataset()])),
    "a stack of nothing": lambda kit: kit.StackDataset(),
    "a stack of both": lambda kit: kit.StackDataset([1], x=[1]),
    "a stack of two lengths": lambda kit: kit.StackDataset([1], [1, 2]),
    "a named stack of two lengths": lambda kit: kit.StackDataset(a=[1], b=[1, 2]),
    "too few rows": _short,
    "half of a subset": _own_row,
    "lengths that do not add up": lambda kit: kit.random_split(range(10), [3, 8]),
    "fractions above 1": lambda kit: kit.random_split(range(10), [0.6, 0.6]),
    "a fraction below 0": lambda kit: kit.random_split(range(10), [-0.5, 1.5]),
    "lengths of text": lambda kit: kit.random_split(range(10), "ab"),
    "lengths with a point": lambda kit: kit.random_split(range(10), [5.0, 5.0]),
    "no length": lambda kit: kit.random_split(iter("ab"), [1, 1]),
}
OWN_WORDS = {"lengths of text", "lengths with a point", "the length of a stream without"}
"""Python's own errors, which name torch's types."""


@pytest.mark.parametrize("case", BAD)
def test_refused_as_torch_refuses(case):
    with pytest.raises(Exception) as want:  # noqa: PT011
        BAD[case](data)
    with pytest.raises(want.type) as got:
        BAD[case](jaxpar.data)
    assert got.type is want.type
    assert case in OWN_WORDS or str(want.value) in str(got.value)


def test_a_length_below_0_is_refused():
    """torch gives one row to both subsets and another to none."""
    parts = data.random_split(range(10), [-1, 11], torch.Generator().manual_seed(0))
    assert len({i for part in parts for i in part}) != 11
    with pytest.raises(ValueError, match=r"random_split: the lengths are \[-1, 11\]"):
        jaxpar.data.random_split(range(10), [-1, 11])


def test_torchs_own_data_sets_are_taken():
    """Also beside ours, and known as streams."""
    ours = jaxpar.data.ConcatDataset([data.TensorDataset(torch.arange(3)), rows_of(data)("a", 2)])
    assert [row[0] for row in ours] == [0, 1, 2, "a", "a"]
    assert list(jaxpar.data.ChainDataset([stream_of(data)(1), stream_of(jaxpar.data)(2)])) == [1, 2]
    with pytest.raises(AssertionError, match="does not support IterableDataset"):
        jaxpar.data.ConcatDataset([stream_of(data)(1)])


def test_generic_as_torchs():
    class Images(jaxpar.data.Dataset[np.ndarray]):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return np.full(2, i)

    assert [b.tolist() for b in DataLoader(Images(), 2)] == [[[0, 0], [1, 1]]]
