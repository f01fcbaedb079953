"""TrainStep.state_dict: a step that goes on elsewhere gives the bits that it would have given here."""

from __future__ import annotations

import copy
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from processes import outputs, ranks

import jaxpar
from jaxpar import comm_hooks
from jaxpar.errors import CheckpointError

RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(9, 8, 12).astype(np.float32), RANDOM.randn(9, 8, 6).astype(np.float32)
HALF = jaxpar.Precision("float16", loss_scale=256.0, growth_interval=2)
POWERSGD = comm_hooks.powersgd(1, start_powersgd_iter=2, min_compression_rate=0.5)


def plain(net):
    return net


def data_parallel(net):
    return jaxpar.DataParallel(net, [0, 1, 2, 3])


def distributed(net, replicas=4):
    return jaxpar.DistributedDataParallel(net, range(replicas), comm_hook=POWERSGD)


KINDS = [plain, data_parallel, distributed]


def mse(net, x, y):
    return ((net(x) - y) ** 2).mean()


def parts(kind, precision=HALF, accumulate=3, **options):
    net = kind(nnx.Linear(12, 6, rngs=nnx.Rngs(0), dtype=None if precision is None else jnp.float16))
    optimizer = nnx.Optimizer(net, optax.sgd(0.01, momentum=0.9), wrt=nnx.Param)
    return (
        net,
        optimizer,
        jaxpar.train_step(net, optimizer, mse, accumulate=accumulate, precision=precision, **options),
    )


def bits(net, optimizer, step):
    state = step.state_dict()
    leaves = jax.tree.leaves((nnx.state(net), nnx.state(optimizer), state))
    return [np.asarray(x).tobytes() for x in leaves]


def moved(net, optimizer, step, kind):
    """Another net, optimizer and step in the state of these."""
    state = copy.deepcopy(step.state_dict())
    other = parts(kind)
    for new, old in zip(other[:2], (net, optimizer), strict=True):
        nnx.update(new, jax.tree.map(np.asarray, nnx.state(old)))
    return *other, state


@pytest.mark.sampled(5)
@pytest.mark.full
@pytest.mark.parametrize("calls", [3, 4, 5], ids="after {} calls".format)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_goes_on_with_the_same_bits(kind, calls):
    net, optimizer, step = parts(kind)
    for i in range(calls):
        step(X[i], Y[i])
    *other, state = moved(net, optimizer, step, kind)
    other[2].load_state_dict(state)
    assert bits(*other) == bits(net, optimizer, step)
    for i in range(calls, len(X)):
        assert float(step(X[i], Y[i])) == float(other[2](X[i], Y[i]))
    assert bits(*other) == bits(net, optimizer, step)
    assert (other[2].calls, other[2].updates) == (9, 3)


def without_scale(state):
    state["step"]["scale"] = np.float32(HALF.loss_scale)


def without_the_count(state):
    state["step"]["good"] *= 0


def without_gradients(state):
    state["gradients"] = [0 * x for x in state["gradients"]]


def without_the_hook(state):
    state["hook"] = [0 * x for x in state["hook"]]


LOST = {without_scale: 7, without_the_count: 4, without_gradients: 7, without_the_hook: 7}
"""And after how many calls."""


@pytest.mark.full
@pytest.mark.parametrize("lose", LOST, ids=lambda lose: lose.__name__)
def test_whatever_is_lost_is_missed(lose):
    net, optimizer, step = parts(distributed)
    for i in range(LOST[lose]):
        step(X[i], Y[i])
    *other, state = moved(net, optimizer, step, distributed)
    lose(state)
    other[2].load_state_dict(state)
    for i in range(LOST[lose], 9):
        step(X[i], Y[i])
        other[2](X[i], Y[i])
    assert bits(*other) != bits(net, optimizer, step)


def test_reports_are_counted_on():
    _, _, step = parts(plain, None, 1)
    for i in range(3):
        step(X[i], Y[i])
    other = parts(plain, None, 1)[2]
    other.load_state_dict(step.state_dict())
    other(np.full_like(X[0], np.nan), Y[0])
    with pytest.raises(jaxpar.errors.NonFiniteError, match="at update 3 "):
        other.check()


def two(kind, **options):
    step = parts(kind, **options)[2]
    for i in range(4):
        step(X[i], Y[i])
    return step.state_dict()


WRONG = {
    "another accumulate": (lambda: parts(plain, accumulate=2)[2], plain, "1 updates in 4 calls"),
    "another precision": (lambda: parts(plain, None)[2], plain, "saved with good, scale and keeps trouble"),
    "fewer replicas": (lambda: parts(lambda net: distributed(net, 2))[2], distributed, r"\[4, 6\], and"),
    "another hook": (
        lambda: parts(lambda net: jaxpar.DistributedDataParallel(net, range(4)))[2],
        distributed,
        "arrays, and 2 would fit",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_state_that_does_not_fit_changes_nothing(wrong):
    make, kind, message = WRONG[wrong]
    step, state = make(), two(kind)
    before = step.state_dict()
    with pytest.raises(CheckpointError, match=message):
        step.load_state_dict(state)
    after = step.state_dict()
    assert jax.tree.structure(after) == jax.tree.structure(before)
    assert all(map(np.array_equal, jax.tree.leaves(after), jax.tree.leaves(before)))


def test_at_the_end_of_an_accumulation_the_updates_tell_how_long_it_was():
    step = parts(plain, accumulate=3)[2]
    for i in range(3):
        step(X[i], Y[i])
    with pytest.raises(CheckpointError, match="1 updates in 3 calls"):
        parts(plain, accumulate=1)[2].load_state_dict(step.state_dict())


def test_something_else_is_no_state():
    with pytest.raises(CheckpointError, match="has no gradients, hook, step, updates"):
        parts(plain)[2].load_state_dict({"calls": 1})


TWO = """
import sys
sys.path.insert(0, "tests")
import numpy as np
import jaxpar
jaxpar.distributed.init_process_group()
import test_step_state as t

def distributed(net):
    return jaxpar.DistributedDataParallel(net, comm_hook=t.POWERSGD)

rank = jaxpar.distributed.get_rank()
half = slice(4 * rank, 4 * rank + 4)
net, optimizer, step = t.parts(distributed)
for i in range(7):
    step(t.X[i, half], t.Y[i, half])
*other, state = t.moved(net, optimizer, step, distributed)
shapes = [x.shape for x in state["gradients"]]
print("KEPT", shapes, [float(abs(x[0] - x[-1]).max()) > 0 for x in state["gradients"]])
other[2].load_state_dict(state)
for i in (7, 8):
    assert float(step(t.X[i, half], t.Y[i, half])) == float(other[2](t.X[i, half], t.Y[i, half]))
assert t.bits(*other) == t.bits(net, optimizer, step)
print("SAME")
jaxpar.distributed.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.slow
def test_in_two_processes():
    """Both ranks have the kept gradients and the hook's errors of all replicas."""
    for out in outputs(ranks(2, TWO, devices=2)):
        assert "KEPT [(4, 6), (4, 12, 6)] [True, True]" in out
        assert "SAME" in out


RUN = """
import hashlib, os, signal, sys
sys.path.insert(0, "tests")
import jaxpar
jaxpar.distributed.init_process_group()
import test_step_state as t

def distributed(net):
    return jaxpar.DistributedDataParallel(net, comm_hook=t.POWERSGD)

folder, killed = sys.argv[1], sys.argv[2:] == ["killed"]
rank, size = jaxpar.distributed.get_rank(), jaxpar.distributed.get_world_size()
mine = slice(8 // size * rank, 8 // size * (rank + 1))
net, optimizer, step = t.parts(distributed)
with jaxpar.Checkpointer(folder, save_every=1) as checkpointer:
    begin = 0
    if checkpointer.latest_valid() is not None:
        begin = checkpointer.restore(net=net, optimizer=optimizer, trainer=step).step
        print("FROM", begin, "kept", begin % 3)
    for i in range(begin, 9):
        step(t.X[i, mine], t.Y[i, mine])
        if killed and i == 4:  # the second of three batches that make an update
            checkpointer.save(i + 1, net=net, optimizer=optimizer, trainer=step)
            checkpointer.wait()
        if killed and i == 5:
            os.kill(os.getpid(), signal.SIGKILL)
bits = b"".join(t.bits(net, optimizer, step))
print("BITS", len(bits), hashlib.sha256(bits).hexdigest())
jaxpar.distributed.destroy_process_group()
"""


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_was_killed_between_two_updates(processes, tmp_path):
    """float16, accumulation, PowerSGD: what new processes restore gives the bits of a run that lived."""

    def run(*arguments):
        source = f"import sys\nsys.argv[1:] = {[str(a) for a in arguments]!r}\n{RUN}"
        return ranks(processes, source, devices=4 // processes)

    straight = outputs(run(tmp_path / "straight"))
    assert {ended.code for ended in run(tmp_path / "folder", "killed")} == {-signal.SIGKILL}
    again = outputs(run(tmp_path / "folder"))
    assert all("FROM 5 kept 2" in out for out in again)

    def bits(outs):
        return [line for out in outs for line in out.splitlines() if line.startswith("BITS")]

    assert len(bits(straight)) == processes
    assert bits(again) == bits(straight)
