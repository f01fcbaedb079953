"""Normalisations of jaxpar.nn against torch.nn: five steps, bad input, half precision, derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers
from flax import nnx
from jax.test_util import check_grads

import jaxpar
from jaxpar import nn
from jaxpar.nn import functional as F

torch = pytest.importorskip("torch")
from against_torch.cases.norms import CASES, REFUSED  # noqa: E402
from against_torch.layers import TOLERANCE, difference, refusal, round_trip  # noqa: E402

torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_five_steps_equal_torch(case):
    assert difference(case) <= TOLERANCE


def test_weights_go_back_to_torch():
    for case in CASES[::3]:
        round_trip(case)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refusals(row):
    assert refusal(row)


X = np.random.RandomState(0).randn(4, 5, 2, 6)
HALF = {
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, w, True)[0],
                   lambda f, x, w: f.batch_norm(x, None, None, w, w, True)),
    "layer_norm": (lambda x, w: F.layer_norm(x, 5, w, w), lambda f, x, w: f.layer_norm(x, [5], w, w)),
    "rms_norm": (lambda x, w: F.rms_norm(x, 5, w), lambda f, x, w: f.rms_norm(x, [5], w)),
    "group_norm": (lambda x, w: F.group_norm(x, 1, w, w), lambda f, x, w: f.group_norm(x, 1, w, w)),
    "instance_norm": (lambda x, w: F.instance_norm(x, None, None, w, w)[0],
                      lambda f, x, w: f.instance_norm(x, None, None, w, w)),
}  # fmt: skip


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("weights", ["half", "float32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_half_precision(name, weights, dtype):
    """torch's type, and at most torch's error; batch_norm in torch rounds in between if all is half."""
    ours, theirs = HALF[name]
    half = getattr(torch, dtype)
    x, w = (
        torch.tensor(X).to(half),
        torch.linspace(0.5, 2, 5).to(half if weights == "half" else torch.float32),
    )
    channels = -1 if name in ("layer_norm", "rms_norm") else 1
    x = x.movedim(1, -1)  # [4, 2, 6, 5]

    def run(x, w):
        return theirs(torch.nn.functional, x.movedim(-1, channels), w).movedim(channels, -1)

    got, want, exact = (
        jax.jit(ours)(as_jax(x), as_jax(w)),
        as_jax(run(x, w)),
        run(x.double(), w.double()).numpy(),
    )
    assert got.dtype == want.dtype == jnp.dtype(dtype)
    errors = [np.abs(np.asarray(y, np.float64) - exact) for y in (got, want)]
    assert errors[0].max() <= 1.001 * errors[1].max()
    assert errors[0].mean() <= 1.001 * errors[1].mean()


def as_jax(x):
    return jnp.asarray(x.float().numpy()).astype(str(x.dtype).removeprefix("torch."))


# The rules of both derivatives are written by hand.
DERIVED = {
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, w, w, True)[0],
    "batch_norm with a mask": lambda x, w: F.batch_norm(
        x, None, None, w, w, True, mask=jnp.array([True, False, True, True])
    )[0],
    "layer_norm": lambda x, w: F.layer_norm(x, 5, w, w),
}


@pytest.mark.full
@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_in_both_directions_and_of_second_order(name):
    x, w = jnp.asarray(X[:, :, 0, 0]), jnp.linspace(0.5, 2, 5)
    check_grads(jax.jit(DERIVED[name]), (x, w), 2, ["fwd", "rev"], rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_what_a_mask_hides_does_not_matter():
    x = jnp.asarray(X)
    mask = jnp.asarray(np.random.RandomState(1).rand(4, 5) < 0.5)
    mean, var = jnp.zeros(6), jnp.ones(6)
    y, mean, var = F.batch_norm(
        jnp.where(mask[..., None, None], x, np.nan), mean, var, training=True, mask=mask
    )
    want, *running = F.batch_norm(x[mask], jnp.zeros(6), jnp.ones(6), training=True)
    assert_equal_numbers("y", y[mask], want, TOLERANCE)
    assert_equal_numbers("running", jnp.stack([mean, var]), jnp.stack(running), TOLERANCE)
    one, none = jnp.arange(4) == 0, jnp.zeros(4, bool)
    running = {"running_mean": jnp.zeros(6), "running_var": jnp.ones(6), "training": True}
    assert np.isnan(F.batch_norm(x[:, 0, 0], **running, mask=one)[2]).all()
    np.testing.assert_array_equal(F.batch_norm(x, **running, mask=none)[2], running["running_var"])


def test_initial_values_are_torch():
    for ours, theirs in [
        (nn.BatchNorm(3), torch.nn.BatchNorm1d(3)),
        (nn.LayerNorm((2, 3)), torch.nn.LayerNorm((2, 3))),
        (nn.GroupNorm(1, 3), torch.nn.GroupNorm(1, 3)),
        (nn.InstanceNorm(3, affine=True), torch.nn.InstanceNorm1d(3, affine=True)),
        (nn.RMSNorm(3), torch.nn.RMSNorm(3)),
    ]:
        want = {k: v for k, v in theirs.state_dict().items() if v is not None}
        got = nnx.to_flat_state(nnx.state(ours))
        assert sorted(float(v[...].sum()) for _, v in got) == sorted(float(v.sum()) for v in want.values())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.BatchNorm(3)(jnp.ones(3)), ValueError, r"expected at least 2D input \(got 1D input\)"),
        (lambda: nn.BatchNorm(3)(jnp.ones((2, 4))), ValueError, "the last axis of .* is not num_features=3"),
        (lambda: nn.BatchNorm(3, eps=0.0)(jnp.ones((2, 3))), ValueError, "eps must be positive during"),
        (lambda: nn.BatchNorm(3)(jnp.ones((2, 3), int)), TypeError, "not implemented for int"),
        (lambda: F.batch_norm(jnp.ones((2, 3)), None, None), ValueError, "to be defined when training=False"),
        (lambda: nn.LayerNorm(3)(jnp.ones((2, 4))), RuntimeError, r"expected input with shape \[\*, 3\]"),
        (lambda: nn.LayerNorm((2, 3))(jnp.ones(3)), RuntimeError, r"with shape \[\*, 2, 3\].*size\[3\]"),
        (lambda: F.layer_norm(jnp.ones((2, 3)), 3, jnp.ones(4)), RuntimeError, r"\[3\], but got \[4\]"),
        (lambda: nn.RMSNorm(3)(jnp.ones((2, 4))), RuntimeError, "expected input with shape"),
        (lambda: nn.GroupNorm(2, 4)(jnp.ones((2, 6))), RuntimeError, "to be a vector of size"),
        (lambda: nn.GroupNorm(2, 4)(jnp.ones(4)), RuntimeError, "Expected at least 2 dimensions"),
        (lambda: nn.GroupNorm(4, 4)(jnp.ones((1, 4))), ValueError, "Expected more than 1 value per channel"),
        (lambda: nn.InstanceNorm(3)(jnp.ones((2, 3))), ValueError, "expected at least 3D input"),
        (lambda: nn.InstanceNorm(3)(jnp.ones((2, 1, 3))), ValueError, "Expected more than 1 spatial element"),
        (lambda: nn.InstanceNorm(3)(jnp.ones((2, 2, 4))), ValueError, "is not num_features=3"),
        (lambda: F.instance_norm(jnp.ones((2, 2, 4)), use_input_stats=False), ValueError, "is false"),
        (lambda: nn.LocalResponseNorm(2)(jnp.ones((2, 3))), ValueError, "Expected 3D or higher"),
    ],
)  # fmt: skip
def test_wrong_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


# docs/semantics.md row 75
def test_one_value_per_channel():
    with pytest.raises(
        ValueError, match=r"Expected more than 1 value per channel when training, got input size \(1, 3\)"
    ):
        nn.BatchNorm(3)(jnp.ones((1, 3)))
    net = jaxpar.DataParallel(nn.BatchNorm(3), [0, 1])
    with pytest.raises(ValueError, match="Expected more than 1 value") as caught:
        net(np.ones((3, 3)))
    assert any("in replica 1 on device cpu:1" in note for note in caught.value.__notes__)


# torch counts a batch without rows and leaves the rest as it is.
@pytest.mark.slow
def test_a_batch_without_rows():
    ours, theirs = nn.BatchNorm(3), torch.nn.BatchNorm1d(3)
    assert ours(jnp.zeros((0, 3))).shape == theirs(torch.zeros(0, 3)).shape
    assert ours.num_batches_tracked[...] == 1 == theirs.num_batches_tracked.item()
    np.testing.assert_array_equal(ours.var[...], theirs.running_var)
    np.testing.assert_array_equal(ours.mean[...], theirs.running_mean)
    for layer in (nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm(3, track_running_stats=True)):
        assert layer(jnp.zeros((0, 2, 3))).shape == (0, 2, 3)
    assert np.isfinite(layer.mean[...]).all()
