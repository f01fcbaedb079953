"""nnx.capture, sow and perturb around DataParallel and DistributedDataParallel: gathered like outputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar

# Flax warns of sow without capture, and gather of scalars, which it makes vectors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using 'Module:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:\n.*Using 'Module:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Was asked to gather"),
]

IDS, C = [0, 1, 2, 3], 3
X = np.random.RandomState(0).randn(10, C)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(C, C, rngs=rngs, param_dtype=jnp.float64)

    def __call__(self, x):
        x = self.dense(x)
        self.sow(nnx.Intermediate, "hidden", x)
        self.sow(nnx.Intermediate, "dense", {"twice": 2 * x, "pair": (x, -x)})  # also an attribute's name
        return self.perturb("after", jnp.tanh(x))


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = Block(rngs)
        self.blocks = nnx.List([Block(rngs), nnx.Dict(deep=Block(rngs))])

    def __call__(self, x):
        x = self.blocks[1]["deep"](self.blocks[0](self.first(x)))
        self.sow(nnx.Intermediate, "mean", x.mean())
        self.sow(nnx.Intermediate, "number", 3)
        return x


WRAPPERS = [jaxpar.DataParallel, jaxpar.DistributedDataParallel]


def flat(state):
    """Leaves by path, without the level of the wrapper and without scalars."""
    return {
        ".".join(str(part) for part in path if part != "module") + jax.tree_util.keystr(inner): x
        for path, leaf in nnx.to_flat_state(state)
        for inner, x in jax.tree.leaves_with_path(leaf.get_raw_value())
    }


def equal(got, want):
    got, want = flat(got), flat(want)
    assert got.keys() == want.keys()
    for name in want:
        if jnp.ndim(want[name]):
            np.testing.assert_allclose(got[name], want[name], rtol=1e-12, err_msg=name)
    return got


@pytest.mark.full
@pytest.mark.parametrize("B", [8, 10, 3])
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_captured_values_equal_one_device(wrap, B):
    y, want = nnx.capture(Net(), nnx.Intermediate)(X[:B])
    net = wrap(Net(), IDS)
    for _ in range(2):
        outputs, found = nnx.capture(net, nnx.Intermediate)(X[:B])
        np.testing.assert_allclose(outputs, y, rtol=1e-12)
        got = equal(found, want)
        pieces = [p for p in np.split(np.asarray(y), range(-(-B // 4), B, -(-B // 4))) if len(p)]
        np.testing.assert_allclose(got["mean[0]"], [p.mean() for p in pieces])  # scalars: one per replica
        np.testing.assert_array_equal(got["number[0]"], [3] * len(pieces))
    assert not any(hasattr(node, "__captures__") for _, node in nnx.iter_modules(net))


def test_two_calls_in_one_capture():
    def both(net):
        return net(X), net(2 * X)

    _, want = nnx.capture(both, nnx.Intermediate)(Net())
    _, got = nnx.capture(both, nnx.Intermediate)(jaxpar.DataParallel(Net(), IDS))
    assert len(flat(got)) == len(flat(want)) == 2 * 14
    equal(got, want)


def test_inside_jit():
    @nnx.jit
    def run(net, x):
        return nnx.capture(net, nnx.Intermediate)(x)

    want = nnx.capture(Net(), nnx.Intermediate)(X)[1]
    equal(run(jaxpar.DataParallel(Net(), IDS), X)[1], want)


def test_method_outputs():
    """The methods that Flax replaces meanwhile are in another program than those that it does not."""
    net, alone = jaxpar.DataParallel(Net(), IDS), Net()
    equal(nnx.capture(net, nnx.Intermediate)(X)[1], nnx.capture(alone, nnx.Intermediate)(X)[1])
    options = {"method_outputs": nnx.Intermediate}
    want = nnx.capture(alone, nnx.Intermediate, **options)(X)[1]
    got = nnx.capture(net, nnx.Intermediate, **options)(X)[1]
    assert "first.__call__[0]" in equal(got, want)
    equal(nnx.capture(net, nnx.Intermediate)(X)[1], nnx.capture(alone, nnx.Intermediate)(X)[1])


def captured_loss(net, x):
    y, found = nnx.capture(net, nnx.Intermediate)(x)
    penalty = sum((leaf**2).mean() for name, leaf in flat(found).items() if "hidden" in name)
    del found.get("module", found)["number"]  # what a loss function returns is made of arrays
    return (y**2).mean() + penalty, found


@pytest.mark.full
@pytest.mark.parametrize("B", [8, 10])
def test_gradients_pass_through(B):
    net = jaxpar.DataParallel(Net(), IDS)
    got, found = nnx.grad(captured_loss, has_aux=True)(net, X[:B])
    want, _ = nnx.grad(captured_loss, has_aux=True)(Net(), X[:B])
    equal(got, want)
    assert len(flat(found)) == 13


@pytest.mark.parametrize("wrap", [lambda net, ids: net, *WRAPPERS])
def test_in_the_loss_function_of_a_step(wrap):
    net, x = wrap(Net(), IDS), X[:8]
    step = jaxpar.train_step(
        net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), captured_loss, has_aux=True
    )
    loss, found = step(x)
    (want, want_found), _ = nnx.value_and_grad(captured_loss, has_aux=True)(Net(), x)
    np.testing.assert_allclose(loss, want, rtol=1e-12)
    equal(found, want_found)


@pytest.mark.parametrize("B", [8, 10])
def test_perturbations(B):
    """Gradients by values between the layers: each replica adds its own rows of the perturbations."""

    def loss(perturbations, net, x):
        return (nnx.capture(net, init=perturbations)(x) ** 2).sum()

    found = []
    for net in (Net(), jaxpar.DataParallel(Net(), IDS)):
        _, perturbations = nnx.capture(net, nnx.Perturbation)(X[:B])
        assert {x.shape for x in flat(perturbations).values()} == {(B, C)}
        shifted = jax.tree.map(lambda x: x + 0.1, perturbations)
        value = loss(shifted, net, X[:B])
        gradients = nnx.grad(lambda p, net=net: loss(p, net, X[:B]))(shifted)
        found.append((value, gradients))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-12)
    equal(found[1][1], found[0][1])


class Sowing(nnx.Module):
    """Sows without capture, as older programs do; `reduce` adds up."""

    def __init__(self, reduce=False):
        self.dense = nnx.Linear(C, C, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
        self.options = {"reduce_fn": lambda a, b: a + b, "init_fn": lambda: 0.0} if reduce else {}

    def __call__(self, x):
        x = self.dense(x)
        self.sow(nnx.Intermediate, "rows", x, **self.options)
        return x


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_sow_and_pop(wrap):
    net, alone = wrap(Sowing(), IDS), Sowing()
    for calls in (1, 3):
        for _ in range(calls):
            net(X)
            alone(X)
        found = nnx.pop(net, nnx.Intermediate)
        equal(found, nnx.pop(alone, nnx.Intermediate))
        assert len(flat(found)) == calls


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_what_was_sown_stays_out_of_a_step(wrap):
    net = wrap(Sowing(), IDS)
    net(X)
    step = jaxpar.train_step(
        net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), lambda net, x: (net(x) ** 2).mean()
    )
    assert step(X[:8]) > step(X[:8])
    assert flat(nnx.pop(net, nnx.Intermediate))["rows[0]"].shape == (10, C)


def test_a_reduce_fn_of_ones_own():
    net = jaxpar.DataParallel(Sowing(reduce=True), IDS)
    capture = nnx.capture(net, nnx.Intermediate)
    want = nnx.capture(Sowing(reduce=True), nnx.Intermediate)(X)[1]
    equal(capture(X)[1], want)
    with pytest.raises(ValueError, match=r"rows was sown with a reduce_fn of its own in two calls"):
        nnx.capture(lambda net: (net(X), net(X)), nnx.Intermediate)(net)


def test_one_device():
    net = jaxpar.DataParallel(Net(), [0])
    equal(nnx.capture(net, nnx.Intermediate)(X)[1], nnx.capture(Net(), nnx.Intermediate)(X)[1])
