"""Ranks that wait for each other in different calls all raise, and name both calls and both lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import outputs, ranks

from jaxpar.distributed.call_log import Begun, deadlock

# ------------------------------------------------------------------------------------------- the law

NAMES = ["step", "barrier", "save"]


def place(calls, needs=None):
    """Where a rank is after these calls."""
    return {
        name: Begun(calls.count(name), needs, max(i for i, c in enumerate(calls) if c == name), name, "")
        for name in calls
    }


@given(st.lists(st.sampled_from(NAMES), max_size=8), st.data())
def test_a_rank_that_is_behind_is_not_elsewhere(calls, data):
    """Whatever two ranks have begun of one sequence, and whenever each was asked."""
    places = {r: place(calls[: data.draw(st.integers(0, len(calls)))]) for r in range(3)}
    assert all(not deadlock(places, r) for r in places)


@given(st.lists(st.sampled_from(NAMES), max_size=5), st.permutations(NAMES), st.integers(0, 2))
def test_two_ranks_that_go_on_with_different_calls_are_apart(common, names, behind):
    places = {0: place([*common, names[0]]), 1: place([*common, names[1]])}
    if behind:  # and a third one that is with neither, or with one
        places[2] = place([*common, names[0]] if behind == 2 else common)
    said = deadlock(places, 0)
    assert f"is at {names[1]}" in said
    assert f"at {names[0]}, rank 1" in said
    assert deadlock(places, 1)
    assert bool(deadlock(places, 2) if behind else 0) is (behind == 2)


def test_what_needs_another_rank_alone_counts():
    """A group of ranks 0 and 2 is none of rank 1's business."""
    theirs, mine = place(["step"], needs=(0, 2)), place(["barrier"])
    assert not deadlock({0: theirs, 1: mine}, 1)
    assert deadlock({0: theirs, 2: mine}, 2)


def test_a_call_that_a_rank_left_out_is_found_in_a_later_one():
    """Rank 0 waits for a step that rank 1 has not dispatched, and both have begun the barrier."""
    places = {0: place(["step", "step", "barrier"]), 1: place(["step", "barrier"])}
    for r in places:
        assert "rank 0 is at step, rank 1 is at barrier" in deadlock(places, r)


def test_the_first_call_that_differs_is_named():
    places = {0: place(["step", "save", "barrier"]), 1: place(["step", "step"])}
    assert "rank 0 is at save, rank 1 is at step" in deadlock(places, 0)


# ------------------------------------------------------------------------------------- real processes

# Each call that needs the others, by the name that errors give it. Those on devices are made on all ranks
# first, so that nothing is new to a rank and it is inside of the compiled program.
CALLS = {
    "train_step": "float(step(x, x))",
    "value_and_grad": "float(other.value_and_grad(loss)(x, x)[0])",
    "all_reduce": "float(dist.all_reduce(1.0))",
    "barrier": "dist.barrier()",
    "check_replicas": "jaxpar.check_replicas(net.module)",
    "Checkpointer.restore": "checkpointer.restore(net=net)",  # which needs rank 0; rank 0 needs nobody
}

SCRIPT = """
import os, sys, time
import jax, numpy as np
from flax import nnx
import jaxpar, jaxpar.distributed as dist
from jaxpar import optim
from jaxpar.distributed import _deadlock_watch

# The watch looks sooner than in use, and LATE is still later than it looks, so that the tests take less time.
_deadlock_watch.TICK, _deadlock_watch.QUIET, LATE = 0.2, 1.0, 2.5

dist.init_process_group(timeout=100)
rank = dist.get_rank()
net = jaxpar.DistributedDataParallel(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))
other = jaxpar.DistributedDataParallel(nnx.Linear(4, 9, rngs=nnx.Rngs(0)))
loss = lambda net, x, y: ((net(x)[:, :4] - y) ** 2).mean()
step = jaxpar.train_step(net, nnx.Optimizer(net, optim.sgd(lr=0.1), wrt=nnx.Param), loss)
checkpointer = jaxpar.Checkpointer(os.environ["RUN"])
x = np.ones((2, 4))
checkpointer.save(0, net=net)
checkpointer.wait()
for _ in range(2):
    float(step(x, x))
    float(other.value_and_grad(loss)(x, x)[0])
    float(dist.all_reduce(1.0))
    dist.barrier()
print("TOGETHER", flush=True)
"""


def script(*by_rank: str) -> str:
    """The calls of each rank after that; the line of rank r's is r + 1 of a file `rank<r>.py`."""
    return SCRIPT + "\n".join(
        f"if rank == {r}: exec(compile({chr(10) * r + call!r}, 'rank{r}.py', 'exec'))"
        for r, call in enumerate(by_rank)
    )


def found_apart(by_rank, names, tmp_path):
    ended = ranks(len(by_rank), script(*by_rank), env={"RUN": str(tmp_path)}, timeout=90)
    for one in ended:
        assert "TOGETHER" in one.out, one.err
        assert one.code == 1, one.err
        assert "The ranks wait for each other in different calls" in one.err
        for r, name in names.items():
            assert f"{name} (rank{r}.py:{r + 1})" in one.err, one.err


ON_DEVICES = ("train_step", "value_and_grad", "all_reduce")
PAIRS = [
    (one, other)
    for i, one in enumerate(CALLS)
    for other in list(CALLS)[i + 1 :]
    if other not in ON_DEVICES  # what gloo does with two programs at once is its own: it ends the process
]


@pytest.mark.slow
@pytest.mark.sampled(7)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_ranks_in_different_calls(one, other, tmp_path):
    found_apart([CALLS[one], CALLS[other]], {0: one, 1: other}, tmp_path)


@pytest.mark.long
@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("other", ["train_step", "value_and_grad"])
def test_a_collective_for_the_first_time_against_a_step(other, tmp_path):
    found_apart(["dist.all_reduce(np.ones(5))", CALLS[other]], {0: "all_reduce", 1: other}, tmp_path)


@pytest.mark.slow
def test_a_step_in_no_sync_for_the_first_time(tmp_path):
    """It needs nobody but for the question whether all have it."""
    new = "exec('with net.no_sync(): net.value_and_grad(loss)(x, x)')"
    ended = ranks(2, script(new, CALLS["barrier"]), env={"RUN": str(tmp_path)}, timeout=90)
    for one in ended:
        assert one.code == 1, one.err
        assert (
            "rank 0 is at step 2 of DistributedDataParallel 1 (<string>:1), rank 1 is at barrier" in one.err
        )


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("call", list(CALLS)[:-1])
def test_one_rank_has_ended(call, tmp_path):
    ended = ranks(2, script(CALLS[call], ""), env={"RUN": str(tmp_path)}, timeout=90)
    for one in ended:
        assert one.code == 1, one.err
        assert f"rank 0 is at {call} (rank0.py:1), rank 1 is at the end of its script" in one.err


THREE = {
    "two against one": ["barrier", "barrier", "train_step"],
    "inside": ["train_step", "Checkpointer.restore", "train_step"],
    "each in its own": ["barrier", "Checkpointer.restore", "train_step"],
}


@pytest.mark.long
@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("names", THREE.values(), ids=THREE)
def test_three_ranks(names, tmp_path):
    ended = ranks(3, script(*(CALLS[name] for name in names)), env={"RUN": str(tmp_path)}, timeout=90)
    for one in ended:
        assert one.code == 1, one.err
        said = [f"{name} (rank{r}.py:{r + 1})" for r, name in enumerate(names)]
        assert len({text for text in said if text in one.err}) >= 2, one.err


SLOW = {
    "in a barrier": "time.sleep(LATE * (rank == 1)); dist.barrier()",
    "in a step": "time.sleep(LATE * (rank == 0)); float(step(x, x)); dist.barrier()",
    "in a step of another shape": "time.sleep(LATE * (rank == 0)); float(step(x[:1], x[:1]))",
    "in a collective": "time.sleep(LATE * (rank == 1)); float(dist.all_reduce(2.0)); float(step(x, x))",
    "on device, ahead": "y = step(x, x); time.sleep(LATE * rank); step(x, x); dist.barrier()",
    "while the other works alone": "time.sleep(LATE * rank); checkpointer.restore(net=net); step(x, x)",
    "at the end": "time.sleep(LATE * rank)",
    "with another number of calls in no_sync": """
with net.no_sync():
    net.value_and_grad(loss)(x, x)
net.value_and_grad(loss)(x, x)
with net.no_sync():
    for _ in range(1 + rank):
        net.value_and_grad(loss)(x, x)
time.sleep(LATE * rank)
dist.barrier()
net.value_and_grad(loss)(x, x)
""",
}


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("late", SLOW.values(), ids=SLOW)
def test_a_slow_rank_is_none_that_is_in_another_call(late, tmp_path):
    for out in outputs(ranks(2, SCRIPT + late, env={"RUN": str(tmp_path)}, timeout=90)):
        assert "TOGETHER" in out
