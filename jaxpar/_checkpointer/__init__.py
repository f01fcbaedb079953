"""Checkpointer: atomic, verified checkpoints of a training run.

Saving passes the values of each `item` to `saver`, which has a thread. `store` manages the directory of
steps under a lock, `best` the best steps, and `step` the folder of one step; its docstring explains why one
layer of digests is enough. `reading` restores a step and uses `fit` to compare it with the objects that it
updates. `ranks` holds the agreement between processes. `unwrapped` exchanges states with programs without
jaxpar.
"""

from .checkpointer import Checkpointer as Checkpointer
from .reading import Restored as Restored
from .unwrapped import load_unwrapped_state as load_unwrapped_state
from .unwrapped import unwrapped_state as unwrapped_state
