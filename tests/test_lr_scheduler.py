"""jaxpar.optim.lr_scheduler against torch.optim.lr_scheduler: 200 steps of every schedule."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers, named

from jaxpar import optim
from jaxpar.optim import lr_scheduler as ours

torch = pytest.importorskip("torch")
theirs = torch.optim.lr_scheduler

STEPS = 200
TOLERANCE = 1e-14
"""Of the largest rate. Torch multiplies up to 200 times where we take a power once."""

PAST_THE_BOTTOM = 1e-13
"""Where a recursion has divided by 1 + cos near its zero, both sides have lost digits."""

LR = 0.05


def third(t):
    return 1 / (1 + t // 3)


def shrink(t):
    return 0.9 + 0.01 * (t % 7)


CASES = {
    "StepLR": ({"step_size": 30}, {"step_size": 7, "gamma": 0.9}, {"step_size": 1, "gamma": 1.01}),
    "MultiStepLR": (
        {"milestones": [30, 80]},
        {"milestones": [80, 30, 30, 0], "gamma": 0.5},
        {"milestones": []},
    ),
    "ExponentialLR": ({"gamma": 0.99}, {"gamma": 0.5}, {"gamma": 1.01}),
    "ConstantLR": (
        {},
        {"factor": 0.9, "total_iters": 20},
        {"factor": 0.5, "total_iters": 0},
        {"factor": 0.3, "total_iters": 150},
    ),
    "LinearLR": (
        {},
        {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 150},
        {"start_factor": 0.01, "total_iters": 40},
        {"total_iters": 0},
    ),
    "PolynomialLR": (
        {},
        {"total_iters": 120, "power": 2.5},
        {"total_iters": 500, "power": 0.5},
        {"total_iters": 0},
    ),
    "CosineAnnealingLR": (
        {"T_max": 50},
        {"T_max": 37, "eta_min": 0.01},
        {"T_max": 1},
        {"T_max": 300, "eta_min": 0.1},
    ),
    "CosineAnnealingWarmRestarts": (
        {"T_0": 10},
        {"T_0": 7, "T_mult": 2, "eta_min": 0.01},
        {"T_0": 1, "T_mult": 3},
    ),
    "LambdaLR": ({"lr_lambda": third},),
    "MultiplicativeLR": ({"lr_lambda": shrink},),
    "CyclicLR": (
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 13},
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 13, "step_size_down": 5, "mode": "triangular2"},
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 9, "mode": "exp_range", "gamma": 0.99},
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 9, "scale_fn": third, "scale_mode": "iterations"},
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 9, "step_size_down": 0, "base_momentum": 0.5},
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 20, "cycle_momentum": False},
    ),
    "OneCycleLR": (
        {"max_lr": 0.1, "total_steps": 200},
        {"max_lr": 0.1, "epochs": 20, "steps_per_epoch": 10, "anneal_strategy": "linear", "pct_start": 0.21},
        {"max_lr": 0.1, "total_steps": 201, "three_phase": True, "div_factor": 10, "final_div_factor": 7.0},
        {"max_lr": 0.1, "total_steps": 333, "pct_start": 0.0, "max_momentum": 0.9, "base_momentum": 0.7},
        {"max_lr": 0.1, "total_steps": 333, "cycle_momentum": False},
    ),
}
WORDS = {
    "StepLR": "step_lr",
    "MultiStepLR": "multi_step_lr",
    "ExponentialLR": "exponential_lr",
    "ConstantLR": "constant_lr",
    "LinearLR": "linear_lr",
    "PolynomialLR": "polynomial_lr",
    "CosineAnnealingLR": "cosine_annealing_lr",
    "CosineAnnealingWarmRestarts": "cosine_annealing_warm_restarts",
    "LambdaLR": "lambda_lr",
    "MultiplicativeLR": "multiplicative_lr",
    "CyclicLR": "cyclic_lr",
    "OneCycleLR": "one_cycle_lr",
}
ROWS = [(name, options) for name, rows in CASES.items() for options in rows]
COMBINED = {
    "Sequential": [
        ([("ConstantLR", {"factor": 0.1, "total_iters": 7}), ("ExponentialLR", {"gamma": 0.9})], [20]),
        ([("LinearLR", {"total_iters": 10}), ("CosineAnnealingLR", {"T_max": 60, "eta_min": 0.001})], [10]),
        (
            [("StepLR", {"step_size": 9}), ("PolynomialLR", {"total_iters": 40}), ("ConstantLR", {})],
            [31, 100],
        ),
        ([("ExponentialLR", {"gamma": 0.9}), ("MultiplicativeLR", {"lr_lambda": shrink})], [15]),
        ([("CosineAnnealingWarmRestarts", {"T_0": 7}), ("LambdaLR", {"lr_lambda": third})], [33]),
        (
            [("MultiStepLR", {"milestones": [3]}), ("CosineAnnealingWarmRestarts", {"T_0": 5, "T_mult": 2})],
            [0],
        ),
    ],
    "Chained": [
        ([("ConstantLR", {"factor": 0.1, "total_iters": 20}), ("ExponentialLR", {"gamma": 0.99})], None),
        ([("LinearLR", {}), ("StepLR", {"step_size": 40}), ("PolynomialLR", {"total_iters": 150})], None),
        ([("LinearLR", {"total_iters": 20}), ("CosineAnnealingLR", {"T_max": 50, "eta_min": 0.001})], None),
        ([("CosineAnnealingLR", {"T_max": 30}), ("ExponentialLR", {"gamma": 0.99})], None),
        ([("ExponentialLR", {"gamma": 0.9}), ("LambdaLR", {"lr_lambda": third}), ("LinearLR", {})], None),
        ([("MultiplicativeLR", {"lr_lambda": shrink}), ("MultiStepLR", {"milestones": [5, 90]})], None),
    ],
}


def torch_optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR, momentum=0.9)


def torch_run(optimizer, scheduler, steps=STEPS):
    """Learning rates and momenta of all steps."""
    rates = []
    for _ in range(steps):
        (group,) = optimizer.param_groups
        rates.append((group["lr"], group["momentum"]))
        optimizer.step()
        scheduler.step()
    return np.array(rates).T


def build(name, options):
    base = () if name in ("CyclicLR", "OneCycleLR") else (LR,)
    return getattr(ours, WORDS[name])(*base, **options)


def run(schedule, steps=STEPS):
    """All steps by one program."""
    return np.asarray(jax.jit(lambda t: jax.lax.map(schedule, t))(jnp.arange(steps)))


def closed_form(optimizer, scheduler, steps=STEPS):
    """What torch would set if it were asked for each step at once."""
    rates = []
    for t in range(steps):
        scheduler.last_epoch = t
        rates += scheduler._get_closed_form_lr()
    return np.array(rates)


def largest(name, got, want, tolerance=TOLERANCE):
    """The largest difference, relative to the largest rate."""
    return assert_equal_numbers(name, np.asarray(got, float), np.asarray(want, float), tolerance)


@pytest.mark.parametrize(("name", "options"), ROWS, ids=named)
def test_every_step_is_torchs(name, options):
    optimizer = torch_optimizer()
    scheduler = getattr(theirs, name)(optimizer, **options)
    rates, momenta = torch_run(optimizer, scheduler)
    schedule = build(name, options)
    got, stray = run(schedule), 0.0
    if name == "CosineAnnealingLR":
        # Torch's recursion strays from torch's own closed form; this is by how much.
        exact = closed_form(optimizer, scheduler)
        largest("closed form", got, exact)
        stray = np.abs(rates - exact).max() / exact.max()
        assert stray < PAST_THE_BOTTOM
    largest(name, got, rates, TOLERANCE + stray)
    if schedule.momentum is not None:
        largest("momentum", run(schedule.momentum), momenta)
    else:
        assert set(momenta) == {0.9}


@pytest.mark.parametrize("kind", COMBINED)
@pytest.mark.parametrize("i", range(6))
def test_combinations(kind, i):
    members, milestones = COMBINED[kind][i]
    optimizer = torch_optimizer()
    parts = [getattr(theirs, name)(optimizer, **options) for name, options in members]
    if kind == "Sequential":
        scheduler = theirs.SequentialLR(optimizer, parts, milestones)
        schedule = ours.sequential_lr([build(*member) for member in members], milestones)
    else:
        scheduler = theirs.ChainedScheduler(parts, optimizer)
        schedule = ours.chained_scheduler([build(*member) for member in members])
    recursive = kind == "Chained" and any(name == "CosineAnnealingLR" for name, _ in members)
    tolerance = PAST_THE_BOTTOM if recursive else TOLERANCE
    largest(kind, run(schedule), torch_run(optimizer, scheduler)[0], tolerance)


def test_a_sequence_inside_of_a_chain():
    optimizer = torch_optimizer()
    inner = [theirs.LinearLR(optimizer, total_iters=8), theirs.ExponentialLR(optimizer, 0.9)]
    sequence = theirs.SequentialLR(optimizer, inner, [10])
    scheduler = theirs.ChainedScheduler([sequence, theirs.ConstantLR(optimizer, 0.5, 20)], optimizer)
    schedule = ours.chained_scheduler(
        [
            ours.sequential_lr([ours.linear_lr(LR, total_iters=8), ours.exponential_lr(LR, 0.9)], [10]),
            ours.constant_lr(LR, 0.5, 20),
        ]
    )
    largest("nested", run(schedule), torch_run(optimizer, scheduler)[0])


FAULTS = {
    "one step late": lambda schedule: lambda t: schedule(jnp.maximum(t - 1, 0)),
    "in float32": lambda schedule: lambda t: schedule(t).astype(jnp.float32).astype(float),
    "another floor": lambda schedule: lambda t: schedule(t) + 1e-14,
    "no rise after T_max": lambda schedule: lambda t: schedule(jnp.minimum(t, 50)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    optimizer = torch_optimizer()
    rates, _ = torch_run(optimizer, theirs.CosineAnnealingLR(optimizer, 50))
    schedule = ours.cosine_annealing_lr(LR, 50)
    largest("healthy", run(schedule), rates)
    with pytest.raises(AssertionError, match="relative difference"):
        largest("fault", run(FAULTS[fault](schedule)), rates)


# -------------------------------------------------------------------------------------- plateaus

PLATEAUS = [
    {},
    {"patience": 0, "cooldown": 3, "factor": 0.5},
    {"mode": "max", "patience": 2, "threshold": 0.1, "min_lr": 1e-3},
    {"threshold_mode": "abs", "threshold": 0.05, "patience": 3, "eps": 1e-3},
    {"mode": "max", "patience": 1, "threshold": 0.5},
    {"mode": "max", "threshold_mode": "abs", "patience": 1, "factor": 0.9, "cooldown": 1},
]


@pytest.mark.parametrize("options", PLATEAUS, ids=str)
def test_reduce_on_plateau(options):
    random = np.random.RandomState(0)
    metrics = np.where(random.rand(STEPS) < 0.05, np.nan, np.exp(-np.arange(STEPS) / 40) + random.rand(STEPS))
    optimizer = torch_optimizer()
    scheduler = theirs.ReduceLROnPlateau(optimizer, **options)
    tx = ours.reduce_lr_on_plateau(LR, **options)
    state = tx.init({"w": jnp.zeros(())})

    @jax.jit
    def step(state, metric):
        updates, state = tx.update({"w": jnp.ones(())}, state, value=metric)
        return updates["w"], state

    rates, got = [], []
    for metric in metrics:
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step(metric)
        scaled, state = step(state, metric)
        got.append(scaled * LR)
    largest("plateau", np.array(got), rates)
    assert len(set(rates)) > 2
    assert int(state.num_bad_epochs) == scheduler.num_bad_epochs
    assert int(state.cooldown_counter) == scheduler.cooldown_counter


# ----------------------------------------------------------------------------------- with optimizers


@pytest.mark.parametrize(
    ("name", "more"),
    [("SGD", {}), ("SGD", {"nesterov": True}), ("SGD", {"dampening": 0.5}), ("Adam", {}), ("RMSprop", {})],
    ids=str,
)
def test_one_cycle_drives_rate_and_momentum(name, more):
    options = {"max_lr": 0.1, "total_steps": 30}
    key = {"momentum": 0.5, **more} if name != "Adam" else {}
    p = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = getattr(torch.optim, name)([p], lr=1.0, **key)
    scheduler = theirs.OneCycleLR(optimizer, **options)
    schedule = ours.one_cycle_lr(**options)
    momentum = schedule.momentum
    cycled = {"betas": (momentum, 0.999)} if name == "Adam" else {"momentum": momentum, **more}
    tx = getattr(optim, name.lower())(lr=schedule, **cycled)
    q = jnp.asarray([1.0, -2.0])
    state = tx.init(q)

    @jax.jit
    def step(q, state):
        updates, state = tx.update(q + 1, state, q)
        return optax.apply_updates(q, updates), state

    for _ in range(30):
        p.grad = p.detach() + 1
        optimizer.step()
        scheduler.step()
        q, state = step(q, state)
    assert_equal_numbers(name, q, p.detach().numpy(), 1e-12)


def test_schedules_keep_float64_behind_an_int32_counter():
    schedule = ours.exponential_lr(LR, 0.999)
    tx = optax.inject_hyperparams(optim.sgd)(lr=schedule)
    state = tx.init(jnp.zeros(3))
    for _ in range(8):
        _, state = tx.update(jnp.ones(3), state, jnp.zeros(3))
    assert state.count.dtype == jnp.int32
    assert float(state.hyperparams["lr"]) == pytest.approx(LR * 0.999**7, rel=1e-15)


def test_without_x64_schedules_are_float32():
    with jax.enable_x64(False):
        value = ours.cosine_annealing_lr(LR, 50)(7)
        assert value.dtype == jnp.float32
        assert float(value) == pytest.approx(LR * (1 + math.cos(7 * math.pi / 50)) / 2, rel=1e-6)


@pytest.mark.parametrize("name", [*WORDS, "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau"])
def test_arguments_and_defaults_are_torchs(name):
    words = {
        **WORDS,
        "SequentialLR": "sequential_lr",
        "ChainedScheduler": "chained_scheduler",
        "ReduceLROnPlateau": "reduce_lr_on_plateau",
    }
    mine = inspect.signature(getattr(ours, words[name])).parameters
    want = inspect.signature(getattr(theirs, name)).parameters
    assert {key: p.default for key, p in mine.items() if key != "lr"} == {
        key: p.default for key, p in want.items() if key not in ("optimizer", "last_epoch")
    }


def test_every_scheduler_of_torch_has_a_row_on_the_page():
    page = (Path(__file__).parents[1] / "docs" / "lr_scheduler.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)\(.*?\)` \| `(\w+)\(", page, re.M))
    assert set(rows) == set(theirs.__all__) - {"LRScheduler"}
    assert all(hasattr(ours, word) for word in rows.values())


# --------------------------------------------------------------------------------------- bad input

REFUSED = [
    (lambda: ours.constant_lr(LR, 1.5), ValueError, "Constant multiplicative factor expected"),
    (lambda: ours.linear_lr(LR, 0.0), ValueError, "Starting multiplicative factor expected"),
    (lambda: ours.linear_lr(LR, 0.5, -0.1), ValueError, "Ending multiplicative factor expected"),
    (lambda: ours.step_lr(LR, 0), ValueError, "step_size is 0; it must be 1 or more"),
    (lambda: ours.cosine_annealing_lr(LR, 0), ValueError, "T_max is 0; it must be 1 or more"),
    (
        lambda: ours.cosine_annealing_warm_restarts(LR, 0),
        ValueError,
        "Expected positive integer T_0",
    ),
    (
        lambda: ours.cosine_annealing_warm_restarts(LR, 5, 0),
        ValueError,
        "Expected integer T_mult >= 1",
    ),
    (lambda: ours.cosine_annealing_warm_restarts(LR, 5, 1, "a"), ValueError, "Expected float or int eta_min"),
    (lambda: ours.multiplicative_lr(LR, 0.9), TypeError, "lr_lambda is 0.9; it must be a function"),
    (lambda: ours.cyclic_lr(0.1, 1.0, mode="square"), ValueError, "mode is invalid and scale_fn is None"),
    (lambda: ours.one_cycle_lr(0.1), ValueError, "You must define either total_steps OR"),
    (lambda: ours.one_cycle_lr(0.1, -1), ValueError, "Expected positive integer total_steps, but got -1"),
    (
        lambda: ours.one_cycle_lr(0.1, epochs=2, steps_per_epoch=0),
        ValueError,
        "Expected positive integer",
    ),
    (
        lambda: ours.one_cycle_lr(0.1, 10, pct_start=2.0),
        ValueError,
        "Expected float between 0 and 1",
    ),
    (
        lambda: ours.one_cycle_lr(0.1, 10, anneal_strategy="step"),
        ValueError,
        "anneal_strategy must be",
    ),
    (lambda: ours.sequential_lr([], []), ValueError, "SequentialLR expects at least one scheduler"),
    (lambda: ours.sequential_lr([ours.step_lr(LR, 3)], [1]), ValueError, "Sequential Schedulers expects"),
    (lambda: ours.sequential_lr([ours.step_lr(LR, 3)] * 3, [5, 4]), ValueError, "must not decrease"),
    (
        lambda: ours.sequential_lr([ours.reduce_lr_on_plateau(LR)], []),
        ValueError,
        "does not support",
    ),
    (lambda: ours.sequential_lr([0.1], []), TypeError, "SequentialLR at index 0 should be a function"),
    (lambda: ours.chained_scheduler([]), ValueError, "ChainedScheduler expects at least one scheduler"),
    (lambda: ours.chained_scheduler([optax.constant_schedule(0.1)]), TypeError, "use .*lambda_lr"),
    (
        lambda: ours.chained_scheduler([ours.linear_lr(0.1), ours.exponential_lr(0.2, 0.9)]),
        ValueError,
        r"same base rate, but have \[0.1, 0.2\]",
    ),
    (lambda: ours.reduce_lr_on_plateau(LR, factor=1.0), ValueError, "Factor should be < 1.0."),
    (lambda: ours.reduce_lr_on_plateau(LR, "least"), ValueError, "mode least is unknown!"),
    (lambda: ours.reduce_lr_on_plateau(LR, threshold_mode="x"), ValueError, "threshold mode x is unknown!"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[m for *_, m in REFUSED])
def test_refused_at_construction(call, error, message):
    with pytest.raises(error, match=message):
        call()
