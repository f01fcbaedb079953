"""compare_loops sees a fault of a training loop in its first update and names it; healthy loops are equal."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

import jaxpar.optim
from jaxpar import parity

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loops.loop import jax_loop, torch_loop
from benchmarks.loops.planted import LOOPS, PLANTS, pairs
from benchmarks.loops.run import comparison, first_batch, main

PAIRS = [pytest.param(*pair, id=f"{pair[0].name}-{pair[1].name}".replace(" ", "_")) for pair in pairs()]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name.replace(" ", "_"))
def test_a_healthy_loop_is_the_same(loop):
    result, _ = comparison(loop, loop)
    assert result.equal, str(result)
    assert not isinstance(result.recipe, str), result.recipe
    assert str(result).startswith("The loops are the same.")


@pytest.mark.full
@pytest.mark.sampled(9)
@pytest.mark.parametrize(("loop", "plant", "faulty"), PAIRS)
def test_a_fault_is_named(loop, plant, faulty):
    result, _ = comparison(loop, faulty)
    assert any(re.search(plant.named, cause) for cause in result.causes), str(result)
    assert result.differences[0].batch == first_batch(loop, faulty)


def test_every_fault_applies_to_a_loop():
    assert {plant.name for _, plant, _ in pairs()} == {plant.name for plant in PLANTS}


# --------------------------------------------------------------------------------- what reads torch's loop

OPTIMIZERS = {
    "sgd": ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adam": ("Adam", {"betas": (0.8, 0.95), "weight_decay": 0.1}),
    "amsgrad": ("Adam", {"amsgrad": True, "eps": 1e-5}),
    "adamw": ("AdamW", {"weight_decay": 0.3}),
    "rmsprop": ("RMSprop", {"centered": True, "momentum": 0.5, "weight_decay": 0.01}),
    "adagrad": ("Adagrad", {"initial_accumulator_value": 0.2, "weight_decay": 0.01}),
    "adadelta": ("Adadelta", {"rho": 0.8, "weight_decay": 0.01}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_jaxpar_is_torchs_and_its_recipe_is_read(name):
    maker, settings = OPTIMIZERS[name]
    result = parity.compare_loops(
        lambda p: getattr(torch.optim, maker)(p, lr=0.01, **settings),
        getattr(jaxpar.optim, maker.lower())(lr=0.01, **settings),
    )
    assert result.equal, str(result)
    # A recipe is returned only if it computes torch's own updates at 1e-9.
    assert not isinstance(result.recipe, str), result.recipe


def two_kinds(model, batches):
    embed, *others = model.parameters()
    optimizers = torch.optim.SGD([embed], lr=0.1), torch.optim.Adam(others)
    for batch in batches:
        model.zero_grad()
        model(batch).backward()
        for optimizer in optimizers:
            optimizer.step()


UNREADABLE = {
    "no formula": (lambda p: torch.optim.Rprop(p), "Rprop has no formula here"),
    "two kinds": (two_kinds, "its optimizers are of different kinds: Adam, SGD"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_loop_without_a_recipe_is_still_compared(name):
    build, reason = UNREADABLE[name]
    result = parity.compare_loops(build, optax.sgd(0.5))
    assert not result.equal
    assert result.causes == ()
    assert any(reason in text for text in result.unreached), str(result)
    assert "No single change explains" in str(result)


def test_a_gradient_that_is_changed_otherwise_has_no_recipe():
    def train(model, batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches:
            optimizer.zero_grad()
            model(batch).backward()
            for p in model.parameters():
                p.grad.tanh_()
            optimizer.step()

    result = parity.compare_loops(train, optax.sgd(0.1))
    assert "more than accumulation, a factor and clipping" in str(result.recipe)


# --------------------------------------------------------------------------------------- what loops may be


def test_a_module_names_the_parameters_and_paths_of_jax_may_differ():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    names = {
        "0.weight": "dense.kernel",
        "0.bias": "dense.bias",
        "1.weight": "norm.scale",
        "1.bias": "norm.bias",
    }

    def decayed(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in ("kernel", "scale"), params)

    result = parity.compare_loops(
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        optax.adamw(0.01, weight_decay=0.1, mask=decayed),
        parameters=model,
        names=names,
    )
    assert result.causes == ("torch's weight_decay is 0.1 (JAX acts as with 0), for 0.bias, 1.bias",)


@pytest.mark.full
def test_a_slightly_larger_rate_is_no_rounding():
    (cause,) = parity.compare_loops(sgd, optax.sgd(0.1 * 1.0001)).causes
    assert "1.0001 times as large" in cause


@pytest.mark.full
def test_an_untrained_parameter_has_one_cause():
    loop = LOOPS[3]
    result, _ = comparison(loop, loop.with_fault(jax_only={"frozen": "bias"}))
    assert result.causes == ("torch trains it (JAX does not), for layer.bias, norm.bias",)


@pytest.mark.parametrize("batches", [1, 2, 3, 5])
def test_few_batches(batches):
    (*_, last) = parity.compare_loops(sgd, optax.sgd(0.2), batches=batches).causes
    assert "2 times as large" in last or "multiplied by 2" in last


@pytest.mark.full
def test_infinite_gradients_that_both_loops_apply():
    result = parity.compare_loops(sgd, optax.sgd(0.1), infinite=[3])
    assert result.equal
    assert result.recipe.nonfinite == "apply"
    result = parity.compare_loops(sgd, optax.apply_if_finite(optax.sgd(0.1), 5), infinite=[3])
    assert "skips an update with infinite gradients" in result.causes[0]


def test_a_parameter_that_only_jax_trains():
    model = torch.nn.Linear(2, 3)

    def build(parameters):
        return torch.optim.SGD(parameters[:1], lr=0.1)

    assert parity.compare_loops(build, optax.sgd(0.1), parameters=model).causes == (
        "torch does not train it (JAX does)",
    )


def test_scalars_and_shared_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.scale = torch.nn.Parameter(torch.ones(()))
    assert parity.compare_loops(sgd, optax.sgd(0.1), parameters=model).equal


@pytest.mark.full
def test_two_faults_are_named_together():
    def train(model, batches):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        for batch in batches:
            optimizer.zero_grad()
            model(batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.01, weight_decay=0.0))
    (cause,) = parity.compare_loops(train, tx).causes
    assert "JAX acts as with 0)" in cause
    assert "JAX by the norm alone" in cause


@pytest.mark.full
def test_a_value_that_no_list_has_is_solved_for_with_matrices_alone():
    def train(model, batches):
        matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) == two] for two in (True, False))
        groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        for batch in batches:
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()

    def matrices(params):
        return jax.tree.map(lambda x: x.ndim > 1, params)

    result = parity.compare_loops(train, optax.adamw(0.01, weight_decay=0.0371, mask=matrices))
    assert "JAX acts as with 0.0371" in result.causes[0], str(result)


def test_numbers_that_both_loops_yield_are_compared():
    def train(model, batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, batch in enumerate(batches):
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
            yield model, {"temperature": 1 / (i + 1), "only torch's": 0}

    def train_jax(params, batches):
        for i, batch in enumerate(batches):
            gradients = jax.grad(parity.linear_loss)(params, batch)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
            yield params, {"temperature": 1 / (i + 1 + (i > 5))}

    result = parity.compare_loops(train, train_jax)
    (difference,) = result.differences
    assert (difference.part, difference.batch) == ("temperature", 7)
    assert any("only torch's, which only torch's loop yields" in text for text in result.unreached)


def test_decays_of_an_average_that_rise_are_listed():
    def decay(i):
        return 0.0 if i == 2 else (1 + i) / (10 + i)

    def train(model, batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        average = {name: p.detach().clone() for name, p in model.named_parameters()}
        for i, batch in enumerate(batches):
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
            for name, p in model.named_parameters():
                average[name] = decay(i) * average[name] + (1 - decay(i)) * p.detach()
            yield model, {"ema": average}

    def train_jax(params, batches):
        average = params
        for batch in batches:
            gradients = jax.grad(parity.linear_loss)(params, batch)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
            average = jax.tree.map(lambda a, p: 0.5 * a + 0.5 * p, average, params)
            yield params, {"ema": average}

    text = str(parity.compare_loops(train, train_jax))
    after = "an average of the parameters after the update"
    assert f"torch's is {after}, decays 0.1, 0.1818 to 0.7273, copied 1 times (first after batch 3)" in text
    assert f"(JAX's is {after}, decay 0.5)" in text


def test_averages_with_other_names_are_not_called_compared():
    def train(model, batches):
        for batch in batches:
            model(batch).backward()
            yield model, {"ema": {"w": torch.ones(2)}, "rate": torch.ones(2)}

    def train_jax(params, batches):
        for i, _ in enumerate(batches):
            yield (
                params,
                {"ema": {"kernel": jnp.ones(2)}, **({"rate": jnp.ones(2 + (i == 3))} if i > 1 else {})},
            )

    result = parity.compare_loops(train, train_jax)
    assert "ema after 24 batches: not both loops yield it" in str(result)
    assert "rate after 3 batches: not both loops yield it" in str(result)


def test_float32_in_optax_is_no_difference_and_is_noted():
    def train(model, batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for i, batch in enumerate(batches):
            (model(batch) / 3).backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

    tx = optax.MultiSteps(optax.sgd(0.01, 0.9), 3).gradient_transformation()
    result = parity.compare_loops(train, tx)
    assert result.equal, str(result)
    assert any("in float32" in text for text in result.unreached)


# ------------------------------------------------------------------------------------------------- errors


def too_few(params, batches):
    next(batches)
    yield params


def other_shapes(params, batches):
    for _ in batches:
        yield jax.tree.map(lambda x: x[:1], params)


def no_generator(params, batches):
    return params


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


ERRORS = {
    "no parameters": ({"parameters": {}}, ValueError, "parameters has none"),
    "a parameter in a parameter": (
        {"parameters": {"w": (2,), "w.x": (2,)}},
        ValueError,
        r"parameters has w, and others below w\.",
    ),
    "an unknown name": (
        {"names": {"layer.wieght": "kernel"}},
        ValueError,
        "names has layer.wieght, which is not",
    ),
    "no optimizer": ({"torch_loop": lambda p: None}, TypeError, "must return a torch optimizer"),
    "a negative seed": ({"seed": -1}, ValueError, "seed is -1"),
    "too few batches": ({"jax_loop": too_few}, ValueError, "JAX's loop took 1 of the 24 batches"),
    "torch's too few": (
        {"torch_loop": lambda model, batches: next(batches)},
        ValueError,
        "torch's loop took 0 of the 24 batches",
    ),
    "other shapes": ({"jax_loop": other_shapes}, ValueError, "has shape .* after batch 1 JAX's loop yields"),
    "no generator": ({"jax_loop": no_generator}, TypeError, "must be a generator .* it returned dict"),
    "no such batch": ({"infinite": [24]}, ValueError, r"infinite is \[24\]; there are batches 0 to 23"),
    "no batch": ({"batches": 0}, ValueError, "batches is 0"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_compared_raises(name):
    changes, error, text = ERRORS[name]
    with pytest.raises(error, match=text):
        parity.compare_loops(**{"torch_loop": sgd, "jax_loop": optax.sgd(0.1), **changes})


def test_an_error_of_the_users_loop_comes_through():
    def train(params, batches):
        for _ in batches:
            raise ZeroDivisionError("my own")
        yield params

    with pytest.raises(ZeroDivisionError, match="my own"):
        parity.compare_loops(sgd, train)


def test_linear_loss_has_the_batch_as_its_gradient():
    params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}
    batch = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.array([1.0, 0.0, -2.0])}
    gradients = jax.grad(parity.linear_loss)(params, batch)
    assert all(bool((gradients[name] == batch[name]).all()) for name in batch)


@pytest.mark.full
def test_the_benchmark_prints_its_page(capsys):
    main(["--pairs", "2", "--healthy", "1", "--seed", "0"])
    assert "| whose fault is named | 2 of 2 |" in capsys.readouterr().out


def test_the_users_loops_see_float64_and_leave_no_hook():
    seen = []

    def train(model, batches):
        for batch in batches:
            seen.append(model(batch).dtype)
        yield model

    result = parity.compare_loops(train, jax_loop(LOOPS[1]))
    assert set(seen) == {torch.float64}
    assert "took no step" in str(result.recipe)
    assert not _global_optimizer_pre_hooks


def test_the_planted_loop_is_not_the_judges_own():
    # The benchmark's loops are optax's and torch's parts; nothing of the judge's formulas is in them.
    assert "_loops" not in Path(torch_loop.__code__.co_filename).read_text()
