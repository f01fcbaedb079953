"""Start JAX for a command."""

from __future__ import annotations

import os

from .._devices.virtual import virtual_devices


def start_devices(n: int | None) -> None:
    """Apply `--devices`. JAX must not have started."""
    if n is not None:
        # The option asks for virtual devices, which JAX ignores where it finds a GPU.
        os.environ["JAX_PLATFORMS"] = "cpu"
    virtual_devices(n or 8)  # where there are GPUs, JAX prefers them
