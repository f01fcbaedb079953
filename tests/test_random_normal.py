"""The normal numbers' logarithm, sine and cosine: all that torch's AVX2 kernel can be asked for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from bits import assert_same_bits

from jaxpar.random import _normal
from jaxpar.random._state import State, to_bytes
from jaxpar.random._uniform import fma

torch = pytest.importorskip("torch")

BLOCKS = 38
"""Of 16 words each; a state of torch's generator has 624 words, and the first is kept free."""


def untempered(words: np.ndarray) -> np.ndarray:
    """What a state must hold so that the generator gives these words (MT19937's tempering undone)."""
    y = words.astype(np.uint32)
    y = y ^ (y >> np.uint32(18))
    y = y ^ ((y << np.uint32(15)) & np.uint32(0xEFC60000))
    x = y
    for _ in range(5):
        x = y ^ ((x << np.uint32(7)) & np.uint32(0x9D2C5680))
    y = x
    for _ in range(3):
        x = y ^ (x >> np.uint32(11))
    return x


def theirs(words: np.ndarray) -> np.ndarray:
    """torch's normal numbers from words of our choice."""
    generator = torch.Generator()
    record = to_bytes(State(0, np.zeros(624, np.uint32), position=1, fresh=False, normal=None))
    state = torch.from_numpy(record)
    held = record[24 : 24 + 8 * 624].view(np.uint64)
    out = torch.empty(len(words))
    size = 16 * BLOCKS
    for start in range(0, len(words), size):
        held[1 : 1 + size] = untempered(words[start : start + size])
        generator.set_state(state)
        out[start : start + size].normal_(generator=generator)
    return out.numpy()


def ours(words: np.ndarray) -> np.ndarray:
    position = 0

    def take(n: int) -> np.ndarray:
        nonlocal position
        position += n
        return words[position - n : position]

    out = np.empty(len(words), np.float32)
    _normal.fill(take, out, 0, 1)
    return out


def chosen(radii: np.ndarray) -> np.ndarray:
    """Words of which the first eight of every 16 are these radii, and the others go over all angles."""
    angles = radii * 5_678_901 + 12_345  # an odd factor, so every angle once
    blocks = np.stack([radii.reshape(-1, 8), angles.reshape(-1, 8)], 1) % 2**24
    return blocks.reshape(-1).astype(np.uint64)


def compare(radii: np.ndarray) -> None:
    size = 8 * BLOCKS
    for start in range(0, len(radii), 1000 * size):
        words = chosen(np.resize(radii[start : start + 1000 * size], 1000 * size))
        assert_same_bits(f"radii from {start}", ours(words), theirs(words))


def test_the_ends_and_some_between():
    ends = np.concatenate([np.arange(2**15), 2**24 - 1 - np.arange(2**15), 2**23 + np.arange(-500, 500)])
    compare(np.concatenate([ends, np.random.RandomState(0).randint(0, 2**24, 200_000)]).astype(np.int64))


@pytest.mark.slow
def test_all_radii_and_all_angles():
    compare(np.arange(2**24))


def test_a_wrong_rounding_would_be_found(monkeypatch):
    monkeypatch.setattr(_normal, "_round", lambda x: x)
    with pytest.raises(AssertionError, match="radii from 0"):
        test_the_ends_and_some_between()


# -------------------------------------------------------------------------------- fused multiply-add


def exactly(a: float, b: float, c: float, dtype: type) -> float:
    """a * b + c by way of fractions, rounded once, ties to even."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if dtype is np.float64:
        return float(exact)
    near = np.float32(float(exact))
    around = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.int32)) & 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fused_rounds_once(dtype):
    random = np.random.RandomState(0)
    digits, n = np.finfo(dtype).nmant + 1, 5000
    a, b, c = (random.choice([-1, 1], n) * random.randint(0, 2**digits, n) * 2.0**-digits for _ in range(3))
    c = c * 2.0 ** random.randint(-60, 60, n)
    # Just below and just above the middle of two numbers, by less than twice the digits can hold.
    k = random.randint(digits // 2 + 3, digits, n // 2)
    sign = random.choice([-1, 1], n // 2)
    a[: n // 2], b[: n // 2] = 2.0**-digits * (1 + 2.0**-k), sign * (1 - 2.0**-k)
    c[: n // 2] = 1 + 2.0 ** (1 - digits) * random.randint(0, 4, n // 2)
    a, b, c = (x.astype(dtype) for x in (a, b, c))
    want = np.array([exactly(*abc, dtype) for abc in zip(a, b, c, strict=True)], dtype)
    assert_same_bits("fused", fma(a, b, c), torch.from_numpy(want))
    twice = (a.astype(np.float64) * b + c).astype(dtype)
    with pytest.raises(AssertionError, match="of 5000 numbers differ"):
        assert_same_bits("rounded twice", twice, torch.from_numpy(want))
