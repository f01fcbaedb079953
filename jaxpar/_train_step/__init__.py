"""train_step: forward, loss, backward and optimizer as one compiled program that gives its memory back.

torch runs these one after the other; a JAX step is fast when it is one program whose old state is donated to
the new one, and when nobody waits for its results. `train_step` is that program for a plain module, a
DataParallel (loss of the gathered outputs) and a DistributedDataParallel (loss of each replica). The module
and the optimizer stay the user's: after every step they hold its results.

`whole` and `replicas` are the programs, `update` what follows the gradients, `state` the way between objects
and arrays, `batch` the way of a batch to the devices.
"""

from .evaluate import eval_step
from .train import TrainStep, train_step

__all__ = ["TrainStep", "eval_step", "train_step"]
