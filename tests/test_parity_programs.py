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
SGD = (lambda parameters: torch.optim.SGD(parameters, 0.1), optax.sgd(0.1))
LEVELS = {"short": (1e9, flax_side.FEW), "long": (1.0, flax_side.MORE)}


@pytest.fixture
def options(monkeypatch):
    """The options of every compilation."""
    chosen, choose = [], flax_side.compiler_options

    def noting(is_long):
        chosen.append(choose(is_long))
        return chosen[-1]

    monkeypatch.setattr(flax_side, "compiler_options", noting)
    return chosen


@pytest.mark.parametrize("name", LEVELS)
def test_optimizations_are_those_that_the_computations_are_worth(name, options, monkeypatch):
    long, expected = LEVELS[name]
    monkeypatch.setattr(flax_side, "LONG", long)
    product = flax_side.CompiledStep(lambda x: x @ x.T)
    np.testing.assert_allclose(product(X), X @ X.T, rtol=1e-14)
    plain = flax_side.PLAIN if flax_side._is_option(*flax_side.PLAIN) else {}
    assert options == [expected | plain]


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
    task = {"optimizer": SGD, "steps": 3, "replicas": replicas}
    assert parity.compare(torch.nn.Linear(3, 2), flax, X, **task).same
    assert len(options) == compilations


@pytest.mark.parametrize("steps", [{}, {"steps": 3, "optimizer": SGD}])
def test_a_model_is_traced_once_for_the_shapes_of_its_outputs_and_for_its_steps(steps):
    calls = []

    class Net(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

        def __call__(self, x):
            calls.append(x)
            return jnp.maximum(self.linear(x), 0)

    torchs = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    compared = parity.compare(torchs, Net(), X, mapping={"0": "linear"}, **steps)
    assert compared.same
    assert not any("takes one side" in note for note in compared.notes)
    assert len(calls) == 1


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
