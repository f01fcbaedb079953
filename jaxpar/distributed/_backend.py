"""Backends: what carries the ranks' arrays. XLA chooses: gloo between CPU devices, NCCL between GPUs."""

from __future__ import annotations

from ..errors import BackendError, GroupError
from .group import NonMember, ProcessGroup, default_group, registered

BACKENDS = {None: None, "gloo": "cpu", "nccl": "gpu"}
"""torch's names, and the platform on which JAX uses that library."""


def check_backend(backend: str | None, function: str) -> None:
    """Raises GroupError for a backend that there is not."""
    if backend not in BACKENDS:
        raise GroupError(f"{function}: backend={backend!r} is unknown; write 'gloo', 'nccl' or None.")


def check_platform(backend: str | None, function: str) -> None:
    """Raises BackendError where JAX runs on another platform."""
    import jax

    platform = jax.default_backend()
    needed = BACKENDS[backend]
    if needed is None or platform == needed:
        return
    cure = (
        "Set JAX_PLATFORMS=cpu, or pass backend=None."
        if needed == "cpu"
        else "Install jaxpar[cuda12] on a host with NVIDIA GPUs, or pass backend='gloo' or None."
    )
    raise BackendError(
        f"{function}: backend={backend!r} is for {needed} devices, and JAX runs on {platform}. {cure}"
    )


def get_backend(group: ProcessGroup = None) -> str:
    """`"gloo"` on CPU devices, `"nccl"` on GPUs; elsewhere JAX's name of the platform.

    Raises:
      GroupError: there is no group, or this rank is not in it.

    torch counterpart: `torch.distributed.get_backend`.
    """
    import jax

    default_group()
    if isinstance(group, NonMember):
        raise GroupError("Invalid process group specified")
    if group is not None:
        registered(group, "get_backend")
    platform = jax.default_backend()
    return next((name for name, of in BACKENDS.items() if name and of == platform), platform)


def is_available() -> bool:
    """Always: jax.distributed comes with JAX.

    torch counterpart: `torch.distributed.is_available`.
    """
    return True
