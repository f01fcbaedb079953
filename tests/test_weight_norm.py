"""WeightNorm and SpectralNorm against torch's parametrizations."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxpar

torch = pytest.importorskip("torch")
from against_torch.cases.parametrizations import CASES, REFUSED  # noqa: E402
from against_torch.layers import difference, refusal  # noqa: E402

from jaxpar._rulebook import rule_for  # noqa: E402

torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case):
    difference(case)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refused(row):
    refusal(row)


def conv():
    return nnx.Conv(4, 6, (3, 2), rngs=nnx.Rngs(0))


TORCH = {"linear": lambda: torch.nn.Linear(4, 6), "conv": lambda: torch.nn.Conv2d(4, 6, (3, 2))}
BOTH = [("linear", 0), ("linear", 1), ("linear", None), ("conv", 0), ("conv", 2)]


NORMS = {
    "weight_norm": jaxpar.nn.WeightNorm,
    "spectral_norm": functools.partial(jaxpar.nn.SpectralNorm, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("kind", "dim"), BOTH)
def test_torchs_originals_there_and_back(kind, dim, norm):
    """dim is the axis of torch's weight; the kernel has another order."""
    if norm == "spectral_norm" and dim is None:
        dim = 0  # what None means there
    theirs = getattr(torch.nn.utils.parametrizations, norm)(TORCH[kind](), dim=dim)
    place = {"linear": {0: 1, 1: 0, None: None}, "conv": {0: 3, 2: 0}}[kind][dim]
    make = lambda: NORMS[norm]({"linear": layer, "conv": conv}[kind](), dim=place)  # noqa: E731
    ours = jaxpar.parity.load_torch(make(), theirs)
    back = jaxpar.parity.to_torch(ours)
    assert back.keys() == theirs.state_dict().keys()
    for name, want in theirs.state_dict().items():
        assert torch.equal(back[name], want), name


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(("kind", "dim"), BOTH)
def test_the_older_weight_norm_is_loaded(kind, dim):
    """Its weights are `weight_g` and `weight_v` of a layer of the plain class."""
    theirs = torch.nn.utils.weight_norm(TORCH[kind](), dim=dim)
    place = {"linear": {0: 1, 1: 0, None: None}, "conv": {0: 3, 2: 0}}[kind][dim]
    plain = {"linear": layer, "conv": conv}[kind]()
    ours = jaxpar.parity.load_torch(jaxpar.nn.WeightNorm(plain, dim=place), theirs)
    assert np.array_equal(np.sort(ours.scale[...], None), np.sort(theirs.weight_g.detach().numpy(), None))
    assert np.array_equal(np.moveaxis(ours.layer.kernel[...], (-1, -2), (0, 1)), theirs.weight_v.detach())


def layer():
    return nnx.Linear(4, 6, rngs=nnx.Rngs(0))


def test_the_wrapped_layer_computes_what_it_did():
    plain, x = layer(), jnp.arange(8.0).reshape(2, 4)
    np.testing.assert_allclose(jaxpar.nn.WeightNorm(layer())(x), plain(x), rtol=1e-6)
    np.testing.assert_array_equal(jaxpar.nn.WeightNorm(layer()).layer.kernel[...], plain.kernel[...])


def test_the_largest_singular_value_is_found():
    norm = jaxpar.nn.SpectralNorm(layer(), n_power_iterations=100, rngs=nnx.Rngs(1))
    norm(jnp.ones((1, 4)))
    norm.eval()
    kernel = norm(jnp.eye(4)) - norm(jnp.zeros((4, 4)))
    assert abs(np.linalg.norm(kernel, 2) - 1) < 1e-5


def test_vectors_move_in_training_only():
    norm = jaxpar.nn.SpectralNorm(layer(), rngs=nnx.Rngs(1))
    norm.layer.kernel[...] = jax.random.normal(jax.random.key(5), (4, 6), jnp.float32)
    x = jnp.ones((1, 4))
    norm.eval()
    before = norm.u[...]
    norm(x)
    np.testing.assert_array_equal(norm.u[...], before)
    norm.train()
    norm(x)
    assert not np.array_equal(norm.u[...], before)


def test_other_state_of_the_layer_stays_its_own():
    """What the inner layer changes when it is called is not changed in a copy."""

    class Counting(nnx.Linear):
        def __init__(self):
            super().__init__(4, 6, rngs=nnx.Rngs(0))
            self.calls = nnx.BatchStat(jnp.zeros((), int))

        def __call__(self, x):
            self.calls[...] += 1
            return super().__call__(x)

    norm = jaxpar.nn.WeightNorm(Counting())
    step = nnx.jit(lambda norm, x: norm(x))
    step(norm, jnp.ones((1, 4)))
    step(norm, jnp.ones((1, 4)))
    assert norm.layer.calls[...] == 2


def test_only_the_originals_are_parameters():
    norm = jaxpar.nn.WeightNorm(layer())
    norm(jnp.ones((1, 4)))
    paths = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(norm))}
    assert paths == {"scale", "layer.kernel", "layer.bias"}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["WeightNorm", "SpectralNorm"])
def test_the_rulebook_has_no_row_for_a_layer_it_does_not_know(kind):
    einsum = nnx.Einsum("ab,bc->ac", (2, 3), rngs=nnx.Rngs(0))
    extra = {"rngs": nnx.Rngs(0)} if kind == "SpectralNorm" else {}
    assert rule_for(getattr(jaxpar.nn, kind)(einsum, **extra)) is None
    attention = nnx.MultiHeadAttention(2, 4, rngs=nnx.Rngs(0))
    attention.gain = nnx.Param(jnp.ones((2, 2)))
    assert rule_for(getattr(jaxpar.nn, kind)(attention, "gain", **extra)) is None
