"""jaxpar.distributed: what the ranks get is what numpy computes from all of them, bit for bit."""

from __future__ import annotations

import datetime
import functools
import operator
import os
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from collectives import DTYPES, FLOATS, reports, value
from processes import ROOT, environment, free_port, outputs, ranks

import jaxpar
import jaxpar.distributed as dist
from jaxpar import errors
from jaxpar.distributed import _new_group, connecting, group

COLLECTIVES = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
import jaxpar.distributed as dist
from collectives import DTYPES, FLOATS, report, value

dist.init_process_group("gloo", timeout=60)
r, W = dist.get_rank(), dist.get_world_size()
x = {{dtype: value(dtype, r) for dtype in DTYPES}}
for op in ("sum", "product"):
    report(f"all_reduce {{op}}", dist.all_reduce(x, op))
real = {{k: v for k, v in x.items() if "complex" not in k}}
for op in ("max", "min"):
    report(f"all_reduce {{op}}", dist.all_reduce(real, op))
report("all_reduce mean", dist.all_reduce({{k: x[k] for k in FLOATS}}, "mean"))
for k, every in enumerate(dist.all_gather(x)):
    report(f"all_gather {{k}}", every)
report("broadcast", dist.broadcast(x, W - 1))
pieces = [{{k: v + v.dtype.type(j % 2) for k, v in x.items()}} for j in range(W)]
report("reduce_scatter of a list", dist.reduce_scatter(pieces))
import numpy as np
rows = {{k: np.resize(v, (2 * W, 2)) for k, v in real.items()}}
report("reduce_scatter of rows", dist.reduce_scatter(rows, "max"))
import jax, jax.numpy as jnp
odd = jnp.array([-0.0, jnp.nan, jnp.inf, 5e-324])
report("broadcast of odd bits", {{"x": dist.broadcast(odd if r == 0 else jnp.ones(4), 0)}})
report("broadcast of a key", {{"x": jax.random.key_data(dist.broadcast(jax.random.key(r), 1))}})
report("numbers", {{"x": dist.all_reduce(r + 0.5), "y": dist.all_reduce(np.float32(r))}})
assert dist.all_reduce(None) is None
for bad, why in [
    (lambda: dist.all_reduce(jnp.arange(3), "mean"), "x is int64[3]: only floats"),
    (lambda: dist.all_reduce({{"a": 1j}}, "max"), "x['a'] is complex128[]: complex numbers have no max"),
    (lambda: dist.all_reduce(jax.random.key(0)), "random keys are not numbers"),
    (lambda: dist.all_reduce("text"), "x is a str"),
    (lambda: dist.all_reduce(1.0, "avg"), "op='avg' is unknown"),
    (lambda: dist.broadcast(1.0, W), f"src={{W}} is not a rank"),
    (lambda: dist.reduce_scatter(jnp.ones(W + 1)), "cannot be shared out evenly"),
    (lambda: dist.reduce_scatter([1.0] * (W + 1)), f"a list of {{W + 1}} for {{W}} ranks"),
]:
    try:
        bad()
    except Exception as error:
        assert why in str(error), error
    else:
        raise AssertionError(why)
"""


@functools.cache
def collectives(n: int) -> list[dict]:
    return [
        reports(out) for out in outputs(ranks(n, COLLECTIVES, env={"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}))
    ]


def fold(function, arrays):
    total = functools.reduce(function, arrays)
    return total.astype(arrays[0].dtype)


def wanted(n: int) -> dict[str, list[dict]]:
    """What numpy makes of all ranks' values: for each case one tree for each rank."""
    x = {dtype: [value(dtype, r) for r in range(n)] for dtype in DTYPES}
    real = {k: v for k, v in x.items() if "complex" not in k}
    flags = {"sum": np.logical_or, "max": np.logical_or, "product": np.logical_and, "min": np.logical_and}
    plain = {"sum": operator.add, "max": np.maximum, "product": operator.mul, "min": np.minimum}

    def reduced(op, trees):
        return {k: fold(flags[op] if k == "bool" else plain[op], v) for k, v in trees.items()}

    def everywhere(tree):
        return [tree] * n

    found = {f"all_reduce {op}": everywhere(reduced(op, x)) for op in ("sum", "product")}
    found |= {f"all_reduce {op}": everywhere(reduced(op, real)) for op in ("max", "min")}
    total = reduced("sum", {k: x[k] for k in FLOATS})
    mean = {k: (v / v.dtype.type(n)).astype(v.dtype) for k, v in total.items() if v.dtype.kind != "c"}
    mean["complex128"] = total["complex128"].real / n + 1j * (total["complex128"].imag / n)
    found["all_reduce mean"] = everywhere(mean)
    for k in range(n):
        found[f"all_gather {k}"] = everywhere({dtype: v[k] for dtype, v in x.items()})
    found["broadcast"] = everywhere({dtype: v[n - 1] for dtype, v in x.items()})
    found["reduce_scatter of a list"] = [
        reduced("sum", {k: [a + a.dtype.type(j % 2) for a in v] for k, v in x.items()}) for j in range(n)
    ]
    top = reduced("max", {k: [np.resize(a, (2 * n, 2)) for a in v] for k, v in real.items()})
    found["reduce_scatter of rows"] = [{k: v[2 * j : 2 * j + 2] for k, v in top.items()} for j in range(n)]
    found["broadcast of odd bits"] = everywhere({"x": np.array([-0.0, np.nan, np.inf, 5e-324])})
    found["broadcast of a key"] = everywhere({"x": np.array([0, 1], np.uint32)})
    numbers = {"x": np.float64(sum(range(n)) + n / 2), "y": np.float32(sum(range(n)))}
    found["numbers"] = everywhere(numbers)
    return found


def compare(got: list[dict], want: dict[str, list[dict]]) -> None:
    for rank, cases in enumerate(got):
        assert cases.keys() == want.keys()
        for case, tree in cases.items():
            for name, x in want[case][rank].items():
                y, where = tree[name], (case, name, rank)
                assert (y.dtype, y.shape) == (x.dtype, x.shape), where
                assert y.tobytes() == np.asarray(x).tobytes(), (where, y, x)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.long)])
def test_collectives_are_numpys_bit_for_bit(n):
    compare(collectives(n), wanted(n))


def test_a_planted_fault_in_a_collective_is_found():
    want = wanted(2)
    got = [{case: dict(trees[rank]) for case, trees in want.items()} for rank in range(2)]
    compare(got, want)
    for case, name, fault in [
        ("all_reduce sum", "bfloat16", lambda x: x + x.dtype.type(0.25)),
        ("broadcast of odd bits", "x", np.abs),
        ("all_reduce max", "int8", lambda x: x.astype("int16")),
        ("reduce_scatter of rows", "bool", lambda x: x[None]),
    ]:
        bad = [dict(got[0]), dict(got[1])]
        bad[1][case] = dict(bad[1][case]) | {name: fault(want[case][1][name])}
        with pytest.raises(AssertionError):
            compare(bad, want)


LIFE = """
import os, signal, time
import jaxpar
import jaxpar.distributed as dist
from jaxpar import errors
from jaxpar.distributed import _process_group
from jaxpar.distributed.exchange import _client, exchange

dist.init_process_group(timeout=60)
r, W = dist.get_rank(), dist.get_world_size()
assert (W, dist.is_initialized()) == (2, True)
try:
    dist.init_process_group()
except errors.GroupError as error:
    assert str(error) == "trying to initialize the default process group twice!"

for i in range(20):  # the store does not grow
    assert exchange("word", f"{i} of {r}") == [f"{i} of 0", f"{i} of 1"]
dist.barrier()
keys = _client().key_value_dir_get("jaxpar/1/word/")
assert len(keys) == 2, keys
dist.barrier()

if r == 0:  # torch's text, and the next barrier works again
    try:
        dist.monitored_barrier(timeout=0.5)
    except errors.DistributedError as error:
        print("MONITORED", error)
else:
    time.sleep(1.0)
    dist.monitored_barrier(timeout=5)
dist.barrier()
try:
    exchange("alone" if r == 0 else "alone too", "", 0.5)
except errors.DistributedError as error:
    print("EXCHANGE", error)
dist.barrier()

if r == 1:  # SIGTERM to one of them: both leave at one step
    os.kill(os.getpid(), signal.SIGTERM)
for step in range(50_000):  # JAX tells the ranks within about a second
    if dist.preempted(step):
        print("PREEMPTED", step)
        break
    dist.barrier()
dist.destroy_process_group()
assert not dist.is_initialized()
dist.init_process_group(timeout=60)  # another group in the same process, at the same address
assert float(dist.all_reduce(r + 1.0)) == 3.0
assert exchange("word", str(r)) == ["0", "1"]
print("END")  # and no destroy: the end of the process is one
"""


@pytest.mark.slow
def test_a_group_from_beginning_to_end():
    zero, one = outputs(ranks(2, LIFE, devices=2))
    assert "MONITORED Rank 1 failed to pass monitoredBarrier in 500 ms" in zero
    assert "EXCHANGE exchange 'alone': rank 1 did not come within 0.5 s; rank 0 did." in zero
    assert "EXCHANGE exchange 'alone too': rank 0 did not come" in one
    steps = [next(line for line in out.splitlines() if "PREEMPTED" in line) for out in (zero, one)]
    assert steps[0] == steps[1]
    assert "END" in zero
    assert "END" in one


FORKED = """
import os, sys, warnings
import jaxpar.distributed as dist
warnings.simplefilter("ignore")  # JAX's, about forks
dist.init_process_group(timeout=60)
ends = {}
for end in ("exit", "raise", "barrier"):
    child = os.fork()
    if child == 0:
        assert dist.get_rank() == int(os.environ["RANK"])
        if end == "exit":
            sys.exit(7)
        dist.barrier() if end == "barrier" else 1 / 0
    ends[end] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
dist.barrier()  # no child left the group in its parent's name
print("CODES", ends)
"""


@pytest.mark.slow
def test_a_forked_child_ends_alone():
    for one in ranks(2, FORKED, timeout=60):
        assert (one.code, one.out) == (0, "CODES {'exit': 7, 'raise': 1, 'barrier': 1}\n")
        assert "ZeroDivisionError" in one.err
        assert "it is a child of os.fork" in one.err
        assert "stack trace" not in one.err  # of C++


PRINTS = """
import sys, tempfile
import numpy as np, optax
from flax import nnx
import jaxpar, jaxpar.distributed as dist
dist.init_process_group(timeout=60)
print("begins", flush=True)
net = jaxpar.DistributedDataParallel(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, lambda net, x: net(x).sum())
step(np.ones((4, 4)))
print("first step")
dist.all_reduce(np.ones(2))
dist.all_reduce(np.ones(2), group=dist.new_group([1, 0], sort_ranks=False))
folder = dist.broadcast_object_list([tempfile.mkdtemp()])[0]
with jaxpar.Checkpointer(folder) as checkpoints:
    checkpoints.save(1, step=step)
    checkpoints.save(2, step=step)
print("saved")
"""


@pytest.mark.slow
def test_a_training_that_saves_prints_what_its_user_prints():
    for one in ranks(2, PRINTS, devices=2):
        assert (one.code, one.out) == (0, "begins\nfirst step\nsaved\n"), one.err
        assert [line for line in one.err.splitlines() if not line.startswith("jaxpar: compil")] == []


def test_only_gloos_lines_are_left_out(capfd):
    gloo = b"[Gloo] Rank %d is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
    with connecting.without_gloo():
        for text in (b"a\n", gloo % 0, b"half of a line", gloo % 1, b", [Gloo] Rank 0 and more\n"):
            os.write(1, text)
    os.write(1, b"b\n")
    assert capfd.readouterr().out == "a\nhalf of a line, [Gloo] Rank 0 and more\nb\n"


OTHERS = """
import time
import jaxpar.distributed as dist
dist.init_process_group(timeout=60)
r = dist.get_rank()
for i in range(5):
    x = [1.0] * 7 if (i, r) == (3, 1) else [1.0] * 6
    dist.all_reduce({"grad": __import__("numpy").array(x)})
print("END")
"""


@pytest.mark.slow
def test_other_shapes_on_another_rank():
    for one in ranks(2, OTHERS):
        assert one.code == 1
        assert "END" not in one.out
        assert "step 4 of collectives: the ranks differ in x['grad']" in one.err
        assert "rank 0 has float64[6], rank 1 has float64[7]" in one.err
        assert re.search(r"Ranks 0, 1 are at .*:\d+\.", one.err)


# ----------------------------------------------------------------------------------- a world of one


@pytest.fixture
def alone(monkeypatch):
    for name in environment(0, 1, 1):
        if name.startswith(("RANK", "WORLD", "LOCAL", "MASTER")):
            monkeypatch.delenv(name, raising=False)
    dist.init_process_group()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_alone_every_word_is_the_identity(alone):
    x = {"a": np.arange(3.0), "b": [np.int8(4)]}
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    for op in ("sum", "max", "min", "product"):
        np.testing.assert_array_equal(dist.all_reduce(x, op)["a"], x["a"])
    assert dist.all_reduce(x)["b"][0].dtype == np.int8
    assert len(dist.all_gather(x)) == 1
    np.testing.assert_array_equal(dist.broadcast(x)["a"], x["a"])
    np.testing.assert_array_equal(dist.reduce_scatter(np.arange(4.0)), np.arange(4.0))
    assert float(dist.reduce_scatter([2.5])) == 2.5
    dist.barrier()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
    with pytest.raises(errors.GroupError, match="twice"):
        dist.init_process_group()
    dist.destroy_process_group()
    assert not dist.is_initialized()


def test_a_group_that_the_ranks_do_not_agree_on_is_none(alone, monkeypatch):
    def disagree(*args):
        raise errors.DivergenceError("as planned")

    monkeypatch.setattr(_new_group, "_agree", disagree)
    before = dict(group._process.subgroups)
    with pytest.raises(errors.DivergenceError, match="as planned"):
        dist.new_group([0])
    assert group._process.subgroups == before


def test_without_a_group_torchs_error():
    for call in (
        dist.get_rank,
        dist.get_world_size,
        dist.barrier,
        dist.monitored_barrier,
        dist.destroy_process_group,
        lambda: dist.all_reduce(1.0),
        lambda: dist.all_gather(1.0),
        lambda: dist.broadcast(1.0),
        lambda: dist.reduce_scatter([1.0]),
    ):
        with pytest.raises(ValueError, match=r"^Default process group has not been initialized"):
            call()
    assert not dist.is_initialized()


def test_a_world_of_one_needs_no_address(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    assert dist.get_world_size() == 1
    dist.destroy_process_group()
    dist.init_process_group(init_method=f"tcp://127.0.0.1:{free_port()}?rank=0&world_size=1")
    dist.destroy_process_group()


def test_preempted_alone(monkeypatch):
    from jaxpar.distributed import _preemption as _preempted

    monkeypatch.setattr(_preempted, "_signal", _preempted._Signal())
    before, heard = signal.getsignal(signal.SIGTERM), []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        assert not dist.preempted(0)
        signal.raise_signal(signal.SIGTERM)
        assert dist.preempted(1)
        assert heard == [1]
    finally:
        signal.signal(signal.SIGTERM, before)


class JaxManager:
    """Agrees as JAX does: on the step after the highest asked about, compared for equality."""

    def __init__(self, others: int) -> None:
        self.counter, self.others, self.agreed = 0, others, None

    def notice(self) -> None:
        self.agreed = max(self.counter, self.others) + 1

    def reached(self, step: int) -> bool:
        self.counter = step
        return step == self.agreed


PREEMPTIONS = {  # steps; before which SIGTERM comes; what the others have asked about; where to stop
    "every step": (range(40), 7, 6, 7),
    "before the first, from 0": (range(40), 0, 0, 1),
    "before the first of a resumed run": (range(25, 60), 25, 0, 25),
    "every tenth step": (range(0, 100, 10), 30, 20, 30),
    "every tenth step, and the others are ahead": (range(0, 100, 10), 30, 30, 40),
    "twice in each step": ([0, 0, 1, 1, 2, 2, 3, 3], 2, 1, 2),
    "an epoch's number in between": ([5, 6, 7, 1, 8, 9], 8, 7, 8),
    "an epoch that counts from 0, and some of its steps": ([5, 6, 7, 0, 4, 8], 4, 0, 4),
}


@pytest.mark.parametrize("case", PREEMPTIONS)
def test_no_step_passes_a_sigterm_by(case, monkeypatch):
    from jaxpar import _upstream
    from jaxpar.distributed import _preemption

    steps, before, others, expected = PREEMPTIONS[case]
    manager = JaxManager(others)
    monkeypatch.setattr(_preemption, "_signal", _preemption._Signal())
    monkeypatch.setattr(_preemption, "current", lambda: SimpleNamespace(size=2, generation=1))
    monkeypatch.setattr(_upstream, "reached_preemption_sync_point", manager.reached)
    stopped = None
    for step in steps:
        if step == before and manager.agreed is None:
            manager.notice()
        if dist.preempted(step):
            stopped = step
            break
    assert stopped == expected


def test_another_group_counts_from_the_beginning(monkeypatch):
    from jaxpar import _upstream
    from jaxpar.distributed import _preemption

    monkeypatch.setattr(_preemption, "_signal", _preemption._Signal())
    for generation in (1, 2):
        manager = JaxManager(0)
        group = SimpleNamespace(size=2, generation=generation)
        monkeypatch.setattr(_preemption, "current", lambda group=group: group)
        monkeypatch.setattr(_upstream, "reached_preemption_sync_point", manager.reached)
        manager.notice()
        assert dist.preempted(50)


def test_a_bad_platform(alone):
    dist.destroy_process_group()
    with pytest.raises(errors.BackendError, match=r"backend='nccl' is for gpu devices, and JAX runs on cpu"):
        dist.init_process_group("nccl")
    assert not dist.is_initialized()
    text = r"JAX has started already, alone, .* (JAX was started at \S+:\d+|What started JAX is unknown)"
    with pytest.raises(errors.BackendError, match=text):
        dist.init_process_group(init_method="tcp://127.0.0.1:1", rank=0, world_size=2)
    assert jaxpar.distributed is dist
