"""The compiled program: one, with one all-reduce, and nothing gathered."""

from __future__ import annotations

import re
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar

N = 4


class Net(nnx.Module):
    """Parameters, floating statistics, an integer counter, dropout's counter."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.a, self.b = (nnx.Linear(6, 6, rngs=rngs, param_dtype=jnp.float32) for _ in "ab")
        self.bn = jaxpar.nn.BatchNorm(6, param_dtype=jnp.float32)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return self.b(self.drop(nnx.relu(self.bn(self.a(x)))))


def compiled_gradient(B, backend):
    with jax.enable_x64(False):
        net = jaxpar.DataParallel(Net(), range(N), backend=backend)
        graphdef, params, rest = nnx.split(net, nnx.Param, ...)

        @jax.jit
        def loss(params, rest, x, t):
            net = nnx.merge(graphdef, params, rest)
            return ((net(x) - t) ** 2).mean(), nnx.state(net, nnx.Not(nnx.Param))

        x = np.ones((B, 6), np.float32)
        function = jax.jit(jax.value_and_grad(loss, has_aux=True))
        placed = jax.device_put((params, rest), net.placement.replicated)
        return function.lower(*placed, x, x).compile(), function, (*placed, x, x)


def reduced_elements(text):
    """How many numbers every all-reduce of a program sums."""
    found = []
    for line in text.splitlines():
        if re.search(r"= .*\ball-reduce(-start)?\(", line):
            types = line.split("=", 1)[1].split("all-reduce")[0]
            found.append(
                [
                    (t, int(np.prod([int(n) for n in s.split(",") if n])))
                    for t, s in re.findall(r"([fsu]\d+)\[([\d,]*)\]", types)
                ]
            )
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("B", [8, 11, 6])
@pytest.mark.parametrize("backend", ["shard_map", "pmap"])
def test_one_all_reduce_of_gradients_and_replica_zeros_state(B, backend):
    compiled, _, _ = compiled_gradient(B, backend)
    text = compiled.as_text()
    (reduction,) = reduced_elements(text)
    parameters = 2 * (36 + 6) + 12
    statistics = 12 + 2 * 2  # mean and var; two counters of two halves each
    loss = 1
    assert {t for t, _ in reduction} == {"f32"}
    assert sum(n for _, n in reduction) == parameters + statistics + loss
    for other in ("all-gather(", "all-to-all(", "collective-permute(", "all-gather-start("):
        assert other not in text, other


@pytest.mark.parametrize("B", [8, 10, 3])
def test_forward_alone_only_shares_the_statistics(B):
    net = jaxpar.DataParallel(Net(), range(N))
    net.eval()
    graphdef, state = nnx.split(net)
    text = (
        jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))
        .lower(state, np.ones((B, 6)))
        .compile()
        .as_text()
    )
    assert reduced_elements(text) == []


def test_no_device_holds_the_gathered_outputs_under_jit():
    net = jaxpar.DataParallel(Net(), range(N))
    y = nnx.jit(lambda net, x: net(x))(net, np.ones((64, 6)))
    assert y.shape == (64, 6)
    assert [s.data.shape for s in y.addressable_shards] == [(16, 6)] * N


def test_every_device_holds_the_same_bytes():
    import optax

    net = jaxpar.DataParallel(Net(), range(N))
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(net, optimizer, x):
        optimizer.update(net, nnx.grad(lambda n: (n(x) ** 2).mean())(net))

    step(net, optimizer, np.ones((11, 6)))
    held = dict.fromkeys(jaxpar.devices()[:N], 0)
    for leaf in jax.tree.leaves((nnx.state(net, nnx.Not(nnx.RngKey)), nnx.state(optimizer))):
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.nbytes
    assert len(set(held.values())) == 1, held
    assert min(held.values()) > 0


def counted():
    """A module class of its own, so that no other test has compiled it, and its number of traces."""
    traces = []

    class Counted(nnx.Module):
        def __init__(self):
            self.l = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

        def __call__(self, x):
            traces.append(x.shape)
            return self.l(x)

    return Counted, traces


@pytest.mark.parametrize("backend", ["shard_map", "pmap"])
@pytest.mark.parametrize("jit", [False, True])
def test_no_retrace_after_the_first_two_batch_shapes(jit, backend):
    """Two epochs with an uneven last batch: 8, 8, 8, 5 rows."""
    module, traces = counted()
    net = jaxpar.DataParallel(module(), range(N), backend=backend)
    call = nnx.jit(lambda net, x: net(x)) if jit else (lambda net, x: net(x))
    seen = []
    for _ in range(2):
        for B in (8, 8, 8, 5):
            assert call(net, np.ones((B, 4))).shape == (B, 4)
            seen.append(list(traces))
    assert seen[2] == [(2, 4)], "one trace for three batches of one shape"
    assert seen[3] == [(2, 4), (2, 4), (1, 4)], "5 rows on 4 devices make two kinds of replica: 2 rows and 1"
    assert seen[7] == seen[3], "the second epoch traces nothing"


def test_the_same_program_serves_equal_wrappers():
    module, traces = counted()
    for _ in range(3):
        jaxpar.data_parallel(module(), np.ones((8, 4)), range(N))
    assert traces == [(2, 4)]


class Logarithm(nnx.Module):
    def __init__(self):
        self.inner = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return jnp.log(self.inner(x) * 0 - 1)  # not a number


def lines_of(error):
    """The lines of this file that a traceback passes through, as it is printed."""
    return re.findall(
        rf'File "{re.escape(__file__)}", line (\d+)', "".join(traceback.format_exception(error))
    )


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("wrap", [jaxpar.DataParallel, jaxpar.DistributedDataParallel])
@pytest.mark.parametrize("trains", [False, True])
def test_debug_nans_shows_the_users_line(wrap, trains):
    line = str(Logarithm.__call__.__code__.co_firstlineno + 1)
    with jax.debug_nans(True):
        net = wrap(Logarithm(), range(N))
        run = net
        if trains:
            optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
            run = jaxpar.train_step(net, optimizer, lambda net, x: net(x).mean())
        with pytest.raises(FloatingPointError) as caught:
            run(jnp.ones((8, 3)))
    assert line in lines_of(caught.value)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("wrap", [jaxpar.DataParallel, jaxpar.DistributedDataParallel])
def test_debug_nans_changes_no_number(wrap):
    def three(checks):
        with jax.debug_nans(checks):
            net = wrap(Net(), range(N))
            optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
            step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
            return [float(step(np.random.RandomState(B).randn(B, 6))) for B in (8, 8, 11)]

    assert three(True) == three(False)
