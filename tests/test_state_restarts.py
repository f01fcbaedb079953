"""Checkpointer and check_replicas with states of functions and Linen modules: a restart has the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding, PartitionSpec
from processes import outputs, ranks

import jaxpar
from jaxpar.errors import DivergenceError

STEPS, ROWS = 8, 8  # the last step is one in which ranks meet
X = np.random.RandomState(0).randn(STEPS, ROWS, 3)
TX = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(optax.cosine_decay_schedule(0.1, 20)))


class Params(NamedTuple):
    """Of a function, as users of functions write them."""

    layers: list
    bias: Any


def params_of(seed):
    random = np.random.RandomState(seed)
    return Params([jnp.asarray(random.randn(3, 4)), jnp.asarray(random.randn(4, 2))], jnp.zeros(2))


def function(params, x):
    return jnp.tanh(x @ params.layers[0]) @ params.layers[1] + params.bias


def loss_fn(net, x):
    return (net(x) ** 2).mean()


class Pair:
    """(params, opt_state) in the user's own loop."""

    def __init__(self, wrap, seed):
        params = params_of(seed)
        self.state = params, TX.init(params)
        self.gradients = wrap(function).value_and_grad(loss_fn)

    def items(self):
        return {"state": self.state}

    def put(self, trees):
        self.state = trees["state"]

    def step(self, x):
        params, opt_state = self.state
        updates, opt_state = TX.update(self.gradients(params, x)[1], opt_state, params)
        self.state = optax.apply_updates(params, updates), opt_state


class Stepped:
    """A train_step that accumulates, so that a step is saved with gradients that are not applied yet."""

    def __init__(self, wrap, seed):
        self.net, self.start = self.made(wrap, seed)
        self._make()

    def _make(self):
        self.train_step = jaxpar.train_step(self.net, self.start, loss_fn, accumulate=2)

    @property
    def state(self):
        return self.train_step.state

    def items(self):
        return {"state": self.state, "train_step": self.train_step}

    def put(self, trees):
        kept = self.train_step.state_dict()
        self.start = trees["state"]
        self._make()
        self.train_step.load_state_dict(kept)

    def step(self, x):
        self.train_step(x)


class OfFunction(Stepped):
    def made(self, wrap, seed):
        return wrap(function), jaxpar.FunctionState.create(params_of(seed), TX)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4, param_dtype=jnp.float64)(x)
        x = nn.BatchNorm(use_running_average=False, param_dtype=jnp.float64, use_fast_variance=False)(x)
        return nn.Dense(2, param_dtype=jnp.float64)(jnp.tanh(x))


class State(TrainState):
    batch_stats: Any


class OfLinen(Stepped):
    def made(self, wrap, seed):
        net = wrap(Net())
        variables = net.init(jax.random.key(seed), X[0])
        statistics = jax.tree.map(lambda x: x.astype("float64"), variables["batch_stats"])
        params = variables["params"]
        return net, State.create(apply_fn=net.apply, params=params, batch_stats=statistics, tx=TX)


def plain(net):
    return net


def data_parallel(net):
    return jaxpar.DataParallel(net, [0, 1])


def distributed(net):
    return jaxpar.DistributedDataParallel(net, [0, 1])


CASES = [(Pair, distributed)] + [
    (program, wrap) for program in (OfFunction, OfLinen) for wrap in (plain, data_parallel, distributed)
]


def bits(state):
    return {
        jax.tree_util.keystr(path): np.asarray(leaf).tobytes()
        for path, leaf in jax.tree.leaves_with_path(state)
    }


def check_restart(program, wrap, folder, rows):
    """Raise unless a run that stops after 3 steps, and goes on in fresh objects, ends with the same bits."""
    run = program(wrap, 0)
    for i, x in enumerate(X[:, rows]):
        run.step(x)
        if i == 2:
            with jaxpar.Checkpointer(folder) as checkpointer:
                checkpointer.save(i, **run.items())
    again = program(wrap, 1)
    assert bits(again.state) != bits(run.state)
    again.put(jaxpar.Checkpointer(folder).restore(**again.items()).trees)
    assert jax.tree.structure(again.state) == jax.tree.structure(run.state) or program is OfLinen
    for x in X[3:, rows]:
        again.step(x)
    assert bits(again.state) == bits(run.state)
    jaxpar.check_replicas(again.state)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize(("program", "wrap"), CASES)
def test_a_restart_has_the_same_bits(program, wrap, tmp_path):
    check_restart(program, wrap, tmp_path, slice(None))


class Forgetful(Pair):
    """Planted fault: the moments are fresh after a restart."""

    def put(self, trees):
        self.state = trees["state"][0], TX.init(trees["state"][0])


@pytest.mark.full
def test_forgotten_moments_are_seen(tmp_path):
    with pytest.raises(AssertionError):
        check_restart(Forgetful, distributed, tmp_path, slice(None))


def drifted(x):
    """The same array with other bits on the second device."""
    mesh = jax.make_mesh((2,), ("i",), devices=jaxpar.devices()[:2])
    copies = [jax.device_put(x + i, device) for i, device in enumerate(jaxpar.devices()[:2])]
    return jax.make_array_from_single_device_arrays(x.shape, NamedSharding(mesh, PartitionSpec()), copies)


STATES = {
    "a pair": lambda: Pair(distributed, 0).state,
    "a FunctionState": lambda: OfFunction(plain, 0).state,
    "a TrainState": lambda: OfLinen(plain, 0).state,
}


@pytest.mark.parametrize("kind", STATES)
def test_a_moment_that_drifts_is_named(kind):
    state = STATES[kind]()
    jaxpar.check_replicas(state)
    leaves, structure = jax.tree.flatten_with_path(state)
    i = next(i for i, (path, _) in enumerate(leaves) if ".nu" in jax.tree_util.keystr(path))
    values = [drifted(x) if j == i else x for j, (_, x) in enumerate(leaves)]
    with pytest.raises(DivergenceError, match=r"nu.*not the same on cpu:0 and cpu:1"):
        jaxpar.check_replicas(jax.tree.unflatten(structure, values))


RANKS = """
import os, pathlib
import jax, numpy as np
import jaxpar, jaxpar.distributed as dist
from jaxpar.errors import DivergenceError
from test_state_restarts import ROWS, OfFunction, OfLinen, Pair, check_restart

dist.init_process_group(timeout=100)
distributed = jaxpar.DistributedDataParallel
rank, folder = dist.get_rank(), pathlib.Path(os.environ["RUN"])
rows = slice(ROWS // 2 * rank, ROWS // 2 * (rank + 1))
for program in (Pair, OfFunction, OfLinen):
    check_restart(program, distributed, folder / program.__name__, rows)
    state = program(distributed, 0).state
    planted = jax.tree.map(lambda x: x + rank, state)
    try:
        jaxpar.check_replicas(planted)
    except DivergenceError as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError(program)
print("DONE")
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_restart_with_the_same_bits(tmp_path):
    tests = Path(__file__).parent
    environ = {"RUN": str(tmp_path), "PYTHONPATH": f"{tests.parent}:{tests}"}
    for out in outputs(ranks(2, RANKS, env=environ)):
        assert "DONE" in out
