"""Metrics as arguments of a step: on replicas they count all rows, as on one device."""

from __future__ import annotations

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from processes import outputs, ranks

import jaxpar

RANDOM = np.random.RandomState(0)
STEPS, CLASSES = 4, 5
X, Y = RANDOM.randn(STEPS, 12, 3), RANDOM.randint(0, CLASSES, (STEPS, 12))


class Sum(nnx.metrics.Average):
    """Flax's average, in float64 to be compared at 1e-10; its update is Flax's own."""

    def __init__(self, argname="values"):
        super().__init__(argname)
        self.total = nnx.metrics.MetricState(jnp.zeros((), jnp.float64))


class Confusion(nnx.Metric):
    """A matrix of counts, as users write it; never used replicas add nothing."""

    additive = True

    def __init__(self):
        self.counts = nnx.metrics.MetricState(jnp.zeros((CLASSES, CLASSES), jnp.int32))

    def update(self, *, logits, labels, **_):
        self.counts[...] = self.counts[...].at[labels, logits.argmax(-1)].add(1)


def metrics():
    return nnx.MultiMetric(loss=Sum("losses"), accuracy=nnx.metrics.Accuracy())


def plain(module):
    return module


def data_parallel(module):
    return jaxpar.DataParallel(module, [0, 1, 2, 3])


def distributed(module):
    return jaxpar.DistributedDataParallel(module, [0, 1, 2, 3])


def by_process(module):
    """Each process keeps its own buffers, but metrics are sums of all."""
    return jaxpar.DistributedDataParallel(module, [0, 1, 2, 3], forward_sync_buffers=False)


KINDS = [plain, data_parallel, distributed, by_process]


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(3, 6, rngs=rngs, param_dtype=jnp.float64)
        self.last = nnx.Linear(6, CLASSES, rngs=rngs, param_dtype=jnp.float64)

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x)))


def loss_fn(net, metrics, confusion, x, y, factor=1.0):
    logits = net(x)
    losses = factor * optax.softmax_cross_entropy_with_integer_labels(logits, y)
    metrics.update(losses=losses, logits=logits, labels=y)
    confusion.update(logits=logits, labels=y)
    return losses.mean()


def counted(rows, kind, k=1, fault=1.0):
    net, counts, confusion = kind(Net()), metrics(), Confusion()
    # A rate of zero, so that unequal replicas, whose mean of means is another loss, evaluate the same net.
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.0), wrt=nnx.Param), loss_fn, accumulate=k)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        step(counts, confusion, x[:rows], y[:rows], fault)
        assert int(counts.accuracy.count[...]) == (i + 1) * rows
    return values(counts, confusion)


def values(counts, confusion):
    return [np.array(x) for x in jax.tree.leaves((nnx.state(counts), nnx.state(confusion)))]


def by_hand(rows):
    net, counts, confusion = Net(), metrics(), Confusion()
    for x, y in zip(X, Y, strict=True):
        loss_fn(net, counts, confusion, x[:rows], y[:rows])
    return values(counts, confusion)


def close(got, want):
    assert len(got) == len(want) == 5
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.full
@pytest.mark.sampled(5)
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("rows", [12, 11, 9, 1])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_metrics_count_all_rows(kind, rows, k):
    close(counted(rows, kind, k), by_hand(rows))


@pytest.mark.full
def test_a_planted_fault_is_found():
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        close(counted(11, distributed, fault=1 + 1e-9), by_hand(11))


def test_a_linen_net_in_float32():
    class LinenNet(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(CLASSES)(x)

    net, counts = jaxpar.DistributedDataParallel(LinenNet(), [0, 1]), metrics()
    params = LinenNet().init(jax.random.key(0), X[0])["params"]
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.sgd(0.1))

    def loss_fn(net, metrics, x, y):
        logits = net(x)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        metrics.update(losses=losses, logits=logits, labels=y)
        return losses.mean()

    step = jaxpar.train_step(net, state, loss_fn)
    loss = step(counts, X[0], Y[0])
    np.testing.assert_allclose(counts.loss.compute(), loss, rtol=1e-6)
    assert int(counts.accuracy.count[...]) == 12


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_evaluation_counts(kind):
    counts, confusion = metrics(), Confusion()
    evaluate = jaxpar.eval_step(kind(Net()), loss_fn)
    for x, y in zip(X, Y, strict=True):
        evaluate(counts, confusion, x[:11], y[:11])
    close(values(counts, confusion), by_hand(11))


@pytest.mark.parametrize("metric", [nnx.metrics.Welford("losses"), nnx.MultiMetric(a=nnx.metrics.Welford())])
def test_what_is_no_sum_is_refused(metric):
    net = distributed(Net())
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), loss_fn)
    with pytest.raises(TypeError, match=r"(Metric|Welford) is an argument"):
        step(metric, Confusion(), X[0], Y[0])


SCRIPT = """
import jax, sys
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, "tests")
import jaxpar
jaxpar.distributed.init_process_group()
from test_metric_arguments import *
rank = jaxpar.distributed.get_rank()
for k in (1, 2):
    net, counts, confusion = jaxpar.DistributedDataParallel(Net()), metrics(), Confusion()
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.0), wrt=nnx.Param), loss_fn, accumulate=k)
    for x, y in zip(X, Y):
        rows = slice(6 * rank, 6 * rank + 6)
        step(counts, confusion, x[rows], y[rows])
    close(values(counts, confusion), by_hand(12))
print("ok")
"""


@pytest.mark.long
@pytest.mark.slow
def test_ranks_count_all_rows():
    assert [text.split()[-1] for text in outputs(ranks(2, SCRIPT, devices=2))] == ["ok", "ok"]
