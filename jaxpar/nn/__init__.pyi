from ._batch_norm import BatchNorm as BatchNorm
