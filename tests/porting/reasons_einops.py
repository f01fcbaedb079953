"""einops: its functions take JAX's arrays as they are, and its layers are those functions."""

from functools import partial

import torch
from einops import rearrange, reduce
from einops.layers.torch import Rearrange, Reduce
from torch import nn


class Patches(nn.Module):
    inputs = ((4, 3, 6, 6),)

    def __init__(self, width=4):
        super().__init__()
        self.patches = nn.Sequential(Rearrange("b c (h p) w -> b h w (p c)", p=3), nn.Linear(9, width))
        self.mean = Reduce("b h w c -> b h c", "mean")

    def forward(self, x):
        x = x - reduce(x, "b ... -> b 1 1 1", partial(torch.var, unbiased=False))
        return rearrange(self.mean(self.patches(x)), "b h c -> b (h c)")
