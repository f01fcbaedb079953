"""A change of a recipe has the updates that its sentence names: optax's, of the same gradients."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from jaxpar.parity._loops.changes import changes
from jaxpar.parity._loops.fitting import fit
from jaxpar.parity._loops.recipe import USUAL, Clip, Recipe

UPDATES = 6
RANDOM = np.random.RandomState(0)
SHAPES = {"weight": (4, 3), "bias": (3,)}
SIZES = (1.0, 0.05)  # the second one's norm is below every limit
GRADIENTS = [
    {name: SIZES[i % 2] * RANDOM.randn(*shape) for name, shape in SHAPES.items()} for i in range(UPDATES)
]
GROUPS = [(i,) for i in range(UPDATES)]

ADAM, SGD = "torch's optimizer is Adam (JAX acts as ", "torch's optimizer is SGD (JAX acts as "
MOMENTUM = {"momentum": 0.9}
ROWS = [
    ("adam", {}, optax.sgd(0.1, momentum=0.9), f"{ADAM}SGD with momentum=0.9)"),
    ("adam", {}, optax.sgd(0.1), f"{ADAM}SGD with momentum=0.0)"),
    ("adam", {}, optax.rmsprop(0.1, 0.99, 1e-8, eps_in_sqrt=False), f"{ADAM}RMSprop)"),
    ("adam", {}, optax.lion(0.1, weight_decay=0.0), f"{ADAM}Lion with its usual settings)"),
    ("adam", {}, optax.adamax(0.1), f"{ADAM}Adamax)"),
    ("adam", {}, optax.adadelta(0.1, 0.9, 1e-8), f"{ADAM}Adadelta)"),
    ("adam", {}, optax.adadelta(0.1, 0.9, 1e-6), f"{ADAM}Adadelta with its usual settings)"),
    ("adam", {}, optax.radam(0.1), f"{ADAM}RAdam)"),
    ("adam", {}, optax.nadam(0.1), "torch's Adam has no Nesterov momentum (JAX's has)"),
    ("adam", {}, optax.adam(0.1, 0.5), "torch's betas is (0.9, 0.999) (JAX acts as with (0.5, 0.999))"),
    ("adam", {}, optax.lamb(0.1, eps=1e-8), "torch leaves updates as they are (JAX scales each array's "
     "update to the norm of its parameters (LAMB))"),
    ("adam", {"amsgrad": True}, optax.amsgrad(0.1), "torch's amsgrad divides by the largest second moment "
     "(JAX's by the largest corrected one)"),
    ("sgd", {}, optax.adam(0.1), f"{SGD}Adam with betas=(0.9, 0.999))"),
    ("sgd", {}, optax.adam(0.1, b2=0.95), f"{SGD}Adam with betas=(0.9, 0.95))"),
    ("sgd", {}, optax.adamax(0.1), f"{SGD}Adamax)"),
    ("sgd", MOMENTUM, optax.sgd(0.1, momentum=0.9, nesterov=True),
     "torch's nesterov is False (JAX acts as with True)"),
    ("sgd", MOMENTUM, optax.sgd(0.1, momentum=0.99), "torch's momentum is 0.9 (JAX acts as with 0.99)"),
    ("sgd", MOMENTUM, optax.chain(optax.ema(0.9, debias=False), optax.sgd(0.1)), "torch's momentum is a sum "
     "of gradients (JAX's is a mean: its gradients are multiplied by 1 - momentum)"),
    ("rmsprop", {}, optax.rmsprop(0.1, 0.99, 1e-8, 1.0, eps_in_sqrt=False),
     "torch's mean of squares starts at 0 (JAX's at 1)"),
    ("sgd", {}, optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
     "torch does not clip gradients (JAX clips the norm at 0.5)"),
    ("sgd", {}, optax.chain(optax.clip(0.25), optax.sgd(0.1)),
     "torch does not clip gradients (JAX clips the values at 0.25)"),
    ("sgd", {"clip": Clip(0.5)}, optax.sgd(0.1), "torch clips the norm at 0.5 (JAX does not)"),
    ("sgd", {"clip": Clip(0.5, eps=0.0)}, optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
     "torch clips the norm at 0.5 (JAX clips the norm at 1)"),
]  # fmt: skip


def weights_of(tx):
    """Return the weights before each update of optax, and after the last one."""
    course = [{name: np.ones(shape) for name, shape in SHAPES.items()}]
    state, update = tx.init(course[0]), jax.jit(tx.update)
    for gradients in GRADIENTS:
        updates, state = update(gradients, state, course[-1])
        course.append({name: course[-1][name] + np.asarray(x) for name, x in updates.items()})
    return course


@pytest.mark.parametrize(("kind", "settings", "tx", "sentence"), ROWS, ids=range(len(ROWS)))
def test_the_sentence_of_a_change_is_the_one_of_its_updates(kind, settings, tx, sentence):
    clip = {"clip": settings["clip"]} if "clip" in settings else {}
    values = {**USUAL[kind], **{name: x for name, x in settings.items() if name != "clip"}}
    recipe = replace(Recipe(kind, dict.fromkeys(SHAPES, values)), **clip)
    weights = weights_of(tx)
    explained = (
        text
        for text, changed in changes(recipe, GROUPS)
        if (result := fit(changed, GRADIENTS, weights, GROUPS)).complete
        and np.allclose([*result.rates.values()], 0.1)
    )
    assert next(explained, "") == sentence
