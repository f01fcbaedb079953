"""Whatever type a model asks for inside, the semantic level computes in float64, on both sides.

Each case is a function as people write it and the same in plain float64. What were left out would be off by
1e-8 and fail at 1e-14.
"""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import linen, nnx

from jaxpar import parity
from jaxpar.parity._sides import flax_float64

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from jaxpar.parity._sides import torch_float64  # noqa: E402

X = np.random.RandomState(0).randn(4, 5)
F4 = jnp.float32
D = torch.float64
EXACT = 1e-14

# ---------------------------------------------------------------------------------------------- torch


def in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.T


def written_to(x):
    y = torch.zeros(4, 5)
    y[torch.arange(4)] = x
    return y.mul_(0.1)


def turned(x, cosines):
    pairs = torch.view_as_complex(x[:, :4].reshape(4, 2, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(cosines), cosines))


def drawn(x, **kwargs):
    torch.manual_seed(0)
    return x + torch.randn(4, 5, **kwargs)


def scripted(x):
    with warnings.catch_warnings(action="ignore"):  # torch advises against scripts, and people have them
        return torch.jit.script(tenth)(x)


def tenth(x):
    return x.float() * 0.1


def recomputed(x):
    return torch.utils.checkpoint.checkpoint(lambda x: x.float().sin(), x, use_reentrant=False)


TORCH = {
    "float": (lambda x: x.float() * 0.1, lambda x: x * 0.1),
    "bfloat16": (lambda x: x.bfloat16().sin(), torch.sin),
    "to": (lambda x: x.to(torch.float16).exp(), torch.exp),
    "type": (lambda x: x.type(torch.FloatTensor).exp(), torch.exp),
    "softmax's dtype": (
        lambda x: F.softmax(x, -1, dtype=torch.float32) ** 2,
        lambda x: F.softmax(x, -1) ** 2,
    ),
    "a constant inside of a kernel": (F.hardsigmoid, lambda x: torch.clamp(x + 3, 0, 6) / 6),
    "arange over 3": (lambda x: x + torch.arange(5) / 3, lambda x: x + torch.arange(5, dtype=D) / 3),
    "arange of floats": (
        lambda x: x * torch.arange(0, 0.5, 0.1),
        lambda x: x * torch.arange(0, 0.5, 0.1, dtype=D),
    ),
    "linspace": (lambda x: x * torch.linspace(0, 1, 5), lambda x: x * torch.linspace(0, 1, 5, dtype=D)),
    "full": (lambda x: x * torch.full((5,), 0.1), lambda x: x * 0.1),
    "finfo of the input": (
        lambda x: torch.where(x > 0, x, torch.full((5,), torch.finfo(x.dtype).min)).softmax(-1) ** 2,
        lambda x: torch.where(x > 0, x, torch.finfo(D).min).softmax(-1) ** 2,
    ),
    "tensor of numbers": (lambda x: x * torch.tensor([0.1] * 5), lambda x: x * 0.1),
    "tensor in float32": (lambda x: x * torch.tensor(0.1, dtype=torch.float32), lambda x: x * 0.1),
    "frequencies": (
        lambda x: x / 10000 ** (torch.arange(0, 10, 2).float() / 10),
        lambda x: x / 10000 ** (torch.arange(0, 10, 2, dtype=D) / 10),
    ),
    "a power of integers": (
        lambda x: x * torch.pow(2.5, torch.arange(5)),
        lambda x: x * torch.pow(2.5, torch.arange(5, dtype=D)),
    ),
    "a root of integers": (
        lambda x: x * torch.sqrt(torch.arange(5) + 1),
        lambda x: x * torch.sqrt(torch.arange(5, dtype=D) + 1),
    ),
    "where of numbers": (
        lambda x: x * torch.where(x > 0, 0.1, 0.3),
        lambda x: x * torch.where(x > 0, torch.tensor(0.1, dtype=D), torch.tensor(0.3, dtype=D)),
    ),
    "a mask times a number": (lambda x: x * ((x > 0) * 0.1), lambda x: x * ((x > 0).double() * 0.1)),
    "complex": (
        lambda x: turned(x.float(), torch.arange(2) / 3),
        lambda x: turned(x, torch.arange(2, dtype=D) / 3),
    ),
    "autocast": (in_autocast, lambda x: x @ x.T),
    "layer_norm": (lambda x: F.layer_norm(x.float(), (5,)) ** 2, lambda x: F.layer_norm(x, (5,)) ** 2),
    "attention": (
        lambda x: F.scaled_dot_product_attention(*[x.float()[None, None]] * 3),
        lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3),
    ),
    "in place": (written_to, lambda x: x * 0.1),
    "one_hot": (
        lambda x: x * F.one_hot(torch.arange(4), 5).float() * 0.1,
        lambda x: x * F.one_hot(torch.arange(4), 5) * 0.1,
    ),
    "random numbers": (drawn, lambda x: drawn(x, dtype=D)),
    "bits": (
        lambda x: x * (x.float().view(torch.int32) > 0),
        lambda x: x * (x > 0),
    ),
    "TorchScript": (scripted, lambda x: x * 0.1),
    "recomputed": (recomputed, torch.sin),
    "interpolate": (
        lambda x: F.interpolate(x.float()[None, None], scale_factor=1.7, mode="bilinear"),
        lambda x: F.interpolate(x[None, None], scale_factor=1.7, mode="bilinear"),
    ),
}


def torchs(function, lift: bool):
    x = torch.tensor(X, requires_grad=True)
    with torch_float64.in_float64() if lift else torch.enable_grad():
        y = function(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
    return y.detach().numpy(), gradient.numpy()


@pytest.mark.parametrize("what", TORCH)
def test_torch_computes_in_float64(what):
    narrow, wide = TORCH[what]
    for name, got, want in zip(("y", "dy/dx"), torchs(narrow, True), torchs(wide, False), strict=True):
        assert_equal_numbers(f"{what}, {name}", got, want, EXACT)


def test_torchs_own_settings_and_other_threads_stay():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool, torch_float64.in_float64():
        elsewhere = pool.submit(lambda: torch.arange(3) / 3).result()
        assert torch.get_default_dtype() == elsewhere.dtype == torch.float32
        assert (torch.arange(3) / 3).dtype == D


# ----------------------------------------------------------------------------------------------- Flax


def with_rule():
    @jax.custom_jvp
    def f(x):
        return jnp.tanh(x)

    f.defjvp(lambda primals, tangents: (f(*primals), 3 * tangents[0]))  # no derivative of tanh's
    return f


TANH = with_rule()


def with_backward(dtype, slope=3):
    """A derivative that is not tanh's, and the type is asked for on both ways."""

    def f(x):
        return jnp.tanh(x.astype(dtype) * 0.1).astype(x.dtype)

    def back(kept, g):
        x, _ = kept
        return ((slope * jnp.sin(x.astype(dtype) * 0.1) * g.astype(dtype)).astype(x.dtype), None)

    g = jax.custom_vjp(lambda x, n: f(x) * n)
    g.defvjp(lambda x, n: (f(x) * n, (x, n)), back)
    return lambda x: g(x, 2)


def scanned(dtype):
    def run(x):
        def body(carry, row):
            carry = (carry + row).astype(dtype)
            return carry, jnp.tanh(carry) * 0.3

        return jax.lax.scan(body, jnp.zeros(5, dtype), x)[1]

    return run


def started(dtype):
    """A loop whose start is float32 and whose body says no type: it takes that of what it is given."""
    return lambda x: jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(x[i] + c), jnp.zeros(5, dtype))


def branched(dtype):
    return lambda x: jax.lax.cond(
        x[0, 0] > 0, lambda x: x.astype(dtype) * 0.1, lambda x: jnp.zeros(x.shape, dtype), x
    )


def solved(dtype):
    return lambda x: jnp.linalg.solve((x @ x.T + 4 * jnp.eye(4)).astype(dtype), x.astype(dtype))


def of_type(function):
    """The case written with float32, and the same in float64."""
    return function(F4), function(jnp.float64)


FLAX = {
    "astype": of_type(lambda t: lambda x: x.astype(t) * 0.1),
    "bfloat16": (lambda x: jax.nn.gelu(x.astype(jnp.bfloat16)), jax.nn.gelu),
    "preferred_element_type": of_type(
        lambda t: lambda x: jnp.einsum("ab,cb->ac", x, x, preferred_element_type=t)
    ),
    "an algorithm for products": (
        lambda x: jax.lax.dot(x, x.T, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32),
        lambda x: x @ x.T,
    ),
    "arange": of_type(lambda t: lambda x: x / 10000 ** (jnp.arange(5, dtype=t) / 5)),
    "jit": of_type(lambda t: jax.jit(lambda x: jnp.sin(x.astype(t) * 0.1))),
    "remat": of_type(lambda t: jax.checkpoint(lambda x: jnp.sin(x.astype(t) * 0.1))),
    "vmap": of_type(lambda t: jax.vmap(lambda x: jax.nn.silu(x.astype(t)))),
    "grad": of_type(lambda t: lambda x: jax.grad(lambda x: jnp.sin(x.astype(t)).sum())(x)),
    "scan": of_type(scanned),
    "cond": of_type(branched),
    "fori_loop": of_type(
        lambda t: lambda x: x + jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c).astype(t), jnp.ones(5, t))
    ),
    "a loop that starts in float32": of_type(started),
    "a rule of derivatives": of_type(lambda t: lambda x: TANH(x.astype(t))),
    "a rule inside of scan": of_type(
        lambda t: lambda x: jax.lax.scan(lambda c, r: (c, TANH((r + c).astype(t))), jnp.ones(5, t), x)[1]
    ),
    "a backward of its own": of_type(with_backward),
    "a backward inside of jit": of_type(lambda t: jax.jit(with_backward(t))),
    "a backward inside of vmap": of_type(lambda t: jax.vmap(with_backward(t))),
    "a backward inside of remat": of_type(lambda t: jax.checkpoint(with_backward(t))),
    "a backward inside of scan": of_type(
        lambda t: lambda x: jax.lax.scan(lambda c, r: (c, with_backward(t)(r)), 0, x)[1]
    ),
    "relu at zero": of_type(lambda t: lambda x: jax.nn.relu((x - x).astype(t)) + x),
    "scatter": of_type(lambda t: lambda x: jnp.zeros((4, 5), t).at[:, jnp.array([0, 0, 1, 2, 3])].add(x)),
    "reduce_window": of_type(
        lambda t: lambda x: jax.lax.reduce_window(x.astype(t), -jnp.inf, jax.lax.max, (2, 2), (1, 1), "VALID")
    ),
    "complex": (
        lambda x: jnp.real(jnp.exp(1j * x.astype(F4)).astype(jnp.complex64) * x),
        lambda x: jnp.real(jnp.exp(1j * x) * x),
    ),
    "fft": of_type(lambda t: lambda x: jnp.real(jnp.fft.fft(x.astype(t)))),
    "solve": of_type(solved),
    "conv": of_type(
        lambda t: (
            lambda x: jax.lax.conv_general_dilated(
                x[None, None], jnp.ones((1, 1, 2, 2), t), (1, 1), "SAME", preferred_element_type=t
            )
        )
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", FLAX)
def test_flax_computes_in_float64(what):
    narrow, wide = FLAX[what]
    with jax.enable_x64(True):
        lifted = flax_float64.in_float64(narrow)
        x = jnp.asarray(X)
        assert_equal_numbers(what, jax.jit(lifted)(x), wide(x), EXACT)
        gradients = [jax.grad(lambda x, f=f: f(x).sum())(x) for f in (lifted, wide)]
        assert_equal_numbers(f"gradient of {what}", *gradients, EXACT)


def test_random_bits_are_those_of_the_type():
    def uniform():
        return jax.random.uniform(jax.random.key(0), (3,), F4)

    with jax.enable_x64(True):
        np.testing.assert_allclose(flax_float64.in_float64(uniform)(), uniform(), rtol=1e-6)


# ----------------------------------------------------------------------------------------- the verdict


class Torch(torch.nn.Module):
    def __init__(self, after):
        super().__init__()
        self.d, self.after = torch.nn.Linear(5, 3), after

    def forward(self, x):
        return self.after(self.d(x))


class Flax(nnx.Module):
    def __init__(self, after, **kwargs):
        self.d, self.after = nnx.Linear(5, 3, rngs=nnx.Rngs(0), **kwargs), after

    def __call__(self, x):
        return self.after(self.d(x))


class Wrapped(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3, dtype=F4, name="d")(x)


def lowest(y):
    return y + torch.full((3,), torch.finfo(y.dtype).min / 1e300)


PAIRS = {
    "float before softmax": (
        Torch(lambda y: y.float().softmax(-1)),
        Flax(lambda y: jax.nn.softmax(y.astype(F4))),
    ),
    "torch's default type": (Torch(lambda y: y + torch.arange(3) / 3), Flax(lambda y: y + jnp.arange(3) / 3)),
    "finfo": (Torch(lowest), Flax(lambda y: y + jnp.finfo(y.dtype).min / 1e300)),
    "dtype of a layer inside": (Torch(lambda y: y), Wrapped()),
    "dtype of an NNX layer": (Torch(lambda y: y.bfloat16()), Flax(lambda y: y, dtype=jnp.bfloat16)),
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("what", PAIRS)
def test_float32_inside_is_no_difference(what, replicas):
    found = parity.compare(*PAIRS[what], X, replicas=replicas)
    assert found.same, f"{found}"
    assert not found.constants
    assert found.largest.value < 1e-13


class Table(nnx.Module):
    """An array that is no nnx.Variable, as people write tables."""

    def __init__(self, table):
        self.d, self.table = nnx.Linear(5, 3, rngs=nnx.Rngs(0)), nnx.data(table)

    def __call__(self, x):
        return self.d(x) + jax.tree.leaves(self.table)[0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    "held", [lambda t: t, lambda t: [t], lambda t: {"a": t}], ids=["bare", "list", "dict"]
)
@pytest.mark.parametrize("table", [jnp.arange(3.0), np.arange(3.0)], ids=["jax", "numpy"])
def test_an_array_that_is_no_variable(table, held, replicas):
    theirs, ours = Torch(lambda y: y + torch.arange(3.0)), Table(held(table))
    found = parity.compare(theirs, ours, X, replicas=replicas)
    assert found.same, f"{found}"
    assert not found.constants
    assert not parity.match(ours, theirs, example=X)
    theirs.after = lambda y: y + torch.arange(3.0).flip(0)
    assert not parity.compare(theirs, ours, X, replicas=replicas).same


def test_an_array_that_is_no_variable_was_rounded_before_the_run():
    theirs = Torch(lambda y: y + torch.arange(3, dtype=D) / 3)
    found = parity.compare(theirs, Table(jnp.arange(3, dtype=F4) / 3), X)
    assert found.same
    assert found.constants == ("Flax's table",)


class Recurrent(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.d = kind(5, 3, batch_first=True), torch.nn.Linear(3, 2)
        self.before = lambda x: x

    def forward(self, x):
        return self.d(self.rnn(self.before(x))[0])


class Cells(linen.Module):
    cell: type

    @linen.compact
    def __call__(self, x):
        return linen.Dense(2, name="d")(linen.RNN(self.cell(3))(x))


class CellsInside(linen.Module):
    cell: type

    def setup(self):
        self.layer, self.d = linen.RNN(self.cell(3)), linen.Dense(2)

    def __call__(self, x):
        return self.d(self.layer(x))


RECURRENT = {
    "LSTMCell": torch.nn.LSTM,
    "OptimizedLSTMCell": torch.nn.LSTM,
    "GRUCell": torch.nn.GRU,
    "SimpleCell": torch.nn.RNN,
}


@pytest.mark.full
@pytest.mark.sampled(7)
@pytest.mark.parametrize("where", [Cells, CellsInside])
@pytest.mark.parametrize("name", RECURRENT)
def test_linens_recurrent_layers(name, where):
    """They start from zeros in float32, and Linen makes a cell beside its RNN or inside of it."""
    theirs, ours = Recurrent(RECURRENT[name]), where(getattr(linen, name))
    x = np.random.RandomState(0).randn(2, 4, 5)
    mapping = parity.match(ours, theirs, example=x)
    assert dict(mapping) == {"rnn": f"{name}_0" if where is Cells else "layer"}
    found = parity.compare(theirs, ours, x, mapping=mapping)
    assert found.same, f"{found}"
    theirs.before = lambda x: x.flip(1)
    assert not parity.compare(theirs, ours, x, mapping=mapping).same


OPTIMIZERS = {
    "SGD": (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), optax.sgd(0.1, momentum=0.9)),
    "AdamW": (lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1), optax.adamw(0.1, weight_decay=0.1)),
}


@pytest.mark.full
@pytest.mark.sampled(7)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell"])
def test_one_bias_moves_half_as_far_as_two(name, optimizer):
    theirs, ours = Recurrent(RECURRENT[name]), Cells(getattr(linen, name))
    x = np.random.RandomState(0).randn(2, 4, 5)
    found = parity.compare(theirs, ours, x, mapping={"rnn": f"{name}_0"}, optimizer=optimizer, steps=3)
    assert found.divergence.kind == type(optimizer[0](theirs.parameters())).__name__
    (cause,) = found.divergence.causes
    assert cause.text.startswith("rnn trains bias_ih_l0 and bias_hh_l0 (it acts as if it trained their sum")


def test_optimizers_that_keep_float32():
    pair = (
        lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=1e-2),
        optax.adamw(1e-2, weight_decay=1e-2, mu_dtype=F4),
    )
    found = parity.compare(*PAIRS["float before softmax"], X, optimizer=pair, steps=3)
    assert found.same, f"{found}"


class Norms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.RMSNorm(5, eps=1e-6), torch.nn.LayerNorm(5)

    def forward(self, x):
        return self.b(self.a(x.float()).to(x.dtype))


class FlaxNorms(nnx.Module):
    def __init__(self, epsilon):
        rngs = nnx.Rngs(0)
        self.a = nnx.RMSNorm(5, epsilon=1e-6, dtype=F4, rngs=rngs)
        self.b = nnx.LayerNorm(5, epsilon=epsilon, rngs=rngs)

    def __call__(self, x):
        return self.b(self.a(x))


def test_a_bug_behind_float32_is_found_where_it_is():
    assert parity.compare(Norms(), FlaxNorms(1e-5), X).same
    found = parity.compare(Norms(), FlaxNorms(1e-3), X)
    assert found.divergence.candidate == "b"
    assert not found.divergence.others
    assert "epsilon=1e-05" in found.divergence.causes[0].text


# ----------------------------------------------------------------------------------------- as it runs


def test_as_it_runs_is_as_exact_in_the_same_type():
    found = parity.compare(Torch(lambda y: y), Flax(lambda y: y), X, level="as it runs")
    assert found.same
    assert found.environment["matmul precision"] == "default"
    assert found.environment["torch threads"] == str(torch.get_num_threads())
    assert str(found).startswith("The same as it runs: all 4 tensors.")
    assert "float32" in {row.difference.dtype for row in found.rows}


def test_as_it_runs_a_type_has_its_price():
    pair = Torch(lambda y: y), Flax(lambda y: y.astype(F4), dtype=jnp.bfloat16)
    found = parity.compare(*pair, X, level="as-it-runs")
    assert not found.same
    assert found.divergence.kind == "precision"
    assert "bfloat16 in JAX" in found.divergence.causes[0].text
    torchs, flaxs = (
        float(x) for x in re.findall(r"(\S+) from exact ones, and Flax's (\S+)", " ".join(found.notes))[0]
    )
    assert torchs < 1e-6
    assert 1e-4 < flaxs < 1e-1
    assert parity.compare(*pair, X).same, "the semantic level does not ask for types"


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_as_it_runs_models_see_the_users_settings(precision, x64):
    seen = []

    def look(y):
        seen.append((jnp.zeros(()).dtype == jnp.float64, jax.config.jax_default_matmul_precision))
        return y

    with jax.default_matmul_precision(precision), jax.enable_x64(x64):
        found = parity.compare(Torch(lambda y: y), Flax(look), X, level="as it runs")
    assert set(seen) == {(x64, precision)}
    assert found.environment["matmul precision"] == (precision or "default")


def test_as_it_runs_is_one_step_and_not_recorded(tmp_path):
    pair = Torch(lambda y: y), Flax(lambda y: y)
    both = lambda p: torch.optim.SGD(p, 0.1), optax.sgd(0.1)
    with pytest.raises(ValueError, match="level='as it runs' is about one step"):
        parity.compare(*pair, X, level="as it runs", optimizer=both, steps=2)
    with pytest.raises(ValueError, match="level='as it runs' has no fixed values"):
        parity.record(tmp_path / "r", *pair, X, level="as it runs")


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return 2 * torch.tanh(0.1 * x)

    @staticmethod
    def backward(context, g):
        return 3 * torch.sin(0.1 * context.saved_tensors[0]) * g


class TorchBackward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(5, 3)

    def forward(self, x):
        return Backward.apply(self.fc(x))


class FlaxBackward(nnx.Module):
    def __init__(self, slope):
        self.fc, self.rule = nnx.Linear(5, 3, rngs=nnx.Rngs(0)), with_backward(F4, slope)

    def __call__(self, x):
        return self.rule(self.fc(x))


def test_a_backward_of_its_own_is_compared():
    """Casts to float32 in both of its ways are no difference; another derivative is one."""
    assert parity.compare(TorchBackward(), FlaxBackward(3), X).same
    found = parity.compare(TorchBackward(), FlaxBackward(3.001), X)
    assert {row.difference.kind for row in found.different} == {
        parity.Kind.GRADIENT,
        parity.Kind.INPUT_GRADIENT,
    }
