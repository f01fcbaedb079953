"""Traces: torch or JAX, recorded where only one of them is installed, and judged elsewhere.

    recorder (one file: torch, NumPy) ─► recording, probes ─► trace/ (arrays.safetensors, trace.json)
    trace/, JAX model ─► reading ─► judging (the verdict) ─► places (first place, cause) ─► Comparison

    record_jax ─► jax_recording (JAX, NumPy), outline ─► trace/
    trace/, torch model ─► reading ─► jax_judging ─► the search of `compare` ─► Comparison

A cause is found by asking torch "what if". The recorder asks in advance: it calls every function in the ways
that the catalogue lists, and keeps a sketch of what would then arrive at each layer. A trace of JAX
is judged where torch runs.
"""
