"""torch's private worker information, for torch data sets in jaxpar's worker processes."""

from __future__ import annotations

import sys
from typing import Any


def set_torch_worker(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Make this process a worker for `torch.utils.data.get_worker_info`, seeded like torch's own.

    torch has no public function for this, without which every worker would read an iterable data set
    completely. The data set has already imported torch.
    """
    torch = sys.modules["torch"]
    worker_module = torch.utils.data._utils.worker
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    worker_module._worker_info = worker_module.WorkerInfo(
        id=worker, num_workers=workers, seed=seed, dataset=dataset
    )
