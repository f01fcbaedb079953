"""DistributedDataParallel in one process: the mean over replicas is that of a loop over the chunks."""

from __future__ import annotations

import copy
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax.sharding import PartitionSpec as P
from test_program import Net as Everything
from test_program import reduced_elements

import jaxpar
from jaxpar import comm_hooks
from jaxpar._parallel.programs import Programs
from jaxpar._training.compiled_step import compiled
from jaxpar.comm_hooks.hook import SMALL, Message
from jaxpar.errors import BatchError, DeviceError, GradientError, LossError, ParametersError, StagedError
from jaxpar.nn import BatchNorm, SyncBatchNorm

N, NEAR = 4, 1e-12
BATCHES = [8, 11, 6]
BACKENDS = ["shard_map", "pmap"]
X = np.random.RandomState(0).randn(12, 3)
Y = np.random.RandomState(1).randn(12, 2)


class Net(nnx.Module):
    def __init__(self, norm=BatchNorm, rngs=None):
        rngs = rngs or nnx.Rngs(0)
        self.a = nnx.Linear(3, 5, rngs=rngs, param_dtype=jnp.float64)
        self.norm = None if norm is None else norm(5, param_dtype=jnp.float64)
        self.b = nnx.Linear(5, 2, rngs=rngs, param_dtype=jnp.float64)

    def __call__(self, x):
        y = self.a(x)
        return self.b(jnp.tanh(y if self.norm is None else self.norm(y)))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        y = linen.Dense(5, param_dtype=jnp.float64)(x)
        y = linen.BatchNorm(False, param_dtype=jnp.float64)(y)
        return linen.Dense(2, param_dtype=jnp.float64)(jnp.tanh(y))


def function(parameters, x):
    return jnp.tanh(x @ parameters["a"]) @ parameters["b"]


def square(net, x, y):
    return ((net(x) - y) ** 2).mean()


def with_outputs(net, x, y):
    out = net(x)
    return ((out - y) ** 2).mean(), out


def assert_close(got, want, near=0.0):
    """Of magnitudes near 1; a gradient that is zero in exact arithmetic has no relative error."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=near)


def chunks(B):
    """The rows of each replica, as torch.chunk cuts them."""
    c = -(-B // N)
    return [slice(i, min(i + c, B)) for i in range(0, B, c)]


def mean(trees):
    return jax.tree.map(lambda *xs: sum(xs) / len(xs), *trees)


def ddp(module, **options):
    return jaxpar.DistributedDataParallel(module, range(N), **options)


def by_hand(net, B):
    """Mean loss, mean gradients and outputs of the chunks; the first chunk's buffers."""
    pairs, buffers = [], None
    for rows in chunks(B):
        module = copy.deepcopy(net)
        pairs.append(nnx.value_and_grad(with_outputs, has_aux=True)(module, X[rows], Y[rows]))
        buffers = buffers or nnx.to_pure_dict(nnx.state(module, nnx.Not(nnx.Param)))
    losses, outputs = zip(*(value for value, _ in pairs), strict=True)
    gradients = [nnx.to_pure_dict(g) for _, g in pairs]
    return mean(losses), jnp.concatenate(outputs), mean(gradients), buffers


# ---------------------------------------------------------------------------------- three kinds


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("B", BATCHES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_nnx(B, backend):
    module = Net()
    loss, outputs, gradients, buffers = by_hand(module, B)
    net = ddp(module, backend=backend)
    (got, out), grads = net.value_and_grad(with_outputs, has_aux=True)(X[:B], Y[:B])
    assert_close((got, out), (loss, outputs), NEAR)
    grads = nnx.to_pure_dict(grads)["module"]
    assert_close(grads, gradients, NEAR)
    assert_close(nnx.to_pure_dict(nnx.state(module, nnx.Not(nnx.Param))), buffers, NEAR)
    # The mean over the replicas is neither their sum nor the gradient of all rows.
    with pytest.raises(AssertionError):
        assert_close(jax.tree.map(lambda g: g * len(chunks(B)), grads), gradients, NEAR)
    if B == 11:
        whole = nnx.to_pure_dict(nnx.grad(square)(Net(), X[:B], Y[:B]))
        with pytest.raises(AssertionError):
            assert_close(grads, whole, NEAR)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("B", BATCHES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_linen(B, backend):
    module = LinenNet()
    net = ddp(module, backend=backend)
    variables = net.init(jax.random.key(0), X)

    def of_chunk(params, rows):
        out, updates = module.apply(variables | {"params": params}, X[rows], mutable="batch_stats")
        return ((out - Y[rows]) ** 2).mean(), updates

    f = jax.value_and_grad(of_chunk, has_aux=True)
    pairs = [f(variables["params"], rows) for rows in chunks(B)]
    losses, updates = zip(*(value for value, _ in pairs), strict=True)
    step = net.value_and_grad(square, mutable="batch_stats")
    (loss, changed), gradients = step(variables, X[:B], Y[:B])
    expected = mean(losses), updates[0], mean([g for _, g in pairs])
    assert_close((loss, changed, gradients), expected, NEAR)
    with pytest.raises(AssertionError):
        assert_close(changed, updates[-1], NEAR)


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("B", BATCHES)
def test_function(B, backend):
    parameters = {"a": X[:3, :3], "b": Y[:3]}
    pairs = [
        jax.value_and_grad(lambda p, r=rows: ((function(p, X[r]) - Y[r]) ** 2).mean())(parameters)
        for rows in chunks(B)
    ]
    got = ddp(function, backend=backend).value_and_grad(square)(parameters, X[:B], Y[:B])
    assert_close(got, mean(pairs), NEAR)


def test_another_batch_dimension():
    expected = ddp(function).value_and_grad(square)({"a": X[:3, :3], "b": Y[:3]}, X, Y)

    def turned(net, x, y):
        return ((net(x.T) - y.T) ** 2).mean()

    net = jaxpar.DistributedDataParallel(function, range(N), dim=1)
    got = net.value_and_grad(turned)({"a": X[:3, :3], "b": Y[:3]}, X.T, Y.T)
    assert_close(got, expected, NEAR)


@pytest.mark.full
def test_several_dtypes():
    """docs/semantics.md row D26."""
    module = Net(None)
    module.a.bias.set_value(module.a.bias[...].astype(jnp.float32))
    expected = by_hand(module, 8)[2]
    _, gradients = ddp(module).value_and_grad(square)(X[:8], Y[:8])
    gradients = nnx.to_pure_dict(gradients)["module"]
    assert gradients["a"]["bias"].dtype == jnp.float32
    assert_close(gradients, expected, 1e-6)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("B", BATCHES)
def test_two_forwards_before_a_backward(B):
    """docs/semantics.md row D8: with BatchNorm, whose statistics take both."""

    def both(net, x, y):
        return ((net(x) - y) ** 2).mean() + (net(x[::-1]) * net(x)).mean()

    def alone(rows):
        module = Net()
        return nnx.value_and_grad(both)(module, X[rows], Y[rows]), module

    results = [alone(rows) for rows in chunks(B)]
    net = ddp(Net())
    loss, gradients = net.value_and_grad(both)(X[:B], Y[:B])
    assert_close(loss, mean([value for (value, _), _ in results]), NEAR)
    expected = mean([nnx.to_pure_dict(g) for (_, g), _ in results])
    assert_close(nnx.to_pure_dict(gradients)["module"], expected, NEAR)
    first = nnx.to_pure_dict(nnx.state(results[0][1], nnx.BatchStat))
    assert_close(nnx.to_pure_dict(nnx.state(net.module, nnx.BatchStat)), first, NEAR)


@pytest.mark.full
def test_static_graph_promises_nothing():
    """docs/semantics.md row D15: another graph is another program."""
    net, plain = ddp(Net(None), static_graph=True), ddp(Net(None))

    def halved(net, x, y):
        return ((net.a(x) - 1) ** 2).mean() + 0 * y.sum()

    for loss_fn, B in [(square, 8), (halved, 8), (square, 11)]:
        got, want = (n.value_and_grad(loss_fn)(X[:B], Y[:B]) for n in (net, plain))
        assert_close(got, want)
    gradients = nnx.to_pure_dict(net.value_and_grad(halved)(X, Y)[1])["module"]
    assert (
        float(jnp.abs(gradients["b"]["kernel"]).max()) == 0 < float(jnp.abs(gradients["a"]["kernel"]).max())
    )


@pytest.mark.parametrize("left_out", ["a", "kernel"])
def test_what_wrt_leaves_out_has_no_gradient_at_any_depth(left_out):
    """docs/semantics.md row D23."""
    wrt = nnx.All(nnx.Param, nnx.Not(nnx.PathContains(left_out)))
    _, gradients = ddp(Net(None)).value_and_grad(square, wrt=wrt)(X[:8], Y[:8])
    whole = by_hand(Net(None), 8)[2]
    got = {path: np.asarray(x) for path, x in flat(nnx.to_pure_dict(gradients)["module"])}
    want = {path: np.asarray(x) for path, x in flat(whole) if left_out not in path}
    assert got.keys() == want.keys() != dict(flat(whole)).keys()
    for path, x in got.items():
        np.testing.assert_allclose(x, want[path], rtol=0, atol=NEAR)


def flat(tree):
    return [(tuple(k.key for k in path), x) for path, x in jax.tree.leaves_with_path(tree)]


@pytest.mark.full
def test_a_parameter_that_comes_later():
    """docs/semantics.md row D17."""
    net = ddp(Net(None))
    net.module.scale = nnx.Param(jnp.ones(()))
    _, gradients = net.value_and_grad(lambda net, x, y: ((net.scale * net(x) - y) ** 2).mean())(X, Y)
    module = Net(None)
    expected = jax.grad(lambda scale: mean([((scale * module(X[r]) - Y[r]) ** 2).mean() for r in chunks(12)]))
    assert_close(gradients["module"]["scale"][...], expected(1.0), NEAR)


@pytest.mark.full
def test_training_under_jit_is_the_same():
    """In one process a step may be a part of a larger program."""
    nets = [ddp(Net()) for _ in range(2)]
    optimizers = [nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param) for net in nets]

    def step(net, optimizer, x, y):
        loss, gradients = net.value_and_grad(square)(x, y)
        optimizer.update(net, gradients)
        return loss

    for _ in range(3):
        plain = step(nets[0], optimizers[0], X[:11], Y[:11])
        jitted = nnx.jit(step)(nets[1], optimizers[1], X[:11], Y[:11])
        assert_close(jitted, plain, NEAR)
    states = [nnx.to_pure_dict(nnx.state(net)) for net in nets]
    assert_close(*states, NEAR)


# ----------------------------------------------------------------------------- no_sync, buffers


@pytest.mark.full
def test_no_sync_leaves_gradients_on_the_replicas():
    """docs/semantics.md row D9: the mean over the replicas of the sum over the calls."""
    net, batches = ddp(Net(norm=None)), [slice(0, 8), slice(2, 10), slice(4, 12)]
    step = net.value_and_grad(square)
    each = [nnx.to_pure_dict(step(X[b], Y[b])[1]) for b in batches]
    with net.no_sync():
        assert [step(X[b], Y[b])[1] for b in batches[:2]] == [None, None]
    _, total = step(X[batches[2]], Y[batches[2]])
    expected = jax.tree.map(lambda *gs: sum(gs), *each)
    assert_close(nnx.to_pure_dict(total), expected, NEAR)
    _, alone = step(X[batches[2]], Y[batches[2]])  # nothing is left over
    assert_close(nnx.to_pure_dict(alone), each[2], NEAR)
    with pytest.raises(AssertionError):
        assert_close(nnx.to_pure_dict(alone), expected, NEAR)


def test_no_sync_nests():
    net = ddp(Net(norm=None))
    step = net.value_and_grad(square)
    with net.no_sync():
        with net.no_sync():
            step(X, Y)
        assert step(X, Y)[1] is None
    assert step(X, Y)[1] is not None


@pytest.mark.parametrize("words", [{"forward_sync_buffers": False}, {"broadcast_buffers": False}])
def test_in_one_process_own_buffers_are_the_first_replicas(words):
    """docs/semantics.md row D3."""
    nets = [Net(), Net()]
    ddp(nets[0]).value_and_grad(square)(X, Y)
    if "broadcast_buffers" in words:
        with pytest.warns(FutureWarning, match="use forward_sync_buffers"):
            net = ddp(nets[1], **words)
    else:
        net = ddp(nets[1], **words)
    net.value_and_grad(square)(X, Y)
    assert_close(*(nnx.to_pure_dict(nnx.state(n)) for n in nets), NEAR)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("B", BATCHES)
def test_sync_batch_norm_sees_all_rows(B):
    """docs/semantics.md rows B2, B3: statistics and gradients of one BatchNorm on all replicas' rows."""
    module, reference = Net(SyncBatchNorm), Net()

    def total(net):
        out = net(X[:B])
        return mean([((out[rows] - Y[rows]) ** 2).mean() for rows in chunks(B)])

    expected = nnx.value_and_grad(total)(reference)
    net = ddp(module)
    loss, gradients = net.value_and_grad(square)(X[:B], Y[:B])
    got = loss, nnx.to_pure_dict(gradients)["module"]
    assert_close(got, (expected[0], nnx.to_pure_dict(expected[1])), NEAR)
    states = [nnx.to_pure_dict(nnx.state(n, nnx.BatchStat)) for n in (module, reference)]
    assert_close(*states, NEAR)
    with pytest.raises(AssertionError):
        assert_close(ddp(Net()).value_and_grad(square)(X[:B], Y[:B])[0], expected[0], NEAR)


# ------------------------------------------------------------------------- one all-reduce a step


def texts_of(monkeypatch, calls):
    """The compiled programs that `calls(net)` runs, as text."""
    texts = []

    def spied(*what):
        program = compiled(*what)

        def run(*args):
            texts.append(program.lower(*args).compile().as_text())
            return program(*args)

        return run

    with jax.enable_x64(False):
        net = ddp(Everything())
        monkeypatch.setattr(net.engine_state, "programs", Programs(spied))
        calls(net)
    return texts


def mean_square(net, x):
    return (net(x) ** 2).mean()


@pytest.mark.full
@pytest.mark.parametrize("B", BATCHES)
def test_one_all_reduce_a_step(B, monkeypatch):
    x = np.ones((B, 6), np.float32)
    (text,) = texts_of(monkeypatch, lambda net: net.value_and_grad(mean_square)(x))
    (reduction,) = reduced_elements(text)
    parameters = 2 * (36 + 6) + 12
    statistics = 12 + 2 * 2  # mean and var; two counters of two halves each
    assert {t for t, _ in reduction} == {"f32"}
    assert sum(n for _, n in reduction) == parameters + statistics + 1
    assert "all-gather" not in text


@pytest.mark.full
def test_no_sync_sends_nothing(monkeypatch):
    def calls(net):
        step = net.value_and_grad(mean_square)
        with net.no_sync():
            step(np.ones((8, 6), np.float32))
            step(np.ones((8, 6), np.float32))
        step(np.ones((8, 6), np.float32))

    first, second, last = map(reduced_elements, texts_of(monkeypatch, calls))
    assert (first, second, len(last)) == ([], [], 1)


@pytest.mark.parametrize("flat", [True, False])
def test_small_arrays_of_one_dtype_travel_as_one(flat):
    """As in torch's buckets; what is large goes alone. The numbers are the same."""
    arrays = [np.ones(3), np.arange(4.0).reshape(2, 2), np.ones(5, np.float32), np.ones(SMALL // 8)]

    def body():
        i = jax.lax.axis_index("r")
        message = Message("r", flat, [1.0 * i])
        return (
            message.sum([a * (i + 1).astype(a.dtype) for a in arrays]),
            message.others(),
            message.sum(arrays[:1]),
        )

    mesh = jax.make_mesh((N,), ("r",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:N])
    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(), out_specs=P(), check_vma=False))
    together, others, later = program()
    assert_close(together, [a * a.dtype.type(10) for a in arrays])
    assert_close((others, later), ([6.0], [4 * arrays[0]]))
    sent = re.findall(r"stablehlo.all_reduce", program.lower().as_text())
    # The later one is of a constant, which JAX multiplies by N instead.
    assert len(sent) == (3 if flat else 5)


# ---------------------------------------------------------------------------------------- hooks


@pytest.mark.full
@pytest.mark.parametrize("name", ["allreduce", "mean"])
def test_hooks_that_are_a_mean(name):
    expected = ddp(Net()).value_and_grad(square)(X[:11], Y[:11])
    net = ddp(Net(), comm_hook=getattr(comm_hooks, name))
    assert_close(net.value_and_grad(square)(X[:11], Y[:11]), expected, NEAR)


@pytest.mark.full
@pytest.mark.parametrize("wrapper", ["fp16_compress_wrapper", "bf16_compress_wrapper"])
def test_a_wrapped_mean_is_the_compressing_hook(wrapper):
    """docs/semantics.md row H4."""
    hooks = [getattr(comm_hooks, wrapper)(comm_hooks.allreduce), getattr(comm_hooks, wrapper[:13])]
    got = [ddp(Net(), comm_hook=hook).value_and_grad(square)(X[:8], Y[:8])[1] for hook in hooks]
    assert_close(*map(nnx.to_pure_dict, got))
    exact = ddp(Net()).value_and_grad(square)(X[:8], Y[:8])[1]
    with pytest.raises(AssertionError):
        assert_close(nnx.to_pure_dict(got[0]), nnx.to_pure_dict(exact), 1e-6)


@pytest.mark.full
def test_a_hook_of_ones_own_has_a_state_for_each_replica():
    def reduce(calls, bucket):
        return calls + 1 + bucket.index, [jax.lax.psum(g * calls, bucket.axis_name) for g in bucket.gradients]

    net = ddp(Net(norm=None))
    net.register_comm_hook(comm_hooks.CommHook(lambda parameters: jnp.zeros(()), reduce))
    step = net.value_and_grad(square)
    first, second = (nnx.to_pure_dict(step(X, Y)[1]) for _ in range(2))
    assert all((g == 0).all() for g in jax.tree.leaves(first))
    one = [nnx.to_pure_dict(nnx.grad(square)(Net(norm=None), X[rows], Y[rows])) for rows in chunks(12)]
    expected = jax.tree.map(lambda *gs: sum((1 + i) * g for i, g in enumerate(gs)), *one)
    assert_close(second["module"], expected, NEAR)


@pytest.mark.full
def test_powersgd_loses_nothing():
    """docs/semantics.md row H6: what was said, and the errors that are left, are the sum of the means."""
    hook, calls = comm_hooks.powersgd(1, start_powersgd_iter=2, min_compression_rate=0.5), 6
    net, exact = ddp(Net(None), comm_hook=hook), ddp(Net(None))
    step = net.value_and_grad(square)
    want = nnx.to_pure_dict(exact.value_and_grad(square)(X, Y)[1])["module"]["a"]["kernel"]
    said = [nnx.to_pure_dict(step(X, Y)[1])["module"]["a"]["kernel"] for _ in range(calls)]
    errors = net.engine_state.replica_state.hook.errors[1]  # of a.bias, a.kernel, b.bias, b.kernel
    assert errors.shape == (N, *want.shape)
    assert_close(said[1], want, NEAR)
    assert_close(sum(said) + errors.mean(0), calls * want, NEAR)
    assert float(jnp.abs(said[2] - want).max()) > 1e-3


def test_hooks_are_registered_once():
    """docs/semantics.md row H1."""
    for net in (ddp(Net(), comm_hook=comm_hooks.allreduce), ddp(Net())):
        with pytest.raises(TypeError, match="Communication hook must be callable"):
            net.register_comm_hook(lambda state, bucket: bucket)
        if not net.engine_state.registered:
            net.register_comm_hook(comm_hooks.allreduce)
        with pytest.raises(RuntimeError, match="can only be called once"):
            net.register_comm_hook(comm_hooks.allreduce)


@pytest.mark.parametrize(
    ("options", "allowed"),
    [({}, False), ({"warm_start": False}, False), ({"warm_start": False, "use_error_feedback": False}, True)],
    ids=["both", "feedback", "neither"],
)
def test_powersgd_starts_late(options, allowed):
    """docs/semantics.md row H5."""
    if allowed:
        comm_hooks.powersgd(start_powersgd_iter=1, **options)
    else:
        with pytest.raises(ValueError, match="> 1 if"):
            comm_hooks.powersgd(start_powersgd_iter=1, **options)


# --------------------------------------------------------------------------------------- errors

BAD = {
    "a loss for each row": (lambda net, x: net(x).sum(1), LossError, "scalar outputs"),
    "an integer": (lambda net, x: jnp.int32(1), LossError, "int32"),
    "no aux": (lambda net, x: (net(x).sum(), 1, 2), LossError, "tuple"),
}


@pytest.mark.parametrize("what", BAD)
def test_losses_that_are_no_number(what):
    f, error, match = BAD[what]
    with pytest.raises(error, match=match):
        ddp(Net()).value_and_grad(f)(X)


def test_bad_construction():
    """docs/semantics.md row D1."""
    with pytest.raises(ParametersError, match="is not needed when"):
        ddp(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    with pytest.raises(DeviceError):
        jaxpar.DistributedDataParallel(Net(), [0, 99])
    with pytest.raises(ValueError, match="is not registered, please create group"):
        ddp(Net(), process_group=object())
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Sub", (jaxpar.DistributedDataParallel,), {})
    with pytest.raises(ParametersError, match="is not needed when"):
        ddp(Net(None)).value_and_grad(square, wrt=nnx.BatchStat)(X, Y)


@pytest.mark.full
def test_forward_is_the_modules_and_has_no_gradient():
    module = Net(None)
    net = ddp(module)
    assert_close(net(X[:11]), module(X[:11]), NEAR)
    with pytest.raises(GradientError, match="value_and_grad"):
        nnx.grad(lambda net: net(X).sum())(net)


def test_the_forward_of_a_function_has_no_gradient():
    net = ddp(function)
    parameters = {"a": X[:3, :3], "b": Y[:3]}
    assert_close(net(parameters, X), function(parameters, X), NEAR)
    with pytest.raises(GradientError, match="value_and_grad"):
        jax.grad(lambda parameters: net(parameters, X).sum())(parameters)


def test_the_forward_of_a_linen_module_has_no_gradient():
    net = ddp(LinenNet())
    variables = net.init(jax.random.key(0), X)
    with pytest.raises(GradientError, match="value_and_grad"):
        jax.grad(lambda p: net.apply({**variables, "params": p}, X, mutable=["batch_stats"])[0].sum())(
            variables["params"]
        )


def test_torchs_other_words_are_taken():
    words = {
        "bucket_cap_mb": 1,
        "find_unused_parameters": True,
        "gradient_as_bucket_view": True,
        "static_graph": True,
        "output_device": 0,
        "init_sync": False,
    }
    got = ddp(Net(None), **words).value_and_grad(square)(X, Y)
    assert_close(got, ddp(Net(None)).value_and_grad(square)(X, Y), 0)


@pytest.mark.parametrize("enable", [True, False])
def test_join_alone_changes_nothing(enable):
    """docs/semantics.md rows J5, J7."""
    net, expected = ddp(Net(None)), ddp(Net(None)).value_and_grad(square)(X, Y)
    with net.join(enable=enable):
        assert_close(net.value_and_grad(square)(X, Y), expected)
    assert_close(net.value_and_grad(square)(X, Y), expected)
    with pytest.raises(ZeroDivisionError), net.join(enable=enable):
        raise ZeroDivisionError


def test_no_sync_is_between_programs():
    net = ddp(Net())
    with net.no_sync(), pytest.raises(StagedError, match="no_sync"):
        nnx.jit(lambda net, x, y: net.value_and_grad(square)(x, y))(net, X, Y)


def test_unused_parameters_have_gradient_zero():
    """docs/semantics.md rows D13, D14."""
    module = Net()
    module.unused = nnx.Param(jnp.ones(3))
    _, gradients = ddp(module).value_and_grad(square)(X, Y)
    assert (nnx.to_pure_dict(gradients)["module"]["unused"] == 0).all()


class Branches(nnx.Module):
    """The module of torch's test_ddp_control_flow_different_across_ranks."""

    def __init__(self):
        self.first, self.second = (nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(2))

    def __call__(self, x):
        return nnx.cond((x == 0).all(), lambda net, x: net.both(x), lambda net, x: net.first(x), self, x)

    def both(self, x):
        return jax.nn.relu(self.second(jax.nn.relu(self.first(x) + 1)) + 1)


@pytest.mark.full
def test_another_branch_on_each_replica():
    """docs/semantics.md row D14: a parameter that only some replicas use counts as zero on the others."""
    x = np.concatenate([np.zeros((3, 4)), np.ones((3, 4))])
    net = jaxpar.DistributedDataParallel(Branches(), [0, 1])
    _, gradients = net.value_and_grad(lambda net, x: net(x).sum())(x)
    module = Branches()
    by_hand = [
        nnx.grad(lambda net: net.both(x[:3]).sum())(module),
        nnx.grad(lambda net: net.first(x[3:]).sum())(module),
    ]
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *map(nnx.to_pure_dict, by_hand))
    assert_close(nnx.to_pure_dict(gradients)["module"], mean, NEAR)
    assert (mean["second"]["kernel"] != 0).any()


def test_copies_have_no_gradients_waiting():
    """docs/semantics.md row D24."""
    net = ddp(Net(norm=None))
    expected = net.value_and_grad(square)(X, Y)
    with net.no_sync():
        net.value_and_grad(square)(X, Y)
    assert_close(copy.deepcopy(net).value_and_grad(square)(X, Y), expected, NEAR)


def test_an_empty_batch_is_refused():
    """docs/semantics.md row D28: torch's loss is NaN beside gradients of zero."""
    x, y = X[:0], Y[:0]

    def mse(net, x, y):
        return ((net(x) - y) ** 2).mean()

    weights = jnp.ones((3, 2))
    function = jaxpar.DistributedDataParallel(lambda w, x: x @ w, range(N))
    module = linen.Dense(2)
    dense = jaxpar.DistributedDataParallel(module, range(N))
    variables = dense.init(jax.random.key(0), X)
    calls = [
        lambda: jaxpar.DistributedDataParallel(Net(), range(N)).value_and_grad(mse)(x, y),
        lambda: function.value_and_grad(mse)(weights, x, y),
        lambda: dense.value_and_grad(mse)(variables, x, y),
    ]
    for call in calls:
        with pytest.raises(
            BatchError, match=r"value_and_grad: batch\[0\] has shape \(0, 3\): the batch is empty"
        ):
            call()
