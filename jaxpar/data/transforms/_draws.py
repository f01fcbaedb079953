"""The generator of random transforms: in a worker the worker's, elsewhere the one for `seed`."""

from __future__ import annotations

from ...random import Generator
from .._generators import source
from .._worker_info import get_worker_info


class Draws:
    def _set_seed(self, seed: int | Generator | None) -> None:
        self._own = source(None, seed, type(self).__name__)

    @property
    def _draws(self) -> Generator:
        # A generator of the transform would be copied to all processes, which would draw the same crops.
        worker = get_worker_info()
        return self._own if worker is None else worker.rng.torch_generator

    def _below(self, n: int) -> int:
        return int(self._draws.randint(0, n, (1,))[0])
