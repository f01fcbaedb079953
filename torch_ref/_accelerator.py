"""A replacement for `torch.accelerator`: how many devices exist, and which is current."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace

import torch


class Accelerator:
    """Replaces `torch.accelerator`: `count` equal devices, each of them the CPU.

    As on CUDA, each thread has a current device, at first device 0.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._current = threading.local()

    def is_available(self) -> bool:
        return True

    def current_accelerator(self) -> torch.device:
        return torch.device("cpu")

    def current_device_index(self) -> int:
        return getattr(self._current, "index", 0)

    def all_device_indices(self) -> list[int]:
        return list(range(self._count))

    def device(self, kind: str, index: int) -> torch.device:
        """Replaces `torch.device`, without the index, because no CPU tensor is ever on `cpu:1`."""
        return torch.device("cpu")

    def devices_properties(self, indices: Sequence[int]) -> list[SimpleNamespace]:
        if not all(0 <= index < self._count for index in indices):
            raise AssertionError("Invalid device id")
        return [SimpleNamespace(total_memory=1, multi_processor_count=1) for _ in indices]

    def current_stream(self, index: int) -> AbstractContextManager[None]:
        if not 0 <= index < self._count:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return nullcontext()

    @contextmanager
    def device_index(self, index: int) -> Iterator[None]:
        before = self.current_device_index()
        self._current.index = index
        try:
            yield
        finally:
            self._current.index = before
