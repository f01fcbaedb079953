"""A certificate authority for one job, and the certificate that it signs for all ranks of this host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ...distributed.tls import FILES
from ...errors import DistributedError
from .environment import ADDRESS

DAYS = "3650"
"""Longer than any job. The keys are deleted with the job."""
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def certificates(folder: Path) -> dict[str, str]:
    """Return JAX's variables for new certificates in `folder`; none if they are set, which ranks inherit."""
    if any(map(os.environ.get, FILES)):
        return {}
    certificate, key, ca = (str(folder / name) for name in ("rank.pem", "rank.key", "ca.pem"))
    ca_key = str(folder / "ca.key")
    signs = ("-addext", "keyUsage=critical,keyCertSign")
    _openssl("-keyout", ca_key, "-out", ca, "-subj", "/CN=jaxpar job", *signs)
    rank = ["-addext", f"subjectAltName=IP:{ADDRESS}", "-addext", "basicConstraints=critical,CA:FALSE"]
    _openssl(
        "-keyout", key, "-out", certificate, "-subj", "/CN=jaxpar rank", *rank, "-CA", ca, "-CAkey", ca_key
    )
    os.unlink(ca_key)  # a later certificate for this job would be a stranger's
    return dict(zip(FILES, (certificate, key, ca), strict=True))


def _openssl(*options: str) -> None:
    line = ["openssl", "req", "-x509", *KEY, "-days", DAYS, *options]
    try:
        subprocess.run(line, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise DistributedError(
            "jaxpar launch: --tls needs the command openssl (3.0 or newer); install it, or make the "
            f"certificates elsewhere and set {', '.join(FILES)}."
        ) from None
    except subprocess.CalledProcessError as error:
        raise DistributedError(f"jaxpar launch: --tls: {' '.join(line)} failed: {error.stderr}") from None
