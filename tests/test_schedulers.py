"""The schedulers as objects against torch.optim.lr_scheduler: every rate and momentum to the last bit."""

from __future__ import annotations

import inspect
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import named
from flax import nnx
from test_lr_scheduler import CASES, COMBINED, PLATEAUS

import jaxpar
from jaxpar import optim
from jaxpar.optim import lr_scheduler as ours

torch = pytest.importorskip("torch")
theirs = torch.optim.lr_scheduler

STEPS = 120
RATES = (0.05, 1 / 3)

MAKERS = {
    "sgd": (torch.optim.SGD, optim.sgd, {"momentum": 0.7}),
    "adam": (torch.optim.Adam, optim.adam, {"betas": (0.8, 0.99)}),
}
ROWS = [(name, options) for name, rows in CASES.items() for options in rows]


def both(kind="sgd"):
    """An optimizer with two groups on each side."""
    theirs_of, ours_of, options = MAKERS[kind]
    a, b = (torch.zeros(1, requires_grad=True) for _ in RATES)
    optimizer = theirs_of([{"params": [a], "lr": RATES[0]}, {"params": [b]}], lr=RATES[1], **options)
    optimizer._opt_called = True  # torch counts steps since a scheduler was made
    return optimizer, made(ours_of, **options)


def made(ours_of=optim.sgd, step=True, **options):
    net = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    groups = [{"params": "bias", "lr": RATES[0]}, {"params": "kernel"}]
    optimizer = optim.Optimizer(net, optim.param_groups(ours_of, groups, lr=RATES[1], **options))
    if step:
        optimizer.step.set_value(jnp.ones((), jnp.uint32))  # as after an update
    return optimizer


def numbers(optimizer):
    """The rate and the momentum of every group, torch's or ours."""
    found = []
    for group in optimizer.param_groups:
        beta = group["beta1"] if "beta1" in group else group["betas"][0] if "betas" in group else None
        found.append((group["lr"], group["momentum"] if beta is None else beta))
    return found


def assert_same_bits(got, want):
    assert [[x.hex() for x in map(float, group)] for group in got] == [
        [x.hex() for x in map(float, group)] for group in want
    ]


def shared_state(scheduler):
    """What a state_dict must hold to go from one side to the other."""
    state = dict(scheduler.state_dict())
    for flag in ("_get_lr_called_within_step", "_is_initial", "optimizer"):
        state.pop(flag, None)
    if "_schedulers" in state:
        state["_schedulers"] = [
            {k: v for k, v in s.items() if k not in ("_get_lr_called_within_step", "_is_initial")}
            for s in state["_schedulers"]
        ]
    return state


def run_both(their_side, our_side, their_scheduler, our_scheduler, steps=STEPS, call=lambda s, t: s.step()):
    for t in range(steps):
        assert_same_bits(numbers(our_side), numbers(their_side))
        assert our_scheduler.get_last_lr() == [group["lr"] for group in our_side.param_groups]
        call(their_scheduler, t)
        call(our_scheduler, t)
    assert shared_state(our_scheduler) == shared_state(their_scheduler)


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize(("name", "options"), ROWS, ids=named)
def test_every_step_is_torchs_to_the_last_bit(name, options, x64):
    with jax.enable_x64(x64):
        their_side, our_side = both()
        scheduler = getattr(theirs, name)(their_side, **options)
        run_both(their_side, our_side, scheduler, getattr(ours, name)(our_side, **options))


@pytest.mark.parametrize("name", ["CyclicLR", "OneCycleLR"])
def test_adams_first_beta_cycles(name):
    their_side, our_side = both("adam")
    options = CASES[name][0]
    run_both(
        their_side,
        our_side,
        getattr(theirs, name)(their_side, **options),
        getattr(ours, name)(our_side, **options),
    )


LISTS = [
    ("LambdaLR", {"lr_lambda": [lambda t: 0.9**t, lambda t: 1 / (t + 1)]}),
    ("MultiplicativeLR", {"lr_lambda": [lambda t: 0.9, lambda t: 1 / (t + 1)]}),
    ("CyclicLR", {"base_lr": [0.1, 0.2], "max_lr": [0.3, 0.5], "step_size_up": 7}),
    ("OneCycleLR", {"max_lr": [0.1, 0.2], "total_steps": 130, "max_momentum": [0.9, 0.95]}),
]


@pytest.mark.parametrize(("name", "options"), LISTS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_list_has_one_for_each_group(name, options):
    their_side, our_side = both()
    run_both(
        their_side,
        our_side,
        getattr(theirs, name)(their_side, **options),
        getattr(ours, name)(our_side, **options),
    )
    short = {key: value[:1] if isinstance(value, list) else value for key, value in options.items()}
    with pytest.raises(ValueError, match="1"):
        getattr(ours, name)(made(momentum=0.9), **short)


def combination(module, kind, i, optimizer):
    members, milestones = COMBINED[kind][i]
    parts = [getattr(module, name)(optimizer, **options) for name, options in members]
    if kind == "Sequential":
        return module.SequentialLR(optimizer, parts, milestones)
    return module.ChainedScheduler(parts, optimizer)


@pytest.mark.parametrize("kind", COMBINED)
@pytest.mark.parametrize("i", range(6))
def test_combinations(kind, i):
    their_side, our_side = both()
    run_both(
        their_side, our_side, combination(theirs, kind, i, their_side), combination(ours, kind, i, our_side)
    )


def test_a_sequence_inside_of_a_chain():
    def build(module, optimizer):
        inner = [module.LinearLR(optimizer, total_iters=8), module.ExponentialLR(optimizer, 0.9)]
        sequence = module.SequentialLR(optimizer, inner, [10])
        return module.ChainedScheduler([sequence, module.ConstantLR(optimizer, 0.5, 20)], optimizer)

    their_side, our_side = both()
    scheduler, other = build(theirs, their_side), build(ours, our_side)
    for _ in range(STEPS):
        assert_same_bits(numbers(our_side), numbers(their_side))
        scheduler.step()
        other.step()


@pytest.mark.parametrize("options", [*PLATEAUS, {"min_lr": [0.01, 0.1], "patience": 2}], ids=str)
def test_a_plateau(options):
    random = np.random.RandomState(0)
    metrics = np.where(random.rand(STEPS) < 0.05, np.nan, np.exp(-np.arange(STEPS) / 40) + random.rand(STEPS))
    their_side, our_side = both()
    scheduler = ours.ReduceLROnPlateau(our_side, **options)
    run_both(
        their_side,
        our_side,
        theirs.ReduceLROnPlateau(their_side, **options),
        scheduler,
        call=lambda s, t: s.step(metrics[t] if s is not scheduler else jnp.asarray(metrics[t])),
    )
    assert our_side.param_groups[0]["lr"] < RATES[0]


@pytest.mark.parametrize(("name", "options"), ROWS, ids=named)
def test_a_state_goes_over_to_torch_and_comes_back(name, options):
    their_side, our_side = both()
    scheduler, other = getattr(theirs, name)(their_side, **options), getattr(ours, name)(our_side, **options)
    for _ in range(11):
        other.step()
    scheduler.load_state_dict(other.state_dict())
    for group, (lr, momentum) in zip(their_side.param_groups, numbers(our_side), strict=True):
        group["lr"], group["momentum"] = lr, momentum
    run_both(their_side, our_side, scheduler, other, 20)
    fresh = made(momentum=0.7)
    third = getattr(ours, name)(fresh, **options)
    third.load_state_dict(scheduler.state_dict())
    for group, (lr, momentum) in zip(fresh.param_groups, numbers(their_side), strict=True):
        group["lr"], group["momentum"] = lr, momentum
    run_both(their_side, fresh, scheduler, third, 20)


@pytest.mark.parametrize("kind", COMBINED)
def test_a_state_of_several(kind):
    uninterrupted, resumed = made(momentum=0.7), made(momentum=0.7)
    one, two = (combination(ours, kind, 0, optimizer) for optimizer in (uninterrupted, resumed))
    for _ in range(15):
        one.step()
    state = one.state_dict()
    two.load_state_dict(json.loads(json.dumps(state)))
    assert "_schedulers" in state  # loading takes nothing out of it
    for group, other in zip(resumed.param_groups, uninterrupted.param_groups, strict=True):
        group["lr"] = other["lr"]
    for _ in range(30):
        one.step()
        two.step()
        assert_same_bits(numbers(resumed), numbers(uninterrupted))


class Warmup:
    """A function that is an object: torch saves its attributes."""

    def __init__(self, n):
        self.n = n

    def __call__(self, t):
        return min(1.0, (t + 1) / self.n)


def test_a_function_that_is_an_object_is_saved():
    saved = ours.LambdaLR(made(), Warmup(10)).state_dict()
    assert saved["lr_lambdas"] == [{"n": 10}] * 2
    scheduler = ours.LambdaLR(made(), Warmup(3))
    scheduler.load_state_dict(saved)
    assert scheduler.lr_lambdas[0].n == 10
    assert ours.LambdaLR(made(), lambda t: 1.0).state_dict()["lr_lambdas"] == [None, None]


def test_a_closed_form_by_epoch_with_torchs_warning():
    for name in ("StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR", "LinearLR", "PolynomialLR"):
        their_side, our_side = both()
        options = CASES[name][0]
        scheduler, other = (
            getattr(theirs, name)(their_side, **options),
            getattr(ours, name)(our_side, **options),
        )
        for epoch in (3, 60, 31):
            for each in (scheduler, other):
                with pytest.warns(UserWarning, match="epoch parameter"):
                    each.step(epoch)
            assert_same_bits(numbers(our_side), numbers(their_side))


def test_restarts_at_a_fraction_of_an_epoch():
    for options in CASES["CosineAnnealingWarmRestarts"]:
        their_side, our_side = both()
        scheduler = theirs.CosineAnnealingWarmRestarts(their_side, **options)
        other = ours.CosineAnnealingWarmRestarts(our_side, **options)
        for epoch in (0.25, 3.5, 11.75, 40.5, 2.0, 23):
            scheduler.step(epoch)
            other.step(epoch)
            assert_same_bits(numbers(our_side), numbers(their_side))


def test_stepping_before_the_optimizer_warns_as_torch_does():
    scheduler = ours.StepLR(made(step=False), 1)
    with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        scheduler.step()
    scheduler.step()  # once


@pytest.mark.parametrize("name", [*CASES, "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau"])
def test_arguments_and_defaults_are_torchs(name):
    def arguments(module):
        signature = inspect.signature(getattr(module, name).__init__)
        return {key: each.default for key, each in signature.parameters.items() if key != "self"}

    assert arguments(ours) == arguments(theirs)


def test_a_scheduler_of_ones_own():
    class Halve(ours.LRScheduler):
        def get_lr(self):
            return [group["lr"] * (0.5 if self.last_epoch else 1) for group in self.optimizer.param_groups]

    optimizer = made()
    scheduler = Halve(optimizer)
    scheduler.step()
    assert scheduler.get_last_lr() == [RATES[0] / 2, RATES[1] / 2]


@pytest.mark.full
def test_a_plain_nnx_optimizer_has_a_rate_too():
    net = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optim.sgd(0.1), wrt=nnx.Param)
    optimizer.update(net, nnx.state(net, nnx.Param))
    scheduler = ours.ExponentialLR(optimizer, 0.5)
    scheduler.step()
    assert float(optimizer.opt_state.hyperparams["lr"][...]) == 0.05


REFUSED = [
    (lambda o: ours.StepLR(o, 0), ValueError, "step_size is 0; it must be 1 or more"),
    (lambda o: ours.StepLR(0.1, 3), TypeError, "float is not an Optimizer"),
    (lambda o: ours.LambdaLR("o", len), TypeError, "str is not an Optimizer"),
    (lambda o: ours.ConstantLR(o, 2.0), ValueError, "between 0 and 1"),
    (lambda o: ours.LinearLR(o, 0.0), ValueError, "greater than 0"),
    (lambda o: ours.LambdaLR(o, 3), TypeError, "should be a function"),
    (lambda o: ours.CosineAnnealingWarmRestarts(o, 0), ValueError, "positive integer T_0"),
    (lambda o: ours.CyclicLR(o, 0.1, 0.2), ValueError, "support momentum or beta1"),
    (lambda o: ours.CyclicLR(o, 0.1, 0.2, mode="x"), ValueError, "mode is invalid"),
    (lambda o: ours.OneCycleLR(o, 0.1), ValueError, "total_steps OR"),
    (lambda o: ours.OneCycleLR(o, 0.1, total_steps=3, pct_start=2), ValueError, "pct_start"),
    (lambda o: ours.ReduceLROnPlateau(o, mode="x"), ValueError, "mode x is unknown"),
    (lambda o: ours.ReduceLROnPlateau(o, min_lr=[0.1]), ValueError, "expected 2 min_lrs, got 1"),
    (lambda o: ours.SequentialLR(o, [], []), ValueError, "at least one"),
    (lambda o: ours.SequentialLR(o, [ours.StepLR(o, 1)], [3]), ValueError, "one more than the number"),
    (lambda o: ours.SequentialLR(o, [ours.ReduceLROnPlateau(o)], []), ValueError, "ReduceLROnPlateau"),
    (lambda o: ours.SequentialLR(o, [ours.StepLR(made(), 1)], []), ValueError, "same optimizer"),
    (lambda o: ours.ChainedScheduler([]), ValueError, "at least one"),
    (lambda o: ours.ChainedScheduler([ours.step_lr(0.1, 3)], o), TypeError, "`optimizer` as its attribute"),
    (lambda o: ours.StepLR(o, 3, last_epoch=4), KeyError, "'initial_lr' is not specified"),
]


@pytest.mark.parametrize(("build", "error", "words"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_refused(build, error, words):
    with pytest.raises(error, match=re.escape(words)):
        build(made())


FOREIGN = [
    (lambda o: ours.StepLR(o, 3), lambda o: ours.CosineAnnealingLR(o, 5), "the state has no 'gamma'"),
    (lambda o: ours.ExponentialLR(o, 0.5), lambda o: ours.StepLR(o, 3), "the state has 'step_size'"),
    (lambda o: ours.LambdaLR(o, lambda t: 1.0), lambda o: ours.ExponentialLR(o, 0.5), "no 'lr_lambdas'"),
    (lambda o: ours.CyclicLR(o, 0, 1, cycle_momentum=False), lambda o: ours.StepLR(o, 3), "'cycle_momentum'"),
    (
        lambda o: ours.SequentialLR(o, [ours.StepLR(o, 3), ours.StepLR(o, 4)], [2]),
        lambda o: ours.ChainedScheduler([ours.StepLR(o, 3), ours.StepLR(o, 4)]),
        "no '_milestones'",
    ),
    (
        lambda o: ours.ChainedScheduler([ours.StepLR(o, 3), ours.StepLR(o, 4)]),
        lambda o: ours.ChainedScheduler([ours.StepLR(o, 5), ours.ExponentialLR(o, 0.5)]),
        "StepLR.load_state_dict: the state has no 'step_size'",
    ),
    (
        lambda o: ours.StepLR(o, 3),
        lambda o: ours.StepLR(optim.Optimizer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), optim.sgd(0.1)), 3),
        "the state has 1 rates, and the optimizer 2 groups",
    ),
]


@pytest.mark.parametrize(("into", "saved", "words"), FOREIGN, ids=range(len(FOREIGN)))
def test_the_state_of_another_scheduler_is_refused_and_changes_nothing(into, saved, words):
    scheduler = into(made())
    before = json.dumps(scheduler.state_dict())
    with pytest.raises(ValueError, match=re.escape(words)):
        scheduler.load_state_dict(saved(made()).state_dict())
    assert json.dumps(scheduler.state_dict()) == before


def test_no_rate_in_the_state():
    net = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = optim.Optimizer(net, optim.sgd(lr=ours.step_lr(0.1, 3)))
    with pytest.raises(jaxpar.errors.HyperparameterError, match="'lr' is not in this group"):
        ours.StepLR(optimizer, 3)


def test_one_cycle_ends():
    optimizer = made(momentum=0.9)
    scheduler = ours.OneCycleLR(optimizer, 0.1, total_steps=3)
    for _ in range(3):
        scheduler.step()
    with pytest.raises(ValueError, match="Tried to step 4 times"):
        scheduler.step()


FAULTS = {
    "in float32": lambda rate: float(np.float32(rate)),
    "another last bit": lambda rate: np.nextafter(rate, 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    their_side, our_side = both()
    our_side.param_groups[1]["lr"] = FAULTS[fault](RATES[1])
    with pytest.raises(AssertionError):
        run_both(their_side, our_side, theirs.StepLR(their_side, 3), ours.StepLR(our_side, 3))
