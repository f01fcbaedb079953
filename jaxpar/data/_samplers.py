"""Samplers: the order of the rows, identical to torch's, drawn at the same moments.

Source: torch/utils/data/sampler.py.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from ..random import Generator, multinomial
from ..random.arguments import check_weights, checked_generator


class SequentialSampler:
    """Iterate over the rows 0, 1, ... of a data set, as `torch.utils.data.SequentialSampler`.

    >>> from jaxpar import data
    >>> list(data.SequentialSampler('abc'))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized):
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def blocks(self) -> Iterator[np.ndarray]:
        yield np.arange(len(self.data_source))

    def __len__(self) -> int:
        return len(self.data_source)


class GeneratorSampler:
    def _set_generator(self, generator: Generator | None, seed: int | Generator | None) -> None:
        self._first = source(generator, seed, type(self).__name__)
        self.generator = generator

    @property
    def _source(self) -> Generator:
        return self._first if self.generator is None else self.generator

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state; JSON can store it."""
        return {"generator": generator_to_text(self._source)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        generator_from_text(self._source, state["generator"])


class RandomSampler(GeneratorSampler):
    """Iterate over the rows in the random order of `torch.utils.data.RandomSampler`.

    Args:
      data_source: a data set; its length counts.
      replacement: whether a row may come twice.
      num_samples: how many rows in an epoch; as many as there are if left out. More may come from several
        permutations.
      generator: the `jaxpar.random.Generator` to draw from.
      seed: instead of a generator, for torch's default one: `seed=0` gives torch's order after
        `torch.manual_seed(0)`. A `Generator` may be shared with others. If left out, the seed is random.

    Raises: TypeError: `replacement` is not a bool. ValueError: `num_samples` is not a positive int, also
      because the data set is empty.

    >>> from jaxpar import data
    >>> sorted(data.RandomSampler('abc', seed=0))
    [0, 1, 2]
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
        self._set_generator(generator, seed)
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

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the rows in the blocks that torch draws, each drawn when its first row is needed."""
        n, k = len(self.data_source), self.num_samples
        # As in torch, a sampler without an explicit generator creates one in each epoch.
        g = Generator(self._source.draw_seed()) if self.generator is None else self.generator
        if self.replacement:
            # torch draws 32 rows at a time, so an epoch that is left early has drawn whole blocks.
            for _ in range(k // 32):
                yield g.randint(n, (32,))
            yield g.randint(n, (k % 32,))
        else:
            for _ in range(k // n):
                yield g.randperm(n)
            # torch draws this permutation even if k % n is 0.
            yield g.randperm(n)[: k % n]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(GeneratorSampler):
    """Iterate over given rows in the random order of `torch.utils.data.SubsetRandomSampler`.

    Args:
      indices: the rows.
      generator, seed: as for `RandomSampler`.

    >>> from jaxpar import data
    >>> sorted(data.SubsetRandomSampler([3, 5, 9], seed=0))
    [3, 5, 9]
    """

    def __init__(
        self,
        indices: Sequence[int],
        generator: Generator | None = None,
        *,
        seed: int | Generator | None = None,
    ):
        self.indices = indices
        self._set_generator(generator, seed)

    def __iter__(self) -> Iterator[int]:
        for i in self._source.randperm(len(self.indices)).tolist():
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class BatchSampler:
    """Group a sampler's rows into lists of `batch_size`, as `torch.utils.data.BatchSampler`.

    Args:
      sampler: any iterable of rows.
      batch_size: rows of a batch.
      drop_last: whether a last batch of fewer rows is dropped.

    Raises: ValueError: `batch_size` is not a positive int, or `drop_last` not a bool.

    >>> from jaxpar import data
    >>> list(data.BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
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

    def arrays(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        pending = np.empty(0, np.intp)
        for block in blocks:
            pending = np.concatenate([pending, block]) if len(pending) else block
            # Views, not copies: batches are slices of the sampler's block.
            for end in range(self.batch_size, len(pending) + 1, self.batch_size):
                yield pending[end - self.batch_size : end]
            pending = pending[len(pending) - len(pending) % self.batch_size :]
        if len(pending) and not self.drop_last:
            yield pending

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict() if hasattr(self.sampler, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if hasattr(self.sampler, "load_state_dict"):
            self.sampler.load_state_dict(state)


class WeightedRandomSampler(GeneratorSampler):
    """Draw rows by weight with `jaxpar.random.multinomial`, as `torch.utils.data.WeightedRandomSampler`.

    Args:
      weights: [n] numbers, which need not add up to one.
      num_samples: how many rows in an epoch.
      replacement: whether a row may come twice.
      generator, seed: as for `RandomSampler`.

    Raises: ValueError: as torch, for `num_samples`, `replacement` and weights with more axes. RuntimeError:
      as `multinomial`, and at construction.

    >>> from jaxpar import data
    >>> list(data.WeightedRandomSampler([0.0, 1.0], num_samples=3, seed=0))
    [1, 1, 1]
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
        *,
        seed: int | Generator | None = None,
    ):
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        self.weights = np.asarray(weights, np.float64)
        if self.weights.ndim != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {self.weights.shape}"
            )
        check_weights(self.weights, num_samples, replacement)
        self.num_samples, self.replacement = num_samples, replacement
        self._set_generator(generator, seed)

    def __iter__(self) -> Iterator[int]:
        rows = multinomial(self.weights, self.num_samples, self.replacement, generator=self._source)
        yield from rows.tolist()

    def __len__(self) -> int:
        return self.num_samples


def source(generator: Generator | None, seed: int | Generator | None, function: str) -> Generator:
    """Return `generator`, or the one for `seed` (torch's default one), or a randomly seeded one."""
    if generator is not None:
        checked_generator(function, generator)
        if seed is not None:
            raise ValueError(f"{function}: give either generator or seed (torch's default one), not both.")
        return generator
    if seed is None:
        generator = Generator()
        generator.seed()
        return generator
    try:
        return seed if isinstance(seed, Generator) else Generator(seed)
    except RuntimeError as error:
        raise TypeError(
            f"{function}: seed must be an int or a jaxpar.random.Generator, not {seed!r}."
        ) from error


def generator_to_text(generator: Generator) -> str:
    return base64.b64encode(generator.get_state().tobytes()).decode()


def generator_from_text(generator: Generator, text: str) -> None:
    generator.set_state(np.frombuffer(base64.b64decode(text), np.uint8))
