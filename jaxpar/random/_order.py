"""The order in which torch's samplers and loaders return the rows of a data set, as arrays of int64.

Every function takes a seed or a `Generator`. With a generator, the next call gives the next epoch. Source:
torch/utils/data/sampler.py, dataloader.py and distributed.py.
"""

from __future__ import annotations

import numpy as np

from ._generator import Generator


def sampler_order(
    n: int, generator: int | Generator, *, replacement: bool = False, num_samples: int | None = None
) -> np.ndarray:
    """[num_samples]: the rows that `RandomSampler` yields in one epoch.

    Args:
      n: the number of rows of the data set.
      generator: the one the sampler was given, or its seed. A sampler without a generator makes one from the
        default generator: `Generator(default.draw_seed())`.
      replacement, num_samples: as for `jaxpar.data.RandomSampler`.

    Raises: TypeError: `replacement` is not a bool. ValueError: num_samples is not a positive int.

    >>> from jaxpar.random import sampler_order
    >>> sampler_order(5, 0).tolist()
    [4, 0, 1, 3, 2]

    torch counterpart: `torch.utils.data.RandomSampler(range(n), replacement, num_samples, generator)`.
    """
    if not isinstance(replacement, bool):
        raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
    k = n if num_samples is None else num_samples
    if not isinstance(k, int) or k <= 0:
        raise ValueError(f"num_samples should be a positive integer value, but got num_samples={k}")
    generator = _generator(generator)
    if replacement:
        return generator.randint(n, (k,))  # torch draws 32 at a time; the numbers are the same
    # If n divides k, torch draws one unused permutation more.
    permutations = [generator.randperm(n) for _ in range(k // n + 1)]
    return np.concatenate(permutations)[:k]


def loader_order(n: int, generator: int | Generator, *, given: bool = False) -> np.ndarray:
    """Return the rows, [n], that a `DataLoader(data, shuffle=True)` returns in one epoch.

    Args:
      n: the number of rows of the data set.
      generator: the default generator, or the seed given to `torch.manual_seed`.
      given: whether the generator was passed to the loader, `DataLoader(data, shuffle=True, generator=g)`, so
        that the sampler draws from it directly.

    The first draw of an epoch is the workers' seed, even if there are no workers.

    Raises: ValueError: no rows.

    >>> from jaxpar.random import loader_order
    >>> loader_order(5, 0).tolist()
    [1, 4, 2, 3, 0]

    torch counterpart: iterating over `torch.utils.data.DataLoader`.
    """
    generator = _generator(generator)
    generator.draw_seed()
    return sampler_order(n, generator if given else Generator(generator.draw_seed()))


def distributed_order(
    n: int,
    num_replicas: int,
    rank: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
) -> np.ndarray:
    """The rows that `DistributedSampler` gives one rank in one epoch.

    Args:
      n: the number of rows of the data set.
      num_replicas, rank, shuffle, seed, drop_last: as for `jaxpar.data.DistributedSampler`.
      epoch: what its `set_epoch` was given.

    All ranks get equally many rows. The permutation, extended from its own start or cut, is dealt out one row
    at a time.

    Raises: ValueError: a rank outside of [0, num_replicas).

    >>> from jaxpar.random import distributed_order
    >>> distributed_order(6, 2, 0).tolist()
    [2, 3, 1]

    torch counterpart: `torch.utils.data.DistributedSampler`.
    """
    if not 0 <= rank < num_replicas:
        raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
    order = Generator(seed + epoch).randperm(n) if shuffle else np.arange(n)
    per_replica = n // num_replicas if drop_last else -(-n // num_replicas)
    return np.resize(order, per_replica * num_replicas)[rank::num_replicas]


def _generator(generator: int | Generator) -> Generator:
    return generator if isinstance(generator, Generator) else Generator(generator)
