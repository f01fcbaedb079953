"""Losses of jaxpar.nn.functional against torch: the law's table, what cannot be traced, bad input."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers

from jaxpar import errors
from jaxpar.nn import functional as F

torch = pytest.importorskip("torch")
from against_torch.cases.losses import CASES, LABELS  # noqa: E402
from against_torch.layers import TOLERANCE, difference  # noqa: E402

torch.set_num_threads(1)

X = np.random.RandomState(0).randn(4, 5)
T = np.array([0, 3, 1, 4])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_equal_torch(case):
    assert difference(case) <= TOLERANCE


LOSSES = sorted(
    name
    for name in F.__all__
    if name.endswith(("_loss", "cross_entropy", "_with_logits")) or name == "kl_div"
)


@pytest.mark.parametrize("name", LOSSES)
def test_names_and_defaults_are_torchs(name):
    """All but size_average and reduce, which torch has deprecated."""
    theirs = dict(inspect.signature(getattr(torch.nn.functional, name)).parameters)
    ours = dict(inspect.signature(getattr(F, name)).parameters)
    for legacy in ("size_average", "reduce"):
        theirs.pop(legacy, None)
    assert set(ours) == set(theirs)
    for argument, parameter in ours.items():
        assert parameter.default == theirs[argument].default, argument
    positional = [n for n, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == list(theirs)[: len(positional)]


def test_every_loss_has_cases():
    there = {str(case).split()[0].removeprefix("functional.") for case in CASES}
    assert there == {*LOSSES, "cosine_similarity", "pairwise_distance"}


def test_class_axis_is_last():
    x, t = np.random.RandomState(0).randn(2, 3, 4, 5), np.arange(24).reshape(2, 3, 4) % 5
    want = torch.nn.functional.cross_entropy(torch.tensor(x).movedim(-1, 1), torch.tensor(t))
    assert_equal_numbers("loss", F.cross_entropy(x, t), want.numpy(), 1e-14)


UNKNOWN = {
    "cross_entropy": ([0, 5, 1, 4], IndexError, "Target 5 is out of bounds"),
    "nll_loss": ([0, 3, -1, 4], IndexError, "Target -1 is out of bounds"),
    "multi_margin_loss": ([0, 3, 5, 4], RuntimeError, "target out of range"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_class(name):
    """An error, as in torch; inside jit, where it cannot be raised, NaN and never a number."""
    target, error, message = UNKNOWN[name]
    target = np.array(target)
    loss = getattr(F, name)
    with pytest.raises(error, match=message):
        loss(X, target)
    with pytest.raises(error, match=message):
        getattr(torch.nn.functional, name)(torch.tensor(X), torch.tensor(target))
    losses = jax.jit(functools.partial(loss, reduction="none"))(X, target)
    assert np.isnan(losses).tolist() == (~np.isin(target, range(5))).tolist()
    assert np.isnan(jax.jit(loss)(X, target))


@pytest.mark.full
def test_a_class_that_does_not_count_may_hold_anything():
    x, t = X.copy(), T.copy()
    x[1], t[1] = np.nan, -100
    value, gradient = jax.value_and_grad(F.cross_entropy)(x, t)
    want = F.cross_entropy(np.delete(x, 1, 0), np.delete(t, 1))
    assert_equal_numbers("loss", value, want, 1e-15)
    assert np.isfinite(np.delete(gradient, 1, 0)).all()


@pytest.mark.slow
def test_a_target_that_does_not_fit_into_its_steps():
    """Its own gradient is NaN, as torch's, or 0; the others are what they are."""
    steps, counts = np.array([6, 5, 6]), np.array([4, 4, 1])
    x = np.random.RandomState(0).randn(6, 3, 5)
    for zero_infinity in (False, True):
        options = {"reduction": "sum", "zero_infinity": zero_infinity}
        theirs = torch.tensor(x, requires_grad=True)
        lengths = torch.tensor(LABELS), torch.tensor(steps), torch.tensor(counts)
        torch.nn.functional.ctc_loss(theirs.log_softmax(-1), *lengths, **options).backward()
        loss = lambda x: F.ctc_loss(jax.nn.log_softmax(x), LABELS, steps, counts, **options)  # noqa: B023, E731
        assert_equal_numbers("gradient", jax.grad(loss)(x), theirs.grad.numpy(), 1e-12)


@pytest.mark.full
def test_labels_behind_each_other():
    """In jit, where the longest target is not known, too."""
    x = jax.nn.log_softmax(np.random.RandomState(0).randn(6, 3, 5))
    steps, counts = np.array([6, 5, 4]), np.array([3, 0, 2])
    flat = np.concatenate([row[:n] for row, n in zip(LABELS, counts, strict=True)])
    want = F.ctc_loss(x, LABELS, steps, counts)
    assert_equal_numbers("loss", F.ctc_loss(x, flat, steps, counts), want, 1e-15)
    assert_equal_numbers("jit", jax.jit(F.ctc_loss)(x, flat, steps, counts), want, 1e-15)


@pytest.mark.full
def test_float32_is_kept():
    x, t = X.astype(np.float32), T
    for loss in (F.cross_entropy(x, t), F.cross_entropy(x, t, np.ones(5, np.float32), label_smoothing=0.1)):
        assert loss.dtype == jnp.float32
    assert F.mse_loss(x, x).dtype == F.huber_loss(x, x).dtype == jnp.float32
    assert F.cosine_embedding_loss(x, x, np.array([1, -1, 1, -1])).dtype == jnp.float32


def test_broadcasting_warns_as_torch():
    for loss in ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss"):
        with pytest.warns(UserWarning, match="This will likely lead to incorrect results") as warned:
            value = getattr(F, loss)(X, X[0])
        assert warned[0].filename == __file__
        with pytest.warns(UserWarning, match="This will likely lead to incorrect results"):
            want = getattr(torch.nn.functional, loss)(torch.tensor(X), torch.tensor(X[0]))
        assert_equal_numbers(loss, value, want.numpy(), 1e-15)


def test_the_mean_of_kl_div_warns_as_torch():
    with pytest.warns(UserWarning, match="'batchmean' divides only by the batch size") as warned:
        F.kl_div(X, np.exp(X))
    assert warned[0].filename == __file__


P = np.full((4, 5), 0.2)
L2, C2 = np.array([4, 4]), np.array([1, 2])
LOGS = np.zeros((4, 2, 5))
BAD_CALLS = {
    "reduction": (lambda f, x, t: f.nll_loss(x, t, reduction="avg"), "avg is not a valid value"),
    "smoothing": (
        lambda f, x, t: f.cross_entropy(x, t, label_smoothing=1.5),
        r"label_smoothing must be between 0.0 and 1.0. Got: 1.5",
    ),
    "classes as floats": (lambda f, x, t: f.cross_entropy(x, t + 0.5), "expected scalar type Long"),
    "probabilities as integers": (
        lambda f, x, t: f.cross_entropy(x[:, :4], t[None] + 0 * t[:, None]),
        "Expected floating point type for target with class probabilities",
    ),
    "rows": (lambda f, x, t: f.cross_entropy(x, t[:3]), "Expected"),
    "weights": (lambda f, x, t: f.cross_entropy(x, x, x[0, :3]), "either for all 5 classes"),
    "ignored": (
        lambda f, x, t: f.cross_entropy(x, x, ignore_index=1),
        "ignore_index is not supported for floating point target",
    ),
    "shapes": (lambda f, x, t: f.binary_cross_entropy(x, x[:2]), "different to the input size"),
    "a probability": (lambda f, x, t: f.binary_cross_entropy(x, x), "should be between 0 and 1"),
    "logits": (lambda f, x, t: f.binary_cross_entropy_with_logits(x, x[0]), "must be the same as input size"),
    "beta": (lambda f, x, t: f.smooth_l1_loss(x, x, beta=-1.0), "does not support negative values for beta"),
    "delta": (lambda f, x, t: f.huber_loss(x, x, delta=0), "does not support non-positive values for delta"),
    "a weight's shape": (lambda f, x, t: f.mse_loss(x, x, weight=x[0]), "must have the same size"),
    "a variance": (lambda f, x, t: f.gaussian_nll_loss(x, x, x), "var has negative entry/entries"),
    "a variance's shape": (lambda f, x, t: f.gaussian_nll_loss(x, x, x[:2, :2] ** 2), "incorrect size"),
    "margin": (lambda f, x, t: f.triplet_margin_loss(x, x, x, margin=0), "must be greater than 0, got 0"),
    "axes of triplets": (lambda f, x, t: f.triplet_margin_loss(x, x[0], x), "the same number of dimensions"),
    "p": (lambda f, x, t: f.multi_margin_loss(x, t, p=3), "only p == 1 and p == 2 supported"),
    "a weight's axes": (lambda f, x, t: f.multi_margin_loss(x, t, weight=x), "must be one-dimensional"),
    "targets": (lambda f, x, t: f.multi_margin_loss(x, t[:2]), "inconsistent target size"),
    "labels' shape": (lambda f, x, t: f.multilabel_margin_loss(x, t), "inconsistent target size"),
    "axes of a target": (lambda f, x, t: f.cosine_embedding_loss(x, x, x), "0D or 1D target tensor expected"),
    "axes of inputs": (lambda f, x, t: f.cosine_embedding_loss(x[0], x[0], t), "1D target tensor expects 2D"),
    "axes": (lambda f, x, t: f.margin_ranking_loss(x, x, t), "All input tensors should have same dimension"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_are_refused_as_in_torch(name):
    call, message = BAD_CALLS[name]
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        call(torch.nn.functional, torch.tensor(X), torch.tensor(T))
    with pytest.raises((ValueError, RuntimeError), match=message) as ours:
        call(F, jnp.asarray(X), jnp.asarray(T))
    assert ours.type is theirs.type


CTC = {
    "a blank": (lambda: F.ctc_loss(LOGS, L2[None].T, L2, C2, blank=5), "blank must be in label range"),
    "steps": (
        lambda: F.ctc_loss(LOGS, np.ones((2, 2), int), L2 + 1, C2),
        "Expected input_lengths to have value at most 4, but got value 5",
    ),
    "counts": (
        lambda: F.ctc_loss(LOGS, np.ones((2, 1), int), L2, C2),
        "Expected target_lengths to have value at most 1, but got value 2",
    ),
    "lengths": (lambda: F.ctc_loss(LOGS, np.ones((2, 2), int), L2[:1], C2), "must be of size batch_size"),
    "floats": (
        lambda: F.ctc_loss(LOGS, np.ones((2, 2), int), L2 + 0.0, C2),
        "input_lengths must be integral",
    ),
    "rows": (lambda: F.ctc_loss(LOGS, np.ones((3, 2), int), L2, C2), "Expected targets of 2 rows"),
    "labels": (
        lambda: F.ctc_loss(LOGS, np.ones(4, int), L2, C2),
        "Expected targets of 3 labels in all, got 4",
    ),
    "axes": (lambda: F.ctc_loss(X[0], T, 4, 2), r"log_probs is \[T, B, C\] or \[T, C\]"),
}


@pytest.mark.parametrize("name", CTC)
def test_bad_calls_of_ctc(name):
    call, message = CTC[name]
    with pytest.raises(RuntimeError, match=message):
        call()


@pytest.mark.parametrize("wide", [2**40, 2**32 + 1, -(2**33)])
@pytest.mark.parametrize("held", [np.array, list, tuple])
def test_a_class_beyond_jaxs_integers_is_out_of_bounds(wide, held):
    scores, classes = jnp.zeros((2, 3), jnp.float32), held([1, wide])
    with jax.enable_x64(False):
        for loss in (F.cross_entropy, F.nll_loss):
            with pytest.raises(IndexError, match=f"Target {wide} is out of bounds"):
                loss(scores, classes)
        with pytest.raises(IndexError, match=f"Target {wide} is out of bounds"):
            F.cross_entropy(scores[0], np.int64(wide))
        with pytest.raises(RuntimeError, match="target out of range"):
            F.multi_margin_loss(scores, classes)
        with pytest.raises(RuntimeError, match="target has a label outside of -1 to 2"):
            F.multilabel_margin_loss(scores, held([[wide, -1, -1]] * 2))


def test_signs_and_values_beyond_jaxs_integers():
    x, wide = jnp.ones((2, 3), jnp.float32), np.full((2, 3), 2**32 + 1)
    with jax.enable_x64(False):
        for signed in (
            lambda: F.cosine_embedding_loss(x, x, wide[:, 0]),
            lambda: F.soft_margin_loss(x, wide),
        ):
            with pytest.raises(IndexError, match=f"Target {2**32 + 1} is out of bounds"):
                signed()
        for loss in (F.mse_loss, F.l1_loss, F.poisson_nll_loss, lambda x, t: F.gaussian_nll_loss(x, t, x)):
            with pytest.raises(errors.RangeError, match=f"target holds the integer {2**32 + 1}"):
                loss(x, wide)


def test_a_float_that_would_become_infinite():
    """torch computes in float64, where the loss of two equal ones is 0."""
    x = jnp.ones(2, jnp.float32)
    with jax.enable_x64(False):
        for target in (np.array([0.0, -1e300]), [0.0, -1e300], np.array([np.inf, -1e300])):
            with pytest.raises(errors.RangeError, match=r"target holds -1e\+300, of which JAX would make"):
                F.mse_loss(x, target)
        with pytest.raises(errors.RangeError, match=r"input holds 1e\+300"):
            F.l1_loss(np.full(2, 1e300), np.full(2, 1e300))
        assert F.l1_loss(x, np.array([np.inf, 1.0])) == np.inf
        assert np.isnan(F.l1_loss(x, np.array([np.nan, 1.0])))
    with jax.enable_x64(True):
        assert F.mse_loss(np.full(2, 1e300), np.full(2, 1e300)) == 0


def test_labels_and_lengths_of_ctc_beyond_jaxs_integers():
    scores, wide = jnp.zeros((5, 1, 3), jnp.float32), 2**32 + 1
    with jax.enable_x64(False):
        with pytest.raises(IndexError, match=f"Target {wide} is out of bounds"):
            F.ctc_loss(scores, np.array([[wide]]), np.array([5]), np.array([1]))
        for name, lengths in {"input_lengths": ([wide], [1]), "target_lengths": ([5], [wide])}.items():
            with pytest.raises(RuntimeError, match=f"Expected {name} to be lengths, but got value {wide}"):
                F.ctc_loss(scores, np.array([[1]]), *map(np.array, lengths))
