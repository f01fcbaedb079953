"""Run the user's script in one process of a world: with its devices, in float64, and with taps."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from .names import FOLDER, WITHOUT

FIXED = ("jax_num_cpu_devices", "jax_enable_x64", "jax_platforms")
"""Settings of JAX that belong to the world; a script's own are ignored."""

WIDE = ("float32", "bfloat16", "float16")


def main() -> None:
    """Run the script `sys.argv[1]`, whose arguments follow."""
    del sys.argv[0]
    prepare(int(os.environ["JAXPAR_DEVICES"]))
    sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


def prepare(devices: int) -> None:
    """Make the world, before the script imports anything."""
    import jax

    from ..._devices import virtual

    virtual.virtual_devices(devices)
    virtual.virtual_devices = lambda n: None
    update = jax.config.update
    jax.config.update = (  # type: ignore[method-assign]
        lambda name, value: None if name in FIXED else update(name, value)
    )
    # Before Flax is imported, whose layers have jnp.float32 as the default of their parameters.
    for name in WIDE:
        setattr(jax.numpy, name, jax.numpy.float64)
    from ... import parity
    from ..._training import train_step
    from . import tapped, without

    parity.Tap = tapped.WorldTap  # type: ignore[misc]
    train_step.TrainStep = tapped.SelfTappingStep  # type: ignore[assignment,misc]
    without.remove(os.environ.get(WITHOUT, "").split(","), Path(os.environ[FOLDER]))


if __name__ == "__main__":
    main()
