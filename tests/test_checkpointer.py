"""Checkpointer: what was saved comes back bit for bit, whatever happens to the process in between."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from etils import epath
from flax import linen, nnx
from processes import environment, free_port, outputs, ranks

import jaxpar
from jaxpar import Checkpointer
from jaxpar._checkpointer import json_values
from jaxpar._checkpointer.store import Store
from jaxpar.errors import CheckpointError


class Net(nnx.Module):
    def __init__(self, seed, width=3):
        rngs = nnx.Rngs(seed)
        self.blocks = nnx.List([nnx.Linear(4, width, rngs=rngs), nnx.Linear(width, 4, rngs=rngs)])
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.tied = self.blocks[0]

    def __call__(self, x):
        return self.blocks[1](self.drop(self.norm(self.blocks[0](x))))


def made(seed, width=3):
    net = Net(seed, width)
    return {
        "net": net,
        "optimizer": nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param),
        "rngs": nnx.Rngs(seed, noise=seed + 1),
    }


@nnx.jit
def step(net, optimizer, rngs):
    x = rngs.noise.normal((8, 4), jnp.float32)
    optimizer.update(net, nnx.grad(lambda net: (net(x) ** 2).mean())(net))


def bits(items):
    """Every leaf of the items by name, as bytes."""
    found = {}
    for name, item in items.items():
        for path, leaf in jax.tree.leaves_with_path(nnx.state(item)):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            found[name + jax.tree_util.keystr(path)] = (str(leaf.dtype), np.asarray(leaf).tobytes())
    return found


def test_an_existing_step_is_replaced_on_request(tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, counts=[1])
        checkpointer.wait()
        with pytest.raises(CheckpointError, match=r"step 3 exists in .*overwrite=True"):
            checkpointer.save(3, counts=[2])
        checkpointer.save(3, counts=[2], overwrite=True)
        checkpointer.save(4, counts=[3], overwrite=True)  # nothing there to replace
        checkpointer.wait()
        assert checkpointer.restore(3, counts=[0]).trees == {"counts": [2]}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "3", "4"]


def test_dying_between_the_renames_of_an_overwrite_loses_nothing(tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, counts=[1])
    (tmp_path / "3").rename(tmp_path / "3.old.tmp")
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(4, counts=[2])
    assert Checkpointer(tmp_path).restore(3, counts=[0]).trees == {"counts": [1]}


def test_threads_take_turns(tmp_path):
    checkpointer = Checkpointer(tmp_path, max_to_keep=None)
    steps = iter(range(24))
    lock = threading.Lock()

    def saves():
        done = []
        while True:
            with lock:
                number = next(steps, None)
            if number is None:
                return done
            done.append(checkpointer.save(number, values={"x": np.full(1000, number)}))

    with ThreadPoolExecutor(3) as pool:
        saved = [future.result() for future in [pool.submit(saves) for _ in range(3)]]
    checkpointer.close()
    assert [value for done in saved for value in done] == [True] * 24
    assert Checkpointer(tmp_path)._store.steps() == list(range(24))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".lock", *map(str, range(24))])


QUIET = """
import jaxpar, numpy as np
with jaxpar.Checkpointer({folder!r}) as checkpointer:
    checkpointer.save(0, tree={{"x": np.ones(3)}})
"""


@pytest.mark.slow
def test_a_save_prints_nothing(tmp_path):
    command = [sys.executable, "-c", QUIET.format(folder=str(tmp_path / "run"))]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert run.stdout + run.stderr == ""


@pytest.mark.full
def test_a_resumed_run_has_the_same_bits(tmp_path):
    straight = made(0)
    for _ in range(3):
        step(**straight)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, **straight)
        for _ in range(3):
            step(**straight)  # and what was saved is the state before these
    resumed = made(1)
    assert bits(resumed) != bits(straight)
    assert Checkpointer(tmp_path).restore(**resumed) == (3, {})
    assert bits(resumed) != bits(straight)  # the comparison sees three steps
    for _ in range(3):
        step(**resumed)
    assert bits(resumed) == bits(straight)
    assert resumed["net"].tied is resumed["net"].blocks[0]


TREES = {
    "float32": jnp.arange(6.0, dtype=jnp.float32).reshape(2, 3),
    "bfloat16": jnp.array([1.5, -0.0], jnp.bfloat16),
    "float8": jnp.array([1.5, -2], jnp.float8_e4m3fn),
    "complex": np.array([1 + 2j, np.nan]),
    "bool": jnp.array([True, False]),
    "no axes": np.array(7, np.int16),
    "no elements": np.zeros((0, 3), np.uint8),
    "key": jax.random.key(3),
    "keys of another kind": jax.random.split(jax.random.key(3, impl="rbg"), 2),
    "other order in memory": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "number": 3,
    "float": float("inf"),
    "text": "epoch é",
    "true": True,
    "bytes": b"\x00\xff",
    "numpy number": np.float32(0.1),
    "strange names": {"a.b": jnp.zeros(1), "a": {"b": jnp.ones(1)}, "c/d": jnp.ones(2), "module": 1},
    "containers": [(jnp.ones(1), None), {"x": ()}],
    "nothing": (),
}


def raw(leaf):
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return (str(leaf.dtype), leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes())
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return (type(leaf) is np.ndarray, str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes())
    return (type(leaf), leaf)


def blank(leaf):
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        other = jax.random.key(9, impl=str(jax.random.key_impl(leaf)))
        return jax.random.split(other, leaf.size).reshape(leaf.shape)
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return (jnp if isinstance(leaf, jax.Array) else np).zeros_like(leaf)
    return type(leaf)()


def test_trees_of_all_kinds_of_leaves_round_trip(tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, tree=TREES, alone=jnp.ones(2))
        checkpointer.wait()
        template = jax.tree.map(blank, TREES)
        got = checkpointer.restore(tree=template, alone=jax.ShapeDtypeStruct((2,), jnp.float64)).trees
    assert jax.tree.structure(got["tree"]) == jax.tree.structure(TREES)
    assert list(map(raw, jax.tree.leaves(got["tree"]))) == list(map(raw, jax.tree.leaves(TREES)))
    assert list(map(raw, jax.tree.leaves(template))) != list(map(raw, jax.tree.leaves(TREES)))
    np.testing.assert_array_equal(got["alone"], 1)


STATES = [
    None,
    {"a": [1, (2.5, None)], 3: b"x", (1, 2): {}},
    {"nested": {"array": np.arange(3), "scalar": np.int64(2)}},
]


def test_states_of_loaders_come_back_as_they_were():
    for state in STATES:
        back = json_values.decode(json_values.encode(state, "state"))
        np.testing.assert_equal(back, state)
        assert repr(back) == repr(state)
    for strange in (object(), {"f": len}, [{1}], np.array([object()])):
        with pytest.raises(CheckpointError, match="nothing is pickled"):
            json_values.encode(strange, "state")


class Place:
    def __init__(self, at=0):
        self.at = at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_the_place_in_the_data_is_kept(tmp_path):
    data = jaxpar.data.TensorDataset(np.arange(20))
    loader, draws = jaxpar.data.DataLoader(data, 3, shuffle=True), np.random.RandomState(0)
    batches = iter(loader)
    next(batches)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, loader=loader, draws=draws, place=Place(5))
    want = [np.asarray(batch[0]).tolist() for batch in batches], draws.rand()
    again, others, place = jaxpar.data.DataLoader(data, 3, shuffle=True), np.random.RandomState(9), Place()
    Checkpointer(tmp_path).restore(loader=again, draws=others, place=place)
    assert ([np.asarray(batch[0]).tolist() for batch in again], others.rand()) == want
    assert place.at == 5


def test_what_changes_after_save_is_not_saved(tmp_path, monkeypatch):
    go, write = threading.Event(), Store.write
    monkeypatch.setattr(Store, "write", lambda *args: (go.wait(30), write(*args)))
    mine, theirs = np.zeros(4), jnp.zeros((256, 256))
    spread = jax.device_put(theirs, jaxpar.Placement(tuple(jaxpar.devices())).replicated)
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.save(
            0, tree=(mine, theirs, spread)
        )  # returns although nothing can be written yet
        assert checkpointer.latest_step() is None
        mine += 1
        add = jax.jit(lambda x: x + 1, donate_argnums=0)
        for x in (theirs, spread):
            for _ in range(3):
                x = add(x)
        go.set()
        checkpointer.wait()
        for got in checkpointer.restore(tree=(mine, jnp.ones((256, 256)), jnp.ones((256, 256)))).trees[
            "tree"
        ]:
            assert not got.any()


def test_a_donated_array_is_refused(tmp_path):
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(jaxpar.errors.DeletedError, match=r"Checkpointer.save: tree: \['x'\]"):
        Checkpointer(tmp_path).save(0, tree={"x": gone})


def test_the_wrapper_does_not_matter(tmp_path):
    net = jaxpar.DataParallel(Net(0))
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, net=net, optimizer=optimizer)
    bare = made(1)
    Checkpointer(tmp_path).restore(net=bare["net"], optimizer=bare["optimizer"])
    assert bits({"net": bare["net"]}) == bits({"net": net.module})


@pytest.mark.parametrize("N", [1, 4])
def test_arrays_go_where_those_are_that_they_replace(N, tmp_path):
    rows = np.arange(16.0).reshape(8, 2)
    everywhere = jaxpar.Placement(tuple(jaxpar.devices()))
    tree = {
        "spread": jax.device_put(rows, everywhere.stacked),
        "copied": jax.device_put(rows, everywhere.replicated),
    }
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, tree=tree)
    few = jaxpar.Placement(tuple(jaxpar.devices()[:N]))
    template = {
        "spread": jax.device_put(rows * 0, few.stacked),
        "copied": jax.device_put(rows * 0, few.replicated),
    }
    got = Checkpointer(tmp_path).restore(tree=template).trees["tree"]
    for name, x in got.items():
        np.testing.assert_array_equal(x, rows)
        assert x.sharding == template[name].sharding


def test_only_what_was_committed_to_a_device_is_so_again(tmp_path):
    """JAX refuses to mix devices of committed arrays."""
    first = jaxpar.devices()[0]
    template = {"free": jnp.zeros(2), "bound": jax.device_put(jnp.zeros(2), first)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, tree={"free": jnp.ones(2), "bound": jnp.ones(2)})
        got = checkpointer.restore(tree=template).trees["tree"]
    assert {name: x.committed for name, x in got.items()} == {"free": False, "bound": True}
    there = jax.device_put(jnp.ones(2), jaxpar.devices()[1])
    np.testing.assert_array_equal(got["free"] + there, 2)


def test_which_steps_are_saved_and_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Checkpointer("run", max_to_keep=2, save_every=3) as checkpointer:
        assert [s for s in range(8) if checkpointer.save(s, tree=s)] == [0, 3, 6]
        assert checkpointer.save(7, force=True, tree=7)
        assert not checkpointer.save(8, tree=8)
    assert checkpointer.directory == tmp_path / "run"
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [".lock", "6", "7"]
    assert (checkpointer.latest_step(), checkpointer.latest_valid()) == (7, 7)
    assert checkpointer.restore(tree=0) == (7, {"tree": 7})
    assert checkpointer.restore(6, tree=0) == (6, {"tree": 6})


def test_the_limit_goes_by_number_and_spares_what_was_just_saved(tmp_path):
    with Checkpointer(tmp_path, max_to_keep=1) as checkpointer:
        found = []
        for step in (5, 3, 4, 6):
            checkpointer.save(step, tree=step)
            checkpointer.wait()
            found.append(sorted(int(p.name) for p in tmp_path.iterdir() if p.name != ".lock"))
    assert found == [[5], [3, 5], [4, 5], [6]]


def test_a_process_killed_while_it_removes_a_step_leaves_no_half_step(tmp_path, monkeypatch):
    checkpointer = Checkpointer(tmp_path, max_to_keep=1, asynchronous=False)
    checkpointer.save(0, tree=0)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda path, **_: (path / "manifest").unlink())
        checkpointer.save(1, tree=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "0.tmp", "1"]
    assert checkpointer.restore(tree=0).step == 1
    checkpointer.save(2, tree=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "2"]


def test_a_directory_that_was_removed_is_made_again(tmp_path):
    run = tmp_path / "run"
    with Checkpointer(run, asynchronous=False) as checkpointer:
        checkpointer.save(0, tree=0)
        shutil.rmtree(run)
        assert checkpointer.latest_step() is None
        assert checkpointer.save(1, tree=1)
        assert sorted(p.name for p in run.iterdir()) == [".lock", "1"]
        assert checkpointer.restore(tree=0) == (1, {"tree": 1})
        with pytest.raises(CheckpointError, match="another Checkpointer of this process saves to"):
            Checkpointer(run).save(2, tree=2)  # the lock is the one of the new directory


def test_leaves_may_have_any_name(tmp_path):
    names = [
        "a",
        "A",
        "a/b",
        "../../up",
        "x" * 300,
        "x" * 299 + "y",
        "a.b",
        "é",
        "%2F",
        "a#0",
        " ",
        "con:",
        "\n",
    ]
    tree = {name: np.full(i + 1, i) for i, name in enumerate(names)}
    items = {"x": {"y": np.ones(1)}, "x.['y']": np.ones(2), "X": {"Y": np.ones(3)}, "../x": np.ones(4)}
    with Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.save(0, tree=tree, **items)
    _, trees = Checkpointer(tmp_path / "run").restore(
        tree=jax.tree.map(np.zeros_like, tree), **jax.tree.map(np.zeros_like, items)
    )
    assert jax.tree.map(np.array_equal, trees["tree"], tree) == dict.fromkeys(names, True)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, {n: trees[n] for n in items}, items)))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    folders = [path.name for path in (tmp_path / "run" / "0" / "arrays").iterdir()]
    assert len({name.casefold() for name in folders}) == len(names) + len(items) + 1  # as macOS sees them
    ocp.PyTreeCheckpointHandler().restore(epath.Path(tmp_path / "run" / "0" / "arrays"))


def test_bytes_in_another_order_and_arrays_that_are_more_than_bytes(tmp_path):
    there = np.arange(3.0).astype(">f8")
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, tree=there, state=Holder({"x": there, "large": np.arange(9000, dtype=">i8")}))
        checkpointer.wait()
        got = Holder({})
        _, trees = checkpointer.restore(tree=np.zeros(3), state=got)
        assert trees["tree"].tolist() == got.state["x"].tolist() == [0, 1, 2]
        assert got.state["large"].tolist() == list(range(9000))
        masked = np.ma.masked_array([1, 2], [True, False])
        for strange in (masked, np.array(["text"]), np.array([object()]), np.zeros(2, [("a", int)])):
            for given in ({"x": strange}, Holder({"x": strange})):
                with pytest.raises(CheckpointError, match=r"\['x'\] is a .*; nothing is pickled"):
                    checkpointer.save(1, tree=given)


# ---------------------------------------------------------------------------------- large states of objects


class Holder:
    """Something with a state of its own, such as a training step that keeps gradients."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def gradients(seed):
    rng = np.random.RandomState(seed)
    return {
        "scale": 16384.0,
        "kept": [
            {"kernel": rng.randn(200, 100), "bias": rng.randn(100)},
            (jnp.asarray(rng.randn(9000)), None),
        ],
        "hook": {("a", 1): rng.randn(300, 60).astype(np.float32), ("b", 2): np.int64(3)},
    }


def same_state(state, seed):
    want = gradients(seed)
    assert jax.tree.structure(state) == jax.tree.structure(want)
    assert list(state) == list(want)
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(want), strict=True):
        assert type(x) is (np.ndarray if isinstance(y, jax.Array) else type(y))
        np.testing.assert_array_equal(x, y)
    return True


@pytest.mark.parametrize(("more", "is_file"), [(-1, False), (0, True), (1, True)])
def test_from_how_many_bytes_on_an_array_is_a_file(more, is_file):
    large, x = {}, np.zeros(json_values.LARGE + more, np.uint8)
    text = json_values.encode({"x": x}, "item", "state", large)
    assert (list(large) == ["state['x']"]) == is_file
    assert np.array_equal(json_values.decode(text, large)["x"], x)


def test_large_arrays_in_a_state_are_files(tmp_path):
    mine = Holder(gradients(0))
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, step_object=mine, net=nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        mine.state["kept"][0]["kernel"][:] = 0  # what was saved is the state before
        got = Holder({"another": "structure"})
        assert checkpointer.restore(step_object=got) == (0, {})
        got.state["kept"][0]["kernel"] += 0  # they may be written to
        assert same_state(got.state, 0)
    assert sorted(path.name for path in (tmp_path / "0" / "arrays").glob("step*")) == [
        f"step_object.state['{at}" for at in ("hook'][('a', 1)]", "kept'][0]['kernel']", "kept'][1][0]")
    ]
    assert (tmp_path / "0" / "manifest").stat().st_size < 5000
    path = tmp_path / "0" / "arrays" / "step_object.state['kept'][0]['kernel']" / "0.0"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(CheckpointError, match=r"leaf step_object: state\['kept'\]\[0\]\['kernel'\]"):
        checkpointer.restore(0, step_object=Holder({}))


def mse(net, x, y):
    return ((net(x) - y) ** 2).mean()


def test_a_training_step_goes_on_in_the_middle_of_an_accumulation(tmp_path):
    rng = np.random.RandomState(0)
    batches = [(rng.randn(8, 256), rng.randn(8, 256)) for _ in range(4)]

    def made(seed):
        net = jaxpar.DataParallel(nnx.Linear(256, 256, rngs=nnx.Rngs(seed)), [0, 1])
        optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
        return net, optimizer, jaxpar.train_step(net, optimizer, mse, accumulate=2)

    net, optimizer, step = made(0)
    for batch in batches[:3]:
        step(*batch)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, net=net, optimizer=optimizer, step_object=step)
    names = [path.name for path in (tmp_path / "0" / "arrays").iterdir()]
    assert sum("step_object.state['gradients']" in name for name in names) == 1  # the kernel's
    other = made(1)
    Checkpointer(tmp_path).restore(net=other[0], optimizer=other[1], step_object=other[2])
    step(*batches[3])
    other[2](*batches[3])
    assert bits({"net": other[0], "optimizer": other[1]}) == bits({"net": net, "optimizer": optimizer})


def test_a_state_and_a_tree_are_not_mixed_up(tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state=Holder(gradients(0)), tree={"x": np.ones(3)})
    for wrong in ({"state": {"x": np.ones(3)}}, {"tree": Holder({})}):
        with pytest.raises(CheckpointError, match="is another object than the one in"):
            checkpointer.restore(**wrong)
    alone = Holder(np.arange(9000))  # a state may be an array
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, alone=alone, small=Holder(np.arange(3)))
        checkpointer.wait()
        one, two = Holder(None), Holder(None)
        checkpointer.restore(alone=one, small=two)
    assert (one.state.tolist(), two.state.tolist()) == (list(range(9000)), [0, 1, 2])


def test_a_step_is_an_orbax_checkpoint(tmp_path):
    x = np.arange(6.0).reshape(2, 3)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, tree={"a": {"b": x}})
    got = ocp.PyTreeCheckpointHandler().restore(epath.Path(tmp_path) / "0" / "arrays")
    np.testing.assert_array_equal(got["tree"]["['a']['b']"], x)


def test_only_who_writes_removes_what_a_killed_process_left(tmp_path):
    left = tmp_path / "5.tmp"
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, tree=1)
        checkpointer.wait()
        left.mkdir()
        assert Checkpointer(tmp_path).restore(tree=0).step == 0
        assert left.exists()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, tree=1)
    assert not left.exists()


def test_what_cannot_be_saved_is_refused(tmp_path):
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    for given, words in (
        ((x for x in ()), r"data is a builtins.generator, which has neither state_dict .* other data"),
        (linen.Dense(3), "data is a Dense without a state of its own"),
        (jaxpar.DataParallel(jnp.tanh), "without a state of its own"),
        ({"net": net}, "tree with an NNX object"),
        ({"f": object()}, r"data: \['f'\] is a builtins.object"),
    ):
        with pytest.raises(CheckpointError, match=words):
            Checkpointer(tmp_path).save(0, data=given)
    with pytest.raises(TypeError, match="nothing to save"):
        Checkpointer(tmp_path).save(0)
    with pytest.raises(ValueError, match="step is -1"):
        Checkpointer(tmp_path).save(-1, net=net)
    with pytest.raises(ValueError, match="on_save_error"):
        Checkpointer(tmp_path, on_save_error="ignore")
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, net=net)
        with pytest.raises(CheckpointError, match="step 0 exists"):
            checkpointer.save(0, net=net)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        Checkpointer(tmp_path / "file")


SAVED = {"x": jnp.zeros((2, 3), jnp.float32), "n": 1, "key": jax.random.key(0)}
OTHERS = {
    "shape": (
        SAVED | {"x": jnp.zeros((3, 2), jnp.float32)},
        r"\['x'\] has shape \(3, 2\) here and \(2, 3\) in .*/0",
    ),
    "dtype": (
        SAVED | {"x": jnp.zeros((2, 3), jnp.bfloat16)},
        r"\['x'\] is bfloat16 here and float32 in .*strict_dtype",
    ),
    "missing leaf": (SAVED | {"y": jnp.zeros(1)}, r"Only here: \['y'\]; only there: nothing"),
    "extra leaf": ({"n": 1, "key": SAVED["key"]}, r"Only here: nothing; only there: \['x'\]"),
    "array for a number": (
        SAVED | {"n": jnp.zeros(1)},
        r"\['n'\] is an array of float\d\d\[1\] here and the int 1",
    ),
    "another kind of key": (SAVED | {"key": jax.random.key(0, impl="rbg")}, r"key<rbg> here and key<fry>"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, tree=SAVED, net=nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    return Checkpointer(folder)


@pytest.mark.parametrize("what", OTHERS)
def test_another_object_is_refused(what, saved):
    template, words = OTHERS[what]
    with pytest.raises(CheckpointError, match=words):
        saved.restore(tree=template)
    saved.restore(tree=SAVED)  # which is the one that fits


def test_nothing_changes_when_an_item_is_refused(saved):
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(1))
    before = bits({"net": net})
    with pytest.raises(CheckpointError):
        saved.restore(net=net, tree=OTHERS["shape"][0])
    assert bits({"net": net}) == before
    saved.restore(net=net)
    assert bits({"net": net}) != before


class Refusing:
    """A loader whose state is of another data set."""

    def state_dict(self):
        return {"place": 3}

    def load_state_dict(self, state):
        raise ValueError(f"the state is of another data set: {state}")


def test_nothing_changes_when_an_object_refuses_its_state(tmp_path):
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(1))
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, net=net, loader=Refusing())
    other = nnx.Linear(2, 3, rngs=nnx.Rngs(2))
    before = bits({"net": other})
    with pytest.raises(ValueError, match=r"of another data set: \{'place': 3\}"):
        Checkpointer(tmp_path).restore(net=other, loader=Refusing())
    assert bits({"net": other}) == before


@pytest.mark.parametrize("what", ["another kind of key", "shape", "array for a number"])
def test_what_is_no_conversion_is_refused_with_strict_dtype_off_too(what, saved):
    template, words = OTHERS[what]
    with pytest.raises(CheckpointError, match=words):
        saved.restore(strict_dtype=False, tree=template)


def test_a_dtype_is_converted_where_that_is_asked_for(saved):
    with pytest.warns(UserWarning, match="bfloat16 here and float32") as said:
        got = saved.restore(strict_dtype=False, tree=OTHERS["dtype"][0]).trees["tree"]
    assert got["x"].dtype == jnp.bfloat16
    assert said[0].filename == __file__


def test_what_is_not_there_is_named(saved, tmp_path):
    with pytest.raises(CheckpointError, match=r"no step 5 in .*; there are 0"):
        saved.restore(5, tree=SAVED)
    with pytest.raises(CheckpointError, match=r"no item 'other'; it has 'tree', 'net'"):
        saved.restore(other=SAVED)
    with pytest.raises(CheckpointError, match=r"there is no step in .* which is empty"):
        Checkpointer(tmp_path).restore(tree=SAVED)
    (tmp_path / "0").mkdir()
    with (
        pytest.warns(UserWarning, match="step 0 is damaged and is passed over"),
        pytest.raises(CheckpointError, match=r"was not written by jaxpar.Checkpointer"),
    ):
        Checkpointer(tmp_path).restore(tree=SAVED)


# ------------------------------------------------------------------------------------- disks and signals


class Usage(NamedTuple):
    total: int = 10
    used: int = 9
    free: int = 1


def on_full_disk(monkeypatch, how):
    def write(folder, *_):
        (folder / "half").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")

    if how == "asked for first":
        monkeypatch.setattr("shutil.disk_usage", lambda _: Usage())
    else:
        monkeypatch.setattr("jaxpar._checkpointer.writing.write_step", write)


@pytest.mark.parametrize("how", ["asked for first", "found on the way"])
def test_a_full_disk_leaves_the_older_steps(how, tmp_path, monkeypatch):
    for policy in ("raise", "warn"):
        checkpointer = Checkpointer(tmp_path / policy, on_save_error=policy, asynchronous=False)
        assert checkpointer.save(0, tree=jnp.zeros(5))
        with monkeypatch.context() as patched:
            on_full_disk(patched, how)
            words = r"disk is full: step 1 needs 1,048,616 bytes, and .* has .* free. Steps on disk: 0.$"
            if policy == "raise":
                with pytest.raises(CheckpointError, match=words):
                    checkpointer.save(1, tree=jnp.ones(5))
            else:
                with pytest.warns(UserWarning, match=words):
                    assert not checkpointer.save(1, tree=jnp.ones(5))
        assert checkpointer.save(2, tree=jnp.ones(5) * 2)
        assert checkpointer.restore(0, tree=jnp.ones(5)).trees["tree"].sum() == 0
        assert checkpointer.restore(tree=jnp.ones(5)).step == 2


@pytest.mark.parametrize("error", [OSError(errno.EFBIG, "File too large"), MemoryError()], ids=repr)
def test_whatever_stops_a_write_is_named_and_leaves_nothing(error, tmp_path, monkeypatch):
    def write(folder, *_):
        (folder / "half").write_text("x")
        raise error

    with Checkpointer(tmp_path, asynchronous=False) as checkpointer:
        checkpointer.save(0, tree=0)
        with monkeypatch.context() as patched:
            patched.setattr("jaxpar._checkpointer.writing.write_step", write)
            words = rf"step 1 could not be written to .*: {type(error).__name__}: .* Steps on disk: 0\."
            with pytest.raises(CheckpointError, match=words):
                checkpointer.save(1, tree=1)
        assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "0"]
        assert checkpointer.save(1, tree=1)


def test_the_process_limit_of_a_file_is_no_full_disk(tmp_path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpointer(tmp_path, asynchronous=False) as checkpointer:
        checkpointer.save(0, tree=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            with pytest.raises(
                CheckpointError, match="which may write files of 10,000 bytes: ulimit -f"
            ) as caught:
                checkpointer.save(1, tree=np.ones(100_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "disk is full" not in str(caught.value)


def test_an_error_of_the_thread_is_raised_by_the_next_call(tmp_path, monkeypatch):
    checkpointer = Checkpointer(tmp_path)
    with monkeypatch.context() as patched:
        on_full_disk(patched, "found on the way")
        assert checkpointer.save(1, tree=jnp.ones(5))
        checkpointer._saver.join()
    with pytest.raises(CheckpointError, match="step 1 needs"):
        checkpointer.wait()
    assert checkpointer.wait()


def test_ctrl_c_while_saving_leaves_the_step_before_and_the_writer(tmp_path, monkeypatch):
    checkpointer, write = Checkpointer(tmp_path, asynchronous=False), Store.write
    checkpointer.save(0, tree=0)

    def slowly(*args):
        signal.raise_signal(signal.SIGINT)
        write(*args)

    monkeypatch.setattr(Store, "write", slowly)
    with pytest.raises(KeyboardInterrupt):
        checkpointer.save(1, tree=1)
    assert checkpointer.restore(0, tree=5).trees["tree"] == 0
    checkpointer.wait()
    assert checkpointer.restore(tree=5) == (1, {"tree": 1})


LOOP = """
import os, sys
import numpy as np
import jaxpar

checkpointer = jaxpar.Checkpointer(sys.argv[1])
for step in range(int(sys.argv[2]), int(sys.argv[3])):
    checkpointer.save(step, tree=np.full(1 << 20, step))
    os.write(1, b"%d\\n" % step)
"""


def looping(folder, start, stop):
    command = [sys.executable, "-c", LOOP, str(folder), str(start), str(stop)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(0, 1, free_port()))


@pytest.mark.slow
def test_the_interpreter_waits_for_the_last_step(tmp_path):
    with looping(tmp_path, 0, 2) as process:
        assert process.wait(60) == 0
    assert Checkpointer(tmp_path).restore(tree=np.zeros(1 << 20, int)).trees["tree"].max() == 1


@pytest.mark.slow
def test_a_killed_process_leaves_whole_steps(tmp_path):
    with looping(tmp_path, 0, 1000) as process:
        done = int([process.stdout.readline() for _ in range(3)][-1])
        threading.Event().wait(0.02)  # more moments: benchmarks/checkpoints.py
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        done = max([done, *map(int, process.stdout.read().split())])
    got = Checkpointer(tmp_path).restore(tree=np.zeros(1 << 20, int))
    assert got.step >= done - 1  # save(k) returns when step k - 1 is on disk
    assert (got.trees["tree"] == got.step).all()


def test_sigterm_saves_and_leaves_with_75(tmp_path):
    checkpointer = Checkpointer(tmp_path, save_every=100)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert not checkpointer.save(1, tree=1)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as left:
            checkpointer.save(2, tree=2)
    finally:
        signal.signal(signal.SIGTERM, before)
        forget_sigterm()
    assert left.value.code == 75
    assert checkpointer.restore(tree=0) == (2, {"tree": 2})


def forget_sigterm():
    from jaxpar.distributed import _preemption as _preempted

    _preempted._signal.watched = _preempted._signal.came = False


# -------------------------------------------------------------------------------------- several processes

BOTH = """
import os, signal, time
import jax, numpy as np
from flax import nnx
import jaxpar
from jaxpar.errors import CheckpointError

jaxpar.distributed.init_process_group()
rank, size = jaxpar.distributed.get_rank(), jaxpar.distributed.get_world_size()

class Place:
    def __init__(self, at):
        self.at = at
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]

def items(seed, rank, at):
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(seed))
    return dict(net=net, own=nnx.Rngs(rank), same=nnx.Rngs(seed), together=Place(at))

key = lambda rngs: jax.random.key_data(rngs.default.key[...])[1]
checkpointer = jaxpar.Checkpointer(os.environ["RUN"], save_every=100)
"""

SAVING = (
    BOTH
    + """
saved = items(0, rank, 7)
assert checkpointer.save(0, **saved, apart=Place(rank))
checkpointer.wait()
try:
    checkpointer.save(1 + rank, force=True, **saved)
except CheckpointError as error:
    print(error)
try:
    checkpointer.save(9, force=True, bad=open if rank == 2 else 1)
except CheckpointError as error:
    print("rank 2" in str(error) or rank)
if rank == size - 1:
    os.kill(os.getpid(), signal.SIGTERM)
for step in range(10, 100):
    time.sleep(0.05)
    checkpointer.save(step, **saved, apart=Place(rank))
"""
)

RESUMING = (
    BOTH
    + """
mine = items(1, 50, 0)
step, _ = checkpointer.restore(**mine)
want = items(0, rank, 7)
assert np.array_equal(mine["net"].kernel[...], want["net"].kernel[...])
print(step, key(mine["own"]), key(mine["same"]), mine["together"].at)
try:
    checkpointer.restore(apart=Place(0))
except CheckpointError as error:
    print(error)
"""
)


@pytest.mark.slow
def test_several_processes_save_together_and_other_numbers_resume(tmp_path):
    ended = ranks(4, SAVING, env={"RUN": str(tmp_path)})
    assert [e.code for e in ended] == [75] * 4, "\n".join(e.err for e in ended)
    for rank, e in enumerate(ended):
        assert "the ranks save different steps: [1, 2, 3, 4]" in e.out
        assert e.out.splitlines()[-1] in (str(rank), "True")
    steps = sorted(int(p.name) for p in tmp_path.iterdir() if p.name != ".lock")
    assert len(steps) == 2  # 0, and one that all ranks had in common when SIGTERM came
    assert steps[1] > 0

    for rank, out in enumerate(outputs(ranks(2, RESUMING, env={"RUN": str(tmp_path)}))):
        assert out.splitlines()[0] == f"{steps[1]} {rank} 0 7"  # each its own stream
        assert "apart: state was different on each of the 4 ranks" in out
        assert "resume with 4 processes" in out

    net, own, same, together = nnx.Linear(2, 3, rngs=nnx.Rngs(1)), nnx.Rngs(50), nnx.Rngs(50), Place()
    assert Checkpointer(tmp_path).restore(net=net, own=own, same=same, together=together).step == steps[1]
    assert bits({"net": net, "own": own}) == bits(
        {"net": nnx.Linear(2, 3, rngs=nnx.Rngs(0)), "own": nnx.Rngs(0)}
    )
    assert together.at == 7


LARGE = (
    BOTH
    + """
class Holder:
    def __init__(self, state):
        self.state = state
    def state_dict(self):
        return self.state
    def load_state_dict(self, state):
        self.state = state

def state(own):
    kept = np.arange(400_000.0).reshape(2, -1)
    everywhere = jax.device_put(kept, jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()), "x"), jax.sharding.PartitionSpec()))
    return {"kept": [kept, everywhere], "place": rank, "own": np.full(9000, own)}

assert checkpointer.save(0, step_object=Holder(state(5)))
got = Holder(None)
checkpointer.wait()
checkpointer.restore(step_object=got)
assert got.state["place"] == rank
assert np.array_equal(got.state["kept"][0], state(0)["kept"][0])
assert np.array_equal(got.state["kept"][1], state(0)["kept"][0])
try:
    checkpointer.save(1, force=True, step_object=Holder(state(rank // 2)))
except CheckpointError as error:
    print(error)
try:
    kept = state(0)  # on all ranks: JAX compares what is put on the devices of several processes
    checkpointer.save(1, force=True, step_object=Holder({} if rank else kept))
except CheckpointError as error:
    print(error)

class Broken(Holder):
    def state_dict(self):
        return self.state[rank]

try:
    checkpointer.save(1, force=True, broken=Broken([0, 1]))
except (CheckpointError, IndexError) as error:
    print(error)
"""
)


@pytest.mark.long
@pytest.mark.slow
def test_large_states_of_several_processes(tmp_path):
    for out in outputs(ranks(3, LARGE, env={"RUN": str(tmp_path)})):
        differing, missing, broken = [line for line in out.splitlines() if "Gloo" not in line]
        assert "step_object: state['own'] is not the same on rank 2 as on rank 0" in differing
        assert "step_object: state['kept'][0] is not the same on ranks 1, 2 as on rank 0" in missing
        assert "list index out of range" in broken
    assert (tmp_path / "0" / "manifest").stat().st_size < 5000
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "0"]


def test_more_processes_than_before_get_streams_of_their_own(monkeypatch, tmp_path):
    from jaxpar._checkpointer import ranks as world

    states = [
        {"rngs": {"key": {"value": json_values.encode(jax.random.key(r), ""), "stream": True}}}
        for r in range(2)
    ]
    monkeypatch.setattr(world, "size", lambda: 4)
    found = []
    for r in range(4):
        monkeypatch.setattr(world, "rank", lambda r=r: r)
        found.append(
            raw(json_values.decode(world.rank_values(tmp_path, {"states": states}, "rngs")["key"]["value"]))
        )
    assert found[:2] == [raw(jax.random.key(r)) for r in range(2)]
    assert len(set(found)) == 4


def test_a_rank_sends_a_mebibyte_at_most(monkeypatch, tmp_path):
    from jaxpar._checkpointer import ranks as world

    monkeypatch.setattr(world, "size", lambda: 2)
    monkeypatch.setattr(world, "exchange_partially", lambda name, text, *_, **__: [text, None])
    fits = "x" * (2**20 - len('{"value": ""}'))
    assert world.agree("Checkpointer.save", tmp_path, lambda: fits) == {0: fits}
    with pytest.raises(CheckpointError, match="are 1,048,577 bytes, and 1,048,576 can be exchanged"):
        world.agree("Checkpointer.save", tmp_path, lambda: fits + "x")
