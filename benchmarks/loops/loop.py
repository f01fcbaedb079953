"""Training loops as users write them, in torch and in JAX, without a model; the JAX one may have a fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from jaxpar.parity import linear_loss

Rate = Callable[[Any], Any]


@dataclass(frozen=True)
class Loop:
    """One loop. `rate` maps the count of updates to the rate; the others are the settings of both sides."""

    name: str
    optimizer: str
    rate: Rate
    settings: dict[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.0
    coupled: bool = True
    decayed: str = "all"  # or "matrices"
    clip: tuple[str, float] | None = None
    accumulate: int = 1
    average: float | None = None
    scale: float = 1.0
    jax_only: dict[str, Any] = field(default_factory=dict)  # faults of JAX's loop that are no setting

    def with_fault(self, **changes: Any) -> Loop:
        return replace(self, **changes)


# ---------------------------------------------------------------------------------------------------- torch


def torch_loop(loop: Loop) -> Callable[..., Iterator[Any]]:
    makers = {
        "adam": torch.optim.AdamW if not loop.coupled else torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
        "adadelta": torch.optim.Adadelta,
    }

    def train(model: torch.nn.Module, batches: Iterable[Any]) -> Iterator[Any]:
        parameters = list(model.parameters())
        decayed = [p for p in parameters if p.ndim > 1 or loop.decayed == "all"]
        others = [p for p in parameters if p.ndim <= 1 and loop.decayed == "matrices"]
        groups = [
            {"params": members, "weight_decay": decay}
            for members, decay in ((decayed, loop.weight_decay), (others, 0.0))
            if members
        ]
        optimizer = makers[loop.optimizer](groups, lr=1.0, **loop.settings)
        schedule = lr_scheduler.LambdaLR(optimizer, loop.rate)
        scaler = torch.amp.GradScaler("cpu", init_scale=loop.scale, enabled=loop.scale != 1.0)
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(loop.average or 0.5))
        for i, batch in enumerate(batches):
            scaler.scale(model(batch) / loop.accumulate).backward()
            if (i + 1) % loop.accumulate == 0:
                scaler.unscale_(optimizer)
                if loop.clip and loop.clip[0] == "norm":
                    torch.nn.utils.clip_grad_norm_(parameters, loop.clip[1])
                elif loop.clip:
                    torch.nn.utils.clip_grad_value_(parameters, loop.clip[1])
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
                averaged.update_parameters(model)
            yield (model, {"ema": averaged}) if loop.average else model

    return train


# ------------------------------------------------------------------------------------------------------ JAX


def jax_loop(loop: Loop) -> Callable[..., Iterator[Any]]:
    fault = loop.jax_only
    tx = transformation(loop)
    after = optax.trace(loop.settings["momentum"]) if fault.get("velocity") else optax.identity()

    @jax.jit
    def gradients_of(parameters: Any, batch: Any) -> Any:
        gradients = jax.grad(lambda p, b: loop.scale * linear_loss(p, b))(parameters, batch)
        if fault.get("clip_each"):
            gradients = clip(loop, gradients, fault.get("clip_eps", 1e-6))
        return gradients

    @jax.jit
    def update(parameters: Any, state: Any, gradients: Any, count: Any) -> Any:
        gradients = averaged_gradients(loop, gradients)
        updates, next_state = tx.update(gradients, state[0], parameters)
        rate = fault.get("rate", loop.rate)(count)
        updates, velocity = after.update(jax.tree.map(lambda u: -rate * u, updates), state[1])
        if "frozen" in fault:
            updates = jax.tree_util.tree_map_with_path(
                lambda path, u: u * (fault["frozen"] not in jax.tree_util.keystr(path)), updates
            )
        following = optax.apply_updates(parameters, updates)
        return following, (next_state, velocity)

    @jax.jit
    def averaged(average: Any, before: Any, after: Any, count: Any) -> Any:
        decay = fault.get("average", loop.average or 0.0)
        source = before if fault.get("average_before") else after
        first = count < fault.get("average_start", 1)
        return jax.tree.map(lambda a, p: jnp.where(first, p, decay * a + (1 - decay) * p), average, source)

    @jax.jit
    def finite(gradients: Any) -> Any:
        return jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]))

    def train(parameters: Any, batches: Iterable[Any]) -> Iterator[Any]:
        state, average, updates = (tx.init(parameters), after.init(parameters)), parameters, 0
        count = jnp.zeros((), jnp.int32)
        total, taken = None, 0
        every = fault.get("accumulate", loop.accumulate)
        for batch in batches:
            gradients = gradients_of(parameters, batch)
            total = gradients if total is None else jax.tree.map(jnp.add, total, gradients)
            taken += 1
            if taken == every:
                if fault.get("zeros"):
                    total = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0.0), total)
                is_finite = finite(total)
                before = parameters
                if is_finite:
                    parameters, state = update(parameters, state, total, count)
                if loop.average:
                    average = averaged(average, before, parameters, updates)
                updates += 1
                if is_finite or not fault.get("waits"):
                    count = count + 1
                total, taken = None, 0
            yield (parameters, {"ema": average}) if loop.average else parameters

    return train


def averaged_gradients(loop: Loop, gradients: Any) -> Any:
    """Return accumulated gradients as the optimizer gets them: divided, unscaled and clipped."""
    fault = loop.jax_only
    unscale = fault.get("unscale", loop.scale)
    divided = 1 if fault.get("sums") else fault.get("accumulate", loop.accumulate)
    scaled = fault.get("clip_scaled")
    gradients = jax.tree.map(lambda g: g / divided / (1.0 if scaled else unscale), gradients)
    if not fault.get("clip_each") and not fault.get("decay_before_clip"):
        gradients = clip(loop, gradients, fault.get("clip_eps", 1e-6))
    if scaled:
        gradients = jax.tree.map(lambda g: g / unscale, gradients)
    return gradients


def clip(loop: Loop, gradients: Any, eps: float) -> Any:
    if loop.clip is None:
        return gradients
    form, limit = loop.clip
    if form == "value":
        return jax.tree.map(lambda g: jnp.clip(g, -limit, limit), gradients)
    factor = jnp.minimum(1.0, limit / (optax.tree.norm(gradients) + eps))
    return jax.tree.map(lambda g: g * factor, gradients)


def transformation(loop: Loop) -> optax.GradientTransformation:
    """Return the optimizer as a chain of optax's parts, with its fault."""
    fault, settings = loop.jax_only, loop.settings
    matrices = None if loop.decayed == "all" else lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)
    decay = optax.add_decayed_weights(loop.weight_decay, matrices)
    parts: list[optax.GradientTransformation] = [decay] if loop.coupled else []
    if fault.get("decay_before_clip") and loop.clip:
        limit = loop.clip[1]
        parts.append(optax.stateless(lambda g, _: clip(replace(loop, clip=("norm", limit)), g, 1e-6)))
    if loop.optimizer == "adam":
        b1, b2 = fault.get("betas", settings.get("betas", (0.9, 0.999)))
        eps = fault.get("eps", settings.get("eps", 1e-8))
        if fault.get("uncorrected"):
            parts.append(uncorrected_adam(b1, b2, eps))
        elif settings.get("amsgrad") and fault.get("amsgrad") is not False:
            import jaxpar.optim

            parts += [jaxpar.optim.adam(1.0, betas=(b1, b2), eps=eps, amsgrad=True), optax.scale(-1.0)]
        elif fault.get("eps_root"):
            parts.append(optax.scale_by_adam(b1, b2, eps=0.0, eps_root=eps))
        else:
            parts.append(optax.scale_by_adam(b1, b2, eps, nesterov=fault.get("nesterov", False)))
    elif loop.optimizer == "sgd":
        momentum = fault.get("momentum", settings.get("momentum", 0.0))
        nesterov = fault.get("nesterov", settings.get("nesterov", False))
        if fault.get("ema_momentum"):
            parts.append(optax.ema(momentum, debias=False))
        elif momentum and not fault.get("velocity"):
            parts.append(optax.trace(momentum, nesterov))
    elif loop.optimizer == "rmsprop":
        initial, inside = fault.get("initial", 0.0), bool(fault.get("eps_root"))
        parts.append(optax.scale_by_rms(settings["alpha"], settings["eps"], initial, eps_in_sqrt=inside))
        parts.append(optax.trace(fault.get("momentum", settings["momentum"])))
    elif loop.optimizer == "adadelta":
        parts.append(optax.scale_by_adadelta(fault.get("rho", 0.9), 1e-6))
    if not loop.coupled:
        parts.append(decay)
    return optax.chain(*parts)


def uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    def init(parameters: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return zeros, zeros

    def update(updates: Any, state: Any, parameters: Any = None) -> Any:
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state[0], updates)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state[1], updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), m, v), (m, v)

    return optax.GradientTransformation(init, update)


# -------------------------------------------------------------------------------------------------- schedules


def warm_cosine(peak: float, warm: int, total: int) -> Rate:
    """nanoGPT's: (count + 1) / (warm + 1) of the peak, then half a cosine to a tenth of it."""

    def rate(count: Any) -> Any:
        library: Any = jnp if isinstance(count, jax.Array) else math
        count = count * 1.0 if library is math else count.astype(float)
        part = (count - warm) / (total - warm)
        part = min(part, 1.0) if library is math else jnp.minimum(part, 1.0)
        cosine = peak * (0.1 + 0.45 * (1 + library.cos(math.pi * part)))
        linear = peak * (count + 1) / (warm + 1)
        if library is math:
            return linear if count < warm else cosine
        return jnp.where(count < warm, linear, cosine)

    return rate


def steps_down(peak: float, factor: float, every: int) -> Rate:
    return lambda count: peak * factor ** (count // every)


def constant(peak: float) -> Rate:
    return lambda count: peak
