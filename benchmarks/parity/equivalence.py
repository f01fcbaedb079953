"""Whether two texts of one side compute the same: outputs, gradients, state and steps, on many inputs.

Nothing of `jaxpar.parity` takes part: both texts are of one framework, and get the same weights by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from .edited import PAIRS

EQUAL, ALIKE, INPUTS = 1e-12, 1e-10, 20  # within a framework, across both, and how many inputs
FAMILIES = {
    "normal": lambda r, shape: r.randn(*shape),
    "zeros": lambda r, shape: np.zeros(shape),
    "ties": lambda r, shape: np.round(r.randn(*shape)),
    "large": lambda r, shape: 1e3 * r.randn(*shape),
    "tiny": lambda r, shape: 1e-8 * r.randn(*shape),
    "both": lambda r, shape: r.randn(*shape) * 10.0 ** r.randint(-3, 4, shape),
}  # fmt: skip
Arrays = dict[str, np.ndarray]
Input = tuple[list[np.ndarray], list[np.ndarray], bool, int]  # arguments, targets, the mode, a seed


def are_equivalent(before: str, after: str, side: str, pair: str) -> bool:
    """Whether no input of `inputs` shows a difference beyond EQUAL, in training and in evaluation."""
    return not any(
        is_different(computed(before, side, *case), computed(after, side, *case))
        for case in inputs(pair, side)
    )


def are_alike(texts: dict[str, str], pair: str) -> bool:
    """Whether the texts of both sides, each with an edit, give the same outputs and losses in evaluation."""
    for in_torch, in_jax in zip(inputs(pair, "torch"), inputs(pair, "jax"), strict=True):
        if in_torch[2]:  # in training, the masks of dropout are drawn by each framework
            continue
        both = [computed(texts["torch"], "torch", *in_torch), computed(texts["jax"], "jax", *in_jax)]
        if None in both:
            if both != [None, None]:
                return False
        elif any(differs(both[0][name], both[1][name], ALIKE) for name in ("outputs", "loss")):
            return False
    return True


def inputs(pair: str, side: str) -> Iterator[Input]:
    """Yield the inputs of a pair: values of each family, at several shapes, in both modes."""
    options = PAIRS[pair].options
    given = options["inputs"] if isinstance(options["inputs"], tuple) else (options["inputs"],)
    for seed in range(INPUTS):
        r = np.random.RandomState(1000 + seed)
        rows, is_longer = (given[0].shape[0], 1, 5)[seed % 3], seed % 4 == 3
        arrays = []
        for x in given:
            shape = [rows, *x.shape[1:]]
            if is_longer and x.ndim == 4:
                shape[2:] = [9, 7]
            elif is_longer and (x.ndim == 3 or len(given) > 1):
                shape[1] += 3
            values = FAMILIES[list(FAMILIES)[seed % len(FAMILIES)]]
            is_mask = x.ndim == 2 and len(given) > 1
            array = r.randint(0, 9, shape) if x.dtype.kind == "i" else values(r, shape)
            array = r.randint(0, 2, shape).astype(float) if x.dtype.kind == "f" and is_mask else array
            if side == "jax" and options.get("layout") == "channels_last" and x.ndim == 4:
                array = np.moveaxis(array, 1, -1)
            arrays.append(array)
        targets = [r.randint(0, 3, [rows])] if "targets" in options else []
        for training in (True, False):
            yield arrays, targets, training, seed


def is_different(a: Arrays | None, b: Arrays | None) -> bool:
    if a is None:  # the unedited text does not take the input
        return False
    return b is None or a.keys() != b.keys() or any(differs(a[name], b[name]) for name in a)


def differs(a: np.ndarray, b: np.ndarray, bound: float = EQUAL) -> bool:
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return True
    finite = np.isfinite(a)
    largest = np.abs(a[finite]).max(initial=0)
    return bool(np.abs(a[finite] - b[finite]).max(initial=0) > bound * largest)


def computed(text: str, side: str, arrays: list, targets: list, training: bool, seed: int) -> Arrays | None:
    """Run a text; None if it does not take the input."""
    try:
        defined: dict[str, Any] = {"__name__": "side"}
        exec(compile(text, f"{side}_side.py", "exec"), defined)
        run = of_torch if side == "torch" else of_jax
        return run(defined, arrays, targets, training, np.random.RandomState(seed))
    except Exception:
        return None


def of_torch(defined: dict, arrays: list, targets: list, training: bool, r: np.random.RandomState) -> Arrays:
    torch.manual_seed(0)
    model = defined["model"]().double().train(training)
    with torch.no_grad():
        for _, p in sorted(model.named_parameters()):
            p.copy_(torch.tensor(r.randn(*p.shape)))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    xs = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in arrays]
    outputs = model(*xs)
    value = loss_of(defined, outputs, [torch.tensor(x) for x in targets], torch.tensor)
    value.backward()
    names = [name for name, _ in model.named_parameters()]
    parameters = dict(model.named_parameters())
    result = {"outputs": outputs, "loss": value, **{f"buffer {k}": x for k, x in model.named_buffers()}}
    result |= {f"gradient {k}": parameters[k].grad for k in names if parameters[k].grad is not None}
    result |= {f"input {i}": x.grad for i, x in enumerate(xs) if x.grad is not None}
    if "optimizer" in defined:
        optimizer = defined["optimizer"](model.parameters())
        for step in range(4):
            for name in sorted(names):
                parameters[name].grad = torch.tensor(r.randn(*before[name].shape) * 10.0 ** (-2 * step))
            optimizer.step()
            result |= {f"step {step} {k}": x.detach().clone() for k, x in parameters.items()}
    return {k: x.detach().numpy().astype(float) for k, x in result.items() if x is not None}


def loss_of(defined: dict, outputs: Any, targets: list, array: Any) -> Any:
    direction = array(np.random.RandomState(7).randn(*outputs.shape))
    return defined["loss"](outputs, *targets) if "loss" in defined else (outputs * direction).sum()


def drawn(name: Any, shape: tuple[int, ...], r: np.random.RandomState) -> jax.Array:
    """Draw a weight as torch has it, and move its axes to where Flax has them."""
    axes = {2: (1, 0), 4: (2, 3, 1, 0)}[len(shape)] if name == "kernel" else tuple(range(len(shape)))
    in_torch = [shape[axes.index(i)] for i in range(len(axes))]
    return jnp.asarray(r.randn(*in_torch).transpose(axes))


def of_jax(defined: dict, arrays: list, targets: list, training: bool, r: np.random.RandomState) -> Arrays:
    model = defined["model"]()
    model.train() if training else model.eval()
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)
    flat = sorted(nnx.to_flat_state(parameters), key=lambda entry: str(entry[0]))
    leaves = {
        ".".join(map(str, path)): drawn(path[-1], variable.get_value().shape, r) for path, variable in flat
    }

    def value_of(weights: dict, floats: dict) -> Any:
        state = nnx.from_flat_state(
            [(path, variable.replace(weights[".".join(map(str, path))])) for path, variable in flat]
        )
        net = nnx.merge(graph, state, rest, copy=True)
        xs = [floats.get(i, x) for i, x in enumerate(map(jnp.asarray, arrays))]
        outputs = net(*xs)
        value = loss_of(defined, outputs, list(map(jnp.asarray, targets)), jnp.asarray)
        statistics = jax.tree.leaves(nnx.state(net, nnx.BatchStat))
        return value, (outputs, statistics)

    floats = {i: jnp.asarray(x) for i, x in enumerate(arrays) if x.dtype.kind == "f"}
    (value, (outputs, statistics)), (gradients, of_inputs) = jax.value_and_grad(
        value_of, argnums=(0, 1), has_aux=True
    )(leaves, floats)
    result = {"outputs": outputs, "loss": value, **{f"buffer {i}": x for i, x in enumerate(statistics)}}
    result |= {f"gradient {k}": x for k, x in gradients.items()}
    result |= {f"input {i}": x for i, x in of_inputs.items()}
    if "optimizer" in defined:
        optimizer = defined["optimizer"]
        state = optimizer.init(leaves)
        for step in range(4):
            draws = {k: jnp.asarray(r.randn(*x.shape) * 10.0 ** (-2 * step)) for k, x in leaves.items()}
            updates, state = optimizer.update(draws, state, leaves)
            leaves = jax.tree.map(jnp.add, leaves, updates)
            result |= {f"step {step} {k}": x for k, x in leaves.items()}
    return {k: np.asarray(x, float) for k, x in result.items()}
