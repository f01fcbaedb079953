"""Reversible moves: `backward` undoes `forward`, for every rearrangement and for lists of moves."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar._rulebook import kernel, same
from jaxpar.parity._weights.reversible import (
    Inverted,
    Move,
    Moves,
    OnlyRename,
    ReorderColumns,
    SplitAxis,
    TransposeAxes,
    UnstackAxis,
    empty,
    preceded,
)


def numbered(shape):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape)


def there_and_back(rearrangement, *arrays):
    """Raises AssertionError unless `backward` returns what `forward` was given, bit by bit."""
    moved = rearrangement.forward(*arrays)
    assert sorted(x for y in moved for x in y.ravel()) == sorted(x for y in arrays for x in y.ravel())
    for array, again in zip(arrays, rearrangement.backward(*moved), strict=True):
        np.testing.assert_array_equal(again, array, strict=True)
    return moved


@st.composite
def splits(draw):
    groups = draw(st.integers(1, 3))
    sizes = tuple(n * groups for n in draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    axis = draw(st.integers(0, len(shape)))
    shape.insert(axis, sum(sizes))
    negative = draw(st.booleans())
    return SplitAxis(axis - len(shape) if negative else axis, sizes, groups), numbered(shape)


@st.composite
def rearranged(draw):
    """A rearrangement, and arrays to which it applies."""
    kind = draw(
        st.sampled_from(["rename", "transpose", "columns", "split", "concatenate", "unstack", "stack"])
    )
    if kind in ("split", "concatenate"):
        split, array = draw(splits())
        return (split, [array]) if kind == "split" else (Inverted(split), list(split.forward(array)))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    if kind == "rename":
        return OnlyRename(), [numbered(shape), numbered(())]
    if kind == "columns":
        return ReorderColumns(shape), [numbered((draw(st.integers(1, 3)), np.prod(shape)))]
    if kind == "transpose":
        return TransposeAxes(tuple(draw(st.permutations(range(len(shape)))))), [numbered(shape)]
    unstack = UnstackAxis(draw(st.integers(-len(shape), len(shape) - 1)))
    array = numbered(shape)
    return (unstack, [array]) if kind == "unstack" else (Inverted(unstack), list(unstack.forward(array)))


@settings(deadline=None)
@given(rearranged())
def test_backward_undoes_forward(case):
    rearrangement, arrays = case
    there_and_back(rearrangement, *arrays)


@settings(deadline=None)
@given(rearranged(), st.data())
def test_moves_there_and_back(case, data):
    """Two stages next to arrays that no move reads; shapes without values, too."""
    rearrangement, arrays = case
    given_names = tuple(f"torch{i}" for i in range(len(arrays)))
    moved = rearrangement.forward(*arrays)
    between = tuple(f"between{i}" for i in range(len(moved)))
    names = tuple(data.draw(st.permutations([f"flax{i}" for i in range(len(moved))])))
    moves = Moves(([Move(given_names, between, rearrangement)], [Move(between, names, OnlyRename())]))
    torch = {"before": np.zeros(2), **dict(zip(given_names, arrays, strict=True)), "after": np.ones(3)}
    flax = moves.forward(torch)
    assert list(flax) == ["before", *names, "after"]
    again = moves.backward(flax)
    assert list(again) == list(torch)
    for name, array in torch.items():
        np.testing.assert_array_equal(again[name], array, strict=True)
    shapes = moves.forward_shapes({name: empty(x.shape, x.dtype) for name, x in torch.items()})
    assert {name: (x.shape, x.dtype) for name, x in shapes.items()} == {
        name: (x.shape, x.dtype) for name, x in flax.items()
    }
    backward = moves.backward_shapes(shapes)
    assert {name: x.shape for name, x in backward.items()} == {name: x.shape for name, x in torch.items()}


def test_names_that_overlap():
    """ "a" and "b" are exchanged: neither move reads the other's output."""
    moves = Moves(([same("a", "b"), same("b", "a")],))
    arrays = {"a": np.zeros(2), "b": np.ones(3)}
    assert {name: x.shape for name, x in moves.forward(arrays).items()} == {"b": (2,), "a": (3,)}
    assert {name: x.shape for name, x in moves.backward(arrays).items()} == {"b": (2,), "a": (3,)}


def test_a_part_preceded_by_a_rearrangement():
    part, weight = preceded(kernel(), TransposeAxes((1, 0))), numbered((2, 3))
    (leaf,) = part.forth([weight])
    np.testing.assert_array_equal(leaf, weight, strict=True)
    np.testing.assert_array_equal(part.back([leaf])[0], weight, strict=True)


class ForgetsGroups(SplitAxis):
    def backward(self, *arrays):
        return (np.concatenate(arrays, self.axis),)


class TransposesTwice(TransposeAxes):
    def backward(self, *arrays):
        return self.forward(*arrays)


class StacksInReverse(UnstackAxis):
    def backward(self, *arrays):
        return super().backward(*arrays[::-1])


PLANTED = {
    "groups": (ForgetsGroups(0, (4, 4), 2), numbered((8, 3))),
    "transpose": (TransposesTwice((1, 2, 0)), numbered((2, 2, 2))),
    "stack": (StacksInReverse(1), numbered((2, 3))),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name):
    rearrangement, array = PLANTED[name]
    with pytest.raises(AssertionError):
        there_and_back(rearrangement, array)
    right = type(rearrangement).__mro__[1](**dataclasses.asdict(rearrangement))
    there_and_back(right, array)
