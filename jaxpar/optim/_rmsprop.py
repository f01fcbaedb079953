"""RMSprop, plain or centered, with momentum."""

from __future__ import annotations

import optax

from ._hyperparameters import Scalar, ScalarOrSchedule, check_nonnegative
from ._leafwise import gradient_stages, scale_by_lr
from ._settable import settable
from ._sgd import momentum_stages


@settable("lr", "momentum")
def rmsprop(
    lr: ScalarOrSchedule = 1e-2,
    alpha: Scalar = 0.99,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    momentum: ScalarOrSchedule = 0.0,
    centered: bool = False,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """RMSprop as torch does it.

    Args:
      lr, momentum, weight_decay, maximize: as for `sgd`; so are the errors.
      alpha: decay of the mean square.
      eps: added to the root.
      centered: divide by the standard deviation instead of the root of the mean square.

    torch counterpart: `torch.optim.RMSprop`. `optax.rmsprop` applies the learning rate before the momentum,
    which differs as soon as it changes. Source: torch/optim/rmsprop.py.

    >>> from jaxpar import optim
    >>> tx = optim.rmsprop(lr=1e-2, momentum=0.9, centered=True)
    """
    check_nonnegative(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
    scale = optax.scale_by_stddev if centered else optax.scale_by_rms
    return optax.chain(
        *gradient_stages(weight_decay, maximize),
        scale(alpha, eps, eps_in_sqrt=False),
        *momentum_stages(momentum, 0, False),
        scale_by_lr(lr, "rmsprop"),
    )
