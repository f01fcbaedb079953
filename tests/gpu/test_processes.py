"""A process for each device: over NCCL on GPUs, over gloo on CPU devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RANK = """
import json
import jaxpar.distributed as dist

dist.init_process_group()
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
import jaxpar

rank, world = dist.get_rank(), dist.get_world_size()
x = jnp.full(3, float(rank))
total = dist.all_reduce(x)
net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(rank)))
rows = np.arange(6.0 * world, dtype=np.float32).reshape(2 * world, 3)[2 * rank : 2 * rank + 2]
loss, gradients = net.value_and_grad(lambda net, x: net(x).mean())(rows)
kernel = [g for g in jax.tree.leaves(gradients) if g.ndim == 2][0]
print(json.dumps([np.asarray(total).tolist(), np.asarray(kernel).ravel().tolist(), jax.local_device_count()]))
"""


@pytest.mark.slow
def test_ranks_sum_and_take_the_mean_of_gradients(devices, tmp_path):
    n = len(devices)
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    env = os.environ | {"PYTHONPATH": str(ROOT), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if devices[0].platform == "cpu":
        env |= {"JAXPAR_DEVICES": "1"}
    command = [sys.executable, "-m", "jaxpar", "launch", "-n", str(n), str(script)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    told = [json.loads(line[line.index("[[") :]) for line in run.stdout.splitlines() if "[[" in line]
    mean = [sum(range(i, 6 * n, 3)) / (2 * n) for i in range(3)]
    assert told == [[[sum(range(n))] * 3, mean, 1]] * n
