"""jaxpar.random.Generator against torch.Generator: every draw, every dtype, to the last bit."""

from __future__ import annotations

import copy
import dataclasses
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from bits import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.random import Generator

torch = pytest.importorskip("torch")

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8", "bool"]
SIZES = [0, 1, 2, 3, 7, 8, 9, 14, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 1000]
BOUNDS = [(0, 1), (-0.1, 0.1), (-0.037, 0.037), (0, 3.3), (-1.7, 0.3), (5, 5.001), (2, 2), (-1e-4, 1e3)]
MOMENTS = [(0, 1), (0, 0.02), (1.5, 0.3), (-3, 1e-3), (0, 0), (1, 0), (0.1, 100)]


def empty(n: Any, dtype: str) -> tuple[np.ndarray, Any]:
    import ml_dtypes  # noqa: F401  (NumPy learns bfloat16)

    return np.empty(n, dtype), torch.empty(n, dtype=getattr(torch, dtype))


@dataclasses.dataclass
class Pair:
    """Both generators, which draw side by side."""

    ours: Generator
    theirs: Any

    @classmethod
    def of(cls, seed: int) -> Pair:
        return cls(Generator(seed), torch.Generator().manual_seed(seed))

    def fill(self, method: str, n: Any, dtype: str, *args: Any) -> int:
        """An in-place method with the same arguments on both sides."""
        x, tensor = empty(n, dtype)
        assert getattr(self.ours, method)(x, *args) is x
        getattr(tensor, method)(*args, generator=self.theirs)
        return assert_same_bits(f"{method} {n} {dtype} {args}", x, tensor)

    def make(self, function: str, *args: Any, **options: Any) -> int:
        """A function that makes an array, with the same arguments on both sides."""
        theirs = options | ({"dtype": getattr(torch, options["dtype"])} if "dtype" in options else {})
        got = getattr(self.ours, function)(*args, **options)
        want = getattr(torch, function)(*args, **theirs, generator=self.theirs)
        return assert_same_bits(f"{function} {args} {options}", got, want)

    def bernoulli(self, p: np.ndarray, dtype: str) -> int:
        p = p.astype(np.float32).astype(dtype)
        tensor = torch.tensor(p.astype(np.float64)).to(getattr(torch, dtype))
        return assert_same_bits(
            f"bernoulli {dtype}", self.ours.bernoulli(p), torch.bernoulli(tensor, generator=self.theirs)
        )

    def check_states(self) -> None:
        assert_same_bits("state", self.ours.get_state(), self.theirs.get_state())


# -------------------------------------------------------------------------------------- every draw


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 1, 2**63 + 5, 2**64 - 1, -1, -(2**63)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_of_every_size_in_one_stream(dtype, seed):
    pair = Pair.of(seed)
    for n in SIZES:
        pair.make("rand", n, dtype=dtype)
        pair.make("randn", n, dtype=dtype)
        pair.fill("bernoulli_", n, dtype, 0.3)
        pair.bernoulli(np.linspace(0, 1, n), dtype)
        pair.check_states()


@pytest.mark.parametrize("dtype", FLOATS)
def test_bounds_and_moments(dtype):
    pair = Pair.of(3)
    for n in (5, 16, 1000):
        for bounds in BOUNDS:
            pair.fill("uniform_", n, dtype, *bounds)
        for moments in MOMENTS:
            pair.fill("normal_", n, dtype, *moments)
    pair.check_states()


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_integers(dtype):
    pair = Pair.of(4)
    pair.fill("random_", 999, dtype)
    pair.fill("random_", 999, dtype, 2)
    if dtype not in ("uint8", "bool"):
        pair.make("randint", -7, 100, (3, 5), dtype=dtype)
    pair.fill("bernoulli_", 99, dtype, 0.5)
    pair.check_states()


@pytest.mark.parametrize("span", [1, 10, 2**28 - 1, 2**28, 2**28 + 1, 2**32, 2**62, 2**63 - 1])
def test_wide_ranges(span):
    pair = Pair.of(5)
    pair.make("randint", span, (100,))
    for low in (-5, -(2**62), -(2**63), 2**63 - 1 - span):
        pair.make("randint", low, low + span, (100,))
    pair.make("randint", -(2**63), 2**63 - 1, (100,))
    pair.check_states()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 63, 64, 65, 66, 67, 100, 257, 1000, 5000, 20_011, 100_000])
def test_permutations(n):
    for seed in range(40 if n < 1000 else 5):
        pair = Pair.of(seed)
        pair.make("randperm", n)
        pair.check_states()


@pytest.mark.parametrize("dtype", ["int32", "int16", "float32", "float64", "float16"])
def test_permutations_of_other_dtypes(dtype):
    Pair.of(0).make("randperm", 1500, dtype=dtype)


@pytest.mark.full
def test_a_million_of_each_kind():
    pair, n = Pair.of(123), 1_000_003
    compared = 0
    for dtype in FLOATS:
        compared += pair.make("rand", n, dtype=dtype) + pair.make("randn", n, dtype=dtype)
    compared += pair.fill("uniform_", n, "float32", -0.2, 0.7) + pair.fill("normal_", n, "float32", 0.3, 0.7)
    compared += pair.make("randint", 1000, (n,)) + pair.make("randperm", n)
    compared += pair.fill("bernoulli_", n, "float32", 0.9)
    compared += pair.bernoulli(np.random.RandomState(0).rand(n), "float32")
    pair.check_states()
    assert compared == 14 * n


# --------------------------------------------------------------------------- sequences, memory order

N = st.integers(0, 70)
DRAWS = st.one_of(
    st.tuples(st.just("make"), st.sampled_from(["rand", "randn"]), N, st.sampled_from(FLOATS)),
    st.tuples(st.just("uniform_"), N, st.sampled_from(FLOATS), st.sampled_from(BOUNDS)),
    st.tuples(st.just("normal_"), N, st.sampled_from(FLOATS), st.sampled_from(MOMENTS)),
    st.tuples(st.just("randint"), N, st.integers(1, 2**40)),
    st.tuples(st.just("randperm"), st.integers(0, 200)),
    st.tuples(st.just("state")),
)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(-(2**63), 2**64 - 1), draws=st.lists(DRAWS, max_size=12))
def test_any_sequence_of_draws(seed, draws):
    pair = Pair.of(seed)
    for kind, *rest in draws:
        match kind:
            case "make":
                pair.make(rest[0], rest[1], dtype=rest[2])
            case "uniform_" | "normal_":
                pair.fill(kind, rest[0], rest[1], *rest[2])
            case "randint":
                pair.make("randint", rest[1], (rest[0],))
            case "randperm":
                pair.make("randperm", rest[0])
            case "state":
                pair.ours, pair.theirs = exchanged(pair)
    pair.check_states()


def exchanged(pair: Pair) -> tuple[Generator, Any]:
    """A generator here from torch's state, and one of torch's from the state here."""
    state = torch.from_numpy(pair.ours.get_state())
    ours, theirs = Generator(99), torch.Generator()
    theirs.set_state(state)
    return ours.set_state(pair.theirs.get_state()), theirs


VIEWS = {
    "transposed": lambda x: x.swapaxes(0, 1),
    "every other column": lambda x: x[:, ::2],
    "columns": lambda x: x[:, 1:],
    "rows": lambda x: x[3:],
    "transposed, every third": lambda x: x.swapaxes(0, 1)[::3],
    "an axis in the middle": lambda x: x[:, None, :].swapaxes(0, 2),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("method", ["uniform_", "normal_", "bernoulli_", "random_"])
def test_memory_order(method, view):
    pair = Pair.of(6)
    x, tensor = np.zeros((20, 30), np.float32), torch.zeros(20, 30)
    getattr(pair.ours, method)(VIEWS[view](x))
    getattr(VIEWS[view](tensor), method)(generator=pair.theirs)
    assert_same_bits(f"{method} {view}", x, tensor)
    pair.check_states()


@pytest.mark.parametrize("method", ["uniform_", "normal_"])
def test_channels_last(method):
    pair = Pair.of(7)
    x, tensor = np.zeros((4, 41, 43, 5), np.float32), torch.zeros(4, 41, 43, 5)
    getattr(pair.ours, method)(x.transpose(0, 3, 1, 2))
    getattr(tensor.permute(0, 3, 1, 2), method)(generator=pair.theirs)
    assert_same_bits("channels last", x, tensor)
    pair.check_states()


def test_bernoulli_broadcasts():
    pair = Pair.of(8)
    p = np.linspace(0, 1, 30)
    x, tensor = empty((20, 30), "float32")
    pair.ours.bernoulli_(x, p)
    tensor.bernoulli_(torch.tensor(p), generator=pair.theirs)
    assert_same_bits("bernoulli_", x, tensor)
    pair.ours.bernoulli_(x.T, p[:20])
    tensor.T.bernoulli_(torch.tensor(p[:20]), generator=pair.theirs)
    assert_same_bits("bernoulli_", x, tensor)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bernoulli_of_the_very_number_that_is_drawn(dtype):
    """u < p, and not u <= p."""
    drawn = Pair.of(4).ours.rand(50, dtype=dtype)
    for p, want in [(drawn, 0), (np.nextafter(drawn, np.asarray(1, dtype)), 1)]:
        pair = Pair.of(4)
        ours = pair.ours.bernoulli(p)
        assert_same_bits("bernoulli", ours, torch.bernoulli(torch.tensor(p), generator=pair.theirs))
        assert (ours == want).all()


def test_dropout():
    x = np.random.RandomState(0).randn(64, 100).astype(np.float32)
    torch.manual_seed(11)
    want = torch.nn.functional.dropout(torch.tensor(x), 0.3)
    mask = Generator(11).bernoulli_(np.empty_like(x), 1 - 0.3)
    assert_same_bits("dropout", x * (mask / np.float32(1 - 0.3)), want)


# ---------------------------------------------------------------------------------- seeds and states


def test_the_state_at_every_place_of_a_block():
    pair = Pair.of(12)
    for _ in range(2000):
        pair.check_states()
        pair.ours.words(1)
        torch.rand(1, generator=pair.theirs)


def test_drawing_nothing_leaves_the_state_of_a_new_generator():
    ours, theirs = Generator(5), torch.Generator().manual_seed(5)
    assert len(ours.words(0)) == 0
    for dtype in (np.float32, np.float64):
        ours.rand(0, dtype=dtype)
    torch.rand(0, generator=theirs)
    assert np.array_equal(ours.get_state(), theirs.get_state().numpy())
    ours.randn(0), torch.randn(0, generator=theirs)
    assert np.array_equal(ours.get_state(), theirs.get_state().numpy())


def test_the_waiting_number_survives_other_draws_and_a_copy():
    pair = Pair.of(13)
    pair.make("randn", 3)
    pair.make("rand", 5)
    pair.make("randn", 64)  # 16 and more do not touch it
    pair.ours = copy.deepcopy(pair.ours)
    pair.make("randn", 1)
    pair.check_states()


def test_seeds():
    generator = Generator()
    assert generator.initial_seed() == torch.Generator().initial_seed()
    assert generator.manual_seed(5) is generator
    assert repr(generator) == "Generator(initial_seed=5)"
    assert generator.manual_seed(-1).initial_seed() == torch.Generator().manual_seed(-1).initial_seed()
    assert generator.manual_seed(np.int64(7)).initial_seed() == 7
    first = generator.seed()
    assert first == generator.initial_seed() != generator.seed()


def test_draw_seed():
    pair = Pair.of(14)
    for _ in range(20):
        want = int(torch.empty((), dtype=torch.int64).random_(generator=pair.theirs))
        assert pair.ours.draw_seed() == want


@pytest.mark.slow
def test_numpy_is_all_it_needs():
    code = (
        "import sys; from jaxpar import random; random.Generator(0).randn(20); random.sampler_order(5, 0);"
        "print(sorted({'jax', 'flax', 'torch'} & set(sys.modules)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout == "[]\n"


# ------------------------------------------------------------------------------------------ refusals

REFUSED = {
    "rand, negative": (lambda g: g.rand(-1), lambda: torch.rand(-1)),
    "rand, int64": (lambda g: g.rand(3, dtype="int64"), lambda: torch.rand(3, dtype=torch.int64)),
    "randn, int64": (lambda g: g.randn(3, dtype="int64"), lambda: torch.randn(3, dtype=torch.int64)),
    "uniform_, from > to": (
        lambda g: g.uniform_(np.empty(3), 2, 1),
        lambda: torch.empty(3).uniform_(2, 1),
    ),
    "uniform_, too large": (
        lambda g: g.uniform_(np.empty(3, "f4"), 0, 1e39),
        lambda: torch.empty(3).uniform_(0, 1e39),
    ),
    "uniform_, half": (
        lambda g: g.uniform_(np.empty(3, "f2"), 0, 1e5),
        lambda: torch.empty(3, dtype=torch.float16).uniform_(0, 1e5),
    ),
    "uniform_, too wide": (
        lambda g: g.uniform_(np.empty(3, "f4"), -3e38, 3e38),
        lambda: torch.empty(3).uniform_(-3e38, 3e38),
    ),
    "uniform_, nan": (
        lambda g: g.uniform_(np.empty(3, "f4"), float("nan"), 1),
        lambda: torch.empty(3).uniform_(float("nan"), 1),
    ),
    "normal_, negative std": (
        lambda g: g.normal_(np.empty(3), 0, -1.5),
        lambda: torch.empty(3).normal_(0, -1.5),
    ),
    "normal_, nan": (
        lambda g: g.normal_(np.empty(3), 0, float("nan")),
        lambda: torch.empty(3).normal_(0, float("nan")),
    ),
    "bernoulli_, p > 1": (
        lambda g: g.bernoulli_(np.empty(3), 1.5),
        lambda: torch.empty(3).bernoulli_(1.5),
    ),
    "bernoulli_, nan": (
        lambda g: g.bernoulli_(np.empty(3), float("nan")),
        lambda: torch.empty(3).bernoulli_(float("nan")),
    ),
    "bernoulli, p > 1": (
        lambda g: g.bernoulli(np.array([2.0])),
        lambda: torch.bernoulli(torch.tensor([2.0])),
    ),
    "bernoulli, int64": (lambda g: g.bernoulli(np.array([1])), lambda: torch.bernoulli(torch.tensor([1]))),
    "randint, empty": (lambda g: g.randint(5, 5, (2,)), lambda: torch.randint(5, 5, (2,))),
    "randint, nothing below 0": (lambda g: g.randint(0, size=(2,)), lambda: torch.randint(0, (2,))),
    "randint, uint8": (
        lambda g: g.randint(0, 300, (2,), dtype="uint8"),
        lambda: torch.randint(0, 300, (2,), dtype=torch.uint8),
    ),
    "randint, from": (
        lambda g: g.randint(-1, 3, (2,), dtype="uint8"),
        lambda: torch.randint(-1, 3, (2,), dtype=torch.uint8),
    ),
    "randperm, negative": (lambda g: g.randperm(-1), lambda: torch.randperm(-1)),
    "randperm, half": (
        lambda g: g.randperm(3000, dtype="float16"),
        lambda: torch.randperm(3000, dtype=torch.float16),
    ),
    "expanded": (
        lambda g: g.uniform_(np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,))),
        lambda: torch.zeros(1).expand(3).uniform_(),
    ),
    "a float seed": (lambda g: g.manual_seed(1.5), lambda: torch.Generator().manual_seed(1.5)),
    "a bool seed": (lambda g: g.manual_seed(True), lambda: torch.Generator().manual_seed(True)),
    "a large seed": (lambda g: g.manual_seed(2**64), lambda: torch.Generator().manual_seed(2**64)),
    "a small seed": (
        lambda g: g.manual_seed(-(2**63) - 1),
        lambda: torch.Generator().manual_seed(-(2**63) - 1),
    ),
    "a short state": (
        lambda g: g.set_state(np.zeros(3, np.uint8)),
        lambda: torch.Generator().set_state(torch.zeros(3, dtype=torch.uint8)),
    ),
    "a state of zeros": (
        lambda g: g.set_state(np.zeros(5056, np.uint8)),
        lambda: torch.Generator().set_state(torch.zeros(5056, dtype=torch.uint8)),
    ),
    "a state of floats": (
        lambda g: g.set_state(np.zeros(5056)),
        lambda: torch.Generator().set_state(torch.zeros(5056)),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_as_torch_refuses(case):
    ours, theirs = REFUSED[case]
    with pytest.raises((RuntimeError, ValueError, TypeError)) as want:
        theirs()
    generator = Generator(1)
    with pytest.raises(want.type) as got:
        ours(generator)
    if "state of floats" not in case:  # torch's words there are about C++'s types
        assert str(want.value).split("  (")[0].splitlines()[0] in str(got.value)
    assert generator.words(1) == Generator(1).words(1), "it has drawn before it refused"


def test_refused_here_only():
    g = Generator(0)
    with pytest.raises(NotImplementedError, match=r"randperm: n=214748364; from 214748364 on"):
        g.randperm(214_748_364)
    with pytest.raises(RuntimeError, match=r"^n cannot be greater than 255 for Byte type\.(\n|$)"):
        g.randperm(256, dtype="uint8")
    with pytest.raises(TypeError, match="expected a numpy array to fill, but got list"):
        g.bernoulli_([1.0])
    with pytest.raises(ValueError, match="the array to fill is read-only"):
        g.uniform_(np.broadcast_to(np.float32(0), ()))
    # torch warns that this will become an error.
    with pytest.raises(RuntimeError, match="to - 1 is out of bounds for float"):
        g.randint(0, 2**25, (3,), dtype="float32")
    with pytest.raises(NotImplementedError, match="not implemented for 'complex64'"):
        g.random_(np.empty(3, np.complex64))


# ----------------------------------------------------------------------------------- planted faults

FAULTS = {
    "one bit": lambda x: np.where(np.arange(x.size) == 70, np.nextafter(x, np.float32(9)), x),
    "a sign of zero": lambda x: np.where(np.arange(x.size) == 3, np.float32(0), np.float32(-0.0)),
    "another dtype": lambda x: x.astype(np.float64),
    "another shape": lambda x: x[:-1],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    want = torch.rand(100, generator=torch.Generator().manual_seed(0))
    if fault == "a sign of zero":
        want = torch.zeros(100)
    with pytest.raises(AssertionError, match="planted"):
        assert_same_bits("planted", FAULTS[fault](Generator(0).rand(100)), want)
