"""Traces: what torch computed, recorded where JAX is not installed, and judged where torch is not.

    recorder (one file: torch, NumPy) ─► recording, probes ─► trace/ (arrays.safetensors, trace.json)
    trace/, JAX model ─► reading ─► judging (the verdict) ─► places (first place, cause) ─► Comparison

A cause is found by asking torch "what if". The recorder asks in advance: it calls every function in the ways
that the catalogue lists, and keeps a sketch of what would then arrive at each layer.
"""
