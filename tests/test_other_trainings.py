"""bisect names what other trainings do: state carried along, teachers beside statistics, other batches."""

from __future__ import annotations

import numpy as np
import pytest

from jaxpar import parity
from jaxpar.parity._loops.explaining import _together

STEPS, ROWS = 8, 16
SHAPES = {"w": (3, 4), "b": (4,)}


class Training:
    """A training in NumPy; methods that a row replaces are what its fault changes."""

    start, rate = True, 0.1
    follows = False  # whether updates take the gradients that are tapped, or those of all trainings

    def batch(self, step, x, noise):
        return x, noise

    def loss(self, step, loss):
        return loss

    def gradients(self, step, gradients):
        return gradients

    def updated(self, step, weights, gradients):
        return {name: w - self.rate * gradients.get(name, 0.0) for name, w in weights.items()}

    def extra(self, step, weights, before, x):
        return {}

    def tapped(self, folder):
        random = np.random.default_rng(0)
        weights = {name: random.standard_normal(shape) for name, shape in SHAPES.items()}
        with parity.Tap(folder, start=weights if self.start else None) as tap:
            for step in range(STEPS):
                x, noise = random.standard_normal((2, ROWS, 3))
                gradients = {name: random.standard_normal(w.shape) for name, w in weights.items()}
                entering = self.gradients(step, gradients)
                before = weights
                weights = self.updated(step, weights, entering if self.follows else gradients)
                tap(
                    step,
                    batch=self.batch(step, x, noise),
                    loss=self.loss(step, 1.0 + step),
                    gradients=entering,
                    parameters=weights,
                    extra=self.extra(step, weights, before, x) or None,
                )
        return folder


def with_norm(gradients, limit):
    norm = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
    return {name: g * limit / norm for name, g in gradients.items()}


class Clipped(Training):
    def gradients(self, step, gradients):
        return with_norm(gradients, 0.2)


class OtherDirection(Training):
    def gradients(self, step, gradients):
        other = {name: np.roll(g, 1) for name, g in gradients.items()}
        return with_norm(other, 0.2 * (1 - 3e-6))


class InFloat32(Training):
    change, limit = 0.0, 0.2

    def gradients(self, step, gradients):
        other = {name: g + self.change * np.roll(g, 1) for name, g in gradients.items()}
        return {name: g.astype(np.float32) for name, g in with_norm(other, self.limit).items()}


class NearlyTheDirection(InFloat32):
    """Another function in a layer changes gradients by little, beside the 1e-6 that is added to a norm."""

    change, limit = 6e-4, 0.2 * (1 - 3e-6)


class RarelyClipped(Training):
    def gradients(self, step, gradients):
        other = {name: np.roll(g, 1) for name, g in gradients.items()}
        return with_norm(other, 0.2 * (1 - 3e-6) if step == 5 else 0.1 + 0.01 * step)


class SmallMean(Training):
    def gradients(self, step, gradients):
        return with_norm(gradients, 0.1 + 0.01 * step)


class AlikeOnce(Training):
    """The loss differs from step 3 on; in that step the gradients agree by chance."""

    def loss(self, step, loss):
        return loss * (1.2 + 0.01 * step if step >= 3 else 1.0)

    def gradients(self, step, gradients):
        return {name: np.roll(g, 1) if step >= 4 else g for name, g in gradients.items()}


class CarriedByLittle(Training):
    def loss(self, step, loss):
        return loss * (1.005 if step >= 3 else 1.0)

    def gradients(self, step, gradients):
        change = 1e-3 if step >= 3 else 0.0
        return {name: g + change * np.roll(g, 1) for name, g in gradients.items()}


class RoundedBias(Training):
    """The gradient of the bias is rounding alone, which is larger where a part of the pass rounds more."""

    rounding, change = 1e-9, 0.0

    def loss(self, step, loss):
        return loss * (1 + self.change)

    def gradients(self, step, gradients):
        w = gradients["w"]
        return {"w": w + self.change * np.roll(w, 1), "b": self.rounding * np.roll(gradients["b"], step)}


class RoundedMore(RoundedBias):
    rounding, change = 3e-3, 1e-3


class Kept(Training):
    sum = None

    def gradients(self, step, gradients):
        self.sum = gradients if self.sum is None else {k: self.sum[k] + g for k, g in gradients.items()}
        return with_norm(self.sum, 0.2)


class ClippedSum(Clipped):
    def loss(self, step, loss):
        return ROWS * loss


class Values(Training):
    def gradients(self, step, gradients):
        return {name: np.clip(g, -0.5, 0.5) for name, g in gradients.items()}


class ValuesOfSum(ClippedSum):
    def gradients(self, step, gradients):
        return {name: np.clip(ROWS * g, -0.5, 0.5) for name, g in gradients.items()}


class Carried(Training):
    def loss(self, step, loss):
        return loss * (1.5 if step >= 3 else 1.0)

    def gradients(self, step, gradients):
        return {name: np.roll(g, 1) if step >= 3 else g for name, g in gradients.items()}


class Cut(Training):
    def gradients(self, step, gradients):
        return {name: np.roll(g, 1) for name, g in gradients.items()}


class CutInPart(Training):
    follows = True

    def gradients(self, step, gradients):
        return gradients | {"w": np.roll(gradients["w"], 1)}


class Doubled(Training):
    follows = True

    def gradients(self, step, gradients):
        return {name: g * (2 if step else 1) for name, g in gradients.items()}


class Approximated(Training):
    def gradients(self, step, gradients):
        return {name: g + 0.01 * np.sin(g) for name, g in gradients.items()}


class Larger(Training):
    follows = True

    def gradients(self, step, gradients):
        return with_norm(gradients, 8.0)


class Scaled(Training):
    follows = True

    def gradients(self, step, gradients):
        return with_norm(gradients, 1 / 1024)


class InTurn(Training):
    """The array b is of another network, whose update comes first and which w's gradients need."""

    follows = True

    def updated(self, step, weights, gradients):
        return super().updated(step, weights, gradients) | {"b": weights["b"] - 0.2 * gradients["b"]}

    def gradients(self, step, gradients):
        return gradients | {"w": np.roll(gradients["w"], 1)}


class LeftAlone(Training):
    def updated(self, step, weights, gradients):
        updated = super().updated(step, weights, gradients)
        return updated | ({"b": weights["b"]} if step % 2 else {})


class Exchanged(Training):
    def batch(self, step, x, noise):
        return noise, x


class OneNoise(Training):
    def batch(self, step, x, noise):
        return x, np.broadcast_to(noise[:1], noise.shape)


class Computed(Training):
    """Rows that each run computes: in float64, or in float32."""

    dtype = np.float64

    def batch(self, step, x, noise):
        noise = noise.astype(self.dtype)
        return x, ((noise - noise.mean()) / noise.std()).astype(np.float32)


class ComputedInFloat32(Computed):
    dtype = np.float32


class OtherDivisor(Computed):
    def batch(self, step, x, noise):
        return x, super().batch(step, x, noise)[1] * np.float32(1.016)


class OneOtherElement(Computed):
    def batch(self, step, x, noise):
        computed = super().batch(step, x, noise)[1].copy()
        computed[7, 1] += 1e-3
        return x, computed


class OneRounding(Computed):
    def batch(self, step, x, noise):
        computed = super().batch(step, x, noise)[1].copy()
        computed[7, 1] = np.nextafter(computed[7, 1], np.float32(9))
        return x, computed


class WithB(Clipped):
    follows = True


class WithoutB(Training):
    follows = True

    def gradients(self, step, gradients):
        return with_norm({"w": gradients["w"]}, 0.2)


class Noise(Training):
    """The gradient of b is rounding, of which an update like Adam's makes a whole step."""

    seed, follows = 1, True

    def gradients(self, step, gradients):
        noise = 1e-15 * np.random.default_rng([self.seed, step]).standard_normal(4)
        return gradients | {"b": noise}

    def updated(self, step, weights, gradients):
        updated = super().updated(step, weights, gradients)
        return updated | {"b": weights["b"] - 0.1 * np.sign(gradients["b"])}


class OtherNoise(Noise):
    seed = 2


class OtherNoiseAndCut(OtherNoise):
    def gradients(self, step, gradients):
        return super().gradients(step, gradients | {"w": np.roll(gradients["w"], 1)})


class Small(Noise):
    """The gradient of b is small and exact to a hundredth: equal beside w's, and unequal by itself."""

    def gradients(self, step, gradients):
        noise = super().gradients(step, gradients)["b"]
        return gradients | {"b": 1e-12 + 10 * noise}

    def updated(self, step, weights, gradients):
        return Training.updated(self, step, weights, gradients) | {"b": weights["b"] - 1e11 * gradients["b"]}


class OtherSmallAndCut(Small):
    seed = 2

    def gradients(self, step, gradients):
        return super().gradients(step, gradients | {"w": np.roll(gradients["w"], 1)})


class Twice(Training):
    def batch(self, step, x, noise):
        return x, x


class Teacher(Training):
    """A teacher whose decay has a schedule, beside statistics that two passes update."""

    decay, divided, momentum = 0.96, ROWS - 1, 0.1

    def __init__(self):
        self.teacher, self.mean, self.var, self.last = None, np.zeros(3), np.ones(3), np.zeros(3)

    def extra(self, step, weights, before, x):
        decay = self.decay + 0.001 * step
        teacher = before if self.teacher is None else self.teacher
        self.teacher = {name: decay * w + (1 - decay) * weights[name] for name, w in teacher.items()}
        for rows in (x, x[::-1] ** 2):
            variance = np.sum((rows - rows.mean(0)) ** 2, 0) / self.divided
            self.mean = (1 - self.momentum) * self.mean + self.momentum * rows.mean(0)
            self.var = (1 - self.momentum) * self.var + self.momentum * variance
        self.last = (1 - self.momentum) * self.last + self.momentum * x.mean(0)
        return {
            "teacher": self.teacher,
            "norm": {"running_mean": self.mean, "running_var": self.var},
            "last": {"running_mean": self.last},  # one pass in each step
        }


class OtherDecay(Teacher):
    decay = 0.97


class WithoutStart(Teacher):
    start = False


class OtherDecayWithoutStart(WithoutStart):
    def extra(self, step, weights, before, x):
        self.decay = 0.96 if step < 2 else 0.5
        return super().extra(step, weights, before, x)


class Slow(Teacher):
    """Updates so small that a decay is lost in the rounding of one element, but not in that of all."""

    rate, decay = 1.3e-3, 0.6

    def gradients(self, step, gradients):
        return {name: g.astype(np.float32) for name, g in gradients.items()}

    def extra(self, step, weights, before, x):
        return {name: {k: v.astype(np.float32) for k, v in arrays.items()}
                for name, arrays in super().extra(step, weights, before, x).items()}  # fmt: skip


class SlowOtherDecay(Slow):
    decay = 0.0


class Biased(Teacher):
    divided = ROWS


class ManyRows(Teacher):
    """float32, and n = 512."""

    divided, momentum = 511 / 32, 0.02

    def extra(self, step, weights, before, x):
        arrays = super().extra(step, weights, before, x)["norm"]
        return {"norm": {name: array.astype(np.float32) for name, array in arrays.items()}}

    def gradients(self, step, gradients):
        return {name: g.astype(np.float32) for name, g in gradients.items()}


class ManyRowsBiased(ManyRows):
    divided = 512 / 32


class OtherMomentum(Teacher):
    momentum = 0.2


class OtherMomentumLater(Teacher):
    def extra(self, step, weights, before, x):
        self.momentum = 0.1 if step < 2 else 0.2
        return super().extra(step, weights, before, x)


CASES = {
    "another function beside clipping": (InFloat32, NearlyTheDirection, 0, "gradients differ"),
    "another function that is rarely clipped": (Clipped, RarelyClipped, 0, "the gradients differ"),
    "a sum that clipping hides in part": (
        SmallMean,
        ClippedSum,
        0,
        "the mean, over 16 rows; the gradients are clipped",
    ),
    "a part that rounds more": (RoundedBias, RoundedMore, 0, "the forward pass differs by little"),
    "gradients that agree once": (
        Training,
        AlikeOnce,
        3,
        "the forward pass differs from step 3 on, not before",
    ),
    "little that is carried": (
        Training,
        CarriedByLittle,
        3,
        "the forward pass differs from step 3 on, not before",
    ),
    "a biased variance of many rows": (
        ManyRows,
        ManyRowsBiased,
        0,
        "run A divides by n - 1 (n = 512), run B by n",
    ),
    "gradients that are kept": (Clipped, Kept, 1, "run B adds the gradients of the step before"),
    "another direction of one norm": (Clipped, OtherDirection, 0, "the gradients differ, at the same loss"),
    "a sum that is clipped": (
        Clipped,
        ClippedSum,
        0,
        "the loss is 16 times as large in run B: run B has the sum where the other has the mean, "
        "over 16 rows; "
        "its gradients are the same because both runs clip them to a norm of 0.2",
    ),
    "a sum whose values are clipped": (
        Values,
        ValuesOfSum,
        0,
        "the loss is 16 times as large in run B: run B has the sum where the other has the mean, "
        "over 16 rows; "
        "the gradients are clipped",
    ),
    "state": (Training, Carried, 3, "the forward pass differs from step 3 on, not before"),
    "cut off": (Training, Cut, 0, "the gradients differ, at the same loss: one run cuts a part of it off"),
    "cut off in a part": (Training, CutInPart, 0, "only the gradients of w differ, at the same loss"),
    "a factor from step 1 on": (Training, Doubled, 1, "gradients are 2 times as large in run B"),
    "a little": (Training, Approximated, 0, "gradients differ by little (by 0.0"),
    "larger ones that are clipped": (Training, Larger, 0, "run B clips larger gradients (a sum for a mean"),
    "clipped before they are unscaled": (
        Training,
        Scaled,
        0,
        "run B clips the global norm at 0.0009766 (1 / 1024: before gradients are unscaled?); run A",
    ),
    "networks that train in turn": (Training, InTurn, 0, "times as large), for b"),
    "an array that is left alone": (
        Training,
        LeftAlone,
        1,
        "run B leaves b alone in 4 of 8 updates (run A trains it in all)",
    ),
    "exchanged arrays": (Training, Exchanged, 0, "run B's batch[1] is run A's batch[0]"),
    "one noise": (Training, OneNoise, 0, "batch[1] is not: its 16 rows in run B are 1 different ones"),
    "rows with another divisor": (
        Computed,
        OtherDivisor,
        0,
        "batch[1] is not: run B's is 1.016 times run A's: scaled or normalised otherwise",
    ),
    "one element of computed rows": (
        Computed,
        OneOtherElement,
        0,
        "the inputs are the same, and batch[1] is not",
    ),
    "a gradient of one run alone": (WithoutB, WithB, 0, "b has a gradient in run B alone"),
    "noise beside a cut": (Noise, OtherNoiseAndCut, 0, "only the gradients of w differ, at the same loss"),
    "small gradients beside a cut": (
        Small,
        OtherSmallAndCut,
        0,
        "only the gradients of w differ, at the same loss",
    ),
    "one array twice": (Training, Twice, 0, "batch[1] is not: it is batch[0] once more in run B"),
    "a teacher": (
        Teacher,
        OtherDecay,
        0,
        "teacher: run A's is an average of the parameters after the update",
    ),
    "a slow teacher": (Slow, SlowOtherDecay, 0, "teacher: run A's is an average of the parameters after"),
    "a biased variance": (
        Teacher,
        Biased,
        0,
        "the running variance alone differs: run A divides by n - 1 (n = 16), run B by n",
    ),
    "another momentum in two passes": (
        Teacher,
        OtherMomentum,
        0,
        "another momentum, or another number of passes in a step",
    ),
    "another momentum later, in one pass and in two": (
        Teacher,
        OtherMomentumLater,
        2,
        "another momentum, or another number of passes in a step",
    ),
}


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "_"))
def test_a_difference_is_named_in_its_step(name, tmp_path):
    a, b, step, text = CASES[name]
    result = parity.bisect(a().tapped(tmp_path / "a"), b().tapped(tmp_path / "b"))
    assert result.step == step, str(result)
    (cause,) = result.causes
    assert text in cause


def test_an_average_that_is_not_explained_has_no_statistics(tmp_path):
    a, b = WithoutStart().tapped(tmp_path / "a"), OtherDecayWithoutStart().tapped(tmp_path / "b")
    result = parity.bisect(a, b)
    assert (result.step, result.part, result.causes) == (2, "extra", ())


ROUNDED = {"in float32": ComputedInFloat32, "in one element": OneRounding}


@pytest.mark.parametrize("name", [*ROUNDED, "gradients"], ids=lambda name: name.replace(" ", "_"))
def test_rounding_is_the_same(name, tmp_path):
    pair = (Computed, ROUNDED[name]) if name in ROUNDED else (Noise, OtherNoise)
    a, b = (training().tapped(tmp_path / training.__name__) for training in pair)
    result = parity.bisect(a, b)
    assert result.same, str(result)


def test_alternatives_of_a_setting_are_one_sentence():
    eps = "torch's eps is 1e-05 (JAX acts as with "
    scaled = "torch's gradients are as they are (JAX's are multiplied by 512: a loss scale)"
    beta = "torch's betas is (0.9, 0.999) (JAX acts as with (0.9, 0.99))"
    assert _together([f"{eps}1e-08)", scaled, f"{eps}1e-10)", beta]) == (f"{eps}1e-08 or 1e-10)", beta)
    assert _together([scaled, scaled]) == (scaled,)
    decays = [f"torch's weight_decay is 0.01 (JAX acts as with {x}), for a, b" for x in (0, 0.1)]
    assert _together(decays) == ("torch's weight_decay is 0.01 (JAX acts as with 0 or 0.1), for a, b",)


@pytest.mark.parametrize("training", [Training, Clipped, Values, Teacher, Slow], ids=lambda x: x.__name__)
def test_the_same_is_the_same(training, tmp_path):
    assert parity.bisect(training().tapped(tmp_path / "a"), training().tapped(tmp_path / "b")).same
