"""Modules that hand records on, and ask torch what it is and does."""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

OLDEST = "2.0"
is_exporting = getattr(torch.compiler, "is_exporting", None)


def parts_of(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]


def is_older(version: str) -> bool:
    return parts_of(torch.__version__) < parts_of(version)


def is_eager():
    if is_exporting is not None:
        return not is_exporting()
    return True


@dataclass
class Record:
    scores: torch.Tensor
    values: torch.Tensor | None = None


class Attends(nn.Module):
    """A record that gets its second array from the caller, and a softmax that is bound in two steps."""

    def __init__(self, axis=-1):
        super().__init__()
        softmax = partial(F.softmax, dim=axis)
        self.softmax = partial(softmax, dtype=torch.float32)

    def forward(self, x):
        scores = self.softmax(x @ x.mT)
        return scores @ x, Record(scores)


class Records(nn.Module):
    """The record is the call's own, so that an array may be set in it."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.attend = Attends()
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, x):
        x, record = self.attend(x)
        record.values = x * self.bias
        return record.values + record.scores.sum(), self.bias


class Asks(nn.Module):
    """What is known before anything is computed: torch's version, its functions, the form of memory."""

    inputs = ((2, 3, 4, 4),)

    def __init__(self):
        super().__init__()
        if is_older(OLDEST):
            raise RuntimeError(f"torch {OLDEST} is needed")
        distances = (torch.arange(4)[:, None] - torch.arange(4)).abs()
        lengths, self.inverse = torch.unique(distances, return_inverse=True)
        self.table = nn.Parameter(torch.arange(float(len(lengths))))
        self.name = f"at least {OLDEST}"

    def forward(self, x):
        if is_eager() and not x.is_pinned():
            x = x.to(memory_format=torch.channels_last)
        mask = torch.ones(4, 4, device=x.device).triu_(1).bool()
        kind = torch.promote_types(x.dtype, self.table.dtype)
        x = x.where(mask, self.table[self.inverse])
        return x.sum((2, 3), dtype=kind), x.mean(1, dtype=kind, keepdim=True), x.select(-2, -1)


class Norm(nn.LayerNorm):
    """LayerNorm in the type of its input, with weights or without."""

    def forward(self, x):
        weight = self.weight.to(x.dtype) if self.weight is not None else None
        bias = self.bias.to(x.dtype) if self.bias is not None else None
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Compared(nn.Module):
    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.first, self.second = Norm(4), Norm(4, elementwise_affine=False)
        self.out = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        x = self.out(self.second(self.first(x)))
        return x if self.out.weight is not None and self.out.bias is None else -x


class Rounded(nn.Module):
    """Its property `dtype` is a constant, and not the type of its parameters."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @property
    def dtype(self):
        return torch.bfloat16

    def forward(self, x):
        return self.linear(x.to(self.dtype).to(x.dtype))
