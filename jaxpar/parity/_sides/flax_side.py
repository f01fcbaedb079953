"""FlaxSide: a compiled step of the Flax model in one element type, alone or in jaxpar's DataParallel."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..._typing import PyTree
from .._exactness import as_it_runs, in_users_width
from .._reach import LINES, some
from .._weights.tree import FlaxModule, Variables
from .call_arguments import Call
from .constants import Constants
from .flax_choices import Choices
from .flax_dropout import is_dropout, rate_of
from .flax_float64 import in_float64, with_choices
from .flax_net import Arrays, cast, flax_net
from .jax_in_types import JaxTypes
from .lines_run import LinesRun, files_of
from .outputs import Outputs, outputs_of
from .step_data import OWN, Batch, Named, Observation, Task, factors, in_type_of, noting_layout, real_parts

LONG = 5e9
"""The floating-point operations of a program that is worth optimizations. Without them, compilation takes a
third of the time, and each of a few steps half as long again."""
Options = dict[str, Any]
PLAIN: Options = {"xla_cpu_use_fusion_emitters": False}
"""Without MLIR's emitters, which take two thirds of the time of compilation and save none."""
FEW: Options = {"xla_backend_optimization_level": 0}
MORE: Options = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}

R = TypeVar("R")


class FlaxSide:
    """A copy of the model with floating leaves in `dtype` ("float64", "bfloat16"; OWN keeps their types).

    float64 needs x64 wherever the methods are called. `factors` are the default loss's, in Flax's layout.
    """

    is_recorded = False

    def __init__(
        self,
        module: FlaxModule,
        task: Task,
        dtype: str,
        variables: Variables | None = None,
        factors: Named | None = None,
        ignored: Collection[str] = (),
        constants: Constants | None = None,
    ):
        self.factors, self.ignored = factors, frozenset(ignored)
        # Filled in while the step is traced, and shared by all copies that use the same compiled step.
        self.returned = Outputs({})
        self.modal: dict[str, None] = {}  # layers that do otherwise in the other mode
        self.choices, self.lines = Choices(), LinesRun(files_of(module))
        self.task, self.dtype = task, dtype
        self.net = flax_net(module, variables, task, None if dtype == OWN else dtype)
        self.constants = (constants or Constants()) if dtype == "float64" else None
        if self.constants:
            self._take(self.constants)
        self.types: JaxTypes | None = None
        self.tx = task.optimizer[1] if task.optimizer else None
        # One program for forward pass, backward pass and update, as in training. The optimizer's state is an
        # argument, so that all steps run the same program.
        # A `CompiledStep` takes no arrays that are placed otherwise, as replicas' are after a step.
        few = self.constants is not None and task.replicas == 1
        self._step: Callable[..., Any] = CompiledStep(self._compute) if few else jax.jit(self._compute)
        # For the shapes of the outputs, which the default loss needs, and then for the step.
        self._traced = jax.jit(self._watched(self._forward))
        self._shares_trace = few and task.loss is None
        self._start()

    def _take(self, constants: Constants) -> None:
        net = self.net
        named = {**net.named_parameters(net.parameters), **net.named_extra_state(net.extra_state)}
        leaves = {path: named[path] for path in self.ignored if path in named} | net.named_constants()
        arrays = {path: np.asarray(x) for path, x in leaves.items()}
        narrow = {path: x.astype(np.float32) for path, x in arrays.items() if x.dtype == np.float64}
        values = {path: constants(x, path) for path, x in narrow.items() if np.array_equal(x, arrays[path])}
        net.parameters, net.extra_state = net.filled(net.parameters, net.extra_state, values)

    def _start(self) -> None:
        self.parameters, self.extra_state = self.net.parameters, self.net.extra_state
        with self._settings():
            state = self.tx.init(self.parameters) if self.tx else ()
        # State in a narrower type would become float64 in the first step, and the second would recompile.
        memory = np.float64 if self.constants else self.types.memory if self.types else None
        self.opt_state = state if memory is None else cast(state, jnp.dtype(memory))

    def restarted(self) -> FlaxSide:
        side = copy.copy(self)
        side._start()
        return side

    def unoptimised(self) -> FlaxSide:
        """Compile the step without fusion: no multiply-add, no reordered sums."""
        side = copy.copy(self)
        # XLA for TPUs rejects this option.
        options = {} if jax.default_backend() == "tpu" else {"xla_backend_optimization_level": 0}
        side._step = jax.jit(side._compute, compiler_options=options)
        return side

    def in_types(self, types: JaxTypes, parameters: str | None = None) -> FlaxSide:
        """Return this side with other types of its operations, its optimizer's state and its parameters."""
        side = copy.copy(self)
        side.types, side._step = types, jax.jit(side._compute)
        if parameters is not None:
            side.net = copy.copy(self.net)
            side.net.parameters = cast(self.net.parameters, jnp.dtype(parameters))
        side._start()
        return side

    def step(
        self, batch: Batch, masks: tuple[np.ndarray, ...] = (), keep: bool = True, reseeded: bool = False
    ) -> Observation:
        """Take a training step; without `keep`, this object is unchanged."""
        with self._settings(), noting_layout(self.task.layout, batch.flax_call):
            call, extra_state = self.call(batch), self.extra_state
            if reseeded:
                extra_state, call = self.net.reseeded(extra_state, call)
            targets = self._arrays(batch.targets) if self.task.loss else self.loss_factors(batch, masks)
            before = self.parameters, extra_state, self.opt_state
            results = self._step(*before, call, targets, masks)
            loss, outputs, (gradients, of_inputs), flags, *after = results
            self.choices.add(flags)
        if keep:
            self.parameters, self.extra_state, self.opt_state = after
        return Observation(
            outputs=_numpy(outputs),
            loss={"": np.asarray(loss)} if self.task.loss else {},
            input_gradients={
                flax_name: np.asarray(of_inputs[flax_name]) for flax_name, _ in batch.common.values()
            },
            gradients=self._shown(self.net.named_parameters(gradients)),
            state=self._shown(self.net.named_extra_state(after[1])),
            weights=self._shown(self.net.named_parameters(after[0])),
        )

    def weights(self) -> Named:
        return self._shown(self.net.named_parameters(self.parameters))

    def state(self) -> Named:
        return self._shown(self.net.named_extra_state(self.extra_state))

    def load(self, weights: Named, state: Named) -> None:
        named = {**weights, **state}
        self.parameters, self.extra_state = self.net.filled(self.parameters, self.extra_state, named)

    def _shown(self, named: Arrays) -> Named:
        return _numpy({path: x for path, x in named.items() if path not in self.ignored})

    def _compute(
        self,
        parameters: PyTree,
        extra_state: PyTree,
        opt_state: PyTree,
        call: Call,
        targets: Any,
        masks: tuple,
    ) -> tuple:
        def forward(parameters: PyTree, floating: Arrays) -> tuple:
            with self.lines:
                call_of_step = call.with_arrays(floating)
                outputs, after = self.net.apply(parameters, extra_state, call_of_step, masks, self._noted)
                leaves = self.leaves(outputs)
                return self._loss(outputs, leaves, targets), leaves, after

        def objective(parameters: PyTree, floating: Arrays) -> tuple:
            if self._shares_trace:
                arguments = parameters, extra_state, call.with_arrays(floating), masks
                (leaves, after), flags = self._traced(*arguments)
                return self._loss(None, leaves, targets), (leaves, after, flags)
            (loss, *results), flags = self._watched(forward)(parameters, floating)
            return loss, (*results, flags)

        # Only floating inputs, because jax.grad raises for tokens and masks.
        floating = {name: x for name, x in call.arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        if not self._shares_trace:
            self.choices.names.clear()
        gradient = jax.value_and_grad(objective, (0, 1), has_aux=True)
        (loss, (outputs, after, flags)), gradients = gradient(parameters, floating)
        del self.choices.names[len(flags) :]  # without the names from an earlier trace of the update
        if self.tx:
            update = self._watched(self._update)
            (parameters, opt_state), more = update(gradients[0], opt_state, parameters)
            flags += more
        return loss, outputs, gradients, flags, parameters, after, opt_state

    def _watched(self, function: Callable[..., R]) -> Callable[..., tuple[R, list[Any]]]:
        if self.constants is None:
            if self.types:
                function = (self.types.update if function == self._update else self.types)(function)
            return lambda *arguments: (function(*arguments), [])
        return with_choices(function, self.constants, self.choices if self.task.replicas == 1 else None)

    def _noted(
        self, path: str, layer: FlaxModule, call: Callable[..., PyTree], args: tuple, kwargs: dict
    ) -> PyTree:
        drops = is_dropout(layer) and rate_of(layer)
        if drops or hasattr(layer, "use_running_average") or hasattr(layer, "moving_mean"):
            self.modal[path] = None
        return call(*args, **kwargs)

    def _update(self, gradients: PyTree, opt_state: PyTree, parameters: PyTree) -> tuple[PyTree, PyTree]:
        assert self.tx
        updates, opt_state = self.tx.update(gradients, opt_state, parameters)
        # optax.apply_updates, but for trees that hold NNX variables.
        return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), parameters, updates), opt_state

    def leaves(self, outputs: PyTree) -> Arrays:
        """Called in tracing, because outputs need not be a pytree."""
        names = self.task.outputs
        chosen = None if names is None else {flax: torch for torch, flax in names.items()}
        compared = outputs_of("the Flax module", outputs, is_array, chosen)
        self.returned.sole, self.returned.left_out = compared.sole, compared.left_out
        self.returned.numbers = compared.numbers
        return compared.arrays

    def _loss(self, outputs: PyTree, leaves: Arrays, targets: PyTree) -> jax.Array:
        if self.task.loss:
            return self.task.loss[1](outputs, *targets)
        parts = real_parts(leaves)
        terms = (jnp.sum(parts[name] * x) for name, x in targets.items())
        return sum(terms, jnp.zeros((), jnp.float32 if self.dtype == OWN else jnp.dtype(self.dtype)))

    def loss_factors(self, batch: Batch, masks: tuple[np.ndarray, ...]) -> Arrays:
        if self.factors is not None:
            return {name: self.array(x) for name, x in self.factors.items()}
        call = self.call(batch)
        # Abstractly: the loss depends on the outputs' shapes, and running the step needs the loss.
        (leaves, _), _ = self._traced.eval_shape(self.parameters, self.extra_state, call, masks)
        outputs = jax.eval_shape(real_parts, leaves)
        back = self.task.layout.outputs_back
        shapes = {
            name: back(np.broadcast_to(np.zeros((), np.float32), x.shape)).shape
            for name, x in outputs.items()
        }
        projection = factors(shapes, self.task.seed)
        projection = {name: in_type_of(self.dtype, x) for name, x in projection.items()}
        return {name: self.array(self.task.layout.outputs(x)) for name, x in projection.items()}

    def _forward(self, parameters: PyTree, extra_state: PyTree, call: Call, masks: tuple) -> tuple:
        self.choices.names.clear()
        with self.lines:
            outputs, after = self.net.apply(parameters, extra_state, call, masks, self._noted)
            return self.leaves(outputs), after

    def intercepted(
        self, batch: Batch, masks: tuple[np.ndarray, ...], arrays: PyTree, handler_of: Callable[[PyTree], Any]
    ) -> tuple[Any, Named, Named]:
        """Run the model forward under a handler of its layers' calls, in float64.

        `handler_of` makes the handler from `arrays`. Returns its `records`, the outputs and the state.
        """
        return self.interception(handler_of)(batch, masks, arrays)

    def interception(self, handler_of: Callable[[PyTree], Any]) -> Callable[..., tuple[Any, Named, Named]]:
        """Return `intercepted` as a function of batch, masks and arrays, which is compiled once."""

        def run(parameters: PyTree, extra_state: PyTree, call: Call, masks: tuple, arrays: PyTree) -> tuple:
            handler = handler_of(arrays)
            outputs, after = self.net.apply(parameters, extra_state, call, masks, handler)
            return handler.records, self.leaves(outputs), self.net.named_extra_state(after)

        # Arguments of the compiled function rather than constants: XLA would spend minutes folding these.
        compiled = jax.jit(in_float64(run))

        def intercepted(batch: Batch, masks: tuple[np.ndarray, ...], arrays: PyTree) -> Any:
            results = compiled(self.parameters, self.extra_state, self.call(batch), masks, arrays)
            return jax.tree.map(np.asarray, results)

        return intercepted

    def called(self, batch: Batch) -> frozenset[str]:
        """Return the paths of Equinox's and Haiku's layers that a call of the model calls."""
        paths: set[str] = set()

        def note(path: str, layer: Any, call: Callable[..., PyTree], args: tuple, kwargs: dict) -> PyTree:
            paths.add(path)
            return call(*args, **kwargs)

        def run(parameters: PyTree, extra_state: PyTree, call: Call) -> None:
            self.net.apply(parameters, extra_state, call, (), note)

        if self.net.is_pytree:
            jax.eval_shape(in_float64(run), self.parameters, self.extra_state, self.call(batch))
        return frozenset(paths)

    @property
    def notes(self) -> list[str]:
        return self.net.notes

    def gaps(self, training: bool) -> Iterator[str]:
        """Yield what the model's own code did not do in the steps of this side and its copies."""
        if names := self.choices.one_sided():
            yield f"JAX's code takes one side of {some(names, LINES)}"
        if names := self.lines.left_out():
            yield f"JAX's code in {some(names, LINES)}"
        if names := [*self.modal]:
            modes = ("training", "evaluation") if training else ("evaluation", "training")
            yield f"{modes[0]}: what JAX's layers do in {modes[1]} ({some(names)})"

    def draws(self, batch: Batch) -> bool:
        return self.net.draws(self.extra_state, batch.flax_call)

    def call(self, batch: Batch) -> Call:
        return batch.flax_call.map(self.array)

    def _arrays(self, arrays: tuple[np.ndarray, ...]) -> tuple[jax.Array, ...]:
        return tuple(self.array(self.task.layout.inputs(x)) for x in arrays)

    def array(self, x: np.ndarray) -> jax.Array:
        return (
            jnp.asarray(x)
            if self.dtype == OWN
            else cast(jnp.asarray(in_users_width(x)), jnp.dtype(self.dtype))
        )

    def _settings(self) -> AbstractContextManager[None]:
        return as_it_runs() if self.dtype == OWN else nullcontext()


def is_array(leaf: object) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _numpy(named: Arrays) -> Named:
    return {name: np.asarray(x) for name, x in named.items()}


class CompiledStep:
    """A function of trees of arrays, compiled once for their shapes and types."""

    def __init__(self, function: Callable[..., Any]):
        self._jitted = jax.jit(function)
        self._compiled: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        key = structure, *((jnp.shape(x), jnp.result_type(x)) for x in leaves)
        if key not in self._compiled:
            lowered: Any = self._jitted.lower(*arguments)
            is_long = lowered.cost_analysis().get("flops", 0.0) >= LONG
            self._compiled[key] = lowered.compile(compiler_options=compiler_options(is_long) or None)
        return self._compiled[key](*arguments)


def compiler_options(is_long: bool = False) -> Options:
    """Return the options under which compilation and a few calls take the least time."""
    # Only XLA's compiler for CPUs has been measured; that for TPUs refuses the options.
    if jax.default_backend() != "cpu":
        return {}
    return (MORE if is_long else FEW) | (PLAIN if _is_option(*PLAIN) else {})


@functools.cache
def _is_option(name: str) -> bool:
    """Return whether the installed XLA has an option of its compiler."""
    try:
        jax.jit(lambda x: x + 1).lower(0.0).compile(compiler_options={name: False})
    except jax.errors.JaxRuntimeError:
        return False
    return True
