"""Communication backends. XLA chooses the library by platform: gloo for CPU devices, NCCL for GPUs."""

from __future__ import annotations

from ..errors import BackendError, GroupError
from .group import NonMember, ProcessGroup, default_group, registered

BACKENDS = {None: None, "gloo": "cpu", "nccl": "gpu"}
"""JAX's platform for each of torch's backend names."""


def check_backend(backend: str | None, function: str) -> None:
    if backend not in BACKENDS:
        raise GroupError(f"{function}: backend={backend!r} is unknown; write 'gloo', 'nccl' or None.")


def check_platform(backend: str | None, function: str) -> None:
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
    """Return `"gloo"` on CPU devices, `"nccl"` on GPUs, and JAX's platform name elsewhere.

    Raises:
      GroupError: no process group is initialized, or this rank is not a member.

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
    """Return True: jax.distributed is part of JAX (torch's `torch.distributed.is_available`).

    >>> import jaxpar.distributed as dist
    >>> dist.is_available()
    True
    """
    return True
