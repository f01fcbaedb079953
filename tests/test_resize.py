"""interpolate, grids, shuffles, folds and pads against torch's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers

from jaxpar.nn import functional as F
from jaxpar.nn.functional._interpolate import nearest

torch = pytest.importorskip("torch")
from against_torch.cases.resize import CASES, REFUSED  # noqa: E402
from against_torch.layers import difference, refusal  # noqa: E402

torch.set_num_threads(1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case):
    difference(case)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refused(row):
    refusal(row)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_rounds_as_torch_does(mode, dtype):
    """Every pair of sizes up to 40 and 90, ties included, in both precisions."""
    for n in range(1, 41):
        numbers = torch.tensor(np.arange(n, dtype=dtype))[None, None]
        for size in range(1, 91):
            want = torch.nn.functional.interpolate(numbers, size, mode=mode)[0, 0].numpy()
            got = nearest(n, size, None, mode == "nearest-exact", dtype)
            np.testing.assert_array_equal(got, want, err_msg=f"{n} to {size}")
        for factor in (0.3, 0.7, 1.1, 1.3, 2.3, 2.7):
            if n * factor >= 1:
                want = torch.nn.functional.interpolate(numbers, scale_factor=factor, mode=mode)[0, 0].numpy()
                got = nearest(n, len(want), factor, mode == "nearest-exact", dtype)
                np.testing.assert_array_equal(got, want, err_msg=f"{n} times {factor}")


def test_a_nan_stays_where_it_is():
    x = np.ones((1, 8, 1))
    x[0, 2] = np.nan
    want = torch.nn.functional.interpolate(torch.tensor(x[..., 0])[None], 16, mode="linear")[0, 0].numpy()
    got = F.interpolate(jnp.asarray(x), 16, mode="linear")[0, :, 0]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    gradient = jax.grad(lambda x: F.interpolate(x, 3, mode="linear").sum())(jnp.asarray(x))
    assert np.isfinite(gradient).all()


def test_a_circle_goes_once_around_what_is_left():
    """torch raises for memory that overlaps, where more is asked for than a cut leaves."""
    x = jnp.arange(5.0)[None, :, None]
    assert F.pad(x, (-1, 4), "circular")[0, :, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="wrapping around more than once"):
        F.pad(x, (-1, 5), "circular")


def test_integers_can_be_copied():
    x = np.arange(6).reshape(1, 6, 1)
    assert_equal_numbers("copies", F.interpolate(jnp.asarray(x), 3), x[:, ::2])


@pytest.mark.full
def test_second_derivatives():
    x = jnp.asarray(np.random.RandomState(0).randn(1, 4, 1))

    def energy(x):
        return (F.interpolate(x, 7, mode="linear") ** 3).sum()

    second = jax.jacrev(jax.grad(energy))(x)[0, :, 0, 0, :, 0]
    tensor = torch.tensor(np.asarray(x)[..., 0])[:, None]
    want = torch.autograd.functional.hessian(
        lambda x: (torch.nn.functional.interpolate(x, 7, mode="linear") ** 3).sum(), tensor
    )
    assert_equal_numbers("Hessian", second, want[0, 0, :, 0, 0, :].numpy(), 1e-12)


def test_vmap():
    x = jnp.asarray(np.random.RandomState(0).randn(3, 1, 4, 5, 2))
    together = jax.vmap(lambda x: F.interpolate(x, 7, mode="bilinear"))(x)
    assert_equal_numbers("vmap", together[:, 0], np.asarray(F.interpolate(x[:, 0], 7, mode="bilinear")))
