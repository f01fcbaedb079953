"""The generator of random transforms: in a worker the worker's, elsewhere the one for `seed`.

torchvision draws from torch's default generator, which every worker seeds for itself. A generator stored
in a transform would be copied to all worker processes, which would then draw the same random crops.
"""

from __future__ import annotations

from ...random import Generator
from .._generators import source
from .._worker_info import get_worker_info


class Draws:
    """The base of random transforms.

    `seed=` replaces torch's default generator: a number, or a `Generator` shared by loader and transforms.
    """

    def _set_seed(self, seed: int | Generator | None) -> None:
        self._own = source(None, seed, type(self).__name__)

    @property
    def _draws(self) -> Generator:
        worker = get_worker_info()
        return self._own if worker is None else worker.rng.torch_generator

    def _below(self, n: int) -> int:
        """Draw one of 0 to n - 1."""
        return int(self._draws.randint(0, n, (1,))[0])
