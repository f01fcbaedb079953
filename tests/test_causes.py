"""Causes that are named: for each a small pair that is healthy, and what is said when it is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpar import optim, parity
from jaxpar.parity._divergence import search
from jaxpar.parity._divergence.catalogue import layers
from jaxpar.parity._divergence.catalogue.scales import addition
from jaxpar.parity._divergence.torch_trace import Op

torch = pytest.importorskip("torch")

RNGS = nnx.Rngs(0)
NORM = {"use_fast_variance": False, "rngs": RNGS}


@pytest.fixture(autouse=True)
def same_weights_every_time():
    torch.manual_seed(0)


def texts(divergence: parity.Divergence) -> list[str]:
    return [cause.text for cause in divergence.causes]


def check(reference, flax, inputs, place, cause, **more):
    """The one place that differs, and its first cause."""
    found = parity.compare(reference, flax, inputs, **more)
    assert not found.same
    assert (found.divergence.candidate, found.divergence.others) == (place, ())
    assert any(cause in text for text in texts(found.divergence)), texts(found.divergence)


# ---------------------------------------------------------------------------------------------- the search


class Norms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = torch.nn.GroupNorm(2, 6, eps=1e-6), torch.nn.Linear(6, 2)

    def forward(self, x):
        return self.fc(torch.tanh(self.norm(x)))


class FlaxNorms(nnx.Module):
    def __init__(self, epsilon):
        self.norm = nnx.GroupNorm(6, 2, epsilon=epsilon, **NORM)
        self.fc = nnx.Linear(6, 2, rngs=RNGS)

    def __call__(self, x):
        return self.fc(jnp.tanh(self.norm(x)))


@pytest.mark.full
def test_the_first_place_is_named_where_an_optimizer_has_moved_the_weights():
    """As in diffusers' UNet: it was searched with the weights after the step."""
    x = np.random.RandomState(0).randn(4, 6)
    adamw = (lambda p: torch.optim.AdamW(p, 1e-2), optax.adamw(1e-2, weight_decay=1e-2))
    assert parity.compare(Norms(), FlaxNorms(1e-6), x, optimizer=adamw).same
    check(Norms(), FlaxNorms(1e-5), x, "norm", "epsilon=1e-06 (it acts as 1e-05)", optimizer=adamw)


class Window(torch.nn.Module):
    """Attention to the last keys, with a table of float32 in the scores, as rotary positions have."""

    def __init__(self, written: bool):
        super().__init__()
        self.proj, self.out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.register_buffer("table", torch.sin(torch.arange(40) / 3)[:, None], persistent=False)
        self.written = written

    def forward(self, x):
        t = x.shape[1]
        place = torch.arange(t)
        seen = (place <= place[:, None]) & (place > place[:, None] - 3)
        mask = torch.zeros(t, t, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)
        if self.written:
            mask = mask + torch.zeros(1).add_(1).sub_(1)
        q = self.proj(x) + self.table[:t]
        return self.out((q @ q.mT / 2 + mask).softmax(-1) @ q)


class FlaxWindow(nnx.Module):
    def __init__(self, width):
        self.proj, self.out, self.width = nnx.Linear(4, 4, rngs=RNGS), nnx.Linear(4, 4, rngs=RNGS), width

    def __call__(self, x):
        t = x.shape[1]
        q = self.proj(x) + jnp.sin(jnp.arange(t) / 3)[:, None]
        seen = jnp.triu(jnp.tril(jnp.ones((t, t), bool)), 1 - self.width)
        scores = q @ q.mT / 2 + jnp.where(seen, 0.0, jnp.finfo(jnp.float32).min)
        return self.out(nnx.softmax(scores) @ q)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("written", [False, True], ids=["made", "written in place"])
def test_a_window_is_named_beside_a_table_of_float32(written, monkeypatch):
    """As in Mistral: every cause leaves the rounding of the table. No run is left for guesses."""
    monkeypatch.setattr(search, "OPS", 0)
    monkeypatch.setattr(search, "FEWEST", 0)
    x = np.random.RandomState(0).randn(2, 9, 4)
    healthy = parity.compare(Window(written), FlaxWindow(3), x)
    assert healthy.same
    assert healthy.constants == ("torch's table",)
    found = parity.compare(Window(written), FlaxWindow(4), x).divergence
    assert found.candidate == "out"
    assert any("off by one" in text for text in texts(found)), texts(found)


# ------------------------------------------------------------------------------------------------- layers


class Growing(torch.nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.up = torch.nn.ConvTranspose2d(3, 4, 3, stride=2, **settings)
        self.out = torch.nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.out(self.up(x))


class FlaxGrowing(nnx.Module):
    def __init__(self, padding):
        self.up = nnx.ConvTranspose(3, 4, (3, 3), (2, 2), padding=padding, transpose_kernel=True, rngs=RNGS)
        self.out = nnx.Conv(4, 2, (1, 1), rngs=RNGS)

    def __call__(self, x):
        return self.out(self.up(x))


BOTH = {"padding": 1, "output_padding": 1}


@pytest.mark.parametrize(
    ("settings", "padding", "cause"),
    [
        (BOTH, [(1, 1)] * 2, "output_padding=(1, 1) (it acts as 0)"),
        (BOTH, [(2, 1)] * 2, "it acts as output_padding at the beginning, [(2, 1), (2, 1)]"),
        (BOTH, "SAME", "it acts as 'SAME', [(2, 1), (2, 1)]"),
        (BOTH, "VALID", "it acts as 'VALID', [(2, 2), (2, 2)]"),
        ({"padding": 1}, [(0, 0)] * 2, "padding for torch's 1 (it acts as 2)"),
        ({"padding": 0}, [(0, 0)] * 2, "it acts as torch's own number, [(0, 0), (0, 0)]"),
        ({"padding": 0}, "SAME", "it acts as 'SAME', [(2, 1), (2, 1)]"),
        ({"padding": 1}, "SAME", "it acts as 'SAME', [(2, 1), (2, 1)]"),
    ],
    ids=str,
)
def test_the_padding_of_a_transposed_convolution(settings, padding, cause):
    x = np.random.RandomState(0).randn(2, 3, 5, 5)
    check(Growing(**settings), FlaxGrowing(padding), x, "up", cause, layout="channels_last")


@pytest.mark.parametrize("settings", [BOTH, {"padding": 1}, {}], ids=str)
def test_a_transposed_convolution_is_healthy(settings):
    p, o = settings.get("padding", 0), settings.get("output_padding", 0)
    x = np.random.RandomState(0).randn(2, 3, 5, 5)
    healthy = FlaxGrowing([(2 - p, 2 - p + o)] * 2)
    assert parity.compare(Growing(**settings), healthy, x, layout="channels_last").same


# ---------------------------------------------------------------------------------------------- gradients


class Words(torch.nn.Module):
    def __init__(self, padding_idx=None, frozen=()):
        super().__init__()
        self.words, self.out = torch.nn.Embedding(9, 4, padding_idx=padding_idx), torch.nn.Linear(4, 2)
        for name in frozen:
            getattr(self.out, name).requires_grad_(False)

    def forward(self, x):
        return self.out(self.words(x))


class FlaxWords(nnx.Module):
    def __init__(self, padding_idx=None, stopped=()):
        self.words, self.out = nnx.Embed(9, 4, rngs=RNGS), nnx.Linear(4, 2, rngs=RNGS)
        self.padding_idx, self.stopped = padding_idx, frozenset(stopped)

    def __call__(self, x):
        y = self.words(x)
        if self.padding_idx is not None:
            y = jnp.where((x != self.padding_idx)[..., None], y, jax.lax.stop_gradient(y))
        kernel, bias = (
            jax.lax.stop_gradient(leaf[...]) if name in self.stopped else leaf[...]
            for name, leaf in (("weight", self.out.kernel), ("bias", self.out.bias))
        )
        return y @ kernel + bias


TOKENS = np.array([[0, 1, 2, 2, 0], [1, 0, 2, 1, 5]])


@pytest.mark.parametrize(("right", "wrong"), [(0, None), (0, 1), (None, 0), (1, 0)])
def test_the_padding_of_a_table(right, wrong):
    assert parity.compare(Words(right), FlaxWords(right), TOKENS).same
    check(Words(right), FlaxWords(wrong), TOKENS, "words", f"padding_idx={right} (it acts as {wrong})")


@pytest.mark.parametrize("names", [["weight"], ["weight", "bias"]], ids=str)
def test_what_is_frozen_or_stopped(names):
    said = " and ".join(names)
    assert parity.compare(Words(frozen=names), FlaxWords(stopped=names), TOKENS).same
    trains = f"{said} is frozen, requires_grad=False (it has a gradient"
    check(Words(frozen=names), FlaxWords(), TOKENS, "out", trains)
    check(Words(), FlaxWords(stopped=names), TOKENS, "out", f"a gradient reaches {said} (none does")


# --------------------------------------------------------------------------------------------- optimizers

ADAMW = optax.adamw(1e-2, weight_decay=1e-2)


def all_of(parameters):
    return torch.optim.AdamW(parameters, 1e-2)


def those_that_train(parameters):
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], 1e-2)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("build", [all_of, those_that_train])
def test_a_frozen_parameter_is_left_alone(build):
    """torch does not move it, in the optimizer or not; Flax does by its decay, unless it is masked."""

    def trained(tree):
        return jax.tree_util.tree_map_with_path(lambda path, _: "bias" not in str(path), tree)

    def call(tx):
        return {"optimizer": (build, tx), "steps": 2}

    still = optax.masked(ADAMW, trained)
    assert parity.compare(Words(frozen=["bias"]), FlaxWords(stopped=["bias"]), TOKENS, **call(still)).same
    cause = "torch leaves parameters without a gradient alone"
    reference, flax = Words(frozen=["bias"]), FlaxWords(stopped=["bias"])
    found = parity.compare(reference, flax, TOKENS, **call(ADAMW))
    assert {row.difference.name for row in found.different} == {"out.bias"}
    assert cause in texts(found.divergence)[0]


def added_before_the_correction(rate, eps):
    """Adam as TensorFlow has it: epsilon is added to the root of the uncorrected second moment."""

    def init(params):
        return optax.adam(rate).init(params)

    def update(grads, state, params=None):
        _, (moments, last) = optax.adam(rate).update(grads, state, params)
        t = moments.count.astype(float)
        size = rate * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        updates = jax.tree.map(lambda m, v: -size * m / (jnp.sqrt(v) + eps), moments.mu, moments.nu)
        return updates, (moments, last)

    return optax.GradientTransformation(init, update)


def uncorrected(rate, first, second, eps):
    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return zeros, zeros

    def update(grads, state, params=None):
        m = jax.tree.map(lambda m, g: first * m + (1 - first) * g, state[0], grads)
        v = jax.tree.map(lambda v, g: second * v + (1 - second) * g * g, state[1], grads)
        return jax.tree.map(lambda m, v: -rate * m / (jnp.sqrt(v) + eps), m, v), (m, v)

    return optax.GradientTransformation(init, update)


T = torch.optim


@pytest.mark.full
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("build", "tx", "cause"),
    [
        (
            lambda p: T.Adam(p, 1e-2, weight_decay=0.1),
            optax.adamw(1e-2, weight_decay=0.1),
            "decoupled_",
        ),
        (
            lambda p: T.AdamW(p, 1e-2, weight_decay=1e-2),
            optax.chain(optax.adam(1e-2), optax.add_decayed_weights(-1e-2)),
            "weight_decay=0.01 is torch's (each step takes 0.01 of the weight itself)",
        ),
        (
            lambda p: T.SGD(p, 1e-2, momentum=0.9, weight_decay=1e-2),
            optax.chain(optax.sgd(1e-2, momentum=0.9), optax.add_decayed_weights(-1e-4)),
            "weight_decay=0.01 is torch's (each step takes the rate times 0.01 of the weight itself)",
        ),
        (
            lambda p: T.Adam(p, 1e-2, eps=1e-4),
            optax.adam(1e-2, eps=0.0, eps_root=1e-4),
            "eps=0.0001 is added behind the root (it acts as eps_root=0.0001, inside)",
        ),
        (
            lambda p: T.Adam(p, 1e-2, eps=1e-4),
            optax.adam(1e-2, eps=1e-4, eps_root=1e-4),
            "eps=0.0001 is added behind the root alone (there is eps_root=0.0001, too)",
        ),
        (
            lambda p: T.RMSprop(p, 1e-2),
            optax.rmsprop(1e-2, decay=0.99, eps_in_sqrt=True),
            "eps=1e-08 is added behind the root (inside of it",
        ),
        (
            lambda p: T.RMSprop(p, 1e-2),
            optax.rmsprop(1e-2, decay=0.99, eps_in_sqrt=False, initial_scale=1.0),
            "the mean of squares starts at 0 (at 1)",
        ),
        (
            lambda p: T.Adam(p, 1e-2, eps=1e-4),
            added_before_the_correction(1e-2, 1e-4),
            "eps=0.0001 is added to the corrected root (to the uncorrected one)",
        ),
        (lambda p: T.ASGD(p, 1e-2), optim.asgd(0.1), "lr=0.01 (it acts as 0.1)"),
        (lambda p: T.Adam(p, 1e-2), optax.adam(1e-2, nesterov=True), "no momentum of Nesterov's (there is)"),
        (
            lambda p: T.AdamW(p, 1e-2, weight_decay=0.1),
            optax.adamw(1e-2, weight_decay=0.1, nesterov=True),
            "no momentum of Nesterov's (there is)",
        ),
        (
            lambda p: T.SGD(p, 1e-2, momentum=0.9),
            optax.sgd(1e-2, momentum=0.9, nesterov=True),
            "nesterov=False (it acts as True)",
        ),
        (
            lambda p: T.Adam(p, 1e-2),
            uncorrected(1e-2, 0.9, 0.999, 1e-8),
            "divided by 1 - beta**t (they are not)",
        ),
    ],
)
def test_the_form_of_an_optimizer(build, tx, cause):
    check(Words(), FlaxWords(), TOKENS, "optimizer", cause, optimizer=(build, tx), steps=3)


@pytest.mark.parametrize(
    ("build", "tx"),
    [
        (lambda p: T.Adam(p, 1e-2, eps=1e-4), optax.adam(1e-2, eps=1e-4)),
        (lambda p: T.RMSprop(p, 1e-2), optax.rmsprop(1e-2, decay=0.99, eps_in_sqrt=False)),
        (
            lambda p: T.SGD(p, 1e-2, momentum=0.9, weight_decay=1e-2),
            optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(1e-2, momentum=0.9)),
        ),
    ],
)
def test_the_form_of_an_optimizer_is_healthy(build, tx):
    assert parity.compare(Words(), FlaxWords(), TOKENS, optimizer=(build, tx), steps=3).same


# ------------------------------------------------------------------------------------------ norms and sums


class Residual(torch.nn.Module):
    def __init__(self, post):
        super().__init__()
        self.norm, self.fc = torch.nn.LayerNorm(6), torch.nn.Linear(6, 6)
        self.out, self.post = torch.nn.Linear(6, 3), post

    def forward(self, x):
        if self.post:
            return self.out(self.norm(x + torch.tanh(self.fc(x))))
        return self.out(x + torch.tanh(self.fc(self.norm(x))))


class FlaxResidual(nnx.Module):
    def __init__(self, post):
        self.norm, self.fc = nnx.LayerNorm(6, epsilon=1e-5, **NORM), nnx.Linear(6, 6, rngs=RNGS)
        self.out, self.post = nnx.Linear(6, 3, rngs=RNGS), post

    def __call__(self, x):
        if self.post:
            return self.out(self.norm(x + jnp.tanh(self.fc(x))))
        return self.out(x + jnp.tanh(self.fc(self.norm(x))))


@pytest.mark.parametrize(("post", "words"), [(True, "returns"), (False, "is given")])
def test_a_norm_in_front_of_the_branch_or_behind_the_sum(post, words):
    x = np.random.RandomState(0).randn(4, 6)
    assert parity.compare(Residual(post), FlaxResidual(post), x).same
    found = parity.compare(Residual(post), FlaxResidual(not post), x).divergence
    said = [text for each in (found, *found.others) if each.candidate == "fc" for text in texts(each)]
    assert any(f"fc is given what torch's is (it is given what norm {words}" in text for text in said), said


# ------------------------------------------------------------------------------- functions without weights


class Between(torch.nn.Module):
    """A function between two convolutions of 8 channels, the second of as many as it leaves."""

    def __init__(self, function, channels=8):
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(channels, 2, 1)
        self.function = function

    def forward(self, x):
        return self.b(self.function(self.a(x)))


class FlaxBetween(nnx.Module):
    def __init__(self, function, channels=8):
        self.a = nnx.Conv(3, 8, (3, 3), rngs=RNGS)
        self.b, self.function = nnx.Conv(channels, 2, (1, 1), rngs=RNGS), function

    def __call__(self, x):
        return self.b(self.function(self.a(x)))


def shuffled(order):
    """Channels read as two factors of 2 and a rest of 2, moved to rows, columns and channels."""

    def function(x):
        B, H, W, _ = x.shape
        rows, columns, channels = (3 + i for i in order)
        x = x.reshape(B, H, W, 2, 2, 2).transpose(0, 1, rows, 2, columns, channels)
        return x.reshape(B, 2 * H, 2 * W, 2)

    return function


ENDS = np.array([0, 3, 3, 7, 2, 5]), np.array([1, 1, 4, 6, 0, 2])
"""Sources and targets of edges."""
HEIGHTS = np.arange(4.0, dtype=np.float32)[:, None, None]
FUNCTIONS = {
    "max_pool2d (it acts as avg_pool2d)": (
        torch.nn.MaxPool2d(2),
        lambda x: nnx.max_pool(x, (2, 2), (2, 2)),
        lambda x: nnx.avg_pool(x, (2, 2), (2, 2)),
    ),
    "avg_pool2d (it acts as max_pool2d)": (
        torch.nn.AvgPool2d(2),
        lambda x: nnx.avg_pool(x, (2, 2), (2, 2)),
        lambda x: nnx.max_pool(x, (2, 2), (2, 2)),
    ),
    "shifts=(1, 2) (it acts as (-1, -2))": (
        lambda x: torch.roll(x, (1, 2), (2, 3)),
        lambda x: jnp.roll(x, (1, 2), (1, 2)),
        lambda x: jnp.roll(x, (-1, -2), (1, 2)),
    ),
    "shifts=(1, 2) (nothing is rolled)": (
        lambda x: torch.roll(x, (1, 2), (2, 3)),
        lambda x: jnp.roll(x, (1, 2), (1, 2)),
        lambda x: x,
    ),
    "softmax (it acts as log_softmax)": (
        lambda x: x.softmax(1),
        nnx.softmax,
        nnx.log_softmax,
    ),
    "softmax (it acts as sigmoid)": (lambda x: x.softmax(1), nnx.softmax, nnx.sigmoid),
    "log_softmax (it acts as softmax)": (
        lambda x: torch.nn.functional.log_softmax(x, 1),
        nnx.log_softmax,
        nnx.softmax,
    ),
    "channels are read as (C, rows, columns) (they are read as (C, columns, rows))": (
        torch.nn.PixelShuffle(2),
        shuffled((1, 2, 0)),
        shuffled((2, 1, 0)),
    ),
    "channels are read as (C, rows, columns) (they are read as (rows, columns, C))": (
        torch.nn.PixelShuffle(2),
        shuffled((1, 2, 0)),
        shuffled((0, 1, 2)),
    ),
    "channels are read as (C, rows, columns) (they are read as (columns, rows, C))": (
        torch.nn.PixelShuffle(2),
        shuffled((1, 2, 0)),
        shuffled((1, 0, 2)),
    ),
    "mean (it acts as max)": (
        lambda x: x * x.mean((2, 3), keepdim=True),
        lambda x: x * x.mean((1, 2), keepdims=True),
        lambda x: x * x.max((1, 2), keepdims=True),
    ),
    "amin (it acts as mean)": (
        lambda x: x * x.amin(1, keepdim=True),
        lambda x: x * x.min(-1, keepdims=True),
        lambda x: x * x.mean(-1, keepdims=True),
    ),
    "the operands are multiplied (they are added)": (
        lambda x: x * x.mean(1, keepdim=True),
        lambda x: x * x.mean(-1, keepdims=True),
        lambda x: x + x.mean(-1, keepdims=True),
    ),
    "the operands are divided (they are multiplied)": (
        lambda x: x / x.exp().sum(1, keepdim=True),
        lambda x: x / jnp.exp(x).sum(-1, keepdims=True),
        lambda x: x * jnp.exp(x).sum(-1, keepdims=True),
    ),
    "[:, :, 1] (it acts as [:, :, -1])": (
        lambda x: x + x[:, :, 1][:, :, None],
        lambda x: x + x[:, 1][:, None],
        lambda x: x + x[:, -1][:, None],
    ),
    "[:, :, 3:] (it acts as [:, :, 0:])": (
        lambda x: x + x[:, :, 3:].mean((2, 3), keepdim=True),
        lambda x: x + x[:, 3:].mean((1, 2), keepdims=True),
        lambda x: x + x.mean((1, 2), keepdims=True),
    ),
    "[:, :, 1:3] (it acts as [:, :, 1:2])": (
        lambda x: x + x[:, :, 1:3].amax((2, 3), keepdim=True),
        lambda x: x + x[:, 1:3].max((1, 2), keepdims=True),
        lambda x: x + x[:, 1:2].max((1, 2), keepdims=True),
    ),
    "the weight multiplies as it is (1 is added to it first)": (
        lambda x: x * x.mean((0, 2, 3), keepdim=True),
        lambda x: x * x.mean((0, 1, 2), keepdims=True),
        lambda x: x * (1 + x.mean((0, 1, 2), keepdims=True)),
    ),
    "the operands of a sum are not scaled (one is multiplied by the root of 6)": (
        lambda x: x.tanh() + x,
        lambda x: jnp.tanh(x) + x,
        lambda x: jnp.tanh(x) + x * 6**0.5,
    ),
    "the two arrays of indices are in torch's places (they are exchanged)": (
        lambda x: torch.zeros_like(x).index_add_(
            1, torch.tensor(ENDS[1]), x[:, torch.tensor(ENDS[0])].tanh()
        ),
        lambda x: jnp.zeros_like(x).at[..., ENDS[1]].add(jnp.tanh(x[..., ENDS[0]])),
        lambda x: jnp.zeros_like(x).at[..., ENDS[0]].add(jnp.tanh(x[..., ENDS[1]])),
    ),
    "relu follows the sum (it is applied to operand 0 of it)": (
        lambda x: torch.relu(x + x.flip(1)),
        lambda x: nnx.relu(x + x[..., ::-1]),
        lambda x: nnx.relu(x) + x[..., ::-1],
    ),
    "padding=1 (it acts as 'SAME')": (
        torch.nn.MaxPool2d(3, 2, 1),
        lambda x: nnx.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1))),
        lambda x: nnx.max_pool(x, (3, 3), (2, 2), "SAME"),
    ),
    "mean takes torch's array (it takes what mul, ": (
        lambda x: (x * x + 1) * (2 * x).mean((2, 3), keepdim=True),
        lambda x: (x * x + 1) * (2 * x).mean((1, 2), keepdims=True),
        lambda x: (x * x + 1) * (x * x + 1).mean((1, 2), keepdims=True),
    ),
    "the parts of cat are in torch's order (they are in order (0, 2, 1))": (
        lambda x: torch.cat([x, x.sin(), x.cos()], 1)[:, ::3],
        lambda x: jnp.concatenate([x, jnp.sin(x), jnp.cos(x)], -1)[..., ::3],
        lambda x: jnp.concatenate([x, jnp.cos(x), jnp.sin(x)], -1)[..., ::3],
    ),
    "the axes after permute are torch's (axes 1 and 2 are swapped)": (
        lambda x: (
            x
            * (x[..., :4].permute(0, 2, 3, 1) * torch.tensor(HEIGHTS, dtype=x.dtype)).sum((1, 2))[
                :, :, None, None
            ]
        ),
        lambda x: x * (x[:, :, :4] * HEIGHTS).sum((1, 2))[:, None, None],
        lambda x: x * (x[:, :, :4].swapaxes(1, 2) * HEIGHTS).sum((1, 2))[:, None, None],
    ),
    "base=10000.0 (it acts as 500000.0)": (
        lambda x: x * (10000.0 ** (torch.arange(8, dtype=x.dtype) / 8))[:, None, None],
        lambda x: x * 10000.0 ** (jnp.arange(8) / 8),
        lambda x: x * 500000.0 ** (jnp.arange(8) / 8),
    ),
    "[..., 1:3] (it acts as [..., 2:4])": (
        lambda x: x[..., 1:3],
        lambda x: x[:, :, 1:3],
        lambda x: x[:, :, 2:4],
    ),
}


@pytest.mark.parametrize("cause", FUNCTIONS)
def test_a_function_between_layers(cause):
    theirs, right, wrong = FUNCTIONS[cause]
    channels = 2 if "channels" in cause else 8
    x = np.random.RandomState(3).randn(2, 3, 4, 6)
    reference = Between(theirs, channels)
    assert parity.compare(reference, FlaxBetween(right, channels), x, layout="channels_last").same
    check(reference, FlaxBetween(wrong, channels), x, "b", cause, layout="channels_last")


FLAX_ACTIVATIONS = {
    "relu": nnx.relu,
    "gelu(approximate=False)": lambda x: nnx.gelu(x, approximate=False),
    "gelu(approximate=True)": nnx.gelu,
    "silu": nnx.silu,
    "tanh": jnp.tanh,
    "sigmoid": nnx.sigmoid,
}


@pytest.mark.parametrize("name", FLAX_ACTIVATIONS)
def test_an_activation_in_front_of_a_norm(name):
    class Crossed(nnx.Module):
        def __init__(self):
            self.fc, self.norm = nnx.Linear(4, 6, rngs=RNGS), nnx.LayerNorm(6, epsilon=1e-5, **NORM)

        def __call__(self, x):
            return self.norm(FLAX_ACTIVATIONS[name](self.fc(x)))

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm = torch.nn.Linear(4, 6), torch.nn.LayerNorm(6)

        def forward(self, x):
            return self.norm(self.fc(x))

    divergence = parity.compare(Plain(), Crossed(), np.random.RandomState(3).randn(5, 4)).divergence
    assert divergence.candidate == "norm"
    assert texts(divergence) == [f"no activation is applied ({name} is)"]


def test_a_sum_that_an_activation_gets_by_keyword_ends_no_search():
    x = torch.ones(3)
    ops = [Op(0, torch.add, (x,), {"other": x}, 2 * x), Op(1, torch.relu, (), {"input": 2 * x}, 2 * x)]
    assert not list(layers.crossed(ops, 0, frozenset({"relu"})))


def test_a_dilation_that_is_left_out():
    reference = torch.nn.Conv2d(3, 8, 3, padding=2, dilation=2)
    flax = nnx.Conv(3, 8, (3, 3), padding=1, rngs=RNGS)
    x = np.random.RandomState(3).randn(2, 3, 6, 6)
    comparison = parity.compare(reference, flax, x, layout="channels_last")
    assert texts(comparison.divergence) == ["dilation=(2, 2) (it acts as 1)"]


def test_an_epsilon_that_is_written_by_hand():
    def torchs(x):
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)

    def flaxs(epsilon):
        return lambda x: x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + epsilon)

    x = np.random.RandomState(3).randn(2, 3, 4, 6)
    assert parity.compare(Between(torchs), FlaxBetween(flaxs(1e-6)), x, layout="channels_last").same
    cause = "epsilon=1e-06 (it acts as 1e-05)"
    check(Between(torchs), FlaxBetween(flaxs(1e-5)), x, "b", cause, layout="channels_last")


@pytest.mark.parametrize(
    ("pads", "cause"),
    [
        (((2, 0), (2, 0)), "padding=[(1, 1), (1, 1)] (all of it is before the input)"),
        (((0, 2), (0, 2)), "padding=[(1, 1), (1, 1)] (all of it is after the input)"),
        (((1, 1), (0, 2)), "padding=[(1, 1), (1, 1)] (it acts as [(1, 1), (0, 2)])"),
    ],
)
def test_padding_on_one_side(pads, cause):
    class Padded(FlaxBetween):
        def __init__(self):
            super().__init__(jnp.tanh)
            self.a = nnx.Conv(3, 8, (3, 3), padding=pads, rngs=RNGS)

    x = np.random.RandomState(3).randn(2, 3, 4, 6)
    check(Between(torch.tanh), Padded(), x, "a", cause, layout="channels_last")


def test_without_an_activation_is_named_before_activations_that_act_alike():
    """hard_tanh leaves numbers within its bounds as they are."""
    reference = Between(lambda x: torch.nn.functional.silu(x * 1e-2))
    comparison = parity.compare(
        reference,
        FlaxBetween(lambda x: x * 1e-2),
        np.random.RandomState(3).randn(2, 3, 4, 6),
        layout="channels_last",
    )
    assert texts(comparison.divergence)[:2] == [
        "silu (it acts as no activation)",
        "silu (it acts as hard_tanh)",
    ]


def turned(library, x, joined, minus, angles):
    """Rotate the last axis: `joined` is how elements are paired, as halves or as neighbours."""
    if joined == "halves":
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        quarter, table = library.concatenate([minus(b), a], -1), library.concatenate([angles, angles], -1)
    else:
        quarter = library.stack([minus(x[..., 1::2]), x[..., ::2]], -1).reshape(x.shape)
        table = library.stack([angles, angles], -1).reshape(*angles.shape[:-1], -1)
    return x * library.cos(table) + quarter * library.sin(table)


@pytest.mark.parametrize(("theirs", "ours"), [("halves", "neighbours"), ("neighbours", "halves")])
def test_the_elements_that_a_rotary_position_joins(theirs, ours):
    angles = np.arange(24.0).reshape(1, 4, 6, 1) * 2.0 ** -np.arange(4.0)

    def torchs(x):
        x = x.movedim(1, -1)
        return turned(torch, x, theirs, torch.neg, torch.tensor(angles, dtype=x.dtype)).movedim(-1, 1)

    def flaxs(joined):
        return lambda x: turned(jnp, x, joined, jnp.negative, jnp.asarray(angles, x.dtype))

    x = np.random.RandomState(3).randn(2, 3, 4, 6)
    names = {"halves": "i and i + size / 2", "neighbours": "2 i and 2 i + 1"}
    assert parity.compare(Between(torchs), FlaxBetween(flaxs(theirs)), x, layout="channels_last").same
    cause = f"a rotation joins the elements {names[theirs]} (it joins {names[ours]})"
    check(Between(torchs), FlaxBetween(flaxs(ours)), x, "b", cause, layout="channels_last")


def test_no_operand_of_a_sum_is_taken_for_smaller():
    # A smaller operand looks like a sum whose second operand lost its scale.
    x = torch.ones(2, 8)
    texts = [variation.text for variation in addition(Op(0, torch.add, (x, x), {}, 2 * x))]
    assert "the operands of a sum are not scaled (one is multiplied by the root of 8)" in texts
    assert not any("1 / " in text for text in texts)
