"""The job's secret, by which its ranks know each other: one text, or what the scheduler calls the job.

JAXPAR_JOB_SECRET comes first; `jaxpar launch` sets it to a random one. Without it the name that torchrun,
SLURM or Kubernetes gave the job takes its place. Such a name keeps other jobs out; it keeps out only those
people who cannot guess it. torch has no counterpart: its TCPStore trusts whoever connects.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import NamedTuple

VARIABLE = "JAXPAR_JOB_SECRET"


class Secret(NamedTuple):
    """What the ranks have in common. It is never sent; `source`, the variable it comes from, is."""

    key: bytes
    source: str

    def __repr__(self) -> str:
        return f"Secret(from {self.source})"  # the key must not get into a traceback or a log


NOBODYS = Secret(b"", "nothing")
"""The key of a job that has no secret: everybody knows it."""


def find() -> Secret:
    """The secret that the environment holds; `NOBODYS` if there is none."""
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
    """The secret that consists of these texts."""
    text = "\0".join(["jaxpar", source, *(part or "" for part in parts)])
    return Secret(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest(), source)


def fresh() -> str | None:
    """A random text for JAXPAR_JOB_SECRET; None if it is set, and processes inherit it."""
    return None if os.environ.get(VARIABLE) else secrets.token_hex(16)


def _torchrun() -> list[str | None]:
    # torchrun calls every job "none" that has no --rdzv-id. MASTER_ADDR is left out: with a static rendezvous
    # every host may spell it in its own way.
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return [None if name == "none" else name, os.environ.get("MASTER_PORT")]


def _kubernetes() -> str | None:
    """The Job's uid, where JAX has asked Kubernetes for it to find the other ranks."""
    if "JOB_COMPLETION_INDEX" not in os.environ or os.environ.get("MASTER_ADDR"):
        return None
    from .._upstream import kubernetes_job

    return kubernetes_job()
