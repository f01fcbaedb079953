"""state_optimizer: trees of arrays as NNX objects, and a TrainState without parameters as an optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._tree import has_shape
from .._typing import PyTree, Static
from .division import whole_shape, whole_value

KindOf = Callable[[str, Any], Any]


class TreeFields:
    """The leaves of `tree` as Variables of `owner`, each named by its path.

    `kind_of(name, leaf)` returns a leaf's type of Variable, or None for a leaf that is code and not data (an
    activation, a text), which is a part of the compiled program.
    """

    def __init__(self, owner: Any, tree: PyTree, kind_of: KindOf):
        pairs, form = jax.tree.flatten_with_path(tree)
        self.form, self.names = Static(form), _names([path for path, _ in pairs])
        self._name_at = {path: name for name, (path, _) in zip(self.names, pairs, strict=True)}
        statics: list[Static | None] = []
        for name, (_, leaf) in zip(self.names, pairs, strict=True):
            kind = kind_of(name, leaf)
            statics.append(Static(leaf) if kind is None else None)
            if kind is not None:
                setattr(owner, name, kind(_array(leaf)))
        self.statics = tuple(statics)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeFields) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.names, self.form, self.statics

    def fits(self, tree: PyTree, kind_of: KindOf) -> bool:
        """Whether a tree differs from this one in nothing but its arrays."""
        leaves, form = jax.tree.flatten(tree)
        return Static(form) == self.form and self.statics == tuple(
            Static(leaf) if kind_of(name, leaf) is None else None
            for name, leaf in zip(self.names, leaves, strict=True)
        )

    def read(self, owner: Any) -> PyTree:
        return self.tree_of(lambda name: whole_value(getattr(owner, name)))

    def tree_of(
        self, value_of: Callable[[str], Any], static_of: Callable[[Any], Any] = lambda leaf: leaf
    ) -> PyTree:
        """Return the tree with `value_of(name)` for every array, `static_of(leaf)` for other leaves."""
        pairs = zip(self.names, self.statics, strict=True)
        leaves = [value_of(name) if static is None else static_of(static.value) for name, static in pairs]
        return self.form.value.unflatten(leaves)

    def by_name(self, tree: PyTree) -> dict[str, Any]:
        """Return the leaves of a part of the tree by their names."""
        return {self._name_at[path]: leaf for path, leaf in jax.tree.leaves_with_path(tree)}

    def write(self, owner: Any, tree: PyTree) -> None:
        """Set the arrays of a part of the tree."""
        for path, value in jax.tree.leaves_with_path(tree):
            name = self._name_at.get(path)
            if name is None:
                raise ValueError(
                    f"train_step: {dotted(path)} is another leaf than the module's variables had at first; "
                    "put what a forward makes into the loss function's aux instead."
                )
            if hasattr(owner, name):
                getattr(owner, name)[...] = value

    def replacements(
        self, owner: Any, tree: PyTree, before: PyTree = None
    ) -> Iterable[tuple[nnx.Variable, Any]]:
        """Yield Variables with their next arrays, except for leaves that the tree `before` has as well.

        Raises ValueError for another structure or shape, and for a leaf that is code and differs.
        """
        leaves, form = jax.tree.flatten(tree)
        if Static(form) != self.form:
            raise ValueError(
                f"TrainStep.state: its structure is {form} and the step's is {self.form}. {REMAKE}"
            )
        old = itertools.repeat(None) if before is None else jax.tree.leaves(before)
        for name, static, leaf, unchanged in zip(self.names, self.statics, leaves, old, strict=False):
            if static is not None and leaf is not unchanged and static != Static(leaf):
                raise ValueError(
                    f"TrainStep.state: {name} is {leaf!r:.60} and was {static!r:.60}, which is compiled. "
                    f"{REMAKE}"
                )
            if static is not None or leaf is unchanged:
                continue
            variable = getattr(owner, name)
            current = whole_shape(variable)
            if jnp.shape(leaf) != current.shape:
                raise ValueError(
                    f"TrainStep.state: {name} has shape {list(jnp.shape(leaf))} and the step's has "
                    f"{list(current.shape)}. {REMAKE}"
                )
            # A Python number is weakly typed, as in a loop by hand, and does not widen what it multiplies.
            array = leaf if has_shape(leaf) else jnp.asarray(leaf)
            yield variable, array if array.dtype == current.dtype else jnp.asarray(leaf, current.dtype)


REMAKE = "Make a step of the other state: train_step(net, state, loss_fn)."


def dotted(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _names(paths: list[Any]) -> tuple[str, ...]:
    names = tuple(map(dotted, paths))
    if len(set(names)) < len(names):  # {"a.b": x, "a": {"b": y}}
        names = tuple("".join(map(str, path)) for path in paths)
    return names


def _array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)


PARAMS = "params"


class StateOptimizer(nnx.Optimizer):
    """A state without the variables that a net holds, named `without`; an update is its `apply_gradients`."""

    def __init__(self, state: Any, without: tuple[str, ...]):
        self.without, self.wrt, self.tx = without, nnx.Param, getattr(state, "tx", None)
        self.fields = TreeFields(self, self._bare(state), _kind)

    def state(self, net: Any) -> Any:
        return self.fields.read(self).replace(**held_by(net).variables)

    def update(self, model: Any, grads: Any, **kwargs: Any) -> None:
        net, state = held_by(model), self.state(model)
        if self.tx is not None:  # a step's, which is given the loss
            state = state.replace(tx=self.tx)
        after = state.apply_gradients(grads=self._gradients(net, grads), **kwargs)
        net.fields.write(net, {PARAMS: after.params})
        after = after.replace(opt_state=jax.tree.map(_moment, after.opt_state, state.opt_state))
        self.fields.write(self, self._bare(after))

    def tree_of(self, net: Any, state: nnx.State) -> Any:
        """Return values of what is trained in the structure of the parameters, None for what is not."""
        of_name = _by_name(state)
        return held_by(net).fields.tree_of(of_name.get, lambda leaf: None)[PARAMS]

    def _gradients(self, net: Any, grads: nnx.State) -> Any:
        """Return gradients of all parameters, zero for what is not trained, whose result is not read."""
        of_name = _by_name(grads)

        def gradient(name: str) -> Any:
            return of_name[name] if name in of_name else jnp.zeros(getattr(net, name).shape)

        def zero(leaf: Any) -> Any:
            return jnp.zeros(()) if isinstance(leaf, (int, float, complex)) else leaf

        return net.fields.tree_of(gradient, zero)[PARAMS]

    def leaves_of(self, net: Any, params: Any, form: Any) -> list:
        """Return the trained leaves of a tree of parameters in the order of the structure `form`."""
        of_name = held_by(net).fields.by_name({PARAMS: params})
        numbered = nnx.to_flat_state(form.unflatten(range(form.num_leaves)))
        name_at = {variable.get_raw_value(): path[-1] for path, variable in numbered}
        return [of_name[name_at[i]] for i in range(form.num_leaves)]

    def replacements(self, net: Any, state: Any, before: Any = None) -> Iterable[tuple[nnx.Variable, Any]]:
        """Yield Variables of net and optimizer with a state's arrays, except for those that `before` has.

        Raises TypeError, ValueError: it is a different model's or optimizer's.
        """
        if not is_train_state(state):
            raise TypeError(f"TrainStep.state: it must be like step.state, not {type(state).__name__}.")
        old = (None, None) if before is None else self._parts(before)
        owners, parts = (self, held_by(net)), self._parts(state)
        for owner, part, other in zip(owners, parts, old, strict=True):
            yield from owner.fields.replacements(owner, part, other)

    def _parts(self, state: Any) -> tuple[Any, dict[str, PyTree]]:
        """Return what the optimizer holds of a state, and what the net holds."""
        return self._bare(state), {name: getattr(state, name) for name in self.without}

    def _bare(self, state: Any) -> Any:
        return state.replace(**dict.fromkeys(self.without))


def is_train_state(state: Any) -> bool:
    """Whether it has what Flax's TrainState has."""
    return all(hasattr(state, name) for name in (PARAMS, "opt_state", "apply_gradients", "replace"))


def _by_name(state: nnx.State) -> dict[str, Any]:
    return {path[-1]: leaf[...] for path, leaf in nnx.to_flat_state(state)}


def _moment(new: Any, old: Any) -> Any:
    """Return a moment in its old type; one of an integer, which is not trained, stays as it was."""
    floats = jnp.issubdtype(jnp.result_type(new), jnp.floating)
    if floats and jnp.issubdtype(jnp.result_type(old), jnp.integer):
        return old
    # Hyperparameters of optax.inject_hyperparams have one parameter's type, and would widen others' moments.
    return new.astype(old.dtype) if floats and new.dtype != old.dtype else new


def held_by(net: Any) -> Any:
    """Return what holds a state's variables: the net, or what it wraps."""
    return net if hasattr(net, "fields") else net.module


def _kind(name: str, leaf: Any) -> type[nnx.Variable] | None:
    del name
    return nnx.OptState if has_shape(leaf) or isinstance(leaf, (int, float, complex, np.generic)) else None
