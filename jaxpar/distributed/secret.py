"""The job secret, by which ranks authenticate each other.

Without JAXPAR_JOB_SECRET, which `jaxpar launch` sets, it is derived from the job's name in torchrun, SLURM or
Kubernetes, which protects only against attackers that cannot guess it. torch's TCPStore trusts every peer.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import NamedTuple

VARIABLE = "JAXPAR_JOB_SECRET"


class Secret(NamedTuple):
    """A key shared by all ranks, and the variable it comes from. Only `source` is ever sent."""

    key: bytes
    source: str

    def __repr__(self) -> str:
        return f"Secret(from {self.source})"  # the key must not get into a traceback or a log


NOBODYS = Secret(b"", "nothing")
"""The public key of a job without a secret."""


def find() -> Secret:
    """Return the secret from the environment, or `NOBODYS`."""
    for source, parts in (
        (VARIABLE, [os.environ.get(VARIABLE)]),
        ("TORCHELASTIC_RUN_ID", _torchrun()),
        ("SLURM_JOB_ID", [os.environ.get("SLURM_JOB_ID")]),
        ("JOB_COMPLETION_INDEX", [_kubernetes()]),
    ):
        if parts[0]:
            return derived(source, *parts)
    return NOBODYS


def derived(source: str, *parts: str | None) -> Secret:
    # The separator keeps ("ab", "c") and ("a", "bc") different.
    text = "\0".join(["jaxpar", source, *(part or "" for part in parts)])
    return Secret(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest(), source)


def fresh() -> str | None:
    """Return a random JAXPAR_JOB_SECRET, or None if it is set already, which child processes inherit."""
    return None if os.environ.get(VARIABLE) else secrets.token_hex(16)


def _torchrun() -> list[str | None]:
    # torchrun names jobs without --rdzv-id "none". MASTER_ADDR is not part of the secret: with a static
    # rendezvous hosts may spell it differently.
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return [None if name == "none" else name, os.environ.get("MASTER_PORT")]


def _kubernetes() -> str | None:
    """Return the Kubernetes Job's uid, if JAX queried Kubernetes to find the ranks."""
    if "JOB_COMPLETION_INDEX" not in os.environ or os.environ.get("MASTER_ADDR"):
        return None
    from .._upstream import kubernetes_job

    return kubernetes_job()
