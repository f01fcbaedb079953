"""Run both loops on the same parameters and made-up gradients, and note what they do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .recipe import Arrays

Shapes = Mapping[str, tuple[int, ...]]
SHAPES: Shapes = {
    "embed.weight": (6, 4),
    "layer.weight": (4, 5),
    "layer.bias": (5,),
    "norm.weight": (5,),
    "norm.bias": (5,),
}
"""Matrices, and the vectors that loops often leave out of their weight decay."""


@dataclass
class Run:
    """What a loop did: `weights` before the first batch and after each one; the first step's `settings`."""

    weights: list[dict[str, np.ndarray]] = field(default_factory=list)
    extras: dict[str, list[Any]] = field(default_factory=dict)
    transformations: list[Any] = field(default_factory=list)  # of a loop of JAX
    entering: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # by batch
    with_gradient: dict[int, set[str]] = field(default_factory=dict)  # parameters of torch's, by batch
    groups: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)  # torch's, by batch


def made_up_gradients(shapes: Shapes, count: int, seed: int, infinite: Iterable[int]) -> list[Arrays]:
    """Return gradients with norms below and above any usual limit, with zeros and tiny values."""
    random = np.random.default_rng(seed)
    elements = sum(np.prod(shape) for shape in shapes.values())
    batches: list[Arrays] = []
    for i in range(count):
        # The first updates are below any limit, so that they show the optimizer alone.
        low, high = (-2.0, -1.5) if i < count // 4 else (-1.5, 1.5)
        size = 10 ** random.uniform(low, high) / np.sqrt(elements)
        batch = {name: np.asarray(size * random.standard_normal(shape)) for name, shape in shapes.items()}
        for gradient in batch.values():
            flat = gradient.reshape(-1)
            flat[:: max(len(flat) // 2, 2)] *= 1e-8  # about Adam's epsilon
            if i % 3 == 0 and len(flat) > 2:
                flat[1] = 0.0
        batches.append(batch)
    for i in infinite:
        next(iter(batches[i].values())).reshape(-1)[0] = np.inf
    return batches


def made_up_weights(shapes: Shapes, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng([seed, 1])
    return {name: np.asarray(random.standard_normal(shape)) for name, shape in shapes.items()}


# ------------------------------------------------------------------------------------------------------ JAX


def linear_loss(parameters: Any, batch: Any) -> jax.Array:
    """Return the loss whose gradient is the batch: sum(parameter * batch), for loops of `compare_loops`.

    Args:
      parameters, batch: pytrees of the same structure and shapes.

    Returns:
      A scalar.

    Raises:
      ValueError: `parameters` and `batch` have different structures.

    >>> import jax, jax.numpy as jnp
    >>> from jaxpar import parity
    >>> gradients = jax.grad(parity.linear_loss)({"w": jnp.ones(2)}, {"w": jnp.array([3.0, 4.0])})
    >>> gradients["w"].tolist()
    [3.0, 4.0]
    """
    structures: list[Any] = [jax.tree.structure(tree) for tree in (parameters, batch)]
    if structures[0] != structures[1]:
        raise ValueError(
            f"parity.linear_loss: parameters and batch have different structures: {structures[0]} and "
            f"{structures[1]}. Give trees with the same keys."
        )
    return sum(jax.tree.leaves(jax.tree.map(lambda p, g: jnp.sum(p * g), parameters, batch)), jnp.zeros(()))


def run_jax(loop: Any, names: Mapping[str, str], weights: Arrays, batches: Sequence[Arrays]) -> Run:
    """Run `loop(parameters, batches)`, a generator of parameters, or an optax transformation.

    `names` maps torch's names to the dotted paths of the JAX parameters.
    """
    run = Run(weights=[dict(weights)])
    is_chain = isinstance(loop, optax.GradientTransformation)
    run.transformations = [loop] if is_chain else []
    drawn = 0

    def watched() -> Iterator[Any]:
        nonlocal drawn
        for batch in batches:
            while len(run.weights) <= drawn:  # without a yield since the last batch: no update
                run.weights.append(run.weights[-1])
            drawn += 1
            yield nested(batch, names)

    function = _plain_jax(loop) if is_chain else loop
    steps = function(nested(weights, names), watched())
    if not isinstance(steps, Iterator):
        raise TypeError(
            "parity.compare_loops: JAX's loop must be a generator that yields its parameters after each "
            f"batch (`yield params`); it returned {type(steps).__name__}."
        )
    for value in steps:
        if not is_chain and inspect.isgenerator(steps):
            run.transformations = transformations_in(inspect.getgeneratorlocals(steps))
        if not drawn:  # the initial parameters
            continue
        parameters, extras = value if isinstance(value, tuple) and len(value) == 2 else (value, {})
        del run.weights[drawn:]
        run.weights += [run.weights[-1]] * (drawn - len(run.weights)) + [_flat(parameters, names)]
        note_extras(run, extras, drawn, names)
    run.weights += [run.weights[-1]] * (drawn + 1 - len(run.weights))
    return complete(run, len(batches), "JAX")


def _plain_jax(tx: optax.GradientTransformation) -> Callable[..., Iterator[Any]]:
    def loop(parameters: Any, batches: Iterable[Any]) -> Iterator[Any]:
        @jax.jit
        def step(parameters: Any, state: Any, batch: Any) -> tuple[Any, Any]:
            updates, state = tx.update(jax.grad(linear_loss)(parameters, batch), state, parameters)
            return optax.apply_updates(parameters, updates), state

        state = tx.init(parameters)
        for batch in batches:
            parameters, state = step(parameters, state, batch)
            yield parameters

    return loop


def transformations_in(values: Mapping[str, Any]) -> list[Any]:
    """Return the optax transformations among a loop's variables."""
    transformations = []
    for x in values.values():
        tx = getattr(x, "tx", x)  # of an Optimizer of Flax or of jaxpar
        if isinstance(tx, optax.MultiSteps):
            tx = tx.gradient_transformation()
        if isinstance(tx, optax.GradientTransformation):
            transformations.append(tx)
    return transformations


def nested(arrays: Arrays, names: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, x in arrays.items():
        *path, last = names.get(name, name).split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = jnp.asarray(x)
    return tree


def _flat(tree: Any, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    torch_names = {jax_name: name for name, jax_name in names.items()}
    arrays = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        arrays[torch_names.get(name, name)] = np.asarray(x)
    return arrays


# ----------------------------------------------------------------------------------------------------- both


def note_extras(run: Run, value: Any, batch: int, names: Mapping[str, str] | None = None) -> None:
    """Note numbers and averaged parameters, which a loop yields as `parameters, {"ema": averaged}`."""
    extras = value[1] if isinstance(value, tuple) and len(value) == 2 else value
    if not isinstance(extras, Mapping) or hasattr(extras, "named_parameters"):
        return
    for key, x in extras.items():
        if hasattr(x, "named_parameters"):  # a torch module
            arrays = {
                name.removeprefix("module."): p.detach().numpy().copy() for name, p in x.named_parameters()
            }
        elif isinstance(x, Mapping) and names is None:
            arrays = {name.removeprefix("module."): _array(value) for name, value in x.items()}
        else:
            arrays = _flat(x, names or {}) if isinstance(x, Mapping) else {"": _array(x)}
        values = run.extras.setdefault(key, [])
        values += [None] * (batch - 1 - len(values))
        values[batch - 1 :] = [arrays]


def _array(x: Any) -> np.ndarray:
    return x.detach().numpy().copy() if hasattr(x, "detach") else np.asarray(x)


def complete(run: Run, count: int, side: str) -> Run:
    if len(run.weights) != count + 1:
        batch_count = max(len(run.weights) - 1, 0)
        raise ValueError(
            f"parity.compare_loops: {side}'s loop took {batch_count} of the {count} batches. It must iterate "
            "over all of `batches`, once."
        )
    return run
