"""Connect devices of several processes, without the lines that Gloo prints about it.

XLA connects devices when they first compute together. For each one Gloo then prints a line on the process's
standard output, in C++ (gloo/rendezvous/context.cc), and no option turns that off. So devices are connected
here, by the sum of one number, while that output is watched.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .._devices.context import outside
from .exchange import exchange
from .group import Group

LINE = re.compile(rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. Expected number of [a-z ]+ : \d+\n")
STDOUT = 1

_connected: set[tuple[int, ...]] = set()


@outside
def connect(devices: Sequence[jax.Device], group: Group) -> None:
    """Let devices compute together for the first time. All ranks of the group call it."""
    key = (group.generation, *(d.id for d in devices))
    if key in _connected or group.size == 1 or devices[0].platform != "cpu":
        return
    mesh = Mesh(np.array(devices), ("device",))
    mapped = jax.shard_map(
        lambda x: jax.lax.psum(x, "device"), mesh=mesh, in_specs=P("device"), out_specs=P()
    )
    local = [jax.device_put(np.ones(1, np.float32), d) for d in devices if d in jax.local_devices()]
    sharding = NamedSharding(mesh, P("device"))
    ones = jax.make_array_from_single_device_arrays((len(devices),), sharding, local)
    program = jax.jit(mapped).lower(ones).compile()
    # So that all ranks are here, and the output is watched for milliseconds only.
    exchange("connect", "", group.timeout, group)
    with without_gloo():
        jax.block_until_ready(program(ones))
    _connected.add(key)


@contextlib.contextmanager
def without_gloo() -> Iterator[None]:
    """Leave out Gloo's lines of what this process prints; other threads' lines come a little later."""
    try:
        output = os.dup(STDOUT)
    except OSError:  # closed: nothing is printed
        yield
        return
    with open(output, "wb") as stdout, tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), STDOUT)
        try:
            yield
        finally:
            os.dup2(output, STDOUT)
            file.seek(0)
            stdout.write(LINE.sub(b"", file.read()))
