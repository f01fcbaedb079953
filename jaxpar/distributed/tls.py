"""Check the certificates of JAX's coordinator, named by JAX's own variables, before JAX starts.

With a wrong certificate JAX waits, and then ends the process by a signal. torch's TCPStore has no TLS.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import ssl
from importlib import metadata
from pathlib import Path

from ..errors import GroupError
from ._environment import Start

FILES = ("JAX_MTLS_CERT_FILE", "JAX_MTLS_KEY_FILE", "JAX_MTLS_CA_FILE")
PREFIX = "JAX_MTLS_PEER_URI_PREFIX"
"""JAX's variable for certificates that name the job in a URI and no host."""


def authority(start: Start) -> str:
    """Return the digest of the job's certificate authority, "" without TLS; raise GroupError if it fails."""
    paths = {name: os.environ.get(name, "") for name in FILES}
    if not any(paths.values()):
        return ""
    absent = [name for name, path in paths.items() if not path]
    if absent:
        raise GroupError(
            f"init_process_group: {', '.join(name for name in FILES if name not in absent)} is set, and "
            f"{', '.join(absent)} is not. TLS needs all three; unset all to do without."
        )
    import jax

    if "mtls_ca_file" not in inspect.signature(jax.distributed.initialize).parameters:
        raise GroupError(
            f"init_process_group: {FILES[2]} demands TLS, and the coordinator of JAX "
            f"{metadata.version('jax')} has none. Install jax>=0.12 (on Python 3.12 or newer), or unset "
            f"{', '.join(FILES)}."
        )
    try:
        _check(*paths.values(), start.host if start.rank == 0 and not os.environ.get(PREFIX) else None)
        return hashlib.sha256(Path(paths[FILES[2]]).read_bytes()).hexdigest()[:16]
    except OSError as error:  # ssl.SSLError is one, too
        raise GroupError(
            f"init_process_group: TLS with {', '.join(f'{name}={path}' for name, path in paths.items())} "
            f"fails on rank {start.rank}: {error}."
        ) from None


def _check(certificate: str, key: str, ca: str, host: str | None) -> None:
    """Let both ends of a connection, in memory, accept this rank's certificate as peers will."""
    ends = []
    pipes = ssl.MemoryBIO(), ssl.MemoryBIO()
    for is_server in (False, True):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = host is not None and not is_server
        name = None if is_server else host
        ends.append(
            context.wrap_bio(
                pipes[is_server], pipes[not is_server], server_side=is_server, server_hostname=name
            )
        )
    unfinished = set(ends)
    while unfinished:
        for end in ends:
            try:
                end.do_handshake()
                unfinished.discard(end)
            except ssl.SSLWantReadError:
                pass
