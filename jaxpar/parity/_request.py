"""Request: the validated arguments of `compare`, and the values derived from them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen, nnx

from .._upstream.keras_layers import is_of_keras
from ._model_pair import Inputs, ModelInputs, ModelPair, Outputs, linked, output_pairs
from ._reach import SHAKE, shake
from ._sides.call_arguments import Call, to_array
from ._sides.outputs import named
from ._sides.step_data import OWN, Batch, Layout, Loss, Optimizer, Task, targets_of
from ._sides.torch_dropout import refuse_unwatchable
from ._sides.torch_side import TorchFunction
from ._tensors import is_tensor, tensor_of
from ._weights.mapping import Entries
from ._weights.pytree_model import as_flax, is_of_torch
from ._weights.tree import FlaxModule, Variables
from .measuring import Level, Policy

Arrays = Any  # one array, a tuple of arrays, or a function of the step number (from 1) that returns either
DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Request:
    torch_module: torch.nn.Module
    flax_module: FlaxModule
    inputs: Inputs
    torch_inputs: Inputs
    flax_inputs: Inputs
    outputs: Outputs | None
    targets: Arrays
    loss: Loss | Callable[..., Any] | None
    optimizer: Optimizer | Callable[..., Any] | None
    steps: int | None
    replicas: int
    level: str | Level
    dtype: str
    resync: bool
    training: bool | None
    shake: bool | None
    layout: str | tuple[str, str] | Layout
    mapping: Entries | None
    ignore_torch: Sequence[str]
    ignore_flax: Sequence[str]
    weights: str
    variables: Variables | None
    torch_kwargs: Mapping[str, Any] | None
    flax_kwargs: Mapping[str, Any] | None
    seed: int
    policy: Policy | None
    search: str | float | None
    started: float = dataclasses.field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        reference, candidate = self._models()
        object.__setattr__(self, "torch_module", reference)
        object.__setattr__(self, "flax_module", candidate)
        if is_of_torch(candidate):
            for name in ("loss", "optimizer"):
                if callable(function := getattr(self, name)):
                    object.__setattr__(self, name, (function, function))  # of both
        level = self.parsed_level
        if self.step_count < 1 or self.replicas < 1:
            raise ValueError(
                f"parity.compare: steps={self.step_count} and replicas={self.replicas} must be at least 1."
            )
        if self.step_count > 1 and not self.optimizer:
            raise ValueError(
                f"parity.compare: steps={self.steps} without an optimizer are all the same step. Give "
                "optimizer=(lambda parameters: torch.optim.SGD(parameters, 0.1), optax.sgd(0.1))."
            )
        if level is Level.TRAJECTORY and not self.optimizer:
            raise ValueError("parity.compare: level='trajectory' compares updates; give an optimizer.")
        if level in (Level.NUMERIC, Level.AS_IT_RUNS) and self.step_count > 1:
            raise ValueError(
                f"parity.compare: level={level.value!r} is about one step; for several there is 'trajectory'."
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"parity.compare: dtype={self.dtype!r} is none of {', '.join(DTYPES)}.")
        if self.weights not in ("torch", "own"):
            raise ValueError(f"parity.compare: weights={self.weights!r} is neither 'torch' nor 'own'.")
        if self.shake and self.weights == "own":
            raise ValueError(
                "parity.compare: shake=True perturbs torch's weights and copies them to Flax, which "
                "weights='own' forbids. Perturb both models, or compare with weights='torch'."
            )
        if self.search not in ("full", "quick", None) and not (
            isinstance(self.search, int | float) and self.search > 0
        ):
            raise ValueError(
                f"parity.compare: search={self.search!r} is none of 'full', 'quick', None and a positive "
                "number of seconds."
            )
        for name in ("loss", "optimizer"):
            pair = getattr(self, name)
            if pair is not None and not (isinstance(pair, Sequence) and len(pair) == 2):
                raise TypeError(f"parity.compare: {name} is a pair, torch's and JAX's, not {pair!r}.")

    def _models(self) -> tuple[Any, Any]:
        """Return both models, functions as modules."""
        models = self.torch_module, self.flax_module
        inputs, kwargs = (self.torch_inputs, self.flax_inputs), (self.torch_kwargs, self.flax_kwargs)
        calls = [
            FunctionCall(model, self.inputs if separate is None else separate, options)
            for model, separate, options in zip(models, inputs, kwargs, strict=True)
        ]
        reference: Any = self.torch_module
        if calls[0].is_function and (not calls[0].runs_in_jax or calls[0].runs_in_torch):
            reference = TorchFunction(reference)
        if not isinstance(reference, torch.nn.Module):
            kind = type(reference).__name__
            raise TypeError(
                f"parity.compare: the first argument is a torch.nn.Module, not {kind}; a function is one of "
                "tensors. A comparison needs torch as its reference: compare each of two JAX models with "
                "their torch original, or their training runs with parity.Tap and parity.bisect."
            )
        if calls[1].is_function and not calls[1].runs_in_jax and calls[1].runs_in_torch:
            return reference, TorchFunction(self.flax_module)
        return reference, as_flax(self.flax_module)

    @functools.cached_property
    def task(self) -> Task:
        inputs = self.inputs if self.torch_inputs is None else self.torch_inputs
        first = Call.of(inputs(1) if callable(inputs) else inputs)
        layout = Layout.parse(self.layout).of_outputs(first.arrays.values())
        mode = self.torch_module.training
        training = mode if self.training is None else self.training
        return Task(
            training=training,
            own_modes=training == mode and any(x.training != mode for x in self.torch_module.modules()),
            loss=cast("Loss | None", self.loss),
            optimizer=cast("Optimizer | None", self.optimizer),
            replicas=self.replicas,
            layout=layout,
            seed=self.seed,
            outputs=output_pairs(self.outputs),
            channels_first=layout.in_torchs_axes,
        )

    @functools.cached_property
    def parsed_level(self) -> Level:
        return Level.parse(self.level)

    @functools.cached_property
    def step_count(self) -> int:
        if self.steps is not None:
            return self.steps
        # In its first step an optimizer has no memory yet: momentum and moments show in the second.
        return 2 if self.optimizer and self.parsed_level in (Level.SEMANTIC, Level.TRAJECTORY) else 1

    @property
    def explains_precision(self) -> bool:
        """Whether the types of operations are compared: at the semantic level, all of them are float64."""
        is_alone = self.replicas == 1 and self.search is not None and not is_of_torch(self.flax_module)
        return is_alone and self.parsed_level is not Level.SEMANTIC

    @property
    def search_seconds(self) -> float:
        return math.inf if self.search is None or isinstance(self.search, str) else self.search

    @functools.cached_property
    def bounds(self) -> Policy:
        return self.policy or Policy(self.parsed_level)

    @property
    def compute_dtype(self) -> str:
        return {Level.SEMANTIC: "float64", Level.AS_IT_RUNS: OWN}.get(self.parsed_level, self.dtype)

    def shaken(self, scale: float = SHAKE) -> Request:
        """Return the request with a torch module whose weights are perturbed by `scale`."""
        module = copy.deepcopy(self.torch_module)
        shake(module, scale)
        return dataclasses.replace(self, torch_module=module, shake=False)

    def pair(self) -> ModelPair:
        task, module, variables = self.task, self.flax_module, self.variables
        if task.training:
            refuse_unwatchable(self.torch_module, task.replicas)
            if isinstance(module, torch.nn.Module):
                refuse_unwatchable(module, task.replicas)
        call = self.batch(1).flax_call
        fill = self.weights == "torch"
        if isinstance(module, linen.Module) and variables is None and fill and self.ignore_flax:
            raise ValueError(
                f"parity.compare: ignore_flax={list(self.ignore_flax)} keep their values, and a Linen "
                "module has none; give variables=module.init(...)."
            )
        links, variables = linked(
            module,
            self.torch_module,
            call,
            variables,
            task,
            "parity.compare",
            fill=fill,
            mapping=self.mapping,
            ignore_torch=self.ignore_torch,
            ignore_flax=self.ignore_flax,
        )
        return ModelPair(self.torch_module, module, variables, task, links, self.weights)

    @functools.cached_property
    def model_inputs(self) -> ModelInputs:
        return ModelInputs(
            self.flax_module,
            self.task,
            (self.inputs, self.torch_inputs, self.flax_inputs),
            (self.torch_kwargs, self.flax_kwargs),
            self._array,
        )

    def batch(self, step: int) -> Batch:
        """Return a step's batch. All sides get values rounded to the dtype under test."""
        targets = targets_of(self.targets, step, self._array)
        return dataclasses.replace(self.model_inputs.batch(step), targets=targets)

    def _array(self, x: Any, name: str) -> np.ndarray:
        array = to_array(x, name)
        if self.compute_dtype == "float64" or not jnp.issubdtype(array.dtype, jnp.floating):
            return array
        if self.compute_dtype != OWN:
            return array.astype(jnp.dtype(self.compute_dtype))
        # float64 is NumPy's default, not the user's choice, and torch refuses to mix it with float32 weights.
        return array if array.dtype != np.float64 else array.astype(self._type_of_torch())

    def _type_of_torch(self) -> np.dtype:
        types = (x.dtype for x in self.torch_module.parameters() if x.is_floating_point())
        return jnp.dtype(str(next(types, torch.float32)).removeprefix("torch."))


class FunctionCall:
    """A model, and the arguments of its first call; `is_function` is False for modules and pytrees."""

    def __init__(self, model: Any, inputs: Any, kwargs: Mapping[str, Any] | None):
        self.model, self.inputs, self.kwargs = model, inputs, kwargs
        modules = torch.nn.Module | nnx.Module | linen.Module | type
        # An Equinox module is callable, too, and has leaves.
        is_pytree = not jax.tree_util.all_leaves([model])
        is_module = isinstance(model, modules) or is_of_keras(model)
        self.is_function = callable(model) and not is_pytree and not is_module

    @functools.cached_property
    def runs_in_jax(self) -> bool:
        return bool(self._tried(lambda call: jax.tree.leaves(jax.eval_shape(_calling(self.model), call))))

    @functools.cached_property
    def runs_in_torch(self) -> bool:
        def outputs(call: Call) -> list[Any]:
            return [*named(_calling(self.model)(call.map(_tensor)), is_tensor)]

        # Only tried: the function may draw random numbers.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return bool(self._tried(outputs))

    def _tried(self, outputs: Callable[[Call], list[Any]]) -> list[Any]:
        try:
            inputs = self.inputs(1) if callable(self.inputs) else self.inputs
            return outputs(Call.of(inputs, self.kwargs))
        except Exception:
            return []  # the user's code may raise anything on the other framework's arrays


def _calling(function: Callable[..., Any]) -> Callable[[Call], Any]:
    return lambda call: function(*call.args, **call.kwargs)


def _tensor(x: np.ndarray) -> torch.Tensor:
    return tensor_of(np.array(x, order="C"))
