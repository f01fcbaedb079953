from . import functional as functional
from ._batch_norm import BatchNorm as BatchNorm
