"""Checkpointer: atomic, verified checkpoints of a training run.

Saving passes a `snapshot` of the values of each `item` to `saver`. `store` manages the directory of
steps under a `lock`, `best` the best steps, and `step` the folder of one step; its docstring explains why one
layer of digests is enough. `reading` restores a step and uses `fit` to compare it with the objects that it
updates. `ranks` holds the agreement between processes, `background` the thread.
"""

from .checkpointer import Checkpointer as Checkpointer
from .reading import Restored as Restored
