"""jaxpar.random.init against torch.nn.init, to the last bit, and the generators' states after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bits import assert_same_bits

from jaxpar.random import Generator, init

torch = pytest.importorskip("torch")

SHAPES = [(3, 4), (70, 50), (8, 4, 3), (6, 5, 3, 2), (4, 3, 2, 2, 2)]
DTYPES = ["float32", "float64", "float16", "bfloat16"]

DRAWN: list[tuple[str, dict[str, Any]]] = [
    ("uniform_", {}),
    ("uniform_", {"a": -0.3, "b": 2}),
    ("normal_", {}),
    ("normal_", {"mean": 0.5, "std": 0.02}),
    ("xavier_uniform_", {}),
    ("xavier_uniform_", {"gain": 5 / 3}),
    ("xavier_normal_", {}),
    ("xavier_normal_", {"gain": 0.3}),
    *(
        (name, options)
        for name in ("kaiming_uniform_", "kaiming_normal_")
        for options in (
            {},
            {"a": 5**0.5},
            {"mode": "fan_out", "nonlinearity": "relu"},
            {"nonlinearity": "tanh"},
            {"nonlinearity": "selu", "mode": "FAN_IN"},
            {"nonlinearity": "conv_transpose2d"},
        )
    ),
    ("trunc_normal_", {}),
    ("trunc_normal_", {"std": 0.02}),
    ("trunc_normal_", {"mean": 0.3, "std": 0.7, "a": -1.003, "b": 0.9}),
]
NARROW = [
    {"a": -0.2, "b": 0.2},
    {"mean": 1.0, "std": 2.0, "a": 1.5, "b": 2.0},
    {"a": 1.0, "b": 2.0},
    {"a": -2.0, "b": -1.5, "std": 2.0},
]
FILLED: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("constant_", (3, 4), {"val": 0.3}),
    ("ones_", (3,), {}),
    ("zeros_", (3,), {}),
    ("eye_", (3, 5), {}),
    ("eye_", (5, 3), {}),
    ("dirac_", (4, 3, 3), {}),
    ("dirac_", (6, 4, 3, 2), {"groups": 2}),
    ("dirac_", (2, 4, 3, 3, 4), {}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "options"), DRAWN, ids=lambda x: str(x).strip("{}"))
def test_drawn(name, options, dtype):
    for seed, shape in enumerate(SHAPES):
        compare(name, shape, dtype, seed, options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", NARROW, ids=str)
def test_narrow_truncation(options, dtype):
    for seed in range(5):
        compare("trunc_normal_", (60, 50), dtype, seed, options)


def compare(name: str, shape: tuple[int, ...], dtype: str, seed: int, options: dict[str, Any]) -> None:
    ours, theirs = Generator(seed), torch.Generator().manual_seed(seed)
    x, tensor = np.empty(shape, dtype), torch.empty(shape, dtype=getattr(torch, dtype))
    assert getattr(init, name)(x, **options, generator=ours) is x
    getattr(torch.nn.init, name)(tensor, **options, generator=theirs)
    assert_same_bits(f"{name} {options} {shape} {dtype}", x, tensor)
    assert_same_bits("state", ours.get_state(), theirs.get_state())


@pytest.mark.parametrize(("name", "shape", "options"), FILLED, ids=str)
def test_filled(name, shape, options):
    x, tensor = np.full(shape, 7, np.float32), torch.full(shape, 7.0)
    assert getattr(init, name)(x, **options) is x
    getattr(torch.nn.init, name)(tensor, **options)
    assert_same_bits(name, x, tensor)


def test_sparse():
    torch.manual_seed(3)
    tensor = torch.nn.init.sparse_(torch.empty(30, 20), 0.33, std=0.2)
    assert_same_bits(
        "sparse_", init.sparse_(np.empty((30, 20), "f4"), 0.33, 0.2, generator=Generator(3)), tensor
    )


def test_a_transposed_weight():
    ours, theirs = Generator(1), torch.Generator().manual_seed(1)
    kernel, tensor = np.empty((40, 30), np.float32), torch.empty(40, 30)
    for name in ("kaiming_uniform_", "kaiming_normal_", "trunc_normal_"):
        getattr(init, name)(kernel.T, generator=ours)
        getattr(torch.nn.init, name)(tensor.T, generator=theirs)
        assert_same_bits(name, kernel, tensor)


@pytest.mark.parametrize(
    "nonlinearity", ["linear", "conv3d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]
)
def test_gains(nonlinearity):
    for param in (None, 0, 0.2, 1):
        ours, theirs = (f(nonlinearity, param) for f in (init.calculate_gain, torch.nn.init.calculate_gain))
        assert ours == theirs


def test_zero_elements():
    for name in ("kaiming_uniform_", "kaiming_normal_"):
        with pytest.warns(UserWarning, match="Initializing zero-element tensors is a no-op") as caught:
            getattr(init, name)(np.empty((0, 3)), generator=Generator(0))
        assert caught[0].filename == __file__
    init.orthogonal_(np.empty((0, 3)), generator=Generator(0))


def test_a_mean_far_outside():
    with pytest.warns(UserWarning, match="mean is more than 2 std from"):
        init.trunc_normal_(np.empty(100, "f4"), mean=3.5, std=0.5, generator=Generator(0))


REFUSED = {
    "fans of a vector": (lambda i, x, g: i.xavier_normal_(x((3,)), generator=g), ValueError),
    "a mode": (lambda i, x, g: i.kaiming_normal_(x((3, 3)), mode="fan", generator=g), ValueError),
    "a nonlinearity": (
        lambda i, x, g: i.kaiming_uniform_(x((3, 3)), nonlinearity="gelu", generator=g),
        ValueError,
    ),
    "a slope": (lambda i, x, g: i.calculate_gain("leaky_relu", True), ValueError),
    "eye_ of a vector": (lambda i, x, g: i.eye_(x((3,))), ValueError),
    "dirac_ of a matrix": (lambda i, x, g: i.dirac_(x((3, 3))), ValueError),
    "dirac_'s groups": (lambda i, x, g: i.dirac_(x((3, 3, 3)), groups=2), ValueError),
    "sparse_ of a vector": (lambda i, x, g: i.sparse_(x((3,)), 0.5, generator=g), ValueError),
    "orthogonal_ of a vector": (lambda i, x, g: i.orthogonal_(x((3,)), generator=g), ValueError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_as_torch_refuses(case):
    call, error = REFUSED[case]
    with pytest.raises(error) as want:
        call(torch.nn.init, torch.empty, torch.Generator())
    with pytest.raises(error) as got:
        call(init, np.empty, Generator())
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (4, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("gain", [1, 0.01])
def test_orthogonal(shape, gain):
    ours, theirs = Generator(2), torch.Generator().manual_seed(2)
    x = init.orthogonal_(np.empty(shape, np.float32), gain, generator=ours)
    tensor = torch.nn.init.orthogonal_(torch.empty(shape), gain, generator=theirs)
    np.testing.assert_allclose(x, tensor.numpy(), rtol=0, atol=2e-6 * gain)
    assert_same_bits("state", ours.get_state(), theirs.get_state())


def test_a_number_that_hangs_on_a_logarithm(monkeypatch):
    monkeypatch.setattr(np, "spacing", lambda x: np.full_like(x, 1e-3))
    with pytest.raises(NotImplementedError, match="hangs on the last bit of a logarithm"):
        init.trunc_normal_(np.empty(10_000), a=-0.1, b=0.1, generator=Generator(0))
    init.trunc_normal_(np.empty(10_000), generator=Generator(0))


def test_refused_here():
    with pytest.raises(NotImplementedError, match=r"\[-0.1, 0.1\] holds less than 30 %.*float16"):
        init.trunc_normal_(np.empty(3, "f2"), a=-0.1, b=0.1, generator=Generator(0))
