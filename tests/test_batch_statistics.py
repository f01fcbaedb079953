"""A wrapper warns once where Flax's BatchNorm takes each replica's statistics in a loop of the user's own."""

from __future__ import annotations

import warnings
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar._parallel import batch_statistics

X = np.random.RandomState(0).randn(8, 3).astype(np.float32)
WARNS = "BatchNorm takes the statistics of each of 4 replicas' own rows"
WRAPPERS = {"DataParallel": jaxpar.DataParallel, "DistributedDataParallel": jaxpar.DistributedDataParallel}


@pytest.fixture(autouse=True)
def _forgets(monkeypatch):
    monkeypatch.setattr(batch_statistics, "_warned", set())


def loss_fn(net, x):
    return (net(x) ** 2).mean()


def value_and_grad(net, x):
    if isinstance(net, jaxpar.DistributedDataParallel):
        return net.value_and_grad(loss_fn)(x)
    return nnx.value_and_grad(loss_fn)(net, x)


class Normed(nn.Module):
    of_call: bool | None = None
    running: bool | None = False
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x):
        norm = nn.BatchNorm(self.running, axis_name=self.axis_name)
        return norm(nn.Dense(3)(x), use_running_average=self.of_call)


def linen_step(wrapper, module, mutable=("batch_stats",), **options):
    net = wrapper(module, [0, 1, 2, 3], **options)
    variables = net.init(jax.random.key(0), X)

    @jax.jit
    def step(variables):
        if isinstance(net, jaxpar.DistributedDataParallel):
            return net.value_and_grad(loss_fn, mutable=list(mutable))(variables, X)[1]
        return net.apply(variables, X, mutable=list(mutable))[0]

    return lambda: step(variables)


def nnx_step(wrapper, layer, transform=nnx.jit):
    net = wrapper(nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), layer), [0, 1, 2, 3])
    step = transform(value_and_grad)
    return lambda: step(net, X)


def flax_norm(**options):
    return nnx.BatchNorm(3, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", ["NNX", "Linen"])
def test_a_loop_of_the_users_own_warns_once(kind, wrapper):
    def step():
        if kind == "NNX":
            return nnx_step(WRAPPERS[wrapper], flax_norm())
        return linen_step(WRAPPERS[wrapper], Normed())

    with pytest.warns(UserWarning, match=f"^{wrapper}: {WARNS}.*convert_sync_batchnorm"):
        step()()
    step()()  # a second program of the same process; another warning would be an error


QUIET = {
    "outside of jit": lambda: nnx_step(jaxpar.DataParallel, flax_norm(), lambda f: f),
    "DDP outside of jit": lambda: nnx_step(jaxpar.DistributedDataParallel, flax_norm(), lambda f: f),
    "torch's layer": lambda: nnx_step(jaxpar.DataParallel, jaxpar.nn.BatchNorm(3)),
    "synchronised": lambda: nnx_step(jaxpar.DataParallel, jaxpar.convert_sync_batchnorm(flax_norm())),
    "an axis name": lambda: nnx_step(jaxpar.DataParallel, flax_norm(axis_name="replica")),
    "in evaluation": lambda: nnx_step(jaxpar.DataParallel, flax_norm(use_running_average=True)),
    "no BatchNorm": lambda: nnx_step(jaxpar.DataParallel, nnx.LayerNorm(3, rngs=nnx.Rngs(0))),
    "train_step, DataParallel": lambda: train_step(jaxpar.DataParallel),
    "train_step, DDP": lambda: train_step(jaxpar.DistributedDataParallel),
    "Linen: synchronised": lambda: linen_step(jaxpar.DataParallel, jaxpar.convert_sync_batchnorm(Normed())),
    "Linen: an axis name": lambda: linen_step(jaxpar.DataParallel, Normed(axis_name="replica")),
    "Linen: in evaluation": lambda: linen_step(jaxpar.DataParallel, Normed(running=True)),
    "Linen: in evaluation, by the call": lambda: linen_step(
        jaxpar.DataParallel, Normed(of_call=True, running=None)
    ),
}


def train_step(wrapper):
    net = wrapper(nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), flax_norm()), [0, 1, 2, 3])
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), loss_fn)
    return lambda: step(X)


@pytest.mark.parametrize("case", QUIET)
def test_no_warning(case):
    step = QUIET[case]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()


def test_the_guide_shows_its_text():
    with pytest.warns(UserWarning, match=WARNS) as caught:
        nnx_step(jaxpar.DataParallel, flax_norm())()
    guide = (Path(__file__).resolve().parents[1] / "docs" / "from_jax.md").read_text()
    assert str(caught[0].message) in " ".join(guide.split())


def test_one_replica_has_the_whole_batch():
    net = jaxpar.DataParallel(flax_norm(), [0])
    nnx.jit(value_and_grad)(net, X)
    assert not batch_statistics._warned


def test_it_can_be_filtered_by_its_text():
    step = nnx_step(jaxpar.DataParallel, flax_norm())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "DataParallel: BatchNorm")
        step()
