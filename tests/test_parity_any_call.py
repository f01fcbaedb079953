"""parity takes any call: keyword and nested inputs, other inputs for each side, flags, chosen outputs."""

from __future__ import annotations

import collections
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxpar import errors, parity

torch = pytest.importorskip("torch")

RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(4, 3), RANDOM.randn(4, 3)
MASK = np.array([[True, False, True]] * 3 + [[False, True, True]])
Two = collections.namedtuple("Two", "left right")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def dense():
    return nnx.Linear(3, 2, rngs=nnx.Rngs(0))


class Torch(torch.nn.Module):
    """Takes arrays and everything else in all ways."""

    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(3, 2)

    def forward(self, x, pair=None, mask=None, scale=1.0, mode="plus", options=None):
        assert type(x) is torch.Tensor
        x = x if mask is None else x * mask
        if pair is not None:
            other, weight = pair["other"], pair["weights"][0]
            x = x + weight * other if mode == "plus" else x - weight * other
        y = scale * self.dense(x)
        return y if not (options and options[0]) else y**2


class Flax(nnx.Module):
    off = 0.0

    def __init__(self):
        self.dense = dense()

    def __call__(self, x, pair=None, mask=None, scale=1.0, mode="plus", options=None):
        assert isinstance(x, jax.Array)
        x = x if mask is None else x * mask
        if pair is not None:
            other, weight = pair["other"], pair["weights"][0]
            assert isinstance(other, jax.Array)
            assert isinstance(weight, (int, float))
            x = x + weight * other if mode == "plus" else x - weight * other
        y = scale * self.dense(x) + self.off
        return y if not (options and options[0]) else y**2


class Wrong(Flax):
    off = 1e-6


PAIR = {"other": Y, "weights": [2, None]}
CALLS = {
    "alone": X,
    "position": (X, PAIR, MASK),
    "list": [X, None, MASK],
    "None behind": (X, None),
    "keywords": {"x": X, "pair": PAIR, "mask": MASK, "scale": 2, "mode": "minus", "options": (True, None)},
    "keywords in another order": {"scale": 0.5, "mask": MASK, "x": X},
    "NumPy's numbers": {"x": X, "scale": np.float32(0.5), "mode": np.str_("plus"), "options": (np.bool_(1),)},
    "tensors": {"x": torch.tensor(X), "mask": torch.tensor(MASK)},
    "JAX's arrays": {"x": jnp.asarray(X), "pair": {"other": jnp.asarray(Y), "weights": (1.5,)}},
    "bfloat16": (torch.tensor(X).bfloat16(),),
    "of the step": lambda step: {"x": X + step, "scale": float(step)},
}


@pytest.mark.parametrize("form", CALLS)
def test_inputs_of_all_forms(form):
    assert parity.compare(Torch(), Flax(), CALLS[form]).same
    assert not parity.compare(Torch(), Wrong(), CALLS[form]).same


def test_what_is_passed_as_it_is_may_change_from_step_to_step():
    import optax

    optimizer = (lambda parameters: torch.optim.SGD(parameters, 0.1), optax.sgd(0.1))
    found = parity.compare(Torch(), Flax(), CALLS["of the step"], optimizer=optimizer, steps=3)
    assert found.same, found
    assert found.steps == 3


def test_gradients_of_inputs_inside_of_others_are_compared():
    found = parity.compare(Torch(), Flax(), CALLS["keywords"])
    names = {row.difference.name for row in found.rows if row.difference.kind is parity.Kind.INPUT_GRADIENT}
    assert names == {"x", "pair['other']"}

    class Stopped(Flax):
        def __call__(self, x, pair, **others):
            return super().__call__(x, {**pair, "other": jax.lax.stop_gradient(pair["other"])}, **others)

    wrong = parity.compare(Torch(), Stopped(), CALLS["keywords"])
    assert {row.difference.name for row in wrong.different} == {"pair['other']"}


def test_named_tuples_stay_what_they_are():
    class Theirs(Torch):
        def forward(self, both):
            return self.dense(both.left - both.right)

    class Ours(Flax):
        def __call__(self, both):
            return self.dense(both.left - both.right)

    assert parity.compare(Theirs(), Ours(), (Two(X, Y),)).same


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": X, "mask": object()}, r"inputs\['mask'\] is a builtins.object, not an array of numbers"),
        ((X, {"other": {1, 2}}), r"inputs\[1\]\['other'\] is a builtins.set"),
        ({"x": np.array(["text"])}, r"inputs\['x'\] is ndarray, not an array of numbers"),
        ({0: X}, r"the key 0, and its keys are the names of keyword arguments"),
        (None, "none of inputs, torch_inputs and flax_inputs are given"),
    ],
)
def test_what_is_no_input(inputs, message):
    with pytest.raises(TypeError, match=message):
        parity.compare(Torch(), Flax(), inputs)


# ----------------------------------------------------------------------------------- inputs of one side alone


class TorchImages(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, pixel_values):
        return {"features": self.conv(pixel_values)}


class FlaxImages(nnx.Module):
    def __init__(self):
        self.conv = nnx.Conv(3, 4, (3, 3), padding="VALID", rngs=nnx.Rngs(0))

    def __call__(self, images):
        return {"features": jnp.moveaxis(self.conv(images), -1, 1)}


IMAGES = RANDOM.randn(2, 3, 5, 6)


def test_each_side_has_inputs_of_its_own():
    given = {"torch_inputs": {"pixel_values": IMAGES}, "flax_inputs": np.moveaxis(IMAGES, 1, -1)}
    found = parity.compare(TorchImages(), FlaxImages(), **given)
    assert found.same, found
    gradients = [row for row in found.rows if row.difference.kind is parity.Kind.INPUT_GRADIENT]
    assert [row.difference.name for row in gradients] == ["0"]  # the same numbers, and Flax's name
    other = parity.compare(
        TorchImages(), FlaxImages(), **{**given, "flax_inputs": np.moveaxis(IMAGES, 1, -1) * 2}
    )
    assert not other.same
    assert (
        "the gradient of torch's pixel_values is not compared: Flax is given no such numbers" in other.notes
    )


def test_one_side_may_have_its_own_beside_inputs():
    found = parity.compare(Torch(), Flax(), (X,), flax_inputs={"x": X, "options": None})
    assert found.same, found


def test_all_three_are_too_many():
    with pytest.raises(TypeError, match="all three of inputs"):
        parity.compare(Torch(), Flax(), X, torch_inputs=X, flax_inputs=X)


def test_the_place_is_found_with_inputs_of_each_side():
    class Scaled(FlaxImages):
        def __call__(self, images):
            return super().__call__(images / 2)

    given = {"torch_inputs": {"pixel_values": IMAGES}, "flax_inputs": np.moveaxis(IMAGES, 1, -1)}
    found = parity.compare(TorchImages(), Scaled(), **given)
    assert found.divergence.where.startswith("Everything before conv agrees")


# --------------------------------------------------------------------------------------------------- outputs


class TorchOutputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(3, 2)

    def forward(self, x):
        y = self.dense(x)
        return {"logits": y, "hidden": (y + 1, y + 2), "loss": y.sum()}


class FlaxOutputs(nnx.Module):
    def __init__(self, off=0.0):
        self.dense, self.off = dense(), off

    def __call__(self, x):
        y = self.dense(x)
        return (y + self.off, {"states": [y + 1, y + 2 + self.off], "more": y**2})


CHOSEN = {"logits": 0, "hidden": "[1]['states']"}


def outputs_in(rows):
    return {row.difference.name for row in rows if row.difference.kind is parity.Kind.OUTPUT}


def test_outputs_are_paired_by_name_and_the_others_are_said():
    found = parity.compare(TorchOutputs(), FlaxOutputs(), X, outputs=CHOSEN)
    assert found.same, found
    assert outputs_in(found.rows) == {"logits", "hidden[0]", "hidden[1]"}
    assert "outputs of torch that were not compared: ['loss']" in found.notes
    assert "outputs of Flax that were not compared: [1]['more']" in found.notes
    wrong = parity.compare(TorchOutputs(), FlaxOutputs(off=1e-6), X, outputs=CHOSEN)
    assert outputs_in(wrong.different) == {"logits", "hidden[1]"}


def test_one_name_for_both_sides():
    theirs = TorchOutputs()

    class Ours(FlaxOutputs):
        def __call__(self, x):
            y = self.dense(x)
            return {"logits": y, "hidden": y - 1}

    assert not parity.compare(theirs, Ours(), X).same
    for outputs in ("logits", ["logits"], ["['logits']"]):
        assert parity.compare(theirs, Ours(), X, outputs=outputs).same


def test_an_array_that_stands_alone_has_no_name():
    class Ours(FlaxOutputs):
        def __call__(self, x):
            return self.dense(x)

    assert parity.compare(TorchOutputs(), Ours(), X, outputs={"logits": ""}).same


def test_the_cause_is_found_with_chosen_outputs():
    class Theirs(TorchOutputs):
        def forward(self, x):
            return {"logits": torch.nn.functional.gelu(self.dense(x)), "x": x}

    class Ours(FlaxOutputs):
        def __call__(self, x):
            return (nnx.gelu(self.dense(x)), x.sum())

    found = parity.compare(Theirs(), Ours(), X, outputs={"logits": "[0]"})
    assert any("approximate=" in cause.text for cause in found.divergence.causes), found.divergence


def test_the_cause_is_found_where_the_only_output_is_in_a_tuple():
    """A lone array has one name wherever it is; a search that looked for it under another found nothing."""

    class Theirs(TorchOutputs):
        def forward(self, x):
            return (torch.nn.functional.gelu(self.dense(x)),)

    class Ours(FlaxOutputs):
        def __call__(self, x):
            return nnx.gelu(self.dense(x))

    found = parity.compare(Theirs(), Ours(), X)
    assert any("approximate=" in cause.text for cause in found.divergence.causes), found.divergence


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["nothing"], r"'nothing' in outputs= is no output of the torch module. It returns \"\['logits'\]\""),
        ({"logits": "logits"}, r"'logits' in outputs= is no output of the Flax module. It returns '\[0\]'"),
    ],
)
def test_a_name_that_is_not_there(outputs, message):
    with pytest.raises(ValueError, match=message):
        parity.compare(TorchOutputs(), FlaxOutputs(), X, outputs=outputs)


@pytest.mark.parametrize("outputs", [[], {}, {"logits": 0, "loss": 0}])
def test_names_of_nothing_and_twice(outputs):
    with pytest.raises(ValueError, match="names nothing, or one output twice"):
        parity.compare(TorchOutputs(), FlaxOutputs(), X, outputs=outputs)


# ----------------------------------------------------------------------------------------------------- modes


class TorchMode(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.norm = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)

    def forward(self, x):
        return self.norm(self.dense(x))


class LinenTrain(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool = False):
        x = linen.Dense(2, name="dense")(x)
        return linen.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5, name="norm")(x)


class LinenDeterministic(linen.Module):
    @linen.compact
    def __call__(self, x, *, deterministic):
        return LinenTrain(name="inner")(x, train=not deterministic)


class NNXTraining(nnx.Module):
    def __init__(self):
        self.dense, self.norm = dense(), nnx.BatchNorm(2, momentum=0.9, epsilon=1e-5, rngs=nnx.Rngs(0))

    def __call__(self, x, training: bool):
        return self.norm(self.dense(x), use_running_average=not training)


FLAGS = {
    "train": (LinenTrain, None),
    "deterministic": (LinenDeterministic, {"": "inner"}),
    "training": (NNXTraining, None),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("training", [True, False])
def test_the_flag_follows_the_mode(flag, training):
    build, mapping = FLAGS[flag]
    module = TorchMode()
    found = parity.compare(module, build(), X, training=training, mapping=mapping)
    wrong = {row.difference.name for row in found.different}
    assert wrong <= {"norm.var", "inner.norm.var"}, found  # Flax's biased variance, and nothing else
    assert bool(wrong) == training
    value = training if flag != "deterministic" else not training
    assert f"Flax is called with {flag}={value}, as the mode is" in found.notes


@pytest.mark.parametrize(
    "given",
    [{"flax_inputs": {"x": X, "train": True}}, {"flax_kwargs": {"train": True}}, {"flax_inputs": (X, True)}],
)
def test_a_flag_that_is_given_stays(given):
    found = parity.compare(TorchMode(), LinenTrain(), X, training=False, **_writing(given))
    assert not found.same
    assert not [note for note in found.notes if "as the mode is" in note]


def _writing(given):
    return {**given, "flax_kwargs": {**given.get("flax_kwargs", {}), "mutable": ["batch_stats"]}}


# ----------------------------------------------------------------------------------------------------- Linen


class LinenMethods(linen.Module):
    def setup(self):
        self.dense, self.other = linen.Dense(2), linen.Dense(5)

    def __call__(self, x):
        return self.other(x)

    def encode(self, x, scale):
        self.sow("intermediates", "before", x)
        return scale * self.dense(x)


@pytest.mark.parametrize("method", ["encode", LinenMethods.encode])
def test_method_of_a_linen_module(method):
    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = torch.nn.Linear(3, 2)

        def forward(self, x, scale):
            return scale * self.dense(x)

    given = {"flax_kwargs": {"method": method}}
    assert parity.compare(Theirs(), LinenMethods(), (X, 2.0), **given).same
    assert not parity.compare(
        Theirs(), LinenMethods(), torch_inputs=(X, 2.0), flax_inputs=(X, 3.0), **given
    ).same


class Noisy(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Dense(2, name="dense")(x)
        self.sow("intermediates", "x", x)
        calls = self.variable("counts", "calls", lambda: jnp.zeros((), jnp.int32))
        if self.is_mutable_collection("counts"):
            calls.value += 1
        return x + self.param_noise(x)

    def param_noise(self, x):
        return 0 * jax.random.normal(self.make_rng("noise"), x.shape, x.dtype)


@pytest.mark.full
def test_streams_and_collections_of_a_linen_module():
    theirs = torch.nn.Sequential(collections.OrderedDict(dense=torch.nn.Linear(3, 2)))
    variables = Noisy().init({"params": jax.random.key(0), "noise": jax.random.key(1)}, X)
    given = {"variables": variables, "ignore_flax": ["calls"]}
    with pytest.raises(errors.MaskError, match=r"give flax_kwargs=\{'rngs'"):
        parity.compare(theirs, Noisy(), X, **given)
    for key in (jax.random.key(2), jax.random.PRNGKey(2)):
        kwargs = {"rngs": {"noise": key}, "mutable": ["intermediates", "counts"]}
        for training in (True, False):
            found = parity.compare(theirs, Noisy(), X, training=training, flax_kwargs=kwargs, **given)
            assert found.same, found


# --------------------------------------------------------------------------------------------------- dropout


class TorchAttention(torch.nn.Module):
    def __init__(self, p=0.5, weights=False):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2, dropout=p, batch_first=True)
        self.weights = weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.weights)[0]


class NNXAttention(nnx.Module):
    def __init__(self, rate=0.5, broadcast=False, rngs=None):
        self.attention = nnx.MultiHeadAttention(
            2, 4, dropout_rate=rate, broadcast_dropout=broadcast, decode=False, rngs=rngs or nnx.Rngs(0)
        )

    def __call__(self, x):
        return self.attention(x)


class LinenAttention(linen.Module):
    rate: float = 0.5
    broadcast: bool = False

    @linen.compact
    def __call__(self, x, train):
        return linen.MultiHeadDotProductAttention(
            2,
            dropout_rate=self.rate,
            broadcast_dropout=self.broadcast,
            deterministic=not train,
            name="attention",
        )(x)


SEQUENCE = RANDOM.randn(3, 5, 4)
ATTENTIONS = {"NNX": NNXAttention, "Linen": LinenAttention}


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("kind", ATTENTIONS)
def test_dropout_inside_of_attention_takes_torchs_masks(kind, weights):
    found = parity.compare(TorchAttention(weights=weights), ATTENTIONS[kind](), SEQUENCE, training=True)
    assert found.same, found
    wrong = parity.compare(
        TorchAttention(weights=weights), ATTENTIONS[kind](rate=0.4), SEQUENCE, training=True
    )
    assert not wrong.same


def test_groups_of_heads_and_another_attention_take_them_too():
    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.key, self.value = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)

        def forward(self, x):
            q, k, v = (
                f(x).unflatten(-1, (-1, 2)).transpose(1, 2) for f in (self.query, self.key, self.value)
            )
            k, v = (y.repeat_interleave(2, dim=1) for y in (k, v))
            weights = (q @ k.transpose(-2, -1) / 2**0.5).softmax(-1)
            weights = torch.nn.functional.dropout(weights, 0.5, self.training)
            return self.out((weights @ v).transpose(1, 2).flatten(2))

    def groups(query, key, value, **options):
        return nnx.dot_product_attention(query, key, value, **options)

    ours = nnx.MultiHeadAttention(
        2,
        4,
        num_kv_heads=1,
        dropout_rate=0.5,
        broadcast_dropout=False,
        attention_fn=groups,
        decode=False,
        rngs=nnx.Rngs(0),
    )
    found = parity.compare(Theirs(), ours, SEQUENCE, training=True)
    assert found.same, found


@pytest.mark.full
@pytest.mark.sampled(7)
@pytest.mark.parametrize("level", ["numeric", "trajectory"])
@pytest.mark.parametrize("resync", [True, False])
def test_the_other_levels(level, resync):
    import optax

    optimizer = (lambda parameters: torch.optim.SGD(parameters, 0.1), optax.sgd(0.1))
    given = {"optimizer": optimizer, "level": level, "resync": resync}
    if level == "trajectory":
        given["steps"] = 2
    for dtype in ("float32", "bfloat16"):
        found = parity.compare(Torch(), Flax(), CALLS["keywords"], dtype=dtype, **given)
        assert found.same, found
        dropped = parity.compare(TorchAttention(), LinenAttention(), SEQUENCE, dtype=dtype, **given)
        assert dropped.same, dropped
    # Dropped otherwise, it is another model at every level.
    assert not parity.compare(TorchAttention(), LinenAttention(rate=0.4), SEQUENCE, **given).same


@pytest.mark.full
def test_jaxpars_own_attention_takes_torchs_masks():
    from jaxpar import nn

    class Ours(NNXAttention):
        def __init__(self, rate=0.5):
            self.attention = nn.MultiheadAttention(4, 2, rate, batch_first=True, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.attention(x, x, x)[0]

    assert parity.compare(TorchAttention(), Ours(), SEQUENCE, training=False).same
    dropped = parity.compare(TorchAttention(), Ours(), SEQUENCE, training=True)
    assert dropped.same, dropped
    assert not parity.compare(TorchAttention(), Ours(0.4), SEQUENCE, training=True).same


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_one_mask_for_all_rows_is_not_torchs(kind):
    with pytest.raises(errors.MaskError, match="attention draws one mask for all rows and heads"):
        parity.compare(TorchAttention(), ATTENTIONS[kind](broadcast=True), SEQUENCE, training=True)


class Drawing(linen.Module):
    """Drops by itself, with the stream of dropout."""

    rate: float = 0.5

    @linen.compact
    def __call__(self, x, train):
        x = linen.Dense(2, name="dense")(x)
        keep = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.rate, x.shape) if train else 1
        return x * keep / (1 - self.rate if train else 1)


class DrawingNNX(nnx.Module):
    def __init__(self, rate=0.5):
        self.dense, self.rngs, self.rate = dense(), nnx.Rngs(dropout=1), rate

    def __call__(self, x, train):
        x = self.dense(x)
        keep = jax.random.bernoulli(self.rngs.dropout(), 1 - self.rate, x.shape) if train else 1
        return x * keep / (1 - self.rate if train else 1)


class TorchDropout(torch.nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.dense, self.p = torch.nn.Linear(3, 2), p

    def forward(self, x):
        return torch.nn.functional.dropout(self.dense(x), self.p, self.training)


@pytest.mark.parametrize("kind", [Drawing, DrawingNNX])
def test_dropout_that_draws_itself_is_refused(kind):
    with pytest.raises(errors.MaskError, match="torch dropped 1 times and Flax 0 times"):
        parity.compare(TorchDropout(), kind(), X)
    with pytest.raises(errors.MaskError, match="depends on random numbers that it draws itself"):
        parity.compare(TorchDropout(0.0), kind(), X)
    # What is drawn and does not matter is no reason to refuse.
    assert parity.compare(TorchDropout(0.0), kind(rate=0.0), X).same
    assert parity.compare(TorchDropout(), kind(), X, training=False).same


def test_a_key_of_the_users_does_not_make_a_verdict_of_chance():
    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        with pytest.raises(errors.MaskError, match="draws itself"):
            parity.compare(TorchDropout(0.0), Drawing(), X, flax_kwargs={"rngs": {"dropout": key}})


@pytest.mark.parametrize("train", [True, False])
def test_linens_dropout_takes_its_flag_by_position(train):
    class Ours(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            return linen.Dropout(0.5)(linen.Dense(2, name="dense")(x), not train)

    found = parity.compare(TorchDropout(), Ours(), X, training=train)
    assert found.same, found


class DrawingFromCall(DrawingNNX):
    def __call__(self, x, train, rngs):
        self.rngs = rngs
        return super().__call__(x, train)


def test_streams_that_are_given_with_the_call():
    rngs = nnx.Rngs(dropout=3)
    given = {"flax_kwargs": {"rngs": rngs}}
    assert parity.compare(TorchDropout(0.0), DrawingFromCall(rate=0.0), X, **given).same
    with pytest.raises(errors.MaskError, match="draws itself"):
        parity.compare(TorchDropout(0.0), DrawingFromCall(), X, **given)
    assert rngs.dropout.count[...] == 0


# ------------------------------------------------------------------------------------------------ the replay


class TorchCross(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x, context, padding=None):
        key, value = self.key(context), self.value(context) ** 2
        given = {"value": value, "key": key, "query": x, "key_padding_mask": padding}
        return self.out(self.attention(**given)[0])


class FlaxCross(nnx.Module):
    def __init__(self, bug=1.0):
        rngs = nnx.Rngs(0)
        self.key, self.value = nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.out, self.bug = nnx.Linear(4, 4, rngs=rngs), bug

    def __call__(self, x, context, padding=None):
        key, value = self.key(context), self.bug * self.value(context) ** 2
        mask = None if padding is None else ~padding[:, None, None, :]
        return self.out(self.attention(x, inputs_v=value, mask=mask, inputs_k=key))


CONTEXT = RANDOM.randn(3, 5, 4)
PADDING = np.zeros((3, 5), bool)
PADDING[1:, 3:] = True


@pytest.mark.parametrize("padding", [None, PADDING])
def test_layers_that_are_called_by_keyword_are_replayed(padding):
    inputs = {"context": CONTEXT, "x": SEQUENCE, "padding": padding}
    assert parity.compare(TorchCross(), FlaxCross(), inputs, training=False).same
    found = parity.compare(TorchCross(), FlaxCross(bug=1.5), inputs, training=False).divergence
    assert found.where.startswith("Everything before attention agrees, and what arrives there does not"), (
        found
    )
    assert not found.others  # the attention itself is right
    assert all(layer.same for layer in found.layers), found.layers


# -------------------------------------------------------------------------- replicas, match, record, command


@pytest.mark.parametrize("kind", ["NNX", "Linen"])
def test_replicas_share_out_arrays_and_repeat_the_rest(kind):
    class Ours(linen.Module):
        @linen.compact
        def __call__(self, x, pair=None, mask=None, scale=1.0, mode="plus", options=None):
            y = x * mask + pair["weights"][0] * pair["other"]
            assert self.is_initializing() or len(x) == len(pair["other"]) == len(mask) == 2
            return scale * linen.Dense(2, name="dense")(y)

    inputs = {"x": X, "mask": MASK, "pair": {"other": Y, "weights": (2, None)}, "scale": 2.0, "mode": "plus"}
    found = parity.compare(Torch(), Ours() if kind == "Linen" else Flax(), inputs, replicas=2)
    assert found.same, found


def test_a_dropout_in_a_graph_of_modules_is_refused_in_replicas():
    class Dropped(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.dense = nnx.Linear(3, 2, rngs=rngs)
            self.first = self.second = nnx.Dropout(0.5, rngs=rngs)
            self.first.owner = self

        def __call__(self, x):
            return self.second(self.first(self.dense(x)))

    torch_net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    mapping = {"0.weight": "dense.kernel", "0.bias": "dense.bias"}
    with pytest.raises(errors.MaskError, match="first would drop in every replica"):
        parity.compare(torch_net, Dropped(), X, replicas=2, mapping=mapping)


def test_match_tries_its_guesses_with_any_call():
    class Ours(nnx.Module):
        def __init__(self):
            self.layer = dense()

        def __call__(self, *, images, flag):
            return (images.sum() if flag else 0, {"logits": self.layer(images)})

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 2)

        def forward(self, x, flag=None):
            return self.fc(x), x

    given = {"torch_inputs": X, "flax_inputs": {"images": X, "flag": False}, "outputs": {0: "[1]['logits']"}}
    found = parity.match(Ours(), Theirs(), **given)
    assert dict(found) == {"fc": "layer"}
    assert any("the outputs agree" in note for note in found.notes), found.notes
    assert parity.compare(Theirs(), Ours(), mapping=found, **given).same


def test_match_of_a_linen_module_by_keywords():
    class Ours(linen.Module):
        @linen.compact
        def __call__(self, x, mask=None, train=False):
            assert isinstance(mask, jax.Array)
            return linen.Dropout(0.5, deterministic=not train)(linen.Dense(2, name="layer")(x * mask))

    found = parity.match(Ours(), Torch(), example={"x": X, "mask": MASK})
    assert dict(found) == {"dense": "layer"}
    assert any("the outputs agree" in note for note in found.notes), found.notes


def test_a_record_keeps_any_call(tmp_path):
    path = tmp_path / "call.safetensors"
    made = parity.record(path, Torch(), Flax(), CALLS["keywords"], outputs=[""])
    assert made.same
    again = parity.check(path, Flax())
    assert again.same, again
    assert {row.difference.name for row in again.rows} == {row.difference.name for row in made.rows}
    assert not parity.check(path, Wrong()).same
    assert not parity.check(path, Flax(), flax_kwargs={"mode": "plus"}).same


@pytest.mark.full
def test_a_record_of_a_linen_module_with_streams_of_its_own(tmp_path):
    class Ours(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            noise = 0 * jax.random.normal(self.make_rng("noise"), x.shape, x.dtype)
            return LinenAttention(name="inner")(x + noise, train)

    path, given = tmp_path / "call.safetensors", {"rngs": {"noise": jax.random.key(0)}}
    mapping = {"attention": "inner.attention"}
    assert parity.record(path, TorchAttention(), Ours(), SEQUENCE, flax_kwargs=given, mapping=mapping).same
    with pytest.raises(ValueError, match="made with rngs"):
        parity.check(path, Ours())
    variables = Ours().init({"params": jax.random.key(0), "noise": jax.random.key(0)}, SEQUENCE, False)
    assert parity.check(path, Ours(), variables=variables, flax_kwargs=given).same


@pytest.mark.full
def test_an_object_that_a_record_cannot_hold_is_given_again(tmp_path):
    class Ours(Flax):
        def __call__(self, x, function):
            return function(self.dense(x))

    class Theirs(Torch):
        def forward(self, x):
            return torch.nn.functional.relu(self.dense(x))

    path = tmp_path / "call.safetensors"
    assert parity.record(path, Theirs(), Ours(), X, flax_kwargs={"function": jax.nn.relu}).same
    with pytest.raises(ValueError, match=r"made with function \(.*\), which a record cannot hold"):
        parity.check(path, Ours())
    assert parity.check(path, Ours(), flax_kwargs={"function": jax.nn.relu}).same
    assert not parity.check(path, Ours(), flax_kwargs={"function": jnp.cos}).same


SPEC = """
import numpy as np, torch
from flax import nnx

class Net(nnx.Module):
    def __init__(self):
        self.dense = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    def __call__(self, x, mask=None):
        return {"y": self.dense(x), "x": x}

class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(3, 2)
    def forward(self, x):
        return self.dense(x)

torch_module, flax_module = Torch, Net
torch_inputs = np.ones((4, 3))
flax_inputs = {"x": np.ones((4, 3)), "mask": None}
outputs = {"": "y"}
"""


def test_the_command_takes_any_call(tmp_path, capsys):
    from jaxpar._cli.parity import read_spec, run

    spec = tmp_path / "spec.py"
    spec.write_text(SPEC)
    options = dict.fromkeys(("optimizer", "html", "junit", "record", "check"))
    assert run(str(spec), as_json=True, **options) == 0
    said = json.loads(capsys.readouterr().out)
    assert "outputs of Flax that were not compared: ['x']" in said["notes"]
    spec.write_text(SPEC.replace("flax_inputs", "other"))
    with pytest.raises(errors.SpecError, match="it does not define inputs"):
        read_spec(str(spec))


class Pixels(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(x)


class NNXPixels(nnx.Module):
    def __init__(self, conv):
        self.conv = conv

    def __call__(self, x):
        return self.conv(x)


class LinenPixels(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Conv(4, (3, 3), name="conv")(x)


@pytest.mark.parametrize(
    "ours", [NNXPixels(nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0))), LinenPixels()], ids=["nnx", "linen"]
)
@pytest.mark.parametrize("call", ["compare", "match"])
def test_a_layout_that_was_forgotten_is_named(call, ours):
    x = np.random.RandomState(0).randn(2, 3, 6, 6)
    if call == "match" and isinstance(ours, linen.Module):
        assert "unmatched" not in str(parity.match(ours, Pixels(), example=x, layout="channels_last"))
        return  # without it Linen makes a kernel for six channels, and match says that nothing fits
    ask = parity.compare if call == "compare" else lambda a, b, x, **kw: parity.match(b, a, example=x, **kw)
    message = r'(?s)Flax model was given \(2, 3, 6, 6\), as torch has it.*pass layout="channels_last"'
    with pytest.raises((TypeError, ValueError, errors.MatchError), match=message):
        ask(Pixels(), ours, x)
    ask(Pixels(), ours, x, layout="channels_last")


# -------------------------------------------------------------------------------- inputs that torch writes to


class TorchScaled(torch.nn.Module):
    """Normalizes its input, with `/=` on the input itself or on what the gradient needs."""

    def __init__(self, writes_to_input):
        super().__init__()
        self.linear, self.writes_to_input = torch.nn.Linear(3, 2), writes_to_input

    def forward(self, x):
        if not self.writes_to_input:
            x = x - x.mean(1, keepdim=True)
        x /= torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        return self.linear(x)


class FlaxScaled(nnx.Module):
    def __init__(self, writes_to_input, factor=1.0):
        self.linear, self.writes_to_input, self.factor = dense(), writes_to_input, factor

    def __call__(self, x):
        if not self.writes_to_input:
            x = x - x.mean(1, keepdims=True)
        return self.linear(self.factor * x / jnp.sqrt(x.var(1, keepdims=True) + 1e-5))


@pytest.mark.parametrize(("writes_to_input", "replicas"), [(True, 1), (False, 1), (True, 2)])
def test_a_model_that_writes_to_its_input_is_compared_without_its_gradient(writes_to_input, replicas):
    models = TorchScaled(writes_to_input), FlaxScaled(writes_to_input)
    result = parity.compare(*models, X, replicas=replicas)
    assert result.same, result
    kinds = [row.difference.kind for row in result.rows]
    assert parity.Kind.GRADIENT in kinds
    assert parity.Kind.INPUT_GRADIENT not in kinds
    assert any("the gradients of inputs (0) are not compared: torch cannot" in note for note in result.notes)
    other = parity.compare(TorchScaled(writes_to_input), FlaxScaled(writes_to_input, 1.01), X, search=None)
    assert not other.same


def test_a_model_that_writes_to_its_input_is_matched():
    models = TorchScaled(True), FlaxScaled(True)
    assert parity.compare(*models, X, mapping=parity.match(*models[::-1], example=X)).same


def test_a_model_that_torch_cannot_train_raises_its_error():
    class Overwrites(TorchScaled):
        def forward(self, x):
            y = self.linear(x).exp()
            y *= y.sum()
            return y

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        parity.compare(Overwrites(True), FlaxScaled(True), X)
