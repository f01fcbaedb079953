"""SyncBatchNorm on N devices against one torch BatchNorm on all rows, which is its definition.

torch's own SyncBatchNorm runs on CUDA only (docs/semantics.md row B1).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_trees
from flax import nnx
from jax.sharding import PartitionSpec as P

import jaxpar
from jaxpar._typing import REPLICA
from jaxpar.nn import BatchNorm, SyncBatchNorm
from jaxpar.nn.functional import batch_norm

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

C, SPACE, STEPS = 3, 2, 5
NAMES = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}
CASES = [
    # rows of each replica; options
    ((2, 2), {}),
    ((3, 3, 3, 1), {}),
    ((3, 0, 2), {"momentum": None}),
    ((2, 0, 1, 0, 0, 0, 0, 0), {"affine": False}),
    ((2, 5), {"bias": False, "eps": 1e-2}),
    ((4, 1, 2), {"track_running_stats": False}),
]


def on_mesh(f, N, in_specs, out_specs):
    mesh = jax.make_mesh(
        (N,), (REPLICA,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:N]
    )
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


def flat(state) -> dict[str, np.ndarray]:
    return {path[-1]: np.asarray(v[...]) for path, v in nnx.to_flat_state(state)}


def torch_run(theirs, batches):
    """Outputs, gradients by input and parameters, and buffers of every step, and of one evaluation."""
    for i, x in enumerate(batches):
        theirs.train(i < STEPS)
        tensor = torch.tensor(np.moveaxis(x, -1, 1).copy(), requires_grad=True)
        y = theirs(tensor)
        theirs.zero_grad()
        (y**3 + torch.sin(y)).sum().backward()
        named = {NAMES[name]: p.grad.numpy().copy() for name, p in theirs.named_parameters()}
        buffers = {NAMES.get(name, name): b.numpy().copy() for name, b in theirs.named_buffers()}
        got = {"y": y.detach(), "dx": tensor.grad}
        yield {k: np.moveaxis(v.numpy(), 1, -1) for k, v in got.items()} | {
            "gradients": named,
            "buffers": buffers,
        }


def programs(layer, N):
    """One step, differentiated from outside of the mesh, and by every replica for itself as DDP does."""
    graph = nnx.graphdef(layer)

    def loss_of(parameters, rest, x, mask):
        module = nnx.merge(graph, parameters, rest, copy=True)
        y = module(x, mask)
        loss = jnp.where(mask[:, None, None], y**3 + jnp.sin(y), 0).sum()
        return loss, (y, nnx.state(module, nnx.BatchStat))

    def for_outside(*args):
        loss, (y, buffers) = loss_of(*args)
        return y, buffers, loss[None]

    rows = P(REPLICA)
    whole = on_mesh(for_outside, N, (P(), P(), rows, rows), (rows, P(), rows))

    def outside(parameters, rest, x, mask):
        def total(parameters, x):
            y, buffers, losses = whole(parameters, rest, x, mask)
            return losses.sum(), (y, buffers)

        return jax.grad(total, (0, 1), has_aux=True)(parameters, x)

    def each(parameters, rest, x, mask):
        (dp, dx), aux = jax.grad(loss_of, (0, 2), has_aux=True)(parameters, rest, x, mask)
        return (jax.lax.psum(dp, REPLICA), dx), aux

    inside = on_mesh(each, N, (P(), P(), rows, rows), ((P(), rows), (rows, P())))
    return {"outside": jax.jit(outside), "inside": inside}


@pytest.mark.full
@pytest.mark.parametrize(("rows", "options"), CASES, ids=str)
def test_the_replicas_together_are_one_batch_norm(rows, options):
    N, b, total = len(rows), max(rows), sum(rows)
    random = np.random.RandomState(0)
    theirs = torch.nn.BatchNorm1d(C, **options).double()
    layer = SyncBatchNorm(C, param_dtype=jnp.float64, **options)
    for p in theirs.parameters():
        p.data.copy_(torch.tensor(random.randn(C)))
    for name, p in theirs.named_parameters():
        getattr(layer, NAMES[name]).set_value(jnp.asarray(p.detach().numpy()))
    batches = [10 + random.randn(total, SPACE, C) for _ in range(STEPS + 1)]
    mask = np.concatenate([np.arange(b) < n for n in rows])
    layer.train()
    steps = programs(layer, N)
    layer.eval()
    evaluation = programs(layer, N)
    if not options.get("track_running_stats", True):
        batches.pop()  # in evaluation every replica takes its own; see below
    for i, (x, want) in enumerate(zip(batches, torch_run(theirs, batches), strict=True)):
        filled = np.full((N * b, SPACE, C), np.nan)
        filled[mask] = x
        for way, step in (steps if i < STEPS else evaluation).items():
            parameters, rest = nnx.split_state(nnx.state(layer), nnx.Param, ...)
            (dp, dx), (y, buffers) = step(parameters, rest, jnp.asarray(filled), jnp.asarray(mask))
            got = {"y": y[mask], "dx": dx[mask], **flat(dp), **flat(buffers)}
            expected = {"y": want["y"], "dx": want["dx"], **want["gradients"], **want["buffers"]}
            got = {k: np.asarray(v, expected[k].dtype) for k, v in got.items()}
            assert_equal_trees(f"step {i}, {way}", got, expected, 1e-12)
            assert way == "outside" or not np.isnan(dx).any()
        nnx.update(layer, buffers)


def test_flax_takes_the_mean_of_means():
    """Rows 3, 3, 3 and 1: the first channel's mean is 0.951, and Flax's layer says 0.761."""
    x = np.random.RandomState(0).randn(10, 3)
    mask = np.array([True] * 10 + [False] * 2)
    filled = np.concatenate([x, np.full((2, 3), 1e6)]).astype(np.float32)

    def first_mean(layer):
        def program(state, x, mask):
            module = nnx.merge(graph, state, copy=True)
            module(x, mask=mask)
            return module.mean[...]

        graph, state = nnx.split(layer)
        return on_mesh(program, 4, (P(), P(REPLICA), P(REPLICA)), P())(state, filled, mask)[0]

    class Rows(nnx.BatchNorm):
        def __call__(self, x, mask):
            return super().__call__(x, mask=mask[:, None])

    flax = Rows(3, momentum=0, axis_name=REPLICA, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(first_mean(flax), 0.761, atol=5e-4)
    np.testing.assert_allclose(first_mean(SyncBatchNorm(3, momentum=1)), 0.951, atol=5e-4)
    np.testing.assert_allclose(x[:, 0].mean(), 0.951, atol=5e-4)


# docs/semantics.md row B1
def test_without_the_axis_it_is_batch_norm():
    x = jnp.asarray(np.random.RandomState(0).randn(4, C))
    plain, synchronised = BatchNorm(C), SyncBatchNorm(C)
    np.testing.assert_array_equal(plain(x), synchronised(x))
    np.testing.assert_array_equal(plain.var[...], synchronised.var[...])
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        synchronised(x[:1])


@pytest.mark.parametrize("check_vma", [False, True])
def test_gradients_with_and_without_check_vma(check_vma):
    """A shard_map of the user's own checks by default what varies over the replicas."""
    x, w = (jnp.asarray(np.random.RandomState(0).randn(*shape)) for shape in ((6, C), (C,)))

    def objective(x, w, axis_name=None):
        return (batch_norm(x, None, None, w, w, True, axis_name=axis_name)[0] ** 3).sum()

    def inside(x, w):
        return jax.grad(objective)(x, w, REPLICA)

    mesh = jaxpar.Placement(tuple(jaxpar.devices()[:3])).mesh
    specs = {"in_specs": (P(REPLICA), P()), "out_specs": P(REPLICA), "check_vma": check_vma}
    got = jax.jit(jax.shard_map(inside, mesh=mesh, **specs))(x, w)
    assert_equal_trees("gradient", {"dx": got}, {"dx": jax.jit(jax.grad(objective))(x, w)}, 1e-12)


def test_in_evaluation_nothing_is_synchronised():
    layer = SyncBatchNorm(C, track_running_stats=False)
    layer.eval()
    x = np.random.RandomState(0).randn(6, C)
    y = jaxpar.DataParallel(layer, [0, 1])(x)
    np.testing.assert_allclose(y[3:], layer(jnp.asarray(x[3:])), atol=1e-12)


# With different numbers of rows: test_lift.py.
def test_in_data_parallel_it_takes_the_whole_batch():
    x = np.random.RandomState(0).randn(8, C)
    want = BatchNorm(C)
    y = want(jnp.asarray(x))
    net = jaxpar.DataParallel(SyncBatchNorm(C), [0, 1, 2, 3])
    np.testing.assert_allclose(net(x), y, atol=1e-12)
    np.testing.assert_allclose(net.module.var[...], want.var[...], rtol=1e-6)
    alone = jaxpar.DataParallel(SyncBatchNorm(C, axis_name=None), [0, 1, 2, 3])
    assert np.abs(alone(x) - y).max() > 0.1


def test_a_mesh_without_the_axis():
    layer = SyncBatchNorm(C, axis_name="data")
    with pytest.raises(ValueError, match=r"over the mesh axes \('replica',\), and axis_name='data' is none"):
        on_mesh(layer, 2, P(REPLICA), P(REPLICA))(np.ones((4, C)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SyncBatchNorm(3, process_group=object()), "process_group is a object"),
        (lambda: jaxpar.convert_sync_batchnorm(BatchNorm(3), object()), "process_group is a object"),
        (lambda: SyncBatchNorm(0), "number of input channels should be non-zero"),
        (lambda: SyncBatchNorm(3, eps=-1), "eps is -1; it must be finite and 0 or more"),
        (lambda: SyncBatchNorm(3)(jnp.ones(3)), r"expected at least 2D input \(got 1D input\)"),
        (lambda: SyncBatchNorm(3)(jnp.ones((2, 3)), jnp.ones(2)), r"mask is float.*booleans of the shape"),
        (lambda: SyncBatchNorm(3)(jnp.ones((2, 3)), jnp.ones(3, bool)), r"mask is bool\[3\]"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --------------------------------------------------------------------------- convert_sync_batchnorm


class Net(nnx.Module):
    def __init__(self):
        self.norm = BatchNorm(3, 1e-3, momentum=None)
        self.blocks = nnx.List([BatchNorm(4, affine=False), nnx.Linear(2, 2, rngs=nnx.Rngs(0))])
        self.table = nnx.data({"a": (nnx.BatchNorm(5, momentum=0.75, epsilon=0.1, rngs=nnx.Rngs(0)),)})
        self.other = nnx.InstanceNorm(3, rngs=nnx.Rngs(0))
        self.again = self.norm


# docs/semantics.md row B5
def test_convert():
    net = Net()
    net.eval()
    before = dict(nnx.to_flat_state(nnx.state(net)))
    variables = [net.norm.scale, net.norm.mean, net.table["a"][0].var]
    assert jaxpar.convert_sync_batchnorm(net, axis_name="data") is net
    norm, flax = net.norm, net.table["a"][0]
    assert all(isinstance(layer, SyncBatchNorm) for layer in (norm, net.blocks[0], flax))
    assert norm is net.again
    assert (norm.eps, norm.momentum, norm.axis_name, norm.use_running_average) == (1e-3, None, "data", True)
    assert net.blocks[0].scale is None
    assert (flax.eps, flax.momentum) == (0.1, 0.25)
    assert [norm.scale, norm.mean, flax.var] == variables
    assert all(a is b for a, b in zip([norm.scale, norm.mean, flax.var], variables, strict=True))
    assert type(net.other) is nnx.InstanceNorm
    after = dict(nnx.to_flat_state(nnx.state(net)))
    counter = {path for path in after if path[-1] == "num_batches_tracked"}
    assert after.keys() - before.keys() == {("table", "a", 0, "num_batches_tracked")} <= counter
    assert before.keys() <= after.keys()


def test_convert_a_batch_norm_itself_and_twice():
    layer = BatchNorm(3)
    once = jaxpar.convert_sync_batchnorm(layer)
    twice = jaxpar.convert_sync_batchnorm(once)
    assert type(once) is type(twice) is SyncBatchNorm
    assert layer.scale is once.scale is twice.scale
    flax = jaxpar.convert_sync_batchnorm(nnx.BatchNorm(3, axis_name="mine", use_bias=False, rngs=nnx.Rngs(0)))
    assert (flax.axis_name, flax.bias) == ("mine", None)


class Own(BatchNorm):
    pass


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (lambda: nnx.Sequential(Own(3)), TypeError, r"module\.layers\.0 is a Own, a BatchNorm of your own"),
        (lambda: nnx.BatchNorm(3, axis=1, rngs=nnx.Rngs(0)), ValueError, "its channels on axis 1"),
        (
            lambda: nnx.BatchNorm(3, axis_index_groups=[[0]], rngs=nnx.Rngs(0)),
            ValueError,
            "has axis_index_groups",
        ),
        (lambda: jnp.sin, TypeError, "is neither an NNX module nor a Linen module"),
    ],
)
def test_what_cannot_be_converted(module, error, message):
    with pytest.raises(error, match=message):
        jaxpar.convert_sync_batchnorm(module())
