"""split, concatenated, stacked and patterns in a mapping: there and back, gradients and verdicts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar import parity
from jaxpar.errors import MatchError
from jaxpar.parity._weights import links_of
from jaxpar.parity._weights.fusion import piece_names
from jaxpar.parity.conversion import Conversion

optax = pytest.importorskip("optax")
torch = pytest.importorskip("torch")
tn = torch.nn

X = np.random.RandomState(0).randn(2, 3, 4)
DEPTH = 3


class Attention(tn.Module):
    """Fused projections, as most torch models have them."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = tn.Linear(4, 12), tn.Linear(4, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(torch.softmax(q @ k.mT, -1) @ v)


class Gated(tn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = tn.Linear(4, 6), tn.Linear(4, 6), tn.Linear(6, 4)

    def forward(self, x):
        return self.down(torch.sigmoid(self.gate(x)) * self.up(x))


class Torch(tn.Module):
    def __init__(self):
        super().__init__()
        blocks = [tn.Sequential(tn.LayerNorm(4), Gated()) for _ in range(DEPTH)]
        self.attn, self.blocks = Attention(), tn.ModuleList(blocks)

    def forward(self, x):
        x = self.attn(x)
        for block in self.blocks:
            x = x + block(x)
        return x


def linear(into: int, out: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(into, out, rngs=rngs)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(4, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.gate_up, self.down = linear(4, 12, rngs), linear(6, 4, rngs)

    def __call__(self, x):
        gate, up = jnp.split(self.gate_up(self.norm(x)), 2, -1)
        return x + self.down(nnx.sigmoid(gate) * up)


class Flax(nnx.Module):
    """Three projections, a fused gate, and all blocks in one."""

    def __init__(self, factor=1.0, rngs=None):
        rngs = rngs or nnx.Rngs(0)
        self.query, self.key, self.value = (linear(4, 4, rngs) for _ in range(3))
        self.out, self.factor = linear(4, 4, rngs), factor
        self.layers = nnx.vmap(Block, in_axes=0, out_axes=0)(rngs.split(DEPTH))

    def __call__(self, x):
        weights = nnx.softmax(self.query(x) @ self.key(x).swapaxes(-1, -2), -1)
        x = self.out(weights @ self.value(x)) * self.factor
        return nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers)


MAPPING: dict[Any, Any] = {
    "attn.qkv": parity.split(0, ("query", "key", "value")),
    "attn.proj": "out",
    "blocks": parity.stacked("layers"),
    "blocks.*.0": "layers.*.norm",
    ("blocks.*.1.gate", "blocks.*.1.up"): parity.concatenated(0, "layers.*.gate_up"),
    "blocks.*.1.down": "layers.*.down",
}


def model(seed: int = 0) -> Torch:
    torch.manual_seed(seed)
    return Torch()


def assert_same_tensors(got: dict, want: dict) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor), name


# ----------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("wrap", [lambda net: net, tn.DataParallel, lambda net: net.state_dict()])
def test_there_and_back(wrap):
    theirs = model()
    given_ = wrap(theirs)
    ours = parity.load_torch(nnx.eval_shape(Flax), given_, mapping=MAPPING)
    assert np.array_equal(ours.key.kernel[...], theirs.attn.qkv.weight[4:8].detach().numpy().T)
    assert np.array_equal(ours.layers.down.bias[1], theirs.blocks[1][1].down.bias.detach().numpy())
    state = getattr(given_, "state_dict", lambda: given_)()
    assert_same_tensors(parity.to_torch(ours, like=given_, mapping=MAPPING), state)
    assert_same_tensors(parity.to_torch(ours, mapping=MAPPING), theirs.state_dict())


@pytest.mark.full
def test_outputs_gradients_and_training():
    sgd = (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), optax.sgd(0.1, momentum=0.9))
    found = parity.compare(model(), Flax(), X, mapping=MAPPING, optimizer=sgd, steps=3)
    assert found.same, str(found)
    names = {(row.difference.kind.value, row.difference.name) for row in found.rows}
    assert {("gradient", "key.kernel"), ("weight", "layers.gate_up.kernel")} <= names


SWAPPED = [
    {"attn.qkv": parity.split(0, ("key", "query", "value"))},
    {"attn.qkv": parity.split(0, ("query", "key", "value"), groups=2)},
    {("blocks.*.1.up", "blocks.*.1.gate"): parity.concatenated(0, "layers.*.gate_up")},
    {("blocks.1", "blocks.0", "blocks.2"): parity.stacked("layers")},
]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("planted", SWAPPED)
def test_pieces_in_another_order_are_another_model(planted):
    gone = {("blocks.*.1.gate", "blocks.*.1.up")} if any(len(k) == 2 for k in planted) else set()
    gone |= {"blocks"} if any(len(k) == 3 for k in planted) else set()
    mapping = {key: place for key, place in MAPPING.items() if key not in gone} | planted
    if "blocks" in gone:
        order = (1, 0, 2)
        mapping = {k: v for k, v in mapping.items() if "*" not in str(k)}
        for place, i in enumerate(order):
            mapping |= {
                f"blocks.{i}.0": f"layers.{place}.norm",
                (f"blocks.{i}.1.gate", f"blocks.{i}.1.up"): parity.concatenated(0, f"layers.{place}.gate_up"),
                f"blocks.{i}.1.down": f"layers.{place}.down",
            }
    found = parity.compare(model(), Flax(), X, mapping=mapping)
    assert not found.same


@pytest.mark.full
def test_a_fault_beside_fused_layers_is_placed():
    found = parity.compare(model(), Flax(factor=1.001), X, mapping=MAPPING)
    assert not found.same
    assert "out" in found.divergence.where


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x, _):
        return jnp.tanh(linen.Dense(4, name="fc")(x)), None


class LinenNet(linen.Module):
    axis: int = 0

    @linen.compact
    def __call__(self, x):
        scan = linen.scan(
            LinenBlock, variable_axes={"params": self.axis}, split_rngs={"params": True}, length=DEPTH
        )
        return scan(name="layers")(x, None)[0]


@pytest.mark.full
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_linens_scan(axis):
    theirs = tn.Sequential(*(m for _ in range(DEPTH) for m in (tn.Linear(4, 4), tn.Tanh())))
    keys = tuple(str(2 * i) for i in range(DEPTH))
    mapping = {keys: parity.stacked("layers", axis)} | {key: f"layers.{i}.fc" for i, key in enumerate(keys)}
    shapes = (jax.ShapeDtypeStruct((2, 4), jnp.float32),)
    net = LinenNet(axis)
    variables = parity.load_torch(net, theirs, mapping=mapping, inputs=shapes)
    kernel = np.moveaxis(np.asarray(variables["params"]["layers"]["fc"]["kernel"]), axis, 0)
    assert np.array_equal(kernel[1], theirs[2].weight.detach().numpy().T)
    back = parity.to_torch(net, mapping=mapping, inputs=shapes, variables=variables)
    assert_same_tensors(back, theirs.state_dict())
    assert parity.compare(theirs, net, X, mapping=mapping).same
    wrong = mapping | {keys[0]: "layers.1.fc", keys[1]: "layers.0.fc"}
    assert not parity.compare(theirs, net, X, mapping=wrong).same


def test_torchs_packed_projection_in_three_layers():
    theirs = tn.ModuleDict({"attn": tn.MultiheadAttention(4, 2)})

    class Ours(nnx.Module):
        def __init__(self, rngs):
            self.q, self.k, self.v, self.o = (linear(4, 4, rngs) for _ in range(4))

    mapping = {
        "attn.in_proj_weight": parity.split(0, ("q.kernel", "k.kernel", "v.kernel")),
        "attn.in_proj_bias": parity.split(0, ("q.bias", "k.bias", "v.bias")),
        "attn.out_proj": "o",
    }
    ours = parity.load_torch(nnx.eval_shape(lambda: Ours(nnx.Rngs(0))), theirs, mapping=mapping)
    weight = theirs["attn"].in_proj_weight.detach().numpy()
    assert np.array_equal(ours.k.kernel[...], weight[4:8].T)
    assert_same_tensors(parity.to_torch(ours, mapping=mapping), theirs.state_dict())


def test_pieces_of_other_lengths():
    """Fewer heads for keys and values: Flax's layers say how long the pieces are."""
    theirs = tn.ModuleDict({"qkv": tn.Linear(4, 8)})
    ours = holder(q=(4, 4), k=(4, 2), v=(4, 2))
    mapping = {"qkv": parity.split(0, ("q", "k", "v"))}
    parity.load_torch(ours, theirs, mapping=mapping)
    assert np.array_equal(ours.v.bias[...], theirs["qkv"].bias.detach().numpy()[6:])
    whole = holder(qkv=(4, 8))
    parts = tn.ModuleDict({"q": tn.Linear(4, 4), "k": tn.Linear(4, 2), "v": tn.Linear(4, 2)})
    mapping = {("q", "k", "v"): parity.concatenated(0, "qkv", sizes=(4, 2, 2))}
    parity.load_torch(whole, parts, mapping=mapping)
    assert_same_tensors(parity.to_torch(whole, mapping=mapping), parts.state_dict())
    with pytest.raises(MatchError, match=r"q\+k\+v\.weight \(8, 4\) cannot become q, k, v: axis 0 has 8"):
        parity.to_torch(whole, mapping={("q", "k", "v"): parity.concatenated(0, "qkv")})


def test_heads_that_hold_their_q_k_and_v_side_by_side():
    theirs = tn.ModuleDict({"qkv": tn.Linear(4, 12)})
    ours = holder(q=(4, 4), k=(4, 4), v=(4, 4))
    mapping = {"qkv": parity.split(0, ("q", "k", "v"), groups=2)}
    parity.load_torch(ours, theirs, mapping=mapping)
    heads = theirs["qkv"].weight.detach().numpy().reshape(2, 3, 2, 4)
    assert np.array_equal(ours.k.kernel[...], heads[:, 1].reshape(4, 4).T)
    assert_same_tensors(parity.to_torch(ours, mapping=mapping), theirs.state_dict())


def test_shards_of_tied_tables_stay_tied():
    class Sharded(tn.Module):
        def __init__(self):
            super().__init__()
            self.shards = tn.ModuleList([tn.Embedding(3, 4), tn.Embedding(2, 4)])
            self.heads = tn.ModuleList([tn.Linear(4, 3, bias=False), tn.Linear(4, 2, bias=False)])
            for shard, head in zip(self.shards, self.heads, strict=True):
                head.weight = shard.weight

    mapping = {
        ("shards.0", "shards.1"): parity.concatenated(0, "embed"),
        ("heads.0", "heads.1"): parity.concatenated(0, "embed"),
    }
    theirs = Sharded()
    ours = nnx.eval_shape(lambda: nnx.Dict({"embed": nnx.Embed(5, 4, rngs=nnx.Rngs(0))}))
    mapping[("heads.0.weight", "heads.1.weight")] = parity.concatenated(
        0, parity.transposed("embed.embedding", (0, 1))
    )
    del mapping[("heads.0", "heads.1")]
    parity.load_torch(ours, theirs, mapping=mapping)
    assert_same_tensors(parity.to_torch(ours, like=theirs, mapping=mapping), theirs.state_dict())
    theirs.heads[0].weight = tn.Parameter(torch.ones(3, 4))
    with pytest.raises(MatchError, match="two tensors in torch and one variable in Flax"):
        parity.load_torch(ours, theirs, mapping=mapping)


def holder(**sizes: tuple[int, int]) -> Any:
    return nnx.eval_shape(
        lambda: nnx.Dict({name: linear(*size, nnx.Rngs(0)) for name, size in sizes.items()})
    )


# ---------------------------------------------------------------------------------------------- laws

SIZE = st.integers(1, 3)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(pieces=st.lists(SIZE, min_size=2, max_size=4), groups=SIZE, into=SIZE, axis=st.sampled_from([0, -2]))
def test_split_there_and_back(pieces, groups, into, axis):
    lengths = [size * groups for size in pieces]
    names = [f"p{i}" for i in range(len(pieces))]
    theirs = tn.ModuleDict({"whole": tn.Linear(into, sum(lengths), bias=axis == 0)})
    makers = {name: (into, length) for name, length in zip(names, lengths, strict=True)}
    ours = nnx.eval_shape(
        lambda: nnx.Dict(
            {n: nnx.Linear(*size, use_bias=axis == 0, rngs=nnx.Rngs(0)) for n, size in makers.items()}
        )
    )
    mapping = {"whole": parity.split(axis, names, groups=groups)}
    parity.load_torch(ours, theirs, mapping=mapping)
    assert_same_tensors(parity.to_torch(ours, mapping=mapping), theirs.state_dict())
    blocks = np.split(theirs["whole"].weight.detach().numpy(), groups)
    starts = np.cumsum([0, *pieces])
    for i, name in enumerate(names):
        rows = np.concatenate([block[starts[i] : starts[i + 1]] for block in blocks])
        assert np.array_equal(ours[name].kernel[...], rows.T)
    gradient_there_and_back(ours, theirs, mapping)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(count=st.integers(1, 4), into=SIZE, out=SIZE, sizes=st.lists(SIZE, min_size=1, max_size=3))
def test_stacked_and_concatenated_there_and_back(count, into, out, sizes):
    parts = [f"p{i}" for i in range(len(sizes))]
    theirs = tn.ModuleDict(
        {
            "blocks": tn.ModuleList([tn.Conv2d(into, out, (1, 2)) for _ in range(count)]),
            **{name: tn.Linear(into, size) for name, size in zip(parts, sizes, strict=True)},
        }
    )

    def make() -> Any:
        conv = nnx.vmap(lambda rngs: nnx.Conv(into, out, (1, 2), rngs=rngs))
        return nnx.Dict(
            {"scan": conv(nnx.Rngs(0).split(count)), "whole": linear(into, sum(sizes), nnx.Rngs(0))}
        )

    ours = nnx.eval_shape(make)
    mapping = {
        "blocks": parity.stacked("scan"),
        tuple(parts): parity.concatenated(0, "whole", sizes=sizes),
    }
    parity.load_torch(ours, theirs, mapping=mapping)
    assert_same_tensors(parity.to_torch(ours, mapping=mapping), theirs.state_dict())
    want = [b.weight.detach().numpy().transpose(2, 3, 1, 0) for b in theirs["blocks"]]
    assert np.array_equal(ours["scan"].kernel[...], np.stack(want))
    gradient_there_and_back(ours, theirs, mapping)


def gradient_there_and_back(ours: Any, theirs: Any, mapping: Any) -> None:
    links = links_of(ours, theirs, mapping=mapping)
    gradients = {name: np.random.RandomState(1).randn(*p.shape) for name, p in theirs.named_parameters()}
    there = links.to_flax(gradients, gradient=True)
    assert {path: x.shape for path, x in there.items()} == {p: x.shape for p, x in links.leaves.items()}
    back = links.to_torch(there, gradient=True)
    assert back.keys() == gradients.keys()
    assert all(np.array_equal(back[name], x) for name, x in gradients.items())


# ---------------------------------------------------------------------------------------- complaints

WRONG = {
    "no such name": ({"qkw": parity.split(0, ("q", "k"))}, "mapping: torch has no 'qkw'"),
    "no such piece": ({("qkv", "w"): parity.concatenated(0, "q")}, "mapping: torch has no 'w'"),
    "no such place": ({"qkv": parity.split(0, ("q", "kk", "v"))}, "the Flax model has no 'kk'; near are k"),
    "sizes": (
        {"qkv": parity.split(0, ("q", "k", "v"), sizes=(4, 4, 5))},
        r"qkv\.weight \(12, 4\) cannot be split: axis 0 has 12, which is not 4 \+ 4 \+ 5",
    ),
    "axis": (
        {"qkv": parity.split(2, ("q", "k", "v"))},
        r"qkv\.weight \(12, 4\) cannot be split: it has no axis 2",
    ),
    "axis of a join": ({("qkv", "x"): parity.concatenated(2, "q")}, r"have no axis 2 to be joined along"),
    "one key": ({"qkv": parity.concatenated(0, "q")}, "is of several torch names; write a tuple"),
    "many keys": ({("qkv", "x"): parity.split(0, ("q", "k"))}, "split is of one torch name"),
    "many keys and a path": ({("qkv", "x"): "q"}, "several names become one by concatenated or stacked"),
    "nothing to stack": ({"x": parity.stacked("y")}, "the Flax model has nothing below 'y'"),
    "another length": ({"x": parity.stacked("s")}, r"axis 0 is not of one length in s\.bias \(4,\), s\.ker"),
    "what is not stacked": ({"x": parity.stacked("q")}, r"x\.weight \(2, 4\)"),
    "an order that does not fit": ({"qkv": parity.split(0, ("q", "k"))}, r"Flax's 8 leaves get nothing"),
    "a pattern without a match": ({"h.*.fc": "g.*.fc"}, r"mapping: torch has no 'h\.\*\.fc'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_in_a_mapping(name):
    mapping, message = WRONG[name]
    theirs = tn.ModuleDict({"qkv": tn.Linear(4, 12), "x": tn.Linear(4, 2)})
    with pytest.raises(MatchError, match=message):
        parity.load_torch(holder(q=(4, 4), k=(4, 4), v=(4, 4), s=(2, 4)), theirs, mapping=mapping)


@pytest.mark.parametrize("call", [
    lambda: parity.split(0, "q"), lambda: parity.split(0, ("q",)),
    lambda: parity.split(0, ("q", "k"), sizes=(1,)), lambda: parity.split(0, ("q", "k"), sizes=(1, 0)),
    lambda: parity.split(0, ("q", "k"), groups=0),
    lambda: parity.concatenated(0, "q", sizes=(3, 3), groups=2),
])  # fmt: skip
def test_values_that_mean_nothing(call):
    with pytest.raises(ValueError, match=r"split: |concatenated: "):
        call()


def test_a_mapping_prints_as_it_is_written():
    found = parity.match(nnx.eval_shape(Flax), model(), mapping=MAPPING)
    assert dict(found) == MAPPING
    assert eval(repr(found)) == MAPPING
    assert not found.unmatched
    cut = parity.split(0, ("a", "b"), sizes=(2, 4), groups=2), parity.stacked("c", 1)
    assert eval(repr(cut)) == cut


def test_a_file_in_flax_layout():
    theirs = model()
    conversion = Conversion(nnx.eval_shape(Flax), mapping=MAPPING)
    arrays = conversion.to_flax(theirs.state_dict())
    assert arrays["layers.gate_up.kernel"].shape == (DEPTH, 4, 12)
    back = conversion.to_torch(arrays)
    assert all(np.array_equal(back[n], x.numpy()) for n, x in theirs.state_dict().items())


@pytest.mark.parametrize(
    ("path", "suffix", "names"),
    [
        ("block.qkv", "weight", ("block.qkv[0].weight", "block.qkv[1].weight")),
        ("block.table", "", ("block[0].table", "block[1].table")),
        ("block.attn.in_proj_weight", "", ("block.attn.in_proj[0].weight", "block.attn.in_proj[1].weight")),
    ],
)
def test_pieces_are_named_after_their_whole(path, suffix, names):
    assert piece_names(path, suffix, 2) == names
