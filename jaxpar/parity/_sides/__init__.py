"""The two models of a comparison, run side by side on the same task.

    Task, Batch ─┬─► TorchSide ────────────────► Observation ─┐
                 └─► FlaxSide, TorchCandidate ─► Observation ─┴─► measure

The user's modules are never changed, and neither are the classes and functions of JAX, Flax and torch: hooks
belong to a side's copy or to the current thread.
"""
