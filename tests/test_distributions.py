"""jaxpar.distributions beside torch.distributions: numbers, gradients, draws, and what is refused."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers

from jaxpar import distributions, errors
from jaxpar.random import Generator

torch = pytest.importorskip("torch")

EPS = np.finfo(np.float64).eps
BOUND = torch.tensor(EPS, requires_grad=True)
BOUND.clamp(min=EPS).backward()
# The gradient at the bound itself passes in torch 2.13 and here; torch 2.15 stops it.
BOUNDS = [EPS, 1 - EPS] if BOUND.grad else [2 * EPS, 1 - 2 * EPS]
EDGES = [0.0, EPS / 2, BOUNDS[0], 0.3, 0.5, BOUNDS[1], 1.0]
POINTS = np.linspace(-3.0, 3.0, 6).reshape(2, 3)
WEIGHTS = np.array([[1.0, 2.0, 0.5], [3.0, 0.0, 1.0], [EPS, 1.0, 1.0]])
CASES = {
    "categorical, probs": ("Categorical", {"probs": WEIGHTS}),
    "categorical, probs of one": ("Categorical", {"probs": WEIGHTS[0]}),
    "categorical, logits": ("Categorical", {"logits": POINTS}),
    "categorical, logits of zero": ("Categorical", {"logits": np.array([0.0, -np.inf, 1.0])}),
    "bernoulli, probs": ("Bernoulli", {"probs": np.array(EDGES)}),
    "bernoulli, logits": ("Bernoulli", {"logits": np.array([-800.0, -25.0, 0.0, 0.5, 19.9, 20.1, 40.0])}),
    "normal": ("Normal", {"loc": POINTS, "scale": np.array([0.1, 1.0, 30.0])}),
}
OTHERS = {
    "Categorical": {"probs": np.array([0.2, 0.0, 0.8])},
    "Bernoulli": {"probs": np.array(EDGES[::-1])},
    "Normal": {"loc": np.float64(0.5), "scale": np.float64(2.0)},
}
PROPERTIES = ("mean", "variance", "stddev", "mode", "probs", "logits", "loc", "scale")


def values(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values to score, of two draws of the batch."""
    if kind == "Normal":
        return np.linspace(-4.0, 4.0, 2 * int(np.prod(shape))).reshape(2, *shape)
    draws = np.arange(2 * int(np.prod(shape))).reshape(2, *shape) % (3 if kind == "Categorical" else 2)
    return draws if kind == "Categorical" else draws.astype(np.float64)


def numbers(module, kind: str, one: dict, other: dict, score) -> dict:
    """Everything that a distribution computes, by name."""
    p, q = (getattr(module, kind)(**parameters) for parameters in (one, other))
    computed = {name: getattr(p, name) for name in PROPERTIES if hasattr(p, name)}
    computed |= {"log_prob": p.log_prob(score), "entropy": p.entropy()}
    computed |= {"there": module.kl_divergence(p, q), "back": module.kl_divergence(q, p)}
    if kind == "Normal":
        computed |= {"cdf": p.cdf(score), "icdf": p.icdf(abs(score) / 5 + 0.05)}
    else:
        computed["support"] = p.enumerate_support()
        computed["narrow"] = p.enumerate_support(False)
    grown = p.expand((2, *p.batch_shape))
    return computed | {"expanded": grown.mean, "expanded score": grown.log_prob(score)}


def both(case: str, dtype=np.float64) -> tuple[dict, dict, dict, dict]:
    """Numbers and gradients, ours and torch's."""
    kind, parameters = CASES[case]
    parameters = {name: np.asarray(x, dtype) for name, x in parameters.items()}
    other = {name: np.asarray(x, dtype) for name, x in OTHERS[kind].items()}
    theirs = {name: torch.tensor(x, requires_grad=True) for name, x in parameters.items()}
    shape = tuple(getattr(torch.distributions, kind)(**theirs).batch_shape)
    score = values(kind, shape)
    score = score if kind == "Categorical" else score.astype(dtype)
    their_other = {name: torch.tensor(x) for name, x in other.items()}
    want = numbers(torch.distributions, kind, theirs, their_other, torch.tensor(score))

    def ours(given):
        return numbers(distributions, kind, given, other, jnp.asarray(score))

    def slope(name):
        # One at a time: a slope of another that is infinite times no change is NaN.
        return jax.grad(lambda given: ours(given)[name].sum())

    differentiable = [name for name, x in want.items() if x.requires_grad]
    got, slopes = jax.jit(lambda given: (ours(given), {n: slope(n)(given) for n in differentiable}))(
        parameters
    )
    want_slopes = {}
    for name in differentiable:
        settings = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        computed = torch.autograd.grad(want[name].sum(), list(theirs.values()), **settings)
        want_slopes |= {(name, p): x.numpy() for p, x in zip(theirs, computed, strict=True)}
    got_slopes = {key: slopes[key[0]][key[1]] for key in want_slopes}
    return got, {name: x.detach().numpy() for name, x in want.items()}, got_slopes, want_slopes


def compare(case: str, dtype=np.float64, tolerance: float = 1e-10) -> None:
    got, want, got_slopes, want_slopes = both(case, dtype)
    assert got.keys() == want.keys()
    for name, x in want.items():
        integers = x.dtype == np.int64
        assert_equal_numbers(name, np.asarray(got[name], np.int64 if integers else None), x, tolerance)
    for (name, parameter), x in want_slopes.items():
        assert_equal_numbers(f"d {name}/d {parameter}", got_slopes[name, parameter], x, tolerance)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_numbers_and_gradients_are_torchs(case):
    compare(case)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_float32_without_x64(case):
    with jax.enable_x64(False):
        compare(case, np.float32, 3e-5)


FAULTS = {
    "categorical, probs": ("_discrete._clamped", lambda p: jnp.clip(p, 1e-12, 1)),
    "bernoulli, probs": ("_discrete._clamped", lambda p: jnp.clip(p, 8 * EPS, 1 - 8 * EPS)),
    "bernoulli, logits": ("_kl._softplus", jax.nn.softplus),
    "categorical, logits": ("_kl._unless_zero", lambda p, q, term: term),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_planted_fault_is_found(case, monkeypatch):
    place, fault = FAULTS[case]
    monkeypatch.setattr(f"jaxpar.distributions.{place}", fault)
    with pytest.raises(AssertionError, match=r"relative difference|not finite"):
        compare(case)


# --------------------------------------------------------------------------------------------- draws

SHAPES = [(), (1,), (5,), (2, 3), (40,)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_draws_are_torchs(case, dtype):
    kind, parameters = CASES[case]
    parameters = {name: np.asarray(x, dtype) for name, x in parameters.items()}
    ours = getattr(distributions, kind)(**parameters)
    theirs = getattr(torch.distributions, kind)(**{name: torch.tensor(x) for name, x in parameters.items()})
    generator = Generator(3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for shape in SHAPES:
            methods = ["sample", "rsample"] if kind == "Normal" else ["sample"]
            for method in methods:
                want = getattr(theirs, method)(shape).numpy()
                got = np.asarray(getattr(ours, method)(shape, generator=generator))
                assert got.dtype == want.dtype
                assert np.array_equal(got, want), (method, shape)
        assert np.array_equal(generator.get_state(), torch.get_rng_state().numpy())
        # The planted fault: a draw more or less.
        assert not np.array_equal(ours.sample((40,), generator=Generator(3)), theirs.sample((40,)).numpy())


def test_axes_of_the_batch_are_one_event():
    def independent(module, own, scale):
        loc = own(np.stack([POINTS, POINTS + 1]))
        return module.Independent(module.Normal(loc, own(scale)), 2)

    def computed(module, own):
        p, q = (independent(module, own, scale) for scale in (np.array([0.1, 1.0, 30.0]), np.float64(2.0)))
        score = own(np.linspace(-1, 1, 24).reshape(2, 2, 2, 3))
        numbers = {name: getattr(p, name) for name in ("mean", "mode", "variance", "stddev")}
        numbers |= {"log_prob": p.log_prob(score), "entropy": p.entropy(), "kl": module.kl_divergence(p, q)}
        wider = p.expand((5, 2))
        shapes = [(*x.batch_shape, 0, *x.event_shape) for x in (p, wider)]
        return numbers, shapes, p.has_rsample

    torchs = computed(torch.distributions, torch.as_tensor)
    jaxs = computed(distributions, jnp.asarray)
    assert jaxs[1:] == torchs[1:]
    for name, x in torchs[0].items():
        assert_equal_numbers(name, jaxs[0][name], x.numpy())
    p = independent(distributions, jnp.asarray, np.float64(2.0))
    torch.manual_seed(0)
    drawn = independent(torch.distributions, torch.as_tensor, np.float64(2.0)).rsample((3,))
    for draw in (p.sample, p.rsample):
        np.testing.assert_array_equal(draw((3,), generator=Generator(0)), drawn.numpy())
    assert jax.jit(lambda p: p.entropy())(p).shape == (2,)
    with pytest.raises(ValueError, match="actual 4 vs 3"):
        distributions.Independent(p.base_dist, 4)
    with pytest.raises(NotImplementedError, match="No KL"):
        distributions.kl_divergence(p, distributions.Independent(p.base_dist, 1))


def test_reparameterised_draws_have_the_gradient():
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        (torch.distributions.Normal(torch.zeros(2).double(), scale).rsample((3,)) ** 2).sum().backward()

    def loss(scale, method):
        drawn = getattr(distributions.Normal(jnp.zeros(2), scale), method)((3,), generator=Generator(0))
        return (drawn**2).sum()

    numbers = jnp.array([1.0, 2.0])
    assert_equal_numbers("slope", jax.grad(loss)(numbers, "rsample"), scale.grad.numpy())
    assert not jax.grad(loss)(numbers, "sample").any()


@pytest.mark.parametrize("case", CASES)
def test_draws_with_a_key_have_the_distribution(case):
    kind, parameters = CASES[case]

    @jax.jit
    def draw(key):
        p = getattr(distributions, kind)(**parameters)
        return p, p.sample((4000,), key=key)

    p, drawn = draw(jax.random.key(0))  # a distribution leaves a compiled function
    assert drawn.shape == (4000, *p.batch_shape)
    if kind == "Categorical":
        shares = (drawn[..., None] == jnp.arange(3)).mean(0)
        assert abs(shares - p.probs).max() < 0.03
    else:
        assert drawn.dtype == np.float64
        assert (abs(drawn.mean(0) - p.mean) <= 5 * p.stddev / 4000**0.5 + 1e-12).all()
        assert kind == "Bernoulli" or (abs(drawn.std(0) - p.stddev) <= 0.05 * p.stddev).all()
    assert not np.array_equal(drawn, draw(jax.random.key(1))[1])


@pytest.mark.full
def test_vmap_over_distributions_and_their_parameters():
    p = distributions.Categorical(probs=WEIGHTS)
    want = p.log_prob(jnp.array([0, 2, 1]))
    assert_equal_numbers("distributions", jax.vmap(lambda p, v: p.log_prob(v))(p, jnp.array([0, 2, 1])), want)
    parameters = jax.vmap(lambda w, v: distributions.Categorical(probs=w).log_prob(v))
    assert_equal_numbers("parameters", parameters(jnp.asarray(WEIGHTS), jnp.array([0, 2, 1])), want)


# ------------------------------------------------------------------------------------------- refused

ARRAYS = {
    "both": ("Categorical", {"probs": [1.0], "logits": [1.0]}, None),
    "neither": ("Bernoulli", {}, None),
    "no axis": ("Categorical", {"probs": 1.0}, None),
    "no axis of logits": ("Categorical", {"logits": 1.0}, None),
    "negative": ("Categorical", {"probs": [2.0, -1.0]}, None),
    "NaN logits": ("Categorical", {"logits": [0.0, np.nan]}, None),
    "above 1": ("Bernoulli", {"probs": [0.5, 1.5]}, None),
    "below 0": ("Bernoulli", {"probs": [-0.1, 0.5]}, None),
    "NaN odds": ("Bernoulli", {"logits": [np.nan, 0.0]}, None),
    "no scale": ("Normal", {"loc": [0.0, 1.0], "scale": [1.0, 0.0]}, None),
    "NaN mean": ("Normal", {"loc": np.nan, "scale": 1.0}, None),
    "no class": ("Categorical", {"probs": [1.0, 1.0]}, [0, 2]),
    "a negative class": ("Categorical", {"logits": [1.0, 1.0]}, [-1, 1]),
    "half a class": ("Categorical", {"logits": [1.0, 1.0]}, [0.5]),
    "two": ("Bernoulli", {"probs": [0.5, 0.5]}, [1.0, 2.0]),
    "NaN": ("Normal", {"loc": [0.0], "scale": [1.0]}, [np.nan]),
    "another batch": ("Normal", {"loc": [0.0, 0.0], "scale": [1.0, 1.0]}, [0.0, 0.0, 0.0]),
}


def refused(module, array, case: str) -> str:
    kind, parameters, value = ARRAYS[case]
    given = {name: array(x) for name, x in parameters.items()}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        getattr(module, kind)(**given).log_prob(array(value))
    assert caught.type is ValueError
    return str(caught.value).partition("\n")[0]


@pytest.mark.parametrize("case", ARRAYS)
def test_refused_as_torch_refuses(case):
    want = refused(torch.distributions, lambda x: torch.tensor(x, dtype=torch.float64), case)
    want = want.replace("Tensor of", "Array of").replace("torch.Size([])", "()")
    want = re.sub(r"torch\.Size\(\[(\d+)\]\)", r"(\1,)", want)
    want = re.sub(r"tensor\(([^,()]+)(, [^()]*)?\)", r"\1", want)
    got = refused(distributions, lambda x: np.asarray(x, np.float64), case)
    assert got == want


def test_nothing_is_checked_without_validate_args_and_under_jit():
    p = distributions.Categorical(probs=np.array([2.0, -1.0]), validate_args=False)
    assert np.isnan(p.log_prob(jnp.array([2, -1, 5]))).all()
    bad = jax.jit(lambda p: distributions.Normal(0.0, p).log_prob(jnp.array(1.0)))(-1.0)
    assert np.isnan(bad)
    assert (
        distributions.Categorical(probs=np.ones(2), validate_args=False).expand((3,))._validate_args is False
    )


CALLS = {
    "no source": (lambda p: p.sample(), ValueError, r"Normal\.sample: give one of generator"),
    "two sources": (
        lambda p: p.rsample(generator=Generator(0), key=jax.random.key(0)),
        ValueError,
        r"Normal\.rsample: give one of generator",
    ),
    "torch's generator": (
        lambda p: p.sample(generator=torch.Generator()),
        TypeError,
        r"must be a jaxpar\.random\.Generator, not Generator",
    ),
    "under jit": (
        lambda p: jax.jit(lambda: p.rsample(generator=Generator(0)))(),
        errors.StagedError,
        r"Normal\.rsample: a generator draws on the host.*key=",
    ),
    "under vmap": (
        lambda p: jax.vmap(lambda m: distributions.Normal(m, 1.0).sample(generator=Generator(0)))(p.loc),
        errors.StagedError,
        r"Normal\.sample: a generator draws on the host",
    ),
    "a list": (lambda p: p.log_prob([0.0]), ValueError, "must be an array"),
    "two classes": (
        lambda p: distributions.kl_divergence(p, distributions.Bernoulli(0.5)),
        NotImplementedError,
        r"No KL\(p \|\| q\) is implemented for p type Normal and q type Bernoulli",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_refused_here(case):
    call, error, text = CALLS[case]
    with pytest.raises(error, match=text):
        call(distributions.Normal(jnp.zeros(2), 1.0))


def test_python_numbers_take_the_dtype_of_the_arrays():
    assert distributions.Normal(jnp.zeros(2, jnp.float32), 2.0).scale.dtype == jnp.float32
    assert distributions.Normal(0, jnp.ones(2, jnp.float32)).loc.dtype == jnp.float32
    assert distributions.Bernoulli(1).probs.dtype == jnp.float64
    assert distributions.Normal(0.0, 1.0).batch_shape == distributions.Normal(0.0, 1.0).event_shape == ()


def test_integer_arrays_are_parameters_of_floating_point():
    loc = jnp.arange(3)
    normal = distributions.Normal(loc, jnp.full(3, 2))
    assert (normal.mean.dtype, normal.stddev.dtype) == (jnp.result_type(float),) * 2
    value = jnp.array(0.5)
    expected = distributions.Normal(loc.astype(float), 2.0).log_prob(value)
    np.testing.assert_array_equal(normal.log_prob(value), expected)
