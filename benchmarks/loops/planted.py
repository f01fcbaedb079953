"""Loops of known programs, and the faults that people make when they write them in JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from .loop import Loop, constant, steps_down, warm_cosine

BATCHES = 24

LOOPS = [
    Loop(
        "nanoGPT",
        "adam",
        warm_cosine(6e-4, 3, 12),
        {"betas": (0.9, 0.95)},
        weight_decay=0.1,
        coupled=False,
        decayed="matrices",
        clip=("norm", 1.0),
        accumulate=2,
        scale=1024.0,
    ),
    Loop("imagenet", "sgd", steps_down(0.1, 0.1, 6), {"momentum": 0.9}, weight_decay=1e-4),
    Loop("word_language_model", "sgd", steps_down(20.0, 0.25, 8), clip=("norm", 0.25)),
    Loop("mnist", "adadelta", steps_down(1.0, 0.7, 6)),
    Loop("dcgan", "adam", constant(2e-4), {"betas": (0.5, 0.999)}),
    Loop(
        "resnet18 with an average",
        "sgd",
        warm_cosine(0.1, 5, 20),
        {"momentum": 0.9, "nesterov": True},
        weight_decay=5e-4,
        average=0.99,
    ),
    Loop(
        "dqn",
        "adam",
        constant(1e-4),
        {"amsgrad": True},
        weight_decay=0.01,
        coupled=False,
        clip=("value", 0.2),
    ),
    Loop(
        "fine-tuning",
        "adam",
        warm_cosine(3e-5, 4, 24),
        {"eps": 1e-6},
        weight_decay=0.01,
        coupled=False,
        decayed="matrices",
        clip=("norm", 1.0),
    ),
    Loop(
        "vision transformer",
        "adam",
        warm_cosine(1e-3, 2, 6),
        weight_decay=0.3,
        coupled=False,
        clip=("norm", 0.5),
        accumulate=4,
        average=0.95,
    ),
    Loop("small steps", "sgd", constant(2.2e-4), clip=("value", 0.02), accumulate=2, average=0.971),
    Loop(
        "mobilenet", "rmsprop", steps_down(0.05, 0.9, 4), {"alpha": 0.9, "momentum": 0.9, "eps": 1e-3}, 1e-5
    ),
]


@dataclass(frozen=True)
class Plant:
    """A fault: `make` returns the faulty loop, or None where it does not apply; `named` is in its cause."""

    name: str
    make: Callable[[Loop], Loop | None]
    named: str  # a regular expression


def _jax(needed: Callable[[Loop], bool], **faults: Any) -> Callable[[Loop], Loop | None]:
    return lambda loop: loop.with_fault(jax_only=faults) if needed(loop) else None


def _rate(
    change: Callable[[Callable, Any], Any], needed: Callable[[Loop], bool]
) -> Callable[[Loop], Loop | None]:
    def make(loop: Loop) -> Loop | None:
        return (
            loop.with_fault(jax_only={"rate": lambda count: change(loop.rate, count)})
            if needed(loop)
            else None
        )

    return make


def _varies(loop: Loop) -> bool:
    return loop.rate(0) != loop.rate(BATCHES // loop.accumulate - 1)


def _smooth(loop: Loop) -> bool:
    return len({loop.rate(i) for i in range(8)}) > 4


def _stepped(loop: Loop) -> bool:
    return _varies(loop) and not _smooth(loop)


def _clips(form: str = "") -> Callable[[Loop], bool]:
    return lambda loop: loop.clip is not None and form in loop.clip[0]


def _kind(*kinds: str) -> Callable[[Loop], bool]:
    return lambda loop: loop.optimizer in kinds


def _momentum(loop: Loop) -> bool:
    return bool(loop.settings.get("momentum")) and loop.optimizer == "sgd"


def _average(loop: Loop) -> bool:
    return loop.average is not None


def _decay(loop: Loop) -> bool:
    return loop.weight_decay > 0


def _setting(needed: Callable[[Loop], bool], **changes: Any) -> Callable[[Loop], Loop | None]:
    return lambda loop: loop.with_fault(**changes) if needed(loop) else None


PLANTS = [
    Plant("schedule one update early", _rate(lambda rate, i: rate(i + 1), _varies), "1 update ahead"),
    Plant("schedule one update late", _rate(lambda rate, i: rate(abs(i - 1)), _varies), "1 update late"),
    Plant("schedule once in 4 updates", _rate(lambda rate, i: rate(i // 4), _smooth), "once in 4 updates"),
    Plant("per-epoch schedule in each update", _rate(lambda rate, i: rate(i * 2), _varies), "2 times as far"),
    Plant("no schedule", _rate(lambda rate, i: rate(0 * i), _varies), "stays constant"),
    Plant(
        "rate times the number of devices",
        _rate(lambda rate, i: 8 * rate(i), bool),
        "8 times as large|multiplied by 8",
    ),
    Plant(
        "clips by value",
        lambda x: x.with_fault(clip=("value", x.clip[1])) if x.clip and x.clip[0] == "norm" else None,
        "clips the values",
    ),
    Plant(
        "clips by norm",
        lambda x: x.with_fault(clip=("norm", x.clip[1])) if x.clip and x.clip[0] == "value" else None,
        r"clips the norm at",
    ),
    Plant("clips without torch's 1e-6", _jax(_clips("norm"), clip_eps=0.0), "norm alone"),
    Plant("does not clip", _setting(_clips(), clip=None), "does not|no clip"),
    Plant(
        "clips at another limit",
        lambda x: x.with_fault(clip=(x.clip[0], 2 * x.clip[1])) if x.clip else None,
        "JAX clips",
    ),
    Plant(
        "clips each batch",
        _jax(
            lambda x: _clips("norm")(x) and x.accumulate > 1 and x.scale == 1, clip_each=True, clip_eps=1e-6
        ),
        "each batch",
    ),
    Plant(
        "clips before unscaling",
        _jax(lambda x: _clips("norm")(x) and x.scale != 1, clip_scaled=True),
        "while they are multiplied by (1024|256)|clips the norm at",
    ),
    Plant(
        "decays decoupled or coupled",
        lambda x: (
            x.with_fault(coupled=not x.coupled)
            if _decay(x) and (x.settings.get("momentum") or x.optimizer != "sgd")
            else None
        ),
        "decoupled|L2",
    ),
    Plant("no weight decay", _setting(_decay, weight_decay=0.0), r"acts as with 0\)"),
    Plant(
        "another weight decay",
        _setting(lambda x: x.weight_decay not in (0.0, 0.05), weight_decay=0.05),
        r"acts as with 0.05\)",
    ),
    Plant(
        "decays norms and biases",
        _setting(lambda x: _decay(x) and x.decayed == "matrices", decayed="all"),
        "weight_decay is .* and .*acts as with",
    ),
    Plant(
        "does not decay norms and biases",
        _setting(lambda x: _decay(x) and x.decayed == "all", decayed="matrices"),
        r"acts as with 0\), for .*norm",
    ),
    Plant(
        "epsilon inside the root",
        _jax(lambda x: x.optimizer in ("adam", "rmsprop") and not x.settings.get("amsgrad"), eps_root=True),
        "inside, as eps_root",
    ),
    Plant("another epsilon", _jax(_kind("adam"), eps=1e-5), "eps is .* acts as with 1e-05"),
    Plant(
        "no bias correction",
        _jax(lambda x: x.optimizer == "adam" and not x.settings.get("amsgrad"), uncorrected=True),
        "bias of the moments",
    ),
    Plant("other betas", _jax(_kind("adam"), betas=(0.9, 0.98)), "betas is"),
    Plant(
        "Adam with Nesterov's momentum",
        _jax(lambda x: x.optimizer == "adam" and not x.settings.get("amsgrad"), nesterov=True),
        "Nesterov",
    ),
    Plant("no amsgrad", _jax(lambda x: bool(x.settings.get("amsgrad")), amsgrad=False), "amsgrad"),
    Plant(
        "momentum as a mean",
        _jax(lambda x: _momentum(x) and not x.settings.get("nesterov"), ema_momentum=True),
        "momentum is a sum",
    ),
    Plant(
        "momentum with the rate",
        _jax(lambda x: _momentum(x) and _varies(x) and not x.settings.get("nesterov"), velocity=True),
        "includes the rate",
    ),
    Plant(
        "Nesterov or not",
        lambda x: (
            x.with_fault(jax_only={"nesterov": not x.settings.get("nesterov", False)})
            if _momentum(x)
            else None
        ),
        "nesterov",
    ),
    Plant("another momentum", _jax(lambda x: bool(x.settings.get("momentum")), momentum=0.5), "momentum is"),
    Plant("squares start at 1", _jax(_kind("rmsprop"), initial=1.0), "starts at 0"),
    Plant("another rho", _jax(_kind("adadelta"), rho=0.95), "rho is"),
    Plant("sums accumulated gradients", _jax(lambda x: x.accumulate > 1, sums=True), "sums the gradients"),
    Plant(
        "accumulates 3 batches",
        _jax(lambda x: x.accumulate not in (1, 3), accumulate=3),
        "JAX after 3 batches",
    ),
    Plant("unscales twice", _jax(lambda x: x.scale != 1, unscale=2.0**20), "multiplied by [0-9.e-]*:"),
    Plant("does not unscale", _jax(lambda x: x.scale != 1, unscale=1.0), "multiplied by (1024|256)"),
    Plant(
        "zeros for infinite gradients",
        _jax(lambda x: x.scale != 1, zeros=True),
        "zeros for infinite elements",
    ),
    Plant(
        "schedule waits for skipped updates",
        _jax(lambda x: x.scale != 1 and _varies(x), waits=True),
        "1 update late from there on",
    ),
    Plant("averages before the update", _jax(_average, average_before=True), "before the update"),
    Plant("averages later", _jax(_average, average_start=3), "JAX.*copied"),
    Plant(
        "another decay of the average",
        _jax(lambda x: x.average not in (None, 0.9), average=0.9),
        "JAX.*decay 0.9,",
    ),
    Plant("does not train a bias", _jax(bool, frozen="bias"), r"JAX does not\), for .*bias"),
]


def pairs() -> Iterator[tuple[Loop, Plant, Loop]]:
    """Yield every plant in every loop to which it applies: the healthy loop, the plant, the faulty loop."""
    for loop in LOOPS:
        for plant in PLANTS:
            faulty = plant.make(loop)
            if faulty is not None:
                yield loop, plant, faulty


# ------------------------------------------------------------------------------------------------------ draw


def _numeral(random: Random, low: float, high: float) -> float:
    """Return a number of two digits, uniform on a logarithmic scale."""
    return float(f"{10 ** random.uniform(math.log10(low), math.log10(high)):.1e}")


def _drawn_loop(random: Random) -> Loop:
    """Return a loop whose parts and values are drawn."""
    optimizer = random.choice(["adam", "adam", "adam", "sgd", "sgd", "rmsprop", "adadelta"])
    accumulate = random.choice([1, 1, 2, 3, 4])
    count = BATCHES // accumulate
    peak = _numeral(random, 1e-4, 1e-2)
    rate = random.choice(
        [
            constant(peak),
            steps_down(peak, random.choice([0.1, 0.3, 0.5, 0.9]), random.randint(1, max(count // 3, 1))),
            warm_cosine(
                peak, random.randint(1, max(count // 3, 1)), random.randint(count // 2 + 2, 2 * count)
            ),
        ]
    )
    momentum = round(random.uniform(0.5, 0.99), 2)
    options: dict[str, dict[str, Any]] = {
        "adam": {
            "betas": (round(random.uniform(0.5, 0.95), 2), round(1 - _numeral(random, 1e-3, 0.05), 4)),
            "eps": _numeral(random, 1e-9, 1e-4),
        },
        "sgd": {"momentum": momentum, "nesterov": random.random() < 0.3} if random.random() < 0.8 else {},
        "rmsprop": {"alpha": round(random.uniform(0.8, 0.99), 2), "momentum": momentum, "eps": 1e-4},
        "adadelta": {},
    }
    return Loop(
        "drawn",
        optimizer,
        rate,
        options[optimizer],
        weight_decay=random.choice([0.0, _numeral(random, 1e-4, 0.3)]),
        coupled=optimizer != "adam" or random.random() < 0.3,
        decayed=random.choice(["all", "matrices"]),
        clip=random.choice(
            [None, ("norm", _numeral(random, 0.2, 3)), ("value", _numeral(random, 0.02, 0.5))]
        ),
        accumulate=accumulate,
        average=random.choice([None, round(1 - _numeral(random, 0.01, 0.3), 3)]),
        scale=random.choice([1.0, 1.0, 256.0]),
    )


def _values(random: Random) -> list[Plant]:
    """Return plants whose values are drawn; those of the list have the values that the judge tries first."""
    decay, eps = _numeral(random, 1e-4, 0.3), _numeral(random, 1e-9, 1e-3)
    b1, b2 = round(random.uniform(0.5, 0.95), 2), round(1 - _numeral(random, 1e-3, 0.05), 4)
    factor, momentum = round(random.uniform(0.1, 5), 1), round(random.uniform(0.3, 0.98), 2)
    limit = round(random.uniform(0.3, 3), 1)
    return [
        Plant(
            "weight decay, drawn", _setting(_decay, weight_decay=decay), rf"decay.*acts as with {decay:g}\)"
        ),
        Plant("epsilon, drawn", _jax(_kind("adam"), eps=eps), rf"eps.*acts as with {eps:g}\)"),
        Plant(
            "betas, drawn",
            lambda x: (
                x.with_fault(jax_only={"betas": (b1, x.settings["betas"][1])})
                if _kind("adam")(x) and x.settings["betas"][0] != b1
                else None
            ),
            rf"beta.*{b1:g}",
        ),
        Plant(
            "second beta, drawn",
            lambda x: (
                x.with_fault(jax_only={"betas": (x.settings["betas"][0], b2)}) if _kind("adam")(x) else None
            ),
            rf"beta.*{b2:g}",
        ),
        Plant(
            "rate, drawn",
            _rate(lambda rate, i: factor * rate(i), bool),
            f"{factor:g} times as large|by {factor:g}",
        ),
        Plant(
            "momentum, drawn",
            _jax(lambda x: bool(x.settings.get("momentum")), momentum=momentum),
            rf"momentum.*with {momentum:g}\)",
        ),
        Plant(
            "limit, drawn",
            lambda x: (
                x.with_fault(clip=(x.clip[0], round(limit * x.clip[1], 6))) if x.clip and limit != 1 else None
            ),
            "limit is|JAX clips",
        ),
    ]


def drawn(seed: int, count: int) -> Iterator[tuple[Loop, Plant, Loop]]:
    """Yield drawn loops, each with a drawn fault that applies to it."""
    random = Random(seed)
    for _ in range(count):
        loop = _drawn_loop(random)
        faults = [(plant, plant.make(loop)) for plant in (*PLANTS, *_values(random))]
        plant, faulty = random.choice([(plant, faulty) for plant, faulty in faults if faulty is not None])
        assert faulty is not None
        yield loop, plant, faulty


def healthy(seed: int, count: int) -> list[Loop]:
    random = Random(seed)
    return [_drawn_loop(random) for _ in range(count)]
