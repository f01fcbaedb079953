"""Chains of optax and jaxpar drawn from a grammar, each written in several ways, and one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import jax
import optax

import jaxpar.optim
from benchmarks.loops.loop import Rate, constant, uncorrected_adam, warm_cosine
from benchmarks.loops.planted import BATCHES, _numeral
from jaxpar.parity import linear_loss

WAYS = ("alias", "parts", "nested", "jaxpar")
"""How a chain is written: optax's optimizers, their parts, parts in other containers, jaxpar's optimizers."""


@dataclass(frozen=True)
class Chain:
    optimizer: str
    rate: Rate
    settings: dict[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.0
    coupled: bool = False
    decayed: str = "all"  # or "matrices"
    clip: tuple[str, float, float] | None = None  # form, limit, what is added to the norm
    accumulate: int = 1
    mean: bool = True
    scale: float = 1.0  # multiplies gradients before they are clipped
    skips: bool = False
    average: float | None = None
    odd: dict[str, Any] = field(default_factory=dict)  # what is no setting

    def but(self, **changes: Any) -> Chain:
        return replace(self, **changes)

    def is_constant(self) -> bool:
        return len({float(self.rate(i)) for i in range(BATCHES)}) == 1


def matrices(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, tree)


def written(chain: Chain, way: str) -> Any:
    """Return the chain as an optax transformation, or as a loop if it has an average."""
    front: list[Any] = [optax.scale(chain.scale)] if chain.scale != 1 else []
    clip = _clipping(chain)
    update = [*clip, *_optimizer(chain, way)]
    if chain.odd.get("clips each"):
        update = update[len(clip) :]
        front += clip
    inner = optax.chain(*front, *update) if chain.accumulate == 1 else optax.chain(*update)
    if "frozen" in chain.odd:
        inner = optax.chain(inner, optax.masked(optax.set_to_zero(), _named(chain.odd["frozen"])))
    if way == "nested":
        inner = optax.chain(optax.identity(), optax.named_chain(("all", inner)))
    tx = optax.apply_if_finite(inner, 5) if chain.skips else inner
    if chain.accumulate > 1:
        steps = optax.MultiSteps(tx, chain.accumulate, use_grad_mean=chain.mean)
        tx = (
            optax.chain(*front, steps.gradient_transformation()) if front else steps.gradient_transformation()
        )
    return tx if chain.average is None else averaging(chain, tx)


def _named(part: str) -> Callable[[Any], Any]:
    return lambda tree: jax.tree_util.tree_map_with_path(
        lambda path, _: part in jax.tree_util.keystr(path), tree
    )


def _clipping(chain: Chain) -> list[Any]:
    if chain.clip is None:
        return []
    form, limit, eps = chain.clip
    if form == "value":
        return [optax.clip(limit)]
    return [jaxpar.optim.clip_grad_norm(limit) if eps else optax.clip_by_global_norm(limit)]


def _optimizer(chain: Chain, way: str) -> list[Any]:
    own = _own(chain) if way == "jaxpar" else None
    alias = _alias(chain) if way == "alias" else None
    if own or alias:
        return [own or alias]
    mask = None if chain.decayed == "all" else matrices
    decay: list[Any] = []
    if chain.weight_decay:
        decay = [optax.add_decayed_weights(chain.weight_decay, mask)]
        if way == "nested" and mask:
            decay = [optax.masked(optax.add_decayed_weights(chain.weight_decay), mask)]
    rates: list[Any] = [optax.scale_by_learning_rate(chain.rate)]
    if chain.is_constant():
        rates = [optax.scale_by_learning_rate(float(chain.rate(0)))]
    if way == "nested":
        rates = [optax.scale_by_schedule(chain.rate), optax.scale(-1.0)]
    formula = _formula(chain)
    momentum = [optax.trace(chain.settings["momentum"])] if chain.odd.get("momentum of updates") else []
    if chain.odd.get("decay without rate"):
        return [*formula, *rates, optax.add_decayed_weights(-chain.weight_decay, mask)]
    before, after = (decay, []) if chain.coupled else ([], decay)
    return [*before, *formula, *after, *rates, *momentum]


def _formula(chain: Chain) -> list[Any]:
    s, odd = chain.settings, chain.odd
    if chain.optimizer == "adam":
        eps = s["eps"]
        inside = {"eps": 0.0, "eps_root": eps} if odd.get("inside") else {"eps": eps, "eps_root": 0.0}
        if odd.get("uncorrected"):
            return [uncorrected_adam(s["b1"], s["b2"], eps)]
        if s.get("amsgrad"):
            return [optax.scale_by_amsgrad(s["b1"], s["b2"], **inside)]
        return [optax.scale_by_adam(s["b1"], s["b2"], **inside, nesterov=s.get("nesterov", False))]
    if chain.optimizer == "sgd":
        if not s.get("momentum") or odd.get("momentum of updates"):
            return []
        if odd.get("mean"):
            return [optax.ema(s["momentum"], debias=False)]
        return [optax.trace(s["momentum"], s.get("nesterov", False))]
    if chain.optimizer == "rmsprop":
        form = optax.scale_by_stddev if s.get("centered") else optax.scale_by_rms
        inside = bool(s["inside"]) != bool(odd.get("inside"))
        return [form(s["decay"], s["eps"], odd.get("initial", 0.0), inside), optax.trace(s["momentum"])]
    if chain.optimizer == "adagrad":
        return [optax.scale_by_rss(s["initial"], s["eps"])]
    return [optax.scale_by_adadelta(s["rho"], 1e-6)]


def _alias(chain: Chain) -> Any:
    """Return the optimizer in one call of optax, or None if there is none."""
    s, rate = chain.settings, chain.rate
    mask = None if chain.decayed == "all" else matrices
    if chain.odd or (chain.coupled and chain.weight_decay):
        return None
    decays = {"weight_decay": chain.weight_decay, "mask": mask}
    if chain.optimizer == "adam" and not s.get("amsgrad"):
        adam = {"b1": s["b1"], "b2": s["b2"], "eps": s["eps"], "nesterov": s.get("nesterov", False)}
        if chain.is_constant() and not chain.weight_decay:
            return optax.inject_hyperparams(optax.adam)(float(rate(0)), **adam)
        return optax.adamw(rate, **adam, **decays)
    if chain.weight_decay:
        return None
    if chain.optimizer == "sgd":
        return optax.sgd(rate, s.get("momentum") or None, s.get("nesterov", False))
    if chain.optimizer == "adam":
        return optax.amsgrad(rate, s["b1"], s["b2"], s["eps"])
    if chain.optimizer == "adagrad":
        return optax.adagrad(rate, s["initial"], s["eps"])
    return None if chain.optimizer == "rmsprop" else optax.adadelta(rate, s["rho"], 1e-6)


def _own(chain: Chain) -> Any:
    """Return the optimizer in one call of jaxpar, or None if torch's is another one."""
    s = chain.settings
    other = s.get("inside") or s.get("amsgrad") or (chain.optimizer == "adam" and s.get("nesterov"))
    if chain.odd or chain.decayed != "all" or chain.optimizer == "adagrad" or other:
        return None
    decay = {"lr": chain.rate, "weight_decay": chain.weight_decay}
    if chain.optimizer == "adam":
        make = jaxpar.optim.adam if chain.coupled else jaxpar.optim.adamw
        return make(betas=(s["b1"], s["b2"]), eps=s["eps"], **decay)
    if chain.weight_decay and not chain.coupled:
        return None
    if chain.optimizer == "sgd":
        return jaxpar.optim.sgd(momentum=s.get("momentum", 0.0), nesterov=s.get("nesterov", False), **decay)
    if chain.optimizer == "adadelta":
        return jaxpar.optim.adadelta(rho=s["rho"], eps=1e-6, **decay)
    # Its momentum does not include the rate, as optax.trace before the rate.
    options = {"alpha": s["decay"], "eps": s["eps"], "momentum": s["momentum"]}
    return jaxpar.optim.rmsprop(**options, centered=bool(s.get("centered")), **decay)


def averaging(chain: Chain, tx: Any) -> Callable[..., Iterator[Any]]:
    """Return a loop that trains with `tx` and averages its parameters."""
    start, before = chain.odd.get("start", 0), chain.odd.get("before", False)

    def train(parameters: Any, batches: Iterable[Any]) -> Iterator[Any]:
        state, average = tx.init(parameters), parameters
        update = jax.jit(tx.update)
        for i, batch in enumerate(batches):
            updates, state = update(jax.grad(linear_loss)(parameters, batch), state, parameters)
            source, parameters = parameters, optax.apply_updates(parameters, updates)
            decay = 0.0 if i < start else chain.average
            average = jax.tree.map(
                lambda a, p, decay=decay: decay * a + (1 - decay) * p,
                average,
                source if before else parameters,
            )
            yield parameters, {"ema": average}

    return train


# ------------------------------------------------------------------------------------------------- changes


@dataclass(frozen=True)
class Change:
    """One thing that differs: `make` returns the changed chain, or None where it does not apply."""

    name: str
    make: Callable[[Chain, Random], Chain | None]
    named: str  # a regular expression, of either loop


def _settings(optimizers: str, **changes: Any) -> Callable[[Chain, Random], Chain | None]:
    def make(chain: Chain, _: Random) -> Chain | None:
        return chain.but(settings={**chain.settings, **changes}) if chain.optimizer in optimizers else None

    return make


def _odd(applies: Callable[[Chain], Any], **odd: Any) -> Callable[[Chain, Random], Chain | None]:
    return lambda chain, _: chain.but(odd={**chain.odd, **odd}) if applies(chain) else None


def _rate(change: Callable[[Rate, Any], Any], varies: bool = True) -> Callable[[Chain, Random], Chain | None]:
    def make(chain: Chain, _: Random) -> Chain | None:
        rate = chain.rate
        return None if varies and chain.is_constant() else chain.but(rate=lambda i: change(rate, i))

    return make


def _clip(chain: Chain, random: Random) -> Chain | None:
    if chain.clip is None:
        return chain.but(clip=("norm", random.choice([0.1, 0.5, 1.0]), 0.0))
    form, limit, eps = chain.clip
    return chain.but(clip=(form, float(f"{limit * random.choice([0.5, 2.0]):.3g}"), eps))


def _decay(chain: Chain, random: Random) -> Chain | None:
    return chain.but(weight_decay=_numeral(random, 1e-3, 0.3))


def _plain_momentum(chain: Chain) -> bool:
    return (
        chain.optimizer == "sgd" and bool(chain.settings.get("momentum")) and not chain.settings["nesterov"]
    )


def _adam(chain: Chain) -> bool:
    return chain.optimizer == "adam" and not chain.settings.get("amsgrad")


CHANGES = [
    Change("schedule one update early", _rate(lambda rate, i: rate(i + 1)), "1 update (ahead|late)"),
    Change("schedule one update late", _rate(lambda rate, i: rate(abs(i - 1))), "1 update (ahead|late)"),
    Change("schedule once in 3 updates", _rate(lambda rate, i: rate(i // 3)), "3 updates"),
    Change("no schedule", _rate(lambda rate, i: rate(0 * i)), "stays constant"),
    Change("rate times 8", _rate(lambda rate, i: 8 * rate(i), False), "8 times|by 8|0.125"),
    Change("clips at another limit", _clip, r"clips the \w+ at"),
    Change("does not clip", lambda x, _: x.but(clip=None) if x.clip else None, r"clips the \w+ at"),
    Change(
        "clips by value or by norm",
        lambda x, _: x.but(clip=("value", x.clip[1] / 4, 0.0)) if x.clip and x.clip[0] == "norm" else None,
        "clips the values",
    ),
    Change(
        "norm with or without 1e-6",
        lambda x, _: (
            x.but(clip=("norm", x.clip[1], 1e-6 - x.clip[2])) if x.clip and x.clip[0] == "norm" else None
        ),
        r"norm \+ 1e-6",
    ),
    Change(
        "clips each batch",
        _odd(lambda x: x.clip and x.accumulate > 1, **{"clips each": True}),
        "clips (accumulated gradients|those of each batch)",
    ),
    Change("another weight decay", _decay, "weight_decay is"),
    Change(
        "no weight decay", lambda x, _: x.but(weight_decay=0.0) if x.weight_decay else None, "weight_decay"
    ),
    Change(
        "coupled or decoupled",
        lambda x, _: x.but(coupled=not x.coupled) if x.weight_decay and (x.optimizer != "sgd") else None,
        "decoupled",
    ),
    Change(
        "decay of all or of matrices",
        lambda x, _: (
            x.but(decayed="all" if x.decayed == "matrices" else "matrices") if x.weight_decay else None
        ),
        "(weight_decay|decay).* for .*(norm|bias)|weight_decay is .* and ",
    ),
    Change(
        "decay without the rate",
        _odd(lambda x: x.weight_decay and not x.coupled, **{"decay without rate": True}),
        "multiplied by the rate|weight_decay is",
    ),
    Change("another epsilon", _settings("adam rmsprop", eps=3e-5), "eps is"),
    Change(
        "epsilon inside the root", _odd(lambda x: x.optimizer in ("adam", "rmsprop"), inside=True), "eps_root"
    ),
    Change("no bias correction", _odd(_adam, uncorrected=True), "bias of the moments"),
    Change("another first beta", _settings("adam", b1=0.83), "beta"),
    Change("another second beta", _settings("adam", b2=0.97), "beta"),
    Change(
        "Nesterov or not",
        lambda x, _: (
            x.but(settings={**x.settings, "nesterov": not x.settings.get("nesterov")})
            if _adam(x) or (x.optimizer == "sgd" and x.settings.get("momentum"))
            else None
        ),
        "(?i)nesterov",
    ),
    Change(
        "momentum as a mean",
        _odd(_plain_momentum, mean=True),
        "momentum is a sum|times as large|multiplied by",
    ),
    Change(
        "momentum of updates",
        _odd(
            lambda x: _plain_momentum(x) and not x.is_constant() and not x.weight_decay,
            **{"momentum of updates": True},
        ),
        "includes the rate",
    ),
    Change("another momentum", _settings("sgd rmsprop", momentum=0.37), "momentum is"),
    Change("squares start at 1", _odd(lambda x: x.optimizer == "rmsprop", initial=1.0), "starts at 0"),
    Change("another rho", _settings("adadelta", rho=0.87), "rho is"),
    Change("another first sum", _settings("adagrad", initial=0.0), "initial_accumulator_value is"),
    Change(
        "sum or mean",
        lambda x, _: x.but(mean=not x.mean) if x.accumulate > 1 else None,
        "(sums|averages) the gradients",
    ),
    Change(
        "another accumulation",
        lambda x, _: x.but(accumulate=3 if x.accumulate != 3 else 2),
        "updates after",
    ),
    Change("a loss scale", lambda x, _: x.but(scale=1024.0 * x.scale), "multiplied by|times as large"),
    Change(
        "applies infinite gradients",
        lambda x, _: x.but(skips=not x.skips) if x.accumulate == 1 else None,
        "infinite (gradients|elements)",
    ),
    Change("a frozen bias", _odd(bool, frozen="bias"), "does not train|trains it"),
    Change("another average", lambda x, _: x.but(average=0.77) if x.average else None, "decay 0.77"),
    Change("average before the update", _odd(lambda x: x.average, before=True), "before the update"),
    Change("average starts later", _odd(lambda x: x.average, start=4), "copied"),
]


# ---------------------------------------------------------------------------------------------------- draw


def drawn_chain(random: Random) -> Chain:
    """Return a chain whose parts and values are drawn."""
    optimizer = random.choice(["adam", "adam", "adam", "sgd", "sgd", "rmsprop", "adagrad", "adadelta"])
    peak, momentum = _numeral(random, 1e-3, 3e-2), round(random.uniform(0.5, 0.95), 2)
    accumulate = random.choice([1, 1, 1, 2, 3])
    count = BATCHES // accumulate
    cosine = warm_cosine(peak, random.randint(1, count // 3), random.randint(count // 2 + 2, 2 * count))
    options: dict[str, dict[str, Any]] = {
        "adam": {
            "b1": round(random.uniform(0.6, 0.95), 2),
            "b2": round(1 - _numeral(random, 1e-3, 0.05), 4),
            "eps": _numeral(random, 1e-9, 1e-4),
            "amsgrad": random.random() < 0.15,
        },
        "sgd": {
            "momentum": random.choice([0.0, momentum, momentum]),
            "nesterov": False,
        },
        "rmsprop": {
            "decay": round(random.uniform(0.8, 0.99), 2),
            "eps": 1e-4,
            "momentum": momentum,
            "inside": random.random() < 0.5,
            "centered": random.random() < 0.3,
        },
        "adagrad": {"initial": 0.1, "eps": 1e-7},
        "adadelta": {"rho": round(random.uniform(0.8, 0.95), 2)},
    }
    settings = options[optimizer]
    if settings.get("momentum") and optimizer == "sgd":
        settings["nesterov"] = random.random() < 0.3
    decay = random.choice([0.0, _numeral(random, 1e-3, 0.3)])
    clip = random.choice(
        [None, ("norm", _numeral(random, 0.2, 3), 0.0), ("value", _numeral(random, 0.02, 0.5), 0.0)]
    )
    if clip and clip[0] == "norm" and random.random() < 0.5:
        clip = (*clip[:2], 1e-6)
    return Chain(
        optimizer,
        random.choice([constant(peak), cosine, cosine]),
        settings,
        decay,
        coupled=random.random() < 0.4,
        decayed=random.choice(["all", "matrices"]),
        clip=clip,
        accumulate=accumulate,
        mean=random.random() < 0.7,
        scale=random.choice([1.0, 1.0, 1.0, 0.5]),
        skips=random.random() < 0.3,
        average=random.choice([None, None, None, 0.9]),
    )


def drawn_pairs(seed: int, count: int) -> Iterator[tuple[Chain, Change, Chain, tuple[str, str]]]:
    """Yield drawn chains with one change each, and how the two sides are written."""
    random = Random(seed)
    for _ in range(count):
        chain = drawn_chain(random)
        options = [(change, change.make(chain, random)) for change in CHANGES]
        change, changed = random.choice([(c, x) for c, x in options if x is not None and x != chain])
        yield chain, change, changed, (random.choice(WAYS), random.choice(WAYS))


def drawn_healthy(seed: int, count: int) -> Iterator[tuple[Chain, tuple[str, str]]]:
    """Yield drawn chains, and two ways in which each is written."""
    random = Random(seed)
    for _ in range(count):
        ways = random.sample(WAYS, 2)
        yield drawn_chain(random), (ways[0], ways[1])
