"""The two models of a comparison, run side by side on the same task.

    Task, Batch ─┬─► TorchSide ──► Observation ─┐
                 └─► FlaxSide ───► Observation ─┴─► measure

A side owns a copy of the user's module in one element type, takes training steps, and returns each step's
arrays by the paths of Flax's leaves, in Flax's layout. The user's modules are never changed, and neither are
the classes and functions of JAX, Flax and torch: hooks belong to the copy or to the current thread.
"""
