"""jaxpar.optim against torch.optim: 50 steps in float64 and in float32, for every optimizer x its options."""

from __future__ import annotations

import contextlib
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers

from jaxpar import optim
from jaxpar.optim import lr_scheduler
from jaxpar.optim._leafwise import leafwise

torch = pytest.importorskip("torch")

STEPS = 50
TOLERANCE = 1e-12
NOISE = 1.5
"""Our float32 error against torch's, both measured against torch in float64."""

WORDS = {
    "SGD": optim.sgd,
    "Adam": optim.adam,
    "AdamW": optim.adamw,
    "RMSprop": optim.rmsprop,
    "Adagrad": optim.adagrad,
    "Adadelta": optim.adadelta,
    "Adamax": optim.adamax,
    "NAdam": optim.nadam,
    "RAdam": optim.radam,
    "Rprop": optim.rprop,
    "ASGD": optim.asgd,
    "Adafactor": optim.adafactor,
}
CASES = [
    ("SGD", {}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.5, "dampening": 0.5, "weight_decay": 0.1}),
    ("Adam", {}),
    ("Adam", {"lr": 0.1}),
    ("Adam", {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.02, "betas": (0.0, 0.99)}),
    ("Adam", {"lr": 0.02, "amsgrad": True, "betas": (0.9, 0.9)}),
    ("Adam", {"lr": 0.02, "amsgrad": True, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("AdamW", {"lr": 0.02}),
    ("AdamW", {"lr": 0.02, "amsgrad": True, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"alpha": 0.9, "momentum": 0.9, "maximize": True}),
    ("RMSprop", {"centered": True, "eps": 1e-4}),
    ("RMSprop", {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1}),
    ("Adagrad", {"lr": 0.1, "eps": 0.01, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {}),
    ("Adamax", {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.02, "weight_decay": 0.1, "momentum_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}),
    ("RAdam", {"lr": 0.05, "weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"lr": 0.02, "betas": (0.9, 0.9), "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.02, "betas": (0.9, 0.0)}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.1, "etas": (0.4, 1.5), "step_sizes": (1e-3, 0.5), "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lr": 0.1, "lambd": 0.01, "alpha": 0.5, "t0": 10, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {"eps": (1e-7, 1e-3)}),
    ("Adafactor", {"eps": (0.1, 1e-3)}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1, "d": 2.0, "beta2_decay": -0.5, "maximize": True}),
]
SCHEDULED = [
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ("AdamW", {}),
    ("RMSprop", {"momentum": 0.9}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Rprop", {}),
    ("ASGD", {"t0": 10}),
    ("Adafactor", {"weight_decay": 0.1}),
]

# ------------------------------------------------------------------------------------------ problem

# A matrix, a vector, a number, a convolution's kernel, gradients near zero, and gradients often exactly zero.
SHAPES = [(32, 24), (50,), (), (4, 3, 5, 6), (40,), (30,)]
SCALES = [1, 1, 1, 0.1, 1e-9, 1]
PULL = [0.5, 0, 0.3, 0.2, 0, 0]
"""The part of a gradient that depends on the parameter."""


def problem(dtype):
    """Parameters, and a function from the step and parameters to gradients; the same numbers in all types."""
    random = np.random.RandomState(0)

    def draw(shape):
        return np.asarray(random.randn(*shape), np.float32)

    params = [draw(shape).astype(dtype) for shape in SHAPES]
    noise = [
        [draw(s) * np.float32(scale) for s, scale in zip(SHAPES, SCALES, strict=True)] for _ in range(STEPS)
    ]
    for row in noise:
        row[5] = np.where(random.rand(30) < 0.5, 0, row[5]).astype(np.float32)

    def gradients(t, params):
        return [
            np.asarray(n.astype(dtype) + dtype(pull) * p)
            for n, p, pull in zip(noise[t], params, PULL, strict=True)
        ]

    return params, gradients


@contextlib.contextmanager
def torch_default(dtype):
    """Torch keeps its scalars (mu_product, eta) in the default type; with float64 they are exact."""
    torch.set_default_dtype(torch.float64 if dtype == np.float64 else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def torch_run(name, options, dtype, gamma=None):
    """The parameters after each step."""
    start, gradients = problem(dtype)
    with torch_default(dtype):
        params = [torch.tensor(p, requires_grad=True) for p in start]
        optimizer = getattr(torch.optim, name)(params, **options)
        scheduler = gamma and torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
        path = []
        for t in range(STEPS):
            for p, g in zip(params, gradients(t, [p.detach().numpy() for p in params]), strict=True):
                p.grad = torch.tensor(g)
            optimizer.step()
            if scheduler:
                scheduler.step()
            path.append([p.detach().numpy().copy() for p in params])
    return path


_EXACT: dict = {}


def exact(name, **options):
    """`torch_run` in float64, once for all laws."""
    key = repr((name, options))
    if key not in _EXACT:
        _EXACT[key] = torch_run(name, options, np.float64)
    return _EXACT[key]


def run(tx, dtype):
    start, gradients = problem(dtype)

    @jax.jit
    def step(grads, state, params):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    with jax.enable_x64(dtype == np.float64):
        params = [jnp.asarray(p) for p in start]
        state, path = tx.init(params), []
        for t in range(STEPS):
            params, state = step(gradients(t, [np.asarray(p) for p in params]), state, params)
            path.append([np.asarray(p) for p in params])
    return path


def largest(got, want):
    return max(
        assert_equal_numbers(f"step {t + 1}, parameter {i}", a, b, TOLERANCE)
        for t, (mine, theirs) in enumerate(zip(got, want, strict=True))
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True))
    )


def error(path, oracle):
    """Root mean square over all elements and steps, each parameter relative to its largest element."""
    squares = [
        np.square((a - b) / np.abs(b).max()).ravel()
        for mine, theirs in zip(path, oracle, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    ]
    return np.sqrt(np.concatenate(squares).mean())


def noise_ratio(tx, name, options):
    oracle = exact(name, **options)
    return error(run(tx, np.float32), oracle) / error(torch_run(name, options, np.float32), oracle)


# --------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_fifty_steps_in_float64(name, options):
    largest(run(WORDS[name](**options), np.float64), exact(name, **options))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_float32_is_as_quiet_as_torchs(name, options):
    if name == "Adafactor":  # its eps is the type's unless given, which would be another algorithm in float64
        options = {"eps": (1e-7, 1e-3), **options}
    assert noise_ratio(WORDS[name](**options), name, options) <= NOISE


def test_a_rule_computes_half_precision_in_float32():
    (update,) = leafwise(lambda scalars, g: (g + 2.0**-10,), (), {"w": jnp.ones(2, jnp.bfloat16)})
    assert update["w"].dtype == jnp.float32
    np.testing.assert_array_equal(update["w"], 1 + 2.0**-10)


@pytest.mark.parametrize("scale", [1e-8, 1e-4])
def test_asgd_rounds_where_torch_rounds(scale):
    """The decay 1 - 1e-6 is rounded by 2 %, so another order of roundings drifts by an ulp in each step."""
    random = np.random.RandomState(0)
    start = random.randn(1000).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    reference = torch.optim.ASGD([theirs], t0=3, foreach=False)
    with jax.enable_x64(False):
        tx, params = optim.asgd(t0=3), jnp.asarray(start)
        state, update = tx.init(params), jax.jit(tx.update)
        for _ in range(10):
            grads = (random.randn(1000) * scale).astype(np.float32)
            theirs.grad = torch.from_numpy(grads)
            reference.step()
            updates, state = update(jnp.asarray(grads), state, params)
            params = optax.apply_updates(params, updates)
        np.testing.assert_array_equal(params, theirs.detach().numpy())


@pytest.mark.parametrize(("name", "options"), SCHEDULED, ids=str)
def test_a_rate_that_changes(name, options):
    want = torch_run(name, {"lr": 0.02, **options}, np.float64, gamma=0.9)
    largest(run(WORDS[name](lr=lr_scheduler.exponential_lr(0.02, 0.9), **options), np.float64), want)


@pytest.mark.parametrize(("name", "options"), SCHEDULED, ids=str)
@pytest.mark.parametrize("x64", [True, False])
def test_state_keeps_its_types(name, options, x64):
    """Or it could be neither carried by a scan nor donated."""
    with jax.enable_x64(x64):
        params = {"a": jnp.zeros((3, 2), jnp.float32), "b": jnp.zeros(4, jnp.bfloat16)}
        for lr in (0.1, jnp.float32(0.1), lr_scheduler.exponential_lr(0.1, 0.9)):
            tx = WORDS[name](lr=lr, **options)
            state = jax.eval_shape(tx.init, params)
            updates, after = jax.eval_shape(tx.update, params, state, params)
            assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
                lambda x: (x.shape, x.dtype), state
            )
            assert updates["a"].dtype == jnp.float32


@pytest.mark.parametrize("name", [*WORDS, "LBFGS", "ReduceLROnPlateau"])
def test_state_can_be_donated(name):
    """No two arrays of a state are one, and none is the user's."""
    lr = jnp.asarray(0.1)
    others = {"LBFGS": optim.lbfgs, "ReduceLROnPlateau": lr_scheduler.reduce_lr_on_plateau}
    tx = (WORDS | others)[name](lr)
    params = {"a": jnp.ones((3, 2)), "b": jnp.ones(3)}
    leaves = jax.tree.leaves((tx.init(params), params, lr))
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)


# ----------------------------------------------------------------------------------- planted faults

# What one would write with optax alone, and what the rulebook says about it.
NEARLY = {
    "dampening as a scale": (
        lambda: optax.chain(optax.scale(0.7), optax.trace(0.9), optax.scale(-0.1)),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ),
    "decay after the moments": (
        lambda: optax.adamw(0.02, weight_decay=0.1),
        ("Adam", {"lr": 0.02, "weight_decay": 0.1}),
    ),
    "optax's decay": (lambda: optax.adamw(0.02), ("AdamW", {"lr": 0.02})),
    "optax's amsgrad": (lambda: optax.amsgrad(0.02), ("Adam", {"lr": 0.02, "amsgrad": True})),
    "optax's rmsprop": (lambda: optax.rmsprop(0.01), ("RMSprop", {})),
    "eps under the root": (lambda: optax.adagrad(0.1, 0.1, 0.01), ("Adagrad", {"lr": 0.1, "eps": 0.01})),
    "optax's nadam": (lambda: optax.nadam(2e-3), ("NAdam", {})),
    "optax's radam": (lambda: optax.radam(1e-3), ("RAdam", {})),
    "optax's rprop": (lambda: optax.rprop(0.01), ("Rprop", {})),
    "maximize after the decay": (
        lambda: optax.chain(optax.add_decayed_weights(0.1), optax.scale(-1), optax.sgd(0.1)),
        ("SGD", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ),
    "a rate of one part in 10^10 more": (lambda: optim.sgd(0.1 * (1 + 1e-10)), ("SGD", {"lr": 0.1})),
}


@pytest.mark.parametrize("fault", NEARLY)
def test_what_is_nearly_torch_is_found(fault):
    tx, (name, options) = NEARLY[fault]
    with pytest.raises(AssertionError, match="relative difference"):
        largest(run(tx(), np.float64), exact(name, **options))


def test_a_noisier_bias_correction_is_found():
    options = {"lr": 0.02}
    assert noise_ratio(optax.adam(0.02), "Adam", options) > 2 * NOISE


# ------------------------------------------------------------------------------------- half precision


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adafactor"])
def test_half_precision_is_near_torchs(name):
    """The same as torch up to the roundings of its intermediate values: a few units of bfloat16."""
    random = np.random.RandomState(0)
    start, grads = (random.randn(40, 20).astype(np.float32) for _ in range(2))
    p = torch.tensor(start).bfloat16().requires_grad_()
    optimizer = getattr(torch.optim, name)([p], lr=0.1)
    tx, params = WORDS[name](lr=0.1), jnp.asarray(start, jnp.bfloat16)
    state = tx.init(params)
    for _ in range(5):
        p.grad = torch.tensor(grads).bfloat16()
        optimizer.step()
        updates, state = tx.update(jnp.asarray(grads, jnp.bfloat16), state, params)
        params = optax.apply_updates(params, updates)
    assert params.dtype == jnp.bfloat16
    np.testing.assert_allclose(params.astype(float), p.detach().double().numpy(), rtol=0.02, atol=0.02)


# --------------------------------------------------------------------------------------- bad input

NAN = float("nan")
REFUSED = [
    ("SGD", {"lr": -1.0}),
    ("SGD", {"momentum": -0.5}),
    ("SGD", {"weight_decay": -1.0}),
    ("SGD", {"nesterov": True}),
    ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
    *[(name, {"lr": -1.0}) for name in WORDS],
    *[(name, {"lr": NAN}) for name in WORDS if name != "SGD"],
    *[
        (name, {"betas": betas})
        for name in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam")
        for betas in ((1.0, 0.9), (0.9, -0.1))
    ],
    *[(name, {"weight_decay": -0.1}) for name in WORDS if name != "Rprop"],
    *[(name, {"eps": -1e-8}) for name in WORDS if name not in ("SGD", "Rprop", "ASGD", "Adafactor")],
    ("RMSprop", {"momentum": -0.1}),
    ("RMSprop", {"alpha": -0.1}),
    ("Adagrad", {"lr_decay": -0.1}),
    ("Adagrad", {"initial_accumulator_value": -0.1}),
    ("Adadelta", {"rho": 1.1}),
    ("NAdam", {"momentum_decay": -1.0}),
    ("Rprop", {"etas": (1.1, 1.2)}),
    ("Adafactor", {"beta2_decay": 0.1}),
    ("Adafactor", {"eps": (-1.0, 1e-3)}),
    ("Adafactor", {"eps": (None, -1.0)}),
    ("Adafactor", {"d": 0.5}),
]


@pytest.mark.parametrize(("name", "options"), REFUSED, ids=str)
def test_refused_with_torchs_reason(name, options):
    with pytest.raises(ValueError, match=r"\w") as theirs:
        getattr(torch.optim, name)([torch.zeros(1, requires_grad=True)], **options)
    with pytest.raises(ValueError, match=r"\w") as ours:
        WORDS[name](**options)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("name", [*WORDS, "LBFGS"])
def test_arguments_and_defaults_are_torchs(name):
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    left_out = {"params", "foreach", "capturable", "differentiable", "fused"}
    ours = inspect.signature(WORDS.get(name, optim.lbfgs)).parameters
    want = {key: p.default for key, p in theirs.items() if key not in left_out}
    if name == "LBFGS":
        want |= {"maximize": False}  # from torch 2.15
    assert {key: p.default for key, p in ours.items() if key != "dims"} == want


def test_every_optimizer_of_torch_has_a_row_on_the_page():
    page = (Path(__file__).parents[1] / "docs" / "optim.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|none) \|", page, re.M))
    theirs = {
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    assert set(rows) == theirs - {"Optimizer"}
    assert [name for name, word in rows.items() if not word] == ["SparseAdam"]
    assert all(hasattr(optim, word) for word in rows.values() if word)


def test_complex_parameters():
    params = jnp.zeros(3, complex)
    with pytest.raises(TypeError, match=r"adam: the parameter is complex128.*split_real_and_imaginary"):
        optim.adam().init(params)
    p = torch.tensor([1 + 2j, -1j], requires_grad=True)
    optimizer = torch.optim.Adam([p], lr=0.1)
    tx = optax.contrib.split_real_and_imaginary(optim.adam(lr=0.1))
    q = jnp.asarray([1 + 2j, -1j])
    state = tx.init(q)
    for _ in range(3):
        p.grad = torch.tensor([0.3 - 1j, 0.1 + 0j])
        optimizer.step()
        updates, state = tx.update(jnp.asarray([0.3 - 1j, 0.1]), state, q)
        q = q + updates
    np.testing.assert_allclose(q, p.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    "tx", [optim.adamw(), optim.asgd(), optim.adafactor()], ids=["adamw", "asgd", "adafactor"]
)
def test_updates_that_need_parameters_say_so(tx):
    grads = jnp.ones(3)
    with pytest.raises(ValueError, match=r"pass them: tx.update\(grads, state, params\)"):
        tx.update(grads, tx.init(grads))


def test_a_rate_of_another_type_is_refused():
    with pytest.raises(TypeError, match=r"lr must be a number, an array or a schedule, not '0\.1'"):
        optim.sgd(lr="0.1")
    # It would be kept as int32, and 1.25 written over it would become 1.
    with pytest.raises(TypeError, match=r"write lr=1\.0 and not lr=1"):
        optax.inject_hyperparams(optim.sgd)(lr=20).init({"w": jnp.ones(2)})


@pytest.mark.parametrize(
    "name",
    [
        "sgd",
        "adam",
        "adamw",
        "rmsprop",
        "adagrad",
        "adadelta",
        "nadam",
        "radam",
        "adamax",
        "asgd",
        "adafactor",
        "rprop",
    ],
)
def test_every_injected_hyperparameter_may_be_set_later(name):
    tx = optax.inject_hyperparams(getattr(optim, name))(lr=20.0)
    state = tx.init({"w": jnp.ones(2)})
    assert all(jnp.issubdtype(x.dtype, jnp.floating) for x in state.hyperparams.values())
    state.hyperparams["lr"] = jnp.asarray(1.25)
    tx.update({"w": jnp.ones(2)}, state, {"w": jnp.ones(2)})
    assert state.hyperparams["lr"] == 1.25


NUMBERS = [
    ("sgd", "dampening"),
    ("adadelta", "rho"),
    ("asgd", "lambd"),
    ("asgd", "alpha"),
    ("asgd", "t0"),
    ("adafactor", "lr"),
    ("adafactor", "beta2_decay"),
    ("adafactor", "d"),
    ("adafactor", "weight_decay"),
    ("lbfgs", "tolerance_grad"),
    ("lbfgs", "tolerance_change"),
]


@pytest.mark.parametrize(("optimizer", "name"), NUMBERS)
def test_every_number_of_an_optimizer_is_looked_at(optimizer, name):
    """torch takes some of these and computes with them, or raises in the middle of a step."""
    for wrong in ("0.1", None, [0.1]):
        with pytest.raises(TypeError, match=f"{name} must be a number, an array or a schedule, not "):
            getattr(optim, optimizer)(**{name: wrong})
    if name == "t0":  # a number of steps
        return
    with pytest.raises(TypeError, match=f"{name} is an array of int64, .* write {name}=1.0"):
        getattr(optim, optimizer)(**{name: jnp.array(1)})


PAIRS = [(name, "betas") for name in ("adam", "adamw", "nadam", "radam", "adamax")]


@pytest.mark.parametrize(
    ("optimizer", "name"), [*PAIRS, ("rprop", "etas"), ("rprop", "step_sizes"), ("adafactor", "eps")]
)
def test_every_pair_of_an_optimizer_is_looked_at(optimizer, name):
    make = getattr(optim, optimizer)
    for wrong in ((0.9,), (0.1, 0.2, 0.3), 0.9, "ab", None):
        with pytest.raises(TypeError, match=f"{name} must be a pair"):
            make(**{name: wrong})
    for wrong in ((0.9, "0.99"), (0.9, None), ("0.9", 0.99)):
        with pytest.raises(TypeError, match=rf"{name}\[[01]\] must be a number"):
            make(**{name: wrong})
    with pytest.raises(TypeError, match=rf"{name}\[0\] is an array of int64"):
        make(**{name: (jnp.array(0), 0.9)})


def test_an_injected_rate_that_is_set_to_an_integer():
    """As a number it becomes the floating array that it replaces; as an array of integers it is refused."""
    g = {"w": jnp.ones(2)}
    tx = optax.inject_hyperparams(optim.adafactor)(lr=1.0)
    with pytest.raises(TypeError, match=r"write lr=1\.0 and not lr=1"):
        optax.inject_hyperparams(optim.adafactor)(lr=1).init(g)
    state = tx.init(g)
    state.hyperparams["lr"] = jnp.asarray(1)
    with pytest.raises(TypeError, match="lr is an array of int64"):
        tx.update(g, state, g)


def test_counts_of_lbfgs():
    for name in ("max_iter", "max_eval", "history_size"):
        with pytest.raises(TypeError, match=f"lbfgs: {name} is 1.5; it must be int"):
            optim.lbfgs(**{name: 1.5})
