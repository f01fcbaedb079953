"""shard_optimizer=True on H100s: proven, with the bytes of the all-reduce and a part of the memory."""

from __future__ import annotations

import hlo
import optax
import pytest
from steps import shapes, step_of

import jaxpar
from jaxpar import optim

MOMENTS = r"optimizer.*(\.mu|\.nu|exp_avg)"
CLIPPED = optax.chain(optim.clip_grad_norm(1.0), optim.adamw(lr=1e-3))
CASES = {
    "small": ("batch_norm", optax.adam(1e-3), 1, {}),
    "small_clipped": ("batch_norm", CLIPPED, 1, {}),
    "small_accumulating": ("batch_norm", CLIPPED, 1, {"accumulate": 2}),
    "small_ignoring": ("batch_norm", optax.adam(1e-3), 1, {"on_nonfinite": "ignore"}),
    "large": ("gpt", CLIPPED, 1, {}),
    "large_on_1024": ("gpt", optax.adam(1e-3), 128, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_divided_step(name):
    net, tx, hosts, options = CASES[name]
    batch = shapes(net, 64 * hosts)
    steps = [step_of("ddp", net, hosts, tx=tx, shard=shard, **options) for shard in (False, True)]
    plain, divided = (jaxpar.program(step, *batch, sharded=MOMENTS) for step in steps)
    assert {f.kind for f in plain.findings} == {"unsharded"}
    divided.check()
    assert not divided.findings
    assert {e.operation for e in divided.exchanges} == {"all-reduce", "reduce-scatter", "all-gather"}
    sent = [sum(e.sent for e in report.exchanges) for report in (plain, divided)]
    print(f"{name}: {sent[1] / sent[0]:.4f} of the bytes")
    assert sent[1] <= 1.05 * sent[0]


@pytest.mark.parametrize("hosts", [1, 128])
def test_a_devices_arguments_are_smaller_by_what_others_hold(hosts):
    memory = {}
    for shard in (False, True):
        step = step_of("ddp", "gpt", hosts, shard=shard)
        compiled = step.lower(*shapes("gpt", 64 * hosts)).compile()
        memory[shard] = compiled.memory_analysis().argument_size_in_bytes
        found = hlo.read(compiled.as_text())
        hlo.check_no_collective_in_branches(found)
        hlo.check_stays_on_device(found)
    moments, n = 2 * 4 * 10_502_912, 8 * hosts
    held = moments - (memory[False] - memory[True])
    print(f"{n}: {held / moments * n:.4f} of 1/N")
    assert 0 < held <= 1.02 / n * moments
