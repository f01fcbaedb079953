"""Read the recipe of a JAX loop from its optax chain: the parts that each array passes, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax

from ..._upstream.transformations import made_by
from .reading import KINDS, Unreadable, settings_of
from .recipe import USUAL, Arrays, Clip, Recipe, Settings

UNTRAINED: Settings = {"frozen": True, "coupled": False, "weight_decay": 0.0}

Part = tuple[str, Mapping[str, Any]]


def chain_recipe(tx: Any, tree: Any, paths: Mapping[str, str], weights: Arrays) -> tuple[Recipe, int]:
    """Return the recipe of an optax transformation, and how many batches it accumulates for an update.

    `tree` has the loop's parameters, and `paths` their dotted paths by the recipe's names.

    Raises:
      Unreadable: a part has no formula here, or arrays differ in more than settings.
    """
    readings: dict[str, _Reading] = {}
    for name in weights:
        readings[name] = _Reading()
        for part, values in _parts(tx, tree, paths[name]):
            readings[name].add(part, values)
    trained = [x for x in readings.values() if not x.is_frozen] or list(readings.values())
    kinds = {x.kind or "sgd" for x in trained}
    if len(kinds) > 1 or any(x.common != trained[0].common for x in trained):
        raise Unreadable("its arrays have optimizers, clipping or accumulation of different kinds")
    (kind,) = kinds
    coupled = [x.settings["coupled"] for x in trained if x.settings.get("weight_decay")]
    usual = {**USUAL[kind], **({"coupled": coupled[0]} if coupled else {})}
    settings = {name: UNTRAINED if x.is_frozen else {**usual, **x.settings} for name, x in readings.items()}
    return replace(trained[0].recipe, kind=kind, settings=settings), trained[0].every


def _parts(tx: Any, tree: Any, path: str) -> Iterator[Part]:
    """Yield the elementary transformations that one array passes."""
    name, values = made_by(tx)
    inner = values.get("inner", values.get("tx"))
    made_with = getattr(tx.update, "made_with", None)
    if made_with is not None:  # an optimizer of jaxpar
        yield "jaxpar", {"name": made_with[0], **made_with[1]}
    elif name == "chain":
        for part in values["parts"]:
            yield from _parts(part, tree, path)
    elif name == "masked":
        if _at(values["mask"], tree, path):
            yield from _parts(inner, tree, path)
    elif name == "partition":
        yield from _parts(values["transforms"][_at(values["param_labels"], tree, path)], tree, path)
    elif name == "inject_hyperparams":
        # The rate is solved for, and so may be any number.
        numbers = {**values["numeric_hps"], **dict.fromkeys(values["sched_hps"], 1.0)}
        yield from _parts(values["inner_factory"](**values["other_hps"], **numbers), tree, path)
    else:
        if name != "with_extra_args_support":
            yield name, values
        if inner is not None:
            yield from _parts(inner, tree, path)


def _at(chosen: Any, tree: Any, path: str) -> Any:
    """Return what a mask or labels have for one array; a leaf of theirs may be about several."""
    chosen = chosen(tree) if callable(chosen) else chosen
    for path_of, value in jax.tree_util.tree_leaves_with_path(chosen):
        prefix = jax.tree_util.keystr(path_of, simple=True, separator=".")
        if not prefix or path == prefix or path.startswith(prefix + "."):
            return value
    return False


class _Reading:
    """One array's recipe so far: its settings, and its parts on both sides of the optimizer's formula."""

    def __init__(self) -> None:
        self.kind, self.settings, self.is_frozen = "", dict[str, Any](), False
        self.recipe, self.every = Recipe("", {}, nonfinite="apply"), 1
        self.has_rate, self.scale = False, 1.0  # of the updates after the formula

    @property
    def common(self) -> tuple[Recipe, int]:
        return self.recipe, self.every

    def add(self, name: str, values: Mapping[str, Any]) -> None:
        try:
            if name in CLIPS:
                self._clip(Clip(*CLIPS[name](values)))
            elif name in FORMULAS:
                self._formula(*FORMULAS[name](values))
            elif name in OTHERS:
                OTHERS[name](self, values)
            else:
                raise Unreadable(f"{name or 'a transformation of its own'} has no formula here")
        except (TypeError, ValueError) as error:
            raise Unreadable(f"a setting of {name} is not a number") from error

    def _clip(self, clip: Clip) -> None:
        if self.kind or self.has_rate or self.recipe.clip.limit is not None:
            raise Unreadable("it clips twice, or clips updates")
        clip = replace(clip, after_decay=bool(self.settings.get("weight_decay")))
        self.recipe = replace(self.recipe, clip=clip)

    def _formula(self, kind: str, settings: Settings) -> None:
        if self.kind or (self.has_rate and kind != "sgd"):
            raise Unreadable("it has two optimizers, one after the other")
        self.kind = kind
        self.settings |= settings

    def accumulate(self, values: Mapping[str, Any]) -> None:
        if self.kind or self.every > 1:
            raise Unreadable("it accumulates updates")
        clip = replace(self.recipe.clip, per_batch=self.recipe.clip.limit is not None)
        self.recipe = replace(self.recipe, clip=clip, combine="mean" if values["mean"] else "sum")
        self.every = int(values["every"](0))

    def average(self, momentum: float, nesterov: bool, is_mean: bool) -> None:
        """Read a running sum or mean: the momentum of SGD and RMSprop."""
        settings: dict[str, Any] = {"momentum": float(momentum)}
        if self.has_rate:
            settings |= {"velocity": True}
        if self.kind == "rmsprop" and not (is_mean or nesterov):
            self.settings |= settings
            return
        mean: Settings = {"dampening": float(momentum), "dampened_from_start": True} if is_mean else {}
        self._formula("sgd", {**settings, **mean, "nesterov": bool(nesterov)})

    def decay(self, value: float) -> None:
        coupled = not (self.kind or self.has_rate)
        if self.settings.get("weight_decay"):
            raise Unreadable("it decays weights twice")
        self.settings |= {"weight_decay": float(value) / self.scale, "coupled": coupled}
        if self.has_rate:
            # Its sign is the updates'.
            self.settings |= {"weight_decay": -float(value), "decay_without_rate": True}

    def multiply(self, value: float) -> None:
        """Read a constant factor: before the formula of gradients, after the formula of updates."""
        value = float(value)
        decays = self.settings.get("weight_decay", 0.0)
        if self.kind or self.has_rate or value < 0:
            self.has_rate |= value < 0
            self.scale *= value
            if self.settings.get("decay_without_rate"):
                self.settings["weight_decay"] = decays * value
            return
        clip = self.recipe.clip
        if clip.limit is not None:  # a limit of gradients that are not yet multiplied
            clip = replace(clip, limit=clip.limit, scale=clip.scale / value)
        self.recipe = replace(self.recipe, factor=self.recipe.factor * value, clip=clip)
        if decays:
            self.settings["weight_decay"] = decays * value

    def trust(self, values: Mapping[str, Any]) -> None:
        usual = {"min_norm": 0.0, "trust_coefficient": 1.0, "eps": 0.0}
        if not self.kind or self.has_rate or any(float(values[key]) != x for key, x in usual.items()):
            raise Unreadable("this scale_by_trust_ratio has no formula here")
        self.settings |= {"trust_ratio": True}

    def schedule(self, _: Mapping[str, Any]) -> None:
        self.has_rate = True

    def skip(self, _: Mapping[str, Any]) -> None:
        self.recipe = replace(self.recipe, nonfinite="skip")

    def freeze(self, _: Mapping[str, Any]) -> None:
        self.is_frozen = True

    def own(self, values: Mapping[str, Any]) -> None:
        """Read an optimizer of jaxpar, which has the settings of torch's."""
        name = values["name"]
        kinds = {kind.lower(): KINDS[kind] for kind in KINDS}
        if name == "_still":
            self.is_frozen = True
        elif name not in kinds:
            raise Unreadable(f"{name} has no formula here")
        else:
            torch_name = next(kind for kind in KINDS if kind.lower() == name)
            settings = settings_of({**values, "kind": torch_name})
            self._formula(kinds[name], {**USUAL[kinds[name]], **settings})
            self.has_rate = True


def _adam(v: Mapping[str, Any]) -> Settings:
    settings = {"betas": (float(v["b1"]), float(v["b2"])), "eps": float(v["eps"])}
    return {**settings, "eps_root": float(v["eps_root"]), "nesterov": bool(v.get("nesterov"))}


def _amsgrad(v: Mapping[str, Any]) -> Settings:
    if not (v["bias_correction_mu"] and v["bias_correction_nu"]):
        raise Unreadable("an amsgrad without bias correction has no formula here")
    return {**_adam(v), "amsgrad": "corrected"}


def _radam(v: Mapping[str, Any]) -> Settings:
    if float(v["threshold"]) != 5:
        raise Unreadable("a RAdam with another threshold has no formula here")
    return {**_adam(v), "rectified": True}


def _lion(v: Mapping[str, Any]) -> Settings:
    if v["mode"] != "hard":
        raise Unreadable("a Lion without signs has no formula here")
    return {"betas": (float(v["b1"]), float(v["b2"]))}


def _rms(v: Mapping[str, Any], centered: bool) -> Settings:
    if v["bias_correction"]:
        raise Unreadable("a mean of squares with bias correction has no formula here")
    eps = {"eps": 0.0, "eps_root": float(v["eps"])} if v["eps_in_sqrt"] else {"eps": float(v["eps"])}
    start = float(v["initial_scale"])
    return {"alpha": float(v["decay"]), "centered": centered, **eps, **({"initial": start} if start else {})}


def _adagrad(v: Mapping[str, Any]) -> Settings:
    start = float(v["initial_accumulator_value"])
    return {"initial_accumulator_value": start, "eps": 0.0, "eps_root": float(v["eps"])}


CLIPS: dict[str, Callable[[Mapping[str, Any]], tuple[float, str, float]]] = {
    "clip": lambda v: (float(v["max_delta"]), "value", 0.0),
    "clip_by_global_norm": lambda v: (float(v["max_norm"]), "norm", 0.0),
    "clip_grad_norm": lambda v: (float(v["max_norm"]), "norm", 1e-6),
}
FORMULAS: dict[str, Callable[[Mapping[str, Any]], tuple[str, Settings]]] = {
    "scale_by_adam": lambda v: ("adam", _adam(v)),
    "scale_by_amsgrad": lambda v: ("adam", _amsgrad(v)),
    "scale_by_rms": lambda v: ("rmsprop", _rms(v, centered=False)),
    "scale_by_stddev": lambda v: ("rmsprop", _rms(v, centered=True)),
    "scale_by_rss": lambda v: ("adagrad", _adagrad(v)),
    "scale_by_radam": lambda v: ("adam", _radam(v)),
    "scale_by_adamax": lambda v: (
        "adamax",
        {"betas": (float(v["b1"]), float(v["b2"])), "eps": float(v["eps"])},
    ),
    "scale_by_lion": lambda v: ("lion", _lion(v)),
    "scale_by_adadelta": lambda v: ("adadelta", {"rho": float(v["rho"]), "eps": float(v["eps"])}),
}
OTHERS: dict[str, Callable[[_Reading, Mapping[str, Any]], None]] = {
    "trace": lambda x, v: x.average(v["decay"], v["nesterov"], is_mean=False),
    "ema": lambda x, v: x.average(_undebiased(v), False, is_mean=True),
    "scale_by_trust_ratio": lambda x, v: x.trust(v),
    "add_decayed_weights": lambda x, v: x.decay(v["weight_decay"]),
    "scale": lambda x, v: x.multiply(v["step_size"]),
    "scale_by_schedule": _Reading.schedule,
    "apply_if_finite": _Reading.skip,
    "MultiSteps": _Reading.accumulate,
    "set_to_zero": _Reading.freeze,
    "jaxpar": _Reading.own,
    "identity": lambda x, v: None,
    "zero_nans": lambda x, v: None,
}


def _undebiased(v: Mapping[str, Any]) -> float:
    if v["debias"]:
        raise Unreadable("a mean of gradients with bias correction has no formula here")
    return float(v["decay"])
