"""Where random transforms draw from: in a worker its own generator, elsewhere that of `seed`.

torchvision draws from torch's default generator, which every worker seeds for itself. A generator that a
transform brought along would be the same in all worker processes, and so would their random crops.
"""

from __future__ import annotations

from ...random import Generator
from .._generators import source
from .._worker_info import get_worker_info


class Draws:
    """What random transforms have in common.

    `seed=` stands for torch's default generator: a number, or the `Generator` that loader and transforms
    share.
    """

    def _set_seed(self, seed: int | Generator | None) -> None:
        self._own = source(None, seed, type(self).__name__)

    @property
    def _draws(self) -> Generator:
        worker = get_worker_info()
        return self._own if worker is None else worker.rng.torch_generator

    def _below(self, n: int) -> int:
        """One of 0 to n - 1."""
        return int(self._draws.randint(0, n, (1,))[0])
