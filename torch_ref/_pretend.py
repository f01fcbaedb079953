"""`pretend`: a `with` block in which torch behaves as if it had `n` devices.

`_replacements` lists every name of torch that is replaced, and by what.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch.nn.parallel import _functions, comm

from ._accelerator import Accelerator
from ._copies import Copies, reduce_add
from ._source import on_first_device
from ._tested import UnsupportedTorch, warn_untested

# By import_module, because the attributes of torch.nn.parallel with these names are functions.
_data_parallel = import_module("torch.nn.parallel.data_parallel")
_parallel_apply = import_module("torch.nn.parallel.parallel_apply")


Owner = ModuleType | type


@dataclass(frozen=True)
class Devices:
    """The value of `pretend`: `count` devices, and whether they are `real`."""

    count: int
    real: bool

    @property
    def device(self) -> torch.device:
        """The device for the module and its inputs: device 0."""
        return torch.device("cuda:0" if self.real else "cpu")


@contextmanager
def pretend(n: int) -> Iterator[Devices]:
    """Run `torch.nn.DataParallel` and `torch.nn.parallel.*` on the devices 0..n-1 in this block.

    If the machine has `n` or more CUDA devices, nothing is replaced, and the devices are real.
    Backward passes must be inside the block, too. The replacements are visible to every thread and are
    undone at the end, also after an exception; calls of `pretend` may be nested.
    """
    if n < 1:
        raise ValueError(f"pretend needs at least one device, got n={n}")
    if torch.cuda.device_count() >= n:
        yield Devices(n, real=True)
        return
    warn_untested()
    with ExitStack() as stack:
        for owner, name, value in _replacements(n):
            stack.enter_context(_replaced(owner, name, value))
        yield Devices(n, real=False)


def _replacements(count: int) -> Iterator[tuple[Owner, str, object]]:
    accelerator, copies = Accelerator(count), Copies(count)

    # The copies, which a CPU build of torch lacks, and the sum, which refuses CPU tensors.
    yield torch._C, "_scatter", copies.scatter
    yield torch._C, "_gather", copies.gather
    yield torch._C, "_broadcast_coalesced", copies.broadcast_coalesced
    yield comm, "reduce_add", reduce_add

    # "Where is this tensor?"
    for function in ("Broadcast", "ReduceAddCoalesced", "Gather", "Scatter"):
        owner = _named(_functions, function)
        yield owner, "forward", staticmethod(on_first_device(_named(owner, "forward")))

    # "Which devices are there, and which is current?"
    yield torch._utils, "_get_current_device_index", accelerator.current_device_index
    yield _data_parallel, "_get_available_device_type", lambda: "cuda"
    yield _data_parallel, "_get_all_device_indices", accelerator.all_device_indices
    yield _data_parallel, "_get_devices_properties", accelerator.devices_properties
    yield _data_parallel, "torch", _seen_by(_data_parallel, device=accelerator.device)
    yield (
        _parallel_apply,
        "torch",
        _seen_by(
            _parallel_apply,
            accelerator=accelerator,
            # Without an argument it means CUDA's autocast; the pretend accelerator is the CPU.
            is_autocast_enabled=partial(torch.is_autocast_enabled, "cpu"),
        ),
    )


@contextmanager
def _replaced(owner: Owner, name: str, value: object) -> Iterator[None]:
    if owner is not torch._C:
        _named(owner, name)
    absent = object()
    before = vars(owner).get(name, absent)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is absent:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _seen_by(module: ModuleType, **names: object) -> ModuleType:
    """Return a copy of the module `torch` with some names replaced, for one of torch's own modules."""
    source = inspect.getsource(module)
    for name in names:
        if f"torch.{name}" not in source:
            raise UnsupportedTorch(f"torch.{name} in {module.__name__}")
    view = ModuleType("torch")
    vars(view).update(names, __getattr__=partial(getattr, torch))
    return view


def _named(owner: Owner, name: str) -> Any:
    if not hasattr(owner, name):
        raise UnsupportedTorch(f"{owner.__name__}.{name}")
    return getattr(owner, name)
