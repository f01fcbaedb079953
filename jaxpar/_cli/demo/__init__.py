"""`jaxpar demo`: the same training in JAX and in PyTorch, measured and judged by `jaxpar.parity`.

    digits ─┬─► flax_side ──► Seen ─┐
            │                       ├─► measure ─► judge ─► report
            └─► torch_side ─► Seen ─┘

The two sides share the batches and the first weights, nothing else. `parity.compare` would train copies
of its own; a demo has to show the loop that a user writes, with its loss, accuracy and time.
"""
