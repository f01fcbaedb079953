"""The Flax model at work: one compiled step, in one element type, alone or in jaxpar's DataParallel."""

from __future__ import annotations

import copy
from collections.abc import Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._typing import PyTree
from .._weights.tree import FlaxModule, Variables
from .constants import Constants
from .flax_float64 import in_float64
from .flax_net import Arrays, cast, flax_net
from .outputs import outputs_of
from .task import Batch, Named, Seen, Task, factors, same


class FlaxSide:
    """A copy of the model, its floating leaves in `dtype` ("float64", "bfloat16").

    float64 needs x64 on wherever the methods are called.

    Args:
      factors: of the default loss, in Flax's layout, where they are known already.
      ignored: paths of leaves that keep their own values and are not shown.
      constants: in float64, what becomes of arrays that had been rounded before.
    """

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
        self.sole: str | None = None
        self.task, self.dtype = task, jnp.dtype(dtype)
        self.net = flax_net(module, variables, task, dtype)
        if constants and self.dtype == np.float64:
            self._take(constants)
        self.tx = task.optimizer[1] if task.optimizer else None
        self._in_type = partial(in_float64, constants=constants) if self.dtype == np.float64 else same
        # One program for the forward and backward pass and the update, as in training. The optimizer's state
        # is an argument, so all steps run the same program.
        self._step = jax.jit(self._compute)
        self._start()

    def _take(self, constants: Constants) -> None:
        """Leaves that keep their own values are constants, if they are float32's."""
        net = self.net
        named = {**net.named_parameters(net.parameters), **net.named_rest(net.rest)}
        own = {path: np.asarray(named[path]) for path in self.ignored if path in named}
        narrow = {path: x.astype(np.float32) for path, x in own.items() if x.dtype == np.float64}
        values = {path: constants(x, path) for path, x in narrow.items() if np.array_equal(x, own[path])}
        net.parameters, net.rest = net.filled(net.parameters, net.rest, values)

    def _start(self) -> None:
        self.parameters, self.rest = self.net.parameters, self.net.rest
        state = self.tx.init(self.parameters) if self.tx else ()
        # A state that the optimizer keeps in another type would change its type with the first step.
        self.opt_state = cast(state, self.dtype) if self.dtype == np.float64 else state

    def restarted(self) -> FlaxSide:
        """A side as this one was when it was made, with the same compiled step."""
        side = copy.copy(self)
        side._start()
        return side

    def step(self, batch: Batch, masks: tuple[np.ndarray, ...] = (), keep: bool = True) -> Seen:
        """Forward, backward, and the optimizer's step if there is one.

        Without `keep` the side stays as it was.
        """
        inputs = self._arrays(batch.inputs)
        targets = self._arrays(batch.targets) if self.task.loss else self.loss_factors(batch, masks)
        before = self.parameters, self.rest, self.opt_state
        loss, outputs, (gradients, of_inputs), *after = self._step(*before, inputs, targets, masks)
        if keep:
            self.parameters, self.rest, self.opt_state = after
        return Seen(
            outputs=_numpy(outputs),
            loss={"": np.asarray(loss)} if self.task.loss else {},
            input_gradients={str(i): np.asarray(x) for i, x in of_inputs.items()},
            gradients=self._shown(self.net.named_parameters(gradients)),
            state=self._shown(self.net.named_rest(after[1])),
            weights=self._shown(self.net.named_parameters(after[0])),
        )

    def weights(self) -> Named:
        return self._shown(self.net.named_parameters(self.parameters))

    def state(self) -> Named:
        return self._shown(self.net.named_rest(self.rest))

    def load(self, weights: Named, state: Named) -> None:
        """Takes over weights and state, by the paths of the leaves."""
        self.parameters, self.rest = self.net.filled(self.parameters, self.rest, {**weights, **state})

    def _shown(self, named: Arrays) -> Named:
        return _numpy({path: x for path, x in named.items() if path not in self.ignored})

    def _compute(
        self, parameters: PyTree, rest: PyTree, opt_state: PyTree, inputs: tuple, targets: Any, masks: tuple
    ) -> tuple:
        def objective(parameters: PyTree, floating: dict[int, jax.Array]) -> tuple:
            whole = tuple(floating.get(i, x) for i, x in enumerate(inputs))
            outputs, after = self.net.apply(parameters, rest, whole, masks)
            leaves = self._leaves(outputs)
            return self._loss(outputs, leaves, targets), (leaves, after)

        # Tokens and masks have no gradient, and JAX refuses to be asked for one.
        floating = {i: x for i, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating)}
        gradient = jax.value_and_grad(self._in_type(objective), (0, 1), has_aux=True)
        (loss, (outputs, after)), gradients = gradient(parameters, floating)
        if self.tx:
            parameters, opt_state = self._in_type(self._update)(gradients[0], opt_state, parameters)
        return loss, outputs, gradients, parameters, after, opt_state

    def _update(self, gradients: PyTree, opt_state: PyTree, parameters: PyTree) -> tuple[PyTree, PyTree]:
        updates, opt_state = self.tx.update(gradients, opt_state, parameters)
        # As optax.apply_updates, for trees that hold NNX variables.
        return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), parameters, updates), opt_state

    def _leaves(self, outputs: PyTree) -> Arrays:
        """By name, while the step is traced: what a model returns need not be a pytree."""
        found = outputs_of("the Flax module", outputs, is_array)
        self.sole = found.sole
        return found.arrays

    def _loss(self, outputs: PyTree, leaves: Arrays, targets: PyTree) -> jax.Array:
        if self.task.loss:
            return self.task.loss[1](outputs, *targets)
        terms = (jnp.sum(leaves[name] * x) for name, x in targets.items())
        return sum(terms, jnp.zeros((), self.dtype))

    def loss_factors(self, batch: Batch, masks: tuple[np.ndarray, ...]) -> Arrays:
        """The default loss's factors of the outputs, made from the shapes that torch has."""
        if self.factors is not None:
            return {name: self.array(x) for name, x in self.factors.items()}
        inputs = self._arrays(batch.inputs)
        # By shapes alone: the outputs are needed to know the loss, and the loss to run the step.
        outputs = jax.eval_shape(self._outputs, self.parameters, self.rest, inputs, masks)
        back = self.task.layout.outputs_back
        shapes = {
            name: back(np.broadcast_to(np.zeros((), np.float32), x.shape)).shape
            for name, x in outputs.items()
            if jnp.issubdtype(x.dtype, jnp.floating)
        }
        made = factors(shapes, self.task.seed)
        return {name: self.array(self.task.layout.outputs(x)) for name, x in made.items()}

    def _outputs(self, *arguments: Any) -> Arrays:
        return self._leaves(self.net.apply(*arguments)[0])

    def _arrays(self, arrays: tuple[np.ndarray, ...]) -> tuple[jax.Array, ...]:
        return tuple(self.array(self.task.layout.inputs(x)) for x in arrays)

    def array(self, x: np.ndarray) -> jax.Array:
        return cast(jnp.asarray(x), self.dtype)


def named_leaves(tree: PyTree) -> Arrays:
    """The arrays in what a layer or a model returned, by their place."""
    return outputs_of("the Flax module", tree, is_array).arrays


def is_array(leaf: object) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _numpy(named: Arrays) -> Named:
    return {name: np.asarray(x) for name, x in named.items()}
