"""Drawn trainings, and the differences that people make between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from .training import Training

Make = Callable[[Training, Random], Training | None]
Needed = Callable[[Training], bool]


@dataclass(frozen=True)
class Plant:
    """A difference: `make` changes run B, or returns None if it does not apply; `named` is in its cause."""

    name: str
    make: Make
    named: str  # a regular expression


def _plant(needed: Needed, **changes: Any) -> Make:
    """Return a maker; a list is drawn from."""

    def make(training: Training, random: Random) -> Training | None:
        drawn = {name: random.choice(x) if isinstance(x, list) else x for name, x in changes.items()}
        return training.planted(**drawn) if needed(training) else None

    return make


def _set(needed: Needed, **changes: Any) -> Make:
    return lambda training, random: replace(training, **changes) if needed(training) else None


def _setting(needed: Needed, **changes: Any) -> Make:
    return lambda t, random: replace(t, settings={**t.settings, **changes}) if needed(t) else None


def always(training: Training) -> bool:
    return True


def classes(t: Training) -> bool:
    return t.model != "regression"


def digits(t: Training) -> bool:
    return t.model == "digits"


def letters(t: Training) -> bool:
    return t.model == "letters"


def varies(t: Training) -> bool:
    return t.schedule != "constant"


def adam(t: Training) -> bool:
    return t.optimizer == "adam"


def momentum(t: Training) -> bool:
    return bool(t.settings.get("momentum"))


def decays(t: Training) -> bool:
    return t.weight_decay > 0


def clips(t: Training) -> bool:
    return t.clip is not None


def several(t: Training) -> bool:
    return t.world > 1


def exact(t: Training) -> bool:
    return t.dtype == "float64"


def continuous(t: Training) -> bool:
    return t.model != "letters"


PLANTS = [
    # the batch
    Plant("another shuffle", _plant(always, **{"other order": True}), "another order"),
    Plant(
        "the same order in all epochs", _plant(always, **{"same epochs": True}), "order of its first epoch"
    ),
    Plant("the last batch is dropped", _plant(always, **{"drop last": True}), "run B drops them"),
    Plant("the last batch is filled up", _plant(always, **{"fill last": True}), "fills the last batch"),
    Plant(
        "skipped batches", _plant(lambda t: t.accumulate == 1, **{"skip batches": [1, 2]}), "steps? earlier"
    ),
    Plant("other data", _plant(always, **{"other half": True}), "other data"),
    Plant("another batch size", _set(lambda t: True, batch_size=12), "another batch size"),
    Plant("flipped images", _plant(digits, flip=True), "other positions"),
    Plant("inputs times 16", _plant(continuous, scale=16.0), "16 times run A's"),
    Plant("another normalisation", _plant(continuous, scale=2.0, offset=-0.5), r"2 times run A's -0\.5"),
    Plant(
        "inputs in bfloat16",
        _plant(lambda t: t.model == "regression", **{"round inputs": True}),
        "rounded to bfloat16",
    ),
    Plant(
        "labels of the next row",
        _plant(lambda t: t.accumulate == 1 and t.world == 1, **{"label rows": 1}),
        "shifted by 1 row|at other rows",
    ),
    Plant("classes from 1", _plant(digits, **{"label offset": True}), r"\+1 everywhere"),
    Plant("targets one position ahead", _plant(letters, **{"target position": True}), "1 position"),
    Plant(
        "labels shuffled apart",
        _plant(lambda t: classes(t) and t.accumulate == 1 and t.world == 1, **{"labels apart": True}),
        "shuffled apart",
    ),
    Plant("processes read the same rows", _plant(several, **{"same rows": True}), "same rows more than once"),
    Plant("a rank that is missing", _plant(several, **{"missing rank": 1}), "files of ranks .1. are missing"),
    # the loss
    Plant("a sum in place of a mean", _plant(always, sum=True), "has the sum where|sum of"),
    Plant(
        "only the reported loss", _plant(always, **{"reported factor": [0.5, 0.25]}), "only the reported loss"
    ),
    Plant("dropout in one run", _set(lambda t: t.dropout == 0, dropout=0.2), "dropout"),
    Plant("another dropout seed", _plant(lambda t: t.dropout > 0, **{"dropout seed": 7}), "dropout"),
    Plant(
        "BatchNorm in evaluation mode",
        _plant(lambda t: digits(t) and t.dropout == 0, **{"evaluation mode": True}),
        "evaluation mode in run B",
    ),
    Plant("label smoothing", _plant(classes, **{"label smoothing": 0.1}), "smooths labels (by 0.1 )?more"),
    Plant("an L2 penalty", _plant(exact, penalty=[1e-2, 1e-3]), "as a penalty in the loss"),
    Plant(
        "a pass in bfloat16",
        _plant(lambda t: exact(t) and not digits(t), **{"cast pass": "bfloat16"}),
        "rounds more|rounded to bfloat16",
    ),
    # the gradients
    Plant(
        "no clipping", _plant(clips, **{"no clip": True}), "run A clips the global norm at .* run B does not"
    ),
    Plant(
        "clipping",
        _set(lambda t: t.clip is None, clip=0.05),
        "run B clips the global norm at 0.05; run A does not",
    ),
    Plant(
        "another limit",
        _plant(clips, **{"clip limit": [0.02, 0.03]}),
        r"run A clips the global norm at 0\.0[0-9]*, run B at 0\.0[23]",
    ),
    Plant(
        "clipping by value",
        _plant(lambda t: t.clip is None, **{"clip values": 0.004}),
        "clips the values at 0.004",
    ),
    Plant(
        "clipping without 1e-6",
        _plant(lambda t: clips(t) and exact(t) and t.framework == "jax", **{"clip without eps": True}),
        "by the norm alone",
    ),
    Plant(
        "accumulation by sum",
        _plant(lambda t: t.accumulate > 1 and t.clip is None, **{"accumulated sum": True}),
        "sum of 2|sum where",
    ),
    Plant(
        "gradients of processes summed",
        _plant(lambda t: several(t) and t.clip is None, **{"summed over processes": True}),
        "sum of 2",
    ),
    Plant(
        "gradients of processes not averaged",
        _plant(several, **{"not averaged": True}),
        "not averaged over processes",
    ),
    Plant("a loss scale", _plant(lambda t: t.clip is None, **{"gradient factor": 1024.0}), "loss scale"),
    Plant(
        "gradients in bfloat16",
        _plant(lambda t: t.clip is None, **{"round gradients": True}),
        "rounded to bfloat16",
    ),
    # rate, update
    Plant("schedule one update early", _plant(varies, **{"schedule shift": 1}), "1 update ahead"),
    Plant("schedule one update late", _plant(varies, **{"schedule shift": -1}), "1 update late"),
    Plant("no schedule", _plant(varies, **{"no schedule": True}), "stays constant"),
    Plant(
        "schedule once in 3 updates",
        _plant(lambda t: t.schedule == "warm", **{"schedule period": 3}),
        "once in 3 updates",
    ),
    Plant("another rate", lambda t, random: replace(t, rate=t.rate * 2), "2 times as large"),
    Plant(
        "a frozen layer",
        lambda t, random: t.planted(
            frozen={"regression": "fc2", "digits": "conv2", "letters": "up"}[t.model]
        ),
        "never changes in run B",
    ),
    Plant("no weight decay", _set(decays, weight_decay=0.0), r"weight_decay is|acts as with 0\)"),
    Plant(
        "another weight decay",
        _set(lambda t: decays(t) and t.weight_decay != 0.05, weight_decay=0.05),
        r"weight_decay is|acts as with 0.05\)",
    ),
    Plant("decay of norms and biases", _plant(lambda t: decays(t), **{"decay all": True}), "weight_decay is"),
    Plant("other betas", _setting(adam, betas=(0.9, 0.95)), "betas is"),
    Plant("another epsilon", _setting(lambda t: adam(t) and exact(t), eps=1e-5), "eps is"),
    Plant(
        "epsilon inside the root",
        _plant(lambda t: adam(t) and exact(t) and t.framework == "jax", **{"eps inside": True}),
        "inside",
    ),
    Plant(
        "decay coupled",
        _plant(lambda t: adam(t) and decays(t), coupled=True),
        "L2|decoupled|optimizer is AdamW",
    ),
    Plant("another momentum", _setting(momentum, momentum=0.5), "momentum is"),
    Plant("Nesterov's momentum", _setting(momentum, nesterov=True), "[Nn]esterov"),
    Plant("a skipped update", _plant(always, **{"skipped step": [3, 5]}), "makes no update in step"),
    Plant(
        "parameters in bfloat16", _plant(always, **{"round parameters": "bfloat16"}), "rounded to bfloat16"
    ),
    # buffers
    Plant(
        "BatchNorm's momentum reversed",
        _plant(lambda t: digits(t) and t.accumulate == 1, **{"momentum of buffers": 0.9}),
        "another momentum",
    ),
    Plant(
        "a biased running variance",
        _plant(lambda t: digits(t) and t.framework == "jax", biased=True),
        "n - 1",
    ),
]


def drawn_training(random: Random, dtype: str | None = None) -> Training:
    """Return a training whose parts and values are drawn."""
    model = random.choice(["regression", "digits", "letters"])
    optimizer = random.choice(["sgd", "sgd", "adam", "adam", "rmsprop"])
    settings: dict[str, Any] = {}
    if optimizer == "sgd" and random.random() < 0.7:
        settings = {"momentum": random.choice([0.9, 0.8])}
    if optimizer == "adam" and random.random() < 0.3:
        settings = {"betas": random.choice([(0.9, 0.98), (0.8, 0.999)])}
    rates = {"sgd": [0.1, 0.02], "adam": [1e-2, 3e-3], "rmsprop": [1e-3, 3e-3]}
    return Training(
        model,
        "torch",
        dtype or random.choice(["float64", "float64", "float32"]),
        random.randrange(1000),
        optimizer,
        settings,
        weight_decay=random.choice([0.0, 0.1, 0.01]),
        rate=random.choice(rates[optimizer]),
        schedule=random.choice(["constant", "warm", "step"]),
        clip=random.choice([None, None, 0.05]),
        accumulate=random.choice([1, 1, 1, 2]),
        world=random.choice([1, 1, 2]) if model != "digits" else 1,
    )


def frames(random: Random, training: Training) -> tuple[Training, Training]:
    """Return a training in two drawn frameworks, with dropout if its masks are the same."""
    a, b = random.choice([("torch", "jax"), ("torch", "torch"), ("jax", "jax"), ("torch", "jax")])
    dropout = 0.2 if a == b and random.random() < 0.25 else 0.0
    return replace(training, framework=a, dropout=dropout), replace(training, framework=b, dropout=dropout)


def drawn(seed: int, count: int) -> Iterator[tuple[Training, Plant, Training, Training]]:
    """Yield run A, a difference drawn without return, and run B with and without it."""
    random = Random(seed)
    deck: list[Plant] = []
    for _ in range(count):
        if not deck:
            deck = random.sample(PLANTS, len(PLANTS))
        while True:
            a, b = frames(random, drawn_training(random))
            plants = [(plant, plant.make(b, random)) for plant in deck]
            fitting = [(plant, faulty) for plant, faulty in plants if faulty is not None]
            if fitting:
                break
        plant, faulty = fitting[0]
        deck.remove(plant)
        assert faulty is not None
        yield a, plant, faulty, b


def healthy(seed: int, count: int) -> list[tuple[Training, Training]]:
    random = Random(seed)
    return [frames(random, drawn_training(random)) for _ in range(count)]
