"""optimizer_calls: which optimizer updates which network, and with which of the step's gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from flax import nnx

from .._parallel.modules.bundle import nets_of
from .._parallel.modules.nnx_view import NNXView, view_nnx
from .._typing import PyTree, TreeDef
from .arrays import order_of_gradients
from .evaluation import Evaluation, with_extra_arguments


class OptimizerCall(NamedTuple):
    form: TreeDef  # the structure in which the optimizer takes gradients
    order: tuple[int, ...]  # each leaf's index in the step's gradients

    def __call__(
        self,
        net: nnx.Module,
        optimizer: nnx.Optimizer,
        parameters: list,
        gradients: list,
        evaluation: Evaluation,
    ) -> None:
        def parameters_of(params: PyTree) -> list:
            leaves_of, moved = getattr(optimizer, "leaves_of", None), list(parameters)
            leaves = jax.tree.leaves(params) if leaves_of is None else leaves_of(net, params, self.form)
            for i, x in zip(self.order, leaves, strict=True):
                moved[i] = x
            return moved

        tx = optimizer.tx
        optimizer.tx = with_extra_arguments(tx, evaluation, parameters_of)
        optimizer.update(net, self.tree(gradients))
        optimizer.tx = tx

    def user_tree(self, net: nnx.Module, optimizer: nnx.Optimizer, flat: list) -> PyTree:
        """Return gradients, or parameters, in the structure that the user has: an NNX state, or params."""
        tree_of = getattr(optimizer, "tree_of", None)
        return self.tree(flat) if tree_of is None else tree_of(net, self.tree(flat))

    def tree(self, flat: list) -> nnx.State:
        return self.form.unflatten([flat[i] for i in self.order])


def optimizer_calls(net: Any, optimizer: Any, split: NNXView) -> tuple[tuple[int, ...], list[OptimizerCall]]:
    """Return which values in `split`, the view of `net` or of what it wraps, are trained, and the calls."""
    pairs = list(zip(nets_of(net), nets_of(optimizer), strict=True))
    trained = [_trained(*pair, split) for pair in pairs]
    parameters = tuple(sorted(set().union(*trained)))
    at = {i: k for k, i in enumerate(parameters)}
    calls = []
    for (one, its), indices in zip(pairs, trained, strict=True):
        form, order = order_of_gradients(one, its.wrt, view_nnx(one), root=0)
        calls.append(OptimizerCall(form, tuple(at[indices[i]] for i in order)))
    return parameters, calls


def _trained(net: nnx.Module, optimizer: nnx.Optimizer, split: NNXView) -> list[int]:
    view = view_nnx(net)
    parameters = view.parameters(optimizer.wrt)
    if len(view.leaves) == len(split.leaves):
        return list(parameters)
    # By identity: a variable that two networks share is one value, and both optimizers move it.
    position = {id(leaf): i for i, leaf in enumerate(split.leaves)}
    return [position[id(view.leaves[i])] for i in parameters]
