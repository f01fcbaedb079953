"""The two models at work: the same task, and what can be seen of it.

    Task, Batch ─┬─► TorchSide ──► Seen ─┐
                 └─► FlaxSide ───► Seen ─┴─► measure

A side owns a copy of the user's module in one element type, takes training steps, and tells what it
saw by the paths of Flax's leaves and in Flax's layout. Neither side changes what the user gave.
"""
