"""The rulebook: with its rows a layer of torch and its layer in Flax compute the same, both ways."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers, assert_equal_trees
from flax import linen, nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxpar
from jaxpar._rulebook import ROWS, Part, Rule, rule_for
from jaxpar.errors import MatchError

torch = pytest.importorskip("torch")

F64: dict[str, Any] = {"param_dtype": jnp.float64}


def nnx_layer(kind: type, *args: Any, **kwargs: Any) -> nnx.Module:
    return kind(*args, **F64, **kwargs, rngs=nnx.Rngs(0))


@dataclass(frozen=True)
class Case:
    """A layer of torch, its layer in Flax, and torch's input.

    `call` and `torch_call` say how a layer is called that is not called with x alone.
    """

    torch: Callable[[], Any]
    flax: Callable[[], Any]
    shape: tuple[int, ...]
    call: Callable[..., Any] = lambda layer, x: layer(x)
    torch_call: Callable[..., Any] = lambda layer, x: layer(x)
    integers: int = 0
    shapes: dict[str, tuple[int, ...]] | None = None
    """Of the kernel, for the one row that needs them."""

    def layer_and_rule(self) -> tuple[Any, Rule]:
        layer = self.flax()
        return layer, rule_for(layer, self.shapes)


def cell(states: int) -> dict[str, Callable[..., Any]]:
    """How cells are called: Flax's with (c, h) and x, torch's with x and (h, c). No state is 0, since a
    state of zeros hides its weights."""
    h = lambda x: x[:, np.array([0, 1, 2, 0])]  # noqa: E731
    c = lambda x: x[:, np.array([2, 2, 1, 0])]  # noqa: E731
    if states == 1:
        return {"call": lambda f, x: f(h(x), x)[1], "torch_call": lambda t, x: t(x, h(x))}
    return {
        "call": lambda f, x: f((c(x), h(x)), x)[1],
        "torch_call": lambda t, x: t(x, (h(x), c(x)))[0],
    }


# With a dropout rate of 0 nnx calls jax.nn.dot_product_attention, whose softmax is always float32.
NNX_FLOAT64 = {"dropout_rate": 0.5, "deterministic": True, "decode": False}
SELF_ATTENTION: dict[str, Callable[..., Any]] = {
    "torch_call": lambda t, x: t(x, x, x, need_weights=False)[0],
}
CROSS_ATTENTION: dict[str, Callable[..., Any]] = {
    "call": lambda f, x: f(x, x[..., :5], x[..., :5]),
    "torch_call": lambda t, x: t(x, x[..., :5], x[..., :5], need_weights=False)[0],
}
FIRST: dict[str, Callable[..., Any]] = {"torch_call": lambda t, x: t(x)[0]}
nn = torch.nn

CASES = {
    "nnx.Linear": Case(lambda: nn.Linear(3, 4), lambda: nnx_layer(nnx.Linear, 3, 4), (2, 3)),
    "nnx.Linear without bias": Case(
        lambda: nn.Linear(3, 3, bias=False), lambda: nnx_layer(nnx.Linear, 3, 3, use_bias=False), (2, 3)
    ),
    "linen.Dense": Case(lambda: nn.Linear(3, 4), lambda: linen.Dense(4, **F64), (2, 3)),
    "nnx.LinearGeneral": Case(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 20), nn.Unflatten(1, (4, 5))),
        lambda: nnx_layer(nnx.LinearGeneral, (2, 3), (4, 5), axis=(-2, -1)),
        (2, 2, 3),
    ),
    "linen.DenseGeneral": Case(
        lambda: nn.Sequential(nn.Linear(6, 20), nn.Unflatten(1, (4, 5))),
        lambda: linen.DenseGeneral((4, 5), **F64),
        (2, 6),
    ),
    "linen.DenseGeneral over two axes": Case(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5)),
        lambda: linen.DenseGeneral(5, axis=(-2, -1), **F64),
        (2, 2, 3),
        shapes={"kernel": (2, 3, 5)},
    ),
    "nnx.Conv": Case(
        lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, dilation=(1, 2), groups=2),
        lambda: nnx_layer(
            nnx.Conv, 4, 6, (3, 2), 2, padding=1, kernel_dilation=(1, 2), feature_group_count=2
        ),
        (2, 4, 7, 6),
    ),
    "nnx.Conv 1d": Case(
        lambda: nn.Conv1d(4, 6, 3), lambda: nnx_layer(nnx.Conv, 4, 6, 3, padding="VALID"), (2, 4, 7)
    ),
    "nnx.Conv 3d": Case(
        lambda: nn.Conv3d(2, 3, (1, 2, 3)),
        lambda: nnx_layer(nnx.Conv, 2, 3, (1, 2, 3), padding="VALID"),
        (2, 2, 3, 3, 4),
    ),
    "linen.Conv": Case(
        lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False),
        lambda: linen.Conv(4, (3, 3), padding="VALID", feature_group_count=4, use_bias=False, **F64),
        (2, 4, 5, 6),
    ),
    "nnx.ConvTranspose": Case(
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=2, padding=1, output_padding=1),
        lambda: nnx_layer(
            nnx.ConvTranspose, 4, 6, (3, 2), 2, padding=[(1, 2), (0, 1)], transpose_kernel=True
        ),
        (2, 4, 3, 4),
    ),
    "nnx.ConvTranspose, kernel not transposed": Case(
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=2),
        lambda: nnx_layer(nnx.ConvTranspose, 4, 6, (3, 2), 2, padding=[(2, 2), (1, 1)]),
        (2, 4, 3, 4),
    ),
    "linen.ConvTranspose": Case(
        lambda: nn.ConvTranspose1d(4, 6, 3, bias=False),
        lambda: linen.ConvTranspose(6, (3,), padding=[(2, 2)], transpose_kernel=True, use_bias=False, **F64),
        (2, 4, 5),
    ),
    "nnx.Embed": Case(lambda: nn.Embedding(7, 3), lambda: nnx_layer(nnx.Embed, 7, 3), (2, 5), integers=7),
    "linen.Embed": Case(lambda: nn.Embedding(7, 3), lambda: linen.Embed(7, 3, **F64), (2, 5), integers=7),
    "nnx.BatchNorm": Case(
        lambda: nn.BatchNorm2d(3).eval(),
        lambda: nnx_layer(nnx.BatchNorm, 3, use_running_average=True),
        (2, 3, 4, 2),
    ),
    "linen.BatchNorm": Case(
        lambda: nn.BatchNorm1d(3).eval(),
        lambda: linen.BatchNorm(use_running_average=True, **F64),
        (2, 3, 4),
    ),
    "jaxpar.nn.BatchNorm": Case(
        lambda: nn.BatchNorm2d(3), lambda: jaxpar.nn.BatchNorm(3, **F64), (2, 3, 4, 2)
    ),
    "nnx.LayerNorm": Case(lambda: nn.LayerNorm(5, eps=1e-6), lambda: nnx_layer(nnx.LayerNorm, 5), (2, 3, 5)),
    "linen.LayerNorm over two axes": Case(
        lambda: nn.LayerNorm((3, 5), eps=1e-6),
        lambda: linen.LayerNorm(reduction_axes=(-2, -1), feature_axes=(-2, -1), **F64),
        (2, 3, 5),
    ),
    "nnx.GroupNorm": Case(
        lambda: nn.GroupNorm(2, 4, eps=1e-6), lambda: nnx_layer(nnx.GroupNorm, 4, num_groups=2), (2, 4, 3, 3)
    ),
    "linen.GroupNorm": Case(
        lambda: nn.GroupNorm(2, 4, eps=1e-6), lambda: linen.GroupNorm(2, **F64), (2, 4, 3)
    ),
    "nnx.InstanceNorm": Case(
        lambda: nn.InstanceNorm2d(3, eps=1e-6, affine=True),
        lambda: nnx_layer(nnx.InstanceNorm, 3),
        (2, 3, 4, 4),
    ),
    "linen.InstanceNorm": Case(
        lambda: nn.InstanceNorm1d(3, eps=1e-6, affine=True), lambda: linen.InstanceNorm(**F64), (2, 3, 4)
    ),
    "nnx.RMSNorm": Case(lambda: nn.RMSNorm(5, eps=1e-6), lambda: nnx_layer(nnx.RMSNorm, 5), (2, 5)),
    "linen.RMSNorm": Case(lambda: nn.RMSNorm(5, eps=1e-6), lambda: linen.RMSNorm(**F64), (2, 5)),
    "nnx.PReLU": Case(nn.PReLU, lambda: nnx.PReLU(**F64), (2, 5)),
    "linen.PReLU": Case(nn.PReLU, lambda: linen.PReLU(**F64), (2, 5)),
    "nnx.MultiHeadAttention": Case(
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda: nnx_layer(nnx.MultiHeadAttention, 2, 8, **NNX_FLOAT64),
        (2, 3, 8),
        **SELF_ATTENTION,
    ),
    "nnx.MultiHeadAttention with kdim": Case(
        lambda: nn.MultiheadAttention(8, 2, kdim=5, vdim=5, bias=False, batch_first=True),
        lambda: nnx_layer(nnx.MultiHeadAttention, 2, 8, in_kv_features=5, use_bias=False, **NNX_FLOAT64),
        (2, 3, 8),
        **CROSS_ATTENTION,
    ),
    "linen.MultiHeadAttention": Case(
        lambda: nn.MultiheadAttention(8, 4, kdim=5, vdim=5, batch_first=True),
        lambda: linen.MultiHeadAttention(4, **F64),
        (2, 3, 8),
        **CROSS_ATTENTION,
    ),
    "linen.MultiHeadDotProductAttention": Case(
        lambda: nn.MultiheadAttention(8, 4, batch_first=True),
        lambda: linen.MultiHeadDotProductAttention(4, **F64),
        (2, 3, 8),
        call=lambda layer, x: layer(x, x),
        torch_call=SELF_ATTENTION["torch_call"],
    ),
    "nnx.OptimizedLSTMCell": Case(
        lambda: nn.LSTMCell(3, 4), lambda: nnx_layer(nnx.OptimizedLSTMCell, 3, 4), (2, 3), **cell(2)
    ),
    "nnx.LSTMCell": Case(lambda: nn.LSTMCell(3, 4), lambda: nnx_layer(nnx.LSTMCell, 3, 4), (2, 3), **cell(2)),
    "linen.OptimizedLSTMCell": Case(
        lambda: nn.LSTMCell(3, 4), lambda: linen.OptimizedLSTMCell(4, **F64), (2, 3), **cell(2)
    ),
    "linen.LSTMCell": Case(lambda: nn.LSTMCell(3, 4), lambda: linen.LSTMCell(4, **F64), (2, 3), **cell(2)),
    "linen.GRUCell": Case(lambda: nn.GRUCell(3, 4), lambda: linen.GRUCell(4, **F64), (2, 3), **cell(1)),
    "nnx.SimpleCell": Case(
        lambda: nn.RNNCell(3, 4),
        lambda: nnx_layer(nnx.SimpleCell, 3, 4, dtype=jnp.float64),
        (2, 3),
        **cell(1),
    ),
    "linen.SimpleCell": Case(lambda: nn.RNNCell(3, 4), lambda: linen.SimpleCell(4, **F64), (2, 3), **cell(1)),
    "nnx.RNN": Case(
        lambda: nn.LSTM(3, 4, batch_first=True),
        lambda: nnx.RNN(nnx_layer(nnx.OptimizedLSTMCell, 3, 4)),
        (2, 5, 3),
        **FIRST,
    ),
    "nnx.Bidirectional": Case(
        lambda: nn.RNN(3, 4, batch_first=True, bidirectional=True),
        lambda: nnx.Bidirectional(
            *(nnx.RNN(nnx_layer(nnx.SimpleCell, 3, 4, dtype=jnp.float64)) for _ in range(2))
        ),
        (2, 5, 3),
        **FIRST,
    ),
}


def torch_leaves(layer: Any) -> tuple[dict[str, np.ndarray], Any]:
    """The state_dict of the layer itself, where the case put reshapes around it."""
    own = (
        next((m for m in layer if list(m.parameters())), layer) if isinstance(layer, nn.Sequential) else layer
    )
    return {name: x.detach().numpy().copy() for name, x in own.state_dict().items()}, own


def flat(tree: Any) -> dict[str, np.ndarray]:
    """NNX states and Linen collections by path."""
    if isinstance(tree, nnx.State):
        return {".".join(map(str, path)): np.asarray(x[...]) for path, x in nnx.to_flat_state(tree)}
    return {".".join(key.key for key in path): np.asarray(x) for path, x in jax.tree.leaves_with_path(tree)}


def run_flax(case: Case, layer: Any, rule: Rule, arrays: dict[str, np.ndarray], x: np.ndarray):
    """The leaves' shapes as Flax has them, the leaves that the rule gives, outputs, gradients."""
    weights = lambda y: (y * jnp.cos(jnp.arange(y.size)).reshape(y.shape)).sum()  # noqa: E731
    if isinstance(layer, nnx.Module):
        graph, parameters, rest = nnx.split(layer, nnx.Param, ...)
        shapes = {name: leaf.shape for name, leaf in flat(nnx.state(layer, nnx.Not(nnx.RngState))).items()}
        leaves = rule.to_flax(arrays)

        def fill(state: Any) -> Any:
            return nnx.from_flat_state(
                [
                    (path, v.replace(leaves.get(".".join(map(str, path)), v[...])))
                    for path, v in nnx.to_flat_state(state)
                ]
            )

        parameters, rest = fill(parameters), fill(rest)
        compute = lambda p, x: case.call(nnx.merge(graph, p, rest, copy=True), x)  # noqa: E731
    else:
        variables = layer.init(jax.random.key(0), x, method=lambda m, x: case.call(m, x))
        shapes = {
            name: leaf.shape for collection in variables.values() for name, leaf in flat(collection).items()
        }
        leaves = rule.to_flax(arrays)

        def path_of(path: Any) -> str:
            return ".".join(key.key for key in path[1:])

        variables = jax.tree.map_with_path(lambda path, _: leaves[path_of(path)], variables)
        parameters = variables.pop("params")
        compute = lambda p, x: layer.apply(  # noqa: E731
            {"params": p, **variables}, x, method=lambda m, x: case.call(m, x)
        )
    outputs, gradients = jax.jit(lambda p, x: (compute(p, x), jax.grad(lambda p: weights(compute(p, x)))(p)))(
        parameters, x
    )
    return shapes, leaves, np.asarray(outputs), flat(gradients)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name):
    case = CASES[name]
    torch.manual_seed(0)
    theirs = case.torch().double()
    for buffer in theirs.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 2)
    random = np.random.RandomState(0)
    x = random.randint(0, case.integers, case.shape) if case.integers else random.randn(*case.shape)
    arrays, own = torch_leaves(theirs)
    want = case.torch_call(theirs, torch.tensor(x))
    layer, rule = case.layer_and_rule()
    last = rule.channels == "last"
    shapes, leaves, outputs, gradients = run_flax(
        case, layer, rule, arrays, np.moveaxis(x, 1, -1) if last else x
    )
    assert type(own).__name__ in rule.kinds
    assert {path: leaf.shape for path, leaf in leaves.items()} == shapes
    assert rule.torch_shapes(shapes) == {n: a.shape for n, a in arrays.items() if n not in rule.surplus}
    ours = np.moveaxis(outputs, -1, 1) if last else outputs
    assert_equal_numbers("outputs", ours, want.detach().numpy())

    factors = np.cos(np.arange(outputs.size)).reshape(outputs.shape)
    (want * torch.tensor(np.moveaxis(factors, -1, 1).copy() if last else factors)).sum().backward()
    theirs_gradients = {n: p.grad.numpy() for n, p in own.named_parameters()}
    back = rule.to_torch(gradients, gradient=True)
    forth = rule.to_flax(theirs_gradients, gradient=True)
    for noise in (gradients, forth):  # softmax does not see a bias of all keys: the true gradient is 0
        assert np.abs(noise.pop("key.bias", 0)).max() < 1e-14
    assert_equal_trees("gradients", gradients, forth)
    if "in_proj_bias" in back:
        for noise in (back, theirs_gradients):
            noise["in_proj_bias"] = np.delete(noise["in_proj_bias"], np.s_[8:16])
    assert_equal_trees("gradients in torch", back, theirs_gradients)


@pytest.mark.parametrize("name", CASES)
def test_there_and_back_is_exact(name):
    case = CASES[name]
    arrays, _ = torch_leaves(case.torch())
    rule = case.layer_and_rule()[1]
    leaves = rule.to_flax(arrays)
    back = rule.to_torch(leaves)
    assert back.keys() | rule.surplus.keys() == arrays.keys()
    for key, value in back.items():
        merged = [part for part in rule.parts if key in part.torch and len(part.torch) > 1]
        if not merged:
            assert value.dtype == arrays[key].dtype
            assert np.array_equal(value, arrays[key]), key
    again = rule.to_flax(back)
    assert again.keys() == leaves.keys()
    for path, leaf in leaves.items():
        assert np.array_equal(again[path], leaf), path


# torch: merged biases train twice as fast, so only the values' sum is Flax's.
def test_merged_biases():
    rule = rule_for(nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0)))
    a, b = np.arange(16.0), np.ones(16)
    assert np.array_equal(rule.to_flax({"bias_ih": a, "bias_hh": b})["dense_h.bias"], a + 1)
    assert np.array_equal(rule.to_flax({"bias_ih": a, "bias_hh": a}, gradient=True)["dense_h.bias"], a)
    values = rule.to_torch({"dense_h.bias": a})
    assert np.array_equal(values["bias_ih"], a)
    assert not values["bias_hh"].any()
    gradients = rule.to_torch({"dense_h.bias": a}, gradient=True)
    assert np.array_equal(gradients["bias_ih"], a)
    assert np.array_equal(gradients["bias_hh"], a)


def test_nnx_gru_has_no_place_for_b_hn():
    rule = rule_for(nnx.GRUCell(3, 2, rngs=nnx.Rngs(0)))
    a, b = np.arange(6.0), np.array([1.0, 2, 3, 4, 0, 0])
    assert np.array_equal(rule.to_flax({"bias_ih": a, "bias_hh": b})["dense_i.bias"], a + b)
    b[5] = -0.25
    with pytest.raises(
        MatchError, match=r"bias_hh\[4:6\], torch's b_hn, is not 0 \(largest magnitude 0\.25\)"
    ):
        rule.to_flax({"bias_ih": a, "bias_hh": b})
    gradients = rule.to_torch({"dense_i.bias": a}, gradient=True)
    assert np.array_equal(gradients["bias_hh"], [0, 1, 2, 3, 0, 0])


@pytest.mark.full
def test_layers_without_a_row():
    assert rule_for(nnx.Einsum("ab,bc->ac", (2, 3), rngs=nnx.Rngs(0))) is None
    assert rule_for(linen.ConvLSTMCell(3, (3,))) is None
    assert rule_for(nnx.MultiHeadAttention(4, 8, num_kv_heads=2, rngs=nnx.Rngs(0))) is None
    assert rule_for(nnx.SimpleCell(2, 3, residual=True, rngs=nnx.Rngs(0))) is None
    assert rule_for(nnx.LinearGeneral(2, 3, batch_axis={0: 4}, rngs=nnx.Rngs(0))) is None
    assert rule_for(object()) is None


def test_a_slope_for_each_channel_has_no_place():
    with pytest.raises(ValueError, match="reshape"):
        rule_for(nnx.PReLU()).to_flax({"weight": np.zeros(3)})


def test_a_class_made_from_a_layer_has_its_row():
    class Mine(nnx.Linear):
        pass

    assert rule_for(Mine(2, 3, rngs=nnx.Rngs(0))) is rule_for(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))


def test_every_row_names_a_class_that_exists():
    spaces = {"nnx": [nnx], "linen": [linen], "jaxpar.nn": [jaxpar.nn, jaxpar.nn.channels_first]}
    for key in ROWS:
        family, name = key.rsplit(".", 1)
        if family == "keras":
            continue  # which may not be installed; tests/test_keras.py
        assert any(inspect.isclass(getattr(space, name, None)) for space in spaces[family]), key


CONTAINERS = {"Sequential", "Module", "RNNCellBase", "RNN", "Bidirectional"}
"""Their layers have rows. Linen's RNN holds no cell of its own: it is a sibling."""
WITHOUT = CONTAINERS | {
    "Einsum",
    "LoRA",
    "LoRALinear",
    "WeightNorm",
    "SpectralNorm",
    "ConvLSTMCell",
    "MGUCell",
    "ConvLocal",
    "BatchApply",
    "RoPE",
}
"""Nothing in torch is kept the same way."""


@pytest.mark.parametrize(("family", "space"), [("nnx", nnx), ("linen", linen)])
def test_every_layer_of_flax_has_a_row_or_is_known_to_have_none(family, space):
    """A release of Flax with another layer fails here."""
    base = nnx.Module if space is nnx else linen.Module
    places = (".nnx.nn.", ".linen.")
    rows = {key.rsplit(".", 1)[1] for key in ROWS if key.startswith(family + ".")}
    without = {
        name
        for name, kind in vars(space).items()
        if inspect.isclass(kind) and issubclass(kind, base) and any(p in kind.__module__ for p in places)
        if "Fp8" not in name and not rows & {parent.__name__ for parent in kind.__mro__}
    }
    assert without <= WITHOUT


SIZES = st.integers(1, 4)


@pytest.mark.full
@settings(deadline=None, max_examples=30)
@given(
    out=SIZES,
    into=SIZES,
    space=st.lists(SIZES, min_size=0, max_size=3),
    dtype=st.sampled_from([np.float32, np.float64, jnp.bfloat16, np.float16]),
)
def test_kernels_of_any_shape_and_type_come_back_exactly(out, into, space, dtype):
    rule = rule_for(nnx.Conv(1, 1, (1,) * max(len(space), 1), rngs=nnx.Rngs(0)))
    bits = np.random.RandomState(0).bytes(out * into * int(np.prod(space)) * np.dtype(dtype).itemsize)
    weight = np.frombuffer(bits, dtype).reshape(out, into, *space)
    leaves = rule.to_flax({"weight": weight})
    assert leaves["kernel"].shape == (*space, into, out)
    back = rule.to_torch(leaves)["weight"]
    assert back.dtype == weight.dtype
    assert back.tobytes() == weight.tobytes()


def test_a_planted_fault_is_found():
    """The law sees a kernel that is transposed once too often."""
    wrong = Rule("Linear", (Part(("weight",), ("kernel",), lambda w: (w,), lambda k: (k,)), *rule_of("bias")))
    case = CASES["nnx.Linear without bias"]
    arrays, _ = torch_leaves(case.torch().double())
    x = np.random.RandomState(0).randn(*case.shape)
    *_, outputs, _ = run_flax(case, case.flax(), wrong, arrays, x)
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal_numbers("outputs", outputs, x @ arrays["weight"].T)


def rule_of(name: str) -> tuple[Part, ...]:
    linear = rule_for(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))
    return tuple(part for part in linear.parts if part.torch == (name,))


@pytest.mark.slow
def test_the_rulebook_needs_numpy_alone():
    code = "import sys, jaxpar._rulebook; print({'jax', 'flax', 'torch'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
