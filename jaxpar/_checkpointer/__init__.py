"""Checkpointer: the state of a training run on disk, all of it or nothing, and every bit checked.

torch leaves this to `torch.save` and the reader's care: a kill in the middle leaves half a file, and
a flipped bit trains on. Here orbax writes into a temporary folder that is renamed when it is
complete, in a thread, and every leaf and every file has a SHA-256 beside it, which `restore` checks.

`item` says what can be saved, `plain` writes small values as JSON, `fit` compares a checkpoint with
the objects it goes into, `manifest` holds the digests, `store` is one directory of orbax's,
`background` the thread, `ranks` what several processes agree on.
"""

from .checkpointer import Checkpointer as Checkpointer
from .checkpointer import Restored as Restored
