"""DataParallel and data_parallel: the class, the function, the sentence by hand, and what comes back.

What torch's own test/distributed/test_data_parallel.py asserts is ported here row by row
(docs/semantics.md row 4); the comment T-DP names the test there.
"""

from __future__ import annotations

import collections
import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxpar
from jaxpar import errors


class Linear(nnx.Module):
    def __init__(self, i=10, o=5):
        self.l = nnx.Linear(i, o, param_dtype=jnp.float64, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.l(x)


X = np.random.RandomState(0).randn(20, 10)


# ------------------------------------------------------------------------------------- construction


# docs/semantics.md rows 1, 5, 6, 9; T-DP test_data_parallel_device_args
@pytest.mark.parametrize(
    ("ids", "want"),
    [
        (None, list(range(8))),
        ([0, 1], [0, 1]),
        ([3, 1, 2], [3, 1, 2]),
        (range(4), [0, 1, 2, 3]),
        (["cpu:2", "cpu:0"], [2, 0]),
        ("devices", [5, 6]),
        ((0, "cpu:7"), [0, 7]),
    ],
)
def test_device_ids(ids, want, devices):
    net = jaxpar.DataParallel(Linear(), devices[5:7] if ids == "devices" else ids)
    assert net.device_ids == want
    assert net.output_device == devices[want[0]]
    assert net.dim == 0
    y = net(X)
    assert y.devices() == {devices[want[0]]}
    np.testing.assert_allclose(y, Linear()(X), rtol=1e-12)


# docs/semantics.md row 9: the output device need not be one of device_ids
@pytest.mark.parametrize("target", [0, 1, 7, "cpu:6", "cpu", "device"])
def test_output_device(target, devices):
    given = devices[4] if target == "device" else target
    want = {"cpu:6": 6, "cpu": 0, "device": 4}.get(target, target)
    assert jaxpar.DataParallel(Linear(), [0, 1], given)(X).devices() == {devices[want]}
    assert jaxpar.data_parallel(Linear(), X, [0, 1], given).devices() == {devices[want]}


# docs/semantics.md row 13
def test_identity_of_the_wrapper():
    module = Linear()
    net = jaxpar.DataParallel(module, [0, 1])
    assert net.module is module
    assert isinstance(net, jaxpar.DataParallel)
    assert isinstance(net, nnx.Module)
    assert [path for path, _ in nnx.to_flat_state(nnx.state(net))] == [
        ("module", "l", "bias"),
        ("module", "l", "kernel"),
    ]
    with pytest.raises(AttributeError, match="l"):
        net.l  # noqa: B018
    assert "DataParallel" in repr(net)


# docs/semantics.md row 13: train and eval reach the module
def test_train_and_eval_propagate():
    net = jaxpar.DataParallel(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), [0, 1])
    net.eval()
    np.testing.assert_array_equal(net(X), X)
    net.train()
    assert (np.asarray(net(X)) == 0).any()


# docs/semantics.md row 13; T-DP test_save_replica_module
def test_copies_and_pickles():
    net = jaxpar.DataParallel(Linear(), [1, 0], "cpu:3")
    for other in (copy.deepcopy(net), nnx.clone(net)):
        np.testing.assert_array_equal(other(X), net(X))
        assert other.device_ids == [1, 0]
    assert pickle.loads(pickle.dumps(net.placement)) == net.placement


class Shelf(nnx.Module):
    def __call__(self, x):
        return x


def test_the_wrapper_pickles():
    net = pickle.loads(pickle.dumps(jaxpar.DataParallel(Shelf(), [1, 0])))
    assert net.device_ids == [1, 0]
    np.testing.assert_array_equal(net(X), X)


# docs/semantics.md row 2: no code change in CPU mode
def test_one_cpu_device_passes_through(monkeypatch):
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: jax.devices()[:1])
    assert jaxpar.device_count() == 0
    for ids in (None, [0, 1]):
        net = jaxpar.DataParallel(Linear(), device_ids=ids)
        assert net.device_ids == []
        np.testing.assert_array_equal(net(X), Linear()(X))
    assert jaxpar.DataParallel(lambda x: "any output")(X) == "any output"
    # docs/semantics.md row 3: torch's function raises where its class passes through
    np.testing.assert_array_equal(jaxpar.data_parallel(Linear(), X), Linear()(X))


# --------------------------------------------------------------------------------------- the sentence


def data_parallel(module, input, device_ids, output_device=None):
    """As in the tutorial this project was asked to make work."""
    if not device_ids:
        return module(input)
    if output_device is None:
        output_device = device_ids[0]
    replicas = jaxpar.replicate(module, device_ids)
    inputs = jaxpar.scatter(input, device_ids)
    replicas = replicas[: len(inputs)]
    outputs = jaxpar.parallel_apply(replicas, inputs)
    return jaxpar.gather(outputs, output_device)


@pytest.mark.parametrize("B", [0, 1, 3, 8, 20])
def test_data_parallel_written_by_hand(B, devices):
    module = Linear()
    for ids in ([], [0], [0, 1], [2, 0, 3, 1]):
        y = data_parallel(module, X[:B], ids)
        np.testing.assert_allclose(y, Linear()(X[:B]), rtol=1e-12)
        if len(ids) > 1:
            assert y.devices() == {devices[ids[0]]}
    assert data_parallel(module, X[:B], [0, 1], 5).devices() == {devices[5]}


# T-DP test_data_parallel_small_back, test_data_parallel, test_data_parallel_module
@pytest.mark.parametrize("ids", [(0, 1), (1, 0), (0,), None])
@pytest.mark.parametrize("backend", ["shard_map", "pmap"])
def test_output_and_gradients_equal_the_module(ids, backend):
    def loss(f):
        return lambda m: (f(m) ** 2).sum()

    want = nnx.grad(loss(lambda m: m(X)))(Linear())
    wrapped = jaxpar.DataParallel(Linear(), ids, backend=backend)
    got = nnx.grad(loss(lambda m: m(X)))(wrapped)["module"]
    function = nnx.grad(loss(lambda m: jaxpar.data_parallel(m, X, ids, backend=backend)))(Linear())
    for a, b, c in zip(*map(jax.tree.leaves, (got, function, want)), strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-12)
        np.testing.assert_allclose(b, c, rtol=1e-12)


class Multi(nnx.Module):
    """x.unsqueeze-like mixing of two arrays, a number and an optional keyword, as upstream."""

    def __init__(self):
        self.l = nnx.Linear(10, 5, param_dtype=jnp.float64, rngs=nnx.Rngs(0))

    def __call__(self, x, other, factor, extra=None):
        y = factor * (self.l(x) + other)
        return y if extra is None else y + extra


# T-DP test_data_parallel_multiple_input: 5 rows on 2 devices
@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("ids", [(0, 1), (1, 0), (0,), (2, 3, 4)])
@pytest.mark.parametrize("extra", [None, "keyword", "positional"])
def test_multiple_inputs(ids, extra):
    x, other, more = X[:5], X[5:10, :5], X[10:15, :5]
    args = (x, other, 0.7) + ((more,) if extra == "positional" else ())
    kwargs = {"extra": more} if extra == "keyword" else {}
    want = Multi()(*args, **kwargs)
    np.testing.assert_allclose(jaxpar.DataParallel(Multi(), ids)(*args, **kwargs), want, rtol=1e-12)
    np.testing.assert_allclose(
        jaxpar.data_parallel(Multi(), args, ids, module_kwargs=kwargs), want, rtol=1e-12
    )
    gradient = jax.grad(
        lambda x: (jaxpar.data_parallel(Multi(), (x, *args[1:]), ids, module_kwargs=kwargs) ** 2).sum()
    )
    plain = jax.grad(lambda x: (Multi()(x, *args[1:], **kwargs) ** 2).sum())
    np.testing.assert_allclose(gradient(jnp.asarray(x)), plain(jnp.asarray(x)), rtol=1e-12)


# T-DP test_data_parallel_module_kwargs_only, *_kwargs_only_empty_{list,dict,tuple}
@pytest.mark.parametrize("empty", [None, [], {}, ()])
def test_keywords_only(empty):
    class Keywords(nnx.Module):
        def __init__(self):
            self.l = nnx.Linear(10, 5, param_dtype=jnp.float64, rngs=nnx.Rngs(0))

        def __call__(self, input):
            assert input["empty"] == empty
            return self.l(input["data"])

    got = jaxpar.DataParallel(Keywords(), [0, 1, 2])(input={"data": X, "empty": empty})
    np.testing.assert_allclose(got, Linear()(X), rtol=1e-12)


# T-DP test_data_parallel_nested_output, test_data_parallel_nested_input
def test_nested_input_and_output():
    def nest(x):
        a, (b, c) = x
        return [a, (b * 2, [c, a], collections.OrderedDict(z=a, y=[b])), None]

    got = jaxpar.DataParallel(nest, [0, 1])((X, (X + 1, X + 2)))
    want = nest((X, (X + 1, X + 2)))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_array_equal, got, want)


# T-DP test_data_parallel_module_zero_inputs; docs/semantics.md row 29
@pytest.mark.parametrize("ids", [[0], [0, 1]])
def test_no_inputs(ids, devices):
    class Constant(nnx.Module):
        def __init__(self):
            self.p = nnx.Param(jnp.arange(4.0))

        def __call__(self):
            return self.p[...] * 2

    for got in (
        jaxpar.DataParallel(Constant(), ids)(),
        *(jaxpar.data_parallel(Constant(), x, ids) for x in (None, ())),
    ):
        np.testing.assert_array_equal(got, [0, 2, 4, 6])
        assert got.devices() == {devices[0]}


# docs/semantics.md row 28
def test_only_numbers_run_on_every_replica():
    got = jaxpar.DataParallel(lambda n: jnp.ones(n), [0, 1, 2, 3])(3)
    np.testing.assert_array_equal(got, np.ones(12))


# docs/semantics.md rows 31, 32
def test_one_device_is_called_as_it_is():
    net = jaxpar.DataParallel(lambda x: {"any": "output", "type": type(x)}, [3], 5)
    assert net(X)["any"] == "output"
    assert net.device_ids == [3]


# docs/semantics.md row 32: fewer rows than devices, and one row, take the same path
@pytest.mark.parametrize("B", [1, 2, 3])
def test_fewer_rows_than_devices(B):
    got = jaxpar.DataParallel(lambda x: (x, x.sum(1).mean()[None]), [0, 1, 2, 3])(X[:B])
    np.testing.assert_array_equal(got[0], X[:B])
    assert got[1].shape == (B,)


# docs/semantics.md row 60: scalars, one for each replica that was used
@pytest.mark.parametrize(("B", "k"), [(20, 4), (9, 3), (1, 1)])
def test_scalar_outputs(B, k):
    net = jaxpar.DataParallel(lambda x: (x**2).mean(), [0, 1, 2, 3])
    with pytest.warns(UserWarning, match="Was asked to gather along dimension 0"):
        got = net(X[:B])
    chunks = np.split(X[:B], np.cumsum(jaxpar.scatter(X[:B], range(4)).sizes)[:-1])
    np.testing.assert_allclose(got, [(c**2).mean() for c in chunks], rtol=1e-12)
    assert got.shape == (k,)


# docs/semantics.md row 16
def test_empty_batch():
    got = jaxpar.DataParallel(Linear(), [0, 1, 2])(X[:0])
    assert got.shape == (0, 5)
    gradients = nnx.grad(lambda m: jaxpar.data_parallel(m, X[:0], [0, 1]).sum())(Linear())
    assert all((g == 0).all() for g in jax.tree.leaves(gradients))


def test_outputs_may_have_other_row_counts_than_inputs():
    """Each replica returns 2 b - 1 rows: the pieces are put together without their padding."""
    net = jaxpar.DataParallel(lambda x: jnp.concatenate([x, x[1:]]), [0, 1, 2, 3])
    pieces = np.split(X[:10], [3, 6, 9])
    np.testing.assert_array_equal(net(X[:10]), np.concatenate([np.concatenate([p, p[1:]]) for p in pieces]))
    np.testing.assert_array_equal(jax.jit(net)(X[:10]), net(X[:10]))


def test_row_counts_that_grow_as_inputs_shrink():
    """Pieces of 4, 4, 4 and 12 rows, from 3, 3, 3 and 1."""
    net = jaxpar.DataParallel(lambda x: jnp.repeat(x[:1], 12 // len(x), axis=0), [0, 1, 2, 3])
    want = np.repeat(X[[0, 3, 6, 9]], [4, 4, 4, 12], axis=0)
    np.testing.assert_array_equal(net(X[:10]), want)
    np.testing.assert_array_equal(jax.jit(net)(X[:10]), want)


@pytest.mark.parametrize("dim", [1, -1, 2])
def test_any_dim(dim):
    x = np.arange(4 * 5 * 6.0).reshape(4, 5, 6)
    net = jaxpar.DataParallel(lambda x: x - x.mean(dim, keepdims=True), [0, 1, 2], dim=dim)
    pieces = np.split(x, np.cumsum(jaxpar.scatter(x, range(3), dim).sizes)[:-1], dim)
    want = np.concatenate([p - p.mean(dim, keepdims=True) for p in pieces], dim)
    np.testing.assert_allclose(net(x), want, rtol=1e-12)


# docs/semantics.md row 17: inputs may be anywhere
def test_inputs_on_any_device(devices):
    for d in devices[:3]:
        got = jaxpar.DataParallel(Linear(), [0, 1])(jax.device_put(X, d))
        np.testing.assert_allclose(got, Linear()(X), rtol=1e-12)
        assert got.devices() == {devices[0]}


def test_a_batch_on_all_devices_gives_outputs_on_all_devices(devices):
    placement = jaxpar.Placement(tuple(devices[:4]))
    for sharding in (placement.replicated, placement.stacked):
        got = jaxpar.DataParallel(Linear(), range(4))(jax.device_put(X, sharding))
        assert got.devices() == set(devices[:4])
        np.testing.assert_allclose(got, Linear()(X), rtol=1e-12)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float32", "complex64", "complex128", "int32", "bool"]
)
def test_dtypes(dtype):
    x = jnp.asarray(X > 0).astype(dtype)
    got = jaxpar.DataParallel(lambda x: (x, ~x if x.dtype == bool else x * 2), [0, 1, 2])(x)
    assert got[0].dtype == x.dtype
    np.testing.assert_array_equal(got[0], x)


# ------------------------------------------------------------------------------------ state and random


class Counting(nnx.Module):
    """Buffers of several kinds: floating, integer, boolean, and one nobody touches."""

    def __init__(self):
        self.mean = nnx.BatchStat(jnp.zeros(10))
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))
        self.big = nnx.Variable(jnp.array(2**31 + 5, jnp.uint32))
        self.seen = nnx.Variable(jnp.array(False))
        self.wide = nnx.Variable(jnp.array(2**40, jnp.int64))
        self.table = nnx.Variable(jnp.arange(5.0))

    def __call__(self, x):
        self.mean[...] = x.mean(0)
        self.calls[...] += 1
        self.big[...] += 3
        self.seen[...] = ~self.seen[...]
        self.wide[...] += 1
        return x


# docs/semantics.md rows 39, 75, 76; T-DP test_replicate_buffers
@pytest.mark.parametrize("backend", ["shard_map", "pmap"])
@pytest.mark.parametrize(("N", "B"), [(4, 8), (4, 10), (4, 3), (8, 17), (2, 1)])
def test_buffers_come_back_from_replica_zero(N, B, backend, devices):
    net = jaxpar.DataParallel(Counting(), range(N), backend=backend)
    table = net.module.table.get_raw_value()
    for call in (1, 2):
        net(X[:B])
        first = X[: jaxpar.scatter(X[:B], range(N)).sizes[0]]
        np.testing.assert_allclose(net.module.mean[...], first.mean(0), rtol=1e-12)
        assert net.module.calls[...] == call
        assert net.module.big[...] == 2**31 + 5 + 3 * call
        assert net.module.big[...].dtype == jnp.uint32
        assert bool(net.module.seen[...]) == (call == 1)
        assert net.module.wide[...] == 2**40 + call
    assert net.module.table.get_raw_value() is table, "an untouched buffer is not sent around"
    assert net.module.mean[...].devices() == set(devices[:N])


class Storing(nnx.Module):
    """Buffers that hold what came in."""

    def __init__(self):
        self.first = nnx.BatchStat(jnp.zeros(10))
        self.count = nnx.Variable(jnp.zeros((), jnp.int32))
        self.seen = nnx.Variable(jnp.zeros(2000, bool))
        self.table = nnx.Variable(jnp.zeros(2000, jnp.int64))

    def __call__(self, x):
        self.first[...] = x[0]
        self.count[...] = x[0, 1].astype(jnp.int32)
        self.seen[...] = jnp.arange(2000) % 2 == x[0, 1].astype(int) % 2
        self.table[...] = jnp.full(2000, x[0, 1].astype(jnp.int64))
        return x


# docs/semantics.md row 39
@pytest.mark.parametrize("count", [1, 2**15 - 1, 2**15, 2**16, 2**31 - 1, -1, -(2**31)])
def test_what_other_replicas_store_does_not_come_through(count):
    x = np.full((4, 10), np.nan)
    x[0] = [np.inf, count, *range(8)]
    x[2, 1] = 7
    net = jaxpar.DataParallel(Storing(), range(2))
    net(x)
    np.testing.assert_array_equal(net.module.first[...], x[0])
    assert net.module.count[...] == count
    np.testing.assert_array_equal(net.module.seen[...], np.arange(2000) % 2 == count % 2)
    np.testing.assert_array_equal(net.module.table[...], np.full(2000, count))


# docs/semantics.md row 37: rebinding in forward is lost
def test_rebound_attributes_are_lost():
    class Rebinds(nnx.Module):
        def __init__(self):
            self.c = 1

        def __call__(self, x):
            self.c += 1
            return x

    net = jaxpar.DataParallel(Rebinds(), [0, 1])
    net(X)
    assert net.module.c == 1


# docs/semantics.md row 38
@pytest.mark.full
def test_tied_weights():
    class Tied(nnx.Module):
        def __init__(self):
            self.a = nnx.Linear(10, 10, use_bias=False, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
            self.b = self.a

        def __call__(self, x):
            return self.b(jnp.tanh(self.a(x)))

    want = nnx.grad(lambda m: (m(X) ** 2).sum())(Tied())
    got = nnx.grad(lambda m: (m(X) ** 2).sum())(jaxpar.DataParallel(Tied(), [0, 1, 2]))["module"]
    assert len(jax.tree.leaves(got)) == 1
    np.testing.assert_allclose(jax.tree.leaves(got)[0], jax.tree.leaves(want)[0], rtol=1e-12)


# docs/semantics.md row 37; T-DP test_parameter_list_dict_replica
def test_lists_and_dicts_of_parameters():
    class Lists(nnx.Module):
        def __init__(self):
            self.list = nnx.List([nnx.Param(jnp.ones(10)), nnx.Param(2 * jnp.ones(10))])
            self.dict = nnx.Dict({"k": nnx.Param(3 * jnp.ones(10))})

        def __call__(self, x):
            return x * self.list[0][...] * self.list[1][...] + self.dict["k"][...]

    net = jaxpar.DataParallel(Lists(), [0, 1])
    np.testing.assert_allclose(net(X), X * 2 + 3)
    gradients = nnx.grad(lambda m: m(X).sum())(net)
    assert all((g != 0).all() for g in jax.tree.leaves(gradients))


# docs/semantics.md row 57
@pytest.mark.parametrize("backend", ["shard_map", "pmap"])
def test_each_replica_has_its_own_random_stream(backend):
    net = jaxpar.DataParallel(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), range(4), backend=backend)
    ones = np.ones((8, 1000))
    first = np.asarray(net(ones)).reshape(4, 2, 1000)
    assert len({m.tobytes() for m in first}) == 4
    second = np.asarray(net(ones)).reshape(4, 2, 1000)
    assert not (first == second).all(), "the stream moves on"
    assert abs((first != 0).mean() - 0.5) < 0.02
    again = jaxpar.DataParallel(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), range(4), backend=backend)
    np.testing.assert_array_equal(np.asarray(again(ones)).reshape(4, 2, 1000), first)


# design 4: with one replica nothing is folded
def test_one_replica_draws_what_the_module_draws():
    want = nnx.Dropout(0.5, rngs=nnx.Rngs(0))(np.ones((1, 1000)))
    for ids in ([0], [0, 1, 2]):
        np.testing.assert_array_equal(
            jaxpar.DataParallel(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), ids)(np.ones((1, 1000))), want
        )


def test_the_key_itself_is_not_changed():
    net = jaxpar.DataParallel(nnx.Dropout(0.5, rngs=nnx.Rngs(3)), [0, 1])
    before = jax.random.key_data(net.module.rngs.key[...])
    net(np.ones((2, 2)))
    np.testing.assert_array_equal(jax.random.key_data(net.module.rngs.key[...]), before)
    assert net.module.rngs.count[...] == 1


# -------------------------------------------------------------------------------------- use in a model


# a block inside a larger model
@pytest.mark.full
@pytest.mark.parametrize("B", [pytest.param(8, marks=pytest.mark.long), 7])
def test_a_wrapped_block_trains_under_jit_and_is_called_eagerly_after(B):
    class Model(nnx.Module):
        def __init__(self, wrap):
            self.block1 = Linear(10, 6)
            self.block2 = wrap(Linear(6, 6))
            self.block3 = Linear(6, 2)

        def __call__(self, x):
            return self.block3(jnp.tanh(self.block2(jnp.tanh(self.block1(x)))))

    @nnx.jit
    def step(model, x):
        loss, gradients = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), gradients))
        return loss

    plain, parts = Model(lambda b: b), Model(lambda b: jaxpar.DataParallel(b, [0, 1, 2]))
    x = jnp.asarray(X[:B])
    np.testing.assert_allclose(parts(x), plain(x), rtol=1e-12)
    for _ in range(3):
        np.testing.assert_allclose(step(parts, x), step(plain, x), rtol=1e-12)
    np.testing.assert_allclose(parts(x), plain(x), rtol=1e-12)


def test_a_module_that_changes_is_seen():
    """The split of a module is remembered between calls; what changes in it must not be."""
    net = jaxpar.DataParallel(
        nnx.Sequential(Linear(), nnx.Dropout(0.9, rngs=nnx.Rngs(0)), lambda x: x), [0, 1]
    )
    net.eval()
    before = np.asarray(net(X))
    net.module.layers[0].l.kernel[...] *= 2
    changed = np.asarray(net(X))
    np.testing.assert_allclose(changed, Linear()(X) * 2 - Linear()(X)[:0].sum(), rtol=1e-12)
    assert not np.allclose(before, changed)
    net.module.layers[0] = nnx.clone(Linear())
    np.testing.assert_allclose(net(X), before, rtol=1e-12)
    net.module.layers[2] = lambda x: x + 1
    np.testing.assert_allclose(net(X), before + 1, rtol=1e-12)
    net.train()
    assert (np.asarray(net(X)) == 1).mean() > 0.5
    net.module.layers[1].rate = 0.0
    np.testing.assert_allclose(net(X), before + 1, rtol=1e-12)


# docs/semantics.md row 79
def test_only_call_is_parallel():
    net = jaxpar.DataParallel(Linear(), [0, 1])
    np.testing.assert_allclose(net.module(X), Linear()(X), rtol=1e-12)


# ------------------------------------------------------------------------------------------ bad input


# docs/semantics.md rows 6, 7, 8
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"device_ids": [0, 8]},
            errors.DeviceError,
            r"device id 8 is out of range: this process has 8 cpu devices \(cpu:0 to cpu:7\)",
        ),
        ({"device_ids": [-1]}, errors.DeviceError, "device id -1 is out of range"),
        ({"device_ids": [0, 0]}, errors.DeviceError, r"0 given twice in device_ids=\[0, 0\]"),
        ({"device_ids": [0, "cpu:0"]}, errors.DeviceError, "'cpu:0' given twice"),
        ({"device_ids": []}, errors.DeviceError, "device_ids is empty"),
        ({"device_ids": ["cpu:1x"]}, errors.DeviceError, "'cpu:1x' is not a device; write a kind"),
        ({"device_ids": ["cuda:0"]}, errors.DeviceError, r"JAX sees none .*install jaxpar\[cuda12\]"),
        ({"device_ids": [1.5]}, errors.DeviceError, r"1\.5 is not a device"),
        ({"device_ids": 2}, TypeError, r"device_ids must be a list of devices, not 2; write \[2\]"),
        ({"output_device": "gpu"}, errors.DeviceError, "asks for an accelerator"),
        ({"output_device": 9}, errors.DeviceError, "device id 9 is out of range"),
        ({"dim": "0"}, TypeError, "dim must be an int, not '0'"),
        ({"backend": "nccl"}, ValueError, "backend='nccl' is unknown; there are 'shard_map', 'pmap'"),
    ],
)
def test_bad_construction(arguments, error, message):
    with pytest.raises(error, match=message):
        jaxpar.DataParallel(Linear(), **arguments)


# docs/semantics.md row 14; T-DP test_data_parallel_model_device
@pytest.mark.parametrize("ids", [[0, 1], [0]])
@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("what", ["parameter", "buffer"])
def test_parameters_elsewhere(ids, function, what, devices):
    class Both(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(10))
            self.b = nnx.BatchStat(jnp.ones(10))

        def __call__(self, x):
            return x * self.w[...] + self.b[...]

    module = Both()
    leaf = module.w if what == "parameter" else module.b
    leaf.set_value(jax.device_put(leaf[...], devices[2]))
    message = (
        r"module must have its parameters and buffers on device cpu:0 \(device_ids\[0\]\) but found one of "
        rf"them on device: cpu:2\. It is module\.{(leaf is module.w and 'w') or 'b'}; move it"
    )
    with pytest.raises(errors.MisplacedError, match=message) as caught:
        jaxpar.data_parallel(module, X, ids) if function else jaxpar.DataParallel(module, ids)(X)
    assert isinstance(caught.value, RuntimeError)


# T-DP test_data_parallel_model_device: the cases that are right
@pytest.mark.parametrize(
    ("home", "ids"), [(0, [0, 1]), (1, [1, 0]), (2, [2]), (2, [2, 7, 0]), (None, [4, 1])]
)
def test_parameters_on_the_first_device(home, ids, devices):
    module = Linear()
    if home is not None:
        nnx.update(module, jax.device_put(nnx.state(module), devices[home]))
    np.testing.assert_allclose(jaxpar.data_parallel(module, X, ids), Linear()(X), rtol=1e-12)
    np.testing.assert_allclose(jaxpar.DataParallel(module, ids[::-1])(X), Linear()(X), rtol=1e-12)


# docs/semantics.md row 43; T-DP test_data_parallel_lazy_linear
def test_an_uninitialised_module():
    module = nnx.eval_shape(Linear)
    with pytest.raises(
        errors.UninitializedError,
        match=r"Attempted to use an uninitialized parameter: module\.l\.bias is a shape \(float64\[5\]\)",
    ):
        jaxpar.DataParallel(module, [0, 1])(X)


# docs/semantics.md row 55; T-DP test_parallel_apply_passes_exception
@pytest.mark.parametrize("backend", ["shard_map", "pmap"])
@pytest.mark.parametrize("error", [KeyError, ValueError, ZeroDivisionError])
def test_an_exception_keeps_its_class_and_names_the_replica(error, backend):
    class Own(error):
        pass

    def forward(x):
        if x.shape[0] == 1:
            raise Own("wonderful")
        return x

    with pytest.raises(Own, match="wonderful") as caught:
        jaxpar.DataParallel(forward, [0, 1, 2, 3], backend=backend)(X[:10])
    note = "Caught Own in replica 3 on device cpu:3, which has 1 rows along dim=0"
    assert any(note in text for text in caught.value.__notes__)


def test_a_mask_as_long_as_the_batch_that_was_cut_is_named():
    def attend(weights, x, mask):
        return jnp.where(mask, x @ weights, 0)

    net = jaxpar.DataParallel(attend, [0, 1, 2, 3])
    weights, x, mask = jaxpar.replicated(np.ones((3, 8))), np.ones((8, 8, 3)), np.ones((8, 8), bool)
    with pytest.raises(ValueError, match="broadcasting") as caught:
        net(weights, x, mask)
    text = "\n".join(caught.value.__notes__)
    assert "which has 2 rows along dim=0" in text  # not the 3 of the weights
    assert "cut into rows: [2, 8, 3], [2, 8]. Mark one" in text
    assert net(weights, x, jaxpar.replicated(mask)).shape == (8, 8, 8)
    with pytest.raises(ValueError, match="broadcasting") as caught:
        jaxpar.DataParallel(lambda x: x + np.ones(7), [0, 1])(np.ones((8, 3)))
    assert "replicated" not in "\n".join(caught.value.__notes__)  # one argument is the batch


def test_rows_along_another_axis_than_the_modules_are_named():
    net = jaxpar.DataParallel(lambda x: x @ np.ones((3, 2)), [0, 1, 2], dim=-1)
    with pytest.raises(TypeError, match="contracting") as caught:
        net(np.ones((8, 3)))
    text = "in replica 0 on device cpu:0, which has 1 rows along dim=-1 ("
    assert any(text in note for note in caught.value.__notes__)


# docs/semantics.md row 61
@pytest.mark.parametrize("leaf", ["text", 3, 2.5, object()])
def test_outputs_that_cannot_be_gathered(leaf):
    with pytest.raises(
        errors.GatherTypeError, match=rf"outputs\['n'\] is of type {type(leaf).__name__} .*cannot be gathered"
    ):
        jaxpar.DataParallel(lambda x: {"x": x, "n": leaf}, [0, 1])(X)


def test_structures_that_differ_between_replicas():
    net = jaxpar.DataParallel(lambda x: {"a": x} if len(x) > 1 else {"b": x}, [0, 1, 2, 3])
    with pytest.raises(errors.GatherError, match=r"replica 0 returned .* and replica 3 returned"):
        net(X[:10])
    net = jaxpar.DataParallel(lambda x: x if len(x) > 1 else x.astype(int), [0, 1, 2, 3])
    with pytest.raises(errors.GatherError, match="outputs is float64 with 2 axes on replica 0 and int64"):
        net(X[:10])


# docs/semantics.md row 63
def test_shapes_that_differ_between_replicas():
    net = jaxpar.DataParallel(lambda x: x @ x.T, [0, 1, 2, 3])
    with pytest.raises(
        errors.GatherError, match=r"Input tensor at index 3 has invalid shape \[1, 1\], but expected \[1, 3\]"
    ):
        net(X[:10])


def test_a_donated_parameter(devices):
    net = jaxpar.DataParallel(Linear(), [0, 1])
    net(X)
    net.module.l.kernel.get_raw_value().delete()
    with pytest.raises(
        errors.DeletedError, match=r"DataParallel: module\.l\.kernel \(float64\[10, 5\]\) was donated"
    ):
        net(X)


# docs/semantics.md row 47
def test_nesting_is_refused():
    net = jaxpar.DataParallel(jaxpar.DataParallel(Linear(), [0, 1]), [0, 1])
    with pytest.raises(errors.NestedError, match="inside a replica of another"):
        net(X)


# A collective in a branch that only some replicas take would hang for ever.
def test_collectives_in_an_uneven_batch():
    net = jaxpar.DataParallel(lambda x: x - jax.lax.pmax(x.max(0), "replica"), [0, 1, 2, 3])
    np.testing.assert_allclose(net(X), X - X.max(0), rtol=1e-10, atol=1e-12)
    with pytest.raises(errors.CollectiveError, match="wait for each other for ever"):
        net(X[:10])


def test_functions_that_hide_a_module():
    module = Linear()
    for hidden in (lambda x: module(x), module.__call__):
        with pytest.raises(TypeError, match="holds the NNX module Linear"):
            jaxpar.DataParallel(hidden, [0, 1])


# docs/semantics.md row 37: torch uses the first device's weights there
def test_attributes_that_hide_a_module():
    class Hides(Linear):
        def __init__(self, how):
            super().__init__()
            self.f = self.g if how == "method" else functools.partial(self.g)

        def g(self, x):
            return self.l(x)

        def __call__(self, x):
            return self.f(x)

    for how in ("method", "partial"):
        with pytest.raises(TypeError, match="holds the NNX module Hides"):
            jaxpar.DataParallel(Hides(how), [0, 1])(X)


def test_the_type_of_an_attribute_is_part_of_the_module():
    class Adds(nnx.Module):
        def __init__(self):
            self.n = 1

        def __call__(self, x):
            return x + self.n

    net = jaxpar.DataParallel(Adds(), [0, 1])
    ints = np.arange(4)
    assert net(ints).dtype == jnp.int64
    net.module.n = 1.0
    assert net(ints).dtype == jnp.float64


def test_a_placement_brings_its_own_arguments():
    placement = jaxpar.Placement(tuple(jaxpar.devices()[:2]), 1, jaxpar.devices()[3])
    assert jaxpar.DataParallel(Linear(), placement).dim == 1
    for arguments in ({"dim": 1}, {"output_device": 3}):
        with pytest.raises(TypeError, match="device_ids is a Placement, which brings its own"):
            jaxpar.DataParallel(Linear(), placement, **arguments)


def test_it_cannot_be_subclassed():
    with pytest.raises(TypeError, match="cannot be subclassed"):

        class Mine(jaxpar.DataParallel):
            pass


def test_a_deleted_input():
    x = jnp.ones((4, 10))
    x.delete()
    with pytest.raises(errors.DeletedError, match=r"scatter: inputs\[0\] .*was donated"):
        jaxpar.DataParallel(Linear(), [0, 1])(x)


def test_things_that_cannot_be_called():
    with pytest.raises(TypeError, match="int cannot be called"):
        jaxpar.DataParallel(3)
    with pytest.raises(TypeError, match="int cannot be called"):
        jaxpar.data_parallel(3, X)


def test_a_closed_over_module_with_buffers_says_what_to_do():
    net = jaxpar.DataParallel(Counting(), [0, 1])
    with pytest.raises(Exception, match="Cannot mutate") as caught:
        jax.jit(lambda x: net(x))(X)
    assert any("pass the module to that function as an argument" in n for n in caught.value.__notes__)


@pytest.mark.parametrize("devices", [(0, 1), ["cpu:0"], (None,)], ids=str)
def test_a_placement_of_what_is_no_device_is_refused(devices):
    """JAX would end the process."""
    with pytest.raises(TypeError, match=r"Placement: devices must be jax.Devices, not"):
        jaxpar.Placement(devices)
