"""The proof of training lines: execute them as written and compare with torch's objects.

From the same weights, with the same gradients, both optimizers take a few steps in float64. Both schedulers
take many more. Options whose effect a few steps do not show are compared as numbers.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx

from jaxpar import optim

from ....errors import PortError
from ..._comparison import Comparison
from ..._exactness import environment
from ..._sides.flax_float64 import in_float64
from ..._sides.step_data import Task
from ..._sides.torch_float64 import in_float64 as torch_in_float64
from ..._weights import Links
from ..._weights.tree import tree_of
from ...measuring import Difference, Kind, Policy, judge, measure
from . import optimizer as optimizers

RATES = 300
POLICY = Policy(relative=1e-12)

Named = dict[str, np.ndarray]


def normal(random: np.random.RandomState, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(random.standard_normal(shape))


@dataclasses.dataclass(frozen=True)
class OptimizerTrial:
    """A parabola in each parameter, redrawn at each step, as the loss."""

    steps: int = 5
    pull: float = 0.5  # the coefficient of the gradient's linear part
    draw: Callable[[np.random.RandomState, tuple[int, ...]], np.ndarray] = normal  # its constant part
    wide: bool = True


def one_in_a_row(random: np.random.RandomState, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a matrix with one number per row and column, so that its products are exact in any order."""
    matrix = np.zeros(shape)
    np.fill_diagonal(matrix, random.choice([-2.0, -1.0, 0.5, 1.0], min(shape)))
    return matrix[:, ::-1]


TRIALS = {
    # It divides by differences of gradients, which amplifies a change of the last bit within a few steps.
    "LBFGS": OptimizerTrial(steps=1),
    # It computes in bfloat16 by definition, where sums of many terms depend on their order.
    "Muon": OptimizerTrial(pull=0.0, draw=one_in_a_row, wide=False),
}


@dataclasses.dataclass(frozen=True)
class TrainingSides:
    """Torch's objects, and the Flax module with torch's weights, all in float64."""

    net: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    flax: nnx.Module
    links: Links
    paths: Mapping[str, str]  # of Flax's parameters, `head/kernel`, by their names in `links`


def compared(training: TrainingSides, source: str, line: str) -> Comparison:
    """Compare the lines with torch; `line`, the optimizer's, is executed once more to record its options."""
    started = time.perf_counter()
    differences = _options(training, line)
    # On a copy, because the steps leave the optimizer at the end of its schedule.
    differences += _rates(copy.deepcopy(training), source) if training.scheduler else []
    differences += _weights(training, source)
    name = type(training.optimizer).__name__
    return Comparison(
        level=POLICY.level,
        rows=judge(differences, POLICY),
        steps=max(difference.step for difference in differences if difference.kind is Kind.WEIGHT),
        environment=environment(Task(), "float64"),
        seconds=time.perf_counter() - started,
        policy=POLICY,
        subject=f"torch.optim.{name} against the lines",
    )


def _executed(source: str, flax: nnx.Module) -> tuple[optim.Optimizer, Any]:
    namespace: dict[str, Any] = {"net": flax}
    try:
        exec(compile(source, "train.py", "exec"), namespace)
    except Exception as error:
        raise PortError(
            f"jaxpar.parity.port: the lines fail, {type(error).__name__}: {error}:\n{source}"
        ) from error
    return namespace["optimizer"], namespace.get("scheduler")


def _options(training: TrainingSides, line: str) -> list[Difference]:
    function = optimizers.function_of(training.optimizer)
    calls: list[Mapping[str, Any]] = []

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> optax.GradientTransformation:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        calls.append(bound.arguments)
        transformation: optax.GradientTransformation = function(*args, **kwargs)
        return transformation

    # Executed rather than parsed: a call shows the defaults of options that the line leaves out.
    members = {**{name: getattr(optim, name) for name in dir(optim)}, function.__name__: recorded}
    exec(compile(line, "train.py", "exec"), {"net": training.flax, "optim": SimpleNamespace(**members)})
    torch_options = [
        optimizers.options_of(training.optimizer, group) for group in training.optimizer.param_groups
    ]
    flax_options = [
        {name: call[name] for name in group} for call, group in zip(calls, torch_options, strict=False)
    ]
    return measure(_numbers({"options": flax_options}), _numbers({"options": torch_options}), Kind.STATE)


def _rates(training: TrainingSides, source: str) -> list[Difference]:
    optimizer, scheduler = _executed(source, training.flax)
    optimizer.step.set_value(jnp.ones((), jnp.uint32))  # the schedulers' count starts after an update
    groups = len(training.optimizer.param_groups)
    flax_steps: list[Named] = []
    torch_steps: list[Named] = []
    for t in range(RATES):
        flax_steps.append(_of_groups(optimizer.param_groups[:groups]))
        torch_steps.append(_of_groups(training.optimizer.param_groups))
        if _over(training.scheduler, t) | _over(scheduler, t):
            break
    common = torch_steps[0].keys() & flax_steps[0].keys()
    rates = [_stacked(steps, common) for steps in (flax_steps, torch_steps)]
    states = [_numbers(_state(scheduler_, groups)) for scheduler_ in (scheduler, training.scheduler)]
    pairs = rates, states
    return [difference for a, b in pairs for difference in measure(a, b, Kind.STATE, len(torch_steps))]


def _over(scheduler: Any, t: int) -> bool:
    """Take a step; return whether the schedule has ended, as OneCycleLR's does."""
    try:
        _advance(scheduler, t)
    except ValueError:
        return True
    return False


def _advance(scheduler: Any, t: int) -> None:
    """Take a step; the metric of ReduceLROnPlateau falls for ten steps, then stays constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the optimizer has not stepped
        if "ReduceLROnPlateau" in type(scheduler).__name__:
            scheduler.step(1 / (1 + min(t, 10)))
        else:
            scheduler.step()


def _of_groups(groups: Iterable[Any]) -> Named:
    values = {}
    # Adam's beta1 is the momentum that cyclic schedulers change; the two sides store it differently.
    for i, group in enumerate(groups):
        for name in ("lr", "momentum", "beta1"):
            if name in group:
                values[f"param_groups.{i}.{name}"] = np.asarray(float(group[name]))
        if "betas" in group:
            values[f"param_groups.{i}.beta1"] = np.asarray(float(group["betas"][0]))
    return values


def _stacked(steps: list[Named], names: Iterable[str]) -> Named:
    return {name: np.array([step[name] for step in steps]) for name in sorted(names)}


def _state(scheduler: Any, groups: int) -> Any:
    """Return a state_dict's entries that both sides have, without the frozen group."""
    state = {key: x for key, x in scheduler.state_dict().items() if key not in _FLAGS}
    if "_schedulers" in state:
        state["_schedulers"] = [_state(member, groups) for member in scheduler._schedulers]
    return {
        key: x[:groups] if isinstance(x, list) and len(x) == groups + 1 and key in _PER_GROUP else x
        for key, x in state.items()
    }


_FLAGS = {"_get_lr_called_within_step", "_is_initial", "optimizer", "lr_lambdas", "_scale_fn_custom"}
"""Entries that torch does not have, or that are not numbers."""
_PER_GROUP = {"base_lrs", "_last_lr", "max_lrs", "min_lrs", "base_momentums", "max_momentums"}


def _numbers(value: Any, path: str = "") -> Named:
    """Flatten dicts and lists to arrays, by path; strings become bytes, and None becomes NaN."""
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value)).items()
    elif isinstance(value, str):
        return {path: np.frombuffer(value.encode(), np.uint8)}
    else:
        return {path: np.asarray(math.nan if value is None else float(value))}
    return {
        name: x for key, child in parts for name, x in _numbers(child, f"{path}.{key}".lstrip(".")).items()
    }


def _weights(training: TrainingSides, source: str) -> list[Difference]:
    tree = tree_of(training.flax)
    optimizer, scheduler = _executed(source, training.flax)
    trial = TRIALS.get(type(training.optimizer).__name__, OptimizerTrial())
    move = _mover(optimizer, trial)
    differences = []
    for number in range(1, trial.steps + 1):
        drawn = _drawn(training.net, trial, number)
        with torch_in_float64() if trial.wide else nullcontext():
            training.optimizer.step(_closure(training.net, drawn, trial.pull))
        move(training, training.links.to_flax({name: x.numpy() for name, x in drawn.items()}, gradient=True))
        for scheduler_ in (training.scheduler, scheduler):
            if scheduler_ is not None:
                _advance(scheduler_, number)
        flax_weights = {name: np.asarray(x) for name, x in tree.values().items() if name in training.paths}
        differences += measure(
            flax_weights, training.links.parameters(parameters_of(training.net)), Kind.WEIGHT, number
        )
    return differences


def parameters_of(net: torch.nn.Module) -> Named:
    return {name: x.detach().numpy().copy() for name, x in net.named_parameters()}


def _drawn(net: torch.nn.Module, trial: OptimizerTrial, number: int) -> dict[str, torch.Tensor]:
    random = np.random.RandomState(number)
    return {
        name: torch.from_numpy(trial.draw(random, tuple(x.shape)).copy())
        for name, x in net.named_parameters()
    }


def _closure(
    net: torch.nn.Module, drawn: Mapping[str, torch.Tensor], pull: float
) -> Callable[[], torch.Tensor]:
    def closure() -> torch.Tensor:
        # The gradient has a closed form; LBFGS also needs the loss, at each point that it tries.
        loss = torch.zeros((), dtype=torch.float64)
        with torch.no_grad():
            for name, x in net.named_parameters():
                x.grad = drawn[name] + pull * x if x.requires_grad else None
                loss = loss + (drawn[name] * x + pull / 2 * x * x).sum()
        return loss

    return closure


def _mover(optimizer: optim.Optimizer, trial: OptimizerTrial) -> Callable[[TrainingSides, Named], None]:
    def move(params: Any, state: Any, drawn: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> jax.Array:
            terms = jax.tree.map(lambda x, n: (n * x + trial.pull / 2 * x * x).sum(), params, drawn)
            return jax.tree.reduce(jnp.add, terms)

        value, gradients = jax.value_and_grad(loss)(params)
        # LBFGS needs value and value_fn; the wrapper drops them for the others.
        tx = optax.with_extra_args_support(optimizer.tx)
        updates, state = tx.update(gradients, state, params, value=value, value_fn=loss)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(in_float64(move) if trial.wide else move)

    def step(training: TrainingSides, drawn: Named) -> None:
        state = nnx.state(training.flax, nnx.Param)
        names = {path: name for name, path in training.paths.items()}
        state_paths = [path for path, _ in nnx.to_flat_state(state)]
        arrays = nnx.from_flat_state([(path, drawn[names["/".join(map(str, path))]]) for path in state_paths])
        params, after = compiled(nnx.as_pure(state), nnx.as_pure(optimizer.opt_state), nnx.as_pure(arrays))
        nnx.update(training.flax, params)
        nnx.update(optimizer.opt_state, nnx.state(after))
        optimizer.step[...] += 1

    return step
