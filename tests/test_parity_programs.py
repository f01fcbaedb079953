"""Programs of a comparison: compiled once for each shape, with few optimizations, and the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpar import parity
from jaxpar.parity._sides import flax_side

torch = pytest.importorskip("torch")

X = np.random.RandomState(0).randn(8, 3)
LEVELS = {"short": (1e9, flax_side.FEW), "long": (1.0, flax_side.MORE)}


@pytest.fixture
def options(monkeypatch):
    """The options of every compilation."""
    chosen, choose = [], flax_side._options

    def noting(lowered):
        chosen.append(choose(lowered))
        return chosen[-1]

    monkeypatch.setattr(flax_side, "_options", noting)
    return chosen


@pytest.mark.parametrize("name", LEVELS)
def test_optimizations_are_those_that_the_computations_are_worth(name, options, monkeypatch):
    long, expected = LEVELS[name]
    monkeypatch.setattr(flax_side, "LONG", long)
    product = flax_side.CompiledStep(lambda x: x @ x.T)
    np.testing.assert_allclose(product(X), X @ X.T, rtol=1e-14)
    assert options == [expected]


def test_an_option_that_xla_lacks_is_left_out(monkeypatch):
    monkeypatch.setattr(flax_side, "PLAIN", {"xla_cpu_of_another_release": False})
    np.testing.assert_allclose(flax_side.CompiledStep(lambda x: x @ x.T)(X), X @ X.T, rtol=1e-14)
    assert flax_side._is_option("xla_llvm_disable_expensive_passes")  # which every release has
    assert not flax_side._is_option("xla_cpu_of_another_release")


def test_a_program_is_compiled_once_for_each_shape_and_type(options):
    double = flax_side.CompiledStep(lambda tree: jax.tree.map(lambda x: 2 * x, tree))
    for tree in ({"a": X}, {"a": jnp.asarray(X)}, {"a": X[1:]}, {"a": X.astype(int)}, {"b": X}, {"b": X + 1}):
        returned = double(tree)
        assert all(np.array_equal(returned[name], 2 * x) for name, x in tree.items())
    assert len(options) == 4


@pytest.mark.parametrize(("replicas", "compilations"), [(1, 1), (2, 0)])
def test_a_comparison_compiles_one_program_for_all_of_its_steps(replicas, compilations, options):
    flax = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    sgd = (lambda parameters: torch.optim.SGD(parameters, 0.1), optax.sgd(0.1))
    task = {"optimizer": sgd, "steps": 3, "replicas": replicas}
    assert parity.compare(torch.nn.Linear(3, 2), flax, X, **task).same
    assert len(options) == compilations


def test_types_of_weights_change_without_a_program_for_each_shape():
    compiled = []

    def noting(event, _, **options):
        compiled.append(f"{event} {options}")

    jax.monitoring.register_event_duration_secs_listener(noting)
    try:
        tree = [np.ones((5, 7 + n), np.float32) for n in range(3)]
        wide = flax_side.cast(jax.device_put(tree), np.dtype(np.float64))
        assert [x.dtype for x in wide] == [np.float64] * 3
        assert [name for name in compiled if "convert" in name] == []
    finally:
        jax.monitoring.unregister_event_duration_listener(noting)
