"""Recipes with one thing changed, each with a sentence that names torch's form and JAX's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from .fitting import Groups
from .reading import groups_of
from .recipe import USUAL, VALUES, Arrays, Clip, Recipe, Settings, left_alone

LIMITS = (1.0, 0.5, 0.1, 5.0, 10.0, 2.0, 0.25)
COMBINING = {
    "mean": "averages the gradients of accumulated batches",
    "sum": "sums the gradients of accumulated batches",
    "last": "uses the gradients of the last accumulated batch alone",
}
NONFINITE = {
    "skip": "skips an update with infinite gradients",
    "zero": "takes a step with zeros for all gradients if one is infinite",
    "zero elements": "takes a step with zeros for infinite elements",
    "apply": "applies infinite gradients",
}
SCALES = tuple(2.0**k for k in range(1, 25))

NAMES = {
    "sgd": "SGD",
    "adam": "Adam",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "adamax": "Adamax",
    "lion": "Lion",
}

Change = tuple[str, Recipe]


def changes(recipe: Recipe, groups: Groups) -> Iterator[Change]:
    """Yield every recipe that differs from `recipe` in one thing."""
    trained = [settings for settings in recipe.settings.values() if not settings.get("frozen")]
    if not trained:
        return
    first = trained[0]
    yield from _settings(recipe, trained)
    yield from _decay(recipe, trained)
    yield from _formulas(recipe, first)
    yield from _absences(recipe)
    yield from _accumulation(recipe, max(len(group) for group in groups))
    yield from _clipping(recipe, max(len(group) for group in groups))
    for form in NONFINITE:
        if form != recipe.nonfinite:
            yield _instead(NONFINITE[recipe.nonfinite], NONFINITE[form]), replace(recipe, nonfinite=form)
    yield "torch trains it (JAX does not)", recipe.with_settings(frozen=True)
    if len(trained) < len(recipe.settings):
        settings = {name: first if old.get("frozen") else old for name, old in recipe.settings.items()}
        yield "torch does not train it (JAX does)", replace(recipe, settings=settings)


def _instead(torch: str, jax: str) -> str:
    return f"torch {torch} (JAX {jax})"


def _settings(recipe: Recipe, trained: Sequence[Settings]) -> Iterator[Change]:
    for name, values in VALUES.items():
        if name in trained[0] and name != "weight_decay":
            torch_values = _distinct(trained, name)
            described = " and ".join(map(str, torch_values))
            if len(torch_values) > 2:
                described = f"{_short(min(torch_values))} to {_short(max(torch_values))} during the training"
            if name == "betas":
                values = tuple(dict.fromkeys((*values, torch_values[0], torch_values[0][::-1])))
            for value in values:
                if torch_values != [value]:
                    text = f"torch's {name} is {described} (JAX acts as with {value})"
                    yield text, recipe.with_settings(**{name: value})


def _distinct(trained: Sequence[Settings], name: str) -> list[Any]:
    """Return the values of a setting in all parameter groups and updates."""
    courses = [(settings, *settings.get("course", ())) for settings in trained]
    return list(dict.fromkeys(x[name] for course in courses for x in course if name in x))


def _short(value: Any) -> str:
    return str(tuple(map(_short, value))) if isinstance(value, tuple) else f"{value:.4g}"


def _decay(recipe: Recipe, trained: Sequence[Settings]) -> Iterator[Change]:
    decays, coupled = _distinct(trained, "weight_decay"), trained[0]["coupled"]
    decay = " and ".join(f"{value:g}" for value in decays)
    decay_texts = {
        True: "adds the weight decay to the gradients (L2)",
        False: "subtracts the weight decay from the weights (decoupled)",
    }
    for value in dict.fromkeys((*decays, *VALUES["weight_decay"])):
        if decays != [value]:
            text = f"torch's weight_decay is {decay} (JAX acts as with {value:g})"
            yield text, recipe.with_settings(weight_decay=value)
            other = recipe.with_settings(weight_decay=value, coupled=not coupled)
            if value:
                yield (
                    f"torch's weight_decay is {decay}: it {decay_texts[coupled]} "
                    f"(JAX {decay_texts[not coupled]}, {value:g})",
                    other,
                )
    if any(decays):
        yield (
            _instead(decay_texts[coupled], decay_texts[not coupled]),
            recipe.with_settings(coupled=not coupled),
        )
        text = "torch's decoupled decay is multiplied by the rate (JAX's is not)"
        yield text, recipe.with_settings(coupled=False, decay_without_rate=True)
        if coupled and recipe.clip.limit is not None:
            text = "torch clips the gradients before their weight decay is added (JAX clips the sum)"
            yield text, replace(recipe, clip=replace(recipe.clip, after_decay=True))


def _formulas(recipe: Recipe, first: Any) -> Iterator[Change]:
    kind = recipe.kind
    if kind in ("adam", "rmsprop", "adagrad"):
        for eps in dict.fromkeys((first["eps"], *VALUES["eps"][:4])):
            yield (
                f"torch adds eps={first['eps']:g} outside the root (JAX inside, as eps_root={eps:g})",
                recipe.with_settings(eps=0.0, eps_root=eps),
            )
            yield (
                f"torch adds eps={first['eps']:g} outside the root alone (JAX has eps_root={eps:g}, too)",
                recipe.with_settings(eps_root=eps),
            )
    if kind == "adam":
        text = "torch corrects the bias of the moments (JAX does not)"
        yield text, recipe.with_settings(corrected=False)
        for offset in (1, -1):
            suffix = "one update further" if offset > 0 else "one update behind"
            text = f"torch corrects the bias of the moments by its count of updates (JAX counts {suffix})"
            yield text, recipe.with_settings(count_offset=offset)
        text = "torch adds eps to the corrected second moment's root (JAX before the correction)"
        yield text, recipe.with_settings(eps_uncorrected=True)
        yield from _kinds_of_adam(recipe, first)
        if not first.get("nesterov") and first.get("momentum_decay") is None:
            text = "torch's Adam has no Nesterov momentum (JAX's has)"
            yield text, recipe.with_settings(nesterov=True)
        if first.get("amsgrad") is True:
            text = "torch's amsgrad divides by the largest second moment (JAX's by the largest corrected one)"
            yield text, recipe.with_settings(amsgrad="corrected")
        for momentum in (0.0, 0.9):
            text = f"torch's optimizer is Adam (JAX acts as SGD with momentum={momentum})"
            changed = recipe.with_settings(momentum=momentum, dampening=0.0, nesterov=False)
            yield text, replace(changed, kind="sgd")
        changed = recipe.with_settings(alpha=0.99, centered=False, momentum=0.0)
        yield "torch's optimizer is Adam (JAX acts as RMSprop)", replace(changed, kind="rmsprop")
    if first.get("momentum"):
        momentum = first["momentum"]
        changed = recipe.with_settings(velocity=True)
        yield "torch's momentum is of gradients (JAX's includes the rate: v = m * v - rate * g)", changed
        for start in (True, False):
            text = "torch's momentum is a sum of gradients (JAX's is a mean: its gradients are multiplied by "
            suffix = "1 - momentum" if start else "1 - momentum, but for the first"
            yield text + suffix + ")", recipe.with_settings(dampening=momentum, dampened_from_start=start)
        if first.get("dampening"):
            text = "torch's first momentum is the whole gradient (JAX's is dampened)"
            yield text, recipe.with_settings(dampened_from_start=True)
    if kind == "rmsprop":
        text = "torch's mean of squares starts at 0 (JAX's at 1)"
        yield text, recipe.with_settings(initial=1.0)
    texts = "leaves updates as they are", "scales each array's update to the norm of its parameters (LAMB)"
    scales = bool(first.get("trust_ratio"))
    yield _instead(texts[scales], texts[not scales]), recipe.with_settings(trust_ratio=not scales)
    yield from _other_kinds(recipe, first)


def _other_kinds(recipe: Recipe, first: Any) -> Iterator[Change]:
    kind = recipe.kind
    for other, usual in USUAL.items():
        if other == kind or (kind, other) == ("sgd", "adam"):
            continue
        # What both kinds have, such as eps, is as in torch's or has the usual value; the decay stays.
        defaults = {key: x for key, x in usual.items() if key not in first}
        text = f"torch's optimizer is {NAMES[kind]} (JAX acts as {NAMES[other]})"
        yield text, replace(recipe.with_settings(**defaults), kind=other)
        defaults = {key: x for key, x in usual.items() if key not in ("weight_decay", "coupled")}
        if any(first.get(key, x) != x for key, x in defaults.items()):
            yield (
                f"{text[:-1]} with its usual settings)",
                replace(recipe.with_settings(**defaults), kind=other),
            )
    if kind == "sgd":
        for betas in VALUES["betas"][:2]:
            changed = recipe.with_settings(betas=betas, eps=1e-8)
            yield (
                f"torch's optimizer is SGD (JAX acts as Adam with betas={betas})",
                replace(changed, kind="adam"),
            )


def _kinds_of_adam(recipe: Recipe, first: Any) -> Iterator[Change]:
    if first.get("momentum_decay") is not None:
        text = "torch's NAdam increases its momentum by momentum_decay (JAX's is constant, as in optax.nadam)"
        yield text, recipe.with_settings(momentum_decay=None, nesterov=True)
        yield "torch's optimizer is NAdam (JAX acts as Adam)", recipe.with_settings(momentum_decay=None)
    if first.get("rectified"):
        text = "torch's RAdam adds eps before the correction of the second moment (JAX to the corrected root)"
        yield text, recipe.with_settings(eps_uncorrected=False)
        yield (
            "torch's optimizer is RAdam (JAX acts as Adam)",
            recipe.with_settings(rectified=False, eps_uncorrected=False),
        )
    else:
        text = "torch's optimizer is Adam (JAX acts as RAdam)"
        yield text, recipe.with_settings(rectified=True)


def _absences(recipe: Recipe) -> Iterator[Change]:
    """Yield what JAX may do where torch's parameters have no gradient for some updates."""
    courses = {name: x["course"] for name, x in recipe.settings.items() if "course" in x}
    counts = {name: sum(map(left_alone, course)) for name, course in courses.items()}
    leaves = [name for name, count in counts.items() if count]
    if leaves:
        most = max(counts.values())
        torch = f"torch leaves {', '.join(leaves)} alone in {most} of {len(courses[leaves[0]])} updates"
        yield f"{torch} (JAX trains it in all)", recipe.in_absence({})
        text = f"{torch} (JAX gives it gradients of zero: its moments, momentum and weight decay go on)"
        yield text, recipe.in_absence({"zeroed": True})
        text = f"{torch} (JAX drops its updates: its moments and momentum go on)"
        yield text, recipe.in_absence({"discarded": True})
    absent = [x for settings in recipe.settings.values() for x in (settings, *settings.get("course", ()))]
    if any(x.get("absent") for x in absent) and recipe.clip.limit is not None and recipe.clip.form == "norm":
        text = "torch clips the norm of the gradients of trained parameters (JAX that of all)"
        yield text, replace(recipe, clip=replace(recipe.clip, of_all=not recipe.clip.of_all))


def _accumulation(recipe: Recipe, count: int) -> Iterator[Change]:
    if count > 1:
        for combine in COMBINING:
            if combine != recipe.combine:
                text = _instead(COMBINING[recipe.combine], COMBINING[combine])
                yield text, replace(recipe, combine=combine)
    for scale in (2.0, float(count), *SCALES[1:]):
        for factor in (scale, 1 / scale):
            if factor != 1.0:
                text = f"torch's gradients are as they are (JAX's are multiplied by {factor:g}: a loss scale"
                yield (
                    f"{text}, or its inverse, applied once too often?)",
                    replace(recipe, factor=recipe.factor * factor),
                )


def _clipping(recipe: Recipe, count: int) -> Iterator[Change]:
    clip = recipe.clip
    if clip.limit is None:
        for limit in LIMITS:
            for form, eps in (("norm", 0.0), ("norm", 1e-6), ("value", 0.0), ("leaf", 0.0)):
                text = f"torch does not clip gradients (JAX {_clip_text(Clip(limit, form))})"
                yield text, replace(recipe, clip=Clip(limit, form, eps))
        return
    yield f"torch {_clip_text(clip)} (JAX does not)", replace(recipe, clip=Clip())
    torch_text, other_eps = _clip_text(clip), 1e-6 if clip.eps == 0 else 0.0
    if clip.form == "norm":
        text = "torch divides by the norm + 1e-6 (JAX by the norm alone)"
        if clip.eps == 0:
            text = "torch divides by the norm alone (JAX by the norm + 1e-6)"
        yield text, replace(recipe, clip=replace(clip, eps=other_eps))
    for eps in (clip.eps, other_eps):
        suffix = "" if eps == clip.eps else f", with {eps:g} added to the norm"
        for form in ("norm", "value", "leaf"):
            changed = replace(clip, form=form, eps=eps)
            if form != clip.form:
                yield _instead(torch_text, _clip_text(changed) + suffix), replace(recipe, clip=changed)
        multiples = [clip.limit * factor for factor in (count, 1 / count, 2.0, 0.5, 10.0, 0.1)]
        for limit in dict.fromkeys((*LIMITS, *multiples)):
            changed = replace(clip, limit=limit, eps=eps)
            if limit != clip.limit:
                yield _instead(torch_text, _clip_text(changed) + suffix), replace(recipe, clip=changed)
        if count > 1:
            text = "torch clips accumulated gradients (JAX clips those of each batch" + suffix + ")"
            yield text, replace(recipe, clip=replace(clip, per_batch=True, eps=eps))
        for scale in SCALES:
            text = f"torch clips unscaled gradients (JAX clips them while they are multiplied by {scale:g}"
            yield text + suffix + ")", replace(recipe, clip=replace(clip, scale=scale, eps=eps))


def _clip_text(clip: Clip) -> str:
    parts = "; ".join(", ".join(part) for part in clip.parts)
    texts = {"norm": "the norm", "value": "the values", "leaf": "the norm of each array"}
    return f"clips {texts.get(clip.form, f'each norm of {parts}')} at {clip.limit:g}"


def regroupings(recipe: Recipe, groups: Groups, jax_groups: Groups) -> Iterator[tuple[str, Recipe, Groups]]:
    """Yield the recipe with the batches of JAX's updates, combined in each way."""
    lengths = [max((len(group) for group in side), default=0) for side in (groups, jax_groups)]
    text = f"torch updates after {_batches(lengths[0])} (JAX after {_batches(lengths[1])}"
    if lengths[0] == lengths[1]:
        text = f"torch's first update is after batch {groups[0][-1] + 1} (JAX's after {jax_groups[0][-1] + 1}"
    for combine in COMBINING:
        suffix = "" if combine == recipe.combine else f", and {COMBINING[combine]}"
        yield text + suffix + ")", replace(recipe, combine=combine), jax_groups


def _batches(count: int) -> str:
    return "each batch" if count == 1 else f"{count} batches"


def jax_groups_of(weights: Sequence[Arrays], batches: Sequence[Arrays]) -> Groups:
    """Return the batches of each update of JAX's loop: weights change after the last of them."""
    ends = [
        i
        for i in range(len(weights) - 1)
        if any((weights[i][name] != weights[i + 1][name]).any() for name in weights[i])
    ]
    return groups_of(ends, batches)


def renamed(text: str, torch: str, jax: str) -> str:
    """Return a sentence with `torch` and `jax` as the names of its sides."""
    for side, name in (("torch", torch), ("JAX", jax)):
        text = re.sub(rf"\b{side}\b", name, text)
    return text
