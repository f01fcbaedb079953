"""Samplers: the order of the rows, torch's to the last one.

Iterating gives Python ints, and draws from a generator at the moments at which torch does, so that
an epoch that is left early leaves the generator where torch leaves it.

Source: torch/utils/data/sampler.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from ..random import Generator
from ._streams import default, from_text, given, to_text

Array = np.ndarray[Any, np.dtype[Any]]


class SequentialSampler:
    """Row 0, 1, ... of a data set.

    torch counterpart: `torch.utils.data.SequentialSampler`.
    """

    def __init__(self, data_source: Sized):
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def blocks(self) -> Iterator[Array]:
        """All rows at once."""
        yield np.arange(len(self.data_source))

    def __len__(self) -> int:
        return len(self.data_source)


class Drawing:
    """What samplers that draw have in common: a generator, and its place as their state."""

    generator: Generator | None
    _default: Generator | None

    def _take(self, generator: Any, seed: Any) -> None:
        name = type(self).__name__
        self.generator = given(generator, name)
        if generator is not None and seed is not None:
            raise ValueError(f"{name}: give either generator or seed (torch's default one), not both.")
        self._default = default(seed, name) if generator is None else None

    @property
    def _source(self) -> Generator:
        source = self._default if self.generator is None else self.generator
        assert source is not None
        return source

    def state_dict(self) -> dict[str, Any]:
        """The generator's place; JSON can keep it."""
        return {"generator": to_text(self._source)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts the generator back where `state_dict` found it."""
        from_text(self._source, state["generator"])


class RandomSampler(Drawing):
    """The rows in random order.

    Args:
      data_source: a data set; its length counts.
      replacement: whether a row may come twice.
      num_samples: how many rows in an epoch; as many as there are if left out. More without
        replacement are several permutations.
      generator: the `jaxpar.random.Generator` to draw from.
      seed: in place of a generator, what stands for torch's default one: `seed=0` gives the order
        that torch gives after `torch.manual_seed(0)`. A `Generator` may be shared with others. Left
        out, it comes from the operating system.

    Raises:
      TypeError: `replacement` is no bool. ValueError: `num_samples` is no positive int, which is
        also what an empty data set gives.

    torch counterpart: `torch.utils.data.RandomSampler`, the same rows.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
        *,
        seed: int | Generator | None = None,
    ):
        self.data_source, self.replacement, self._num_samples = data_source, replacement, num_samples
        self._take(generator, seed)
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        k = self.num_samples
        if not isinstance(k, int) or k <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={k}")

    @property
    def num_samples(self) -> int:
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(block.tolist() for block in self.blocks())

    def blocks(self) -> Iterator[Array]:
        """The rows in the portions that torch draws, each when its first row is asked for."""
        n, k = len(self.data_source), self.num_samples
        # Without a generator of its own, a sampler makes one in each epoch.
        g = Generator(self._source.draw_seed()) if self.generator is None else self.generator
        if self.replacement:
            for _ in range(k // 32):
                yield g.randint(n, (32,))
            yield g.randint(n, (k % 32,))
        else:
            for _ in range(k // n):
                yield g.randperm(n)
            # Also drawn where nothing is taken of it.
            yield g.randperm(n)[: k % n]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Drawing):
    """The given rows in random order, each once.

    Args:
      indices: the rows.
      generator, seed: as for `RandomSampler`.

    torch counterpart: `torch.utils.data.SubsetRandomSampler`, the same rows.
    """

    def __init__(
        self,
        indices: Sequence[int],
        generator: Generator | None = None,
        *,
        seed: int | Generator | None = None,
    ):
        self.indices = indices
        self._take(generator, seed)

    def __iter__(self) -> Iterator[int]:
        for i in self._source.randperm(len(self.indices)).tolist():
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class BatchSampler:
    """Lists of `batch_size` rows of another sampler.

    Args:
      sampler: any iterable of rows.
      batch_size: rows of a batch.
      drop_last: whether a last batch of fewer rows is dropped.

    Raises:
      ValueError: `batch_size` is no positive int, `drop_last` no bool.

    torch counterpart: `torch.utils.data.BatchSampler`.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool):
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        rows = iter(self.sampler)
        while batch := list(itertools.islice(rows, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        n: int = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def arrays(self, blocks: Iterable[Array]) -> Iterator[Array]:
        """The batches as arrays, of a sampler's rows in blocks, and at the same moments."""
        rest = np.empty(0, np.intp)
        for block in blocks:
            rest = np.concatenate([rest, block]) if len(rest) else block
            for end in range(self.batch_size, len(rest) + 1, self.batch_size):
                yield rest[end - self.batch_size : end]
            rest = rest[len(rest) - len(rest) % self.batch_size :]
        if len(rest) and not self.drop_last:
            yield rest

    def state_dict(self) -> dict[str, Any]:
        """The sampler's own state; empty if it has none."""
        return self.sampler.state_dict() if hasattr(self.sampler, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Gives the sampler its state back."""
        if hasattr(self.sampler, "load_state_dict"):
            self.sampler.load_state_dict(state)
