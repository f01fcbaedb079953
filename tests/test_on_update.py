"""train_step(on_update=hook): what a hook is given, what becomes of its Variables; against optax by hand."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from processes import outputs, ranks
from test_extra_arguments import (
    KINDS,
    ROWS,
    LinenNet,
    Net,
    X,
    Y,
    data_parallel,
    distributed,
    linen_step,
    loss_by_hand,
    mse,
    nnx_step,
    parameters,
    plain,
)

import jaxpar
from jaxpar.optim import swa_utils

STEPS, DECAY = 4, 0.9
TX = optax.sgd(0.1, momentum=0.9)


class Average(nnx.Module):
    """An exponential average of the parameters, as users write it, and a report of the update."""

    def __init__(self, params):
        self.params = nnx.data(jax.tree.map(lambda x: nnx.Variable(jnp.array(x)), params))
        self.number = nnx.Variable(jnp.int32(0))

    def __call__(self, update):
        self.number[...] += 1
        leaves = jax.tree.leaves(update.params)
        averages = jax.tree.leaves(self.params, is_leaf=lambda x: isinstance(x, nnx.Variable))
        for average, x in zip(averages, leaves, strict=True):
            average[...] = DECAY * average[...] + (1 - DECAY) * x
        return {
            "loss": update.loss,
            "gradients": jax.tree.leaves(update.gradients),
            "updates": jax.tree.leaves(update.updates),
            "before": jax.tree.leaves(update.before),
            "params": leaves,
            "norm": optax.tree.norm(update.gradients),
            "applied": update.applied,
        }

    def values(self):
        return [np.array(x) for x in jax.tree.leaves(self.params)]


def by_hand(loss, steps=STEPS, bad=()):
    """What the hook returns at every step, and the averages after it; updates in `bad` are left out."""
    p = average = parameters()
    state, reports = TX.init(p), []
    for i in range(steps):
        value, gradients = jax.value_and_grad(loss)(p)
        before, zeros = p, jax.tree.map(jnp.zeros_like, p)
        updates, after = TX.update(gradients, state, p)
        if i not in bad:
            p, state = optax.apply_updates(p, updates), after
            average = jax.tree.map(lambda a, x: DECAY * a + (1 - DECAY) * x, average, p)
        trees = {
            "gradients": gradients,
            "updates": zeros if i in bad else updates,
            "before": before,
            "params": p,
        }
        report = {name: jax.tree.leaves(tree) for name, tree in trees.items()}
        others = {"loss": value, "norm": optax.tree.norm(gradients), "applied": i not in bad}
        reports.append((report | others, jax.tree.leaves(average)))
    return reports


def close(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


def rows_of(kind):
    return ROWS[4 if kind is distributed else 1]


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("make", [nnx_step, linen_step], ids=lambda make: make.__name__)
def test_a_hook_is_given_the_update(kind, make):
    average = Average(parameters())
    step, _ = make(kind, TX, on_update=average)
    for report, averages in by_hand(loss_by_hand(rows_of(kind))):
        step(X, Y)
        close(step.metrics, report)
        close(average.values(), averages)


FAULTS = {
    "gradients": lambda g: 1.00000001 * g,
    "before": lambda x: x + 1e-8,
    "params": lambda x: x + 1e-8,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    step, _ = nnx_step(plain, TX, on_update=Average(parameters()))
    step(X, Y)
    ((report, _),) = by_hand(loss_by_hand(ROWS[1]), 1)
    wrong = jax.tree.map(FAULTS[name], report[name])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        close(step.metrics, report | {name: wrong})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_accumulated_calls_are_one_update(kind):
    average = Average(parameters())
    step, _ = nnx_step(kind, TX, on_update=average, accumulate=2)
    batches = [(X[:4], Y[:4]), (X[4:8], Y[4:8])]
    rows = [(i, i + 1) for i in range(4)] if kind is distributed else [(0, 4)]
    losses = [loss_by_hand(rows, *batch) for batch in batches]
    for i, (report, averages) in enumerate(by_hand(lambda p: (losses[0](p) + losses[1](p)) / 2)):
        step(*batches[0])
        assert (step.metrics is None) == (i == 0)
        assert int(average.number[...]) == i
        step(*batches[1])
        close(step.metrics, report)
        close(average.values(), averages)


def overflow(net, x, y, factor):
    return mse(net, x, y) * jnp.where(factor > 0, factor, jnp.nan)


POLICIES = {
    "skip": {"on_nonfinite": "skip"},
    "loss scale": {"precision": jaxpar.Precision("float64", loss_scale=8.0)},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("branches", [True, False])
def test_an_update_that_was_left_out(policy, branches, monkeypatch):
    from jaxpar._training import update

    strategy = update.strategy_for("cpu")
    monkeypatch.setattr(update, "strategy_for", lambda *a: strategy._replace(branches=branches))
    average, always = Average(parameters()), Average(parameters())
    always.on_skipped = True
    expected = by_hand(loss_by_hand(ROWS[1]), bad=(1,))
    for hook in (average, always):
        step, _ = nnx_step(plain, TX, overflow, on_update=hook, **POLICIES[policy])
        for i, (report, averages) in enumerate(expected):
            step(X, Y, jnp.float64(i != 1))
            if i == 1:
                assert not step.metrics["applied"]
                assert np.isnan(step.metrics["norm"])
                close(
                    [step.metrics[k] for k in ("updates", "params")],
                    [report[k] for k in ("updates", "params")],
                )
            elif hook is average:
                close(step.metrics, report)
            if hook is average:
                close(average.values(), averages)
    assert (int(average.number[...]), int(always.number[...])) == (STEPS - 1, STEPS)


def test_nothing_moves_until_trouble_is_reported():
    average = Average(parameters())
    step, params = nnx_step(plain, TX, overflow, on_update=average)
    step(X, Y, jnp.float64(1))
    before = average.values(), jax.tree.map(np.array, params())
    for _ in range(2):
        step(X, Y, jnp.float64(0))
    with pytest.raises(jaxpar.errors.NonFiniteError):
        step.check()
    close((average.values(), params()), before)


@pytest.mark.full
def test_a_restored_hook_goes_on_as_before():
    averages = [Average(parameters()) for _ in range(2)]
    (first, _), (second, _) = (nnx_step(distributed, TX, on_update=average) for average in averages)
    for _ in range(2):
        first(X, Y)
    second.load_state_dict(first.state_dict())
    nnx.update(second.net, jax.tree.map(jnp.copy, nnx.state(first.net)))
    nnx.update(second.optimizer, jax.tree.map(jnp.copy, nnx.state(first.optimizer)))
    assert first(X, Y) == second(X, Y)
    for a, b in zip(*(average.values() for average in averages), strict=True):
        assert np.array_equal(a, b)
    state = first.state_dict()
    del state["on_update"]["0.number"]
    with pytest.raises(jaxpar.errors.CheckpointError, match=r"0\.number of on_update"):
        second.load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_hook_binds_moves(kind):
    """Two objects, a metric and torch's AveragedModel, and a change of the net, such as clipped weights."""
    net = kind(Net())
    average = swa_utils.AveragedModel(Net(), multi_avg_fn=swa_utils.get_ema_multi_avg_fn(DECAY))
    metric, counter = nnx.metrics.Average(), nnx.Variable(jnp.int32(0))

    def hook(average, update, *, metric, counters):
        module = update.net.module if isinstance(update.net, jaxpar.DataParallel) else update.net
        module.b.kernel[...] = jnp.clip(module.b.kernel[...], -0.1, 0.1)
        average.update_parameters(module)
        metric.update(values=update.loss.astype(jnp.float32))
        counters[0][...] += 1

    bound = functools.partial(hook, average, metric=metric, counters=[counter])
    step = jaxpar.train_step(net, nnx.Optimizer(net, TX, wrt=nnx.Param), mse, on_update=bound)
    expected = swa_utils.AveragedModel(Net(), multi_avg_fn=swa_utils.get_ema_multi_avg_fn(DECAY))
    losses = []
    for _ in range(STEPS):
        losses.append(float(step(X, Y)))
        module = getattr(net, "module", net)
        assert np.abs(module.b.kernel[...]).max() <= 0.1
        expected.update_parameters(module)
    close(jax.tree.leaves(nnx.state(average)), jax.tree.leaves(nnx.state(expected)))
    assert int(counter[...]) == STEPS
    assert step.metrics is None
    np.testing.assert_allclose(metric.compute(), np.mean(losses), rtol=1e-6)  # Flax counts in float32


def test_a_bound_method_is_a_hook():
    average = Average(parameters())
    step, _ = nnx_step(plain, TX, on_update=average.__call__)
    step(X, Y)
    assert int(average.number[...]) == 1


class Weighted(Average):
    def count(self, weight, update):
        self.number[...] += weight


def test_arguments_of_a_bound_method_follow_it():
    average = Weighted(parameters())
    step, _ = nnx_step(plain, TX, on_update=functools.partial(average.count, jnp.int32(3)))
    step(X, Y)
    assert int(average.number[...]) == 3


def test_several_networks_are_tuples():
    nets = tuple(map(data_parallel, (Net(), Net())))
    optimizers = tuple(nnx.Optimizer(net, TX, wrt=nnx.Param) for net in nets)

    def hook(update):
        assert all(len(x) == 2 for x in (update.loss, update.gradients, update.params, update.net))
        return [update.loss, *map(optax.tree.norm, update.gradients)]

    def both(nets, x, y):
        return mse(nets[0], x, y), 2 * mse(nets[1], x, y)

    step = jaxpar.train_step(nets, optimizers, both, on_update=hook)
    losses = step(X, Y)
    _, first, second = step.metrics
    close(step.metrics[0], losses)
    np.testing.assert_allclose(second, 2 * first, rtol=1e-12)


class Grows(nnx.Module):
    def __init__(self):
        self.x = nnx.Variable(jnp.zeros(2))

    def __call__(self, update):
        self.y = nnx.Variable(jnp.zeros(2))


class Widens(Grows):
    def __call__(self, update):
        self.x.set_value(jnp.zeros(3))


def refused():
    net, average = Net(), Average(parameters())
    optimizer = nnx.Optimizer(net, TX, wrt=nnx.Param)

    def step(hook):
        return jaxpar.train_step(net, optimizer, mse, on_update=hook)(X, Y)

    def holds_the_net(net, update):
        pass

    yield "must be a function of a jaxpar.StepUpdate, not int", lambda: step(1), TypeError
    yield "closes over Average, which would be", lambda: step(lambda update: average(update)), TypeError
    yield (
        "holds 0.a.bias, a Variable of the net",
        lambda: step(functools.partial(holds_the_net, net)),
        ValueError,
    )
    yield "number of Variables from 1 to 2", lambda: step(Grows()), ValueError
    yield r"shape of 0.x from \(2,\) to \(3,\)", lambda: step(Widens()), ValueError
    yield r"result\['a'\] is a str", lambda: step(lambda update: {"a": "text"}), TypeError


def test_what_cannot_be_a_hook_is_refused():
    for says, run, kind in refused():
        with pytest.raises(kind, match=says):
            run()


OUTSIDE = nnx.Variable(jnp.zeros(()))


def test_an_object_that_is_not_bound():
    def hook(update):
        OUTSIDE[...] += 1

    step, _ = nnx_step(plain, TX, on_update=hook)
    with pytest.raises(Exception, match="Cannot mutate Variable") as caught:
        step(X, Y)
    assert "changes an object that it does not bind" in caught.value.__notes__[0]


def test_a_linen_net_in_a_hook():
    step, _ = linen_step(plain, TX, on_update=lambda update: update.net(X).sum())
    step(X, Y)
    np.testing.assert_allclose(step.metrics, LinenNet().apply({"params": step.state.params}, X).sum())


SCRIPT = """
import jax, sys
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, "tests")
import jaxpar
jaxpar.distributed.init_process_group()
import numpy as np
from test_on_update import *
rank = jaxpar.distributed.get_rank()
average = Average(parameters())
net = jaxpar.DistributedDataParallel(Net())
step = jaxpar.train_step(net, nnx.Optimizer(net, TX, wrt=nnx.Param), mse, on_update=average)
rows = slice(4 * rank, 4 * rank + 4)
for report, averages in by_hand(loss_by_hand([(i, i + 2) for i in (0, 2, 4, 6)])):
    step(X[rows], Y[rows])
    close(step.metrics, report)
    close(average.values(), averages)
jaxpar.check_replicas({"average": average.values()})
try:
    wrong = Average(jax.tree.map(lambda x: x + rank, parameters()))
    jaxpar.train_step(net, nnx.Optimizer(net, TX, wrt=nnx.Param), mse, on_update=wrong)
except jaxpar.errors.DivergenceError as error:
    print("on_update" in str(error))
"""


@pytest.mark.long
@pytest.mark.slow
def test_ranks_have_the_same_update():
    assert [text.split()[-1] for text in outputs(ranks(2, SCRIPT, devices=2))] == ["True", "True"]
