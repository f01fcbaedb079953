"""ReduceOp: the reductions of the collectives.

The members are strings, so `op="mean"` equals `op=ReduceOp.AVG`. torch's PREMUL_SUM (NCCL only) is missing:
multiply before the sum instead.
"""

from __future__ import annotations

import enum


class ReduceOp(enum.StrEnum):
    """Reductions, with torch's names and short string values.

    >>> from jaxpar.distributed import ReduceOp
    >>> ReduceOp.AVG == "mean"
    True

    torch counterpart: `torch.distributed.ReduceOp`.
    """

    SUM = "sum"
    AVG = "mean"
    MAX = "max"
    MIN = "min"
    PRODUCT = "product"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


OPS = tuple(op.value for op in ReduceOp)
