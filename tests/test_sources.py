"""Where batches of train_step and prefetch may come from: loaders of others, and rows as they have them."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar import errors
from jaxpar.data import DataLoader, Dataset, TensorDataset, prefetch

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

X = np.random.default_rng(0).standard_normal((24, 4))
Y = X.sum(1, keepdims=True)


class Rows:
    """Rows by name, one or many at a time, as the data sets of Hugging Face have them."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns["x"])

    def __getitem__(self, i):
        return {name: column[i] for name, column in self.columns.items()}

    def __getitems__(self, rows):
        return [self[i] for i in rows]

    def iter(self, batch_size):
        return (self[slice(i, i + batch_size)] for i in range(0, len(self), batch_size))


class Places:
    """An iterator whose place can be saved, as Grain's."""

    def __init__(self, rows):
        self.rows, self.place = rows, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.place == len(self.rows):
            raise StopIteration
        self.place += 1
        return self.rows[self.place - 1]

    def get_state(self):
        return self.place


def theirs(**options):
    return data.DataLoader(data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), 8, **options)


SOURCES = {
    "torch's DataLoader": theirs,
    "torch's DataLoader of dicts": lambda: data.DataLoader(Rows({"x": X, "y": Y}), 8),
    "torch's data set": lambda: DataLoader(data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), 8),
    "DataLoader": lambda: DataLoader(TensorDataset(X, Y), 8),
    "DataLoader of dicts": lambda: DataLoader(Rows({"x": X, "y": Y}), 8),
    "batches of dicts": lambda: Rows({"x": X, "y": Y}).iter(8),
    "an iterator with places": lambda: Places([(X[i : i + 8], Y[i : i + 8]) for i in range(0, 24, 8)]),
    "a generator of lists": lambda: ([X[i : i + 8], torch.from_numpy(Y[i : i + 8])] for i in range(0, 24, 8)),
}


def trained(batches, wrap):
    """Losses and weights of an epoch."""
    net = wrap(nnx.Linear(4, 1, param_dtype=np.float64, rngs=nnx.Rngs(0)))
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, lambda net, x, y: ((net(x) - y) ** 2).mean())
    losses = [float(step(**b) if isinstance(b, dict) else step(*b)) for b in batches]
    return losses, [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(nnx.state(net, nnx.Param))]


WRAPS = {"plain": (lambda net: net, 0), "DataParallel": (jaxpar.DataParallel, None)}
"""What is done with the network, and where its batches belong."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_source_trains_as_arrays_do(source, wrap):
    wrapped, where = WRAPS[wrap]
    want = trained([(X[i : i + 8], Y[i : i + 8]) for i in range(0, 24, 8)], wrapped)
    assert len(want[0]) == 3
    assert trained(SOURCES[source](), wrapped) == want
    assert trained(prefetch(SOURCES[source](), where), wrapped) == want


def test_another_order_is_found():
    plain, _ = WRAPS["plain"]
    assert trained(theirs(), plain) != trained(reversed(list(theirs())), plain)


def test_an_evaluation_takes_tensors():
    net = nnx.Linear(4, 1, param_dtype=np.float64, rngs=nnx.Rngs(0))
    evaluate = jaxpar.eval_step(net)
    (x, _), *_ = theirs()
    assert np.array_equal(evaluate(x), evaluate(X[:8]))


def test_what_a_tensor_cannot_give_is_said():
    net = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    evaluate = jaxpar.eval_step(net)
    with pytest.raises(RuntimeError, match="requires grad"):
        evaluate(torch.ones(2, 4, requires_grad=True))
    with pytest.raises(errors.RangeError), jax.enable_x64(False):
        evaluate(torch.full((2, 4), 2**40))


def test_grain():
    """Not in the suite's environment; run where it is installed."""
    grain = pytest.importorskip("grain")
    rows = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]
    plain, where = WRAPS["plain"]
    want = trained(SOURCES["DataLoader of dicts"](), plain)
    make = lambda: grain.MapDataset.source(rows).batch(8)  # noqa: E731
    assert trained(make(), plain) == want
    assert trained(prefetch(make().to_iter_dataset(), where), plain) == want
    loader = prefetch(make().to_iter_dataset())
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [np.asarray(b["x"]).tolist() for b in batches]
    other = prefetch(make().to_iter_dataset())
    other.load_state_dict(state)
    assert [np.asarray(b["x"]).tolist() for b in other] == rest == [X[8:16].tolist(), X[16:].tolist()]


class Tokens(Dataset):
    """Texts of unequal length as numbers, which a collate function pads."""

    texts = ("a b", "c", "d e f g", "h i j")

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"input_ids": np.array([ord(c) for c in self.texts[i].split()])}


def test_a_collate_function_pads():
    from torch.nn.utils.rnn import pad_sequence

    def ours(rows):
        longest = max(len(row["input_ids"]) for row in rows)
        return np.stack([np.pad(row["input_ids"], (0, longest - len(row["input_ids"]))) for row in rows])

    want = data.DataLoader(
        Tokens(), 2, collate_fn=lambda rows: pad_sequence([torch.tensor(r["input_ids"]) for r in rows], True)
    )
    got = DataLoader(Tokens(), 2, collate_fn=ours)
    assert [b.tolist() for b in got] == [b.tolist() for b in want]
