"""Recipes: a training loop's arithmetic as data, and the update that it computes, in NumPy and float64."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Settings = Mapping[str, Any]
Update = tuple[np.ndarray | float, np.ndarray]

VALUES: dict[str, tuple[Any, ...]] = {
    "weight_decay": (0.0, 1e-4, 1e-2, 5e-4, 1e-3, 0.1, 0.05),
    "eps": (1e-8, 1e-7, 1e-6, 1e-10, 1e-5, 1e-3, 1e-15),
    "momentum": (0.0, 0.9, 0.99, 0.5, 0.95),
    "dampening": (0.0, 0.1, 0.9, 0.5),
    "alpha": (0.9, 0.99, 0.95),
    "rho": (0.9, 0.95, 0.99),
    "betas": (
        *((0.9, 0.999), (0.9, 0.95), (0.9, 0.99), (0.5, 0.999), (0.95, 0.999)),
        *((0.9, 0.98), (0.8, 0.99)),
    ),
    **dict.fromkeys(["nesterov", "amsgrad", "maximize", "centered"], (True, False)),
    "decoupled_weight_decay": (True, False),
    "momentum_decay": (0.004, 0.0),
    "initial_accumulator_value": (0.0, 0.1, 1.0),
}
"""Defaults of other libraries, the likeliest mistakes."""

USUAL: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0, "coupled": True},
    "adam": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "coupled": False, "amsgrad": False},
    "rmsprop": {
        "alpha": 0.99,
        "eps": 1e-8,
        "momentum": 0.0,
        "centered": False,
        "weight_decay": 0.0,
        "coupled": True,
    },
    "adagrad": {"eps": 1e-10, "initial_accumulator_value": 0.0, "weight_decay": 0.0, "coupled": True},
    "adadelta": {"rho": 0.9, "eps": 1e-6, "weight_decay": 0.0, "coupled": True},
    "adamax": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "coupled": True},
    "lion": {"betas": (0.9, 0.99), "weight_decay": 0.0, "coupled": False},
}
"""Default settings of each kind of optimizer."""


@dataclass(frozen=True)
class Clip:
    """How gradients are clipped; `limit` None means that they are not."""

    limit: float | None = None
    form: str = "norm"  # or "value", or "leaf" (the norm of each array by itself), or "parts"
    eps: float = 1e-6  # torch's clip_grad_norm_ divides by the norm + 1e-6
    per_batch: bool = False  # before batches are accumulated
    after_decay: bool = False  # gradients include the coupled weight decay
    scale: float = 1.0  # gradients are multiplied by it while they are clipped
    parts: tuple[tuple[str, ...], ...] = ()  # arrays that are clipped together, for "parts"
    of_all: bool = False  # the norm is of arrays without a gradient in torch, too

    def __call__(self, gradients: Arrays, absent: Collection[str] = ()) -> Arrays:
        if self.limit is None:
            return gradients
        limit = self.limit / self.scale
        if self.form == "value":
            return {name: np.clip(g, -limit, limit) for name, g in gradients.items()}
        parts = self.parts if self.form == "parts" else [[name] for name in gradients]
        if self.form == "norm":
            parts = [[name for name in gradients if self.of_all or name not in absent]]
        clipped = dict(gradients)
        for part in parts:
            size = norm(gradients[name] for name in part) + self.eps / self.scale
            factor = min(1.0, limit / max(size, np.finfo(float).tiny))
            clipped |= {name: gradients[name] * factor for name in part}
        return clipped


@dataclass(frozen=True)
class Recipe:
    """One training loop: `settings` maps each parameter to its optimizer settings, by torch's names."""

    kind: str
    settings: Mapping[str, Settings]
    combine: str = "mean"  # of accumulated batches: or "sum", or "last"
    factor: float = 1.0  # multiplies every gradient
    clip: Clip = field(default_factory=Clip)
    nonfinite: str = "skip"  # an update with infinite gradients: or "zero", "zero elements", or "apply"

    def with_settings(self, **changes: Any) -> Recipe:
        """Return the recipe with these settings, in all updates, for all parameters."""
        settings = {
            name: {**old, **changes, "course": tuple({**x, **_shared(x, changes)} for x in old["course"])}
            if "course" in old
            else {**old, **changes}
            for name, old in self.settings.items()
        }
        return replace(self, settings=settings)

    def in_absence(self, changes: Settings) -> Recipe:
        """Return the recipe with these settings in the updates that leave a parameter alone."""
        settings = {
            name: {**old, "course": tuple(changes if left_alone(x) else x for x in old["course"])}
            if "course" in old
            else old
            for name, old in self.settings.items()
        }
        return replace(self, settings=settings)


def left_alone(settings: Settings) -> bool:
    """Whether an update leaves a parameter alone: without a gradient, or without an optimizer."""
    return bool(settings.get("absent") or settings.get("frozen"))


def _shared(old: Settings, changes: Settings) -> Settings:
    return {key: value for key, value in changes.items() if key in old}


def norm(arrays: Any) -> float:
    return float(np.sqrt(sum(np.sum(np.square(x)) for x in arrays)))


class Simulation:
    """A recipe being run: each update is `constant + rate * slope`, to let callers solve for the rate."""

    def __init__(self, recipe: Recipe):
        self.recipe, self.count = recipe, 0
        self.state: dict[str, dict[str, Any]] = {name: {} for name in recipe.settings}

    def entering(self, batches: Sequence[Arrays]) -> Arrays | None:
        """Return the gradients that the optimizer gets for one update, or None if the update is skipped."""
        recipe = self.recipe
        absent = {name for name in recipe.settings if self._settings(name, self.count + 1).get("absent")}
        if recipe.clip.per_batch:
            batches = [recipe.clip(batch, absent) for batch in batches]
        total = {name: recipe.factor * self._combined(batches, name) for name in recipe.settings}
        if not all(np.isfinite(g).all() for g in total.values()):
            if recipe.nonfinite == "skip":
                return None
            if recipe.nonfinite == "zero":
                total = {name: np.zeros_like(g) for name, g in total.items()}
            elif recipe.nonfinite == "zero elements":
                total = {name: np.where(np.isfinite(g), g, 0.0) for name, g in total.items()}
        return total if recipe.clip.per_batch or recipe.clip.after_decay else recipe.clip(total, absent)

    def _settings(self, name: str, count: int) -> Settings:
        """Return the settings of one update, of optimizers whose settings change during the training."""
        settings = self.recipe.settings[name]
        course = settings.get("course", ())
        return {**settings, **course[count - 1]} if count <= len(course) else settings

    def _combined(self, batches: Sequence[Arrays], name: str) -> np.ndarray:
        if self.recipe.combine == "last":
            return batches[-1][name]
        total = np.sum([batch[name] for batch in batches], axis=0)
        return total / len(batches) if self.recipe.combine == "mean" else total

    def update(self, weights: Arrays, gradients: Arrays) -> dict[str, Update]:
        """Return each parameter's `constant` and `slope`, and advance the optimizer's state."""
        recipe = self.recipe
        self.count += 1
        settings = {name: self._settings(name, self.count) for name in gradients}
        gradients = {name: 0.0 * g if settings[name].get("zeroed") else g for name, g in gradients.items()}
        coupled = {
            name: (-g if settings[name].get("maximize") else g)
            + (settings[name]["weight_decay"] * weights[name] if settings[name]["coupled"] else 0.0)
            for name, g in gradients.items()
        }
        if recipe.clip.after_decay:
            coupled = dict(recipe.clip(coupled))
        return {name: self._update(name, settings[name], weights[name], g) for name, g in coupled.items()}

    def _update(self, name: str, settings: Settings, weight: np.ndarray, g: np.ndarray) -> Update:
        state, still = self.state[name], np.zeros_like(g)
        if left_alone(settings):
            return still, still
        state["count"] = state.get("count", 0) + 1
        constant, slope = FORMULAS[self.recipe.kind](settings, state, g, state["count"])
        if settings.get("discarded"):
            return still, still
        if not settings["coupled"]:
            decay = settings["weight_decay"] * weight
            # AdamW multiplies its decay by the rate; some libraries do not.
            if settings.get("decay_without_rate"):
                constant = constant - decay
            else:
                slope = slope - decay
        if settings.get("trust_ratio"):  # LAMB
            sizes = norm([weight]), norm([slope])
            slope = slope * (sizes[0] / sizes[1] if all(sizes) else 1.0)
        return constant, slope

    def note_change(self, name: str, change: np.ndarray) -> None:
        """Note the change that a parameter made, which is the state of momentum that includes the rate."""
        self.state[name]["change"] = change


def _sgd(s: Settings, state: dict[str, Any], g: np.ndarray, count: int) -> Update:
    return _momentum(s, state, g, s["dampening"], s["nesterov"])


def _momentum(
    s: Settings, state: dict[str, Any], g: np.ndarray, dampening: float = 0.0, nesterov: bool = False
) -> Update:
    momentum = s["momentum"]
    if not momentum:
        return 0.0, -g
    if s.get("velocity"):  # v = momentum * v - rate * g, as in Caffe and TensorFlow
        return momentum * state.get("change", 0.0), -g
    first = "buffer" not in state
    # torch's first buffer is the gradient itself, whatever the dampening.
    fresh = g if first and not s.get("dampened_from_start") else (1 - dampening) * g
    state["buffer"] = momentum * state.get("buffer", 0.0) + fresh
    return 0.0, -(g + momentum * state["buffer"] if nesterov else state["buffer"])


def _adam(s: Settings, state: dict[str, Any], g: np.ndarray, count: int) -> Update:
    (b1, b2), t = s["betas"], max(count + s.get("count_offset", 0), 1)
    m = state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
    v = state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * g * g
    first, second = (1 - b1**t, 1 - b2**t) if s.get("corrected", True) else (1.0, 1.0)
    if s.get("amsgrad") == "corrected":  # optax's
        v = second * np.maximum(state.get("largest", 0.0), v / second)
        state["largest"] = v / second
    elif s.get("amsgrad"):
        v = state["largest"] = np.maximum(state.get("largest", 0.0), v)
    if s.get("momentum_decay") is not None:  # torch's NAdam
        now, ahead = (b1 * (1 - 0.5 * 0.96 ** (k * s["momentum_decay"])) for k in (t, t + 1))
        product = now * state.get("product", 1.0)
        if s.get("float32_product"):  # torch's is so in every default type
            product = float(np.float32(now) * np.float32(state.get("product", 1.0)))
        state["product"] = product
        numerator = (1 - now) * g / (1 - product) + ahead * m / (1 - product * ahead)
    elif s.get("nesterov"):  # optax.nadam, whose next step's correction is 1 - b1**(t + 1)
        ahead = 1 - b1 ** (t + 1) if s.get("corrected", True) else 1.0
        numerator = b1 * m / ahead + (1 - b1) * g / first
    else:
        numerator = m / first
    if s.get("rectified"):  # RAdam
        most = 2 / (1 - b2) - 1
        length = most - 2 * t * b2**t / (1 - b2**t)
        if length <= 5:
            return 0.0, -numerator
        ratios = [(x - 4) * (x - 2) / x for x in (length, most)]
        numerator = numerator * np.sqrt(ratios[0] / ratios[1])
    if s.get("eps_uncorrected"):  # TensorFlow and RAdam in torch, before the correction
        return 0.0, -numerator * np.sqrt(second) / (np.sqrt(v) + s["eps"])
    return 0.0, -_divided(numerator, np.sqrt(v / second + s.get("eps_root", 0.0)) + s["eps"])


def _rmsprop(s: Settings, state: dict[str, Any], g: np.ndarray, count: int) -> Update:
    alpha = s["alpha"]
    v = state["v"] = alpha * state.get("v", s.get("initial", 0.0)) + (1 - alpha) * g * g
    if s["centered"]:
        mean = state["mean"] = alpha * state.get("mean", 0.0) + (1 - alpha) * g
        v = np.maximum(v - mean * mean, 0.0)
    return _momentum(s, state, _divided(g, np.sqrt(v + s.get("eps_root", 0.0)) + s["eps"]))


def _adagrad(s: Settings, state: dict[str, Any], g: np.ndarray, count: int) -> Update:
    total = state["sum"] = state.get("sum", s["initial_accumulator_value"]) + g * g
    return 0.0, -_divided(g, np.sqrt(total + s.get("eps_root", 0.0)) + s["eps"])


def _adadelta(s: Settings, state: dict[str, Any], g: np.ndarray, count: int) -> Update:
    rho, eps = s["rho"], s["eps"]
    v = state["v"] = rho * state.get("v", 0.0) + (1 - rho) * g * g
    x = g * np.sqrt(state.get("x", 0.0) + eps) / np.sqrt(v + eps)
    state["x"] = rho * state.get("x", 0.0) + (1 - rho) * x * x
    return 0.0, -x


def _adamax(s: Settings, state: dict[str, Any], g: np.ndarray, count: int) -> Update:
    b1, b2 = s["betas"]
    m = state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
    largest = state["largest"] = np.maximum(b2 * state.get("largest", 0.0), np.abs(g) + s["eps"])
    return 0.0, -_divided(m / (1 - b1**count), largest)


def _lion(s: Settings, state: dict[str, Any], g: np.ndarray, count: int) -> Update:
    b1, b2 = s["betas"]
    m = state.get("m", 0.0)
    state["m"] = b2 * m + (1 - b2) * g
    return 0.0, -np.sign(b1 * m + (1 - b1) * g)


def _divided(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient, with 0 for 0 / 0 (a gradient that was always 0, without an epsilon)."""
    zero = np.zeros_like(numerator * denominator)
    return np.divide(numerator, denominator, out=zero, where=denominator > 0)


FORMULAS = {
    "sgd": _sgd,
    "adam": _adam,
    "rmsprop": _rmsprop,
    "adagrad": _adagrad,
    "adadelta": _adadelta,
    "adamax": _adamax,
    "lion": _lion,
}
