"""Reversible moves: rearrangements of named arrays, each with its inverse.

The elements only change names and positions, so gradients are moved like values, except by parts of the
rulebook that treat them differently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..._rulebook import Part
from ..._typing import Shape

Arrays = dict[str, np.ndarray]
Several = tuple[np.ndarray, ...]


class Rearrangement(Protocol):
    """Permutes the elements of some arrays; `backward` is the inverse of `forward`."""

    def forward(self, *arrays: np.ndarray) -> Several: ...

    def backward(self, *arrays: np.ndarray) -> Several: ...


@dataclasses.dataclass(frozen=True)
class OnlyRename:
    def forward(self, *arrays: np.ndarray) -> Several:
        return arrays

    backward = forward


@dataclasses.dataclass(frozen=True)
class TransposeAxes:
    axes: tuple[int, ...]

    def forward(self, *arrays: np.ndarray) -> Several:
        return tuple(array.transpose(self.axes) for array in arrays)

    def backward(self, *arrays: np.ndarray) -> Several:
        return tuple(array.transpose(np.argsort(self.axes)) for array in arrays)


@dataclasses.dataclass(frozen=True)
class ReorderColumns:
    """A matrix (O, C*H*W) whose columns change to the order (H, W, C); `shape` is (C, H, W)."""

    shape: Shape

    def forward(self, *arrays: np.ndarray) -> Several:
        return tuple(np.moveaxis(x.reshape(-1, *self.shape), 1, -1).reshape(x.shape) for x in arrays)

    def backward(self, *arrays: np.ndarray) -> Several:
        C, *space = self.shape
        return tuple(np.moveaxis(x.reshape(-1, *space, C), -1, 1).reshape(x.shape) for x in arrays)


@dataclasses.dataclass(frozen=True)
class Reshape:
    torch: Shape
    flax: Shape

    def forward(self, *arrays: np.ndarray) -> Several:
        return tuple(x.reshape(self.flax) for x in arrays)

    def backward(self, *arrays: np.ndarray) -> Several:
        return tuple(x.reshape(self.torch) for x in arrays)


@dataclasses.dataclass(frozen=True)
class SplitAxis:
    """One array and its pieces: the axis has `groups` blocks, and each piece has a part of every block."""

    axis: int
    sizes: tuple[int, ...]
    groups: int = 1

    def forward(self, *arrays: np.ndarray) -> Several:
        (array,) = arrays
        axis, shape = self.axis % array.ndim, array.shape
        # With the blocks on an axis of their own, one np.split cuts all blocks at once, and each piece's
        # parts become contiguous when the two axes are merged again.
        blocks = array.reshape(*shape[:axis], self.groups, shape[axis] // self.groups, *shape[axis + 1 :])
        ends = np.cumsum(self.sizes)[:-1] // self.groups
        return tuple(
            piece.reshape(*shape[:axis], size, *shape[axis + 1 :])
            for piece, size in zip(np.split(blocks, ends, axis + 1), self.sizes, strict=True)
        )

    def backward(self, *arrays: np.ndarray) -> Several:
        axis = self.axis % arrays[0].ndim
        before, after = arrays[0].shape[:axis], arrays[0].shape[axis + 1 :]
        blocks = [x.reshape(*before, self.groups, x.shape[axis] // self.groups, *after) for x in arrays]
        return (np.concatenate(blocks, axis + 1).reshape(*before, sum(self.sizes), *after),)

    def fault(self, shape: Shape) -> str | None:
        if not -len(shape) <= self.axis < len(shape):
            return f"it has no axis {self.axis}"
        length = shape[self.axis]
        if length != sum(self.sizes) or any(size % self.groups for size in self.sizes):
            groups = f" in {self.groups} groups" if self.groups > 1 else ""
            return f"axis {self.axis} has {length}, which is not {' + '.join(map(str, self.sizes))}{groups}"
        return None


@dataclasses.dataclass(frozen=True)
class UnstackAxis:
    """One array and its slices along an axis, which the slices lack."""

    axis: int

    def forward(self, *arrays: np.ndarray) -> Several:
        (array,) = arrays
        return tuple(np.moveaxis(array, self.axis, 0))

    def backward(self, *arrays: np.ndarray) -> Several:
        return (np.stack(arrays, self.axis),)


@dataclasses.dataclass(frozen=True)
class Inverted:
    """A rearrangement in the opposite direction: concatenation for SplitAxis, stacking for UnstackAxis."""

    original: Rearrangement

    def forward(self, *arrays: np.ndarray) -> Several:
        return self.original.backward(*arrays)

    def backward(self, *arrays: np.ndarray) -> Several:
        return self.original.forward(*arrays)


@dataclasses.dataclass(frozen=True)
class Move:
    torch: tuple[str, ...]
    flax: tuple[str, ...]
    rearrangement: Rearrangement

    def forth(self, arrays: Iterable[np.ndarray], gradient: bool = False) -> Several:
        return self.rearrangement.forward(*arrays)

    def back(self, arrays: Iterable[np.ndarray], gradient: bool = False) -> Several:
        return self.rearrangement.backward(*arrays)


@dataclasses.dataclass(frozen=True)
class Moves:
    """Moves, and parts of the rulebook, in stages from torch's arrays to Flax's."""

    # The moves of a stage read the arrays before the stage, so that one move's output never hides an array of
    # the same name that a different move reads: torch's names and Flax's may overlap.

    stages: tuple[Sequence[Move | Part], ...]

    def forward(self, arrays: Mapping[str, np.ndarray], gradient: bool = False) -> Arrays:
        return self._run(arrays, False, lambda convert, inputs: convert(inputs, gradient))

    def backward(self, arrays: Mapping[str, np.ndarray], gradient: bool = False) -> Arrays:
        return self._run(arrays, True, lambda convert, inputs: convert(inputs, gradient))

    def forward_shapes(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Return `forward`'s names, with arrays that have shapes and types but no memory."""
        return self._run(arrays, False, _shapes_only)

    def backward_shapes(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        return self._run(arrays, True, _shapes_only)

    def _run(self, arrays: Mapping[str, np.ndarray], back: bool, call: Callable[..., Any]) -> Arrays:
        for stage in reversed(self.stages) if back else self.stages:
            # All moves of a stage read `arrays` and write `moved`, and several may read the same array: torch
            # may hold a tied weight under two names that are one leaf in Flax.
            conversions = [(m.flax, m.torch, m.back) if back else (m.torch, m.flax, m.forth) for m in stage]
            replaced = {name for inputs, _, _ in conversions for name in inputs}
            by_first: dict[str, list[tuple]] = {}
            for conversion in conversions:
                by_first.setdefault(conversion[0][0], []).append(conversion)
            moved: Arrays = {}
            for name, array in arrays.items():
                # Outputs take the position of the first input, so that `to_torch` returns torch's order.
                for inputs, outputs, convert in by_first.get(name, ()):
                    moved |= zip(outputs, call(convert, [arrays[n] for n in inputs]), strict=True)
                if name not in replaced:
                    moved[name] = array
            arrays = moved
        return dict(arrays)


def _shapes_only(convert: Callable[..., Several], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    # Concatenating allocates, so the conversion runs on one-byte elements and one move at a time.
    outputs = convert([empty(x.shape) for x in inputs])
    return [empty(x.shape, inputs[0].dtype) for x in outputs]


def empty(shape: Shape, dtype: Any = np.bool_) -> np.ndarray:
    """An array that occupies the memory of one element."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def preceded(part: Part, rearrangement: Rearrangement) -> Part:
    # Gradient conversions are kept: they exist for biases only, which no mapping rearranges.
    return dataclasses.replace(
        part,
        to_flax=lambda *arrays: part.to_flax(*rearrangement.forward(*arrays)),
        to_torch=lambda *leaves: rearrangement.backward(*part.to_torch(*leaves)),
    )


def joined(parts: Sequence[Part], torch: Sequence[Move], flax: Sequence[Move]) -> Part:
    moves = Moves((torch, parts, flax))
    from_torch = {name for move in torch for name in move.flax}
    to_flax = {leaf for move in flax for leaf in move.torch}
    names = [name for move in torch for name in move.torch]
    names += [name for part in parts for name in part.torch if name not in from_torch]
    leaves = [leaf for move in flax for leaf in move.flax]
    leaves += [leaf for part in parts for leaf in part.flax if leaf not in to_flax]
    names, leaves = list(dict.fromkeys(names)), list(dict.fromkeys(leaves))

    def conversion(inputs: list[str], outputs: list[str], run: Callable, gradient: bool) -> Callable:
        def convert(*arrays: np.ndarray) -> Several:
            moved = run(dict(zip(inputs, arrays, strict=True)), gradient)
            return tuple(moved[name] for name in outputs)

        return convert

    forth, gradient_forth = (conversion(names, leaves, moves.forward, g) for g in (False, True))
    back, gradient_back = (conversion(leaves, names, moves.backward, g) for g in (False, True))
    return Part(tuple(names), tuple(leaves), forth, back, gradient_forth, gradient_back)
