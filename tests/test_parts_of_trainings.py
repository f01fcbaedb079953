"""bisect names what differs in a part: terms of a loss, one of several networks, a norm of some arrays."""

from __future__ import annotations

import numpy as np
import pytest

from jaxpar import parity

STEPS, ROWS = 12, 144
SHAPES = {"actor": {"w": (3, 4), "b": (4,)}, "critic": {"w": (4, 2)}, "scale": ()}


def mapped(function, tree, *others):
    if isinstance(tree, dict):
        return {name: mapped(function, x, *(other[name] for other in others)) for name, x in tree.items()}
    return function(tree, *others)


def norm(tree):
    return (
        np.sqrt(sum(norm(x) ** 2 for x in tree.values())) if isinstance(tree, dict) else np.linalg.norm(tree)
    )


class Training:
    """A training in NumPy with SGD; methods that a row replaces are what its fault changes."""

    weights = 0.3, 0.7
    divided = ROWS - 1

    def terms(self, terms):
        return terms

    def loss(self, loss):
        return loss

    def gradients(self, gradients):
        return gradients

    def rate(self, name):
        return 0.1

    def updated(self, name, weights, gradients):
        return mapped(lambda w, g: np.float32(w - self.rate(name) * g), weights, gradients)

    def tapped(self, folder):
        random = np.random.default_rng(0)
        parameters = mapped(lambda shape: random.standard_normal(shape).astype(np.float32), SHAPES)
        variance = np.ones(3, np.float32)
        with parity.Tap(folder, start=parameters) as tap:
            for step in range(STEPS):
                x = random.standard_normal((ROWS, 3))
                terms = self.terms(np.exp(random.standard_normal(2)))
                gradients = mapped(
                    lambda w: (0.2 * random.standard_normal(w.shape)).astype(np.float32), parameters
                )
                gradients = mapped(np.float32, self.gradients(gradients))
                parameters = {name: self.updated(name, w, gradients[name]) for name, w in parameters.items()}
                variance = np.float32(0.9 * variance + 0.1 * x.var(0) * ROWS / self.divided)
                tap(
                    step,
                    batch=(x,),
                    loss=self.loss(float(terms @ self.weights)),
                    gradients=gradients,
                    parameters=parameters,
                    extra={
                        "hard": terms[0],
                        "soft": terms[1],
                        "norm": {"running_mean": x.mean(0), "running_var": variance},
                    },
                )
        return folder


def clipped(gradients, part, limit=0.5):
    factor = min(1.0, limit / norm(part))
    return mapped(lambda g: factor * g, gradients)


class OtherWeights(Training):
    weights = 0.5, 0.5

    def gradients(self, gradients):
        return mapped(lambda g: np.roll(g, 1), gradients)


class OtherTerm(Training):
    def terms(self, terms):
        return terms * (1, 1 / 16)

    def gradients(self, gradients):
        return mapped(lambda g: np.roll(g, 1), gradients)


class Squared(OtherTerm):
    def terms(self, terms):
        return terms

    def loss(self, loss):
        return loss**2


class Half(Training):
    def loss(self, loss):
        return loss / 2

    def gradients(self, gradients):
        return gradients | {"critic": {"w": gradients["critic"]["w"] / 2}}


class OneRate(Training):
    def rate(self, name):
        return 0.06 if name == "actor" else 0.1


class Biased(Training):
    divided = ROWS


class Clipped(Training):
    def gradients(self, gradients):
        return clipped(gradients, gradients)


class ClippedWithoutScale(Training):
    def gradients(self, gradients):
        return clipped(gradients, {name: g for name, g in gradients.items() if name != "scale"})


class ClippedByActor(Training):
    def gradients(self, gradients):
        return clipped(gradients, gradients["actor"])


class ClippedInParts(Training):
    """Of two micro-batches, each is clipped by itself."""

    def gradients(self, gradients):
        half = mapped(lambda g: g / 2 + np.roll(g, 1), gradients)
        rest = mapped(lambda g, h: g - h, gradients, half)
        return mapped(np.add, clipped(half, half, 0.7), clipped(rest, rest, 0.7))


class ClippedOnce(Training):
    limit = 1.2

    def gradients(self, gradients):
        size = norm(gradients)
        return mapped(lambda g: g * min(1.0, self.limit / size), gradients)


class NeverClipped(ClippedOnce):
    limit = 9.0


CASES = {
    "the weights of a loss": (
        Training,
        OtherWeights,
        0,
        "run A's loss is 0.3 * hard + 0.7 * soft, run B's is 0.5 * hard + 0.5 * soft",
    ),
    "one term of a loss": (
        Training,
        OtherTerm,
        0,
        "; of the numbers beside it soft is 0.0625 times as large in run B, and hard the same",
    ),
    "a loss that is no sum of its terms": (Training, Squared, 0, "do not explain it; hard, soft agree."),
    "half of one network's loss": (
        Training,
        Half,
        0,
        "the loss and the gradients of critic.w are 0.5 times as large in run B",
    ),
    "the rate of one network": (
        Training,
        OneRate,
        0,
        "run B's updates of actor.b, actor.w are 0.6 times as large: another rate for them",
    ),
    "a divisor that rounding hides": (
        Training,
        Biased,
        0,
        "the running variance alone differs: run A divides by n - 1 (n = 144), run B by n",
    ),
    "a norm without one array": (
        Clipped,
        ClippedWithoutScale,
        1,
        "run A clips the global norm at 0.5; run B clips by the norm without scale alone",
    ),
    "a norm of one network": (
        Clipped,
        ClippedByActor,
        0,
        "run A clips the global norm at 0.5; run B clips by the norm of actor alone",
    ),
    "micro-batches that are clipped": (
        Clipped,
        ClippedInParts,
        0,
        "run B does not, or clips each part of a sum of gradients",
    ),
    "a norm that is clipped once": (
        NeverClipped,
        ClippedOnce,
        0,
        "run B clips the global norm at 1.2; run A does not (1.2",
    ),
    "a norm that the first clips once": (
        ClippedOnce,
        NeverClipped,
        0,
        "run A clips the global norm at 1.2; run B does not (1.2",
    ),
}


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "_"))
def test_a_difference_in_a_part_is_named(name, tmp_path):
    a, b, step, text = CASES[name]
    result = parity.bisect(a().tapped(tmp_path / "a"), b().tapped(tmp_path / "b"))
    assert result.step == step, str(result)
    (cause,) = result.causes
    assert text in cause


@pytest.mark.parametrize("training", [Training, Clipped, ClippedOnce], ids=lambda x: x.__name__)
def test_the_same_is_the_same(training, tmp_path):
    assert parity.bisect(training().tapped(tmp_path / "a"), training().tapped(tmp_path / "b")).same
