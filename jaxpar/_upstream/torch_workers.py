"""torch's own words of a worker, for data sets of torch in worker processes of jaxpar."""

from __future__ import annotations

import sys
from typing import Any


def set_torch_worker(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Makes this process a worker for `torch.utils.data.get_worker_info`, seeded as torch seeds its own.

    torch has no public word for it. Without it an iterable data set that takes its share by
    `torch.utils.data.get_worker_info` would be read whole by every worker. torch is loaded already, by the
    data set.
    """
    torch = sys.modules["torch"]
    worker_module = torch.utils.data._utils.worker
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    worker_module._worker_info = worker_module.WorkerInfo(
        id=worker, num_workers=workers, seed=seed, dataset=dataset
    )
