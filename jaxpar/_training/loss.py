"""loss: a function of a module and a batch, its value and the gradient of the module's parameters."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._parallel.modules import Changes, Definition
from .._parallel.parallel_apply import cast_on_replicas
from .._parallel.replicated import plain_arguments
from .._typing import REPLICA, PyTree, Static, TreeDef
from ..errors import LossError
from .precision import Precision


class Value(NamedTuple):
    """The loss, its auxiliary outputs, the module's changed values, and the list of gradients."""

    loss: PyTree
    aux: PyTree
    changes: Changes
    gradients: list


class Forward(NamedTuple):
    """A value before differentiation. For several networks the loss may be a tuple with one for each."""

    scaled: jax.Array  # the number that is differentiated
    loss: PyTree
    aux: PyTree
    changes: Changes


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss function and its module. Hashable: part of a program's key."""

    definition: Definition  # the module without its values
    form: TreeDef  # the structure of its values
    parameters: tuple[int, ...]  # the values' leaves that get gradients
    function: Static  # `function(module, *args, **kwargs)`, the loss or with `has_aux` (loss, aux)
    has_aux: bool = False
    precision: Precision | None = None  # the computing type; None keeps the values' types
    on_replicas: bool = False  # the module is a DataParallel, whose replicas cast the parameters
    groups: tuple[tuple[int, ...], ...] = ()  # for several networks, each one's parameters
    sums: tuple[int, ...] = ()  # the values that are sums over rows

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:  # every step needs it, to look up its program
        made_of = self.definition, self.form, self.parameters, self.function, self.sums
        return hash((made_of, self.has_aux, self.precision, self.on_replicas, self.groups))

    def __call__(self, values: list, *arguments: Any) -> Value:
        """Return the loss of one batch, and the gradients of the scaled loss; arguments as `forward`'s."""

        def scaled(parameters: list[jax.Array]) -> tuple[jax.Array, Forward]:
            forward = self.forward(self.with_parameters(values, parameters), *arguments)
            return forward.scaled, forward

        trained = [values[i] for i in self.parameters]
        (_, forward), gradients = jax.value_and_grad(scaled, has_aux=True)(trained)
        return Value(forward.loss, forward.aux, forward.changes, gradients)

    def with_parameters(self, values: list, parameters: list) -> list:
        full = list(values)
        for i, value in zip(self.parameters, parameters, strict=True):
            full[i] = value
        return full

    def forward(
        self,
        values: list,
        replica: jax.Array | None,
        args: tuple,
        kwargs: dict[str, Any],
        scale: jax.Array | None = None,
    ) -> Forward:
        """Return the loss of one batch, to be differentiated."""
        args, kwargs = self._cast((args, kwargs))
        loss, aux, changes = self._run(values, replica, args, kwargs)
        objective = loss
        if isinstance(loss, tuple):
            # torch: `loss.backward(inputs=list(net.parameters()))`, one after the other. What these runs have
            # in common, which is the forward pass, XLA computes once.
            variants = [self._only(group, values) for group in self.groups]
            objective = sum(self._run(x, replica, args, kwargs)[0][i] for i, x in enumerate(variants))
        return Forward(objective if scale is None else objective * scale, loss, aux, changes)

    def _only(self, group: tuple[int, ...], values: list) -> list:
        """Return the values, with other networks' parameters as constants."""
        others = {i for k, i in enumerate(self.parameters) if k not in group}
        return [jax.lax.stop_gradient(x) if i in others else x for i, x in enumerate(values)]

    def _run(
        self, values: list, replica: jax.Array | None, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[PyTree, PyTree, Changes]:
        full = list(values)
        casts: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.precision is not None and self.on_replicas:
            # On the replicas, so that gradients are float32 again before they are summed over the devices.
            casts = cast_on_replicas(self.precision.compute)
        else:
            for i in self.parameters:
                full[i] = self._cast(values[i])
        module = self.form.unflatten(full)
        with casts, _axis_noted(), plain_arguments((args, kwargs)) as (plain, named):
            result, changes = self.definition.apply(self.function.value, module, replica, plain, named)
        loss, aux = _split(result, self.has_aux, len(self.groups))
        if self.precision is not None:
            # At least float32 for the loss scale and the mean over replicas, as under torch's autocast.
            loss = jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), loss)
        return loss, aux, changes

    def _cast(self, tree: PyTree) -> PyTree:
        return tree if self.precision is None else self.precision.cast(tree)


def _split(result: Any, has_aux: bool, networks: int) -> tuple[PyTree, PyTree]:
    if has_aux and not (isinstance(result, tuple) and len(result) == 2):
        raise LossError(f"loss_fn: with has_aux=True it returns (loss, aux), not {_described(result)}.")
    loss, aux = result if has_aux else (result, ())
    if networks and isinstance(loss, tuple):
        if len(loss) != networks:
            raise LossError(
                f"loss_fn: it returned {len(loss)} losses for {networks} networks. Return one loss that "
                "trains all of them, or one for each."
            )
        for number in loss:
            _check_number(number)
    else:
        _check_number(loss)
    return loss, aux


def _check_number(loss: Any) -> None:
    shape = getattr(loss, "shape", None)
    if shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise LossError(
            "loss_fn: grad can be implicitly created only for scalar outputs, and it returned "
            f"{_described(loss)}. Return one real number, for instance with .mean(); with more than the "
            "loss, pass has_aux=True."
        )


def _described(result: Any) -> str:
    shape = getattr(result, "shape", None)
    return type(result).__name__ if shape is None else f"{result.dtype}{list(shape)}"


@contextlib.contextmanager
def _axis_noted() -> Iterator[None]:
    try:
        yield
    except NameError as error:
        if "unbound axis name" in str(error):
            error.add_note(
                "train_step averages gradients itself, so a loss needs no pmean. For other values: the "
                f'replicas of a DistributedDataParallel are the axis "{REPLICA}", '
                f'jax.lax.pmean(x, "{REPLICA}"); a DataParallel\'s loss function has the outputs of all rows.'
            )
        raise
