"""A mesh over two processes: the data axis goes from process to process, the model axis stays inside."""

from __future__ import annotations

import pytest
from processes import outputs, ranks

pytestmark = pytest.mark.slow

START = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

    import jaxpar

    jaxpar.distributed.init_process_group()
    rank = jaxpar.distributed.get_rank()


    class Net(nnx.Module):
        def __init__(self, seed=0):
            rngs = nnx.Rngs(seed)
            self.first = nnx.Linear(3, 8, use_bias=False, rngs=rngs, param_dtype=float)
            self.norm = jaxpar.nn.SyncBatchNorm(8, param_dtype=float)
            self.last = nnx.Linear(8, 4, rngs=rngs, param_dtype=float)

        def __call__(self, x, constrained=False):
            hidden = jnp.tanh(self.norm(self.first(x)))
            if constrained:
                hidden = jax.lax.with_sharding_constraint(hidden, P(None, "model"))
            return self.last(hidden)


    def split(net, mesh):
        for layer, spec in ((net.first, P(None, "model")), (net.last, P("model", None))):
            kernel = layer.kernel[...]
            layer.kernel.set_value(jax.make_array_from_callback(
                kernel.shape, NamedSharding(mesh, spec), lambda index: np.asarray(kernel)[index]))
        return net


    def mesh_of(kind=AxisType.Auto, axes=("data", "model")):
        return Mesh(np.array(jax.devices()).reshape(4, 2), axes, axis_types=(kind, kind))
"""

TRAINING = (
    START
    + """
    X, Y = np.random.RandomState(0).randn(2, 8, 3), np.random.RandomState(1).randn(2, 8, 4)


    def mse(net, x, y):
        return ((net(x, constrained=True) - y) ** 2).mean()


    def by_hand(rows):
        # The mean over four replicas of their means; statistics are those of all rows.
        pieces = [(r, p) for r in range(2) for p in np.array_split(np.arange(rows), 2)]
        weights = np.concatenate([np.full(len(p), 1 / len(p) / 4) for _, p in pieces])
        net = Net()
        optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)

        def loss_fn(net, x, y):
            return (((net(x) - y) ** 2).mean(1) * weights).sum()

        step = jaxpar.train_step(net, optimizer, loss_fn)
        losses = [step(np.concatenate(X[:, :rows]), np.concatenate(Y[:, :rows])) for _ in range(4)]
        return losses, nnx.state(net), nnx.state(optimizer)


    for kind, placed, rows in (
        (AxisType.Explicit, "on the mesh of all", 7),
        (AxisType.Auto, "on this process's part", 7),
        (AxisType.Auto, "on one device", 7),
    ):
        mesh = mesh_of(kind)
        net = Net(rank)  # rank 0's weights go to all
        if placed == "on the mesh of all":
            net = split(Net(), mesh)
        if placed == "on this process's part":
            net = split(net, mesh.local_mesh)
        net = jaxpar.DistributedDataParallel(net, mesh=mesh, axis="data")
        optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
        step = jaxpar.train_step(net, optimizer, mse)
        losses = [step(X[rank, :rows], Y[rank, :rows]) for _ in range(4)]
        wanted = by_hand(rows)
        results = losses, nnx.state(net.module), nnx.state(optimizer)
        for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-10, atol=1e-12)
        jaxpar.check_replicas(nnx.state(net.module))
        kernel = net.module.first.kernel[...]
        assert kernel.is_fully_addressable
        assert kernel.sharding.spec == P(None, "model") or placed == "on one device"
        print(kind, placed, rows, "as by hand")
"""
)


@pytest.mark.long
def test_training_over_one_axis_of_a_mesh_of_two_processes():
    for output in outputs(ranks(2, TRAINING, devices=4, timeout=300)):
        assert output.count("as by hand") == 3


WRONG = (
    START
    + """
    def refused(wrap, mesh, text, **options):
        try:
            wrap(Net(), mesh=mesh, axis="data", **options)
        except Exception as error:
            assert text in str(error), error
            print(type(error).__name__)


    across = Mesh(np.array(jax.devices()).reshape(2, 4), ("model", "data"))
    refused(jaxpar.DistributedDataParallel, across, "has devices of several processes")
    refused(jaxpar.DataParallel, mesh_of(), "DistributedDataParallel takes such a mesh")
    net = Net()
    kernel = net.last.kernel[...]
    net.last.kernel.set_value(jax.make_array_from_callback(
        kernel.shape, NamedSharding(mesh_of(), P("data", None)), lambda index: np.asarray(kernel)[index]))
    try:
        jaxpar.DistributedDataParallel(net, mesh=mesh_of(), axis="data")
    except jaxpar.errors.MisplacedError as error:
        assert "last.kernel is split as" in str(error), error
        print("MisplacedError")
    net = jaxpar.DistributedDataParallel(Net(), mesh=mesh_of(), axis="data")
    rows = NamedSharding(mesh_of(), P("data"))
    x = jax.make_array_from_callback((8, 3), rows, lambda index: np.ones((8, 3))[index])
    try:
        net.value_and_grad(lambda net, x: net(x).mean())(x)
    except jaxpar.errors.LeafError as error:
        assert "batch[0] is on devices of several processes" in str(error), error
        print("LeafError")
"""
)


def test_what_a_mesh_of_two_processes_cannot_be():
    for output in outputs(ranks(2, WRONG, devices=4)):
        # Gloo writes to the same stream.
        assert [line for line in output.splitlines() if line.endswith("Error")] == [
            "ValueError",
            "ValueError",
            "MisplacedError",
            "LeafError",
        ]
