"""Which faults are planted in which step, and the finding that each must get: `PROGRAMS[name](fault)`."""

from __future__ import annotations

from benchmarks.program import layouts, programs
from benchmarks.program.parts import Make

PROGRAMS: dict[str, Make] = {
    "shard_map": programs.by_shard_map,
    "jit": programs.by_sharding,
    "pmap": programs.by_pmap,
    "two axes": programs.two_axes,
    "FSDP": programs.fully_sharded,
    "ZeRO-1": programs.zero_1,
    "accumulation": programs.accumulated,
    "dropout": programs.with_dropout,
    "normalisation": programs.normalised,
    "HSDP": layouts.hybrid_sharded,
    "two networks": layouts.two_networks,
    "local steps": layouts.local_steps,
    "noise": layouts.noise,
}

FAULTS: dict[tuple[str, str], str] = {
    ("shard_map", "missing"): "missing",
    ("shard_map", "missing in one leaf"): "missing",
    ("shard_map", "again"): "again",
    ("shard_map", "again in one leaf"): "again",
    ("shard_map", "part"): "part",
    ("shard_map", "rows"): "rows",
    ("shard_map", "extreme"): "extreme",
    ("shard_map", "branch"): "stuck",
    ("shard_map", "half"): "half",
    ("shard_map", "gathered"): "gathered",
    ("shard_map", "differs"): "differs",
    ("shard_map", "loss of one device"): "differs",
    ("jit", "missing"): "missing",
    ("jit", "gathered"): "gathered",
    ("jit", "undivided"): "undivided",
    ("pmap", "missing"): "missing",
    ("pmap", "missing in one leaf"): "missing",
    ("pmap", "again"): "again",
    ("pmap", "part"): "part",
    ("pmap", "rows"): "rows",
    ("pmap", "extreme"): "extreme",
    ("two axes", "axis"): "missing",
    ("two axes", "one leaf by the wrong axis"): "missing",
    ("FSDP", "missing"): "missing",
    ("FSDP", "again"): "again",
    ("ZeRO-1", "unsharded"): "unsharded",
    ("ZeRO-1", "lost"): "unsharded",
    ("accumulation", "missing"): "missing",
    ("accumulation", "loop"): "loop",
    ("accumulation", "again in the loop"): "again",
    ("accumulation", "stuck"): "stuck",
    ("dropout", "missing"): "missing",
    ("dropout", "keys"): "keys",
    ("dropout", "key differs"): "differs",
    ("normalisation", "missing"): "missing",
    ("normalisation", "statistics"): "missing",
    ("HSDP", "missing"): "part",
    ("HSDP", "again"): "again",
    ("HSDP", "part"): "part",
    ("HSDP", "half"): "half",
    ("HSDP", "one leaf missing"): "part",
    ("two networks", "missing"): "missing",
    ("two networks", "again"): "again",
    ("two networks", "loss of one device"): "missing",
    ("local steps", "branch"): "missing",
    ("local steps", "loop"): "again",
    ("noise", "keys"): "keys",
    ("noise", "missing"): "missing",
}
"""The kind of finding that each planted fault must get."""

HEALTHY = [
    *((name, "") for name in PROGRAMS),
    ("two axes", "means of means"),
    ("shard_map", "means of means"),
    ("normalisation", "norm before"),
]
OPEN = [
    ("shard_map", "weights"),
    ("shard_map", "extreme of the norm"),
    ("two axes", "both"),
    ("FSDP", "by XLA"),
]
"""What is neither proven nor refuted."""
