"""Initial values: a written file starts where torch starts, from the seed alone."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from porting import initial

from jaxpar import errors, parity
from jaxpar.parity._port import proof
from jaxpar.random import initialise

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*now deprecated:FutureWarning")]
TOKENS = torch.arange(10).view(2, 5)
X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt") / "gpt_flax.py"
    port = parity.port(initial.GPT, TOKENS, out=path)
    return SimpleNamespace(port=port, file=proof.imported(path))


def seeded(make, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def largest_difference(net, module):
    ours = parity.to_torch(module, like=net, numpy=True)
    return max(
        abs(ours[name] - x.detach().numpy()).max() / (abs(x).max().item() or 1)
        for name, x in net.named_parameters()
    )


def test_the_file_starts_with_torchs_numbers(gpt):
    assert (gpt.port.status, gpt.port.build) == (0, "initial_values(GPT(rngs=rngs), 0)"), gpt.port.comparison
    assert gpt.port.notes == ()
    assert largest_difference(seeded(initial.GPT, 0), gpt.port.module) < 1e-5
    assert "for i in range(3)" in gpt.port.source


def test_another_seed_is_another_start(gpt):
    module = gpt.file.initial_values(gpt.file.GPT(rngs=nnx.Rngs(0)), 3)
    assert largest_difference(seeded(initial.GPT, 3), module) < 1e-5
    assert largest_difference(seeded(initial.GPT, 4), module) > 0.1, "planted"


def test_training_from_the_seed_goes_as_torchs(gpt):
    net, module = seeded(initial.GPT, 1), gpt.file.initial_values(gpt.file.GPT(rngs=nnx.Rngs(0)), 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    tokens, targets = jnp.asarray(TOKENS.numpy()), (TOKENS + 1) % 11

    @nnx.jit
    def step(module):
        def loss(module):
            scores = module(tokens).reshape(-1, 11)
            return -jnp.take_along_axis(
                jax.nn.log_softmax(scores), jnp.asarray(targets.numpy()).reshape(-1, 1), 1
            ).mean()

        value, gradients = nnx.value_and_grad(loss)(module)
        nnx.update(module, jax.tree.map(lambda x, g: x - 0.5 * g, nnx.state(module, nnx.Param), gradients))
        return value

    theirs, ours = [], []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(TOKENS).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
        ours.append(float(step(module)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert theirs[-1] < theirs[0] - 0.01


def test_rngs_draw_the_same_distributions(gpt):
    module = gpt.file.initial_values(gpt.file.GPT(depth=3, rngs=nnx.Rngs(5)), nnx.Rngs(5))
    net = seeded(initial.GPT, 0)
    ours = parity.to_torch(module, like=net, numpy=True)
    assert largest_difference(net, module) > 0.1
    for name, x in net.named_parameters():
        spread = x.std().item()
        assert abs(ours[name].std() - spread) <= 0.35 * spread, name
        assert spread or np.array_equal(ours[name], x.detach().numpy()), name


def test_fills_between_layers_keep_their_place(tmp_path):
    port = parity.port(initial.Interleaved, X, out=tmp_path / "interleaved_flax.py")
    assert (port.status, port.notes) == (0, ()), port.comparison or port.notes
    assert '("second.layer", "reset_parameters")' in port.source
    assert largest_difference(seeded(initial.Interleaved, 0), port.module) < 1e-5


def test_the_start_can_be_left_out_or_drawn_by_flax(monkeypatch):
    monkeypatch.setattr(importlib.import_module("jaxpar.parity._port.port"), "prove", lambda *_: [])
    none, flax = (parity.port(initial.Filled, X, init=init) for init in ("none", "flax"))
    assert none.build == "Filled(rngs=rngs)"
    assert "initial values are not ported" in none.notes[0]
    assert flax.build == "initial_values(Filled(rngs=rngs), rngs)"
    with pytest.raises(errors.PortError, match="init='keras'; choose one of torch, flax, none"):
        parity.port(initial.Filled, X, init="keras")


def test_rows_of_tensors_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match=r"no array is named 'scale'; those of '' are "):
        initialise(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), [("scale", "zeros_")], 0)


class Bounded(torch.nn.Module):
    """A start within a bound that NumPy computes."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        bound = np.sqrt(6 / 3)
        with torch.no_grad():
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, x):
        return self.linear(x)


def test_bounds_that_numpy_computes_are_numbers():
    port = parity.port(Bounded, X[0, :, :3])
    assert port.status == 0, port.failure
    assert '"uniform_", -1.4142135623730951, 1.4142135623730951)' in port.source
    assert largest_difference(seeded(Bounded, 0), port.module) < 1e-5
