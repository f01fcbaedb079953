"""Who calls `save`: rank 0 alone, as in torch's tutorials, or all ranks; and what each gets back."""

from __future__ import annotations

import json

import pytest
from processes import outputs, ranks

START = """
import os, pathlib, signal, time, warnings
import jax, numpy as np
from flax import nnx
import jaxpar, jaxpar.distributed as dist
from jaxpar import optim
from jaxpar.errors import CheckpointError, DivergenceError

dist.init_process_group(timeout=100)
rank, size = dist.get_rank(), dist.get_world_size()
folder = pathlib.Path(os.environ["RUN"])

class Net(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.dropout = nnx.Linear(4, 4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
    def __call__(self, x):
        return self.dropout(self.linear(x))

class Place:
    def __init__(self, at):
        self.at = at
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]

def made(seed):
    net = jaxpar.DistributedDataParallel(Net(rngs=nnx.Rngs(seed)))
    return net, nnx.Optimizer(net, optim.adam(lr=0.1), wrt=nnx.Param)

def bits(*nodes):
    leaves = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
              for x in jax.tree.leaves(nnx.state(nodes))]
    return [np.asarray(x).tobytes() for x in leaves]

net, optimizer = made(0)
loss = lambda net, x: (net(x) ** 2).mean()
step = jaxpar.train_step(net, optimizer, loss)
x = np.ones((2, 4)) * (1 + rank)
"""

TUTORIAL = """
CHECKPOINTER
for epoch in range(4):
    for _ in range(3):
        step(x)
    if rank == 0:
        assert checkpointer.save(epoch, net=net, optimizer=optimizer, train_step=step, epoch=epoch)
at_the_end = bits(net, optimizer)
if rank == 0:
    checkpointer.close()
dist.barrier()
net, optimizer = made(1)
reader = jaxpar.Checkpointer(folder)
assert reader.latest_step() == 3
found, trees = reader.restore(net=net, optimizer=optimizer, epoch=0)
assert (found, trees) == (3, {"epoch": 3})
assert bits(net, optimizer) == at_the_end
assert dist.all_reduce(np.ones(1))[0] == size
print("DONE")
"""


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "made",
    [
        "checkpointer = jaxpar.Checkpointer(folder)",
        "checkpointer = jaxpar.Checkpointer(folder, asynchronous=False)",
        "checkpointer = jaxpar.Checkpointer(folder) if rank == 0 else None",
    ],
    ids=["on all ranks", "synchronous", "on rank 0"],
)
def test_the_line_of_the_tutorials(made, n, tmp_path):
    script = START + TUTORIAL.replace("CHECKPOINTER", made)
    for out in outputs(ranks(n, script, env={"RUN": str(tmp_path)})):
        assert "DONE" in out


NANOGPT = """
checkpointer = jaxpar.Checkpointer(folder)
net = jaxpar.DistributedDataParallel(Net(rngs=nnx.Rngs(0)))
optimizer = optim.Optimizer(net, optim.adam(lr=0.1))
step = jaxpar.train_step(net, optimizer, loss, accumulate=2)
for iteration in range(6):
    optimizer.lr = 0.1 / (1 + iteration)
    if iteration % 2 == 0 and rank == 0:
        assert checkpointer.save(iteration, net=net, optimizer=optimizer, iteration=iteration)
    for _ in range(2):
        step(x)
if rank == 0:
    checkpointer.close()
    assert jaxpar.Checkpointer(folder).latest_step() == 4
dist.barrier()
print("DONE", step.updates)
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_rate_in_every_iteration_and_a_save_on_rank_0_alone(n, tmp_path):
    for out in outputs(ranks(n, START + NANOGPT, env={"RUN": str(tmp_path)})):
        assert "DONE 6" in out


ALONE = """
checkpointer = jaxpar.Checkpointer(folder)
step(x)
if rank == 0:
    checkpointer.save(7, net=net, optimizer=optimizer)
    checkpointer.wait()
while not (folder / "7").exists():  # in no call: rank 0 must not need this rank
    time.sleep(0.05)
step(x)
print("DONE")
"""


@pytest.mark.slow
def test_what_all_ranks_hold_alike_waits_for_nobody(tmp_path):
    for out in outputs(ranks(2, START + ALONE, env={"RUN": str(tmp_path)}, timeout=60)):
        assert "DONE" in out


OWN = """
checkpointer = jaxpar.Checkpointer(folder)
step(x)
if rank == 0:
    checkpointer.save(1, place=Place(10 + rank), rngs=nnx.Rngs(rank), epoch=5, seen={"rows": 3})
step(x)
if rank in (0, 2):
    checkpointer.save(2, place=Place(20 + rank), rngs=nnx.Rngs(rank))
step(x)
checkpointer.save(3, place=Place(30 + rank), rngs=nnx.Rngs(rank))
step(x)
checkpointer.wait()
for at in (1, 2, 3):
    place, rngs = Place(0), nnx.Rngs(50)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpointer.restore(at, place=place, rngs=rngs)
        _, trees = checkpointer.restore(1, epoch=0, seen={"rows": 0})
    assert trees == {"epoch": 5, "seen": {"rows": 3}}
    stream = int(jax.random.key_data(rngs.default.key[...])[1])
    print("STEP", at, place.at, stream, [str(w.message).split(" was saved by ")[1] for w in caught])
"""


@pytest.mark.slow
def test_ranks_that_did_not_save_take_rank_0s_and_are_told(tmp_path):
    found = [
        [line.split(" ", 4)[1:] for line in out.splitlines() if line.startswith("STEP")]
        for out in outputs(ranks(3, START + OWN, env={"RUN": str(tmp_path)}))
    ]
    for rank, lines in enumerate(found):
        assert [line[:3] for line in lines] == [
            ["1", "10", "0"],
            ["2", f"2{0 if rank == 1 else rank}", f"{0 if rank == 1 else rank}"],
            ["3", f"3{rank}", f"{rank}"],
        ]
        told = [line[3] for line in lines]
        assert ("rank 0 alone" in told[0]) is (rank > 0)
        assert ("ranks 0, 2 alone, and rank 1 takes rank 0's 'place'" in told[1]) is (rank == 1)
        assert told[2] == "[]"
    parts = [json.loads((tmp_path / f"{at}/manifest").read_bytes().split(b"\n")[1])["parts"] for at in (1, 3)]
    assert parts == [{"ranks": [0], "size": 3, "items": ["place", "rngs", "epoch", "seen"]}, None]


MIXED = """
import random
checkpointer = jaxpar.Checkpointer(folder, max_to_keep=None)
plan, late = random.Random(int(os.environ["SEED"])), random.Random(rank)
for i in range(40):
    kind = plan.choice("012")
    if late.random() < 0.3:
        time.sleep(late.random() / 20)
    if kind == "0" and rank == 0 or kind == "1":
        checkpointer.save(i, place=Place(f"{i} {rank}"))
    if kind == "2" and rank == 0:
        checkpointer.save(i, net=net)
    if late.random() < 0.2:
        checkpointer.wait()
    y = step(x)
dist.barrier()
checkpointer.close()
dist.barrier()
plan = random.Random(int(os.environ["SEED"]))
for i in range(40):
    kind = plan.choice("012")
    if kind == "2":
        checkpointer.restore(i, net=net)
        continue
    place = Place(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpointer.restore(i, place=place)
    assert place.at == f"{i} {rank if kind == '1' else 0}", (i, kind, place.at)
    assert bool(caught) is (kind == "0" and rank > 0), (i, kind)
print("DONE")
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_saves_by_one_and_by_all_in_any_order_and_at_any_pace(seed, tmp_path):
    for out in outputs(ranks(3, START + MIXED, env={"RUN": str(tmp_path), "SEED": str(seed)})):
        assert "DONE" in out


OTHERS = {
    "rank 1 alone": ["step(x)", "checkpointer.save(1, place=Place(1))"],
    "rank 1 alone, in wait": ["step(x)", "checkpointer.save(1, net=net); checkpointer.wait()"],
}


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("calls", OTHERS.values(), ids=OTHERS)
def test_a_save_without_rank_0_is_named(calls, tmp_path):
    body = "\n".join(
        f"if rank == {r}: exec(compile({call!r}, 'rank{r}.py', 'exec'))" for r, call in enumerate(calls)
    )
    script = START + f"checkpointer = jaxpar.Checkpointer(folder)\nstep(x)\n{body}"
    for one in ranks(2, script, env={"RUN": str(tmp_path)}, timeout=60):
        assert one.code == 1
        assert "train_step (rank0.py:1), rank 1 is at Checkpointer." in one.err
        assert "(rank1.py:1)" in one.err


TROUBLES = """
import shutil, types
from jaxpar.errors import CheckpointError

class Unable(Place):
    def state_dict(self):
        if rank == 1:
            raise KeyError("at")
        return super().state_dict()

checkpointer = jaxpar.Checkpointer(folder)
step(x)
room = shutil.disk_usage
if rank == 0:
    shutil.disk_usage = lambda folder: types.SimpleNamespace(free=1)
try:
    checkpointer.save(1, place=Place(rank))
except CheckpointError as error:
    print("disk of rank", error.of_rank)
shutil.disk_usage = room
try:
    checkpointer.save(2, place=Unable(rank))
except CheckpointError as error:
    print("item of rank", error.of_rank)
except KeyError:
    print("own item")
"""


GROUPS = """
groups = [dist.new_group(members) for members in ((0, 2), (1, 2))]
if rank == 0:
    jaxpar.Checkpointer(folder).save(0, tree={"x": np.ones(3)})
for group in groups:
    dist.barrier(group)
print("DONE")
"""


@pytest.mark.long
@pytest.mark.slow
def test_rank_0_saves_alone_while_others_meet_in_a_group_without_it(tmp_path):
    """Rank 1 waits for rank 2, which waits for rank 0, which waits until rank 1 has passed its save."""
    assert all("DONE" in text for text in outputs(ranks(3, START + GROUPS, env={"RUN": str(tmp_path)})))


@pytest.mark.slow
def test_an_error_on_all_ranks_has_the_rank_that_had_the_problem(tmp_path):
    first, second = outputs(ranks(2, START + TROUBLES, env={"RUN": str(tmp_path)}))
    assert "disk of rank 0\nitem of rank 1\n" in first
    assert "disk of rank 0\nown item\n" in second


KILLED = """
checkpointer = jaxpar.Checkpointer(folder)
step(x)
checkpointer.save(1, place=Place(rank))
checkpointer.wait()
step(x)
if rank == 0:
    import threading
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
else:
    time.sleep(3)
checkpointer.save(2, place=Place(rank))
checkpointer.wait()
"""


@pytest.mark.slow
def test_a_step_is_not_there_before_the_parts_of_those_that_come(tmp_path):
    ended = ranks(2, START + KILLED, env={"RUN": str(tmp_path)}, timeout=60)
    assert [one.code != 0 for one in ended] == [True, True]
    assert {path.name for path in tmp_path.iterdir()} - {"2.tmp"} == {".lock", "1"}


TUTORIALS_LOAD = """
if rank == 0:
    with jaxpar.Checkpointer(folder) as checkpointer:
        checkpointer.save(4, net=net, place=Place(9))
    want = bits(net.module.linear)
bare, place = Net(rngs=nnx.Rngs(5 + rank)), Place(0)
if rank == 0:
    assert jaxpar.Checkpointer(folder).restore(net=bare, place=place).step == 4
    assert (bits(bare.linear), place.at) == (want, 9)
    bare_bits = np.frombuffer(b"".join(bits(bare)), np.uint8)
wrapped = jaxpar.DistributedDataParallel(bare)
jaxpar.check_replicas(wrapped.module)
assert bits(wrapped.module.linear) == bits(net.module.linear)
print("DONE")
"""


@pytest.mark.slow
def test_rank_0_restores_and_the_wrapper_sends_it_to_all(tmp_path):
    for out in outputs(ranks(2, START + TUTORIALS_LOAD, env={"RUN": str(tmp_path)})):
        assert "DONE" in out


STOPPED = """
checkpointer = jaxpar.Checkpointer(folder, save_every=1000)
for i in range(1000):
    step(x).block_until_ready()
    if i == 5 and rank == int(os.environ["HIT"]):
        os.kill(os.getpid(), signal.SIGTERM)
    if rank == 0:
        checkpointer.save(i, net=net, place=Place(i))
    time.sleep(0.02)
"""


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("hit", [0, 1])
def test_after_a_sigterm_rank_0_saves_and_all_ranks_ask_to_be_started_again(hit, tmp_path):
    ended = ranks(2, START + STOPPED, env={"RUN": str(tmp_path), "HIT": str(hit)}, timeout=60)
    assert [one.code for one in ended] == [75, 75], [one.err for one in ended]
    steps = sorted(int(path.name) for path in tmp_path.iterdir() if path.name != ".lock")
    assert len(steps) == 2
    assert steps[0] == 0
    assert steps[1] >= 5
