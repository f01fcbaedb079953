"""load_unwrapped_state and unwrapped_state: a training leaves a program without jaxpar, and comes back.

`without_jaxpar.py` is that program. It trains 2 steps and saves; jaxpar trains 2 and returns the state; it
trains 2 more, and must end where it ends when it never stops.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import optax
import pytest
from comparing import assert_equal_trees
from processes import environment, free_port, outputs, ranks
from without_jaxpar import PROGRAMS, STEPS, TX, batch, leaves, loss_fn, save

import jaxpar

PROGRAM = Path(__file__).parent / "without_jaxpar.py"


def plain(net):
    return net


def one(net):
    return jaxpar.DataParallel(net, [0])


def data_parallel(net):
    return jaxpar.DataParallel(net, [0, 1, 2, 3])


def distributed(net):
    return jaxpar.DistributedDataParallel(net, [0, 1, 2, 3])


EXACT = (plain, one)
"""Their steps are those of the program without jaxpar, to the last bit."""

ROWS = [
    ("nnx", "standard", data_parallel),
    ("nnx", "pure", distributed),
    ("nnx", "pytree", distributed),
    ("nnx", "flax file", distributed),
    ("nnx", "items", one),
    ("noisy nnx", "standard", one),
    ("noisy nnx", "manager", one),
    ("noisy nnx", "bytes", plain),
    ("noisy nnx", "flax orbax", one),
    ("linen", "standard", data_parallel),
    ("linen", "manager", distributed),
    ("linen", "flax file", data_parallel),
    ("linen", "items", distributed),
    ("noisy linen", "pytree", one),
    ("noisy linen", "bytes", one),
    ("noisy linen", "flax orbax", plain),
    ("function", "standard", distributed),
    ("function", "bytes", distributed),
    ("function", "manager", distributed),
]


def run(phase, folder):
    # One device: the other program has no reason to have more.
    command = [sys.executable, str(PROGRAM), phase, str(folder)]
    done = subprocess.run(command, env=environment(0, 1, free_port()), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def target_of(program):
    if hasattr(program, "optimizer"):
        return {"net": program.net, "optimizer": program.optimizer}
    return program.state()


def trained(program, wrap):
    """Two steps: of the program's own where the wrapper allows it, or of train_step."""
    if wrap is not distributed:
        program.train(STEPS, STEPS)
    elif hasattr(program, "optimizer"):
        step = jaxpar.train_step(program.net, program.optimizer, loss_fn)
        for i in range(STEPS, 2 * STEPS):
            step(*batch(i))
    elif hasattr(program, "pair"):
        params, opt_state = program.pair
        for i in range(STEPS, 2 * STEPS):
            _, gradients = program.net.value_and_grad(lambda f, x, y: loss_fn(f, x, y))(params, *batch(i))
            updates, opt_state = TX.update(gradients, opt_state, params)
            params = optax.apply_updates(params, updates)
        program.pair = params, opt_state
    else:
        step = jaxpar.train_step(program.net, program.state_, loss_fn)
        for i in range(STEPS, 2 * STEPS):
            step(*batch(i))
        program.state_ = step.state


@pytest.fixture(scope="module")
def ends(request, tmp_path_factory):
    """The leaves at the end of each row that is run, and where the program never stopped."""
    folder = tmp_path_factory.mktemp("run")
    run("first", folder)
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    selected = [item.callspec.params for item in here if "saver" in item.callspec.params]
    for name, saver, wrap in ROWS:
        if not any((row["name"], row["saver"], row["wrap"]) == (name, saver, wrap) for row in selected):
            continue
        program, source = PROGRAMS[name](1, wrap), folder / "in" / name / saver
        if saver == "bytes":
            source = source.read_bytes()
        target = target_of(program)
        if saver == "items" and not isinstance(target, dict):
            target = {"state": target}
        loaded = jaxpar.load_unwrapped_state(source, target, ignore=["notes"])
        if not hasattr(program, "optimizer"):
            program.put(loaded["state"] if saver == "items" else loaded)
        start = leaves(jaxpar.unwrapped_state(target_of(program)))
        assert_equal_trees(f"{name} {saver}", start, stored(folder / f"{name}.start"), 0)
        trained(program, wrap)
        state = jaxpar.unwrapped_state(target_of(program))
        save(saver, folder / "out" / name / saver / wrap.__name__, state)
    run("second", folder)
    return folder


def stored(path):
    return pickle.loads(path.read_bytes())


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "saver", "wrap"), ROWS)
def test_a_training_changes_programs_and_comes_back(name, saver, wrap, ends):
    end = stored(ends / "out" / name / saver / f"{wrap.__name__}.end")
    tolerance = 0 if wrap in EXACT else 1e-10
    assert_equal_trees(f"{name} {saver}", end, stored(ends / f"{name}.end"), tolerance)


def test_a_moment_of_another_parameter_is_seen():
    """Planted fault of the comparison above: two moments of equal shape exchanged."""
    program = PROGRAMS["nnx"](0)
    program.train(0, 1)
    state = jaxpar.unwrapped_state(target_of(program))
    want, moments = leaves(state), state["optimizer"]["opt_state"][1][0]
    mu, nu = moments["mu"]["blocks"], moments["nu"]["blocks"]
    mu[0], nu[0] = nu[0], mu[0]
    with pytest.raises(AssertionError):
        assert_equal_trees("planted", leaves(state), want, 0)


RANKS = """
import os, pathlib
import jax, numpy as np
import jaxpar, jaxpar.distributed as dist
from flax import nnx
from without_jaxpar import PROGRAMS, STEPS, batch, loss_fn, save, write

dist.init_process_group(timeout=100)
rank, folder = dist.get_rank(), pathlib.Path(os.environ["RUN"])
for name, saver in (("nnx", "standard"), ("linen", "items"), ("nnx", "flax file")):
    program = PROGRAMS[name](1, jaxpar.DistributedDataParallel)
    if name == "nnx":
        target = {"net": program.net, "optimizer": program.optimizer}
        jaxpar.load_unwrapped_state(folder / "in" / name / saver, target)
        step = jaxpar.train_step(program.net, program.optimizer, loss_fn)
    else:
        target = {"state": program.state()}
        loaded = jaxpar.load_unwrapped_state(folder / "in" / name / saver, target, ignore=["notes"])
        step = jaxpar.train_step(program.net, loaded["state"], loss_fn)
    for i in range(STEPS, 2 * STEPS):
        x, y = batch(i)
        step(x[4 * rank:4 * rank + 4], y[4 * rank:4 * rank + 4])
    if name == "linen":
        target = step.state
    if rank == 0:  # alone, and it waits for nobody
        state = jaxpar.unwrapped_state(target)
        assert all(len(x.devices()) == 1 for x in jax.tree.leaves(state) if isinstance(x, jax.Array))
        jaxpar.load_unwrapped_state(folder / "in" / "nnx" / "pure", PROGRAMS["nnx"](1).state())
        write(folder / f"{name} {saver}.ranks", state)

mesh = jax.make_mesh((2,), ("i",))
def divided(values, spec):
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

want = {"w": np.arange(8.0).reshape(4, 2), "b": np.arange(3.0)}
if rank == 0:
    save("bytes", folder / "divided", want)
dist.barrier()
saved = {"w": divided(want["w"], ("i",)), "b": divided(want["b"], ())}
target = {"w": divided(np.zeros((4, 2)), (None, "i")), "b": divided(np.zeros(3), ())}
for source in (folder / "divided", saved):
    loaded = jaxpar.load_unwrapped_state(source, target)
    assert all(loaded[name].sharding == x.sharding for name, x in target.items())
    for name, x in loaded.items():
        for shard in x.addressable_shards:
            np.testing.assert_array_equal(shard.data, want[name][shard.index])
assert jaxpar.unwrapped_state(loaded)["w"] is loaded["w"]
assert jaxpar.unwrapped_state({"b": loaded["b"]})["b"].is_fully_addressable
print("DONE")
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_go_on_with_a_training(ends):
    source = str(PROGRAM.parent)
    environ = {"RUN": str(ends), "PYTHONPATH": f"{PROGRAM.parents[1]}:{source}"}
    for out in outputs(ranks(2, RANKS, env=environ)):
        assert "DONE" in out
    for name, saver in (("nnx", "standard"), ("linen", "items"), ("nnx", "flax file")):
        got, want = stored(ends / f"{name} {saver}.ranks"), stored(ends / f"{name}.middle")
        assert_equal_trees(f"{name} {saver}", got, want)
