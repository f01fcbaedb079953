"""Models written twice, in torch and in Flax, and the copying of weights between them.

A twin is a torch module, a Flax module with the same weights, and inputs that fit both. Images are
channels-first in torch and channels-last here; `to_flax` and the name tables say how tensors map.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

import jaxpar

Wrap = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Twin:
    """One model in both frameworks.

    torch_net(wrap) and flax_net(wrap) build it; `wrap` is DataParallel, applied to the whole or to
    the part that the model says. `names` maps torch's parameter and buffer names to flax paths.
    """

    torch_net: Callable[[Wrap], torch.nn.Module]
    flax_net: Callable[[Wrap], nnx.Module]
    names: dict[str, str]
    inputs: Callable[[np.random.RandomState, int], tuple[np.ndarray, ...]]
    images: bool = False


def layout(name: str, array: np.ndarray) -> np.ndarray:
    """A torch tensor in Flax's layout: linear kernels transposed, convolution kernels (kh, kw, I, O)."""
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array.T if array.ndim == 2 and not name.endswith("table.weight") else array


def copy_weights(twin: Twin, source: torch.nn.Module, target: nnx.Module) -> None:
    """Every tensor of `source` goes to exactly one variable of `target`, in float64."""
    state = {name.replace("module.", ""): value for name, value in source.state_dict().items()}
    variables = flax_variables(target)
    assert state.keys() == twin.names.keys(), (state.keys(), twin.names.keys())
    assert set(twin.names.values()) == variables.keys(), (sorted(twin.names.values()), sorted(variables))
    for name, path in twin.names.items():
        value = layout(name, state[name].numpy())
        dtype = np.float64 if value.dtype.kind == "f" else np.int32
        variables[path].set_value(jnp.array(value, dtype))


def flax_variables(net: nnx.Module) -> dict[str, nnx.Variable]:
    """Variables that torch has too, by path, without the wrapper's prefix."""
    flat = nnx.to_flat_state(nnx.state(net, nnx.Not(nnx.RngState)))
    return {".".join(map(str, path)).replace("module.", ""): variable for path, variable in flat}


def _linear(prefix: str, path: str, bias: bool = True) -> dict[str, str]:
    names = {f"{prefix}.weight": f"{path}.kernel"}
    return names | {f"{prefix}.bias": f"{path}.bias"} if bias else names


def _batch_norm(prefix: str, path: str) -> dict[str, str]:
    pairs = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}
    pairs["num_batches_tracked"] = "num_batches_tracked"
    return {f"{prefix}.{a}": f"{path}.{b}" for a, b in pairs.items()}


def _layer_norm(prefix: str, path: str) -> dict[str, str]:
    return {f"{prefix}.weight": f"{path}.scale", f"{prefix}.bias": f"{path}.bias"}


R = nnx.Rngs(0)
ZEROS = nnx.initializers.zeros
"""Torch's weights replace them, and compiling random ones takes longer than a test."""


def _dense(i: int, o: int, bias: bool = True) -> nnx.Linear:
    return nnx.Linear(i, o, use_bias=bias, param_dtype=jnp.float64, kernel_init=ZEROS, rngs=R)


def _conv(i: int, o: int) -> nnx.Conv:
    return nnx.Conv(
        i, o, (3, 3), padding=1, use_bias=False, param_dtype=jnp.float64, kernel_init=ZEROS, rngs=R
    )


def _norm(c: int) -> jaxpar.nn.BatchNorm:
    return jaxpar.nn.BatchNorm(c, param_dtype=jnp.float64)


# ------------------------------------------------------------------------------------------ linear


class TorchLinear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.a(x)


class FlaxLinear(nnx.Module):
    def __init__(self):
        self.a = _dense(5, 3)

    def __call__(self, x):
        return self.a(x)


LINEAR = Twin(
    lambda wrap: wrap(TorchLinear()),
    lambda wrap: wrap(FlaxLinear()),
    _linear("a", "a"),
    lambda r, B: (r.randn(B, 5),),
)

# --------------------------------------------------------------------------------------------- MLP


class TorchMLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.relu(self.a(x)))))


class FlaxMLP(nnx.Module):
    def __init__(self):
        self.a, self.b, self.c = _dense(6, 8), _dense(8, 8), _dense(8, 2)

    def __call__(self, x):
        return self.c(jnp.tanh(self.b(nnx.relu(self.a(x)))))


MLP = Twin(
    lambda wrap: wrap(TorchMLP()),
    lambda wrap: wrap(FlaxMLP()),
    _linear("a", "a") | _linear("b", "b") | _linear("c", "c"),
    lambda r, B: (r.randn(B, 6),),
)

# ----------------------------------------------------------------------------------- BatchNorm CNN


class TorchCNN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(2, 4, 3, padding=1, bias=False), torch.nn.BatchNorm2d(4)
        self.conv2, self.bn2 = torch.nn.Conv2d(4, 6, 3, padding=1, bias=False), torch.nn.BatchNorm2d(6)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


class FlaxCNN(nnx.Module):
    def __init__(self):
        self.conv1, self.bn1 = _conv(2, 4), _norm(4)
        self.conv2, self.bn2 = _conv(4, 6), _norm(6)
        self.head = _dense(6, 3)

    def __call__(self, x):
        x = nnx.relu(self.bn1(self.conv1(x)))
        x = nnx.relu(self.bn2(self.conv2(x)))
        return self.head(x.mean((1, 2)))


CNN = Twin(
    lambda wrap: wrap(TorchCNN()),
    lambda wrap: wrap(FlaxCNN()),
    {"conv1.weight": "conv1.kernel", "conv2.weight": "conv2.kernel"}
    | _batch_norm("bn1", "bn1")
    | _batch_norm("bn2", "bn2")
    | _linear("head", "head"),
    lambda r, B: (r.randn(B, 5, 5, 2),),
    images=True,
)

# ------------------------------------------------------------------------- LayerNorm transformer block


class TorchBlock(torch.nn.Module):
    def __init__(self, d=8, heads=2):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = torch.nn.LayerNorm(d), torch.nn.LayerNorm(d)
        self.q, self.v, self.o = torch.nn.Linear(d, d), torch.nn.Linear(d, d), torch.nn.Linear(d, d)
        self.k = torch.nn.Linear(d, d, bias=False)  # a key bias has no gradient but noise
        self.up, self.down = torch.nn.Linear(d, 2 * d), torch.nn.Linear(2 * d, d)

    def forward(self, x):
        B, T, d = x.shape
        h = self.ln1(x)
        q, k, v = (f(h).view(B, T, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = torch.softmax(q @ k.transpose(2, 3) / (d / self.heads) ** 0.5, -1) @ v
        x = x + self.o(a.transpose(1, 2).reshape(B, T, d))
        return x + self.down(torch.nn.functional.gelu(self.up(self.ln2(x))))


class FlaxBlock(nnx.Module):
    def __init__(self, d=8, heads=2):
        self.heads = heads
        self.ln1, self.ln2 = (
            nnx.LayerNorm(d, epsilon=1e-5, use_fast_variance=False, param_dtype=jnp.float64, rngs=R)
            for _ in "12"
        )
        self.q, self.v, self.o = _dense(d, d), _dense(d, d), _dense(d, d)
        self.k = _dense(d, d, bias=False)
        self.up, self.down = _dense(d, 2 * d), _dense(2 * d, d)

    def __call__(self, x):
        B, T, d = x.shape
        h = self.ln1(x)
        q, k, v = (f(h).reshape(B, T, self.heads, -1).swapaxes(1, 2) for f in (self.q, self.k, self.v))
        a = jax.nn.softmax(q @ k.swapaxes(2, 3) / (d / self.heads) ** 0.5, -1) @ v
        x = x + self.o(a.swapaxes(1, 2).reshape(B, T, d))
        return x + self.down(nnx.gelu(self.up(self.ln2(x)), approximate=False))


TRANSFORMER = Twin(
    lambda wrap: wrap(TorchBlock()),
    lambda wrap: wrap(FlaxBlock()),
    _layer_norm("ln1", "ln1")
    | _layer_norm("ln2", "ln2")
    | _linear("q", "q")
    | _linear("k", "k", bias=False)
    | _linear("v", "v")
    | _linear("o", "o")
    | _linear("up", "up")
    | _linear("down", "down"),
    lambda r, B: (r.randn(B, 4, 8),),
)

# ------------------------------------------------------------------------- embedding and recurrence


class TorchTagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 4)
        self.i, self.h = torch.nn.Linear(4, 20, bias=False), torch.nn.Linear(5, 20)
        self.head = torch.nn.Linear(5, 3)

    def forward(self, tokens):
        x = self.table(tokens)
        h = c = x.new_zeros(len(x), 5)
        outputs = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.i(x[:, t]) + self.h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return self.head(torch.stack(outputs, 1))


class FlaxTagger(nnx.Module):
    def __init__(self):
        self.table = nnx.Embed(11, 4, param_dtype=jnp.float64, embedding_init=ZEROS, rngs=R)
        self.lstm = nnx.RNN(
            nnx.OptimizedLSTMCell(4, 5, param_dtype=jnp.float64, dtype=jnp.float64, rngs=nnx.Rngs(0))
        )
        self.head = _dense(5, 3)

    def __call__(self, tokens):
        return self.head(self.lstm(self.table(tokens)))


TAGGER = Twin(
    lambda wrap: wrap(TorchTagger()),
    lambda wrap: wrap(FlaxTagger()),
    {"table.weight": "table.embedding", "i.weight": "lstm.cell.dense_i.kernel"}
    | _linear("h", "lstm.cell.dense_h")
    | _linear("head", "head"),
    lambda r, B: (r.randint(0, 11, (B, 6)),),
)

# ------------------------------------------------------------------------- two inputs, many outputs


class TorchTwo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 3), torch.nn.Linear(2, 3)
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        p, q = self.a(x), self.b(y)
        return {"sum": p + q, "nested": [torch.sin(p) * self.scale, torch.tanh(q).sum(1)]}


class FlaxTwo(nnx.Module):
    def __init__(self):
        self.a, self.b = _dense(4, 3), _dense(2, 3)
        self.scale = nnx.Param(jnp.ones(3))

    def __call__(self, x, y):
        p, q = self.a(x), self.b(y)
        return {"sum": p + q, "nested": [jnp.sin(p) * self.scale, jnp.tanh(q).sum(1)]}


TWO = Twin(
    lambda wrap: wrap(TorchTwo()),
    lambda wrap: wrap(FlaxTwo()),
    _linear("a", "a") | _linear("b", "b") | {"scale": "scale"},
    lambda r, B: (r.randn(B, 4), r.randn(B, 2)),
)

# ------------------------------------------------------------------------------- wrapped inner block


class TorchOuter(torch.nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.first = torch.nn.Conv2d(2, 3, 3, padding=1, bias=False)
        self.block2 = wrap(TorchInner())
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.block2(torch.tanh(self.first(x))).mean((2, 3)))


class TorchInner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


class FlaxOuter(nnx.Module):
    def __init__(self, wrap):
        self.first = _conv(2, 3)
        self.block2 = wrap(FlaxInner())
        self.last = _dense(4, 2)

    def __call__(self, x):
        return self.last(self.block2(jnp.tanh(self.first(x))).mean((1, 2)))


class FlaxInner(nnx.Module):
    def __init__(self):
        self.conv, self.bn = _conv(3, 4), _norm(4)

    def __call__(self, x):
        return nnx.relu(self.bn(self.conv(x)))


INNER = Twin(
    TorchOuter,
    FlaxOuter,
    {"first.weight": "first.kernel", "block2.conv.weight": "block2.conv.kernel"}
    | _batch_norm("block2.bn", "block2.bn")
    | _linear("last", "last"),
    lambda r, B: (r.randn(B, 5, 5, 2),),
    images=True,
)

TWINS = {
    "linear": LINEAR,
    "mlp": MLP,
    "cnn": CNN,
    "transformer": TRANSFORMER,
    "tagger": TAGGER,
    "two": TWO,
    "inner": INNER,
}
