"""jaxpar.optim.Optimizer: a rate that is read and set between steps, without a new program."""

from __future__ import annotations

import copy
import gc
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import nnx
from processes import outputs, ranks

import jaxpar
from jaxpar import optim
from jaxpar.optim import lr_scheduler

torch = pytest.importorskip("torch")

X = np.linspace(-1, 1, 24).reshape(8, 3)
RATES = [0.1, 0.25, 1 / 3, 1, 0.0, 2]
"""Whole numbers among them: as an integer the second half of a third would be gone."""

MAKERS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {},
    "AdamW": {"weight_decay": 0.1},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "RMSprop": {"momentum": 0.5},
    "Adagrad": {"lr_decay": 0.1},
    "Adadelta": {},
    "Adafactor": {"weight_decay": 0.1},
    "ASGD": {"t0": 2},
    "Rprop": {},
}
WRAPPED = {
    "plain": lambda net: net,
    "DataParallel": lambda net: jaxpar.DataParallel(net, device_ids=[0, 1]),
    "DistributedDataParallel": lambda net: jaxpar.DistributedDataParallel(net, device_ids=[0, 1]),
}


class Counted:
    """A loss that counts its traces."""

    def __init__(self):
        self.traces = 0

    def __call__(self, net, x):
        self.traces += 1
        return (net(x) ** 2).mean()


def linear():
    net = nnx.Linear(3, 2, rngs=nnx.Rngs(0), param_dtype=float)
    net.bias[...] = jnp.ones(2)
    return net


def torch_twin():
    net = torch.nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(np.asarray(linear().kernel[...]).T.copy()))
        net.bias.copy_(torch.ones(2))
    return net


def torch_weights(name, options, rates):
    """What torch has after a step with each rate."""
    torch.set_default_dtype(torch.float64)
    try:
        net = torch_twin()
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=rates[0], **options)
        for lr in rates:
            optimizer.param_groups[0]["lr"] = lr
            optimizer.zero_grad()
            (net(torch.from_numpy(X)) ** 2).mean().backward()
            optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    return net.weight.detach().numpy().T, net.bias.detach().numpy()


def train(name, options, rates, wrapped="plain"):
    bare = linear()
    net = WRAPPED[wrapped](bare)
    options = {**options, "dims": lambda path, leaf: (-1, -2)} if name == "Adafactor" else options
    optimizer = optim.Optimizer(net, getattr(optim, name.lower())(lr=rates[0], **options))
    loss = Counted()
    step = jaxpar.train_step(net, optimizer, loss)
    for i, lr in enumerate(rates):
        optimizer.lr = lr
        assert optimizer.lr == lr
        step(X)
        assert optimizer.lr == lr  # as it was set, and without a wait for the step
        traces = loss.traces if i == 0 else traces  # noqa: F821
    assert loss.traces == traces
    return np.asarray(bare.kernel[...]), np.asarray(bare.bias[...])


def assert_torchs(name, options, got, rates):
    for leaf, mine, want in zip(("kernel", "bias"), got, torch_weights(name, options, rates), strict=True):
        assert_equal_numbers(f"{name} {leaf}", mine, want, 1e-12)


@pytest.mark.parametrize("name", MAKERS)
def test_a_rate_set_before_each_step_is_torchs_and_compiles_once(name):
    rates = [rate or 0.01 for rate in RATES] if name in ("Rprop", "ASGD") else RATES
    assert_torchs(name, MAKERS[name], train(name, MAKERS[name], rates), rates)


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_in_every_module(wrapped):
    options = MAKERS["SGD"]
    assert_torchs("SGD", options, train("SGD", options, RATES, wrapped), RATES)


def test_a_rate_that_is_not_heard_is_found():
    options = MAKERS["SGD"]
    got = train("SGD", options, [RATES[0]] * len(RATES))
    with pytest.raises(AssertionError, match="relative difference"):
        assert_torchs("SGD", options, got, RATES)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("on_nonfinite", ["raise", "skip", "ignore"])
def test_with_accumulation_precision_and_skipped_updates(accumulate, on_nonfinite):
    net = linear()
    optimizer = optim.Optimizer(net, optim.adam(1))
    precision = jaxpar.Precision(compute=jnp.bfloat16, loss_scale=2.0**4) if on_nonfinite == "skip" else None
    step = jaxpar.train_step(
        net, optimizer, Counted(), accumulate=accumulate, on_nonfinite=on_nonfinite, precision=precision
    )
    for lr in (1, 0.5, 0.25, 0.125):
        optimizer.lr = lr
        step(X)
        assert optimizer.lr == lr
    held = nnx.as_pure(optimizer.opt_state).hyperparams["lr"]
    assert float(held) == 0.125
    before = np.asarray(net.kernel[...])
    optimizer.lr = 0
    for _ in range(accumulate):
        step(X)
    assert np.array_equal(before, net.kernel[...])


def test_inside_of_nnx_jit():
    net = linear()
    optimizer = optim.Optimizer(net, optim.sgd(1))
    traces = []

    @nnx.jit
    def step(net, optimizer):
        traces.append(optimizer.lr)
        gradients = nnx.grad(lambda net: (net(X) ** 2).mean())(net)
        optimizer.update(net, gradients)

    @nnx.jit
    def halve(optimizer):
        optimizer.lr = optimizer.lr / 2

    for lr in RATES:
        optimizer.lr = lr
        step(net, optimizer)
        assert optimizer.lr == lr
    assert len(traces) == 1
    assert_torchs("SGD", {}, (net.kernel[...], net.bias[...]), RATES)
    halve(optimizer)
    assert optimizer.lr == 1.0


@pytest.mark.parametrize("rate", [20, 20.0])
@pytest.mark.parametrize(
    "build",
    [
        lambda lr: optim.sgd(lr),
        lambda lr: optax.inject_hyperparams(optax.sgd)(lr),
        lambda lr: optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.adam)(learning_rate=lr)),
    ],
)
def test_a_whole_number_becomes_a_float(build, rate):
    optimizer = optim.Optimizer(linear(), build(rate))
    assert optimizer.lr == 20
    for lr in (1.25, 0.3125):
        optimizer.lr = lr
        assert optimizer.lr == lr
        (held,) = (x for x in jax.tree.leaves(nnx.as_pure(optimizer.opt_state)) if x.shape == () and x == lr)
        assert jnp.issubdtype(held.dtype, jnp.floating)


def test_a_rate_of_zero_can_be_set():
    optimizer = optim.Optimizer(linear(), optim.sgd(0.0))
    optimizer.lr = 0.1
    assert optimizer.lr == 0.1


def test_the_functional_form():
    tx = optax.chain(optim.clip_grad_norm(1.0), optim.adam(0.1))
    params = jnp.ones(3)
    state = tx.init(params)
    assert float(optax.tree.get(state, "lr")) == 0.1
    update = jax.jit(tx.update)
    first, _ = update(params, state, params)
    state = optax.tree.set(state, lr=jnp.asarray(0.05, float))
    second, _ = update(params, state, params)
    assert update._cache_size() == 1
    assert_equal_numbers("half", second * 2, first, 1e-15)


def grouped(**options):
    net = linear()
    groups = [{"params": "bias", "lr": 1}, {"params": "kernel"}]
    return net, optim.Optimizer(net, optim.param_groups(optim.sgd, groups, lr=0.5, **options))


def test_groups_have_rates_of_their_own():
    net, optimizer = grouped(momentum=0.9)
    twin = torch_twin()
    theirs = torch.optim.SGD(
        [{"params": [twin.bias], "lr": 1}, {"params": [twin.weight]}], lr=0.5, momentum=0.9
    )
    step = jaxpar.train_step(net, optimizer, Counted())
    for i in range(5):
        for k, side in enumerate((optimizer, theirs)):
            for group in side.param_groups:
                group["lr"] *= 0.75
            side.param_groups[1]["momentum"] = 0.5 + i / 20
            assert [group["lr"] for group in side.param_groups] == [0.75 ** (i + 1), 0.5 * 0.75 ** (i + 1)], k
        step(X)
        theirs.zero_grad()
        (twin(torch.from_numpy(X)) ** 2).mean().backward()
        theirs.step()
    assert_equal_numbers("kernel", np.asarray(net.kernel[...]).T, twin.weight.detach().numpy(), 1e-14)
    assert_equal_numbers("bias", net.bias[...], twin.bias.detach().numpy(), 1e-14)
    with pytest.raises(ValueError, match=r"the groups have the rates \[0.2373046875, 0.11865234375\]"):
        _ = optimizer.lr
    optimizer.lr = 0.3
    assert optimizer.lr == 0.3


def test_a_frozen_group_keeps_its_place():
    net = linear()
    groups = [{"params": "bias", "frozen": True}, {"params": ..., "lr": 0.3}]
    optimizer = optim.Optimizer(net, optim.param_groups(optim.adamw, groups))
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 0.3]
    optimizer.lr = 0.1
    jaxpar.train_step(net, optimizer, Counted())(X)
    assert np.array_equal(net.bias[...], np.ones(2))


def test_optaxs_own_groups():
    def labels(tree):
        return jax.tree.map(lambda leaf: "a" if leaf.ndim == 1 else "b", tree)

    tx = optax.partition({"a": optim.sgd(0.1), "b": optim.adam(0.2)}, labels)
    optimizer = optim.Optimizer(linear(), tx)
    assert [dict(group) for group in optimizer.param_groups] == [{"lr": 0.1}, {"lr": 0.2, "beta1": 0.9}]


def test_each_device_is_one_group():
    optimizer = optim.Optimizer(linear(), jaxpar.each_device(optim.sgd(0.1)))
    assert len(optimizer.param_groups) == 1
    optimizer.lr = 0.2
    rates = {
        float(x)
        for x in jax.tree.leaves(nnx.as_pure(optimizer.opt_state))
        if x.dtype == float and x.shape == ()
    }
    assert rates == {0.2}


def test_in_float32_a_number_is_given_back_as_it_was_set():
    with jax.enable_x64(False):
        net = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        optimizer = optim.Optimizer(net, optim.sgd(0.1))
        step = jaxpar.train_step(net, optimizer, Counted())
        assert nnx.as_pure(optimizer.opt_state).hyperparams["lr"].dtype == jnp.float32
        for lr in (1 / 3, 0.1, 1e-3 / 7):
            optimizer.lr = lr
            step(X.astype(np.float32))
            assert optimizer.lr == lr
        nnx.update(optimizer.opt_state, nnx.state(nnx.as_pure(optimizer.opt_state)))  # other arrays
        again = jax.tree.map(jnp.copy, nnx.as_pure(optimizer.opt_state))
        nnx.update(optimizer.opt_state, nnx.state(again))
        assert optimizer.lr == 1e-3 / 7
        other = nnx.merge(*nnx.split(optimizer))
        nnx.update(other.opt_state, nnx.state(jax.tree.map(lambda x: jnp.full_like(x, 0.1), again)))
        assert other.lr == 0.1  # the shortest number that float32 rounds to the same


def test_a_checkpoint_restores_rate_and_scheduler(tmp_path):
    def build():
        net = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        optimizer = optim.Optimizer(net, optim.sgd(1 / 3, momentum=0.9))
        scheduler = lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, total_iters=3), lr_scheduler.OneCycleLR(optimizer, 0.7, 20)],
            [3],
        )
        return net, optimizer, scheduler, jaxpar.train_step(net, optimizer, Counted())

    def go(parts, n):
        _, optimizer, scheduler, step = parts
        rates = []
        for _ in range(n):
            step(X.astype(np.float32))
            scheduler.step()
            rates.append((optimizer.lr, scheduler.get_last_lr(), optimizer.param_groups[0]["momentum"]))
        return rates

    with jax.enable_x64(False), jaxpar.Checkpointer(tmp_path) as checkpointer:
        parts = build()
        go(parts, 5)
        net, optimizer, scheduler, _ = parts
        checkpointer.save(5, net=net, optimizer=optimizer, scheduler=scheduler)
        want = go(parts, 6)
        fresh = build()
        checkpointer.restore(net=fresh[0], optimizer=fresh[1], scheduler=fresh[2])
        assert go(fresh, 6) == want
        for mine, other in zip(
            jax.tree.leaves(nnx.state(fresh[0])), jax.tree.leaves(nnx.state(net)), strict=True
        ):
            assert np.array_equal(mine, other)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            lambda: nnx.Linear(1, 1, rngs=nnx.Rngs(0)),
            r"kernel has shape \(2, 1\), and its gradient shape \(1, 1\)",
        ),
        (
            lambda: nnx.Linear(2, 1, use_bias=False, rngs=nnx.Rngs(0)),
            "bias has shape .*, and its gradient none",
        ),
        (
            lambda: nnx.BatchNorm(2, use_bias=False, rngs=nnx.Rngs(0)),
            "Optimizer.update: the parameter bias has shape",
        ),
    ],
    ids=["that would be broadcast", "that lack one", "of other names"],
)
def test_gradients_of_another_module_are_refused(other, words):
    net = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = optim.Optimizer(net, optim.sgd(0.1))
    before = np.array(net.kernel[...])
    with pytest.raises(jaxpar.errors.OptimizerError, match=words):
        optimizer.update(net, nnx.state(other(), nnx.Param))
    np.testing.assert_array_equal(net.kernel[...], before)
    with pytest.raises(jaxpar.errors.OptimizerError, match="scale has none, and its gradient shape"):
        optimizer.update(net, nnx.State({**nnx.state(net), "scale": nnx.Param(before)}))


def test_what_is_set_is_looked_at():
    optimizer = optim.Optimizer(linear(), optim.sgd(0.1))
    for value, error, words in [
        ("0.1", TypeError, "lr must be a number, not '0.1'"),
        (None, TypeError, "not None"),
        (True, TypeError, "not True"),
        ([0.1, 0.2], TypeError, "must be a number"),
        (float("nan"), ValueError, "lr is nan"),
        (float("inf"), ValueError, "lr is inf"),
    ]:
        with pytest.raises(error, match=words):
            optimizer.lr = value
    assert optimizer.lr == 0.1


@pytest.mark.parametrize(
    ("tx", "key"),
    [
        (optim.sgd(0.1), "momentum"),
        (optim.sgd(0.1, weight_decay=0.1), "weight_decay"),
        (optim.sgd(lambda step: 0.1), "lr"),
        (optim.adam(0.1), "betas"),
        (optax.adam(0.1), "lr"),
        (optax.inject_hyperparams(optax.sgd)(lambda step: 0.1), "lr"),
    ],
)
def test_what_cannot_be_set_says_so(tx, key):
    optimizer = optim.Optimizer(linear(), tx)
    (group,) = optimizer.param_groups
    with pytest.raises(jaxpar.errors.HyperparameterError, match=f"'{key}' is not in this group"):
        group[key] = 0.5
    with pytest.raises(KeyError):
        group[key]
    assert key not in group
    assert group.get(key, 7) == 7


@pytest.mark.full
def test_an_optimizer_is_not_kept_alive():
    optimizer = optim.Optimizer(linear(), optim.sgd(0.1))
    group, alive = optimizer.param_groups[0], weakref.ref(optimizer)
    twin = copy.deepcopy(optimizer)
    twin.lr = 0.2
    assert (optimizer.lr, twin.lr) == (0.1, 0.2)
    del optimizer
    gc.collect()
    assert alive() is None
    with pytest.raises(RuntimeError, match="does not exist any more"):
        group["lr"]


RANKS = """
    import numpy as np, jaxpar
    from flax import nnx
    from jaxpar import optim
    from jaxpar.optim import lr_scheduler
    jaxpar.distributed.init_process_group()
    rank = jaxpar.distributed.get_rank()
    net = jaxpar.DistributedDataParallel(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    optimizer = optim.Optimizer(net, optim.sgd(0.1))
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.99)
    step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    x = np.ones((2, 3), np.float32)
    for _ in range(20):
        step(x)
        scheduler.step()
        if rank == 0:
            optimizer.lr  # reading alone is no trouble
    print("RATE", optimizer.lr, float(nnx.as_pure(optimizer.opt_state).hyperparams["lr"]))
    step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    step(x)
    optimizer.lr = 0.1 + rank
    try:
        step(x)
    except jaxpar.errors.DivergenceError as error:
        print("SAID", error)
"""


@pytest.mark.slow
def test_ranks_that_set_other_rates_are_told():
    for out in outputs(ranks(2, RANKS)):
        said = dict(line.split(" ", 1) for line in out.splitlines() if line[:4] in ("RATE", "SAID"))
        rate, held = map(float, said["RATE"].split())
        assert rate == pytest.approx(0.1 * 0.99**20, rel=1e-12)
        assert held == np.float64(rate)
        want = "opt_state.hyperparams.lr: rank 0 has 0.1 (change 1), rank 1 has 1.1 (change 1)."
        assert "the ranks differ in the optimizer's module." + want in said["SAID"]
        assert re.search(r"Ranks 0, 1 are at <string>:\d+\.$", said["SAID"])
