"""replicate and parallel_apply on their own, as torch's tutorial and tests use them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxpar
from jaxpar import errors

X = np.random.RandomState(0).randn(10, 4)


class Net(nnx.Module):
    def __init__(self):
        self.l = nnx.Linear(4, 3, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        self.bn = jaxpar.nn.BatchNorm(3, param_dtype=jnp.float64)

    def __call__(self, x, *, factor=1.0):
        return self.bn(self.l(x)) * factor


class Scale(nnx.Module):
    def __init__(self, factor):
        self.factor = nnx.Param(factor)

    def __call__(self, x):
        return self.factor[...] * x


# T-DP test_replicate, test_replicate_buffers (upstream's loop over parameters is empty; this one is not)
@pytest.mark.full
def test_replica_i_lies_on_device_i(devices):
    module = Net()
    replicas = jaxpar.replicate(module, [0, 3, 1])
    assert len(replicas) == 3
    for replica, i in zip(replicas, [0, 3, 1], strict=True):
        leaves = jax.tree.leaves(nnx.state(replica))
        assert len(leaves) == len(jax.tree.leaves(nnx.state(module))) == 7
        for leaf, original in zip(leaves, jax.tree.leaves(nnx.state(module)), strict=True):
            assert leaf.devices() == {devices[i]}
            np.testing.assert_array_equal(leaf, original)
        replica.bn.use_running_average = True
        np.testing.assert_allclose(replica(jax.device_put(X, devices[i])).shape, (10, 3))


def test_replicas_are_a_sequence():
    replicas = jaxpar.replicate(Net(), range(4))
    assert len(replicas[:2]) == 2
    assert len(list(replicas)) == 4
    assert replicas[-1].l.kernel[...].devices() == {jax.devices()[3]}
    assert replicas[:2][-1].l.kernel[...].devices() == {jax.devices()[1]}
    with pytest.raises(IndexError, match="replica 4 of 4"):
        replicas[4]
    with pytest.raises(IndexError, match="must start at replica 0"):
        replicas[1:]


@pytest.mark.parametrize("detach", [False, True])
def test_gradients_flow_to_the_module_unless_detached(detach):
    def loss(kernel):
        replicas = jaxpar.replicate(Scale(kernel), range(2), detach)
        return jaxpar.gather(jaxpar.parallel_apply(replicas, jaxpar.scatter(X, range(2)))).sum()

    np.testing.assert_allclose(jax.grad(loss)(jnp.ones(())), 0 if detach else X.sum(), rtol=1e-12)


def test_replicating_again_costs_nothing():
    module = Net()
    jaxpar.replicate(module, range(4))
    first = [
        v.get_raw_value()
        for v in jax.tree.leaves(nnx.state(module), is_leaf=lambda v: isinstance(v, nnx.Variable))
    ]
    jaxpar.replicate(module, range(4))
    second = [
        v.get_raw_value()
        for v in jax.tree.leaves(nnx.state(module), is_leaf=lambda v: isinstance(v, nnx.Variable))
    ]
    assert all(a is b for a, b in zip(first, second, strict=True))


# T-DP test_parallel_apply; docs/semantics.md row 50
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("devices_", [None, [0, 1]])
def test_different_modules_each_on_its_device(bare, devices_, devices):
    modules = [nnx.Linear(4, 2, rngs=nnx.Rngs(i)) for i in range(2)]
    for module, d in zip(modules, devices, strict=False):
        nnx.update(module, jax.device_put(nnx.state(module), d))
    inputs = [jax.device_put(X, d) for d in devices[:2]]
    got = jaxpar.parallel_apply(modules, inputs if bare else [(x,) for x in inputs], None, devices_)
    for y, module, x, d in zip(got, modules, inputs, devices, strict=False):
        np.testing.assert_array_equal(y, module(x))
        assert y.devices() == {d}


def test_keyword_arguments():
    replicas = jaxpar.replicate(Net(), [0, 1, 2])
    inputs, kwargs = jaxpar.scatter_kwargs((X,), {"factor": 2.0}, [0, 1, 2])
    double = jaxpar.gather(jaxpar.parallel_apply(replicas, inputs, kwargs))
    once = jaxpar.gather(jaxpar.parallel_apply(replicas, inputs))
    np.testing.assert_allclose(double, once * 2)
    plain = jaxpar.parallel_apply([lambda x, k: x * k] * 2, [X, X + 1], [{"k": 1}, {"k": 2}])
    np.testing.assert_array_equal(plain[1], (X + 1) * 2)


# docs/semantics.md rows 35, 39: replica 0 shares its buffers with the module
def test_replica_zeros_buffers_are_the_modules():
    module = Net()
    jaxpar.parallel_apply(jaxpar.replicate(module, [0, 1]), jaxpar.scatter(X, [0, 1]))
    want = 0.1 * (module.l(X[:5])).mean(0)
    np.testing.assert_allclose(module.bn.mean[...], want, rtol=1e-12)
    assert module.bn.num_batches_tracked[...] == 1


def test_outputs_are_inputs_of_the_next():
    """Shards go from one parallel_apply to the next without meeting in between."""
    ids = [0, 1, 2, 3]
    first = jaxpar.replicate(lambda x: (x * 2, x.sum()), ids)
    second = jaxpar.replicate(lambda x, total: x + total, ids)
    got = jaxpar.gather(jaxpar.parallel_apply(second, jaxpar.parallel_apply(first, jaxpar.scatter(X, ids))))
    want = [2 * p + p.sum() for p in np.split(X, [3, 6, 9])]
    np.testing.assert_allclose(got, np.concatenate(want), rtol=1e-12)


# ------------------------------------------------------------------------------------------ bad input


# docs/semantics.md row 51
def test_counts():
    with pytest.raises(
        errors.CountError, match="The number of modules 1 is not equal to the number of inputs 2"
    ) as caught:
        jaxpar.parallel_apply([Net()], [X, X])
    assert isinstance(caught.value, AssertionError)
    with pytest.raises(AssertionError, match="modules 2 is not equal to the number of kwargs_tup 1"):
        jaxpar.parallel_apply([Net()] * 2, [X, X], [{}])
    with pytest.raises(AssertionError, match="modules 2 is not equal to the number of devices 3"):
        jaxpar.parallel_apply([Net()] * 2, [X, X], None, [0, 1, 2])
    with pytest.raises(AssertionError, match="modules 4 is not equal to the number of inputs 2"):
        jaxpar.parallel_apply(jaxpar.replicate(Net(), range(4)), jaxpar.scatter(X[:2], range(4)))


# docs/semantics.md row 55; T-DP test_parallel_apply_passes_exception
def test_exceptions_of_modules_in_a_list(devices):
    def fails(x):
        raise KeyError("wonderful")

    with pytest.raises(KeyError, match="wonderful") as caught:
        jaxpar.parallel_apply([jnp.tanh, fails], [X, X], None, [0, 3])
    assert caught.value.__notes__ == ["Caught KeyError in replica 1 on device cpu:3."]
    with jax.default_device(jax.devices()[2]), pytest.raises(KeyError) as caught:
        jaxpar.parallel_apply([fails], [np.ones(2)])
    assert caught.value.__notes__ == ["Caught KeyError in replica 0 on device cpu:2."]


class Fails(nnx.Module):
    def __init__(self, home):
        self.w = nnx.Param(jax.device_put(jnp.ones(2), home))

    def __call__(self, x):
        raise KeyError("as planned")


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (lambda d: Fails(d[3]), "cpu:3"),
        (
            lambda d: linen.Dense(1).bind({"params": {"kernel": jax.device_put(jnp.ones((9, 9)), d[5])}}),
            "cpu:5",
        ),
        (lambda d: lambda x: {}["as planned"], "cpu:0"),
    ],
    ids=["NNX", "Linen", "a function"],
)
def test_an_exception_names_the_device_of_a_module_in_a_list(module, where, devices):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        jaxpar.parallel_apply([module(devices)], [(jnp.ones((2, 2)),)])
    assert f"in replica 0 on device {where}." in "".join(caught.value.__notes__)


def test_other_devices_for_inputs_and_replicas():
    with pytest.raises(
        ValueError, match=r"scattered to \[cpu:0, cpu:2\] and the module replicated to \[cpu:0, cpu:1\]"
    ):
        jaxpar.parallel_apply(jaxpar.replicate(Net(), [0, 1]), jaxpar.scatter(X, [0, 2]))


def test_replicas_with_a_list_of_inputs():
    with pytest.raises(TypeError, match=r"need inputs from jaxpar\.scatter"):
        jaxpar.parallel_apply(jaxpar.replicate(Net(), [0, 1]), [X, X])


def test_unknown_backend():
    with pytest.raises(ValueError, match="backend='gloo' is unknown; there are 'shard_map', 'pmap'"):
        jaxpar.parallel_apply(jaxpar.replicate(Net(), [0, 1]), jaxpar.scatter(X, [0, 1]), backend="gloo")


def test_deleted_inputs_of_parallel_apply():
    net = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    shards = jaxpar.scatter((np.ones((4, 3)),), [0, 1])
    shards.tree[0].delete()
    with pytest.raises(
        errors.DeletedError, match=r"parallel_apply: inputs\[0\] \(float64\[2, 2, 3\]\) was donated"
    ):
        jaxpar.parallel_apply(jaxpar.replicate(net, [0, 1]), shards)
    gone = jnp.ones((2, 3))
    gone.delete()
    with pytest.raises(errors.DeletedError, match=r"parallel_apply: kwargs_tup\[1\]\['inputs'\]"):
        jaxpar.parallel_apply([net, net], [(), ()], [{"inputs": jnp.ones((2, 3))}, {"inputs": gone}])
