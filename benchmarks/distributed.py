"""What a process group costs: texts between ranks, the guard in every step, collectives of small arrays,
the supervisor.

    python benchmarks/distributed.py [--ranks 2] [--json]

Starts that many processes on this host, on loopback, under `jaxpar launch`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def once(call, n: int) -> float:
    """Seconds of one call, the median of n."""
    times = []
    for i in range(n):
        began = time.perf_counter()
        call(i)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure() -> dict[str, float]:
    began = time.perf_counter()
    import jaxpar.distributed as dist

    dist.init_process_group()
    started = time.perf_counter() - began
    import jax
    import numpy as np

    from jaxpar.distributed.exchange import exchange
    from jaxpar.distributed.step_agreement import ledger

    agreement = ledger("benchmark")
    parts = {f"batch[{i}]": "float32[256, 1024]" for i in range(4)} | {"mode": "train"}
    agreement.check(0, "known", lambda: parts)
    known = once(lambda i: agreement.check(1 + i, "known", lambda: parts), 20_000)
    small = np.ones(4, np.float32)
    found = {
        "import and init_process_group, s": started,
        "exchange of 100 bytes, ms": 1e3 * once(lambda i: exchange("benchmark", "x" * 100), 300),
        "barrier, ms": 1e3 * once(lambda i: dist.barrier(), 300),
        "all_reduce of 4 floats, ms": 1e3
        * once(lambda i: jax.block_until_ready(dist.all_reduce(small)), 300),
        "guard, known batch, us per step": 1e6 * known,
        "guard, known batch, % of a 50 ms step": 100 * known / 0.05,
        "guard, first time of a batch, ms": 1e3
        * once(lambda i: agreement.check(30_000 + i, i, lambda: parts | {"n": str(i)}), 100),
    }
    dist.barrier()
    mine, supervisors = time.process_time(), seconds_of(os.getppid())
    time.sleep(10)  # what the thread that waits for messages takes while nothing happens
    found["CPU of an idle group, % of one core"] = 10 * (time.process_time() - mine)
    found["CPU of jaxpar launch, % of one core"] = 10 * (seconds_of(os.getppid()) - supervisors)
    return found


def seconds_of(process: int) -> float:
    """Of a core, that a process has used."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if "RANK" in os.environ:
        found = measure()
        if os.environ["RANK"] == "0":
            text = "\n".join(f"{name:42} {value:10.3f}" for name, value in found.items())
            print(json.dumps(found, indent=2) if options.json else text)
        return
    launch = [sys.executable, "-m", "jaxpar", "launch", "-n", str(options.ranks), __file__, *sys.argv[1:]]
    ended = subprocess.run(launch, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    print("".join(line.removeprefix("[0] ") for line in ended.stdout.splitlines(keepends=True)), end="")
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
