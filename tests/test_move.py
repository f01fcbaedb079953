"""to, cuda, cpu, device_of: torch's rules for moving things (docs/semantics.md rows P10-P18)."""

from __future__ import annotations

import collections
import warnings

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar import errors


class Net(nnx.Module):
    def __init__(self):
        self.l = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        self.bn = jaxpar.nn.BatchNorm(3)
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.drop(self.bn(self.l(x)))


# docs/semantics.md row P12
@pytest.mark.parametrize("source", [np.ones((2, 3)), jnp.ones((2, 3))], ids=["numpy", "jax"])
@pytest.mark.parametrize("target", [0, 3, "cpu:3", "device"])
def test_an_array(source, target, devices):
    target = devices[3] if target == "device" else target
    d = jaxpar.device(target)
    y = jaxpar.to(source, target)
    assert y.devices() == {d}
    assert y.committed
    np.testing.assert_array_equal(y, source)
    assert jaxpar.device_of(y) is d
    assert jaxpar.to(y, target) is y
    assert jaxpar.to(y) is y
    assert jaxpar.to(y, target, y.dtype) is y
    assert (y + 1).devices() == {d}, "results stay on the device of their inputs"


def test_cuda_and_cpu(devices):
    x = jnp.ones(3)
    assert jaxpar.cuda(x).devices() == jaxpar.cuda(x, 0).devices() == {devices[0]}
    y = jaxpar.cuda(x, 5)
    assert y.devices() == {devices[5]}
    assert jaxpar.cuda(y, 5) is y
    assert jaxpar.cpu(y).devices() == {devices[0]}
    # docs/semantics.md row P12: without an index it is the current device, wherever the array is now
    with jaxpar.set_device(2):
        assert jaxpar.cuda(y).devices() == {devices[2]}
        assert jaxpar.to(y, jaxpar.current_device()).devices() == {devices[2]}


def test_like_another_array(devices):
    other = jaxpar.to(jnp.ones(2, jnp.float32), 4)
    y = jaxpar.to(jnp.ones(3, jnp.float64), other)
    assert y.devices() == {devices[4]}
    assert y.dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex128", "bool"])
def test_an_array_takes_any_dtype(dtype):
    assert jaxpar.to(jnp.ones(3), None, dtype).dtype == jnp.dtype(dtype)
    assert jaxpar.to(np.ones(3), 1, dtype).dtype == jnp.dtype(dtype)


# docs/semantics.md row P14: only floating leaves change
def test_a_tree(devices):
    Batch = collections.namedtuple("Batch", "x labels extra")
    tree = Batch(np.ones((2, 2)), np.arange(3), {"c": jnp.ones(2, jnp.complex64), "none": None})
    moved = jaxpar.to(tree, 2, jnp.float16)
    assert isinstance(moved, Batch)
    assert [leaf.dtype.name for leaf in jax.tree.leaves(moved)] == ["float16", "int64", "complex64"]
    assert all(leaf.devices() == {devices[2]} for leaf in jax.tree.leaves(moved))
    again = jaxpar.to(moved, 2, jnp.float16)
    assert all(a is b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(moved), strict=True))


# list(net.parameters())[0].device before and after net.cuda(); docs/semantics.md row P14
@pytest.mark.full
def test_a_module_is_moved_in_place(devices):
    net = Net()
    kernel = net.l.kernel
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    assert jaxpar.device_of(net) is devices[0]
    assert jaxpar.cuda(net, 3) is net
    assert net.l.kernel is kernel
    assert jaxpar.device_of(net) is devices[3]
    assert net.bn.mean[...].devices() == net.drop.rngs.key[...].devices() == {devices[3]}
    before = np.asarray(net.l.kernel[...])
    optimizer.update(net, nnx.grad(lambda n: n(jaxpar.to(np.ones((8, 4)), 3)).sum())(net))
    assert kernel[...].devices() == {devices[3]}
    assert before.shape == net.l.kernel[...].shape
    assert jaxpar.cpu(net) is net
    assert jaxpar.device_of(net) is devices[0]


@pytest.mark.parametrize("asked", [None, jnp.bfloat16])
def test_an_embeddings_rows_come_in_the_new_type(asked):
    """Unless a type was asked for: one that is not the table's."""
    net = nnx.Embed(3, 4, dtype=asked, rngs=nnx.Rngs(0))
    rows = jaxpar.to(net, dtype=jnp.float16)(jnp.array([0, 2]))
    assert rows.dtype == (asked or jnp.float16)


def test_a_modules_dtype():
    net = jaxpar.to(Net(), None, jnp.bfloat16)
    assert net.l.kernel[...].dtype == net.bn.mean[...].dtype == jnp.bfloat16
    assert net.bn.num_batches_tracked[...].dtype == jnp.int32
    with pytest.raises(TypeError, match="only accepts floating point or complex dtypes"):
        jaxpar.to(net, None, jnp.int32)


def test_linen_variables(devices):
    module = linen.Dense(3)
    variables = jaxpar.to(module.init(jax.random.key(0), np.ones((2, 4))), 6)
    assert module.apply(variables, jaxpar.to(np.ones((2, 4)), 6)).devices() == {devices[6]}


# net = DataParallel(net); net.to(device)
@pytest.mark.parametrize("jit", [False, True])
def test_the_usual_script_moves_the_wrapper(jit):
    net = jaxpar.DataParallel(Net(), [0, 1, 2])
    assert jaxpar.to(net, 0) is net
    call = nnx.jit(lambda n, x: n(x)) if jit else (lambda n, x: n(x))
    assert call(net, np.ones((9, 4))).shape == (9, 3)
    assert jaxpar.device_of(net) is jaxpar.devices()[0]


# docs/semantics.md row 12: moved away from device_ids[0], the wrapper says so
def test_a_wrapper_moved_elsewhere():
    net = jaxpar.to(jaxpar.DataParallel(Net(), [0, 1]), 4)
    with pytest.raises(errors.MisplacedError, match="found one of them on device: cpu:4"):
        net(np.ones((8, 4)))


# docs/semantics.md row P12: differentiable, and the gradient comes home
def test_gradients_come_home(devices):
    x = jaxpar.to(np.arange(3.0), 2)
    gradient = jax.grad(lambda x: (jaxpar.to(jaxpar.to(x, 5) ** 2, 7)).sum())(x)
    np.testing.assert_array_equal(gradient, [0, 2, 4])
    assert gradient.devices() == {devices[2]}


# docs/semantics.md row P15
def test_arrays_on_two_devices_raise():
    x, y = jaxpar.to(np.ones(3), 1), jaxpar.to(np.ones(3), 3)
    with pytest.raises(ValueError, match="incompatible devices"):
        x + y
    message = (
        r"found at least two devices, cpu:1 and cpu:3! x\[0\]\['w'\] is on cpu:1, x\[1\]\[0\] on cpu:3; "
        r"move .*jaxpar\.to\("
    )
    with pytest.raises(errors.MixedDevicesError, match=message) as caught:
        jaxpar.device_of([{"w": x}, [y]])
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(errors.MixedDevicesError, match=r"x\[0\] is on cpu:1, x\[1\] on cpu:3"):
        jaxpar.device_of([x, y])
    # Arrays that are not committed go wherever the others are, in JAX and here.
    assert jaxpar.device_of([jnp.ones(2), x]) is jaxpar.device_of(x)


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (
            {"a": [1.0, "text"]},
            errors.LeafError,
            r"to: x\['a'\]\[0\] is a float, not an array; use jnp\.asarray",
        ),
        ("text", errors.LeafError, "to: x is a str, not an array"),
        (np.array(["a"]), errors.LeafError, r"to: x has dtype <U1, which no device can hold"),
        (np.array([{}]), errors.LeafError, "to: x has dtype object"),
    ],
)
def test_leaves_that_are_no_arrays(x, error, message):
    with pytest.raises(error, match=message):
        jaxpar.to(x, 1)


@pytest.mark.full
def test_a_torch_tensor():
    torch = pytest.importorskip("torch")
    with pytest.raises(errors.LeafError, match=r"x is a torch\.Tensor.*\.numpy\(\)"):
        jaxpar.to(torch.ones(2), 1)


# docs/semantics.md row P13
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("foo", "'foo' is not a device"),
        (9, "out of range"),
        (-1, "out of range"),
        ("cuda:1", "JAX sees none"),
        (1.5, "is not a device"),
    ],
)
def test_no_such_device(spec, message):
    for function in (jaxpar.to, jaxpar.cuda):
        with pytest.raises(errors.DeviceError, match=message):
            function(np.ones(2), spec)


def test_cuda_on_a_host_with_accelerators_refuses_the_cpu(monkeypatch, devices):
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: devices[2:])
    with pytest.raises(errors.DeviceError, match="Invalid device, must be an accelerator, not cpu:0"):
        jaxpar.cuda(np.ones(2), "cpu")


def test_cuda_with_one_cpu_device(monkeypatch, devices):
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: devices[:1])
    with pytest.raises(
        errors.DeviceError, match=r"no accelerator and a single CPU device\. Install jaxpar\[cuda12\]"
    ):
        jaxpar.cuda(np.ones(2))


def test_an_uninitialised_module():
    with pytest.raises(
        errors.UninitializedError, match=r"to: Cannot move module\['bn'\]\['bias'\].*, a shape"
    ):
        jaxpar.to(nnx.eval_shape(Net), 1)


def test_a_deleted_array():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(errors.DeletedError, match=r"to: x .*was donated"):
        jaxpar.to(x, 1)


def test_narrowing_is_said_once_for_each_path():
    with jax.enable_x64(False):
        with pytest.warns(
            UserWarning, match=r"to: x\['narrow'\] is float64 and becomes float32, because jax_enable_x64"
        ):
            jaxpar.to({"narrow": np.ones(2)}, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jaxpar.to({"narrow": np.ones(2)}, 1)
        with pytest.raises(
            errors.RangeError, match=r"x\['ids'\] is int64 with values from 0 to 1099511627776"
        ):
            jaxpar.to({"ids": np.array([0, 2**40])}, 1)


def test_nothing_to_look_at():
    with pytest.raises(errors.LeafError, match="there is no array"):
        jaxpar.device_of({"a": 1})
