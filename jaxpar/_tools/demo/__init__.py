"""`jaxpar demo`: the same training in JAX and in PyTorch, compared tensor by tensor at every step.

    digits ──► jax_side ───► Seen ──┐
                                    ├─► compare ─► differences ─► judge ─► Verdict ─► report
    digits ──► torch_side ─► Seen ──┘

`settings` is light and `run` is the loop. The two sides share nothing but the batches and the first
weights. Both describe what they saw with torch's names and in torch's layout, and everything after
that is NumPy.
"""
