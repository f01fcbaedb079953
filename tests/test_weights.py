"""load_torch, to_torch, match: every tensor and every leaf is used exactly once, or nothing is done."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from comparing import assert_equal_numbers
from flax import linen, nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxpar
from jaxpar import parity
from jaxpar.errors import FileError, MatchError, UninitializedError
from jaxpar.parity._weights import links_of

torch = pytest.importorskip("torch")
tn = torch.nn

# ------------------------------------------------------------------------------------------- models


class TorchNet(tn.Module):
    """A bit of everything: convolution, buffers, a flatten, attention, a stack, a tie, an own array."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = tn.Conv2d(3, 4, 3)
        self.norm = tn.BatchNorm2d(4)
        self.head = tn.Linear(16, 8)
        self.blocks = tn.ModuleList([tn.ModuleDict({"attn": tn.MultiheadAttention(8, 2)}) for _ in range(2)])
        self.rnn = tn.LSTM(8, 3, num_layers=2, bidirectional=True)
        self.embed = tn.Embedding(5, 8)
        self.logits = tn.Linear(8, 5, bias=False)
        self.logits.weight = self.embed.weight
        self.scale = tn.Parameter(torch.randn(3, 3))
        with torch.no_grad():
            self.norm.running_mean.uniform_()
            self.norm.running_var.uniform_()


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.attn = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)


class FlaxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        def both(features: int) -> nnx.Bidirectional:
            return nnx.Bidirectional(
                *(nnx.RNN(nnx.OptimizedLSTMCell(features, 3, rngs=rngs)) for _ in range(2))
            )

        self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.classifier = nnx.Linear(16, 8, rngs=rngs)
        self.blocks = nnx.List([Block(rngs), Block(rngs)])
        self.rnn = nnx.List([both(8), both(6)])
        self.embed = nnx.Embed(5, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.scale = nnx.Param(jnp.zeros((3, 3), jnp.float32))


FLATTENED = {"head": parity.flattened("classifier", (4, 2, 2))}


def abstract(make: Any) -> Any:
    """A module of shapes: building one costs a program for every kind of leaf."""
    return nnx.eval_shape(lambda: make(nnx.Rngs(0)))


def flax_net() -> FlaxNet:
    return abstract(FlaxNet)


def linear(into: int = 4, out: int = 4, **options: Any) -> nnx.Linear:
    return abstract(lambda rngs: nnx.Linear(into, out, rngs=rngs, **options))


class Holder(nnx.Module):
    def __init__(self, parts: dict[str, Any]):
        for name, part in parts.items():
            setattr(self, name, part)


def holder(**makers: Any) -> Holder:
    return abstract(lambda rngs: Holder({name: make(rngs) for name, make in makers.items()}))


def a_linear(rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(4, 4, rngs=rngs)


def leaves(module: nnx.Module) -> dict[str, np.ndarray]:
    state = nnx.state(module, nnx.Not(nnx.RngState))
    return {".".join(map(str, path)): np.asarray(x[...]) for path, x in nnx.to_flat_state(state)}


def assert_same_tensors(got: dict, want: dict, besides: tuple[str, ...] = ()) -> None:
    assert list(got) == list(want)
    for name, tensor in want.items():
        if not name.endswith(besides):
            assert got[name].dtype == tensor.dtype, name
            assert torch.equal(got[name], tensor), name


MERGED = ("bias_ih_l0", "bias_hh_l0", "bias_ih_l1", "bias_hh_l1", "_reverse", "num_batches_tracked")

# ---------------------------------------------------------------------------------- there and back


@pytest.mark.full
def test_a_whole_model_there_and_back():
    theirs = TorchNet()
    ours = parity.load_torch(flax_net(), theirs, mapping=FLATTENED)
    state = parity.to_torch(ours, like=theirs, mapping=FLATTENED)
    assert_same_tensors(state, theirs.state_dict(), MERGED)
    TorchNet().load_state_dict(state, strict=True)
    again = parity.load_torch(flax_net(), state, mapping=FLATTENED)
    for path, leaf in leaves(ours).items():
        assert np.array_equal(leaf, leaves(again)[path]), path


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("direction", "end"), [("forward", ""), ("backward", "_reverse")])
def test_a_layer_and_direction_of_a_stack_has_its_own_weights(depth, direction, end):
    theirs = TorchNet()
    ours = leaves(parity.load_torch(flax_net(), theirs, mapping=FLATTENED))
    kernel = ours[f"rnn.{depth}.{direction}_rnn.cell.dense_i.kernel"]
    weight = theirs.get_parameter(f"rnn.weight_ih_l{depth}{end}").detach().numpy()
    assert np.array_equal(kernel, weight.T)


def test_names_without_a_model_to_be_like():
    mapping = {
        **FLATTENED,
        "rnn": ("rnn.0", "rnn.1"),
        "embed.weight": "embed.embedding",
        "logits.weight": "embed.embedding",
    }
    theirs = TorchNet()
    ours = parity.load_torch(flax_net(), theirs, mapping=mapping)
    state = parity.to_torch(ours, mapping=mapping)
    assert state.keys() == theirs.state_dict().keys()
    TorchNet().load_state_dict(state, strict=True)
    arrays = parity.to_torch(ours, mapping=mapping, numpy=True)
    assert {name: x.shape for name, x in arrays.items()} == {n: tuple(x.shape) for n, x in state.items()}


def test_without_any_mapping_the_names_are_flax_paths():
    state = parity.to_torch(nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jax.nn.relu), numpy=True)
    assert {name: x.shape for name, x in state.items()} == {"0.weight": (3, 2), "0.bias": (3,)}


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = linen.Conv(4, (3, 3), padding="VALID", name="conv", param_dtype=jnp.float64)(x)
        x = linen.BatchNorm(use_running_average=not train, epsilon=1e-5, param_dtype=jnp.float64)(x)
        x = linen.Dense(8, param_dtype=jnp.float64)(x.reshape(len(x), -1))
        return linen.Dense(8, param_dtype=jnp.float64)(x)


class TorchForLinen(tn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = tn.Conv2d(3, 4, 3), tn.BatchNorm2d(4)
        self.first, self.second = tn.Linear(16, 8), tn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(self.norm(self.conv(x)).flatten(1)))


IMAGES = (jax.ShapeDtypeStruct((2, 4, 4, 3), jnp.float64),)
LINEN = {"norm": "BatchNorm_0", "first": parity.flattened("Dense_0", (4, 2, 2)), "second": "Dense_1"}


@pytest.mark.parametrize("wrapped", [False, True])
def test_linen_computes_what_torch_computes(wrapped):
    theirs = TorchForLinen().double().eval()
    net = jaxpar.DataParallel(LinenNet(), [0, 1]) if wrapped else LinenNet()
    variables = parity.load_torch(net, theirs, inputs=IMAGES, kwargs={"train": False}, mapping=LINEN)
    x = np.random.RandomState(0).randn(2, 3, 4, 4)
    want = theirs(torch.tensor(x)).detach().numpy()

    @jax.jit
    def apply(variables):  # Linen's BatchNorm keeps float32 statistics whatever it is told
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), variables)
        return net.apply(wide, jnp.asarray(np.moveaxis(x, 1, -1)))

    assert_equal_numbers("outputs", apply(variables), want)
    back = parity.to_torch(net, like=theirs, inputs=IMAGES, variables=variables, mapping=LINEN)
    assert_same_tensors(back, theirs.state_dict(), ("running_mean", "running_var"))
    variables = parity.load_torch(net, theirs, inputs=IMAGES, mapping={**LINEN, "first": "Dense_0"})
    with pytest.raises(AssertionError, match="relative difference"):  # the flatten in torch's order
        assert_equal_numbers("outputs", apply(variables), want)


def test_linen_keeps_its_own_values_where_torch_is_ignored():
    theirs = TorchForLinen().double()
    ignored: dict[str, Any] = {"ignore_torch": ["conv"], "ignore_flax": ["conv"]}
    with pytest.raises(MatchError, match=r"conv\.bias, params\.conv\.kernel would be left without values"):
        parity.load_torch(LinenNet(), theirs, inputs=IMAGES, mapping=LINEN, **ignored)
    before = parity.load_torch(LinenNet(), TorchForLinen().double(), inputs=IMAGES, mapping=LINEN)
    after = parity.load_torch(LinenNet(), theirs, inputs=IMAGES, mapping=LINEN, variables=before, **ignored)
    assert after["params"]["conv"]["kernel"] is before["params"]["conv"]["kernel"]
    assert np.array_equal(after["params"]["Dense_1"]["bias"], theirs.second.bias.detach().numpy())


def test_linen_shapes_alone_cannot_be_given_to_torch():
    with pytest.raises(
        UninitializedError, match=r"BatchNorm_0\.mean is a shape without values; give variables="
    ):
        parity.to_torch(LinenNet(), inputs=IMAGES)


SIZES = st.integers(1, 3)
KINDS = st.sampled_from(["linear", "conv", "norm", "attention", "lstm", "embed"])


def pair(kind: str, a: int, b: int, rngs: nnx.Rngs) -> tuple[Any, Any]:
    return {
        "linear": lambda: (tn.Linear(a, b), nnx.Linear(a, b, rngs=rngs)),
        "conv": lambda: (tn.Conv2d(a, b, (a, b)), nnx.Conv(a, b, (a, b), rngs=rngs)),
        "norm": lambda: (tn.BatchNorm1d(a), jaxpar.nn.BatchNorm(a)),
        "attention": lambda: (
            tn.MultiheadAttention(a * b, a),
            nnx.MultiHeadAttention(a, a * b, decode=False, rngs=rngs),
        ),
        "lstm": lambda: (tn.LSTMCell(a, b), nnx.LSTMCell(a, b, rngs=rngs)),
        "embed": lambda: (tn.Embedding(a, b), nnx.Embed(a, b, rngs=rngs)),
    }[kind]()


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(layers=st.lists(st.tuples(KINDS, SIZES, SIZES), min_size=1, max_size=4))
def test_random_models_there_and_back(layers):
    theirs = tn.Sequential(*(pair(*layer, nnx.Rngs(0))[0] for layer in layers))
    ours = abstract(lambda rngs: nnx.Sequential(*(pair(*layer, rngs)[1] for layer in layers)))
    parity.load_torch(ours, theirs)
    state = parity.to_torch(ours)
    assert_same_tensors(
        {name: state[name] for name in theirs.state_dict()}, theirs.state_dict(), ("bias_ih", "bias_hh")
    )
    before = leaves(ours)
    parity.load_torch(ours, {name: torch.zeros_like(x) for name, x in state.items()})
    parity.load_torch(ours, state)
    for path, leaf in leaves(ours).items():
        assert leaf.tobytes() == before[path].tobytes(), path


# ----------------------------------------------------------------------------------------- prefixes

WRAPPED = {
    "plain": lambda net: net,
    "DataParallel": tn.DataParallel,
    "compiled": torch.compile,
    "compiled DataParallel": lambda net: torch.compile(tn.DataParallel(net)),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method")  # torch.compile's own
@pytest.mark.parametrize("what", ["module", "state_dict"])
@pytest.mark.parametrize("wrapper", WRAPPED)
def test_wrappers_of_torch(wrapper, what):
    theirs = WRAPPED[wrapper](tn.Sequential(tn.Linear(4, 4)))
    given_ = theirs if what == "module" else theirs.state_dict()
    ours = abstract(lambda rngs: nnx.Sequential(nnx.Linear(4, 4, rngs=rngs)))
    parity.load_torch(ours, given_)
    weight = next(iter(theirs.state_dict().values())).numpy()
    assert np.array_equal(ours.layers[0].kernel[...], weight.T)
    assert list(parity.to_torch(ours, like=given_)) == list(theirs.state_dict())
    (link,) = (link for link in links_of(ours, given_).layers if link.parts)
    assert dict(theirs.named_modules())[link.torch].weight.shape == (4, 4)


@pytest.mark.parametrize("wrapper", ["DataParallel", "DistributedDataParallel"])
def test_wrappers_of_flax(wrapper):
    theirs = tn.Sequential(tn.Linear(4, 4))
    net = getattr(jaxpar, wrapper)(nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0))), [0, 1])
    for given_ in (theirs, tn.DataParallel(theirs)):
        parity.load_torch(net, given_)
        assert net.module.layers[0].kernel[...].sharding.device_set == set(jaxpar.devices()[:2])
    assert list(parity.to_torch(net)) == list(tn.DataParallel(theirs).state_dict())
    for path in ("module.layers.0", "0"):
        parity.load_torch(net, {"fc.weight": torch.eye(4), "fc.bias": torch.ones(4)}, mapping={"fc": path})


def test_module_may_be_the_users_own_word():
    theirs = tn.ModuleDict({"module": tn.Linear(4, 4), "other": tn.Linear(4, 4)})
    ours = parity.load_torch(holder(module=a_linear, other=a_linear), theirs.state_dict())
    assert np.array_equal(ours.module.bias[...], theirs["module"].bias.detach())


# ------------------------------------------------------------------------------------------ mapping


def blocks(names: str, depth: int = 2) -> tn.Module:
    return tn.ModuleList(
        [tn.ModuleDict({name: tn.Linear(4, 4) for name in names.split()}) for _ in range(depth)]
    )


def flax_blocks(names: str, depth: int = 2) -> Any:
    return lambda rngs: nnx.List(
        [Holder({name: nnx.Linear(4, 4, rngs=rngs) for name in names.split()}) for _ in range(depth)]
    )


MAPPINGS = {
    "a prefix": {"blocks": "layers"},
    "every block": {"blocks.0": "layers.0", "blocks.1": "layers.1"},
    "the longest key wins": {"blocks": "layers", "blocks.0": "layers.1", "blocks.1": "layers.0"},
    "one array": {"blocks": "layers", "blocks.0.q.weight": parity.transposed("layers.0.q.kernel", (0, 1))},
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings(name):
    theirs = tn.ModuleDict({"blocks": blocks("q k")})
    ours = parity.load_torch(holder(layers=flax_blocks("q k")), theirs, mapping=MAPPINGS[name])
    weights = [theirs["blocks"][i]["q"].weight.detach().numpy() for i in (0, 1)]
    got = [np.asarray(ours.layers[i].q.kernel[...]) for i in (0, 1)]
    if name == "the longest key wins":
        weights.reverse()
    assert np.array_equal(got[0], weights[0] if name == "one array" else weights[0].T)
    assert np.array_equal(got[1], weights[1].T)
    state = parity.to_torch(ours, mapping=MAPPINGS[name])
    assert state.keys() == theirs.state_dict().keys()
    assert all(torch.equal(state[key], x) for key, x in theirs.state_dict().items())


def test_a_stack_of_cells():
    theirs = tn.ModuleDict({"lstm": tn.LSTM(4, 3, num_layers=2)})
    cells = {
        name: lambda rngs, into=into: nnx.OptimizedLSTMCell(into, 3, rngs=rngs)
        for name, into in (("low", 4), ("high", 3))
    }
    ours = parity.load_torch(holder(**cells), theirs, mapping={"lstm": ("low", "high")})
    assert np.array_equal(ours.high.dense_i.kernel[...], theirs["lstm"].weight_ih_l1.detach().numpy().T)


WRONG = {
    "torch has no such name": ({"fcc": "fc"}, "mapping: torch has no 'fcc'; near are fc"),
    "flax has no such path": ({"fc": "gc"}, "mapping: the Flax model has no 'gc'"),
    "no path at all": ({"fc": 3}, "mapping: 'fc': 3 is no Flax path"),
    "axes that do not fit": ({"fc.weight": parity.transposed("fc.kernel", (0,))}, "cannot become"),
    "a flatten that does not fit": (
        {"fc": parity.flattened("fc", (3, 5))},
        r"fc\.weight \(4, 4\) cannot become",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_in_a_mapping(name):
    mapping, message = WRONG[name]
    with pytest.raises(MatchError, match=message):
        parity.load_torch(holder(fc=a_linear), tn.ModuleDict({"fc": tn.Linear(4, 4)}), mapping=mapping)


@pytest.mark.parametrize("call", [
    lambda: parity.flattened("fc", (3,)), lambda: parity.flattened("fc", (3, 0)),
    lambda: parity.transposed("fc", (0, 2)),
])  # fmt: skip
def test_values_that_mean_nothing(call):
    with pytest.raises(ValueError, match=r"is no \(C, \*S\)|is no permutation"):
        call()


# -------------------------------------------------------------------------------------- complaints


class Conv1D(tn.Module):
    """A Linear with its weight the other way around, as some GPT-2s have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = tn.Parameter(torch.eye(4)), tn.Parameter(torch.zeros(4))


F = torch.ones(4, 4), torch.zeros(4)
COMPLAINTS = {
    "a name on torch's side": (
        lambda: holder(fc=a_linear),
        lambda: tn.ModuleDict({"fc": tn.Linear(4, 4), "extra": tn.Linear(2, 3)}),
        [r"2 of torch's 4 tensors have no place", r"extra\.weight \(3, 2\)", r"ignore_torch=\[\.\.\.\]"],
    ),
    "a leaf on Flax's side": (
        lambda: holder(fc=a_linear, extra=lambda rngs: nnx.Linear(2, 3, rngs=rngs)),
        lambda: tn.ModuleDict({"fc": tn.Linear(4, 4)}),
        [r"2 of Flax's 4 leaves get nothing", r"extra\.kernel \(2, 3\)"],
    ),
    "other names": (
        lambda: holder(head=a_linear),
        lambda: tn.ModuleDict({"classifier": tn.Linear(4, 4)}),
        [
            r"classifier\.weight \(4, 4\); of its sizes are head\.kernel",
            r"nothing of it was done: mapping={'classifier': 'head'}",
        ],
    ),
    "near names": (
        lambda: holder(fc1=a_linear),
        lambda: tn.ModuleDict({"fc_1": tn.Linear(4, 5)}),
        [r"fc_1\.bias \(5,\); near are fc1\.bias"],
    ),
    "another shape": (
        lambda: linear(3, 5),
        lambda: tn.Linear(4, 5),
        [r"weight \(5, 4\) becomes \(4, 5\) in Flax's layout, and kernel is \(3, 5\)"],
    ),
    "a bias that Flax lacks": (
        lambda: linear(use_bias=False),
        lambda: tn.Linear(4, 4),
        [r"1 of torch's 2 tensors", r"bias \(4,\)"],
    ),
    "another class with the same names": (
        lambda: holder(fc=a_linear),
        lambda: tn.ModuleDict({"fc": Conv1D()}),
        [r"fc\.weight belongs to torch's Conv1D, which is no Linear", r"parity\.transposed"],
    ),
    "a square matrix by Flax's name": (
        lambda: holder(fc=a_linear),
        lambda: {"fc.kernel": F[0], "fc.bias": F[1]},
        [r"how torch's fc\.kernel lies is not known"],
    ),
    "a checkpoint": (
        lambda: linear(),
        lambda: {"model": {"weight": F[0]}, "epoch": 3},
        [r"model is a dict, not a tensor", r"source\['model'\]"],
    ),
    "no text": (lambda: linear(), lambda: {1: F[0]}, [r"the key 1 is no text"]),
    "no values": (
        lambda: linear(),
        lambda: tn.Linear(4, 4, device="meta"),
        [r"weight cannot be read: it has no plain values"],
    ),
    "sparse": (
        lambda: linear(),
        lambda: {"weight": F[0].to_sparse(), "bias": F[1]},
        [r"no plain values \(torch.sparse_coo"],
    ),
    "many names": (
        lambda: linear(),
        lambda: {f"x{i}": F[1] for i in range(40)},
        [r"40 of torch's 40", r"and 28 more"],
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", COMPLAINTS)
def test_complaints_name_both_sides_and_nothing_is_loaded(name):
    flax, theirs, messages = COMPLAINTS[name]
    ours = flax()
    before = {path: v.get_raw_value() for path, v in nnx.to_flat_state(nnx.state(ours))}
    with pytest.raises(MatchError) as caught:
        parity.load_torch(ours, theirs())
    for message in messages:
        assert caught.match(message)
    assert isinstance(caught.value, RuntimeError)  # as torch's load_state_dict
    assert all(v.get_raw_value() is before[path] for path, v in nnx.to_flat_state(nnx.state(ours)))


def test_what_is_ignored_must_be_there():
    theirs, ours = (
        tn.ModuleDict({"fc": tn.Linear(4, 4), "head": tn.Linear(4, 9)}),
        holder(fc=a_linear, head=a_linear),
    )
    with pytest.raises(MatchError, match=r"ignore_torch: there is no 'heat'; near are head"):
        parity.load_torch(ours, theirs, ignore_torch=["heat"])
    with pytest.raises(MatchError, match=r"ignore_flax is a list of names; write \['head'\]"):
        parity.load_torch(ours, theirs, ignore_flax="head")
    parity.load_torch(ours, theirs, ignore_torch=["head"], ignore_flax=["head"])
    assert np.array_equal(ours.fc.bias[...], theirs["fc"].bias.detach())
    assert isinstance(ours.head.bias.get_raw_value(), jax.ShapeDtypeStruct)


def test_what_is_no_model():
    with pytest.raises(
        TypeError, match="LinenNet is a Linen module, which only knows its layers when it is called"
    ):
        parity.load_torch(LinenNet(), {})
    with pytest.raises(TypeError, match="is no JAX model"):
        parity.load_torch(tn.Linear(1, 1), tn.Linear(1, 1))
    with pytest.raises(TypeError, match="is no torch module, state_dict or path"):
        parity.load_torch(linear(), 3)
    with pytest.raises(FileError, match=r"nowhere\.pt: it cannot be read"):
        parity.load_torch(linear(), "nowhere.pt")


# --------------------------------------------------------------------------------------------- ties


def embeddings(*names: str, tied: bool) -> tn.Module:
    made = tn.ModuleDict({name: tn.Embedding(4, 4) for name in names})
    if tied:
        made[names[1]].weight = made[names[0]].weight
    return made


class Tied(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.a = nnx.Embed(4, 4, rngs=rngs)
        self.b = nnx.Embed(4, 4, rngs=rngs)
        self.b.embedding = self.a.embedding


def an_embed(rngs: nnx.Rngs) -> nnx.Embed:
    return nnx.Embed(4, 4, rngs=rngs)


def test_tied_on_both_sides():
    theirs = embeddings("a", "b", tied=True)
    ours = parity.load_torch(abstract(Tied), theirs)
    assert ours.a.embedding is ours.b.embedding
    assert np.array_equal(ours.a.embedding[...], theirs["a"].weight.detach())
    assert_same_tensors(parity.to_torch(ours), theirs.state_dict())
    links = links_of(ours, theirs)
    gradient = {"a.weight": np.ones((4, 4))}
    assert links.to_flax(gradient, gradient=True).keys() == {"a.embedding"}
    assert links.to_flax({"b.weight": np.ones((4, 4))}, gradient=True).keys() == {"a.embedding"}


def test_tied_in_torch_and_used_twice_in_flax():
    theirs = embeddings("a", "b", tied=True)
    for name in ("a", "b"):
        ours = parity.load_torch(holder(**{name: an_embed}), theirs)
        assert_same_tensors(parity.to_torch(ours, like=theirs), theirs.state_dict())


def test_tied_on_one_side_only():
    with pytest.raises(
        MatchError, match=r"a\.weight and b\.weight are one tensor in torch, and a\.embedding and b\.emb"
    ):
        parity.load_torch(holder(a=an_embed, b=an_embed), embeddings("a", "b", tied=True))
    mapping = {"a": "a", "b": "b"}
    parity.load_torch(holder(a=an_embed, b=an_embed), embeddings("a", "b", tied=True), mapping=mapping)
    with pytest.raises(
        MatchError, match=r"b\.weight and a\.weight are two tensors in torch and one variable"
    ):
        parity.load_torch(abstract(Tied), embeddings("a", "b", tied=False))


def test_the_first_of_two_tied_tensors_does_not_fit():
    state = {"a.weight": torch.ones(5, 4), "b.weight": torch.ones(4, 4)}
    with pytest.raises(MatchError, match=r"a\.weight \(5, 4\) becomes \(5, 4\) in Flax's layout, and a\.emb"):
        parity.load_torch(abstract(Tied), state)


def test_a_leaf_that_two_parts_make():
    state = {name: x.detach() for name, x in tn.MultiheadAttention(4, 2).named_parameters()}
    state |= {"query.weight": torch.ones(4, 4), "query.bias": torch.ones(4)}
    ours = abstract(lambda rngs: nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs))
    with pytest.raises(MatchError, match=r"query\.weight and in_proj_weight both make query\.kernel"):
        parity.load_torch(ours, state)


def test_copies_of_tied_tensors():
    copies = {"a.weight": torch.ones(4, 4), "b.weight": torch.ones(4, 4)}
    parity.load_torch(abstract(Tied), copies)
    copies["b.weight"][2, 3] = 2
    with pytest.raises(MatchError, match=r"b\.weight is one more tensor for a\.embedding"):
        parity.load_torch(abstract(Tied), copies)


# ------------------------------------------------------------------------- element types and memory

TYPES = ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_bit_for_bit(name):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    bits = np.arange(16 * dtype.itemsize, dtype=np.uint8)  # no NaN, whose bits XLA may change
    weight = bits.view(dtype).reshape(4, 4)
    theirs = tn.Linear(4, 4, bias=False)
    theirs.weight = tn.Parameter(
        torch.tensor(weight.astype(np.float64)).to(getattr(torch, name)), requires_grad=False
    )
    ours = parity.load_torch(linear(use_bias=False, param_dtype=dtype), theirs)
    assert ours.kernel[...].dtype == dtype
    assert np.asarray(ours.kernel[...]).T.tobytes() == weight.tobytes()
    back = parity.to_torch(ours)["weight"]
    assert back.dtype == theirs.weight.dtype
    assert torch.equal(back.view(torch.uint8), theirs.weight.view(torch.uint8))


def test_a_narrower_type_must_lose_nothing():
    exact = {
        "weight": torch.ones(4, 4).double(),
        "bias": torch.tensor([0.5, float("nan"), float("inf"), -0.0]).double(),
    }
    ours = parity.load_torch(linear(), exact)
    assert ours.kernel[...].dtype == jnp.float32
    exact["weight"][1, 1] = 0.1
    with pytest.raises(
        MatchError, match="kernel is float32 in Flax and float64 in torch: 1 of 16 values would change"
    ):
        parity.load_torch(ours, exact)
    assert ours.kernel[1, 1] == 1
    parity.load_torch(ours, exact, lossy=True)
    assert ours.kernel[1, 1] == np.float32(0.1)


def test_the_two_sides_never_share_memory():
    theirs = tn.Linear(64, 64)
    ours = parity.load_torch(linear(64, 64), theirs)
    state = parity.to_torch(ours)
    before = np.array(ours.kernel[...]), np.array(ours.bias[...])
    with torch.no_grad():
        for tensor in (*theirs.parameters(), *state.values()):
            tensor.fill_(7)
    assert np.array_equal(ours.kernel[...], before[0])
    assert np.array_equal(ours.bias[...], before[1])


def test_arrays_stay_where_they_were():
    ours = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    ours.kernel[...] = jax.device_put(ours.kernel[...], jaxpar.device(3))
    parity.load_torch(ours, tn.Linear(4, 4))
    assert ours.kernel[...].devices() == {jaxpar.device(3)}
    assert not ours.bias[...].committed


# ------------------------------------------------------------------------------------ match, links


def test_match_prints_what_can_be_pasted():
    theirs = tn.ModuleDict({"blocks": blocks("q key"), "stem": tn.Conv2d(3, 4, 3), "lone": tn.Linear(2, 2)})
    ours = holder(
        encoder=lambda rngs: Holder({"layers": flax_blocks("q k")(rngs)}),
        first=lambda rngs: nnx.Conv(3, 4, (3, 3), rngs=rngs),
    )
    found = parity.match(ours, theirs)
    assert eval(repr(found)) == found.entries == dict(found)
    assert dict(found) == {
        "blocks.*.q": "encoder.layers.*.q",
        "blocks.*.key": "encoder.layers.*.k",
        "stem": "first",
    }
    assert "# guessed: q all 2 in order with bias (4,), weight (4, 4)" in repr(found)
    assert "# torch lone.weight (2, 2)" in repr(found)
    parity.load_torch(ours, theirs, mapping=found, ignore_torch=["lone"])


def test_match_says_whole_blocks_and_keeps_what_is_known():
    theirs = tn.ModuleDict({"blocks": blocks("q k", 3), "head": tn.Linear(4, 4), "tail": tn.Linear(4, 4)})
    ours = holder(layers=flax_blocks("q k", 3), a=a_linear, b=a_linear)
    assert dict(parity.match(ours, theirs)) == {"blocks": "layers", "head": "a", "tail": "b"}
    known = parity.match(ours, theirs, mapping={"head": "b"})
    assert dict(known) == {"head": "b", "blocks": "layers", "tail": "a"}


def test_match_guesses_nothing_where_the_counts_differ():
    found = parity.match(holder(a=a_linear), tn.ModuleDict({"x": tn.Linear(4, 4), "y": tn.Linear(4, 4)}))
    assert not found
    assert "# torch x.weight (4, 4)" in repr(found)
    assert repr(parity.match(linear(), tn.Linear(4, 4))) == "{}"


def test_links():
    theirs, ours = TorchNet(), flax_net()
    links = links_of(ours, theirs, mapping=FLATTENED)
    layers = {link.flax: link for link in links.layers}
    assert layers["classifier"].torch == "head"
    assert layers["classifier"].rule.torch == "Linear"
    assert layers["blocks.0"].rule is None
    assert dict(theirs.named_modules()).keys() >= {link.torch for link in links.layers}
    assert (("norm.running_var",), ("norm.var",)) in [(part.torch, part.flax) for part in links.parts]
    arrays = {name: x.numpy() for name, x in theirs.state_dict().items()}
    parameters, state = links.parameters(arrays), links.state(arrays)
    assert state.keys() == {"norm.mean", "norm.var"}
    assert parameters.keys() | state.keys() == links.leaves.keys()
    gradients = {name: np.ones(p.shape) for name, p in theirs.named_parameters()}
    ours = links.to_flax(gradients, gradient=True)
    assert ours.keys() == parameters.keys()
    assert np.array_equal(ours["rnn.0.forward_rnn.cell.dense_h.bias"], np.ones(12))
    assert links.to_flax({"conv.bias": np.ones(4)}).keys() == {"conv.bias"}
    back = links.to_torch(ours, gradient=True)
    assert all(np.array_equal(back[name], gradient) for name, gradient in gradients.items())
