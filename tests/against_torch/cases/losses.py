"""Losses: each case takes one with all its reductions, so a line is three calls and their gradients."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import torch
from against_torch.layers import Case, Refused

N, C = 4, 5


def reductions(loss, *inputs, **options):
    """The losses, their mean and their sum. NumPy arrays among the options become the side's own."""
    own = jnp.asarray if isinstance(inputs[0], jax.Array) else torch.tensor
    options = {name: own(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # kl_div's mean
        return [loss(*inputs, **options, reduction=kind) for kind in ("none", "mean", "sum")]


def plainly(function, *inputs, **options):
    return function(*inputs, **options)


def batchmean(loss, *inputs, **options):
    return loss(*inputs, **options, reduction="batchmean")


def ctc(loss, logits, *inputs, **options):
    """torch's gradient is right behind a log_softmax only, so there is one."""
    own = jax.nn.log_softmax if isinstance(logits, jax.Array) else lambda x: x.log_softmax(-1)
    return reductions(loss, own(logits), *inputs, **options)


def absolute(x, y):
    """The sum of absolute differences, a distance that no loss has by itself."""
    return abs(x - y).sum(1)


def case(name, inputs, channels=None, call=reductions, clamps=False, **options):
    return Case(f"functional.{name}", "", inputs, channels, options=options, clamps=clamps, call=call)


def classes(*shape, ignored=()):
    target = np.random.RandomState(0).randint(0, C, shape)
    target.reshape(-1)[list(ignored)] = -100
    return target


def probabilities(*shape):
    return lambda random: (e := np.exp(random.randn(*shape))) / e.sum(-1, keepdims=True)


def between(low, high, *shape):
    return lambda random: random.uniform(low, high, shape)


def near(x):
    """Numbers at which something bends, and once each one beside it."""
    return np.concatenate([np.asarray(x, float), np.asarray(x, float) + 0.25])


WEIGHT = np.array([0.5, 2.0, 0.0, 1.5, 3.0])
SIGNS = np.array([1, -1, 1, -1])
TWO = ((N, 3), (N, 3))

CLASSES = [
    case(name, (first, target), channels, **options)
    for name, more in (
        ("nll_loss", [{}]),
        ("cross_entropy", [{}, {"label_smoothing": 0.1}, {"label_smoothing": 1.0}]),
    )
    for smooth in more
    for first, target, channels, options in [
        ((N, C), classes(N), None, smooth),
        ((C,), classes(), None, smooth),
        ((N, C), classes(N), None, {"weight": WEIGHT, **smooth}),
        ((N, C), classes(N, ignored=[1, 2]), None, smooth),
        ((N, C), classes(N), None, {"weight": WEIGHT, "ignore_index": int(classes(N)[0]), **smooth}),
        ((N, 3, C), classes(N, 3, ignored=[0, 7]), (1, None), {"weight": WEIGHT, **smooth}),
        # Nothing counts: the mean is NaN.
        ((N, C), classes(N, ignored=range(N)), None, smooth),
    ]
]
PROBABILITIES = [
    case("cross_entropy", inputs, channels, **options)
    for inputs, channels in [
        (((N, C), probabilities(N, C)), None),
        (((C,), probabilities(C)), None),
        (((N, 3, C), probabilities(N, 3, C)), 1),
    ]
    for options in [{}, {"weight": WEIGHT}, {"weight": WEIGHT, "label_smoothing": 0.2}]
]
BINARY = [
    case("binary_cross_entropy", (between(0, 1, N, 3), between(0, 1, N, 3))),
    case("binary_cross_entropy", (between(0, 1, N, 3), between(0, 1, N, 3)), weight=WEIGHT[:3]),
    case("binary_cross_entropy", (np.array([0.0, 1.0, 0.0, 1.0, 1e-14]), np.array([0, 1, 1, 0, 1.0]))),
    *[
        case("binary_cross_entropy_with_logits", (logits, between(0, 1, N, C)), **options)
        for logits in ((N, C), np.array([[-800, -1e-9, 0, 30, 800.0]] * N))
        for options in [
            {},
            {"weight": np.arange(1.0, N + 1)[:, None]},
            {"pos_weight": WEIGHT},
            {"weight": WEIGHT, "pos_weight": WEIGHT + 1},
        ]
    ],
]
D = near([-2, -1, -0.5, 0, 0.5, 1, 2])
NUMBERS = [
    case(name, (D, np.zeros_like(D)), **options)
    for name, options in [
        ("l1_loss", {}),
        ("l1_loss", {"weight": np.arange(1.0, 15)}),
        ("mse_loss", {}),
        ("mse_loss", {"weight": np.arange(1.0, 15)}),
        ("smooth_l1_loss", {}),
        ("smooth_l1_loss", {"beta": 0.5}),
        ("smooth_l1_loss", {"beta": 0.0}),
        ("smooth_l1_loss", {"beta": 2}),
        ("huber_loss", {}),
        ("huber_loss", {"delta": 0.5}),
        ("huber_loss", {"delta": 2.0, "weight": np.arange(1.0, 15)}),
    ]
]
LIKELIHOODS = [
    case("kl_div", ((N, C), probabilities(N, C))),
    case("kl_div", ((N, C), probabilities(N, C)), call=batchmean),
    case("kl_div", ((C,), probabilities(C)), call=batchmean),
    case("kl_div", ((N, C), (N, C)), log_target=True),
    case("kl_div", ((N, C), (N, C)), call=batchmean, log_target=True),
    case("kl_div", ((3,), np.array([0, 1, 2.0]))),
    case("poisson_nll_loss", ((N, 3), between(0, 4, N, 3))),
    case("poisson_nll_loss", ((N, 3), between(0, 4, N, 3)), full=True),
    case("poisson_nll_loss", (between(0.1, 2, N, 3), between(0, 4, N, 3)), log_input=False, eps=1e-3),
    case("poisson_nll_loss", ((4,), np.array([0.5, 1, 2, 3])), full=True),
    case("gaussian_nll_loss", (*TWO, between(0.1, 2, N, 3))),
    case("gaussian_nll_loss", (*TWO, between(0.1, 2, N, 1)), full=True),
    case("gaussian_nll_loss", (*TWO, between(0.1, 2, N)), eps=0.5),
    case("gaussian_nll_loss", ((3,), (3,), np.array([0, 1e-6, 1.0]))),
    case("gaussian_nll_loss", TWO, var=0.7),
]
VECTORS = [
    *[
        case("cosine_similarity", inputs, call=plainly, **options)
        for inputs, options in [
            (TWO, {}),
            (((N, 3, 2), (N, 3, 2)), {}),
            (((N, 3, 2), (3, 2)), {"dim": -1, "eps": 0.5}),
            (((6,), (6,)), {"dim": 0}),
            ((np.array([[0, 0], [1e-9, 0], [3, 4.0]]), (3, 2)), {}),
        ]
    ],
    *[case("pairwise_distance", TWO, call=plainly, p=p) for p in (2.0, 1.0, 3.0, 0.5, 0.0, float("inf"))],
    case("pairwise_distance", (np.zeros((2, 3)), np.eye(2, 3)), call=plainly, eps=0.0, keepdim=True),
    case("pairwise_distance", (np.zeros((2, 3)), np.eye(2, 3)), call=plainly, eps=0.0, p=3.0),
    case("cosine_embedding_loss", (*TWO, SIGNS)),
    case("cosine_embedding_loss", (*TWO, SIGNS), margin=0.3),
    case("cosine_embedding_loss", ((3,), (3,), np.array(-1)), margin=-0.5),
    # cos is the margin itself, a vector is 0, and a target is neither 1 nor -1.
    case(
        "cosine_embedding_loss",
        (np.eye(4, 3), np.eye(4, 3)[[1, 0, 1, 3]], np.array([-1, 1, 0, -1])),
        clamps=True,
    ),
    *[
        case("triplet_margin_loss", ((N, 3), (N, 3), (N, 3)), **options)
        for options in [
            {},
            {"margin": 0.2, "swap": True},
            {"p": 1},
            {"p": 3.0, "eps": 0.1},
            {"p": float("inf")},
        ]
    ],
    case("triplet_margin_loss", ((3,), (3,), (3,)), swap=True),
    case("triplet_margin_loss", (np.eye(3), np.eye(3), np.eye(3)), swap=True),
    case("triplet_margin_with_distance_loss", ((N, 3), (N, 3), (N, 3)), margin=0.2),
    case(
        "triplet_margin_with_distance_loss",
        ((N, 3), (N, 3), (N, 3)),
        swap=True,
        distance_function=absolute,
    ),
]
MARGINS = [
    case("margin_ranking_loss", ((N,), (N,), SIGNS)),
    case("margin_ranking_loss", ((N,), (N,), SIGNS), margin=0.5),
    case("margin_ranking_loss", (np.zeros(4), np.zeros(4), SIGNS), clamps=True),
    case("hinge_embedding_loss", ((N,), SIGNS)),
    case(
        "hinge_embedding_loss", (np.array([2.0, 2, 2, 1]), np.array([1, -1, 0, -1])), clamps=True, margin=2.0
    ),
    case("soft_margin_loss", ((N,), SIGNS)),
    case("soft_margin_loss", (np.array([700.0, 0, 30]), np.array([-1, 1, -1]))),
    case("multilabel_soft_margin_loss", ((N, C), between(0, 1, N, C))),
    case("multilabel_soft_margin_loss", ((N, C), between(0, 1, N, C)), weight=WEIGHT),
    *[
        case("multi_margin_loss", inputs, **options)
        for inputs in [((N, C), classes(N)), ((C,), classes()), (np.eye(4, C), np.arange(4))]
        for options in [{}, {"p": 2, "margin": 0.7}, {"p": 2, "weight": WEIGHT}]
    ],
    case("multilabel_margin_loss", ((2, C), np.array([[3, 0, -1, 1, 1], [0, 1, 2, 3, 4]]))),
    case("multilabel_margin_loss", ((2, C), np.array([[-1, 0, 1, 1, 1], [2, 2, -1, 0, 0]]))),
    case("multilabel_margin_loss", ((C,), np.array([1, 4, -1, 2, 0]))),
    case("multilabel_margin_loss", (np.eye(2, C), np.array([[0, -1, 0, 0, 0], [2, 1, -1, 0, 0]]))),
]
LABELS = np.array([[1, 2, 2, 3], [4, 4, 4, 4], [1, 0, 0, 0]])
CTC = [
    case("ctc_loss", inputs, call=ctc, **options)
    for inputs, options in [
        (((6, 3, C), LABELS, np.array([6, 6, 4]), np.array([4, 2, 1])), {}),
        (((6, 3, C), LABELS, np.array([6, 5, 4]), np.array([3, 0, 1])), {}),
        (((6, 3, C), LABELS - 1, np.array([6, 6, 6]), np.array([4, 1, 0])), {"blank": 4}),
        (((6, 2, C), np.array([1, 2, 3, 1, 1]), np.array([6, 5]), np.array([3, 2])), {}),
        (((6, C), np.array([1, 1, 2]), np.array(6), np.array(3)), {}),
        # Four labels 4 in five steps do not fit: three blanks have to stand between them.
        (((6, 3, C), LABELS, np.array([6, 5, 6]), np.array([4, 4, 1])), {}),
        (((6, 3, C), LABELS, np.array([6, 5, 6]), np.array([4, 4, 1])), {"zero_infinity": True}),
        (((6, 3, C), LABELS, np.array([6, 0, 0]), np.array([4, 2, 0])), {"zero_infinity": True}),
    ]
] + [
    # The gradient by log-probabilities that are none is torch's, too.
    case("ctc_loss", ((6, 3, C), LABELS, np.array([6, 6, 4]), np.array([4, 2, 1]))),
]
CASES = [*CLASSES, *PROBABILITIES, *BINARY, *NUMBERS, *LIKELIHOODS, *VECTORS, *MARGINS, *CTC]
REFUSED: list[Refused] = []
