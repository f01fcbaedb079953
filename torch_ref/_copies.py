"""The copies between devices, which torch implements in C++ for CUDA only (torch/csrc/cuda/comm.cpp).

Every pretend device is the same CPU, so "on a different device" can only mean "in different memory".
A tensor has no record of its pretend device. It is assumed to be on the first device of the list to
which it is copied, where DataParallel requires the module and where its inputs usually are. So
the first piece of a scatter is a view and the first replica has the original tensors, as on CUDA;
all others are copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


@dataclass(frozen=True)
class Copies:
    """The copy primitives of a machine with `count` devices, under torch._C's names."""

    count: int

    def scatter(
        self,
        tensor: Tensor,
        devices: Sequence[int],
        chunk_sizes: Sequence[int] | None,
        dim: int,
        streams: object,
    ) -> list[Tensor]:
        """Split with `torch.chunk`, possibly into fewer pieces than devices, or into `chunk_sizes`."""
        if not devices:
            raise RuntimeError("Expected at least one device to scatter to")
        if chunk_sizes is None:
            chunks = torch.chunk(tensor, len(devices), dim)
        elif len(chunk_sizes) == len(devices):
            chunks = tensor.split_with_sizes(list(chunk_sizes), dim)
        else:
            raise RuntimeError(
                "Expected devices and chunk_sizes to be of same length, but got "
                f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
            )
        self._check(devices)
        source = devices[0]
        return [
            chunk if device == source else chunk.clone()
            for chunk, device in zip(chunks, devices, strict=False)
        ]

    def gather(self, tensors: Sequence[Tensor], dim: int, destination: int) -> Tensor:
        """Concatenate into the dtype of the first tensor, unlike `torch.cat`, which promotes."""
        first = tensors[0]
        shape = list(first.shape)
        for index, tensor in enumerate(tensors):
            if tensor.dim() != len(shape):
                raise RuntimeError(  # The missing space is torch's.
                    "Expected all input tensors to have the same number of dimensions, but tensor "
                    f"at index {index}has {tensor.dim()} dimensions, (expected {len(shape)})"
                )
            shape[dim] = tensor.shape[dim]
            if list(tensor.shape) != shape:
                raise RuntimeError(
                    f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, "
                    f"but expected {shape}"
                )
        if destination != -1:  # torch's number for the CPU
            self._check([destination])
        sizes = [tensor.shape[dim] for tensor in tensors]
        shape[dim] = sum(sizes)
        out = torch.empty(
            shape, dtype=first.dtype, device=first.device, memory_format=_memory_format(tensors)
        )
        for piece, tensor in zip(out.split_with_sizes(sizes, dim), tensors, strict=True):
            piece.copy_(tensor)
        return out

    def broadcast_coalesced(
        self, tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
    ) -> list[list[Tensor]]:
        """Return the tensors themselves for the first device, contiguous copies for the others."""
        # buffer_size only matters for speed: the values are the same with any packing.
        self._check(devices)
        return [list(tensors), *([_copy(tensor) for tensor in tensors] for _ in devices[1:])]

    def _check(self, devices: Sequence[int]) -> None:
        if not all(0 <= device < self.count for device in devices):
            raise RuntimeError("CUDA error: invalid device ordinal")


def reduce_add(inputs: Sequence[Tensor], destination: int | None = None) -> Tensor:
    """Replace `comm.reduce_add`: the left fold ((g0 + g1) + g2) + ..., in the inputs' dtype."""
    first = inputs[0]
    for index, tensor in enumerate(inputs):
        if tensor.shape != first.shape:
            got, expected = ("x".join(map(str, t.shape)) for t in (tensor, first))
            raise ValueError(f"input {index} has invalid size: got {got}, but expected {expected}")
    if len(inputs) == 1:
        return first
    result = first + inputs[1]
    for tensor in inputs[2:]:
        result.add_(tensor)
    return result


def _copy(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided:
        return tensor.detach().clone()
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _memory_format(tensors: Sequence[Tensor]) -> torch.memory_format:
    """Return the memory format that all tensors share, else contiguous."""
    for format in _FORMATS:
        if all(tensor.is_contiguous(memory_format=format) for tensor in tensors):
            return format
    return torch.contiguous_format
