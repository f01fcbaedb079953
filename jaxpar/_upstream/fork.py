"""fork: let a child of `os.fork` end without JAX's exit, which needs threads that only its parent has."""

from __future__ import annotations

import atexit
import ctypes

from jax._src import api, xla_bridge
from jax._src.distributed import global_state


def abandon() -> None:
    """Give up JAX's connection to other processes and its backends in this process, without a message.

    Python destroys what is left at its end. There the connection's destructor speaks for the parent, whose
    identity it has, and waits for threads that are not here. One more reference prevents that. JAX has no
    public function for this; it warns that a fork is likely to deadlock.
    """
    atexit.unregister(api.clean_up)
    client, service = global_state.client, global_state.service
    for referenced in (client, service, *xla_bridge._backends.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(referenced))
    global_state.client = global_state.service = global_state.preemption_sync_manager = None
