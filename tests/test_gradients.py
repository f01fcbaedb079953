"""Gradients of any function of the outputs are torch's sum over the replicas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

import jaxpar

X = np.random.RandomState(0).randn(11, 4)
BACKENDS = pytest.mark.parametrize("backend", ["shard_map", "pmap"])
MODES = pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])


def rows(w, x):
    return jnp.tanh(x @ w["a"]) @ w["b"] + w["c"]


W = {"a": np.random.RandomState(1).randn(4, 3), "b": np.random.RandomState(2).randn(3, 2), "c": np.zeros(2)}


class Module(nnx.Module):
    def __init__(self, w=None):
        w = W if w is None else w
        self.a, self.b, self.c = (nnx.Param(jnp.asarray(w[k])) for k in "abc")

    def __call__(self, x):
        return rows({"a": self.a[...], "b": self.b[...], "c": self.c[...]}, x)


def parallel(ids, backend):
    """The function of W and x that DataParallel computes, for plain jax.grad."""
    graphdef, _ = nnx.split(Module())

    def apply(w, x):
        net = jaxpar.DataParallel(
            nnx.merge(graphdef, {k: nnx.Param(v) for k, v in w.items()}), ids, backend=backend
        )
        return net(x)

    return apply


def maybe(jit, f):
    return jax.jit(f) if jit else f


def assert_close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13), got, want)


# docs/semantics.md rows 67, 68, 70
@pytest.mark.full
@pytest.mark.sampled(7)
@BACKENDS
@MODES
@pytest.mark.parametrize("B", [8, 11, 9, 3, 1])
@pytest.mark.parametrize(
    "loss", [lambda y: (y**2).mean(), lambda y: jnp.sin(y).sum(), lambda y: jnp.exp(y).max()]
)
def test_any_loss_of_the_outputs(B, loss, jit, backend):
    x = jnp.asarray(X[:B])
    apply = parallel(range(4), backend)
    got = maybe(jit, jax.value_and_grad(lambda w, x: loss(apply(w, x)), argnums=(0, 1)))(W, x)
    want = jax.value_and_grad(lambda w, x: loss(rows(w, x)), argnums=(0, 1))(W, x)
    assert_close(got, want)


# T-DP test_data_parallel_function_deletion (gradient penalty); docs/semantics.md row 71
@BACKENDS
@MODES
def test_gradient_penalty(jit, backend):
    class Line(nnx.Module):
        def __init__(self):
            self.w, self.b = nnx.Param(jnp.ones((4, 1)) / 3), nnx.Param(jnp.zeros(1))

        def __call__(self, x):
            return x @ self.w[...] + self.b[...]

    def penalty(net, x):
        return (jax.grad(lambda x: net(x).sum())(x).mean(1)).mean()

    net = jaxpar.DataParallel(Line(), [0, 1], backend=backend)
    transform = nnx.jit(nnx.grad(penalty)) if jit else nnx.grad(penalty)
    got = transform(net, jnp.asarray(X[:2]))["module"]
    np.testing.assert_allclose(got["w"][...], np.full((4, 1), 0.25), rtol=1e-12)
    np.testing.assert_allclose(got["b"][...], [0.0])


# docs/semantics.md row 71
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["shard_map", pytest.param("pmap", marks=pytest.mark.long)])
@pytest.mark.parametrize("B", [7, *(pytest.param(B, marks=pytest.mark.long) for B in (4, 3))])
def test_second_order_and_forward_mode(B, backend):
    apply = parallel(range(4), backend)
    f = jax.jit(lambda w: (apply(w, jnp.asarray(X[:B])) ** 2).sum())
    plain = lambda w: (rows(w, X[:B]) ** 2).sum()  # noqa: E731
    for transform in (jax.hessian, jax.jacfwd, lambda f: jax.jacrev(jax.grad(f))):
        assert_close(transform(f)(W), transform(plain)(W))
    check_grads(f, (W,), order=2, modes=["fwd", "rev"])


@MODES
def test_frozen_parameters(jit):
    """Only what is differentiated has a gradient, and the rest is untouched."""
    net = jaxpar.DataParallel(Module(), [0, 1, 2])
    only_b = nnx.All(nnx.Param, nnx.PathContains("b"))
    f = nnx.grad(lambda net, x: (net(x) ** 2).sum(), argnums=nnx.DiffState(0, only_b))
    got = (nnx.jit(f) if jit else f)(net, jnp.asarray(X))
    assert [p for p, _ in nnx.to_flat_state(got)] == [("module", "b")]
    want = jax.grad(lambda b: (rows({**W, "b": b}, X) ** 2).sum())(W["b"])
    np.testing.assert_allclose(jax.tree.leaves(got)[0], want, rtol=1e-12)


# docs/semantics.md row 69: zero, with any number of devices (torch: None with one)
@pytest.mark.parametrize("ids", [[0], [0, 1, 2]])
def test_unused_parameters_have_zero_gradients(ids):
    class Unused(Module):
        def __call__(self, x):
            return x @ self.a[...]

    got = nnx.grad(lambda m: m(X).sum())(jaxpar.DataParallel(Unused(), ids))["module"]
    assert (got["b"][...] == 0).all()
    assert (got["a"][...] != 0).any()


def test_modules_without_parameters():
    net = jaxpar.DataParallel(jnp.tanh, [0, 1, 2])
    np.testing.assert_allclose(
        jax.grad(lambda x: net(x).sum())(jnp.asarray(X)),
        jax.grad(lambda x: jnp.tanh(x).sum())(jnp.asarray(X)),
    )


def test_a_function_that_closes_over_what_is_differentiated():
    got = jax.grad(lambda w: (jaxpar.data_parallel(lambda x: x @ w, X, [0, 1, 2]) ** 2).sum())(
        jnp.asarray(W["a"])
    )
    np.testing.assert_allclose(got, jax.grad(lambda w: ((X @ w) ** 2).sum())(jnp.asarray(W["a"])), rtol=1e-12)


# T-DP test_data_parallel_buffers_requiring_grad; docs/semantics.md row 40
@BACKENDS
def test_buffers_that_want_a_gradient(backend):
    class Scale(nnx.Variable):
        pass

    class Buffered(nnx.Module):
        def __init__(self):
            self.scale, self.shift = Scale(jnp.ones(4)), nnx.BatchStat(jnp.ones(4))

        def __call__(self, x):
            return jnp.sin(x * self.scale[...]) + self.shift[...]

    net = jaxpar.DataParallel(Buffered(), [0, 1], backend=backend)
    got = nnx.grad(lambda n: (n(X) ** 2).sum(), argnums=nnx.DiffState(0, Scale))(net)
    want = nnx.grad(lambda n: (n(X) ** 2).sum(), argnums=nnx.DiffState(0, Scale))(Buffered())
    assert_close(jax.tree.leaves(got), jax.tree.leaves(want))


def test_a_loss_of_the_buffers():
    """A new buffer is replica 0's, and so is its gradient."""

    class Keeps(nnx.Module):
        def __init__(self):
            self.w, self.last = nnx.Param(jnp.ones(4)), nnx.BatchStat(jnp.zeros(()))

        def __call__(self, x):
            self.last[...] = (x * self.w[...]).sum()
            return x

    def loss(net):
        net(X)
        return net.module.last[...] * 3

    got = nnx.grad(loss)(jaxpar.DataParallel(Keeps(), [0, 1, 2, 3]))
    np.testing.assert_allclose(jax.tree.leaves(got)[0], 3 * X[:3].sum(0), rtol=1e-12)


# docs/semantics.md row 49; T-DP test_data_parallel_complex_parameters (conjugate convention differs)
@BACKENDS
def test_complex_parameters(backend):
    class Complex(nnx.Module):
        def __init__(self):
            random = np.random.RandomState(3)
            self.w = nnx.Param(jnp.asarray(random.randn(4, 3) + 1j * random.randn(4, 3)))

        def __call__(self, x):
            return x @ self.w[...], jnp.abs(x @ self.w[...])

    def loss(m):
        y, a = m(X + 1j)
        return (a**2).sum() + jnp.real(y).sum()

    got = nnx.grad(loss)(jaxpar.DataParallel(Complex(), [0, 1, 2], backend=backend))["module"]
    assert_close(jax.tree.leaves(got), jax.tree.leaves(nnx.grad(loss)(Complex())))


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_low_precision_keeps_its_dtype(dtype):
    w = {k: jnp.asarray(v).astype(dtype) for k, v in W.items()}
    x = jnp.asarray(X).astype(dtype)
    net = jaxpar.DataParallel(Module(w), [0, 1, 2, 3])
    got = nnx.grad(lambda n: n(x).astype("float32").sum())(net)["module"]
    want = nnx.grad(lambda n: n(x).astype("float32").sum())(Module(w))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == dtype
        scale = 32 * float(jnp.finfo(dtype).eps) * np.abs(np.float64(b)).max()
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=0, atol=scale)


# docs/semantics.md rows 34, 54: no gradient through detached replicas
@pytest.mark.full
def test_detached_replicas():
    def loss(m, detach):
        replicas = jaxpar.replicate(m, [0, 1], detach=detach)
        return jaxpar.gather(jaxpar.parallel_apply(replicas, jaxpar.scatter(X, [0, 1]))).sum()

    assert all((g == 0).all() for g in jax.tree.leaves(nnx.grad(lambda m: loss(m, True))(Module())))
    assert any((g != 0).any() for g in jax.tree.leaves(nnx.grad(lambda m: loss(m, False))(Module())))


# docs/semantics.md row 70: the gradient goes back to where the input is
def test_input_gradients_lie_where_the_input_lies(devices):
    x = jax.device_put(X, devices[5])
    gradient = jax.grad(lambda x: (jaxpar.data_parallel(Module(), x, [0, 1, 2]) ** 2).sum())(x)
    assert gradient.devices() == {devices[5]}


def test_vmap_over_the_wrapper():
    net = jaxpar.DataParallel(Module(), [0, 1, 2])
    x = jnp.asarray(np.stack([X, X + 1]))
    np.testing.assert_allclose(jax.jit(jax.vmap(net))(x), jnp.stack([rows(W, X), rows(W, X + 1)]), rtol=1e-12)


@BACKENDS
def test_inside_scan_and_checkpoint(backend):
    apply = parallel([0, 1, 2], backend)
    x = jnp.asarray(X[:, :4])

    def loss(w, f):
        def body(carry, _):
            return carry + jnp.sum(f(w, carry) ** 2) * 1e-3, None

        return jax.lax.scan(body, x, None, length=3)[0].sum()

    got = jax.jit(jax.grad(lambda w: loss(w, jax.checkpoint(apply))))(W)
    assert_close(got, jax.grad(lambda w: loss(w, rows))(W))
