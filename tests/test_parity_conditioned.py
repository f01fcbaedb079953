"""Numbers whose digits cancel in torch too are no difference; a mistake of the same size still is one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from processes import outputs, ranks

import jaxpar
from jaxpar import parity
from jaxpar.parity._stochastic_arithmetic import Perturbation, _off_by_one, judged_by
from jaxpar.parity.measuring import Outcome, Policy, judge, measure

torch = pytest.importorskip("torch")

X = np.random.RandomState(0).randn(8, 5, 4, 3)


class Torch(torch.nn.Module):
    """The second norm's mean is what the first has centred: rounding, and nothing else."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.BatchNorm2d(5), torch.nn.BatchNorm2d(5)

    def forward(self, x):
        return self.second(self.first(x))


class Flax(nnx.Module):
    def __init__(self, shift=0.0):
        self.first = jaxpar.nn.BatchNorm(5, rngs=nnx.Rngs(0))
        self.second, self.shift = jaxpar.nn.BatchNorm(5, rngs=nnx.Rngs(0)), shift

    def __call__(self, x):
        return self.second(self.first(x) + self.shift)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_mean_that_is_rounding_is_no_difference(replicas):
    found = parity.compare(Torch(), Flax(), X, layout="channels_last", replicas=replicas)
    assert found.same, f"{found}"


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_mean_that_is_wrong_is_different(replicas):
    found = parity.compare(Torch(), Flax(1e-9), X, layout="channels_last", replicas=replicas)
    assert [row.difference.name for row in found.different] == ["second.mean"]


class TorchTied(torch.nn.Module):
    """Norms of two equal rows: gradients are exactly 0, and each makes roundings 316 times larger."""

    def __init__(self, depth=8):
        super().__init__()
        self.linears = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(depth))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(4) for _ in range(depth))

    def forward(self, x):
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = x + norm(linear(x))
        return x


class FlaxTied(nnx.Module):
    """The same, whose gradients of the second row are off by a factor, or round by it."""

    def __init__(self, factor, rounds, depth=8):
        rngs = nnx.Rngs(0)
        self.linears = nnx.List(nnx.Linear(4, 4, use_bias=False, rngs=rngs) for _ in range(depth))
        self.norms = nnx.List(jaxpar.nn.BatchNorm(4, rngs=rngs) for _ in range(depth))
        self.factor, self.rounds = factor, rounds

    def __call__(self, x):
        for linear, norm in zip(self.linears, self.norms, strict=True):
            y = linear(x)
            other = y * jnp.array([[1], [self.factor]])
            other = other / jnp.array([[1], [self.factor]]) if self.rounds else other
            x = x + norm(jax.lax.stop_gradient(y - other) + other)
        return x


@pytest.mark.full
@pytest.mark.parametrize(("factor", "rounds", "same"), [(3, True, True), (1 + 1e-6, False, False)])
def test_what_is_0_by_equal_rows_is_as_exact_as_roundings_that_keep_them_equal(factor, rounds, same):
    torch.manual_seed(2)  # of weights whose roundings grow less where the rows are parted
    compared = parity.compare(
        TorchTied(), FlaxTied(factor, rounds), np.repeat(X[:1, 0, :, 0], 2, 0), search=None
    )
    assert compared.same is same, f"{compared}"


class TorchGraph(torch.nn.Module):
    """Attention over edges, whose scores have no gradient where every node sends to itself alone."""

    def __init__(self):
        super().__init__()
        self.value = torch.nn.Linear(4, 3)
        self.sources, self.targets = (torch.nn.Parameter(torch.randn(3)) for _ in range(2))

    def forward(self, x, ends):
        h = self.value(x)
        s = (h @ self.sources)[ends[0]] + (h @ self.targets)[ends[1]]
        w = (s - s.max()).exp()
        share = w / torch.zeros(len(x), dtype=w.dtype).index_add(0, ends[1], w)[ends[1]]
        return torch.zeros_like(h).index_add(0, ends[1], share[:, None] * h[ends[0]])


class FlaxGraph(nnx.Module):
    def __init__(self, wrong):
        self.value = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        self.sources, self.targets = (nnx.Param(jnp.zeros(3)) for _ in range(2))
        self.wrong = wrong

    def __call__(self, x, ends):
        h = self.value(x)
        s = (h @ self.sources[...])[ends[0]] + (h @ self.targets[...])[ends[1]]
        w = jnp.exp(s - s.max())
        share = w / jnp.zeros(len(x)).at[ends[1]].add(w)[ends[1]]
        share += self.wrong * (w - jax.lax.stop_gradient(w))
        return jnp.zeros_like(h).at[ends[1]].add(share[:, None] * h[ends[0]])


@pytest.mark.full
@pytest.mark.parametrize(("wrong", "same"), [(0.0, True), (1e-12, False)])
def test_a_gradient_that_is_0_in_a_later_step_is_noise(wrong, same):
    torch.manual_seed(1)
    random = np.random.RandomState(1)
    x, ends = (
        random.randn(6, 4),
        np.concatenate([random.randint(0, 6, (2, 10)), np.tile(np.arange(6), (2, 1))], 1),
    )
    ties = np.clip(np.round(2 * x), -2, 2)[[0, 0, 2, 3, 4, 5]] / 2
    sgd = (lambda parameters: torch.optim.SGD(parameters, 0.1), optax.sgd(0.1))

    def batch(step):
        return (x, ends) if step == 1 else (ties, ends[[0, 0]])

    compared = parity.compare(TorchGraph(), FlaxGraph(wrong), batch, steps=2, optimizer=sgd, search=None)
    assert compared.same is same, f"{compared}"


def test_outputs_keep_their_bound():
    """A difference of 1e-5 in outputs stays one, however little of them float64 can resolve."""

    class Cancelling(torch.nn.Module):
        def forward(self, x):
            return (x + 1e12) - 1e12

    class Other(nnx.Module):
        def __call__(self, x):
            return jnp.round(((x + 1e12) - 1e12) * 2**13) / 2**13 * (1 + 1e-5)

    found = parity.compare(Cancelling(), Other(), X)
    assert parity.Kind.OUTPUT in [row.difference.kind for row in found.different]


Y = np.random.RandomState(529).randn(4, 2)


def norm_of_a_norm(eps=1e-3):
    """Over two features: the sign is all that is left of them, and the gradient is what cancels."""
    theirs = torch.nn.Sequential(torch.nn.LayerNorm(2, 1e-5, False), torch.nn.LayerNorm(2, 1e-3, False))
    ours = nnx.Sequential(
        jaxpar.nn.LayerNorm(2, 1e-5, elementwise_affine=False, rngs=nnx.Rngs(0)),
        jaxpar.nn.LayerNorm(2, eps, elementwise_affine=False, rngs=nnx.Rngs(0)),
    )
    return parity.compare(theirs, ours, Y, replicas=4, training=False)


@pytest.mark.slow
def test_what_the_compiler_rounds_is_no_difference():
    """Multiply-adds of the processor, where it has them. In a process of its own: the tests' compiler
    does not optimise."""
    script = """
        import sys
        sys.path.insert(0, "tests")
        import jaxpar
        jaxpar.virtual_devices(4)
        from test_parity_conditioned import norm_of_a_norm
        found = norm_of_a_norm()
        print(found)
        sys.exit(not found.same)
    """
    outputs(ranks(1, script, env={"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}))


@pytest.mark.parametrize("more", [1e-6, 1e-9])
def test_a_mistake_is_in_the_program_that_is_not_optimised_too(more):
    found = norm_of_a_norm(1e-3 * (1 + more))
    assert not found.same
    assert "compiler" not in f"{found}"


@pytest.mark.parametrize(
    ("kind", "size", "moved", "outcome"),
    [
        (parity.Kind.GRADIENT, 9e-10, 1e-10, Outcome.NOISE),  # of the bias of a norm over one feature
        (parity.Kind.GRADIENT, 9e-10, 1e-11, Outcome.DIFFERENT),
        (parity.Kind.STATE, 9e-10, 1e-10, Outcome.NOISE),
        (parity.Kind.OUTPUT, 9e-10, 1e-10, Outcome.DIFFERENT),
        (parity.Kind.LOSS, 9e-10, 1e-10, Outcome.DIFFERENT),
        (parity.Kind.GRADIENT, 9e-10, 0.0, Outcome.DIFFERENT),
    ],
)
def test_what_is_exactly_0_has_a_bound_of_the_size_of_its_rounding(kind, size, moved, outcome):
    zero, ours = {"x": np.zeros(3)}, {"x": np.array([0.0, size, 0.0])}
    (row,) = judge(measure(ours, zero, kind, 1), Policy())
    assert row.outcome is Outcome.DIFFERENT
    assert judged_by(row, {(kind, "x", 1): Perturbation(np.inf if moved else 0.0, moved)}).outcome is outcome


class Chaotic(torch.nn.Module):
    """Each of the 13 layers makes rounding about eight times larger."""

    def __init__(self):
        super().__init__()
        self.linears = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(13))
        for linear in self.linears:
            torch.nn.init.normal_(linear.weight, std=3.0)

    def forward(self, x):
        for linear in self.linears:
            x = torch.sin(linear(x))
        return x


class FlaxChaotic(nnx.Module):
    def __init__(self, shift):
        self.linears = nnx.List(nnx.Linear(16, 16, rngs=nnx.Rngs(0)) for _ in range(13))
        self.shift = shift

    def __call__(self, x):
        for linear in self.linears:
            x = jnp.sin(linear(x) + self.shift)
        return x


@pytest.mark.full
@pytest.mark.parametrize(("shift", "same"), [(0.0, True), (1e-9, False)])
def test_chaos_is_no_difference_if_every_layer_is_the_same(shift, same):
    torch.manual_seed(0)
    x = np.random.RandomState(0).randn(3, 16).astype(np.float32)
    compared = parity.compare(Chaotic(), FlaxChaotic(shift), x, search=None)
    assert compared.same is same, f"{compared}"
    (output,) = [row for row in compared.rows if row.difference.kind is parity.Kind.OUTPUT]
    assert output.difference.relative > 1e-6
    assert ("every layer is the same" in output.reason) is same


@pytest.mark.parametrize(
    ("mean", "epsilon", "same"), [(1e4, 1e-6, True), (1e4, 1.1e-6, False), (1e3, 1e-5, False)]
)
def test_a_variance_that_cancels_is_no_difference(mean, epsilon, same):
    """nnx's LayerNorm subtracts the square of the mean from the mean of the squares."""
    x = (mean + np.random.RandomState(0).randn(4, 64)).astype(np.float32)
    flax = nnx.LayerNorm(64, epsilon=epsilon, rngs=nnx.Rngs(0))
    compared = parity.compare(torch.nn.LayerNorm(64, eps=1e-6), flax, x, search=None)
    assert compared.same is same, f"{compared}"
    assert all(
        row.difference.relative > 1e-10 for row in compared.rows if row.difference.kind is parity.Kind.OUTPUT
    )


class TorchCentred(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(64))

    def forward(self, x, speed):
        x = x - x.mean(1, keepdim=True)
        return torch.sin(speed * self.scale * x / x.square().mean().sqrt())


class FlaxCentred(nnx.Module):
    def __init__(self, factor):
        self.scale, self.factor = nnx.Param(jnp.ones(64)), factor

    def __call__(self, x, speed):
        x = x - x.mean(1, keepdims=True) * self.factor
        return jnp.sin(speed * self.scale[...] * x / jnp.sqrt(jnp.square(x).mean()))


@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (1 + 1e-12, False)])
def test_digits_that_one_step_loses_are_no_difference_in_the_next(factor, same):
    """Four digits cancel in the first step, and the second makes that rounding a thousand times larger."""
    x = np.random.RandomState(0).randn(4, 64)
    batches = {1: (1 + 1e-4 * x, np.array(1.0)), 2: (x, np.array(1e3))}
    sgd = (lambda parameters: torch.optim.SGD(parameters, 1.0), optax.sgd(1.0))
    options = {"steps": 2, "optimizer": sgd, "search": None}
    compared = parity.compare(TorchCentred(), FlaxCentred(factor), batches.__getitem__, **options)
    assert compared.same is same, f"{compared}"
    assert any("earlier steps" in row.reason for row in compared.rows)


@pytest.mark.parametrize("shape", [(), (3,), (2, 1)])
def test_numbers_move_by_a_unit_and_keep_their_shape(shape):
    x = np.full(shape, 0.1)
    moved = _off_by_one(x, np.uint64(1))
    assert moved.shape == shape
    assert np.all(moved != x)
    np.testing.assert_allclose(moved, x, rtol=2.0**-51)
