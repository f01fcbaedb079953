"""The two models at work: the same task, and what can be seen of it.

    Task, Batch ─┬─► TorchSide ──► Observation ─┐
                 └─► FlaxSide ───► Observation ─┴─► measure

A side owns a copy of the user's module in one element type, takes training steps, and shows what it saw by
the paths of Flax's leaves and in Flax's layout. The user's modules stay as they are, and so do the classes
and functions of JAX, Flax and torch: a copy is watched by means that are its own, or its thread's.
"""
