"""compare_loops of two loops of JAX reads chains, names changes, and calls one chain in two ways the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import jax
import numpy as np
import optax
import pytest

import jaxpar.optim
from jaxpar import parity
from jaxpar.parity._loops.chains import chain_recipe
from jaxpar.parity._loops.runs import SHAPES, made_up_weights, nested

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loops.chains import CHANGES, WAYS, Chain, drawn_chain, drawn_pairs
from benchmarks.loops.loop import constant, jax_loop, warm_cosine
from benchmarks.loops.planted import LOOPS
from benchmarks.loops.run_chains import compared, first_right, is_named, main

COSINE = warm_cosine(0.01, 3, 30)
ADAM = {"b1": 0.8, "b2": 0.98, "eps": 1e-6, "amsgrad": False}
RMS = {"decay": 0.9, "eps": 1e-4, "momentum": 0.7, "inside": False, "centered": False}
SGD = {"momentum": 0.9, "nesterov": False}
CHAINS = {
    "adamw": Chain("adam", COSINE, ADAM, 0.1, clip=("norm", 0.7, 0.0), average=0.9),
    "accumulated": Chain("adam", COSINE, ADAM, 0.1, True, "matrices", ("value", 0.1, 0.0), accumulate=2),
    "amsgrad": Chain("adam", constant(0.01), {**ADAM, "amsgrad": True}, scale=0.5, skips=True),
    "sgd": Chain("sgd", COSINE, SGD, clip=("norm", 0.7, 1e-6)),
    "summed": Chain("sgd", constant(0.01), {**SGD, "nesterov": True}, 0.1, accumulate=3, mean=False),
    "rmsprop": Chain("rmsprop", COSINE, RMS, 0.01, True),
    "centered": Chain("rmsprop", COSINE, {**RMS, "inside": True, "centered": True}),
    "adagrad": Chain("adagrad", COSINE, {"initial": 0.1, "eps": 1e-7}),
    "adadelta": Chain("adadelta", constant(1.0), {"rho": 0.9}, 0.01, False, "matrices"),
}
UNNAMED = {(name, "applies infinite gradients") for name in ("adagrad", "adamw", "centered")}
UNNAMED |= {("centered", "another epsilon")}
"""Differences without a cause: a mean of squares keeps an infinite gradient, and makes NaN of later updates;
a small epsilon inside of the root of a centered mean square is not found."""
EQUAL = {("adadelta", "decay without the rate")}
"""What changes nothing: the rate is 1."""
PAIRS = [
    pytest.param(
        chain,
        change,
        change.make(chain, Random(0)),
        WAYS[i % 4],
        id=f"{name}-{change.name}".replace(" ", "_"),
    )
    for name, chain in CHAINS.items()
    for i, change in enumerate(CHANGES)
    if change.make(chain, Random(0)) is not None and (name, change.name) not in UNNAMED | EQUAL
]


@pytest.mark.full
@pytest.mark.sampled(10)
@pytest.mark.parametrize(("chain", "change", "other", "way"), PAIRS)
def test_a_change_is_named(chain, change, other, way):
    result = compared(chain, other, ("parts", way))
    assert is_named(result, change), str(result)
    assert first_right(result, chain, other, way)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "change"), sorted(UNNAMED))
def test_a_change_that_cannot_be_named_is_a_difference_without_a_guess(name, change):
    result = changed(name, change)
    assert not result.equal
    assert result.causes == ()


@pytest.mark.parametrize(("name", "change"), sorted(EQUAL))
def test_a_change_that_changes_nothing_is_the_same(name, change):
    assert changed(name, change).equal


def changed(name, change):
    make = next(one.make for one in CHANGES if one.name == change)
    return compared(CHAINS[name], make(CHAINS[name], Random(0)), ("parts", "alias"))


def test_every_change_applies_to_a_chain():
    assert {row.values[1].name for row in PAIRS} == {change.name for change in CHANGES}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("ways", [("parts", "alias"), ("nested", "jaxpar")], ids=" ".join)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_the_same_in_all_ways_and_is_read(name, ways):
    for order in (ways, ways[::-1]):
        result = compared(CHAINS[name], CHAINS[name], order)
        assert result.equal, str(result)
        assert not isinstance(result.recipe, str), result.recipe


@pytest.mark.full
@pytest.mark.parametrize("seed", [20, 21, 22])
def test_drawn_chains_are_read_and_nothing_is_blamed(seed):
    chain = drawn_chain(Random(seed))
    result = compared(chain, chain, ("nested", "jaxpar"))
    assert result.equal, str(result)
    assert not isinstance(result.recipe, str), result.recipe


@pytest.mark.full
@pytest.mark.parametrize("loop", [LOOPS[0], LOOPS[1], LOOPS[7]], ids=lambda loop: loop.name)
def test_a_generator_is_read_by_its_transformation_and_by_what_it_does_around(loop):
    infinite = [13] if loop.scale != 1 else []
    result = parity.compare_loops(jax_loop(loop), jax_loop(loop), reference="jax", infinite=infinite)
    assert result.equal
    assert not isinstance(result.recipe, str), result.recipe
    if loop.clip:
        assert (result.recipe.clip.form, result.recipe.clip.limit) == loop.clip


def biases(tree):
    return jax.tree.map(lambda x: x.ndim == 1, tree)


READ = {
    "a mask of a branch": (
        optax.chain(
            optax.masked(optax.add_decayed_weights(0.1), {"embed": True, "layer": False, "norm": False}),
            optax.sgd(0.1),
        ),
        lambda recipe: [s["weight_decay"] for s in recipe.settings.values()] == [0.1, 0, 0, 0, 0],
    ),
    "a partition": (
        optax.partition({True: optax.sgd(0.1), False: optax.sgd(0.1, 0.9)}, biases),
        lambda recipe: [s["momentum"] for s in recipe.settings.values()] == [0.9, 0.9, 0, 0, 0],
    ),
    "frozen arrays": (
        optax.partition({True: optax.set_to_zero(), False: optax.adam(0.1)}, biases),
        lambda recipe: [bool(s.get("frozen")) for s in recipe.settings.values()] == [False] * 2 + [True] * 3,
    ),
    "groups of jaxpar": (
        jaxpar.optim.param_groups(
            jaxpar.optim.sgd, [{"params": "embed", "frozen": True}, {"params": ..., "lr": 0.1}]
        ),
        lambda recipe: [bool(s.get("frozen")) for s in recipe.settings.values()] == [True] + [False] * 4,
    ),
    "a clip while gradients are multiplied": (
        optax.chain(optax.scale(8.0), optax.clip(0.5), optax.scale(0.125), optax.sgd(0.1)),
        lambda recipe: (recipe.factor, recipe.clip.limit, recipe.clip.scale) == (1.0, 0.5, 8.0),
    ),
    "each batch clipped": (
        optax.chain(optax.clip(0.1), optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation()),
        lambda recipe: recipe.clip.per_batch and recipe.combine == "mean",
    ),
    "a decay behind the rate": (
        optax.chain(
            optax.trace(0.9),
            optax.scale_by_schedule(lambda n: -0.1 / (n + 1)),
            optax.add_decayed_weights(-0.1),
        ),
        lambda recipe: recipe.settings["norm.bias"]["decay_without_rate"],
    ),
    "a scheduled hyperparameter": (
        optax.inject_hyperparams(optax.adam)(learning_rate=optax.linear_schedule(0.1, 0.01, 20), b1=0.8),
        lambda recipe: recipe.settings["norm.bias"]["betas"] == (0.8, 0.999),
    ),
}


@pytest.mark.parametrize("name", READ, ids=lambda name: name.replace(" ", "_"))
def test_what_a_chain_is_read_as(name):
    tx, is_right = READ[name]
    result = parity.compare_loops(tx, tx)
    assert result.equal
    assert not isinstance(result.recipe, str), result.recipe
    assert is_right(result.recipe), result.recipe
    # The search repairs a chain that is read wrongly, so the reading is tested by itself, too.
    weights = made_up_weights(SHAPES, 0)
    recipe, every = chain_recipe(tx, nested(weights, {}), {name: name for name in weights}, weights)
    assert is_right(recipe), recipe
    assert every == (2 if name == "each batch clipped" else 1)


UNREADABLE = {
    "no formula": (optax.yogi(0.1), "scale_by_yogi has no formula here"),
    "an own transformation": (
        optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s)),
        "a transformation of its own has no formula here",
    ),
    "two optimizers": (
        optax.chain(optax.scale_by_adam(), optax.adam(0.1)),
        "two optimizers, one after the other",
    ),
    "clipped updates": (optax.chain(optax.scale_by_adam(), optax.clip(0.1)), "clips twice, or clips updates"),
    "different kinds": (
        optax.partition({True: optax.sgd(0.1), False: optax.adam(0.1)}, biases),
        "optimizers, clipping or accumulation of different kinds",
    ),
    "a setting that changes": (
        optax.inject_hyperparams(optax.sgd)(0.1, momentum=lambda count: 0.9 - 0.01 * count),
        "not what its optimizer's formula gives",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE, ids=lambda name: name.replace(" ", "_"))
def test_a_chain_without_a_recipe_is_still_compared(name):
    tx, reason = UNREADABLE[name]
    result = parity.compare_loops(tx, optax.sgd(0.5))
    assert not result.equal
    assert reason in str(result.recipe)
    assert any(text.startswith("the first loop could not be described") for text in result.unreached)
    assert parity.compare_loops(tx, tx).equal


def test_the_sides_are_named_in_both_directions():
    first, second = optax.adam(0.01), optax.adam(0.01, eps=0.0, eps_root=1e-8)
    (cause,) = parity.compare_loops(first, second).causes
    assert cause == "the first loop adds eps=1e-08 outside the root (the second inside, as eps_root=1e-08)"
    (cause,) = parity.compare_loops(second, first).causes
    assert cause == "the second loop adds eps=1e-08 outside the root (the first inside, as eps_root=1e-08)"


def test_other_parameters_of_the_first_loop_raise():
    def cut(params, batches):
        for _ in batches:
            yield jax.tree.map(lambda x: x[:1], params)

    with pytest.raises(ValueError, match=r"has shape .* after batch 1"):
        parity.compare_loops(cut, optax.sgd(0.1), reference="jax")


@pytest.mark.slow
def test_torch_is_not_imported():
    program = (
        "import sys, optax\nfrom jaxpar import parity\n"
        "print(parity.compare_loops(optax.sgd(0.1), optax.sgd(0.2)).causes, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "2 times as large" in done.stdout
    assert done.stdout.strip().endswith("False")


@pytest.mark.full
def test_the_page_has_a_row_for_each_change(capsys):
    main(["--pairs", "2", "--healthy", "1", "--seed", "1"])
    text = capsys.readouterr().out
    assert "| whose change is named | 2 of 2 |" in text
    assert "| one chain in two ways that is called the same | 1 of 1 |" in text


def test_pairs_of_a_seed_are_drawn_again():
    assert [row[1].name for row in drawn_pairs(3, 5)] == [row[1].name for row in drawn_pairs(3, 5)]
    assert len({round(float(np.asarray(c.rate(2))), 9) for c in map(drawn_chain, map(Random, range(9)))}) > 3
