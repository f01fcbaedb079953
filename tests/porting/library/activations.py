"""Activations by name."""

from torch import nn


class ClassInstantier(dict):
    """Makes a new one each time."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


ACT2FN = ClassInstantier(gelu=nn.GELU, silu=nn.SiLU)
