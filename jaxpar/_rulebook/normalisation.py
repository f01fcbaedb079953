"""BatchNorm, LayerNorm, GroupNorm, InstanceNorm, RMSNorm: the same vectors, named differently."""

from __future__ import annotations

import dataclasses

import numpy as np

from .rule import Layer, Part, Rule, Shapes, same

AFFINE = (same("weight", "scale"), same("bias"))
RUNNING = (same("running_mean", "mean"), same("running_var", "var"))
BATCH_COUNT = "num_batches_tracked"
BATCH_NORMS = tuple(f"{lazy}BatchNorm{n}d" for lazy in ("", "Lazy") for n in (1, 2, 3))
INSTANCE_NORMS = tuple(f"{lazy}InstanceNorm{n}d" for lazy in ("", "Lazy") for n in (1, 2, 3))

# Flax does not count batches; torch needs the count only for momentum=None.
BATCH_NORM = Rule(
    BATCH_NORMS[0],
    AFFINE + RUNNING,
    "last",
    also=(*BATCH_NORMS[1:], "SyncBatchNorm"),
    surplus={BATCH_COUNT: np.zeros((), np.int64)},
)
COUNT = Part((BATCH_COUNT,), (BATCH_COUNT,), lambda n: (n,), lambda n: (n.astype(np.int64),))
COUNTING_BATCH_NORM = Rule(BATCH_NORM.torch, (*BATCH_NORM.parts, COUNT), "last", also=BATCH_NORM.also)
LAYER_NORM = Rule("LayerNorm", AFFINE)
GROUP_NORM = Rule("GroupNorm", AFFINE, "last")
INSTANCE_NORM = Rule(INSTANCE_NORMS[0], AFFINE, "last", also=INSTANCE_NORMS[1:])
RMS_NORM = Rule("RMSNorm", AFFINE[:1])


def tracked(layer: Layer, shapes: Shapes | None) -> Rule:
    """jaxpar.nn.InstanceNorm, with running statistics if any; torch's batch count is 0."""
    if layer.mean is None:
        return INSTANCE_NORM
    return dataclasses.replace(INSTANCE_NORM, parts=AFFINE + RUNNING, surplus=BATCH_NORM.surplus)


ROWS = {
    **dict.fromkeys(("nnx.BatchNorm", "linen.BatchNorm"), BATCH_NORM),
    "jaxpar.nn.BatchNorm": COUNTING_BATCH_NORM,
    **dict.fromkeys(("nnx.LayerNorm", "linen.LayerNorm", "jaxpar.nn.LayerNorm"), LAYER_NORM),
    **dict.fromkeys(("nnx.GroupNorm", "linen.GroupNorm", "jaxpar.nn.GroupNorm"), GROUP_NORM),
    **dict.fromkeys(("nnx.RMSNorm", "linen.RMSNorm", "jaxpar.nn.RMSNorm"), RMS_NORM),
    **dict.fromkeys(("nnx.InstanceNorm", "linen.InstanceNorm"), INSTANCE_NORM),
    "jaxpar.nn.InstanceNorm": tracked,
    "jaxpar.nn.LocalResponseNorm": Rule("LocalResponseNorm", (), "last"),
}
