"""ReduceOp: what a collective makes of the ranks' values.

torch's is a class with its own constants; these are texts, so that `op="mean"` is the same as
`op=ReduceOp.AVG`. torch's PREMUL_SUM, a sum of products for NCCL, is a product before the sum in JAX.
"""

from __future__ import annotations

import enum


class ReduceOp(enum.StrEnum):
    """torch's reductions.

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
