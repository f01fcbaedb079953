"""One law for all layers and functions in torch's form: the same numbers as torch, for five steps.

A `Case` is a line of a table: a call of torch, the call of jaxpar that is to be the same, and the
shapes of its inputs. `difference` trains both sides in float64 from the same weights and raises where
they part. The tables are in cases/, one file for each kind of layer, with `CASES` and `REFUSED`; the
tests run them, and benchmarks/torch_form.py prints them. Planted faults: test_layers.py.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from comparing import assert_equal_trees
from flax import nnx

import jaxpar
from jaxpar._rulebook import rule_for

STEPS = 5
RATE = 0.1
TOLERANCE = 1e-12
CLAMPS_OTHERWISE = torch.__version__.startswith("2.13")

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of torch.nn and the call of jaxpar.nn that is to be the same.

    Args:
      torch: Python text, a module's constructor or a function of the inputs, in torch.nn's names:
        "Conv2d(4, 6, 3)", "lambda x: functional.relu(x)".
      jaxpar: the same in jaxpar.nn's names; torch's text if left out. `param_dtype=jnp.float64` and
        `rngs` are added to constructors that take them.
      inputs: in jaxpar's layout. A shape stands for normal numbers, new at each step; an array is
        taken as it is; a function gets a RandomState at each step. Floats are differentiated.
      channels: the axis of torch that is jaxpar's last, for inputs and outputs that have that axis;
        one number for all, or one for each input, the first being the outputs'. None: same layout.
      weights: torch's tensors by name to jaxpar's by path; the rulebook's row of the layer if left
        out. It must be linear and do with any part of the names: gradients and buffers go the same
        way. See `named`.
      options: keyword arguments of the call, the same on both sides.
      clamps: whether an input is clamped exactly at its bound. There torch's gradient is 0 from 2.14, which
        is jaxpar's too, and was 1 before: with such a torch the gradients must differ, and nothing else.
      call: how a side is called, `call(net, *inputs, **options)`, where that is not plainly so: states
        in a tuple, or inputs that torch wants in another form.
    """

    torch: str
    jaxpar: str = ""
    inputs: tuple[Any, ...] = ((4, 6),)
    channels: int | tuple[int | None, ...] | None = 1
    weights: Callable[[Arrays], Arrays] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    clamps: bool = False
    call: Callable[..., Any] = lambda net, *inputs, **options: net(*inputs, **options)

    def __str__(self) -> str:
        return " ".join([self.torch, *(f"{k}={getattr(v, '__name__', v)}" for k, v in self.options.items())])


@dataclasses.dataclass(frozen=True)
class Refused:
    """A call that jaxpar refuses with `error` when it is made, and the words of the message.

    torch_too: torch refuses it as well, when it is made or at its first call with `inputs`;
    otherwise it is a row of what jaxpar does not have, and `reason` says why.
    """

    torch: str
    jaxpar: str
    error: type[Exception]
    reason: str
    torch_too: bool = True
    inputs: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.torch


def named(names: Mapping[str, str], layout: Callable[[np.ndarray], np.ndarray] = lambda x: x):
    """Weights by name, and `layout` for those with two axes or more; other names stay as they are."""

    def weights(tensors: Arrays) -> Arrays:
        return {names.get(name, name): layout(x) if x.ndim > 1 else x for name, x in tensors.items()}

    return weights


# ------------------------------------------------------------------------------------ the two sides


def torch_call(text: str) -> Any:
    return eval(text, vars(torch.nn) | {"torch": torch})


def jaxpar_call(text: str) -> Any:
    def constructor(public: Any) -> Any:
        if not inspect.isclass(public):
            return public
        extra = {"param_dtype": jnp.float64, "rngs": nnx.Rngs(0)}
        takes = inspect.signature(public.__init__).parameters
        return lambda *args, **kwargs: public(
            *args, **{k: v for k, v in extra.items() if k in takes}, **kwargs
        )

    names = {name: constructor(getattr(jaxpar.nn, name)) for name in jaxpar.nn.__all__}
    return eval(text, names | {"jax": jax, "jnp": jnp, "np": np, "nnx": nnx})


def objective(outputs: list[Any], sin: Callable) -> Any:
    return sum((y**2 + sin(y)).mean() for y in outputs)


def record(outputs, by_input, gradients, state) -> dict[str, Arrays]:
    return {
        "outputs": {str(i): np.asarray(y) for i, y in enumerate(outputs)},
        "input gradients": {str(i): np.asarray(g) for i, g in enumerate(by_input)},
        "parameter gradients": gradients,
        "state": state,
    }


def rulebook(layer: Any) -> Callable[[Arrays], Arrays]:
    """The row of a layer of jaxpar.nn; a tensor that it does not name is an error."""
    rule = rule_for(layer)
    if rule is None:
        return dict
    surplus = getattr(rule, "surplus", {})

    def weights(tensors: Arrays) -> Arrays:
        used = {name for part in rule.parts_of_torch(tensors) for name in part.torch} | set(surplus)
        assert tensors.keys() <= used, f"the rulebook has no {sorted(tensors.keys() - used)}"
        return rule.to_flax(tensors)

    return weights


def torch_run(
    case: Case, net: Any, weights: Callable[[Arrays], Arrays], batches: list[list[np.ndarray]]
) -> list[dict[str, Arrays]]:
    """Records of all steps, and of one evaluation after them, in jaxpar's layout."""
    moves = _moves(case)
    parameters = dict(net.named_parameters()) if isinstance(net, torch.nn.Module) else {}
    records = []
    for i, batch in enumerate(batches):
        if isinstance(net, torch.nn.Module):
            net.train(i < STEPS)
        inputs = [torch.tensor(_to_torch(x, c)) for x, c in zip(batch, moves, strict=True)]
        floats = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        outputs = [y for y in jax.tree.leaves(case.call(net, *inputs, **case.options)) if torch.is_tensor(y)]
        loss = objective([y for y in outputs if y.is_floating_point()], torch.sin)
        wanted = [*floats, *parameters.values()]
        found = torch.autograd.grad(loss, wanted, allow_unused=True) if wanted else ()
        zeros = [
            torch.zeros_like(x) if g is None else g.to_dense() for x, g in zip(wanted, found, strict=True)
        ]
        by_input, gradients = zeros[: len(floats)], dict(zip(parameters, zeros[len(floats) :], strict=True))
        for name, p in parameters.items():
            p.data -= RATE * gradients[name]
        kinds = [c for x, c in zip(batch, moves, strict=True) if x.dtype.kind == "f"]
        records.append(
            record(
                [_from_torch(y.detach().numpy(), moves[0]) for y in outputs],
                [_from_torch(g.numpy(), c) for g, c in zip(by_input, kinds, strict=True)],
                weights({name: g.numpy().copy() for name, g in gradients.items()}),
                weights(_tensors(net)),
            )
        )
    return records


def jaxpar_run(
    case: Case, net: Any, start: Arrays, batches: list[list[np.ndarray]]
) -> list[dict[str, Arrays]]:
    module = net if isinstance(net, nnx.Module) else None
    if module is not None:
        variables = _variables(module)
        assert start.keys() == variables.keys(), f"torch has {sorted(start)}, jaxpar {sorted(variables)}"
        for name, variable in variables.items():
            shape, dtype = variable[...].shape, variable[...].dtype
            assert start[name].shape == shape, f"{name}: torch's {start[name].shape}, jaxpar's {shape}"
            variable.set_value(jnp.asarray(start[name], dtype))
    records = []
    steps: dict[bool, Callable] = {}
    for i, batch in enumerate(batches):
        if module is not None:
            module.train() if i < STEPS else module.eval()
        step = steps.setdefault(module is None or i < STEPS, _step(case, net))
        inputs = [jnp.asarray(x) for x in batch]
        floats = [x for x in inputs if jnp.issubdtype(x.dtype, jnp.inexact)]
        outputs, by_input, gradients, state = step(module and nnx.state(module), floats, inputs)
        if module is not None:
            nnx.update(module, state)
        flat = {} if module is None else {k: np.asarray(v[...]) for k, v in _variables(module).items()}
        outputs = jax.tree.leaves(outputs)
        records.append(record(outputs, by_input, _flat(gradients), flat))
    return records


def _step(case: Case, net: Any) -> Callable:
    """One compiled step: outputs, gradients by floats and parameters, and the state after it."""
    graph = nnx.graphdef(net) if isinstance(net, nnx.Module) else None

    def step(state: Any, floats: list, inputs: list) -> Any:
        parameters, rest = ({}, {}) if graph is None else nnx.split_state(state, nnx.Param, ...)

        def run(parameters: Any, floats: list) -> Any:
            given = iter(floats)
            args = [next(given) if jnp.issubdtype(x.dtype, jnp.inexact) else x for x in inputs]
            module = net if graph is None else nnx.merge(graph, parameters, rest, copy=True)
            outputs = case.call(module, *args, **case.options)
            after = {} if graph is None else nnx.state(module)
            real = [y for y in jax.tree.leaves(outputs) if jnp.issubdtype(y.dtype, jnp.inexact)]
            return objective(real, jnp.sin), (outputs, after)

        (gradients, by_input), (outputs, after) = jax.grad(run, (0, 1), has_aux=True)(parameters, floats)
        if graph is not None:
            moved, rest = nnx.split_state(after, nnx.Param, ...)
            moved = jax.tree.map(lambda p, g: p - RATE * g, moved, gradients)
            after = nnx.merge_state(moved, rest)
        return outputs, by_input, gradients, after

    return jax.jit(step)


def _variables(module: nnx.Module) -> dict[str, nnx.Variable]:
    return _paths(nnx.state(module, nnx.Not(nnx.RngState)))


def _paths(state: Any) -> dict[str, nnx.Variable]:
    return {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}


def _flat(gradients: Any) -> Arrays:
    return {name: np.asarray(v[...]) for name, v in _paths(gradients).items()} if gradients else {}


def _tensors(net: Any) -> Arrays:
    tensors = net.state_dict() if isinstance(net, torch.nn.Module) else {}
    return {name: x.detach().numpy().copy() for name, x in tensors.items()}


def _moves(case: Case) -> tuple[int | None, ...]:
    return case.channels if isinstance(case.channels, tuple) else (case.channels,) * max(len(case.inputs), 1)


def _to_torch(x: np.ndarray, channels: int | None) -> np.ndarray:
    return x.copy() if channels is None or x.ndim <= channels else np.moveaxis(x, -1, channels).copy()


def _from_torch(x: np.ndarray, channels: int | None) -> np.ndarray:
    return x if channels is None or x.ndim <= channels else np.moveaxis(x, channels, -1)


# ---------------------------------------------------------------------------------------- the laws


def batches_of(case: Case) -> list[list[np.ndarray]]:
    random = np.random.RandomState(0)

    def one(given: Any) -> np.ndarray:
        if isinstance(given, tuple):
            return random.randn(*given)
        return np.asarray(given(random) if callable(given) else given)

    return [[one(given) for given in case.inputs] for _ in range(STEPS + 1)]


def difference(case: Case) -> float:
    """The largest relative difference of any tensor in any step; raises above TOLERANCE, naming it.

    Compared are outputs, gradients by inputs and by parameters, parameters and buffers after each
    of five steps of gradient descent, then the same in evaluation.
    """
    theirs, ours = torch_call(case.torch), jaxpar_call(case.jaxpar or case.torch)
    if isinstance(theirs, torch.nn.Module):
        theirs.double()
        random = np.random.RandomState(1)
        for p in theirs.parameters():
            p.data.copy_(torch.tensor(random.uniform(-1, 1, tuple(p.shape))))
    batches = batches_of(case)
    weights = case.weights or rulebook(ours)
    start = weights(_tensors(theirs))
    want = torch_run(case, theirs, weights, batches)
    got = jaxpar_run(case, ours, start, batches)
    largest = 0.0
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        when = f"step {i}" if i < STEPS else "evaluation"
        for part in b:
            # torch counts in int64, JAX in int32.
            here = {k: v.astype(b[part][k].dtype) if v.dtype.kind == "i" else v for k, v in a[part].items()}
            where = f"{when}: {part}"
            if case.clamps and CLAMPS_OTHERWISE and part == "input gradients":
                with pytest.raises(AssertionError, match=where):
                    assert_equal_trees(where, here, b[part], TOLERANCE)
            else:
                largest = max(largest, assert_equal_trees(where, here, b[part], TOLERANCE))
    return largest


def round_trip(case: Case) -> dict[str, Any]:
    """torch's tensors, to jaxpar's by the rulebook and back; raises unless they are the same."""
    tensors, ours = _tensors(torch_call(case.torch).double()), jaxpar_call(case.jaxpar or case.torch)
    rule = rule_for(ours)
    assert rule is not None, f"the rulebook has no {type(ours).__name__}"
    there = rule.to_flax(tensors)
    shapes = {name: variable[...].shape for name, variable in _variables(ours).items()}
    assert {name: x.shape for name, x in there.items()} == shapes
    back = rule.to_torch(there) | {name: np.asarray(x) for name, x in rule.surplus.items()}
    assert back.keys() == tensors.keys(), f"{sorted(back)} came back, not {sorted(tensors)}"
    for name, x in tensors.items():
        assert np.array_equal(back[name], x), f"{name} came back as another"
    return back


def refusal(row: Refused) -> str:
    """jaxpar's message; raises where jaxpar accepts the call, or where torch does and should not."""
    try:
        jaxpar_call(row.jaxpar)
    except row.error as error:
        message = str(error)
    else:
        raise AssertionError(f"{row.jaxpar} is not refused")
    assert row.reason in message, f"{row.jaxpar}: {message}"
    theirs = _torch_error(row)
    assert row.torch_too == (theirs is not None), f"torch and {row.torch}: {theirs}"
    return message


def _torch_error(row: Refused) -> Exception | None:
    try:
        net = torch_call(row.torch)
        if row.inputs:
            net(*(torch.zeros(shape) for shape in row.inputs))
    except Exception as error:
        return error
    return None
