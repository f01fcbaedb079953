"""Checkpointer: the state of a training run on disk, whole or not at all, and every bit checked.

torch leaves this to `torch.save` and the caller: a kill in the middle leaves half a file, and a flipped bit
trains on. Here a step is written by a thread into a folder that gets its name when it is complete, and each
leaf is a file whose SHA-256 `restore` compares.

Saving goes from `item` (what can be saved) through `snapshot` (what it holds now) and `plain` (small values
as JSON) to `saver`, and from there to `store` (a directory of steps, under a `lock`; the `best` ones, by a
`metric`, have another) and `step` (the folder of one, and why one layer of digests is enough). `restoring`
goes back through `reading` and `fit` (does it suit the objects it is to go into?). `ranks` is what several
processes agree on, `background` the thread.
"""

from .checkpointer import Checkpointer as Checkpointer
from .restoring import Restored as Restored
