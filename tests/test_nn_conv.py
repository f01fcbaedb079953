"""Conv and ConvTranspose of jaxpar.nn against torch.nn: five steps, bad input, initial values."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxpar import nn
from jaxpar.nn import functional

torch = pytest.importorskip("torch")
from against_torch.cases.conv import CASES, REFUSED  # noqa: E402
from against_torch.layers import TOLERANCE, difference, refusal, round_trip  # noqa: E402

torch.set_num_threads(1)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_five_steps_equal_torch(case):
    assert difference(case) <= TOLERANCE


def test_weights_go_back_to_torch():
    for case in CASES[::4]:
        round_trip(case)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refusals(row):
    assert refusal(row)


def test_without_groups_the_transposed_kernel_is_the_one_of_flax():
    flax = nnx.ConvTranspose(
        3, 2, (3, 2), strides=2, padding="VALID", transpose_kernel=True, rngs=nnx.Rngs(0)
    )
    ours = nn.ConvTranspose(3, 2, (3, 2), stride=2, rngs=nnx.Rngs(1))
    assert ours.kernel[...].shape == flax.kernel[...].shape
    ours.kernel, ours.bias = flax.kernel, flax.bias
    x = jnp.asarray(np.random.RandomState(0).randn(2, 4, 3, 3))
    np.testing.assert_allclose(ours(x), flax(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (functional.conv, {"stride": 2, "padding": 1}),
        (functional.conv, {}),
        (functional.conv, {"stride": 3, "padding": 1}),
        (functional.conv, {"groups": 2, "stride": 2}),
        (functional.conv_transpose, {"stride": 2}),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)).replace(" ", ""),
)
def test_derivatives_in_float64_have_windows_that_are_fast_on_cpus(function, options):
    """All others are a plain loop there, up to seventy times slower."""
    x, kernel = jnp.ones((2, 9, 9, 4)), jnp.ones((3, 3, 4 // options.get("groups", 1), 4))
    derivatives = jax.grad(lambda *arrays: (function(*arrays, **options) ** 2).sum(), (0, 1))
    text = jax.jit(derivatives).lower(x, kernel).compile().as_text()
    windows = re.findall(r" convolution\(.*window=\{(.*?)\}", text)
    sizes = [re.fullmatch(r"size=(\d+)x\d+(?: pad=(\d+)_\d+x\d+_\d+)?", window) for window in windows]
    assert windows or " dot(" in text
    assert all(size and 2 * int(size[2] or 0) < int(size[1]) for size in sizes), windows


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda r: nn.Conv(64, 60, (3, 3), groups=4, rngs=r), torch.nn.Conv2d(64, 60, 3, groups=4)),
        (
            lambda r: nn.ConvTranspose(60, 64, 5, groups=4, rngs=r),
            torch.nn.ConvTranspose1d(60, 64, 5, groups=4),
        ),
    ],
)
def test_initial_values_have_the_distribution_of_torch(ours, theirs):
    layer = ours(nnx.Rngs(0))
    bound = float(theirs.weight.detach().abs().max())
    for values, n in ((layer.kernel[...], 10_000), (layer.bias[...], 60)):
        # Of n uniform numbers the largest is within 8/n of the bound, but for one time in three thousand.
        assert abs(float(jnp.abs(values).max()) / bound - 1) < 8 / n + 1e-3
        assert abs(float(values.mean())) < 4 * bound / (3 * values.size) ** 0.5
        assert abs(float(values.std()) / (bound / 3**0.5) - 1) < 3 / values.size**0.5


@pytest.mark.parametrize("layer", [nn.Conv, nn.ConvTranspose])
def test_types(layer):
    ours = layer(2, 2, 1, rngs=nnx.Rngs(0))
    x = jnp.ones((1, 3, 2), jnp.bfloat16)
    assert ours(x).dtype == jnp.float32
    assert layer(2, 2, 1, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))(x).dtype == jnp.bfloat16
    assert layer(2, 2, 1, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))(x).dtype == jnp.bfloat16


R = nnx.Rngs(0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.Conv(2, 2, 4, rngs=R)(jnp.ones((1, 3, 2))), RuntimeError, "can't be greater than actual"),
        (lambda: nn.Conv(2, 2, 1, rngs=R)(jnp.ones((1, 3, 3))), RuntimeError, "to have 2 channels"),
        (lambda: nn.Conv(2, 2, 1, rngs=R)(jnp.ones(3)), RuntimeError, r"Expected 2D \(unbatched\) or 3D"),
        (lambda: nn.Conv(2, 2, 1, padding=1, rngs=R)(jnp.ones((1, 0, 2))), RuntimeError, "Only zero batch"),
        (lambda: nn.Conv(2, 2, 1, padding=3, padding_mode="reflect", rngs=R)(jnp.ones((1, 3, 2))),
         ValueError, "Padding size should be less than the corresponding input dimension"),
        (lambda: nn.Conv(2, 2, 1, padding=4, padding_mode="circular", rngs=R)(jnp.ones((1, 3, 2))),
         ValueError, "Padding value causes wrapping around more than once"),
        (lambda: nn.ConvTranspose(2, 2, 1, rngs=R)(jnp.ones((1, 3, 3))), RuntimeError, "to have 2 channels"),
        (lambda: nn.ConvTranspose(2, 2, 1, padding=3, rngs=R)(jnp.ones((1, 3, 2))), RuntimeError,
         "Output size is too small"),
        (lambda: nn.ConvTranspose(2, 2, 3, stride=2, rngs=R)(jnp.ones((1, 3, 2)), output_size=(9,)),
         ValueError, r"requested an output size of \(9,\), but valid sizes range from \[7\] to \[8\]"),
        (lambda: nn.ConvTranspose(2, 2, 3, rngs=R)(jnp.ones((1, 3, 2)), output_size=(9, 9)),
         ValueError, r"must have 1 or 3 elements \(got 2\)"),
    ],
)  # fmt: skip
def test_wrong_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_no_rows_and_a_whole_output_size():
    assert nn.Conv(2, 3, 2, rngs=R)(jnp.ones((0, 4, 2))).shape == (0, 3, 3)
    layer = nn.ConvTranspose(2, 3, 3, stride=2, rngs=R)
    assert layer(jnp.ones((0, 4, 2)), output_size=(0, 10, 3)).shape == (0, 10, 3)
