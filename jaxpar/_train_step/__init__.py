"""train_step: forward, loss, backward and optimizer as one compiled program that gives its memory back.

torch runs these one after the other; a JAX step is fast when it is one program whose old state is donated to
the next one, and when nobody waits for its results. `train_step` is that program for a plain module, a
DataParallel (loss of the gathered outputs) and a DistributedDataParallel (loss of each replica). The module
and the optimizer stay the user's: after every step they hold its results.

`whole` and `replicas` are the programs, `update` what follows the gradients, `finite` the look at these,
`reports` how the host hears of it, `told` what ranks compare; `state` is the way between objects and arrays,
`batch` what is said of a batch before it is used, `ahead` how far Python runs ahead of virtual devices.
"""

from .evaluate import eval_step
from .train import TrainStep, train_step

__all__ = ["TrainStep", "eval_step", "train_step"]
