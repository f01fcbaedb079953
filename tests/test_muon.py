"""muon against torch.optim.Muon: to the last bit of its bfloat16 while sums are short, and beyond that no
further from torch than torch is from itself with the columns of the matrix in another order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import nnx

import jaxpar
from jaxpar import optim
from jaxpar.optim import _muon

torch = pytest.importorskip("torch")
newton_schulz = pytest.importorskip("torch.optim._muon")._zeropower_via_newtonschulz

STEPS = 10
SHAPES = [(5, 3), (3, 7), (4, 4), (1, 6), (6, 1)]
"""Torch's, [out, in]."""

OPTIONS = [
    {},
    {"lr": 0.1, "adjust_lr_fn": "match_rms_adamw"},
    {"lr": 0.1, "adjust_lr_fn": "original", "nesterov": False, "weight_decay": 0.0},
    {"lr": 0.05, "momentum": 0.3, "ns_steps": 2, "ns_coefficients": (2.0, -1.5, 0.5)},
    {"lr": 0.05, "momentum": 0.0, "eps": 2.0, "ns_steps": 1},
]


def gradient(t, p):
    return np.random.RandomState(t).randn(*p.shape) + 0.1 * p


def torch_run(options, dtype, rates=()):
    params = [
        torch.tensor(np.random.RandomState(9).randn(*s), dtype=dtype, requires_grad=True) for s in SHAPES
    ]
    optimizer = torch.optim.Muon(params, **options)
    for t in range(STEPS):
        for p in params:
            p.grad = torch.tensor(gradient(t, p.detach().double().numpy()), dtype=dtype)
        if rates:
            optimizer.param_groups[0]["lr"] = rates[t]
        optimizer.step()
    return [p.detach().double().numpy() for p in params], optimizer


def run(tx, dtype, flax=True, rates=()):
    def turn(p):
        return p.T if flax else p

    params = [jnp.asarray(turn(np.random.RandomState(9).randn(*s)), dtype) for s in SHAPES]
    state = tx.init(params)
    update = jax.jit(tx.update)
    for t in range(STEPS):
        grads = [jnp.asarray(turn(gradient(t, turn(np.asarray(p, np.float64)))), dtype) for p in params]
        if rates:
            state = optax.tree.set(state, lr=jnp.asarray(rates[t], float))
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return [turn(np.asarray(p, np.float64)) for p in params], state


def assert_torchs(got, want, tolerance=1e-13):
    for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert_equal_numbers(f"parameter {i}", mine, theirs, tolerance)


@pytest.mark.full
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_ten_steps_in_float64(options):
    assert_torchs(run(optim.muon(**options), float)[0], torch_run(options, torch.float64)[0])


@pytest.mark.full
def test_in_torchs_layout():
    tx = optim.muon(lr=0.1, dims=lambda path, leaf: (0, 1))
    want, _ = torch_run({"lr": 0.1}, torch.float64)
    assert_torchs(run(tx, float, flax=False)[0], want)
    from_the_end = optim.muon(lr=0.1, dims=lambda path, leaf: (-1, -2))
    assert_torchs(run(from_the_end, float)[0], want)
    with pytest.raises(AssertionError, match="relative difference"):
        assert_torchs(run(optim.muon(lr=0.1), float, flax=False)[0], want)  # the other layout's rate


@pytest.mark.full
def test_in_float32():
    options = {"lr": 0.1}
    with jax.enable_x64(False):
        got, _ = run(optim.muon(**options), np.float32)
    assert_torchs(got, torch_run(options, torch.float32)[0], 2e-6)


def test_a_rate_for_each_step():
    rates = [0.1 / (t + 1) for t in range(STEPS)]
    want, _ = torch_run({}, torch.float64, rates)
    assert_torchs(run(optim.muon(), float, rates=rates)[0], want)
    assert_torchs(run(optim.muon(lr=lambda step: 0.1 / (step + 1)), float)[0], want)


FAULTS = {
    "no bfloat16": ("_rounded", lambda matrix: matrix.astype(jnp.float32)),
    "a product that is rounded by itself": ("_product", lambda x, y: _muon._rounded(x @ y)),
    "one step less": ("orthogonal", lambda m, c, steps, eps: HEALTHY(m, c, steps - 1, eps)),
    "no adjustment": ("_adjustment", lambda adjust_lr_fn, shape: 1.0),
}
HEALTHY = _muon.orthogonal


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    monkeypatch.setattr(_muon, *FAULTS[fault])
    with pytest.raises(AssertionError, match="relative difference"):
        assert_torchs(run(optim.muon(), float)[0], torch_run({}, torch.float64)[0])


def orthogonal(matrix):
    return np.asarray(jax.jit(lambda x: _muon.orthogonal(x, _muon.COEFFICIENTS))(jnp.asarray(matrix)), float)


def theirs(matrix):
    return newton_schulz(torch.tensor(matrix), _muon.COEFFICIENTS, 5, 1e-7).double().numpy()


def strays(matrix, seed):
    """Torch's, of the same columns and rows in another order, which is the same but for the order of sums."""
    random = np.random.RandomState(seed)
    rows, columns = (random.permutation(n) for n in matrix.shape)
    moved = theirs(matrix[rows][:, columns])
    return moved[np.argsort(rows)][:, np.argsort(columns)]


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


@pytest.mark.parametrize("shape", [(2, 3), (8, 8), (16, 8), (32, 24)])
def test_short_sums_to_the_last_bit(shape):
    for seed in range(4):
        matrix = np.random.RandomState(seed).randn(*shape)
        assert np.array_equal(orthogonal(matrix), theirs(matrix))


@pytest.mark.parametrize("shape", [(100, 300), (256, 128), (192, 192)])
def test_long_sums_are_as_near_as_torch_is_to_itself(shape):
    matrix = np.random.RandomState(0).randn(*shape)
    want = theirs(matrix)
    spread = max(rms(strays(matrix, seed) - want) for seed in range(4))
    assert 0 < spread < 0.02 * rms(want)
    assert rms(orthogonal(matrix) - want) <= 1.5 * spread


def test_long_sums_without_bfloat16_are_found(monkeypatch):
    matrix = np.random.RandomState(0).randn(100, 300)
    want = theirs(matrix)
    spread = max(rms(strays(matrix, seed) - want) for seed in range(4))
    monkeypatch.setattr(_muon, *FAULTS["a product that is rounded by itself"])
    assert rms(orthogonal(matrix) - want) > 1.5 * spread


def test_its_state_goes_to_torch_and_back():
    names = [str(i) for i in range(len(SHAPES))]

    def layout(path):
        return optim.TorchParam(path.strip("[]"), np.transpose, np.transpose)

    _, state = run(optim.muon(), float)
    want, optimizer = torch_run({}, torch.float64)
    params = [jnp.asarray(p.T) for p in want]
    back = optim.state_to_torch(state, optimizer.state_dict(), layout, names=names, tensor=torch.from_numpy)
    for i, entry in optimizer.state_dict()["state"].items():
        assert_equal_numbers(
            str(i), back["state"][i]["momentum_buffer"].numpy(), entry["momentum_buffer"].numpy(), 1e-13
        )
    there = optim.state_from_torch(
        optim.muon(), params, optimizer.state_dict(), layout, names=names, step=STEPS
    )
    for mine, other in zip(jax.tree.leaves(there), jax.tree.leaves(state), strict=True):
        assert_equal_numbers("state", mine, other, 1e-13)


@pytest.mark.full
def test_beside_adamw_in_a_training():
    net = nnx.Sequential(
        nnx.Linear(6, 5, rngs=nnx.Rngs(0), param_dtype=float),
        nnx.Linear(5, 3, rngs=nnx.Rngs(1), param_dtype=float),
    )
    twin = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)).double()
    for layer, other in zip(net.layers, twin, strict=True):
        other.weight.data.copy_(torch.from_numpy(np.asarray(layer.kernel[...]).T.copy()))
        other.bias.data.copy_(torch.from_numpy(np.asarray(layer.bias[...]).copy()))
    tx = optax.partition(
        {"adamw": optim.adamw(0.01), "muon": optim.muon(0.02)},
        lambda tree: jax.tree.map(lambda p: "muon" if p.ndim == 2 else "adamw", tree),
    )
    optimizer = optim.Optimizer(net, tx)
    pair = (
        torch.optim.AdamW([p for p in twin.parameters() if p.ndim != 2], 0.01),
        torch.optim.Muon([p for p in twin.parameters() if p.ndim == 2], 0.02),
    )
    x = np.random.RandomState(0).randn(8, 6)
    step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    for t in range(10):
        for ours, other in zip(optimizer.param_groups, pair, strict=True):
            ours["lr"] = other.param_groups[0]["lr"] = 0.02 / (t + 1)
        step(x)
        for each in pair:
            each.zero_grad()
        (twin(torch.from_numpy(x)) ** 2).mean().backward()
        for each in pair:
            each.step()
    for layer, other in zip(net.layers, twin, strict=True):
        assert_equal_numbers("kernel", np.asarray(layer.kernel[...]).T, other.weight.detach().numpy(), 1e-12)
        assert_equal_numbers("bias", layer.bias[...], other.bias.detach().numpy(), 1e-12)


REFUSED = [
    ({"lr": -1}, "Learning rate should be >= 0 but is: -1"),
    ({"momentum": -0.5}, "momentum should be >= 0 but is: -0.5"),
    ({"weight_decay": -0.1}, "weight decay should be >= 0 but is: -0.1"),
    ({"adjust_lr_fn": "x"}, "Adjust learning rate function x is not supported"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=str)
def test_refused_in_torchs_words(options, words):
    with pytest.raises(ValueError, match=words):
        torch.optim.Muon([torch.zeros(2, 2)], **options)
    with pytest.raises(ValueError, match=words):
        optim.muon(**options)


def test_refused_here_at_once_and_by_torch_at_the_first_step():
    for options, words in (({"ns_steps": 100}, "less than 100"), ({"ns_coefficients": (1, 2)}, "exactly 3")):
        with pytest.raises(ValueError, match=words):
            optim.muon(**options)


@pytest.mark.parametrize("leaf", [jnp.ones(3), jnp.ones((2, 3, 4))])
def test_only_matrices(leaf):
    with pytest.raises(
        ValueError, match=r"Muon only supports 2D parameters .* size: .*, head/bias\. Give it to"
    ):
        optim.muon().init({"head": {"bias": leaf, "kernel": jnp.ones((2, 2))}})
    with pytest.raises(TypeError, match="complex"):
        optim.muon().init({"kernel": jnp.ones((2, 2), complex)})
