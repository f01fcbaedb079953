"""Loops in other people's styles: compare_loops names the mistake that each has.

Each row has torch's loop, JAX's, and a text of its causes. They were written from its page.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import optax
import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import jaxpar.optim
from jaxpar import parity

TWO_NETS = {"g.weight": (4, 5), "g.bias": (5,), "d.weight": (5, 3), "d.bias": (3,)}
DEPTHS = {"embed.weight": 0, "layer.weight": 1, "layer.bias": 1, "norm.weight": 2, "norm.bias": 2}


def loop(build, *, before=None, at=None):
    """Return torch's loop, with `before(model)` an update, and `at(i, model, optimizer)` before batch i."""

    def train(model, batches):
        optimizer, *schedulers = built if isinstance(built := build(model), tuple) else (built,)
        for i, batch in enumerate(batches):
            if at is not None:
                at(i, model, optimizer)
            model.zero_grad()
            model(batch).backward()
            if before is not None:
                before(model)
            optimizer.step()
            for scheduler in schedulers:
                scheduler.step()

    return train


def scheduled(scheduler, optimizer=torch.optim.SGD, **settings):
    def build(model):
        made = optimizer(model.parameters(), **settings)
        return made, scheduler(made)

    return loop(build)


def freeze(i, model, optimizer):
    if i == 10:
        model.embed.weight.requires_grad_(False)


def unfreeze(i, model, optimizer):
    if i == 8:
        optimizer.add_param_group(
            {"params": [*model.embed.parameters(), *model.layer.parameters()], "lr": 1e-4}
        )


def zeroed_then_trained(params, batches):
    """Zero the gradients of all but the norm for 8 batches: Adam's moments and the weight decay go on."""
    head, rest = optax.adamw(1e-3, weight_decay=0.01), optax.adamw(1e-4, weight_decay=0.01)
    tx = optax.multi_transform(
        {"head": head, "rest": rest}, {"norm": "head", "embed": "rest", "layer": "rest"}
    )
    state = tx.init(params)
    for i, batch in enumerate(batches):
        gradients = jax.grad(parity.linear_loss)(params, batch)
        if i < 8:
            gradients = jax.tree.map(jnp.zeros_like, gradients) | {"norm": gradients["norm"]}
        updates, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        yield params


def dropped_later(params, batches):
    """Drop the updates of the embedding from the ninth on."""
    tx = optax.adamw(1e-3, weight_decay=0.01)
    state = tx.init(params)
    for i, batch in enumerate(batches):
        updates, state = tx.update(jax.grad(parity.linear_loss)(params, batch), state, params)
        if i >= 8:
            updates = updates | {"embed": jax.tree.map(jnp.zeros_like, updates["embed"])}
        params = optax.apply_updates(params, updates)
        yield params


def layerwise(model):
    groups = [{"params": [p], "lr": 1e-3 * 0.65 ** (2 - DEPTHS[n])} for n, p in model.named_parameters()]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.05)


def clipped_apart(model):
    torch.nn.utils.clip_grad_norm_(model.embed.parameters(), 0.5)
    torch.nn.utils.clip_grad_norm_([*model.layer.parameters(), *model.norm.parameters()], 0.5)


def clipped_singly(model):
    for p in model.parameters():
        torch.nn.utils.clip_grad_norm_(p, 0.5)


def scaled_and_accumulated(model, batches):
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i, batch in enumerate(batches):
        scaler.scale(model(batch) / 4).backward()
        if (i + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def two_optimizers(model, batches):
    optimizers = [
        torch.optim.Adam(net.parameters(), lr=rate, betas=(0.5, 0.999))
        for net, rate in ((model.g, 1e-4), (model.d, 4e-4))
    ]
    for batch in batches:
        model.zero_grad()
        model(batch).backward()
        for optimizer in optimizers:
            optimizer.step()


def averaged_in_torch(model, batches):
    optimizer = torch.optim.Adam(model.parameters())
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    for batch in batches:
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        ema.update_parameters(model)
        yield model, {"ema": ema}


def averaged_in_jax(params, batches):
    tx, ema = optax.adam(1e-3), params
    state = tx.init(params)
    for batch in batches:
        updates, state = tx.update(jax.grad(parity.linear_loss)(params, batch), state)
        params = optax.apply_updates(params, updates)
        ema = optax.incremental_update(params, ema, 1e-3)
        yield params, {"ema": ema}


class OwnLion(torch.optim.Optimizer):
    """As many copy it from a repository: not an optimizer of torch."""

    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                (b1, b2) = group["betas"]
                p.add_((b1 * m + (1 - b1) * p.grad).sign(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class OwnAdam(torch.optim.AdamW):
    pass


def restarts(count):
    return 3e-3 * (1 + jnp.cos(jnp.pi * (count % 4) / 4)) / 2


def one_cycle(count):
    up, down = 0.3 * 24 - 1, 0.7 * 24
    way = jnp.where(count <= up, 1 - count / up, (count - up) / down)
    least = jnp.where(count <= up, 0.004, 4e-7)
    return least + (0.1 - least) / 2 * (1 + jnp.cos(jnp.pi * way))


ADAMW = optax.adamw(1e-3, weight_decay=0.01)
ROWS = {
    "OneCycleLR cycles the momentum": (
        scheduled(lambda x: lr_scheduler.OneCycleLR(x, 0.1, total_steps=25), momentum=0.9),
        optax.sgd(one_cycle, momentum=0.9),
        "momentum is 0.85.* to 0.95 during the training .JAX acts as with 0.9",
    ),
    "restarts of growing length": (
        scheduled(
            lambda x: lr_scheduler.CosineAnnealingWarmRestarts(x, T_0=4, T_mult=2), torch.optim.AdamW, lr=3e-3
        ),
        optax.adamw(restarts, weight_decay=0.01),
        "starts again in update 5, 13, JAX's in update 5, 9, 13",
    ),
    "layer-wise rates": (
        loop(layerwise),
        optax.multi_transform(
            {d: optax.adamw(1e-3 * 0.65 ** (3 - d), b2=0.95, weight_decay=0.05) for d in range(3)},
            {"embed": {"weight": 0}, "layer": {"weight": 1, "bias": 1}, "norm": {"weight": 2, "bias": 2}},
        ),
        "JAX's is 0.65 times as large",
    ),
    "NAdam": (lambda p: torch.optim.NAdam(p, lr=2e-3), optax.nadam(2e-3), "NAdam increases its momentum"),
    "RAdam": (lambda p: torch.optim.RAdam(p), optax.radam(1e-3, b2=0.99), "betas is .* with .0.9, 0.99."),
    "Adamax": (
        lambda p: torch.optim.Adamax(p, weight_decay=0.01),
        optax.adamax(2e-3),
        "weight_decay is 0.01 .JAX acts as with 0",
    ),
    "Lion": (
        lambda p: OwnLion(p, 1e-3, (0.9, 0.99), 0.1),
        optax.lion(1e-3, b1=0.99, b2=0.9, weight_decay=0.1),
        "betas is .* with .0.99, 0.9.",
    ),
    "an optimizer of one's own": (
        lambda p: OwnAdam(p, weight_decay=0.1),
        optax.adamw(1e-3, weight_decay=0.01),
        "weight_decay is 0.1 .JAX acts as with 0.01",
    ),
    "LAMB": (
        lambda p: torch.optim.AdamW(p),
        optax.lamb(1e-3, weight_decay=0.01, eps=1e-8),
        "JAX scales each array's update .*LAMB",
    ),
    "maximize": (lambda p: torch.optim.Adam(p, maximize=True), optax.adam(1e-3), "-1 times|maximize is True"),
    "dampening": (
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
        optax.sgd(0.05, 0.9),
        "dampening is 0.3",
    ),
    "frozen midway": (
        loop(lambda model: torch.optim.AdamW(model.parameters()), at=freeze),
        ADAMW,
        "leaves embed.weight alone in 14 of 24 updates .JAX trains it in all",
    ),
    "frozen midway in JAX": (
        lambda p: torch.optim.AdamW(p),
        dropped_later,
        "trains it in all updates .JAX in the first 8 alone., for embed.weight",
    ),
    "a group that is added midway": (
        loop(lambda model: torch.optim.AdamW(model.norm.parameters()), at=unfreeze),
        zeroed_then_trained,
        "alone in 8 of 24 updates .JAX gives it gradients of zero",
    ),
    "parts that are clipped apart": (
        loop(lambda model: torch.optim.Adam(model.parameters()), before=clipped_apart),
        optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-3)),
        "clips each norm of embed.weight; layer.weight, .* at 0.5 .JAX clips the norm at 0.5",
    ),
    "arrays that are clipped singly": (
        loop(lambda model: torch.optim.Adam(model.parameters()), before=clipped_singly),
        optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-3)),
        "clips the norm of each array at 0.5 .JAX clips the norm at 0.5",
    ),
    "clipping by value": (
        loop(
            lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9),
            before=lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), 0.1),
        ),
        optax.chain(
            optax.clip_by_global_norm(0.1), optax.rmsprop(1e-3, decay=0.9, eps=1e-8, eps_in_sqrt=False)
        ),
        "clips the values at 0.1 .JAX clips the norm at 0.1",
    ),
    "a scaler and accumulation": (
        scaled_and_accumulated,
        optax.chain(
            optax.MultiSteps(
                optax.chain(optax.clip_by_global_norm(1.0), ADAMW), 4, use_grad_mean=False
            ).gradient_transformation()
        ),
        "JAX sums the gradients of accumulated batches",
    ),
    "two optimizers": (
        two_optimizers,
        optax.adam(4e-4, b1=0.5),
        "JAX's is 4 times as large., for g.weight, g.bias",
    ),
    "another average": (averaged_in_torch, averaged_in_jax, "decay 0.99, .*decay 0.999"),
    "a warm-up and a cosine": (
        scheduled(
            lambda x: lr_scheduler.SequentialLR(
                x,
                [
                    lr_scheduler.LinearLR(x, 0.1, total_iters=4),
                    lr_scheduler.CosineAnnealingLR(x, 20),
                ],
                [4],
            ),
            lr=0.1,
            momentum=0.9,
        ),
        optax.sgd(
            optax.join_schedules(
                [optax.linear_schedule(0.01, 0.1, 4), optax.cosine_decay_schedule(0.1, 24)], [4]
            ),
            0.9,
        ),
        "update 5, then falls along a cosine over 20 updates to 0; JAX's .* over 24 updates to 0",
    ),
    "a polynomial": (
        scheduled(lambda x: lr_scheduler.PolynomialLR(x, 24, power=0.9), lr=0.01, momentum=0.9),
        optax.sgd(optax.polynomial_schedule(0.01, 0, 1.0, 24), 0.9),
        "falls as torch's to the power 1.111",
    ),
    "steps of another size": (
        scheduled(lambda x: lr_scheduler.MultiStepLR(x, [8, 16]), lr=0.1),
        optax.sgd(optax.piecewise_constant_schedule(0.1, {8: 0.5, 16: 0.5})),
        "5 times as large from update 9 on, 25 times as large from update 17 on",
    ),
    "a schedule that holds": (
        scheduled(lambda x: lr_scheduler.CosineAnnealingLR(x, 24), lr=0.1),
        optax.sgd(lambda count: 0.05 * (1 + jnp.cos(jnp.pi * (count // 4 * 4) / 24))),
        "keeps its rate for 4 updates",
    ),
}
SHAPES = {"two optimizers": TWO_NETS}


@pytest.mark.full
@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", ROWS, ids=lambda name: name.replace(" ", "_"))
def test_a_mistake_is_named(name):
    torchs, jaxs, text = ROWS[name]
    result = parity.compare_loops(torchs, jaxs, parameters=SHAPES.get(name))
    assert not result.equal
    assert re.search(text, " or ".join(result.causes)), str(result)


HEALTHY = {
    "NAdam": (torch.optim.NAdam, {"weight_decay": 0.1}),
    "decoupled NAdam": (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "RAdam": (torch.optim.RAdam, {"weight_decay": 0.1}),
    "Adamax": (torch.optim.Adamax, {"weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", HEALTHY, ids=lambda name: name.replace(" ", "_"))
def test_an_optimizer_of_jaxpar_is_torchs_and_its_recipe_is_read(name):
    maker, settings = HEALTHY[name]
    tx = getattr(jaxpar.optim, maker.__name__.lower())(lr=0.01, **settings)
    result = parity.compare_loops(lambda p: maker(p, lr=0.01, **settings), tx)
    assert result.equal, str(result)
    assert not isinstance(result.recipe, str), result.recipe


def test_a_part_without_a_formula_is_listed():
    chain = optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.05))
    result = parity.compare_loops(lambda p: torch.optim.SGD(p, lr=0.05), chain)
    assert result.causes == ()
    assert any("adaptive_grad_clip has no formula here" in text for text in result.unreached)
