"""Ranks that would silently do different things are stopped; copies that drifted apart are named."""

from __future__ import annotations

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from processes import outputs, ranks

import jaxpar
from jaxpar import errors
from jaxpar.distributed.guard import compare_environments, fingerprint
from jaxpar.distributed.step_agreement import difference, ledger

# ------------------------------------------------------------------------- ranks, while they train

LOOP = """
import jaxpar.distributed as dist
from jaxpar.distributed.step_agreement import ledger

dist.init_process_group(timeout=60)
r = dist.get_rank()
book = ledger("training")
for step in range(40):
    rows = 6 if (step, r) == (CHANGED, BAD) else 4
    book.check(step, rows, lambda: {"mode": "train", "batch['x']": f"float32[{rows}, 3]"})
    dist.all_reduce(1.0)  # the collective in which the others wait
print("TRAINED", flush=True)
"""


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize(("bad", "n"), [(1, 2), (0, 2), (2, 3)])
def test_one_rank_has_another_batch_while_the_others_wait_in_a_collective(bad, n):
    ended = ranks(n, LOOP.replace("CHANGED", "20").replace("BAD", str(bad)), timeout=60)
    assert [one.code for one in ended] == [1] * n, [one.err[-2000:] for one in ended]
    for one in ended:
        assert "step 20 of training: the ranks differ in batch['x']" in one.err
        assert f"rank {bad} has float32[6, 3]" in one.err
        assert "has float32[4, 3]" in one.err or "have float32[4, 3]" in one.err
        assert "TRAINED" not in one.out


HEALTHY = """
import os, time
import numpy as np, jax, jax.numpy as jnp
import jaxpar, jaxpar.distributed as dist
from jaxpar import errors
from jaxpar.distributed import guard as module
from jaxpar.distributed.step_agreement import ledger
from flax import nnx

dist.init_process_group(timeout=60)
r = dist.get_rank()
book = ledger("healthy")
for step in range(30):  # both see something for the first time, one of them later than the other
    if step % 10 == r:
        time.sleep(0.05)
    rows = 4 + step // 10
    book.check(step, rows, lambda: {"x": f"float32[{rows}, 3]"})
    if step % 2:
        dist.barrier()
for step in range(10_000):  # far ahead of each other
    book.check(100 + step, "y", lambda: {"x": "float32[4, 3]", "y": "1"})
print("HEALTHY")

caught = ledger("caught")
try:
    for step in range(1000):  # rank 0 sees nothing unusual, and hears of it at one of its next steps
        x = "6" if (step, r) == (2, 1) else "4"
        caught.check(step, x, lambda: {"x": x})
        time.sleep(0.01)
except errors.DivergenceError as error:
    print("CAUGHT", error)
dist.barrier()

if r == 1:
    plain = module.fingerprint
    module.fingerprint = lambda: plain() | {"jax_enable_x64": "Perhaps"}
try:
    module.compare_environments("configured")
except errors.DivergenceError as error:
    print("CONFIGURED", error)

def copies(tree):
    try:
        jaxpar.check_replicas(tree)
    except errors.DivergenceError as error:
        print("COPIES", error)
    else:
        print("COPIES same")

big = np.arange(300_000.0)
copies({"a": big, "b": jnp.arange(3), "n": 2})
big[123_456] += r / 2
copies({"b": jnp.arange(3), "big": big.reshape(1000, 300)})
copies({"a": jnp.ones(3 + r)})
copies({"a": jnp.ones(3, jnp.float32 if r else jnp.float64)})
copies({"ab"[r]: jnp.ones(3)})
net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
copies(net)
if r:
    net.bias.set_raw_value(-net.bias[...])
copies(net)
copies(nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
copies(jax.random.key(r))
def zero():
    jaxpar.check_replicas(np.zeros(2))
def one():
    jaxpar.check_replicas(np.ones(2))
try:
    (one if r else zero)()
except errors.DivergenceError as error:
    print("LINES", error)
"""


REFUSED = """
import numpy as np, jaxpar.distributed as dist
from jaxpar import errors

dist.init_process_group(timeout=60)
r = dist.get_rank()
try:
    dist.all_reduce(np.ones(2 + r))
except errors.DivergenceError as error:
    print("REFUSED", error)
for n in range(2, 6):  # also the shapes that were refused
    assert dist.all_reduce(np.ones(n)).tolist() == [dist.get_world_size()] * n
print("GOES ON")
"""


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
def test_a_collective_that_all_ranks_refuse_leaves_the_group_usable(n):
    for out in outputs(ranks(n, REFUSED, timeout=60)):
        assert out.count("of collectives: the ranks differ in x: rank 0 has float") == 1
        assert "end the job" not in out
        assert "GOES ON" in out


INSIDE = """
import numpy as np, jaxpar.distributed as dist
from jaxpar import errors

dist.init_process_group(timeout=60)
r = dist.get_rank()
dist.all_reduce(np.ones(2))
try:
    dist.all_reduce(np.ones(9 if r else 2))
except errors.DivergenceError as error:
    print("REFUSED", error, flush=True)
dist.all_reduce(np.ones(2))
"""


@pytest.mark.slow
def test_a_collective_that_another_rank_is_in_ends_the_job():
    zero, one = ranks(2, INSIDE, timeout=60)
    assert zero.code != 0
    assert one.code != 0
    for said in (one.out, one.err):  # the first time, and at every other call
        assert "Rank 0 went on into it and cannot come back: end the job." in said


@pytest.mark.slow
def test_healthy_ranks_pass_and_drifted_copies_are_named():
    zero, one = outputs(ranks(2, HEALTHY))
    for out in (zero, one):
        assert "HEALTHY" in out
        want = (
            "CONFIGURED configured: the ranks differ in jax_enable_x64: rank 0 has True, rank 1 has Perhaps."
        )
        assert want in out
        said = [line[len("COPIES ") :] for line in out.splitlines() if line.startswith("COPIES")]
        assert said[0] == "same"
        assert (
            "tree['big'] (float64[1000, 300]) is not the same on rank 0 and rank 1: element [411, 156]"
            in said[1]
        )
        assert "is 123456.0 on rank 0 and 123456.5 on rank 1" in said[1]
        assert re.search(r" It was called at \S+:\d+\.$", said[1])
        first, second = re.search(r" at \S+:(\d+) on rank 0, \S+:(\d+) on rank 1\.\n", out).groups()
        assert int(second) == int(first) + 2
        assert "tree['a'] is float64[3] on rank 0, float64[4] on rank 1. It was called at " in said[2]
        assert "tree['a'] is float64[3] on rank 0, float32[3] on rank 1. It was called at " in said[3]
        assert "the ranks differ in tree['a']: rank 0 has 1, rank 1 has nothing" in said[4]
        assert said[5] == "same"
        assert "module.bias (float32[3]) is not the same" in said[6]
        assert "element [0] is 0.0 on rank 0 and -0.0 on rank 1" in said[6]
        assert said[7] == "same"
        assert "element [1] is 0 on rank 0 and 1 on rank 1" in said[8]
        # A rank that handles the error does not keep it from the others.
        assert "CAUGHT step 2 of caught: the ranks differ in x: rank 0 has 4, rank 1 has 6." in out


# ------------------------------------------------------------------------------------- without ranks


def test_alone_the_guard_compares_nothing():
    compare_environments("alone")
    assert ledger("alone") is None
    assert fingerprint()["world"] == "1"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({0: {"x": "a"}, 1: {"x": "a"}}, ""),
        ({0: {"x": "a"}, 1: {}}, ""),  # nothing is known of rank 1
        ({0: {"x": "a"}, 1: {"x": "b"}}, "here: the ranks differ in x: rank 0 has a, rank 1 has b."),
        (
            {0: {"x": "a"}, 1: {"x": "b"}, 2: {"x": "a"}},
            "here: the ranks differ in x: ranks 0, 2 have a, rank 1 has b.",
        ),
        (
            {0: {"x": "a", "y": "1"}, 1: {"x": "a"}},
            "here: the ranks differ in y: rank 0 has 1, rank 1 has nothing.",
        ),
    ],
)
def test_difference(parts, text):
    assert difference("here", parts) == text


# ------------------------------------------------------------------------- copies on several devices


def replicated(*copies):
    mesh = jax.sharding.Mesh(np.array(jaxpar.devices()[: len(copies)]), ("d",))
    parts = [jax.device_put(c, d) for c, d in zip(copies, jaxpar.devices(), strict=False)]
    return jax.make_array_from_single_device_arrays(copies[0].shape, NamedSharding(mesh, P()), parts)


def test_equal_copies_pass():
    x = np.array([1.0, np.nan, -0.0])
    jaxpar.check_replicas({"x": replicated(x, x, x), "key": jax.random.key(0), "n": 3, "s": "text"})
    jaxpar.check_replicas(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    mesh = jax.sharding.Mesh(np.array(jaxpar.devices()[:4]), ("d",))
    jaxpar.check_replicas(jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d"))))  # no copies at all


FAULTS = {
    "a value": (
        np.array([[1.0, 2.0], [3.0, 4.0]]),
        (1, 0),
        3.5,
        r"element \[1, 0\] is 3\.0 on cpu:0 and 3\.5 on cpu:2",
    ),
    "a sign of zero": (
        np.zeros((2, 2)),
        (0, 1),
        -0.0,
        r"element \[0, 1\] is 0\.0 on cpu:0 and -0\.0 on cpu:2",
    ),
    "an integer": (np.zeros(5, np.int8), (4,), 1, r"element \[4\] is 0 on cpu:0 and 1 on cpu:2"),
    "a flag": (np.zeros(2, bool), (1,), True, r"element \[1\] is False on cpu:0 and True on cpu:2"),
    "a number": (np.array(1.0), (), 2.0, r"element \[\] is 1\.0 on cpu:0 and 2\.0 on cpu:2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_copy_that_differs_is_named(fault):
    x, place, wrong, text = FAULTS[fault]
    bad = x.copy()
    bad[place] = wrong
    with pytest.raises(errors.DivergenceError, match=r"check_replicas: tree\['net'\]\[1\] \(.*" + text):
        jaxpar.check_replicas({"a": replicated(x, x, x), "net": [replicated(x, x), replicated(x, x, bad)]})


def test_the_line_of_the_call_is_named():
    line = inspect.currentframe().f_lineno + 2
    with pytest.raises(errors.DivergenceError) as caught:
        jaxpar.check_replicas(replicated(np.ones(2), np.zeros(2)))
    assert re.search(rf" It was called at \S*test_guard\.py:{line}\.$", str(caught.value))


def test_a_parameter_that_drifted_on_one_device():
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    kernel = np.asarray(net.kernel[...])
    net.kernel.set_raw_value(replicated(kernel, kernel * (1 + 1e-7)))
    with pytest.raises(errors.DivergenceError, match=r"module\.kernel .* is not the same on cpu:0 and cpu:1"):
        jaxpar.check_replicas(net)
