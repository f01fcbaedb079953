"""Rules of docs/semantics.md that no other file pins, in their order."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import gc
import inspect
import pickle
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar import errors
from jaxpar._parallel.placement import _place

X = np.random.RandomState(0).randn(9, 4)
SCALARS = "ignore:Was asked to gather along dimension 0:UserWarning"


class Linear(nnx.Module):
    def __init__(self):
        self.l = nnx.Linear(4, 2, param_dtype=jnp.float64, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.l(x)


# -------------------------------------------------------------------------------------- construction

ARGUMENTS = {
    "DataParallel": {"module": ..., "device_ids": None, "output_device": None, "dim": 0},
    "data_parallel": {
        "module": ...,
        "inputs": ...,
        "device_ids": None,
        "output_device": None,
        "dim": 0,
        "module_kwargs": None,
    },
    "scatter": {"inputs": ..., "target_gpus": ..., "dim": 0},
    "replicate": {"network": ..., "devices": ..., "detach": False},
    "parallel_apply": {"modules": ..., "inputs": ..., "kwargs_tup": None, "devices": None},
    "gather": {"outputs": ..., "target_device": None, "dim": 0},
}


def arguments(function):
    """Names and defaults of what may be passed by position."""
    found = inspect.signature(function).parameters.values()
    return {
        p.name: ... if p.default is p.empty else p.default for p in found if p.kind is p.POSITIONAL_OR_KEYWORD
    }


# rule 1
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_have_torchs_names_order_and_defaults(name):
    assert list(arguments(getattr(jaxpar, name)).items()) == list(ARGUMENTS[name].items())


# rule 1: jaxpar's gather may leave out its target
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_arguments_above_are_torchs(name):
    torch = pytest.importorskip("torch")
    function = torch.nn.DataParallel if name == "DataParallel" else getattr(torch.nn.parallel, name)
    theirs = arguments(function)
    if name == "gather":
        theirs["target_device"] = None
    if name == "data_parallel":
        assert theirs["inputs"] is ...
    assert list(theirs.items()) == list(ARGUMENTS[name].items())


# rule 2
def test_without_devices_nothing_that_names_them_is_read(monkeypatch):
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: jax.devices()[:1])

    def fails(x):
        raise LookupError("as it was raised")

    net = jaxpar.DataParallel(Linear(), ["nonsense", 99], -7, dim=5)
    assert (net.device_ids, net.output_device, net.dim) == ([], None, 5)
    assert [path[0] for path, _ in nnx.to_flat_state(nnx.state(net))] == ["module"] * 2
    with pytest.raises(LookupError) as caught:
        jaxpar.DataParallel(fails)(X)
    assert not any("replica" in note for note in getattr(caught.value, "__notes__", ()))


# rule 5
@pytest.mark.full
def test_the_current_device_does_not_matter(devices):
    with jaxpar.set_device(3):
        net = jaxpar.DataParallel(Linear())
        assert net.device_ids == list(range(8))
        assert net(X).devices() == {devices[0]}


# rule 7: the function says it as early as the class
@pytest.mark.parametrize(
    "verb",
    [
        lambda ids: jaxpar.data_parallel(Linear(), X, ids),
        lambda ids: jaxpar.scatter(X, ids),
        lambda ids: jaxpar.replicate(Linear(), ids),
    ],
)
def test_every_verb_refuses_unknown_devices(verb):
    with pytest.raises(errors.DeviceError, match="device id 8 is out of range"):
        verb([0, 8])


# docs/semantics.md row 11
def test_devices_of_different_kinds_are_refused(monkeypatch):
    kinds = {0: "gpu", 1: "gpu", 2: "cpu"}
    made = {i: SimpleNamespace(platform=kind, id=i) for i, kind in kinds.items()}
    monkeypatch.setattr("jaxpar._parallel.placement._devices.device", made.__getitem__)
    monkeypatch.setattr("jaxpar._parallel.placement._devices.name", lambda d: f"{d.platform}:{d.id}")
    with pytest.raises(errors.DeviceError, match=r"mix kinds of devices \(gpu:0, cpu:2\); replicas must be"):
        _place((0, 2), 0, 0, "DataParallel")


# rule 9: torch warns at every gather
@pytest.mark.full
def test_minus_one_as_output_device_warns_once(devices):
    with pytest.warns(FutureWarning, match="Using -1 to represent CPU tensor is deprecated"):
        net = jaxpar.DataParallel(Linear(), [1, 2], -1)
    assert net(X).devices() == {devices[0]}


# rule 10
@pytest.mark.parametrize("ids", [[1], [0, 1], [2, 0, 1]])
def test_construction_spreads_the_module(ids, devices):
    module = Linear()
    jaxpar.DataParallel(module, ids)
    assert module.l.kernel[...].devices() == {devices[i] for i in ids}


# rule 12
def test_a_module_that_moves_after_it_was_wrapped(devices):
    net = jaxpar.DataParallel(Linear(), [0, 1])
    nnx.update(net, jax.device_put(nnx.state(net), devices[2]))
    with pytest.raises(errors.MisplacedError, match=r"found one of them on device: cpu:2"):
        net(X)


# rule 13
def test_functional_form_and_saved_state():
    net = jaxpar.DataParallel(Linear(), [0, 1])
    graphdef, state = nnx.split(net)
    np.testing.assert_array_equal(nnx.merge(graphdef, state)(X), net(X))
    saved = pickle.dumps(jax.tree.map(np.asarray, nnx.to_pure_dict(state)))
    other = jaxpar.DataParallel(Linear(), [2, 3, 4])
    other.module.l.kernel[...] *= 0
    nnx.replace_by_pure_dict(state, pickle.loads(saved))
    nnx.update(other, state)
    np.testing.assert_allclose(other(X), net(X), rtol=1e-12)


# ------------------------------------------------------------------------------------------- scatter


# rule 18
def test_inputs_are_never_changed():
    def adds(x):
        x += 1
        return x

    def writes(x):
        x[0] = 1
        return x

    x = np.zeros(4)
    np.testing.assert_array_equal(jaxpar.DataParallel(adds, [0, 1])(x), np.ones(4))
    np.testing.assert_array_equal(x, np.zeros(4))
    with pytest.raises(TypeError, match="JAX arrays are immutable"):
        jaxpar.DataParallel(writes, [0, 1])(x)


@dataclasses.dataclass(eq=False)
class Unregistered:
    x: object


# rule 19
@pytest.mark.parametrize("shared", [{1, 2}, Unregistered(X), collections.UserDict(x=X)])
def test_containers_that_jax_does_not_know_are_shared(shared):
    first, second = jaxpar.scatter((shared, X), [0, 1])
    assert first[0] is second[0] is shared
    assert (len(first[1]), len(second[1])) == (5, 4)


# rule 20
@pytest.mark.parametrize("inputs", [X, (X,), [X], {"x": X}, (), None, 3])
def test_scatter_always_returns_shards(inputs):
    shards = jaxpar.scatter(inputs, [0, 1])
    assert isinstance(shards, jaxpar.Shards)
    assert isinstance(shards, collections.abc.Sequence)


# rule 21
def test_a_defaultdict_goes_in_and_comes_out():
    tree = collections.defaultdict(list, x=X)
    got = jaxpar.DataParallel(lambda d: d, [0, 1])(tree)
    assert type(got) is collections.defaultdict
    assert got["missing"] == []
    np.testing.assert_array_equal(got["x"], X)


# rule 28: JAX has no leaf there, so it is as if nothing had been passed
@pytest.mark.parametrize(("arguments", "runs"), [((None,), 1), (([],), 1), ((None, 3), 4), ((3,), 4)])
def test_none_alone_runs_once(arguments, runs):
    got = jaxpar.DataParallel(lambda *_: jnp.ones(3), range(4))(*arguments)
    assert got.shape == (3 * runs,)


# rule 30
@pytest.mark.parametrize(("inputs", "n"), [(X, 1), ([X, X], 1), ((X, X), 2), (None, 0), ((), 0)])
def test_only_a_tuple_is_several_arguments(inputs, n):
    got = jaxpar.data_parallel(lambda *args: jnp.full(1, len(args)), inputs, [0, 1])
    assert set(np.asarray(got)) == {n}


class Counts(nnx.Module):
    """Rebinds an attribute and changes a parameter in its forward."""

    def __init__(self):
        self.calls, self.w = 0, nnx.Param(jnp.zeros(4))

    def __call__(self, x):
        self.calls += 1
        self.w[...] += 1
        return x + self.w[...]


def fails(x):
    raise LookupError("as it was raised")


# rule 31
def test_one_device_has_no_replicas(devices):
    module = Counts()
    net = jaxpar.DataParallel(module, [3], output_device=5)
    assert net(X).devices() == {devices[3]}
    net(X)
    assert module.calls == 2
    with pytest.raises(LookupError) as caught:
        jaxpar.DataParallel(fails, [3])(X)
    assert not any("replica" in note for note in getattr(caught.value, "__notes__", ()))


# rule 32
def test_one_chunk_keeps_the_replica_path():
    with pytest.raises(LookupError) as caught:
        jaxpar.DataParallel(fails, [0, 1])(X[:1])
    assert any("Caught LookupError in replica 0 on device cpu:0" in n for n in caught.value.__notes__)
    with pytest.raises(errors.GatherTypeError, match="is of type int"):
        jaxpar.DataParallel(lambda x: 1, [0, 1])(X[:1])


# ----------------------------------------------------------------------------------------- replicate


# rule 35: parameters of replicas are values; one device shares them with the module
@pytest.mark.parametrize(("ids", "kept"), [([0], 1), ([0, 1], 0)])
def test_a_parameter_changed_in_forward(ids, kept):
    module = Counts()
    np.testing.assert_array_equal(jaxpar.DataParallel(module, ids)(X), X + 1)
    np.testing.assert_array_equal(module.w[...], np.full(4, kept))


# rule 35
def test_replica_zero_shares_its_bytes_with_the_module(devices):
    module = Linear()
    first = jaxpar.replicate(module, [0, 1])[0].l.kernel[...]
    (held,) = [s.data for s in module.l.kernel[...].addressable_shards if s.device == devices[0]]
    assert first.unsafe_buffer_pointer() == held.unsafe_buffer_pointer()


# rule 36
def test_forward_can_list_its_parameters():
    class Lists(Linear):
        def __call__(self, x):
            dtype = nnx.state(self, nnx.Param)["l"]["kernel"].get_value().dtype
            return jnp.full(1, len(jax.tree.leaves(nnx.state(self, nnx.Param))), dtype)

    got = jaxpar.DataParallel(Lists(), [0, 1])(X)
    np.testing.assert_array_equal(got, [2.0, 2.0])


# rule 37
def test_a_list_that_forward_appends_to_grows_once_per_trace():
    class Notes(nnx.Module):
        def __init__(self):
            self.rows = nnx.static([])

        def __call__(self, x):
            self.rows.append(len(x))
            return x

    module = Notes()
    jaxpar.DataParallel(module, [0, 1, 2, 3])(X[:8])
    assert module.rows == [2]


# rule 37: torch leaves a plain tensor on the first device
def test_plain_arrays_reach_all_replicas():
    class Plain(nnx.Module):
        def __init__(self):
            self.scale = jnp.arange(4.0)

        def __call__(self, x):
            return x * self.scale

    np.testing.assert_array_equal(jaxpar.DataParallel(Plain(), [0, 1])(X), X * np.arange(4))


# rules 37 and 39
def test_what_forward_adds_or_rebinds_is_lost():
    class Adds(nnx.Module):
        def __init__(self):
            self.seen = nnx.BatchStat(jnp.zeros(()))

        def __call__(self, x):
            self.seen = nnx.BatchStat(self.seen[...] + 1)
            self.late = nnx.BatchStat(jnp.zeros(()))
            return x

    module = Adds()
    jaxpar.DataParallel(module, [0, 1])(X)
    assert module.seen[...] == 0
    assert not hasattr(module, "late")


# rule 39
def test_two_names_for_one_buffer():
    class Aliased(nnx.Module):
        def __init__(self):
            self.seen = nnx.BatchStat(jnp.zeros(()))
            self.alias = self.seen

        def __call__(self, x):
            assert self.alias is self.seen
            self.alias[...] += x.sum()
            return x

    module = Aliased()
    jaxpar.DataParallel(module, [0, 1])(X)
    assert module.alias is module.seen
    np.testing.assert_allclose(module.seen[...], X[:5].sum(), rtol=1e-12)


# rule 41
def test_metadata_of_parameters_reaches_the_replicas():
    class Noted(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(4), gain=3.0)

        def __call__(self, x):
            return x * self.w[...] * self.w.gain

    np.testing.assert_array_equal(jaxpar.DataParallel(Noted(), [0, 1])(X), X * 3)
    assert [r.w.gain for r in jaxpar.replicate(Noted(), [0, 1])] == [3.0, 3.0]


# rule 43: torch's lazy layers work on one device
def test_shapes_without_values_on_one_device():
    with pytest.raises(errors.UninitializedError, match="Attempted to use an uninitialized parameter"):
        jaxpar.DataParallel(nnx.eval_shape(Linear), [0])(X)


# rule 44
def test_a_compiled_function_is_a_module():
    np.testing.assert_allclose(jaxpar.DataParallel(jax.jit(jnp.tanh), [0, 1])(X), np.tanh(X), rtol=1e-12)


# rule 45
def test_replicate_where_it_cannot(devices):
    with pytest.raises(errors.DeviceError, match="device_ids is empty"):
        jaxpar.replicate(Linear(), [])
    module = Linear()
    nnx.update(module, jax.device_put(nnx.state(module), devices[3]))
    with pytest.raises(errors.MisplacedError, match="found one of them on device: cpu:3"):
        jaxpar.replicate(module, [0, 1])
    assert len(jaxpar.replicate(jnp.tanh, [0, 1])) == 2


# rule 46: JAX puts arrays that it unpickles on the default device
@pytest.mark.parametrize("detach", [False, True])
def test_replicas_can_be_pickled(detach, devices):
    replicas = list(jaxpar.replicate(Linear(), [0, 1], detach))
    for replica in pickle.loads(pickle.dumps(replicas)):
        np.testing.assert_array_equal(replica.l.kernel[...], Linear().l.kernel[...])
        assert replica.l.kernel[...].devices() == {devices[0]}


# rule 47
@pytest.mark.full
def test_a_wrapper_on_one_device_may_hold_another():
    net = jaxpar.DataParallel(jaxpar.DataParallel(Linear(), [0, 1]), [0])
    np.testing.assert_allclose(net(X), Linear()(X), rtol=1e-12)


# ------------------------------------------------------------------------------------ parallel_apply


# rule 50
def test_lists_and_tuples_are_arguments():
    def echo(*args, **kwargs):
        return args, kwargs

    apply = jaxpar.parallel_apply
    assert apply([echo, echo], [(1, 2), 3]) == [((1, 2), {}), ((3,), {})]
    assert apply([echo, echo], [[1, 2], {"k": 1}]) == [((1, 2), {}), (({"k": 1},), {})]
    assert apply([echo, echo], [(), ()], [{"a": 1}, {}]) == [((), {"a": 1}), ((), {})]


# rule 52
def test_modules_of_a_list_run_where_their_inputs_lie(devices):
    with jaxpar.set_device(2):
        placed = [X, jaxpar.to(X, 5)]
        got = jaxpar.parallel_apply([jnp.tanh] * 2, placed)
    assert [y.devices() for y in got] == [{devices[2]}, {devices[5]}]


# rules 53 and 54
def test_there_are_no_threads_and_nothing_is_lost_in_them():
    variable = contextvars.ContextVar("variable", default="lost")
    variable.set("kept")
    seen = []

    def note(x):
        seen.append((threading.current_thread(), variable.get(), jax.config.jax_default_matmul_precision))
        return x

    with jax.default_matmul_precision("highest"):
        jaxpar.DataParallel(note, [0, 1, 2])(X)
        jaxpar.parallel_apply([note] * 2, [X, X], None, [0, 1])
    assert seen == [(threading.current_thread(), "kept", "highest")] * 3


# rule 54: what is read while tracing is part of the program; JAX's own settings are part of its key
@pytest.mark.full
def test_a_setting_of_jax_is_seen_by_the_next_call():
    net = jaxpar.DataParallel(
        lambda x: x * 0 + float(jax.config.jax_default_matmul_precision == "highest"), [0, 1]
    )
    assert not np.asarray(net(X)).any()
    with jax.default_matmul_precision("highest"):
        assert np.asarray(net(X)).all()


# rule 55
def test_the_exception_is_the_very_object():
    class Fields(Exception):
        def __init__(self, message, code):
            super().__init__(message)
            self.code = code

    for error in (Fields("wonderful", 7), KeyboardInterrupt()):

        def fail(x, error=error):
            raise error

        with pytest.raises(type(error)) as caught:
            jaxpar.DataParallel(fail, [0, 1])(X)
        assert caught.value is error


# rule 55
def test_the_lowest_replica_wins():
    def fail(x):
        raise ValueError(len(x))

    with pytest.raises(ValueError, match="5") as caught:
        jaxpar.DataParallel(fail, [0, 1])(X)
    assert any("in replica 0 on device cpu:0" in note for note in caught.value.__notes__)


# -------------------------------------------------------------------------------------------- gather


# rule 58: torch looks at the first output only
def test_all_outputs_decide():
    with pytest.raises(errors.GatherError, match="the same structure"):
        jaxpar.gather([None, X])
    assert jaxpar.gather([None, None]) is None
    assert list(jaxpar.gather([{"b": X, "a": X}, {"a": X, "b": X}])) == ["a", "b"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    x: object


# rule 61
def test_outputs_that_torch_does_not_gather():
    got = jaxpar.DataParallel(lambda x: (Registered(x), np.ones(len(x))), [0, 1])(X)
    np.testing.assert_array_equal(got[0].x, X)
    np.testing.assert_array_equal(got[1], np.ones(9))
    with pytest.raises(errors.GatherTypeError, match="is of type Unregistered"):
        jaxpar.DataParallel(Unregistered, [0, 1])(X)


# rule 66: lengths [B] and data [T, B] cannot share one dim
def test_lengths_beside_data_with_the_batch_on_another_axis():
    with pytest.raises(errors.DimError, match=r"inputs\[1\] has shape \(9,\) and dim=1"):
        jaxpar.DataParallel(lambda x, lengths: x, [0, 1], dim=1)(X.T, np.ones(9, int))


# ----------------------------------------------------------------------------------------- gradients


# rule 68: 9 rows are 3, 3, 3 on four devices and 5, 4 on two
@pytest.mark.filterwarnings(SCALARS)
@pytest.mark.parametrize(("N", "exact"), [(4, True), (2, False)])
def test_mean_of_means(N, exact):
    def loss(x):
        return (x**2).mean()

    got = jaxpar.DataParallel(loss, range(N))(X).mean()
    assert np.isclose(got, loss(X), rtol=1e-12) == exact
    pieces = jaxpar.scatter(X, range(N))
    np.testing.assert_allclose(got, np.mean([loss(np.asarray(p)) for p in pieces]), rtol=1e-12)


# rule 72
@pytest.mark.full
def test_gradients_are_returned_and_never_added_up():
    net = jaxpar.DataParallel(Linear(), [0, 1])
    gradient = nnx.grad(lambda net: net(X).sum())
    one, two = gradient(net), gradient(net)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    optimizer = nnx.Optimizer(net, optax.MultiSteps(optax.sgd(1.0), 2), wrt=nnx.Param)
    before = np.asarray(net.module.l.bias[...])
    optimizer.update(net, one)
    np.testing.assert_array_equal(net.module.l.bias[...], before)
    optimizer.update(net, two)
    np.testing.assert_allclose(net.module.l.bias[...], before - 9, rtol=1e-12)


# rule 76
@pytest.mark.full
def test_spectral_norm():
    def build():
        layer = nnx.Linear(4, 3, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        return nnx.SpectralNorm(layer, param_dtype=jnp.float64, rngs=nnx.Rngs(1))

    alone, module = build(), build()
    net = jaxpar.DataParallel(module, [0, 1])
    kernel = module.layer_instance.kernel[...]
    u = module.batch_stats["kernel", "u"][...]
    np.testing.assert_allclose(net(X, update_stats=True), alone(X, update_stats=True), rtol=1e-10)
    np.testing.assert_allclose(module.batch_stats["kernel", "u"][...], alone.batch_stats["kernel", "u"][...])
    assert not np.allclose(u, module.batch_stats["kernel", "u"][...])
    np.testing.assert_array_equal(module.layer_instance.kernel[...], kernel)


# rule 77
def test_targets_on_another_device(devices):
    y = jaxpar.DataParallel(Linear(), [0, 1], output_device=1)(X)
    target = np.zeros((9, 2))
    with pytest.raises(ValueError, match="incompatible devices"):
        y - jax.device_put(target, devices[0])
    for placed in (target, jnp.asarray(target), jax.device_put(target, devices[1])):
        assert (y - placed).devices() == {devices[1]}


# rule 78
def test_paths_of_a_wrapper_in_a_wrapper():
    net = jaxpar.DataParallel(jaxpar.DataParallel(Linear(), [0]), [0])
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(net))]
    assert paths == [("module", "module", "l", "bias"), ("module", "module", "l", "kernel")]
    assert [path for path, _ in nnx.to_flat_state(nnx.state(net.module.module))] == [
        ("l", "bias"),
        ("l", "kernel"),
    ]


# rule 79
def test_other_methods_see_the_whole_batch(devices):
    class Model(Linear):
        def rows(self, x):
            return self.l(x) * 0 + len(x)

    got = jaxpar.DataParallel(Model(), [0, 1]).module.rows(X)
    assert got.devices() == set(devices[:2])
    assert (np.asarray(got) == 9).all()


def left_in_cycles(call):
    """Return the number of objects that each call leaves to the search for garbage."""

    def unreachable_objects():
        while gc.collect():  # what is freed here may have held other cycles
            pass
        call()
        return gc.collect()

    call()
    # Every call leaves its own cycles. JAX's caches, which earlier tests filled, drop an entry now and then.
    return min(unreachable_objects() for _ in range(3))


# rule 80
@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("module", [Linear, lambda: jnp.tanh])
@pytest.mark.parametrize("B", [1, 4])
def test_no_reference_cycles(B, module):
    net = jaxpar.DataParallel(module(), [0, 1])
    assert left_in_cycles(lambda: net(X[:B])) == 0


def test_a_reference_cycle_is_seen():
    def call():
        cycle = []
        cycle.append(cycle)

    assert left_in_cycles(call) == 1
