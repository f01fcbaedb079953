"""Where models differ: every place by itself, those first that change the outputs; and nothing is guessed."""

from __future__ import annotations

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar import parity

torch = pytest.importorskip("torch")

NORM = {"epsilon": 1e-5, "use_fast_variance": False}
RNGS = nnx.Rngs(0)


@pytest.fixture(autouse=True)
def same_weights_every_time():
    torch.manual_seed(0)


def texts(divergence: parity.Divergence) -> list[str]:
    return [cause.text for cause in divergence.causes]


class Blocks(torch.nn.Module):
    """Pre-norm blocks, so that what goes wrong in one goes past the others in the residual."""

    def __init__(self, depth=3, width=6):
        super().__init__()
        self.bn = torch.nn.BatchNorm1d(width)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(depth))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        x = self.bn(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + torch.nn.functional.gelu(layer(norm(x)))
        return x


class FlaxBlocks(nnx.Module):
    """`wrong` is done to the stream in front of the second block."""

    def __init__(self, depth=3, width=6, momentum=0.1, epsilons=(), acts=(), wrong=lambda x: x):
        self.bn = jaxpar.nn.BatchNorm(width, momentum=momentum)
        epsilons = [*epsilons, *[1e-5] * depth][:depth]
        self.norms = nnx.List([nnx.LayerNorm(width, **{**NORM, "epsilon": e}, rngs=RNGS) for e in epsilons])
        self.layers = nnx.List([nnx.Linear(width, width, rngs=RNGS) for _ in range(depth)])
        exact = functools.partial(nnx.gelu, approximate=False)
        self.acts, self.wrong = nnx.data([*acts, *[exact] * depth][:depth]), wrong

    def __call__(self, x):
        x = self.bn(x)
        for i, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            x = self.wrong(x) if i == 1 else x
            x = x + self.acts[i](layer(norm(x)))
        return x


X = np.random.RandomState(0).randn(5, 6)


def places(**wrong) -> list[parity.Divergence]:
    found = parity.compare(Blocks(), FlaxBlocks(**wrong), X)
    assert not found.same
    return [found.divergence, *found.divergence.others]


@pytest.mark.full
def test_the_twin_is_healthy():
    assert parity.compare(Blocks(), FlaxBlocks(), X).same


@pytest.mark.full
def test_what_leaves_the_outputs_alone_comes_behind_what_changes_them():
    first, second = places(momentum=0.9, acts=[nnx.relu])
    assert first.candidate == "norms.1"
    assert texts(first)[0] == "gelu (it acts as relu)"
    assert second.candidate == "bn"
    assert texts(second)[0].startswith("momentum=0.1")


@pytest.mark.full
def test_a_loss_that_is_wrong_too_comes_before_what_leaves_the_outputs_alone():
    torch_loss, flax_loss = torch.nn.functional.mse_loss, lambda y, t: optax.l2_loss(y, t).mean()
    found = parity.compare(
        Blocks(), FlaxBlocks(momentum=0.9), X, targets=np.ones_like(X), loss=(torch_loss, flax_loss)
    )
    assert found.divergence.candidate == "loss"
    assert [other.candidate for other in found.divergence.others] == ["bn"]


@pytest.mark.full
def test_a_difference_of_one_rounding_comes_behind_a_real_one():
    found = places(wrong=lambda x: x * (1 + 1e-8), epsilons=[1e-5, 1e-5, 1e-3])
    assert [each.candidate for each in found] == ["norms.2", "norms.1"]
    assert texts(found[0]) == ["epsilon=1e-05 (it acts as 0.001)"]


def test_a_rounding_to_float32_is_no_difference():
    assert parity.compare(Blocks(), FlaxBlocks(wrong=lambda x: x.astype(jnp.float32).astype(x.dtype)), X).same


@pytest.mark.full
def test_every_layer_that_is_wrong_is_named():
    found = places(epsilons=[1e-3, 1e-5, 1e-6])
    assert [each.candidate for each in found] == ["norms.0", "norms.2"]
    assert texts(found[0]) == ["epsilon=1e-05 (it acts as 0.001)"]
    assert texts(found[1]) == ["epsilon=1e-05 (it acts as 1e-06)"]


@pytest.mark.full
def test_the_same_mistake_in_every_block_is_a_place_in_every_block():
    wrong = [functools.partial(nnx.gelu, approximate=True)] * 3
    found = parity.compare(Blocks(), FlaxBlocks(acts=wrong), X)
    every = [found.divergence, *found.divergence.others]
    assert [each.candidate for each in every] == ["norms.1", "norms.2", "layers.2"]
    assert all("approximate=False" in texts(each)[0] for each in every)
    assert "The same cause 2 more times: " in str(found)


@pytest.mark.full
def test_what_comes_through_a_residual_is_no_place_of_its_own():
    """No cause is known of a cubic offset, and it reaches the third block and the outputs."""
    (only,) = places(wrong=lambda x: x + 0.1 * jnp.roll(x, 1, 0) ** 3)
    assert only.candidate == "norms.1"
    assert only.causes == ()


@pytest.mark.full
def test_a_second_mistake_behind_one_without_a_name_is_found():
    first, second = places(
        wrong=lambda x: x + 0.1 * jnp.roll(x, 1, 0) ** 3, acts=[], epsilons=[1e-5, 1e-5, 1e-3]
    )
    assert (first.candidate, second.candidate) == ("norms.1", "norms.2")
    assert texts(second) == ["epsilon=1e-05 (it acts as 0.001)"]


@pytest.mark.full
def test_nothing_is_named_that_is_not_proven():
    """Two mistakes in one place: neither alone makes torch equal, so neither is said."""
    act = lambda x: nnx.relu(x) + 0.01 * jnp.sin(3 * x)  # noqa: E731
    (only,) = places(acts=[act])
    assert only.candidate == "norms.1"
    assert only.causes == ()


@pytest.mark.full
def test_the_places_survive_json_and_are_shown():
    found = parity.compare(Blocks(), FlaxBlocks(momentum=0.9, acts=[nnx.relu]), X)
    assert parity.Comparison.from_json(json.dumps(found.as_dict())).divergence == found.divergence
    assert "Another divergence: bn (BatchNorm1d)." in str(found)


# -------------------------------------------------------------------------------------- whole numbers


class Positions(torch.nn.Module):
    """An index of shape [1, S], made inside or given."""

    def __init__(self, rows=1):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(9, 4), torch.nn.Embedding(8, 4)
        self.ln, self.rows = torch.nn.LayerNorm(4), rows
        self.register_buffer("index", torch.arange(8)[None], persistent=False)

    def forward(self, tokens):
        index = self.index[:, : tokens.shape[1]].expand(self.rows, -1)
        return self.ln(self.words(tokens) + self.places(index))


class FlaxPositions(nnx.Module):
    def __init__(self, shape, count=jnp.arange):
        self.words, self.places = nnx.Embed(9, 4, rngs=RNGS), nnx.Embed(8, 4, rngs=RNGS)
        self.ln = nnx.LayerNorm(4, **NORM, rngs=RNGS)
        self.shape, self.count = shape, count

    def __call__(self, tokens):
        index = jnp.broadcast_to(self.count(tokens.shape[1]), self.shape)
        return self.ln(self.words(tokens) + self.places(index))


TOKENS = np.random.RandomState(1).randint(9, size=(3, 5))


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5)], ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_an_index_is_compared_where_a_layer_reads_it(rows, shape):
    assert parity.compare(Positions(rows), FlaxPositions(shape), TOKENS).same
    for count, cause in [
        (lambda n: jnp.arange(n) + 1, "shifted by 1"),
        (lambda n: jnp.arange(n)[::-1], "reversed"),
    ]:
        found = parity.compare(Positions(rows), FlaxPositions(shape, count), TOKENS).divergence
        assert (found.candidate, found.kind) == ("places", "between words and places")
        assert cause in texts(found)[0]
        assert found.others == ()
        assert all(layer.same for layer in found.layers)


def test_rows_that_differ_are_not_one_row():
    """torch counts on from row to row; Flax has one row for all."""

    class Counting(Positions):
        def forward(self, tokens):
            index = torch.arange(3)[:, None] + torch.arange(5)
            return self.ln(self.words(tokens) + self.places(index))

    found = parity.compare(Counting(), FlaxPositions((1, 5)), TOKENS)
    assert found.divergence.candidate == "places"


@pytest.mark.parametrize(
    ("transformation", "note"),
    [
        (jax.vmap, ""),
        (lambda f: jax.vmap(jax.vmap(f)), ""),
        (lambda f: functools.partial(jax.lax.map, f), "not replayed: called inside of scan"),
        (lambda f: jax.vmap(jax.checkpoint(f)), "not replayed: called inside of scan"),
    ],
    ids=["vmap", "vmap of vmap", "map", "vmap of checkpoint"],
)
def test_a_layer_inside_of_vmap_is_replayed_and_one_in_a_program_of_its_own_says_so(transformation, note):
    class Mapped(FlaxPositions):
        def __call__(self, tokens):
            words = transformation(lambda row: self.words(row))(tokens)
            return self.ln(words + self.places(jnp.arange(tokens.shape[1]) + 1))

    found = parity.compare(Positions(), Mapped(()), TOKENS).divergence
    words = next(layer for layer in found.layers if layer.candidate == "words")
    assert words.note.startswith(note)
    assert words.same is not bool(note)
    assert found.candidate == "places"


class Keyword(FlaxPositions):
    def __call__(self, tokens):
        index = jnp.arange(tokens.shape[1]) + 1
        return self.ln(self.words(inputs=tokens) + self.places(inputs=index))


def test_a_layer_that_is_called_by_keyword_is_replayed():
    found = parity.compare(Positions(), Keyword(()), TOKENS).divergence
    assert all(layer.same for layer in found.layers)
    assert found.candidate == "places"
    assert "shifted by 1" in texts(found)[0]


# ------------------------------------------------------------------------------------ further arguments


class Cross(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, y):
        return self.attention(x, y, y, need_weights=False)[0]


class FlaxCross(nnx.Module):
    def __init__(self, change=lambda y: y):
        self.attention, self.change = nnx.MultiHeadAttention(2, 8, decode=False, rngs=RNGS), change

    def __call__(self, x, y):
        return self.attention(x, self.change(y), self.change(y))


@pytest.mark.full
def test_what_arrives_behind_the_first_argument_is_compared():
    inputs = tuple(np.random.RandomState(2).randn(2, 4, 8) for _ in range(2))
    assert parity.compare(Cross(), FlaxCross(), inputs).same
    found = parity.compare(Cross(), FlaxCross(lambda y: 2 * y), inputs).divergence
    assert found.kind == "between inputs and attention"
    assert texts(found) == ["there is no factor (it is multiplied by 2, the root of 4)"]


# ------------------------------------------------------------------------------------ masks of attention


class Scores(torch.nn.Module):
    """Attention with a mask that is made before any layer: True or 0 for what is seen."""

    def __init__(self, added):
        super().__init__()
        self.proj, self.out, self.added = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), added

    def forward(self, x):
        t = x.shape[1]
        seen = torch.ones(t, t, dtype=torch.bool).tril() & ~torch.ones(t, t, dtype=torch.bool).tril(-3)
        mask = torch.zeros(t, t, dtype=x.dtype).masked_fill(~seen, -math.inf) if self.added else seen
        q = self.proj(x)[:, None]
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, q, q, mask)[:, 0])


class FlaxScores(nnx.Module):
    def __init__(self, seen):
        self.proj, self.out = nnx.Linear(4, 4, rngs=RNGS), nnx.Linear(4, 4, rngs=RNGS)
        self.seen = seen

    def __call__(self, x):
        q = self.proj(x)
        apart = jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[1])
        scores = jnp.where(self.seen(apart), q @ q.mT / 2, -jnp.inf)
        return self.out(jax.nn.softmax(scores) @ q)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("added", [False, True], ids=["bool", "added"])
@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (lambda d: (d >= 0) & (d < 4), "off by one"),
        (lambda d: (d >= 0) & (d < 2), "off by one"),
        (lambda d: (d >= -1) & (d < 3), "off by one"),
        (lambda d: d < 3, "the mask is causal (later keys are seen)"),
        (lambda d: d >= 0, "is_causal=False (it acts as True)"),
        (lambda d: (d <= 0) & (d > -3), "transposed"),
    ],
    ids=["one more", "one fewer", "one ahead", "not causal", "no window", "turned"],
)
def test_a_wrong_mask_is_named(added, seen, cause):
    x = np.random.RandomState(3).randn(2, 6, 4)
    found = parity.compare(Scores(added), FlaxScores(seen), x).divergence
    assert found.candidate == "out"
    assert any(cause in text for text in texts(found)), texts(found)


def test_the_mask_is_healthy():
    x = np.random.RandomState(3).randn(2, 6, 4)
    for added in (False, True):
        assert parity.compare(Scores(added), FlaxScores(lambda d: (d >= 0) & (d < 3)), x).same


# ---------------------------------------------------------------------------------------------- weights


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class FlaxTwo(nnx.Module):
    def __init__(self):
        self.a, self.b = nnx.Linear(4, 4, rngs=RNGS), nnx.Linear(4, 4, rngs=RNGS)

    def __call__(self, x):
        return self.b(nnx.relu(self.a(x)))


class Borrowing(FlaxTwo):
    """The second layer computes with the first one's weights."""

    def __call__(self, x):
        kept = nnx.clone(self.b)
        self.b.kernel[...], self.b.bias[...] = self.a.kernel[...], self.a.bias[...]
        try:
            return super().__call__(x)
        finally:
            self.b.kernel[...], self.b.bias[...] = kept.kernel[...], kept.bias[...]


def test_a_layer_with_the_weights_of_another():
    found = parity.compare(Two(), Borrowing(), np.random.RandomState(0).randn(3, 4)).divergence
    assert found.candidate == "b"
    assert texts(found) == ["it has its own weights (it has those of a)"]


@pytest.mark.parametrize("heads", [11, 12])  # the fewest that texts sort in another way than numbers
def test_own_weights_that_were_sorted_as_texts(heads):
    reference = torch.nn.Linear(3, 2 * heads)
    flax = nnx.Linear(3, 2 * heads, rngs=RNGS)
    parity.load_torch(flax, reference)
    order = sorted(range(heads), key=str)
    for leaf in (flax.kernel, flax.bias):
        parts = jnp.split(leaf[...], heads, -1)
        leaf[...] = jnp.concatenate([parts[i] for i in order], -1)
    found = parity.compare(reference, flax, np.ones((1, 3)), weights="own").divergence
    assert f"the {heads} blocks of axis 1 are in order (they are sorted as texts" in texts(found)[0]


@pytest.mark.parametrize("exchanged", [False, True])
def test_own_weights_of_one_shape_that_are_exchanged(exchanged):
    reference, flax = Two(), FlaxTwo()
    parity.load_torch(flax, reference)
    if exchanged:
        flax.a, flax.b = flax.b, flax.a
    found = parity.compare(reference, flax, np.random.RandomState(0).randn(3, 4), weights="own")
    assert found.same is not exchanged
    if exchanged:
        assert texts(found.divergence) == ["it holds torch's a.kernel (it holds torch's b.kernel)"]


def test_a_mapping_that_exchanges_layers():
    found = parity.compare(
        Two(), FlaxTwo(), np.random.RandomState(0).randn(3, 4), mapping={"a": "b", "b": "a"}
    )
    assert not found.same
    assert "exchanged, in the calls or in the mapping" in texts(found.divergence)[0]


def test_an_index_that_torch_would_refuse():
    """JAX takes the last row for an index behind the end; torch cannot go on with it."""
    found = parity.compare(Positions(), FlaxPositions((5,), lambda n: jnp.arange(n) + 100), TOKENS)
    assert found.divergence.candidate == "places"
    assert "shifted by 100" in texts(found.divergence)[0]


@pytest.mark.full
def test_a_model_that_refuses_what_it_is_not_used_to():
    class Strict(Blocks):
        def forward(self, x):
            y = super().forward(x)
            assert y.abs().max() < 100, "not a value of mine"
            return y

    found = parity.compare(Strict(), FlaxBlocks(wrong=lambda x: 1000 * x), X).divergence
    assert found.candidate == "norms.1"
    assert "multiplied by 1000" in texts(found)[0]


class TorchMasked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        masked = self.q(x) / 2 + (1 - torch.ones(4)) * torch.finfo(x.dtype).min
        return self.out(masked.softmax(-1))


class FlaxMasked(nnx.Module):
    def __init__(self, scale):
        self.q, self.out = nnx.Linear(4, 4, rngs=RNGS), nnx.Linear(4, 2, rngs=RNGS)
        self.scale = scale

    def __call__(self, x):
        masked = self.q(x) / self.scale + (1 - jnp.ones(4)) * jnp.finfo(x.dtype).min
        return self.out(nnx.softmax(masked))


@pytest.mark.full
def test_the_lowest_number_of_a_mask_is_no_scale_to_square():
    x = np.random.RandomState(0).randn(3, 4)
    assert parity.compare(TorchMasked(), FlaxMasked(2), x).same
    found = parity.compare(TorchMasked(), FlaxMasked(1), x).divergence
    assert found.kind == "between q and out"
    assert "the scale is 1 / 2 (it is left out)" in texts(found)
