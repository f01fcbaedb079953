"""load_unwrapped_state and unwrapped_state: every form of a state, by path, and what does not fit.

Whole trainings that change programs are in `test_without_jaxpar.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import linen, nnx, serialization
from flax.core import freeze
from jax.sharding import NamedSharding, PartitionSpec
from test_without_jaxpar import data_parallel, distributed, plain, target_of
from without_jaxpar import PROGRAMS, SAVERS, TX, Net, as_dicts, leaves, save

import jaxpar
from jaxpar.errors import CheckpointError, DeletedError


def bits(tree):
    tree = nnx.state(tree) if isinstance(tree, nnx.Module) else tree
    return {name: x.tobytes() for name, x in leaves(tree).items()}


def state_of(seed=0, noisy=True):
    program = PROGRAMS["noisy nnx" if noisy else "nnx"](seed)
    program.train(0, 1)
    return program.state()


def text_keys(tree):
    return {str(key): text_keys(value) for key, value in tree.items()} if isinstance(tree, dict) else tree


def wrapped_state(state):
    """What a wrapped program saves that does not know of unwrapped_state."""
    program = PROGRAMS["noisy nnx"](1, data_parallel)
    jaxpar.load_unwrapped_state(state, target_of(program))
    return program.state()


SOURCES = {
    "states": lambda state: state,
    "pure dicts": lambda state: {name: nnx.to_pure_dict(part) for name, part in state.items()},
    "texts as keys": lambda state: {name: text_keys(nnx.to_pure_dict(part)) for name, part in state.items()},
    "keys as data": lambda state: as_dicts(state),
    "frozen": lambda state: freeze(as_dicts(state)),
    "host arrays": lambda state: jax.tree.map(np.asarray, as_dicts(state)),
    "of wrapped nets": wrapped_state,
    "bytes": lambda state: serialization.to_bytes(as_dicts(state)),
}


@pytest.mark.parametrize("wrap", [plain, data_parallel, distributed])
@pytest.mark.parametrize("source", SOURCES)
def test_every_form_of_a_state_is_loaded_by_path(source, wrap):
    state, program = state_of(), PROGRAMS["noisy nnx"](1, wrap)
    target = target_of(program)
    assert jaxpar.load_unwrapped_state(SOURCES[source](state), target) == target  # the same objects
    assert bits(jaxpar.unwrapped_state(target)) == bits(state)
    assert jax.tree.structure(jaxpar.unwrapped_state(target)) == jax.tree.structure(state)


@pytest.mark.parametrize("saver", SAVERS)
def test_every_file_is_read(saver, tmp_path):
    state, target = state_of(), target_of(PROGRAMS["noisy nnx"](1, data_parallel))
    save(saver, tmp_path / "run", state)
    jaxpar.load_unwrapped_state(tmp_path / "run", target, ignore=["notes"])
    assert bits(jaxpar.unwrapped_state(target)) == bits(state)


def test_the_level_of_an_only_item_is_optional(tmp_path):
    tree = {"w": jnp.ones(2)}
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=ocp.args.Composite(state=ocp.args.StandardSave(tree)))
    for target in ({"w": jnp.zeros(2)}, {"state": {"w": jnp.zeros(2)}}):
        loaded = jaxpar.load_unwrapped_state(tmp_path, target)
        assert bits(loaded.get("state", loaded)) == bits(tree)


def test_of_a_pair_or_alone():
    state, program = state_of(), PROGRAMS["noisy nnx"](1, data_parallel)
    pair = (program.net, program.optimizer)
    jaxpar.load_unwrapped_state((state["net"], state["optimizer"]), pair)
    assert bits(jaxpar.unwrapped_state(pair)) == bits((state["net"], state["optimizer"]))
    assert bits(jaxpar.unwrapped_state(program.net)) == bits(state["net"])
    assert bits(jaxpar.unwrapped_state(program.optimizer, program.net)) == bits(state["optimizer"])
    assert bits(jaxpar.unwrapped_state(nnx.state(program.net), program.net)) == bits(state["net"])
    with pytest.raises(CheckpointError, match=r"the level `module` of opt_state.* net=net"):
        jaxpar.unwrapped_state(program.optimizer)
    with pytest.raises(CheckpointError, match=r"net=net"):
        jaxpar.unwrapped_state({"module": {"kernel": jnp.ones(2)}})


def test_an_optimizer_of_the_net_inside_a_wrapper():
    net = Net(0, False)
    optimizer = nnx.Optimizer(net, TX, wrt=nnx.Param)
    state = nnx.state(optimizer)
    assert bits(jaxpar.unwrapped_state((data_parallel(net), optimizer))[1]) == bits(state)


def test_an_optimizer_that_has_its_net():
    def made(wrap):
        return nnx.ModelAndOptimizer(wrap(Net(0, False)), TX, wrt=nnx.Param)

    optimizer = made(data_parallel)
    jaxpar.load_unwrapped_state(nnx.state(made(plain)), optimizer)
    assert bits(jaxpar.unwrapped_state(optimizer)) == bits(nnx.state(made(plain)))


class Part(nnx.Module):
    """A wrapped part, under two names, with a parameter and a layer beside it that have the names inside."""

    def __init__(self, wrap, seed):
        self.part = wrap(nnx.Linear(3, 3, rngs=nnx.Rngs(seed)))
        self.again = self.part
        self.module = nnx.Linear(2, 2, rngs=nnx.Rngs(seed))
        self.kernel = nnx.Param(jnp.full(2, float(seed)))
        self.table = nnx.Param({"a": jnp.full(2, float(seed)), "b": [jnp.zeros(3)]})


@pytest.mark.parametrize("wrap", [plain, data_parallel])
def test_a_part_that_is_wrapped(wrap, tmp_path):
    one, other = Part(plain, 3), Part(wrap, 4)
    optimizers = [nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param) for net in (one, other)]
    state = {"net": nnx.state(one), "optimizer": nnx.state(optimizers[0])}
    save("standard", tmp_path / "run", state)
    for source in (state, tmp_path / "run"):
        jaxpar.load_unwrapped_state(source, {"net": other, "optimizer": optimizers[1]})
        assert bits(jaxpar.unwrapped_state({"net": other, "optimizer": optimizers[1]})) == bits(state)


def test_two_nets_and_their_optimizers():
    def made(wraps):
        nets = [wrap(Net(i, False)) for i, wrap in enumerate(wraps)]
        return nets, [nnx.Optimizer(net, TX, wrt=nnx.Param) for net in nets]

    state = tuple([nnx.state(node) for node in nodes] for nodes in made([plain, plain]))
    target = made([data_parallel, distributed])
    jaxpar.load_unwrapped_state(state, target)
    assert bits(jaxpar.unwrapped_state(target)) == bits(state)
    # Here a leaf below `module` is a wrapper's for one net and the layer `module`'s for the other.
    linear = {"weight": nnx.Param(jnp.ones(3))}
    nets = [jaxpar.DataParallel(nnx.Dict(linear)), nnx.Dict(module=nnx.Dict(linear))]
    with pytest.raises(CheckpointError, match=r"module.weight is in one net below a wrapper"):
        jaxpar.unwrapped_state([*nets, nnx.Optimizer(nets[1], TX, wrt=nnx.Param)])
    assert bits(jaxpar.unwrapped_state(nets)) == bits([nnx.state(nets[0].module), nnx.state(nets[1])])


def test_shapes_are_enough():
    state = state_of()
    net = nnx.eval_shape(lambda: Net(1, True))
    assert bits(jaxpar.load_unwrapped_state(state["net"], net)) == bits(state["net"])
    tree = {"w": jax.ShapeDtypeStruct((2,), jnp.float64), "step": 0}
    loaded = jaxpar.load_unwrapped_state({"w": np.ones(2), "step": np.int32(7)}, tree)
    assert loaded["w"].tolist() == [1, 1]
    assert (loaded["step"].dtype, int(loaded["step"])) == (jnp.int32, 7)


@pytest.mark.full
def test_the_functions_of_an_equinox_module_stay(tmp_path):
    eqx = pytest.importorskip("equinox")

    def made(seed):
        module = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(seed))
        return module, TX.init(eqx.filter(module, eqx.is_inexact_array))

    module, opt_state = made(0)
    save("standard", tmp_path / "run", (eqx.filter(module, eqx.is_array), opt_state))
    for source in (tmp_path / "run", (module, opt_state)):
        loaded = jaxpar.load_unwrapped_state(source, made(1))
        assert eqx.tree_equal(loaded, (module, opt_state))
        assert eqx.tree_equal(jaxpar.unwrapped_state(loaded), loaded)


def test_numbers_of_another_kind():
    assert jaxpar.load_unwrapped_state({"epoch": 3, "name": "run"}, {"epoch": 0, "name": ""})["epoch"] == 3
    with pytest.raises(CheckpointError, match=r"epoch is 0 here and 'three' in source"):
        jaxpar.load_unwrapped_state({"epoch": "three"}, {"epoch": 0})


def test_linen_variables_and_their_wrappers():
    net = linen.Dense(2)
    variables = net.init(jax.random.key(0), jnp.ones((2, 3)))
    wrapped = data_parallel(net)
    target = wrapped.init(jax.random.key(1), jnp.ones((2, 3)))
    loaded = jaxpar.load_unwrapped_state(freeze(variables), target)
    assert bits(loaded) == bits(target | {"params": {"module": variables["params"]}})
    assert bits(jaxpar.unwrapped_state(loaded, wrapped)) == bits(variables)
    assert bits(jaxpar.unwrapped_state(variables, distributed(net))) == bits(variables)
    own = {"params": {"module": variables["params"]}}  # of a layer of this name
    for wrapper in (
        distributed(net),
        data_parallel(lambda params, x: x),
        distributed(lambda params, x: x),
        net,
    ):
        assert bits(jaxpar.unwrapped_state(own, wrapper)) == bits(own)
    with pytest.raises(CheckpointError, match=r"target is a DataParallel without a state of its own"):
        jaxpar.load_unwrapped_state(variables, wrapped)


def test_a_train_state_applies_the_module_inside():
    program = PROGRAMS["noisy linen"](0, data_parallel)
    state = jaxpar.unwrapped_state(program.state())
    assert state.apply_fn == program.net.module.apply
    assert list(program.state().params) == ["module"]
    assert "Dense_0" in state.params


def sharded(x, *spec):
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jaxpar.devices()[:4])
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))


def test_arrays_stay_on_their_devices(tmp_path):
    kernel, bias = np.arange(8.0).reshape(2, 4), np.arange(4.0)
    there = {"kernel": sharded(kernel, None, "model"), "bias": sharded(bias)}
    save("standard", tmp_path / "run", there)
    target = {"kernel": sharded(np.zeros((2, 4)), "data", "model"), "bias": jnp.zeros(4)}
    for source in (there, tmp_path / "run"):
        loaded = jaxpar.load_unwrapped_state(source, target)
        assert all(loaded[name].sharding == x.sharding for name, x in target.items())
        assert bits(loaded) == bits({"kernel": kernel, "bias": bias})
    assert jaxpar.unwrapped_state(there)["bias"] is there["bias"]  # with a kernel that is divided
    whole = jaxpar.unwrapped_state({"bias": there["bias"], "key": sharded(jax.random.key(3)), "n": 3})
    assert [len(x.devices()) for x in (whole["bias"], whole["key"])] == [1, 1]
    assert bits(whole) == bits({"bias": bias, "key": jax.random.key(3), "n": 3})


@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
def test_inside_of_a_mesh_and_in_float32(axis_type, tmp_path):
    types = (getattr(jax.sharding.AxisType, axis_type),) * 2
    mesh = jax.make_mesh((2, 2), ("data", "model"), types, devices=jaxpar.devices()[:4])
    with jax.enable_x64(False):
        nets = [nnx.Linear(4, 4, rngs=nnx.Rngs(seed)) for seed in (0, 1, 2)]
        state = nnx.state(nets[0])
        save("standard", tmp_path / "run", state)
        # The bias is not committed to a device, and must not move to the mesh either.
        divided = NamedSharding(mesh, PartitionSpec(None, "model"))
        nets[1].kernel = nnx.Param(jax.device_put(nets[1].kernel[...], divided))
        for target in (nets[1], jaxpar.DataParallel(nets[2], [0, 1])):
            before = [x.sharding for x in jax.tree.leaves(nnx.state(target))]
            with jax.set_mesh(mesh):
                jaxpar.load_unwrapped_state(tmp_path / "run", target)
                exported = jaxpar.unwrapped_state(target)
                with jaxpar.Checkpointer(tmp_path / str(type(target))) as checkpointer:
                    checkpointer.save(0, net=target)
                    checkpointer.restore(net=target)
            assert [x.sharding for x in jax.tree.leaves(nnx.state(target))] == before
            assert bits(exported) == bits(state)


def changed(state, path, value):
    """A pure dict of the net with one leaf changed, or without it."""
    tree = at = text_keys(nnx.to_pure_dict(state["net"]))
    *names, last = path.split(".")
    for name in names:
        at = at[name]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return tree


FAULTS = {
    "missing": ("norm.mean", None, r"Only here: norm.mean; only there: nothing.*ignore="),
    "extra": ("norm.count", jnp.ones(()), r"Only here: nothing; only there: norm.count"),
    "shape": (
        "blocks.1.bias",
        jnp.ones(3),
        r"state: blocks.1.bias has shape \(2,\) here and \(3,\) in source",
    ),
    "dtype": (
        "value",
        jnp.ones(2, jnp.float32),
        r"value is float64 here and float32 in source.*strict_dtype",
    ),
    "kind": ("value", "text", r"value is an array of float64\[2\] here and text or None in source"),
    "another key": ("drop.rngs.key", jax.random.key(0, impl="rbg"), r"key<fry> here and key<rbg>"),
    "no key": ("drop.rngs.key", jnp.ones(3, "uint32"), r"drop.rngs.key has shape \(\) here and \(3,\)"),
}


@pytest.mark.parametrize("wrap", [plain, data_parallel])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_changes_nothing(fault, wrap):
    path, value, message = FAULTS[fault]
    net = wrap(Net(1, True))
    before = bits(net)
    with pytest.raises(CheckpointError, match=message):
        jaxpar.load_unwrapped_state(changed(state_of(), path, value), net)
    assert bits(net) == before


def test_ignored_paths_and_other_dtypes():
    state, net = state_of(), data_parallel(Net(1, True))
    before = leaves(jaxpar.unwrapped_state(net))
    source = changed(state, "norm.mean", None) | {"old": {"a": 1}, "value": jnp.ones(2, jnp.float32)}
    with pytest.warns(UserWarning, match=r"value is float64 here and float32.*converted"):
        jaxpar.load_unwrapped_state(
            source, net, ignore=["old", "norm.mean", "blocks.*.bias"], strict_dtype=False
        )
    after, want = leaves(jaxpar.unwrapped_state(net)), leaves(state["net"])
    kept = [name for name in after if "mean" in name or ("blocks" in name and "bias" in name)]
    assert len(kept) == 3
    assert all((after[name] == before[name]).all() for name in kept)
    assert all(
        (after[name] == want[name]).all() for name in after if name not in kept and "value" not in name[:9]
    )
    assert after["['value'].value"].dtype == np.float64
    exported = jaxpar.unwrapped_state(net, ignore=["norm", "*.bias"])
    assert sorted(nnx.to_pure_dict(exported)) == ["blocks", "drop", "module", "value"]
    with pytest.raises(TypeError, match=r"\['norm'\]"):
        jaxpar.unwrapped_state(net, ignore="norm")


def test_files_that_are_none_of_these(tmp_path):
    with pytest.raises(CheckpointError, match=r"no such.* does not exist"):
        jaxpar.load_unwrapped_state(tmp_path / "no such", {})
    with pytest.raises(CheckpointError, match=r"neither a checkpoint of orbax.*holds nothing"):
        jaxpar.load_unwrapped_state(tmp_path, {})
    (tmp_path / "w.pt").write_bytes(b"PK\x03\x04 torch")
    with pytest.raises(
        CheckpointError, match=r"w.pt cannot be read as Flax's msgpack.*parity.load_checkpoint"
    ):
        jaxpar.load_unwrapped_state(tmp_path / "w.pt", {})
    with jaxpar.Checkpointer(tmp_path / "own") as checkpointer:
        checkpointer.save(1, net=Net(0, False))
    for folder in ("own", "own/1"):
        with pytest.raises(CheckpointError, match=r"jaxpar.Checkpointer's; its `restore`"):
            jaxpar.load_unwrapped_state(tmp_path / folder, {})
    save("items", tmp_path / "items", {"net": {"w": jnp.ones(2)}})
    (tmp_path / "items" / "7" / "iterator").mkdir()
    with pytest.raises(CheckpointError, match=r"iterator is neither a tree nor JSON.*ignore=\['iterator'\]"):
        jaxpar.load_unwrapped_state(tmp_path / "items", {})
    target = {"net": {"w": jnp.zeros(2)}, "notes": {"rate": 0.0}}
    loaded = jaxpar.load_unwrapped_state(tmp_path / "items" / "7", target, ignore=["iterator"])
    assert loaded["notes"] == {"rate": 0.1}
    assert loaded["net"]["w"].tolist() == [1, 1]


def test_arrays_that_are_gone():
    net = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    net.kernel[...].delete()
    with pytest.raises(DeletedError, match=r"unwrapped_state: kernel"):
        jaxpar.unwrapped_state(net)
