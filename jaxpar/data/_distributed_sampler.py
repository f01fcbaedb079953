"""Assign the rows of a data set to ranks: as torch does, or each row to exactly one rank.

Source: torch/utils/data/distributed.py; the order is `jaxpar.random.distributed_order`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np

from .._arguments import whole
from ..random import distributed_order

_ORDER_DEPENDS_ON = ("num_replicas", "shuffle", "seed", "drop_last")


class DistributedSampler:
    """Iterate over a rank's rows as `torch.utils.data.DistributedSampler` (docs/semantics.md section 2.4).

    Args:
      dataset: the data set; its length counts.
      num_replicas, rank: the number of ranks and this one's; from `jaxpar.distributed` if omitted.
      shuffle: whether the rows are permuted, by a generator of seed + epoch.
      seed: the same number on all ranks.
      drop_last: whether rows that do not divide evenly are dropped; otherwise the first ones come twice.

    Call `set_epoch(epoch)` before each epoch, or all epochs have the same order.

    Raises: ValueError: a rank outside of [0, num_replicas); or a default without a process group.

    >>> from jaxpar import data
    >>> list(data.DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
    [1, 3, 0]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        self.dataset = dataset
        self.num_replicas, self.rank = _group(type(self).__name__, num_replicas, rank)
        self.seed = int(seed)
        self.shuffle, self.drop_last, self.epoch = shuffle, drop_last, 0
        n, R = len(dataset), self.num_replicas
        self.num_samples = n // R if drop_last else -(-n // R)
        self.total_size = self.num_samples * R

    def __iter__(self) -> Iterator[int]:
        return iter(next(self.blocks()).tolist())

    def blocks(self) -> Iterator[np.ndarray]:
        order = distributed_order(
            len(self.dataset),
            self.num_replicas,
            self.rank,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=self.epoch,
            drop_last=self.drop_last,
        )
        if len(order) != self.num_samples:
            raise AssertionError(
                f"Number of subsampled indices ({len(order)}) does not match num_samples "
                f"({self.num_samples}): the data set has another length than when the sampler was made."
            )
        yield order

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the options that determine the order; equal on all ranks."""
        return {"epoch": self.epoch, **{name: getattr(self, name) for name in _ORDER_DEPENDS_ON}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the epoch; ValueError if the state belongs to a sampler with a different order."""
        for name in _ORDER_DEPENDS_ON:
            value = getattr(self, name)
            if state[name] != value:
                raise ValueError(
                    f"DistributedSampler: the state was saved with {name}={state[name]} and this sampler has "
                    f"{name}={value}, so its rows are others. Make it as it was, or begin an epoch."
                )
        self.epoch = state["epoch"]


class EvaluationSampler:
    """Iterate over a rank's rows, where each row of the data set belongs to exactly one rank.

    Args:
      dataset, num_replicas, rank: as for `DistributedSampler`; so are the errors.
      interleaved: rows rank, rank + R, rank + 2R, ... instead of a run of rows for each rank, longer ones
        first.

    Ranks differ by one row at most; with fewer rows than ranks some have none. A rank may have one more
    batch, so a loop over batches must not wait for the other ranks in each of them.

    torch counterpart: none; `DistributedSampler(shuffle=False)` repeats rows, which a metric counts twice.

    >>> from jaxpar import data
    >>> list(data.EvaluationSampler(range(5), num_replicas=2, rank=1))
    [3, 4]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        interleaved: bool = False,
    ):
        self.dataset, self.interleaved = dataset, interleaved
        self.num_replicas, self.rank = _group(type(self).__name__, num_replicas, rank)

    def _rows(self) -> range:
        n, R, r = len(self.dataset), self.num_replicas, self.rank
        if self.interleaved:
            return range(r, n, R)
        share, more = divmod(n, R)
        start = r * share + min(r, more)
        return range(start, start + share + (r < more))

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())


def _group(sampler: str, num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    if num_replicas is None or rank is None:
        from .. import distributed

        if not distributed.is_initialized():
            raise ValueError(
                "Default process group has not been initialized, please make sure to call init_process_group."
            )
        num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
        rank = distributed.get_rank() if rank is None else rank
    num_replicas, rank = whole(sampler, "num_replicas", num_replicas), whole(sampler, "rank", rank)
    if not 0 <= rank < num_replicas:
        raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
    return num_replicas, rank
