"""Objects as texts: what comes out is what went in, with its types, and nothing else gets through."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import pickle
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxpar.distributed._objects import from_text, to_text
from jaxpar.errors import LeafError

sys.path.insert(0, str(Path(__file__).parent / "gloo"))
from collective_cases import plain

ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
)
ARRAYS = hnp.arrays(
    hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.byte_string_dtypes(), hnp.array_shapes(min_dims=0)
)
OBJECTS = st.recursive(
    ATOMS | ARRAYS | ARRAYS.filter(lambda x: x.size > 0).map(lambda x: x.flat[0]),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.sets(ATOMS).map(frozenset)
        | st.dictionaries(ATOMS, inner)
    ),
    max_leaves=10,
)


def through(x: Any, allow_pickle: bool = False) -> Any:
    return from_text(to_text(x, "obj", allow_pickle), allow_pickle)


def same(x: Any, y: Any) -> bool:
    """Types, order and bytes; of a set its members."""
    if isinstance(x, frozenset) and type(x) is type(y):
        return sorted(map(plain, x)) == sorted(map(plain, y))
    if type(x) is type(y) and isinstance(x, list | tuple):
        return len(x) == len(y) and all(map(same, x, y))
    if type(x) is type(y) and isinstance(x, dict):
        return same(list(x), list(y)) and same(list(x.values()), list(y.values()))
    return plain(x) == plain(y)


@pytest.mark.full
@given(OBJECTS)
@example(np.arange(3, dtype=">f4"))
@example(np.array("2020-01-02", "M8[D]"))
def test_what_comes_out_is_what_went_in(x):
    assert same(through(x), x)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((1, 2), [1, 2]),
        (True, 1),
        (1.0, 1),
        (-0.0, 0.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.float32(1), np.float64(1)),
        (np.zeros(2, ">f4"), np.zeros(2, "<f4")),
        (frozenset({1}), frozenset({True})),
        (np.zeros((2, 0)), np.zeros((0, 2))),
    ],
)
def test_the_comparison_sees_what_is_alike(x, y):
    assert same(x, x)
    assert not same(x, y)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_ml_dtypes(dtype):
    x = np.arange(4).astype(getattr(ml_dtypes, dtype))
    for given_ in (x, x[1], jnp.asarray(x)):
        found = through({"x": given_})["x"]
        assert type(found) is type(given_)
        assert (found.dtype, np.asarray(found).tobytes()) == (x.dtype, np.asarray(given_).tobytes())


def test_jax_arrays_and_keys():
    found = through([jnp.arange(3.0), jax.random.key(7), jax.random.key(7, impl="rbg")])
    assert isinstance(found[0], jax.Array)
    assert found[0].tolist() == [0, 1, 2]
    assert found[1] == jax.random.key(7)
    assert str(jax.random.key_impl(found[2])) == "rbg"


def test_an_array_that_came_can_be_written_to():
    found = through(np.zeros(3))
    found[0] = 1
    assert found.tolist() == [1, 0, 0]


@dataclasses.dataclass
class Point:
    x: int


class Colour(enum.IntEnum):
    RED = 1


Pair = collections.namedtuple("Pair", "a b")
PICKLED = {
    "a class of one's own": Point(3),
    "a date": datetime.date(2020, 1, 2),
    "an enum, which is an int": Colour.RED,
    "a namedtuple, which is a tuple": Pair(1, 2),
    "an OrderedDict": collections.OrderedDict(a=1),
    "a dtype": np.dtype("f4"),
    "a matrix": np.ma.masked_array([1, 2], [0, 1]),
    "objects": np.array([Point(1), None]),
    "a structure": np.zeros(2, [("a", "f4"), ("b", "i4")]),
}


@pytest.mark.parametrize("what", PICKLED)
def test_what_only_pickle_can_send(what):
    x = {"in": [0, PICKLED[what]]}
    with pytest.raises(LeafError, match=r"^obj\['in'\]\[1\] is a .*, which only pickle can send\."):
        to_text(x, "obj", False)
    found = through(x, allow_pickle=True)["in"][1]
    assert type(found) is type(PICKLED[what])
    assert str(found) == str(PICKLED[what])


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def test_a_pickle_that_nobody_asked_for_is_not_loaded(monkeypatch):
    text = to_text(Bomb(), "obj", True)
    with pytest.raises(LeafError, match="nothing was loaded"):
        from_text(text, False)
    with pytest.raises(pytest.fail.Exception):  # and it would have been one
        from_text(text, True)


def endless() -> list:
    x: list = []
    x.append(x)
    return x


REFUSED = {
    "a list in itself": (endless(), "more than 200 levels"),
    "a function": (lambda: 0, "is a builtins.function"),
    "a key": ({Point: 1}, r"obj key <class .*Point'> is a builtins.type"),
    "a number without a text": (10**5000, "obj cannot be sent: ValueError: Exceeds the limit"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_sent(what):
    x, message = REFUSED[what]
    with pytest.raises(LeafError, match=message):
        to_text(x, "obj", False)


def test_what_cannot_be_pickled_either():
    with pytest.raises(LeafError, match=r"obj cannot be sent: (PicklingError|AttributeError)"):
        to_text([lambda: 0], "obj", True)
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)


def test_a_donated_array():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(LeafError, match=r"obj\[0\] was donated or deleted"):
        to_text([x], "obj", False)
