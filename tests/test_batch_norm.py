"""jaxpar.nn.BatchNorm against torch.nn.BatchNorm: outputs, statistics, gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers
from flax import nnx

import jaxpar

torch = pytest.importorskip("torch")

OPTIONS = [
    {},
    {"momentum": 0.3, "eps": 1e-3},
    {"momentum": None},
    {"affine": False},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("space", [(), (4,), (3, 2)])
def test_five_steps_and_evaluation(options, space):
    random = np.random.RandomState(0)
    theirs = getattr(torch.nn, f"BatchNorm{max(len(space), 1)}d")(6, **options).double()
    ours = jaxpar.nn.BatchNorm(6, param_dtype=jnp.float64, **options)
    for mode in ["train"] * 5 + ["eval"]:
        getattr(theirs, mode)()
        getattr(ours, mode)()
        x = 1e3 + random.randn(5, *space, 6)
        tensor = torch.tensor(np.moveaxis(x, -1, 1).copy(), requires_grad=True)
        want = theirs(tensor)
        (want**3).mean().backward()
        got = ours(jnp.asarray(x))
        gradient = jax.grad(lambda x: (nnx.clone(ours)(x) ** 3).mean())
        assert_equal_numbers("outputs", got, np.moveaxis(want.detach().numpy(), 1, -1), 1e-9)
        if options.get("track_running_stats", True):
            assert_equal_numbers("mean", ours.mean[...], theirs.running_mean.numpy())
            assert_equal_numbers("variance", ours.var[...], theirs.running_var.numpy())
            assert ours.num_batches_tracked[...] == theirs.num_batches_tracked.item()
    assert_equal_numbers(
        "input gradient", gradient(jnp.asarray(x)), np.moveaxis(tensor.grad.numpy(), 1, -1), 1e-9
    )


def test_statistics_of_half_precision_are_taken_in_float32():
    x = (100 + np.random.RandomState(0).randn(64, 3)).astype(jnp.bfloat16)
    layer = jaxpar.nn.BatchNorm(3)
    y = layer(jnp.asarray(x))
    assert y.dtype == jnp.bfloat16
    theirs = torch.nn.BatchNorm1d(3)
    theirs(torch.tensor(x.astype(np.float32)))
    np.testing.assert_allclose(layer.var[...], theirs.running_var.numpy(), rtol=1e-5)


# torch-semantics 1.6 #75
def test_one_value_per_channel():
    with pytest.raises(
        ValueError, match=r"Expected more than 1 value per channel when training, got input size \(1, 3\)"
    ):
        jaxpar.nn.BatchNorm(3)(jnp.ones((1, 3)))
    net = jaxpar.DataParallel(jaxpar.nn.BatchNorm(3), [0, 1])
    with pytest.raises(ValueError, match="Expected more than 1 value") as caught:
        net(np.ones((3, 3)))
    assert any("in replica 1 on device cpu:1" in note for note in caught.value.__notes__)


def test_wrong_number_of_features():
    with pytest.raises(ValueError, match=r"the last axis of \(2, 4\) is not num_features=3"):
        jaxpar.nn.BatchNorm(3)(jnp.ones((2, 4)))
