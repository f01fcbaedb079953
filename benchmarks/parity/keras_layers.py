"""Keras's layers against torch's: pairs that are the same, and each with one mistake planted in Keras.

The frame is every class of `keras.layers` that has a layer of `torch.nn` as its counterpart. `keras_models`
prints the page.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
import torch

from jaxpar import parity

L, T = keras.layers, torch.nn
SIZES = {1: (8,), 2: (8, 6), 3: (4, 6, 4)}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A torch layer, its Keras counterpart, and the argument of Keras's that is planted as a mistake."""

    torch: Callable[[], torch.nn.Module]
    keras: Callable[..., Any]
    shape: tuple[int, ...]  # of the input without rows, in torch's layout
    planted: Mapping[str, Any] | type
    training: bool = True
    integers: int = 0
    mapping: Mapping[str, Any] | None = None

    @property
    def layout(self) -> str:
        return "channels_last" if len(self.shape) > 1 and self.channels else "same"

    channels: bool = False

    def models(self, wrong: bool) -> tuple[torch.nn.Module, Any]:
        changes = self.planted if wrong and isinstance(self.planted, Mapping) else {}
        shape = (*self.shape[1:], self.shape[0]) if self.layout == "channels_last" else self.shape
        inputs = keras.Input(shape, dtype="int32" if self.integers else None)
        outputs = self.keras(**changes)(inputs)
        if wrong and isinstance(self.planted, type):
            outputs = self.planted()(outputs)
        torch.manual_seed(0)
        return T.Sequential(self.torch()).train(self.training), keras.Model(inputs, outputs)

    def inputs(self) -> np.ndarray:
        random = np.random.RandomState(0)
        if self.integers:
            return random.randint(0, self.integers, (4, *self.shape))
        return random.randn(4, *self.shape).astype(np.float32)

    def compared(self, wrong: bool = False) -> parity.Comparison:
        net, model = self.models(wrong)
        x, options = self.inputs(), {"layout": self.layout}
        mapping = self.mapping or parity.match(model, net, example=x, **options)
        return parity.compare(net, model, x, mapping=mapping, **options)


class First(T.Module):
    """The first output of a recurrent layer."""

    def __init__(self, layer: torch.nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


class Attention(T.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = T.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


class Cell(T.Module):
    def __init__(self, layer: torch.nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.layer(x)
        return states[0] if isinstance(states, tuple) else states


class Louder(keras.layers.Layer):
    """The mistake of layers without a setting to mistake."""

    def call(self, x: Any) -> Any:
        return 1.01 * x


def _itself(**options: Any) -> Callable[[Any], Any]:
    layer = L.MultiHeadAttention(2, 4, **options)
    return lambda x: layer(x, x)


def _from_zeros(make: Callable[..., Any], count: int) -> Callable[..., Callable[[Any], Any]]:
    def made(**options: Any) -> Callable[[Any], Any]:
        cell = make(**options)
        return lambda x: cell(x, [keras.ops.zeros_like(x[:, :4]) for _ in range(count)])[0]

    return made


def _with(make: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
    return lambda **changes: make(*arguments, **{**options, **changes})


def _of_axes(n: int) -> dict[str, Pair]:
    """Layers that exist for one, two and three axes."""
    shape = (3, *SIZES[n])
    t = lambda name, *args, **kwargs: lambda: getattr(T, f"{name}{n}d")(*args, **kwargs)  # noqa: E731
    k = lambda name, *args, **kwargs: _with(getattr(L, f"{name}{n}D"), *args, **kwargs)  # noqa: E731
    other = {"activation": "tanh"}
    pads = tuple((1, 2) for _ in range(n)) if n > 1 else (1, 2)
    swapped = tuple((2, 1) for _ in range(n)) if n > 1 else (2, 1)
    pairs = {
        f"Conv{n}D": Pair(t("Conv", 3, 4, 3, padding=1), k("Conv", 4, 3, padding="same"), shape, other),
        f"Conv{n}DTranspose": Pair(
            t("ConvTranspose", 3, 4, 3, stride=2),
            _with(getattr(L, f"Conv{n}DTranspose"), 4, 3, strides=2),
            shape,
            other,
        ),
        f"MaxPooling{n}D": Pair(t("MaxPool", 2), k("MaxPooling", 2), shape, Louder),
        f"AveragePooling{n}D": Pair(t("AvgPool", 2), k("AveragePooling", 2), shape, Louder),
        f"AdaptiveAveragePooling{n}D": Pair(
            t("AdaptiveAvgPool", 2), k("AdaptiveAveragePooling", 2), shape, Louder
        ),
        f"AdaptiveMaxPooling{n}D": Pair(t("AdaptiveMaxPool", 2), k("AdaptiveMaxPooling", 2), shape, Louder),
        f"ZeroPadding{n}D": Pair(
            t("ZeroPad", (1, 2) * n), k("ZeroPadding", padding=pads), shape, {"padding": swapped}
        ),
        f"UpSampling{n}D": Pair(lambda: T.Upsample(scale_factor=2), k("UpSampling", 2), shape, Louder),
        f"SpatialDropout{n}D": Pair(t("Dropout", 0.5), k("SpatialDropout", rate=0.5), shape, {"rate": 0.25}),
    }
    if n < 3:
        depthwise = t("Conv", 3, 6, 3, groups=3)
        pairs[f"DepthwiseConv{n}D"] = Pair(depthwise, k("DepthwiseConv", 3, depth_multiplier=2), shape, other)
        axes = tuple(range(2, 2 + n))
        path = f"separable_conv{n}d"
        pairs[f"SeparableConv{n}D"] = Pair(
            lambda: T.Sequential(t("Conv", 3, 3, 3, groups=3, bias=False)(), t("Conv", 3, 4, 1)()),
            k("SeparableConv", 4, 3),
            shape,
            other,
            mapping={
                "0.0.weight": parity.transposed(f"{path}.depthwise_kernel", (*axes, 0, 1)),
                "0.1.weight": parity.transposed(f"{path}.pointwise_kernel", (*axes, 1, 0)),
                "0.1.bias": f"{path}.bias",
            },
        )
    return {name: dataclasses.replace(pair, channels=True) for name, pair in pairs.items()}


SEQUENCE = {"return_sequences": True}
BACKWARDS = {"go_backwards": True}
NORM = {"epsilon": 1e-5}
EPSILON = {"epsilon": 1e-3}  # Keras's default for most norms
IMAGE = (4, 8, 6)
PAIRS: dict[str, Pair] = {
    "Dense": Pair(lambda: T.Linear(6, 4), _with(L.Dense, 4), (6,), {"activation": "tanh"}),
    "EinsumDense": Pair(
        lambda: T.Linear(6, 4),
        _with(L.EinsumDense, "abc,cd->abd", (None, 4), bias_axes="d"),
        (5, 6),
        {"activation": "tanh"},
    ),
    "Embedding": Pair(lambda: T.Embedding(9, 4), _with(L.Embedding, 9, 4), (5,), Louder, integers=9),
    "BatchNormalization": Pair(
        lambda: T.BatchNorm1d(6), _with(L.BatchNormalization, **NORM), (6,), EPSILON, training=False
    ),
    "LayerNormalization": Pair(lambda: T.LayerNorm(6), _with(L.LayerNormalization, **NORM), (6,), EPSILON),
    "GroupNormalization": Pair(
        lambda: T.GroupNorm(2, 4), _with(L.GroupNormalization, 2, **NORM), IMAGE, EPSILON, channels=True
    ),
    "RMSNormalization": Pair(
        lambda: T.RMSNorm(6, eps=1e-6), _with(L.RMSNormalization, epsilon=1e-6), (6,), EPSILON
    ),
    "MultiHeadAttention": Pair(Attention, _itself, (5, 8), Louder),
    "LSTM": Pair(
        lambda: First(T.LSTM(5, 4, batch_first=True)), _with(L.LSTM, 4, **SEQUENCE), (6, 5), BACKWARDS
    ),
    "GRU": Pair(lambda: First(T.GRU(5, 4, batch_first=True)), _with(L.GRU, 4, **SEQUENCE), (6, 5), BACKWARDS),
    "SimpleRNN": Pair(
        lambda: First(T.RNN(5, 4, batch_first=True)),
        _with(L.SimpleRNN, 4, **SEQUENCE),
        (6, 5),
        {"activation": "relu"},
    ),
    "Bidirectional": Pair(
        lambda: First(T.LSTM(5, 4, batch_first=True, bidirectional=True)),
        lambda **options: L.Bidirectional(L.LSTM(4, return_sequences=True, **options)),
        (6, 5),
        {"recurrent_activation": "hard_sigmoid"},
    ),
    "RNN": Pair(
        lambda: First(T.GRU(5, 4, batch_first=True)),
        lambda **options: L.RNN(L.GRUCell(4), return_sequences=True, **options),
        (6, 5),
        BACKWARDS,
    ),
    "StackedRNNCells": Pair(
        lambda: First(T.LSTM(5, 4, num_layers=2, batch_first=True)),
        lambda **options: L.RNN(
            L.StackedRNNCells([L.LSTMCell(4), L.LSTMCell(4)]), return_sequences=True, **options
        ),
        (6, 5),
        BACKWARDS,
        mapping={"0.layer": ("rnn.cell.cells.0", "rnn.cell.cells.1")},
    ),
    "LSTMCell": Pair(
        lambda: Cell(T.LSTMCell(5, 4)), _from_zeros(_with(L.LSTMCell, 4), 2), (5,), {"activation": "relu"}
    ),
    "GRUCell": Pair(
        lambda: Cell(T.GRUCell(5, 4)), _from_zeros(_with(L.GRUCell, 4), 1), (5,), {"activation": "relu"}
    ),
    "SimpleRNNCell": Pair(
        lambda: Cell(T.RNNCell(5, 4)), _from_zeros(_with(L.SimpleRNNCell, 4), 1), (5,), {"activation": "relu"}
    ),
    "TimeDistributed": Pair(
        lambda: T.Linear(6, 4),
        lambda **options: L.TimeDistributed(L.Dense(4, **options)),
        (5, 6),
        {"activation": "tanh"},
    ),
    "Dropout": Pair(lambda: T.Dropout(0.5), _with(L.Dropout, rate=0.5), (6,), {"rate": 0.25}),
    "AlphaDropout": Pair(lambda: T.AlphaDropout(0.5), _with(L.AlphaDropout, rate=0.5), (6,), {"rate": 0.25}),
    "ReLU": Pair(T.ReLU, L.ReLU, (6,), {"negative_slope": 0.1}),
    "LeakyReLU": Pair(T.LeakyReLU, _with(L.LeakyReLU, negative_slope=0.01), (6,), {"negative_slope": 0.3}),
    "ELU": Pair(T.ELU, L.ELU, (6,), {"alpha": 0.5}),
    "PReLU": Pair(lambda: T.PReLU(4), _with(L.PReLU, shared_axes=[1, 2]), IMAGE, Louder, channels=True),
    "Softmax": Pair(lambda: T.Softmax(-1), L.Softmax, (5, 6), {"axis": 1}),
    "Activation": Pair(T.GELU, _with(L.Activation, activation="gelu"), (6,), {"activation": "silu"}),
    "Flatten": Pair(T.Flatten, L.Flatten, (5, 6), Louder),
    "Reshape": Pair(lambda: T.Unflatten(1, (2, 3)), _with(L.Reshape, (2, 3)), (6,), Louder),
    "Identity": Pair(T.Identity, L.Identity, (6,), Louder),
    "SpectralNormalization": Pair(
        lambda: T.utils.parametrizations.spectral_norm(T.Linear(6, 4)),
        lambda **options: L.SpectralNormalization(L.Dense(4, **options)),
        (6,),
        {"activation": "tanh"},
        training=False,
    ),
    **_of_axes(1),
    **_of_axes(2),
    **_of_axes(3),
}
