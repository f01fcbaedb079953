"""Optimizer: Flax's, with a learning rate that can be read and set as in torch."""

from __future__ import annotations

from typing import Any

import optax
from flax import nnx

from ._groups import ParamGroup, param_groups_of


class Optimizer(nnx.Optimizer):
    """`nnx.Optimizer` with `lr` and `param_groups`.

    >>> from flax import nnx
    >>> from jaxpar import optim
    >>> optimizer = optim.Optimizer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), optim.sgd(lr=0.1, momentum=0.9))
    >>> optimizer.lr = 0.01
    >>> optimizer.lr
    0.01

    Args:
      model: an NNX module.
      tx: an optax transformation. Its rate can be set if it is one of `jaxpar.optim` that was made with a
        number, alone, in `optax.chain` or in `param_groups`, or of `optax.inject_hyperparams`.
      wrt: what is trained.

    The rate is an array of the optimizer's state: setting it compiles nothing, and it is saved with it.

    torch counterpart: `torch.optim.Optimizer`; there the group is a dict of all hyperparameters.
    """

    def __init__(
        self,
        model: Any,
        tx: optax.GradientTransformation,
        *,
        wrt: nnx.filterlib.Filter = nnx.Param,
        **kwargs: Any,
    ):
        super().__init__(model, tx, wrt=wrt, **kwargs)
        for group in self.param_groups:
            if "lr" in group:
                group["lr"] = group["lr"]  # a whole number, from optax.inject_hyperparams, becomes a float

    @property
    def param_groups(self) -> list[ParamGroup]:
        """A group for each of `optim.param_groups`, or one: `optimizer.param_groups[1]["lr"] = 0.01`."""
        return param_groups_of(self)

    @property
    def lr(self) -> float:
        """The learning rate of all groups; a traced array inside `jax.jit`.

        Raises: HyperparameterError: it is not in the state. ValueError, when read: the groups differ.
        """
        rates = [group["lr"] for group in self.param_groups]
        # Traced rates cannot be compared on the host.
        if isinstance(rates[0], float) and len(set(rates)) > 1:
            raise ValueError(
                f"Optimizer.lr: the groups have the rates {rates}; read optimizer.param_groups[i]['lr']."
            )
        first: float = rates[0]
        return first

    @lr.setter
    def lr(self, value: Any) -> None:
        for group in self.param_groups:
            group["lr"] = value
