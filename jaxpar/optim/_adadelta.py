"""Adadelta."""

from __future__ import annotations

import optax

from ._hyperparameters import Scalar, ScalarOrSchedule, check_nonnegative, check_numbers, is_number
from ._leafwise import gradient_stages, scale_by_lr
from ._settable import settable


@settable("lr")
def adadelta(
    lr: ScalarOrSchedule = 1.0,
    rho: Scalar = 0.9,
    eps: Scalar = 1e-6,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adadelta as `torch.optim.Adadelta` (torch/optim/adadelta.py).

    Args:
      lr, weight_decay, maximize: as for `sgd`; so are the errors.
      rho: decay of both means, of squared gradients and of squared updates.
      eps: added under both roots.

    >>> from jaxpar import optim
    >>> tx = optim.adadelta(lr=1.0, rho=0.9)
    """
    check_nonnegative(lr=lr)
    check_numbers(rho=rho)
    if is_number(rho) and not 0 <= rho <= 1:
        raise ValueError(f"Invalid rho value: {rho}")
    check_nonnegative(eps=eps, weight_decay=weight_decay)
    stages = gradient_stages(weight_decay, maximize)
    return optax.chain(*stages, optax.scale_by_adadelta(rho, eps), scale_by_lr(lr, "adadelta"))
