"""multinomial: torch's columns, bit for bit, and its generator in the same place."""

from __future__ import annotations

import numpy as np
import pytest

from jaxpar import random
from jaxpar.random import _multinomial

torch = pytest.importorskip("torch")

# (rows, replacement)
TABLE = [(rows, replacement) for rows in ((), (1,), (4,)) for replacement in (True, False)]


def draws(dtype: str, rows: tuple[int, ...], replacement: bool, seed: int, k: int | None = None) -> tuple:
    """Weights, torch's columns of them and its generator's state."""
    numbers = np.random.default_rng(seed)
    n = int(numbers.integers(1, 200))
    weights = (numbers.random((*rows, n)) * 10.0 ** numbers.integers(-3, 4, (*rows, n))).astype(dtype)
    weights[numbers.random(weights.shape) < 0.2] = 0
    weights[..., 0] = 0.5
    k = k or int(numbers.integers(1, 1 + (300 if replacement else np.count_nonzero(weights, -1).min())))
    generator = torch.Generator().manual_seed(seed)
    want = torch.multinomial(torch.tensor(weights), k, replacement, generator=generator).numpy()
    return weights, k, want, generator.get_state().numpy()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "replacement"), TABLE)
def test_the_columns_are_torchs(dtype, rows, replacement):
    for seed in range(60):
        # One draw is torch's other method.
        weights, k, want, state = draws(dtype, rows, replacement, seed, 1 if seed % 6 == 0 else None)
        ours = random.Generator(seed)
        got = random.multinomial(weights, k, replacement, generator=ours)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert np.array_equal(got, want), seed
        assert np.array_equal(ours.get_state(), state)


def seeded(g: random.Generator) -> random.Generator:
    return random.Generator(g.initial_seed())


FAULTS = {
    "float64": (5000, lambda w, k, g: random.multinomial(w.astype("float64"), k, True, generator=g)),
    "by the sum": (1, lambda w, k, g: _multinomial._with_replacement(w, k, g)),
    "same draws": (
        9,
        lambda w, k, g: np.stack([random.multinomial(row, k, True, generator=seeded(g)) for row in w]),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    k, faulty = FAULTS[fault]
    weights = np.random.default_rng(0).random((4, 3000)).astype(np.float32)
    want = torch.multinomial(torch.tensor(weights), k, True, generator=torch.Generator().manual_seed(1))
    healthy = random.multinomial(weights, k, True, generator=random.Generator(1))
    assert np.array_equal(healthy, want.numpy())
    assert not np.array_equal(faulty(weights, k, random.Generator(1)), want.numpy())


def test_the_weights_decide_the_type_and_lists_are_float64():
    weights, k, want, _ = draws("float64", (), True, 3, 20)
    assert np.array_equal(random.multinomial(weights.tolist(), k, True, generator=random.Generator(3)), want)


# Equal quotients come about in float32: one in a hundred draws of some thousand columns.
@pytest.mark.parametrize("most", [1.0, 1 / 64], ids=["sort", "heap"])
def test_equal_values_have_torchs_order(most):
    numbers = np.random.default_rng(0)
    differs = 0
    for _ in range(300):
        n = int(numbers.integers(1, 600))
        k = int(numbers.integers(1, max(2, n * most + 1)))
        values = numbers.integers(0, numbers.integers(1, n + 2), n).astype(np.float32)
        want = torch.topk(torch.tensor(values), k).indices.numpy()
        assert np.array_equal(_multinomial.largest(values, k), want)
        differs += not np.array_equal(np.argsort(-values, kind="stable")[:k], want)
    assert differs > 30  # a stable order is not torch's


def test_a_draw_with_equal_quotients():
    """Of these seeds some have them: the columns are torch's all the same."""
    for seed in range(40):
        weights = np.random.default_rng(seed).random(4000).astype(np.float32)
        want = torch.multinomial(torch.tensor(weights), 4000, generator=torch.Generator().manual_seed(seed))
        got = random.multinomial(weights, 4000, generator=random.Generator(seed))
        assert np.array_equal(got, want.numpy())


REFUSED = {
    "three axes": (np.ones((1, 1, 2)), 1, True),
    "no axis": (np.float64(1), 1, True),
    "integers": (np.ones(2, np.int64), 1, True),
    "no draws": (np.ones(2), 0, True),
    "negative draws": (np.ones(2), -1, False),
    "more than there are": (np.ones(2), 3, False),
    "negative": (np.array([[1.0, 2.0], [1.0, -1.0]]), 2, True),
    "NaN": (np.array([1.0, np.nan]), 2, True),
    "infinite": (np.array([1.0, np.inf]), 2, True),
    "zeros in a row": (np.array([[1.0, 1.0], [0.0, 0.0]]), 2, True),
    "negative, one draw": (np.array([[1.0, 2.0], [1.0, -1.0]]), 1, True),
    "infinite, one draw": (np.array([1.0, np.inf]), 1, False),
    "zeros in a row, one draw": (np.array([[1.0, 1.0], [0.0, 0.0]]), 1, False),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_as_torch_refuses(case):
    weights, k, replacement = REFUSED[case]
    with pytest.raises(RuntimeError) as want:
        torch.multinomial(torch.tensor(weights), k, replacement)
    with pytest.raises(RuntimeError) as got:
        random.multinomial(weights, k, replacement, generator=random.Generator(0))
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"num_samples": 2.0}, TypeError, "num_samples is 2.0; it must be a whole number"),
        ({"num_samples": True}, TypeError, "num_samples is True; it must be a whole number"),
        ({"replacement": 1}, TypeError, "replacement is 1; it must be True or False"),
        ({"generator": 0}, TypeError, r"must be a jaxpar\.random\.Generator, not int"),
        (
            {"input": np.ones(2, np.float16)},
            NotImplementedError,
            "weights of float16; convert them to float32",
        ),
        ({"input": [0.0, 1.0]}, RuntimeError, "2 of 2 columns cannot be drawn from 1 positive"),
    ],
)
def test_refused_here(arguments, error, text):
    with pytest.raises(error, match=text):
        random.multinomial(
            **{"input": [1.0, 1.0], "num_samples": 2, "generator": random.Generator(0)} | arguments
        )
