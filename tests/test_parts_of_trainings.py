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
    rates: tuple[float, ...] | None = None
    moved = 1.0

    def terms(self, terms):
        return terms

    def loss(self, loss):
        return loss

    def gradients(self, gradients):
        return gradients

    def gradients_of(self, step, gradients):
        return self.gradients(gradients)

    def weights_of(self, step):
        return self.weights

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
                gradients = mapped(np.float32, self.gradients_of(step, gradients))
                parameters = {name: self.updated(name, w, gradients[name]) for name, w in parameters.items()}
                variance = np.float32(0.9 * variance + 0.1 * x.var(0) * ROWS / self.divided)
                tap(
                    step,
                    batch=(x,),
                    loss=self.loss(float(terms @ self.weights_of(step))),
                    gradients=gradients,
                    parameters=parameters,
                    rate=self.rates,
                    extra={
                        "hard": terms[0],
                        "soft": terms[1],
                        "norm": {"running_mean": self.moved * x.mean(0), "running_var": variance},
                    },
                )
        return folder


def clipped(gradients, part, limit=0.5):
    factor = min(1.0, limit / norm(part))
    return mapped(lambda g: factor * g, gradients)


class Rolled(Training):
    """Other gradients, as another loss has them."""

    def gradients(self, gradients):
        return mapped(lambda g: np.roll(g, 1), gradients)


class RolledLater(Training):
    def gradients_of(self, step, gradients):
        return mapped(lambda g: np.roll(g, 1), gradients) if step else gradients


class OtherWeights(Rolled):
    weights = 0.5, 0.5


class OtherTerm(Rolled):
    def terms(self, terms):
        return terms * (1, 1 / 16)


class Constant(Rolled):
    def terms(self, terms):
        return np.array([terms[0], 2.0])


class Noise(Training):
    """The gradient of one element is rounding alone, of which the critic's optimizer makes whole updates."""

    noise = 1e-9

    def gradients_of(self, step, gradients):
        critic = gradients["critic"]["w"].copy()
        critic[0, 0] = self.noise * (-1) ** step
        return gradients | {"critic": {"w": critic}}

    def updated(self, name, weights, gradients):
        if name == "critic":
            gradients = mapped(np.sign, gradients)
        return super().updated(name, weights, gradients)


class OtherNoise(Noise):
    noise = -2e-9


class OtherNoiseLater(OtherNoise):
    """The other element leads to other gradients from the next step on."""

    def gradients_of(self, step, gradients):
        gradients = super().gradients_of(step, gradients)
        actor = mapped(lambda g: g + 0.05 * (step > 0) * np.roll(g, 1), gradients["actor"])
        return gradients | {"actor": actor}


class Squared(Rolled):
    def loss(self, loss):
        return loss**2


class Annealed(Training):
    """The weight of one term rises in each step."""

    after, factor = 6, 1.0

    def weights_of(self, step):
        return 1.0, self.factor * min(1.0, step / self.after)


class AnnealedEarly(Rolled, Annealed):
    def weights_of(self, step):
        return super().weights_of(step + 1)


class AnnealedHalf(RolledLater, Annealed):
    factor = 0.5


class AnnealedInWaves(RolledLater, Annealed):
    def weights_of(self, step):
        return 1.0, 0.3 * np.sin(step) ** 2


class TwiceATerm(Annealed):
    """A term that the first step gives no weight."""

    def terms(self, terms):
        return terms * (1, 2)


class EveryThird(Training):
    """The gradients of the actor are 0 in all but each third step, as of a network trained in turn."""

    every, first = 3, 2

    def gradients_of(self, step, gradients):
        if step % self.every != self.first % self.every:
            gradients = gradients | {"actor": mapped(np.zeros_like, gradients["actor"])}
        return gradients


class EverySecond(EveryThird):
    every, first = 2, 0


class Rates(Training):
    rates = 0.1, 1.0


class OneOtherRate(Training):
    rates = 0.1, 0.1


class OtherMomentum(Training):
    moved = 0.1


class FewBits(Training):
    """A gradient so small that few bits of it are no sign of a smaller type."""

    def gradients(self, gradients):
        few = 2.0**-30 * np.arange(65.0, 73.0).reshape(4, 2)
        return gradients | {"critic": {"w": few}, "scale": 0 * gradients["scale"] + 2.0**-20}


class OddUpdates(Training):
    """Of one network, the gradients are changed after they are tapped."""

    def updated(self, name, weights, gradients):
        if name == "critic":
            gradients = mapped(lambda g: np.roll(g, 1), gradients)
        return super().updated(name, weights, gradients)


class OddEverywhere(Training):
    def updated(self, name, weights, gradients):
        return super().updated(name, weights, mapped(lambda g: np.roll(g, 1) + 0.1, gradients))


class NoGradients(Training):
    def gradients(self, gradients):
        return mapped(np.zeros_like, gradients)


class OneNumber(Training):
    """The change of one number is a multiple of any other number."""

    def gradients(self, gradients):
        return gradients | {"scale": gradients["scale"] + 0.1}


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
    "a number that never changes": (Training, Constant, 0, "; of the numbers beside it soft is "),
    "rounding of one element": (
        Noise,
        OtherNoiseLater,
        1,
        "rounding: the gradients of single elements of critic.w are rounding alone, of which the optimizer",
    ),
    "a loss that is no sum of its terms": (Training, Squared, 0, "do not explain it; hard, soft agree."),
    "a weight that rises early": (
        Annealed,
        AnnealedEarly,
        0,
        "the weight of soft in the loss: its schedule (run B's is 1 update ahead)",
    ),
    "half a weight": (
        Annealed,
        AnnealedHalf,
        1,
        "the weight of soft in the loss: run B's is 0.5 times as large",
    ),
    "a weight that rises in waves": (
        Annealed,
        AnnealedInWaves,
        1,
        "the weight of soft in the loss: 0.1667 in run A and 0.2124 in run B in step 1",
    ),
    "a number that has no weight": (Annealed, TwiceATerm, 0, "soft is 2 times as large in run B, and hard"),
    "a network that is trained seldom": (
        EveryThird,
        EverySecond,
        0,
        "actor.b, actor.w has a gradient in 4 steps of run A (from 2 on) and in 6 steps of run B (from 0 on)",
    ),
    "the rate of one group": (
        Rates,
        OneOtherRate,
        0,
        "run A's rate is not run B's (run B's is 0.1 times as large), for group 1",
    ),
    "a momentum in the first step": (
        Training,
        OtherMomentum,
        0,
        "running statistics move 0.1 times as far in run B: another momentum",
    ),
    "no gradients at all": (Training, NoGradients, 0, "gradients are 0 times as large in run B"),
    "updates of one network": (
        Training,
        OddUpdates,
        0,
        "only the updates of critic.w differ, after equal gradients",
    ),
    "one number": (Training, OneNumber, 0, "only the gradients of scale differ, at the same loss"),
    "few bits of rounding": (Training, FewBits, 0, "only the gradients of critic.w, scale differ"),
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


SAME = [(Training, Training), (Clipped, Clipped), (ClippedOnce, ClippedOnce), (Noise, OtherNoise)]


@pytest.mark.parametrize(("training", "other"), SAME, ids=lambda x: x.__name__)
def test_the_same_is_the_same(training, other, tmp_path):
    assert parity.bisect(training().tapped(tmp_path / "a"), other().tapped(tmp_path / "b")).same


class Small(Noise):
    """The gradient of one element is small, and no rounding."""

    noise = 2e-5


class OtherSmall(Noise):
    noise = -4e-5


def test_a_small_element_is_no_rounding(tmp_path):
    result = parity.bisect(Small().tapped(tmp_path / "a"), OtherSmall().tapped(tmp_path / "b"))
    assert (result.step, result.part) == (0, "parameters"), str(result)


def test_a_setting_of_eight_arrays_is_searched_on_a_part(tmp_path):
    # Weights alone decay: the arrays of the part that is searched first show the settings of the others.
    names = [f"{i}.{kind}" for i in range(4) for kind in ("weight", "bias")]
    for run, momentum in (("a", 0.9), ("b", 0.8)):
        random = np.random.default_rng(0)
        parameters = {name: random.standard_normal(3) for name in names}
        buffers = dict.fromkeys(names, 0.0)
        with parity.Tap(tmp_path / run, start=parameters) as tap:
            for step in range(16):
                gradients = {name: random.standard_normal(3) for name in names}
                decayed = {n: g + 0.1 * n.endswith("weight") * parameters[n] for n, g in gradients.items()}
                buffers = {name: momentum * buffers[name] + g for name, g in decayed.items()}
                parameters = {name: x - 0.1 * buffers[name] for name, x in parameters.items()}
                tap(step, gradients=gradients, parameters=parameters)
    (cause,) = parity.bisect(tmp_path / "a", tmp_path / "b").causes
    assert cause == "run A's momentum is 0.9 (run B acts as with 0.8)"


def test_statistics_are_matched_by_their_modules(tmp_path):
    # No name and no number says which statistics are the same.
    random = np.random.default_rng(0)
    weight, mean = np.ones(5), random.standard_normal(5)
    trees = {"a": {"bn1": {"weight": weight}}, "b": {"BatchNorm_0": {"scale": weight}}}
    extras = {"a": {"bn1": {"running_mean": mean}}, "b": {"BatchNorm_0": {"mean": 0.1 * mean}}}
    for run, parameters in trees.items():
        with parity.Tap(tmp_path / run, start=parameters) as tap:
            tap(0, parameters=parameters, extra=extras[run])
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert result.causes == ("running statistics move 0.1 times as far in run B: another momentum",)


def test_updates_of_all_networks_are_no_part(tmp_path):
    result = parity.bisect(Training().tapped(tmp_path / "a"), OddEverywhere().tapped(tmp_path / "b"))
    assert (result.step, result.part, result.causes) == (0, "parameters", ())


def test_a_weight_that_moves_is_named_in_runs_of_other_lengths(tmp_path):
    for run, early, steps in (("a", 0, 12), ("b", 1, 9)):
        random = np.random.default_rng(0)
        with parity.Tap(tmp_path / run) as tap:
            for step in range(steps):
                hard, soft = np.exp(random.standard_normal(2))
                loss = np.nan if (run, step) == ("a", 8) else hard + min(1.0, (step + early) / 6) * soft
                gradients = {"w": random.standard_normal(4) + early * np.arange(4)}
                tap(step, loss=loss, gradients=gradients, extra={"hard": hard, "soft": soft})
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert result.causes == ("the weight of soft in the loss: its schedule (run B's is 1 update ahead)",)
