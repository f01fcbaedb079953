"""DistributedDataParallel: a loss and a gradient on every replica, their mean on all of them.

Where torch runs one process for each device, a replica here is a device of any process: one process
with eight devices, eight with one each, or anything between gives the same numbers. What differs from
torch on purpose: the mean gradient is returned by `value_and_grad` and not left in `.grad`, because a
JAX array has none.
"""

from .wrapper import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
