"""A vision transformer in torch, as small as it gets (Dosovitskiy et al., 2020, https://arxiv.org/abs/2010.11929)."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self, image=32, patch=8, width=64, depth=4, heads=4, num_classes=10, dropout=0.1):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        # a place for each patch, and one for the token of the class
        self.places = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes)
        nn.init.trunc_normal_(self.places, std=0.02)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return F.log_softmax(self.head(self.norm(x)[:, 0]), dim=-1)


def make_optimizer(net, warmup=100, steps=1000):
    """AdamW, without weight decay of biases, norms and tokens; the rate rises, and falls along a cosine."""
    matrices = [x for x in net.parameters() if x.ndim in (2, 4)]
    others = [x for x in net.parameters() if x.ndim not in (2, 4)]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, weight_decay=0.1)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - warmup)
    return optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup])
