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
    certificate, key, ca = paths.values()
    try:
        _check(certificate, key, ca, start.host if start.rank == 0 and not os.environ.get(PREFIX) else None)
        return hashlib.sha256(Path(ca).read_bytes()).hexdigest()[:16]
    except OSError as error:  # ssl.SSLError is one, too
        raise GroupError(
            f"init_process_group: TLS with {', '.join(f'{name}={path}' for name, path in paths.items())} "
            f"fails on rank {start.rank}: {error}."
        ) from None


def _check(certificate: str, key: str, ca: str, host: str | None) -> None:
    """Let both ends of a connection, in memory, accept this rank's certificate as peers will."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    contexts = [ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)]
    for context in contexts:
        context.check_hostname = context is contexts[0] and host is not None
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(ca)
    unfinished = [
        contexts[0].wrap_bio(to_client, to_server, server_hostname=host),
        contexts[1].wrap_bio(to_server, to_client, server_side=True),
    ]
    while unfinished:
        end = unfinished.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            unfinished.append(end)
