"""held: a module with its values, in the form that a step needs, for each kind of module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import linen, nnx

from .._parallel.modules import Changes, Definition, view
from .._parallel.modules.function_view import Applied, AppliedView
from .._parallel.modules.linen_view import LinenView
from .._parallel.placement import Placement
from .._typing import PyTree, Static


@dataclasses.dataclass(frozen=True)
class Held:
    """A module on the devices of a process.

    Attributes:
      definition: the module without its values.
      values: its arrays, a list; form: the structure that they had.
      names: what each is called in errors.
      parameters: which of them get gradients.
      gradients: puts the list of gradients into the form that the user knows.
      commit: puts changed values back, or returns them where nothing holds them.
    """

    definition: Definition
    values: list
    form: Any
    names: list[str]
    parameters: tuple[int, ...]
    gradients: Callable[[list], PyTree]
    commit: Callable[[Changes], PyTree]


def hold_nnx(net: nnx.Module, wrt: Any, placement: Placement, known: dict) -> Held:
    """`net.module` is the module; gradients have the structure of `nnx.state(net, wrt)`, kept in `known`."""
    split: Any = view(net.module)
    values = split.values(placement)
    key = (split.definition, Static(wrt))
    if key not in known:
        known[key] = split.parameters(wrt), order_of_gradients(net, wrt, split)
    parameters, (form, order) = known[key]

    def gradients(flat: list) -> PyTree:
        return form.unflatten([flat[i] for i in order])

    structure: Any = jax.tree.structure(values)
    return Held(split.definition, values, structure, split.names, parameters, gradients, split.commit)


def order_of_gradients(net: nnx.Module, wrt: Any, split: Any, root: int = 1) -> tuple[Any, list[int]]:
    """The structure of `nnx.state(net, wrt)`, and which of the gradients stands where in it.

    `split` is the view of `net`, or of a module in it that is `root` names down.
    """
    paths = [split.definition.paths[i] for i in split.parameters(wrt)]
    state = nnx.from_flat_state(
        (path, leaf) for path, leaf in nnx.to_flat_state(nnx.state(net, wrt)) if path[root:] in paths
    )
    form: Any = jax.tree.structure(state)
    numbered = nnx.to_flat_state(form.unflatten(range(form.num_leaves)))
    at = {variable.get_raw_value(): path[root:] for path, variable in numbered}
    return form, [paths.index(at[i]) for i in range(form.num_leaves)]


def hold_linen(
    module: linen.Module, variables: PyTree, rngs: Any, mutable: Any, placement: Placement
) -> Held:
    """Gradients have the structure of `variables["params"]`."""
    split = LinenView(module.bind(variables, rngs=rngs, mutable=mutable))
    tree = split.values(placement)
    paths, form = jax.tree.flatten_with_path(tree)
    parameters = tuple(
        i for i, (path, _) in enumerate(paths) if [k.key for k in path[:2]] == ["variables", "params"]
    )
    names = [jax.tree_util.keystr(path[1:]) for path, _ in paths]
    inner: Any = jax.tree.structure(tree["variables"]["params"])

    def commit(changes: Changes) -> PyTree:
        split.commit(changes)
        return split.scope.mutable_variables()

    return Held(split.definition, [x for _, x in paths], form, names, parameters, inner.unflatten, commit)


def hold_function(function: Callable[..., Any], parameters: PyTree, placement: Placement) -> Held:
    """`function(parameters, *inputs)`; gradients have the structure of the parameters."""
    split = AppliedView(Applied(function, parameters))
    tree = split.values(placement)
    paths, form = jax.tree.flatten_with_path(tree)
    names = ["parameters" + jax.tree_util.keystr(path) for path, _ in paths]
    trained = tuple(range(len(paths)))
    whole: Any = form
    return Held(split.definition, [x for _, x in paths], form, names, trained, whole.unflatten, split.commit)
