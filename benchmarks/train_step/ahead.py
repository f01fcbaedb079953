"""How far Python should be ahead of virtual devices: the step of a small net, waiting for an earlier one.

    python benchmarks/train_step/ahead.py [--devices 2 4 8] [--rounds 15]

32 is how far XLA lets it run. The sides are timed in turn, 50 steps each, and a ratio is that of the medians
to the one for 32.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

AHEAD = (1, 2, 4, 8, 16, 32)


def measure(N: int, rounds: int) -> dict[int, float]:
    """Seconds of a step, by how many steps Python is ahead."""
    import jaxpar

    jaxpar.virtual_devices(N)
    import jax
    import jax_sides
    from batches import batch_of
    from flax import nnx

    from jaxpar._training import throttle as ahead

    ahead.cores, ahead.STEPS_COMPETE = lambda: 0, True  # so that it waits in any case
    x, t = batch_of("mlp", 0, 0)

    def seconds(n, step):
        ahead.STEPS = n
        start = time.perf_counter()
        for _ in range(50):
            loss = step()
        jax.block_until_ready(loss)
        return (time.perf_counter() - start) / 50

    make = jax_sides.ours(jaxpar.DataParallel)
    steps = {n: make(N, jax_sides.MLP(nnx.Rngs(0)), x, t) for n in AHEAD}
    times = [{n: seconds(n, step) for n, step in steps.items()} for _ in range(rounds + 1)]
    return {n: statistics.median(row[n] for row in times[1:]) for n in AHEAD}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if len(options.devices) > 1:  # one process for each number of virtual devices
        print(f"{os.cpu_count()} cores; steps ahead:" + "".join(f"{n:>8}" for n in AHEAD), flush=True)
        for N in options.devices:
            rest = ["--devices", str(N), "--rounds", str(options.rounds)]
            subprocess.run([sys.executable, __file__, *rest], check=True)
        return
    (N,) = options.devices
    times = measure(N, options.rounds)
    ratios = "".join(f"{times[n] / times[32]:8.3f}" for n in AHEAD)
    print(f"{N} devices, {times[32] * 1e3:.2f} ms".ljust(21) + ratios)


main()
