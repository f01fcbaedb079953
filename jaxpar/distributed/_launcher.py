"""Query the variables that torchrun and `jaxpar launch` set for a process."""

from __future__ import annotations

import os

from ..errors import DistributedError


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return LOCAL_RANK, this process's rank on its host, or `fallback_rank` if it is unset.

    Raises:
      DistributedError: LOCAL_RANK is unset and no fallback was passed (torch's RuntimeError).

    torch counterpart: `torch.distributed.get_node_local_rank`.

    >>> from jaxpar.distributed import get_node_local_rank
    >>> get_node_local_rank(fallback_rank=0)
    0
    """
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise DistributedError(
            "LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow "
            "`get_node_local_rank` to work, or start the script by `jaxpar launch`."
        )
    return int(fallback_rank)


def is_torchelastic_launched() -> bool:
    """Whether torchrun started this process.

    torch counterpart: `torch.distributed.is_torchelastic_launched`.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ
