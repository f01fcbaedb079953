"""The trainings in torch, with a tap in their loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from jaxpar import parity

from .training import LENGTH, LETTERS, Training, batches, bfloat16, rate_at


class Regression(nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(10, 24), nn.Linear(24, 16), nn.Linear(16, 1)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.fc3(self.drop(torch.tanh(self.fc2(torch.tanh(self.fc1(x))))))


class Digits(nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head, self.drop = nn.Linear(8, 12), nn.Dropout(dropout)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = torch.relu(self.norm2(self.conv2(x))).mean((2, 3))
        return self.head(self.drop(x))


class Letters(nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        self.token, self.position = nn.Embedding(LETTERS + 1, 16), nn.Embedding(LENGTH, 16)
        self.norm1, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm2, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm, self.head, self.drop = (
            nn.LayerNorm(16),
            nn.Linear(16, LETTERS + 1, bias=False),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = self.token(x) + self.position.weight
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        weights = q @ k.transpose(1, 2) / 4
        weights = weights.masked_fill(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), -torch.inf)
        x = x + self.drop(self.out(weights.softmax(-1) @ v))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(self.norm(x))


MODELS = {"regression": Regression, "digits": Digits, "letters": Letters}


def initial(training: Training) -> nn.Module:
    """Return the model with the weights with which both frameworks begin."""
    torch.manual_seed(training.seed)
    model = MODELS[training.model](training.dropout)
    model.to(getattr(torch, training.dtype))
    if training.has("nudge"):
        with torch.no_grad():
            for p in model.parameters():
                signs = torch.from_numpy(np.sign(np.random.default_rng(1).standard_normal(p.shape))).to(
                    p.dtype
                )
                p.mul_(1 + signs * torch.finfo(p.dtype).eps)
    return model


def loss_of(training: Training, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if kind := training.has("cast pass"):
        small = getattr(torch, kind)
        cast = {name: p.to(small) for name, p in model.named_parameters()}
        output = torch.func.functional_call(model, cast, x.to(small) if x.is_floating_point() else x)
        output = output.to(getattr(torch, training.dtype))
    else:
        output = model(x)
    reduction = "sum" if training.has("sum") else "mean"
    if training.model == "regression":
        return F.mse_loss(output, y, reduction=reduction)
    smoothing = training.has("label smoothing") or 0.0
    return F.cross_entropy(
        output.reshape(-1, output.shape[-1]), y.reshape(-1), reduction=reduction, label_smoothing=smoothing
    )


def optimizer_of(training: Training, model: nn.Module) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1 or training.has("decay all")]},
        {
            "params": [p for p in model.parameters() if p.ndim < 2 and not training.has("decay all")],
            "weight_decay": 0.0,
        },
    ]
    groups = [group for group in groups if group["params"]]
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
    kind = torch.optim.Adam if training.has("coupled") else kinds[training.optimizer]
    return kind(groups, lr=1.0, weight_decay=training.weight_decay, **training.settings)


def run(training: Training, folder: Path) -> None:
    model = initial(training)
    dtype = getattr(torch, training.dtype)
    if momentum := training.has("momentum of buffers"):
        model.norm1.momentum = model.norm2.momentum = momentum
    optimizer = optimizer_of(training, model)
    taps = [
        parity.Tap(folder, start=model, full=(0,), rank=rank, world=training.world)
        for rank in range(training.world)
        if rank != training.has("missing rank")
    ]
    model.train(not training.has("evaluation mode"))
    if training.has("dropout mode"):
        model.drop.eval()
    stream = batches(training)
    torch.manual_seed(training.seed + 1 + (training.has("dropout seed") or 0))
    for step in range(training.steps):
        rate = rate_at(training, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        gradients: list[dict[str, torch.Tensor]] = []
        for _ in range(training.accumulate):
            x, y = next(stream)
            parts = np.array_split(np.arange(len(x)), training.world)
            if training.has("same rows"):
                parts = [parts[0]] * training.world
            for rank, rows in enumerate(parts):
                a = torch.from_numpy(np.ascontiguousarray(x[rows]))
                a = (a.movedim(-1, 1) if a.ndim == 4 else a).to(dtype) if a.is_floating_point() else a
                b = torch.from_numpy(np.ascontiguousarray(y[rows]))
                b = b.to(dtype) if b.is_floating_point() else b
                loss = loss_of(training, model, a, b)
                divided = 1 if training.has("accumulated sum") else training.accumulate
                total = loss / divided
                if penalty := training.has("penalty"):
                    total = loss = loss + penalty / 2 * sum((p**2).sum() for p in model.parameters())
                grads = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
                named = {
                    n: g for (n, _), g in zip(model.named_parameters(), grads, strict=True) if g is not None
                }
                gradients.append(named)
                reported = loss * (training.has("reported factor") or 1.0)
                if rank < len(taps):
                    taps[rank](step, batch=(a, b), loss=reported)
        finish(training, model, gradients)
        update(training, model, optimizer, step)
        for rank, tap in enumerate(taps):
            local = gradients[rank] if training.has("not averaged") else model
            tap(step, gradients=local, parameters=model, rate=rate, optimizer=optimizer, extra=model)
    for tap in taps:
        tap.close()


def finish(training: Training, model: nn.Module, gradients: list[dict[str, torch.Tensor]]) -> None:
    """Set the gradients as they enter the optimizer."""
    parts = gradients[:1] if training.has("not averaged") else gradients
    world = 1 if training.has("not averaged") or training.has("summed over processes") else training.world
    for name, p in model.named_parameters():
        if training.has("detached") and name.startswith(training.has("detached")):
            p.grad = torch.zeros_like(p)
            continue
        p.grad = torch.stack([part[name] for part in parts]).sum(0) / world
        if factor := training.has("gradient factor"):
            p.grad *= factor
        if training.has("round gradients"):
            p.grad = torch.from_numpy(bfloat16(p.grad.numpy()))
    if limit := training.has("clip values"):
        torch.nn.utils.clip_grad_value_(model.parameters(), limit)
    elif training.clip and not training.has("no clip"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.has("clip limit") or training.clip)


def update(training: Training, model: nn.Module, optimizer: Any, step: int) -> None:
    frozen = training.has("frozen")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    if training.has("skipped step") != step:
        optimizer.step()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if frozen and name.startswith(frozen):
                p.copy_(before[name])
            if kind := training.has("round parameters"):
                p.copy_(p.to(getattr(torch, kind)).to(p.dtype))
