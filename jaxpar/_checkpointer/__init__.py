"""Checkpointer: atomic, verified checkpoints of a training run.

Saving passes the values of each `item` to `saver`, which has a thread. `store` manages the directory of
steps, and the best ones of all, under a lock, and `step` the folder of one step; its docstring explains why
one layer of digests is enough. `reading` compares a step with the objects that it updates and restores it.
`ranks` holds the agreement between processes. `unwrapped` exchanges states with programs without jaxpar.
"""

from .checkpointer import Checkpointer as Checkpointer
from .reading import Restored as Restored
from .unwrapped import load_unwrapped_state as load_unwrapped_state
from .unwrapped import unwrapped_state as unwrapped_state
