"""Small models drawn by a seed, in torch and in Keras 3, and each with one mistake planted in Keras.

    python benchmarks/parity/keras_models.py [--seed 33] [--models 10] > docs/tables/keras.md

The page has the pairs of `keras_layers` as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.parity.keras_layers import PAIRS, L, T, keras, np, parity, torch

ACTIVATIONS = {"relu": T.ReLU, "tanh": T.Tanh, "silu": T.SiLU, "gelu": T.GELU, "elu": T.ELU}
OTHER = {"relu": "elu", "tanh": "relu", "silu": "gelu", "gelu": "silu", "elu": "relu"}
ROWS, SIZE = 4, 16


@dataclasses.dataclass
class Drawn:
    """A model as torch's layers, and as Keras's: a function with its arguments, and the name of the layer."""

    torch: list[torch.nn.Module]
    keras: list[tuple[Callable[..., Any], dict[str, Any], str]]
    shape: tuple[int, ...]  # of Keras's input

    def built(self, changes: dict[str, dict[str, Any]] | None = None) -> Any:
        inputs = x = keras.Input(self.shape)
        for make, options, name in self.keras:
            changed = {**options, **(changes or {}).get(name, {})}
            x = changed.pop("instead", make)(**changed, name=name)(x)
        return keras.Model(inputs, x)


def drawn(number: random.Random) -> Drawn:
    """Two or three blocks of images, each with a norm, or of rows; and a head."""
    images = number.random() < 0.5
    width = 3 if images else 6
    model = Drawn([], [], (SIZE, SIZE, 3) if images else (6,))
    for i in range(number.randint(2, 3)):
        wider, activation = number.choice((4, 6, 8)), number.choice([*ACTIVATIONS])
        if images:
            stride = number.choice((1, 2))
            model.torch.append(T.Conv2d(width, wider, 3, stride=stride, padding=1 if stride == 1 else 0))
            padding = "same" if stride == 1 else "valid"
            options = {"filters": wider, "kernel_size": 3, "strides": stride, "padding": padding}
            model.keras.append((L.Conv2D, {**options, "activation": activation}, f"main{i}"))
        else:
            model.torch.append(T.Linear(width, wider))
            model.keras.append((L.Dense, {"units": wider, "activation": activation}, f"main{i}"))
        model.torch.append(ACTIVATIONS[activation]())
        if number.random() < 0.5:
            model.torch.append((T.BatchNorm2d if images else T.BatchNorm1d)(wider))
            norm = {"epsilon": 1e-5, "momentum": 0.9}
            model.keras.append((L.BatchNormalization, norm, f"norm{i}"))
        elif images:
            model.torch.append(T.GroupNorm(2, wider))
            model.keras.append((L.GroupNormalization, {"groups": 2, "epsilon": 1e-5}, f"norm{i}"))
        else:
            model.torch.append(T.LayerNorm(wider))
            model.keras.append((L.LayerNormalization, {"epsilon": 1e-5}, f"norm{i}"))
        width = wider
    if images:
        model.torch += [T.AdaptiveAvgPool2d(1), T.Flatten()]
        model.keras.append((L.GlobalAveragePooling2D, {}, "pool"))
    model.torch.append(T.Linear(width, 3))
    model.keras.append((L.Dense, {"units": 3}, "head"))
    return model


class TransposedDense(L.Dense):
    """Multiplies by the transpose of a square kernel."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        x = keras.ops.matmul(inputs, keras.ops.transpose(self.kernel)) + self.bias
        return x if self.activation is None else self.activation(x)


class TransposedConv2D(L.Conv2D):
    """Exchanges the two spatial axes of its kernel."""

    @property
    def kernel(self) -> Any:
        return keras.ops.transpose(super().kernel, (1, 0, 2, 3))


def faults(model: Drawn) -> list[tuple[str, str, dict[str, Any]]]:
    """Every mistake that fits: its kind, the layer, and the arguments."""
    fitting: list[tuple[str, str, dict[str, Any]]] = []
    width = model.shape[-1]
    for make, options, name in model.keras:
        if "epsilon" in options:
            fitting.append(("epsilon", name, {"epsilon": 1e-3}))
        if "momentum" in options:
            fitting.append(("momentum", name, {"momentum": 0.99}))
        if "activation" in options:
            fitting.append(("activation", name, {"activation": OTHER[options["activation"]]}))
        if make is L.Conv2D:
            fitting.append(("kernel", name, {"instead": TransposedConv2D}))
            if options["strides"] == 1:
                fitting.append(("padding", name, {"padding": "valid"}))
            else:
                fitting.append(("padding", name, {"padding": "same"}))
        if make is L.Dense and options["units"] == width:
            fitting.append(("kernel", name, {"instead": TransposedDense}))
        width = options.get("units", options.get("filters", width))
    return fitting


def planted(seed: int, count: int) -> list[tuple[Drawn, str, str, dict[str, Any]]]:
    """Models with one mistake each, in turn of every kind that fits."""
    number, kinds = random.Random(seed), ("epsilon", "momentum", "activation", "padding", "kernel")
    cases: list[tuple[Drawn, str, str, dict[str, Any]]] = []
    while len(cases) < count:
        torch.manual_seed(len(cases))
        model, kind = drawn(number), kinds[len(cases) % len(kinds)]
        if fitting := [fault for fault in faults(model) if fault[0] == kind]:
            cases.append((model, *number.choice(fitting)))
    return cases


def compared(model: Drawn, fault: dict[str, dict[str, Any]], training: bool) -> parity.Comparison:
    net, layout = (
        T.Sequential(*model.torch).train(training),
        "channels_last" if len(model.shape) > 1 else "same",
    )
    shape = (3, SIZE, SIZE) if len(model.shape) > 1 else model.shape
    x = np.random.RandomState(0).randn(ROWS, *shape).astype(np.float32)
    names = iter(name for _, _, name in model.keras if name != "pool")
    with_weights = [i for i, layer in enumerate(model.torch) if [*layer.parameters()]]
    mapping = dict(zip(map(str, with_weights), names, strict=True))
    keras_net = model.built(fault)
    if not fault:  # the weights, as a user loads them, in float32
        loaded = parity.load_torch(keras_net, net, mapping=mapping)
        outputs = net.eval()(torch.tensor(x)).detach().numpy()
        x_last = np.moveaxis(x, 1, -1) if len(model.shape) > 1 else x
        np.testing.assert_allclose(loaded(x_last), outputs, atol=1e-5)
        net.train(training)
    return parity.compare(net, keras_net, x, layout=layout, mapping=mapping)


def judged(case: tuple[Drawn, str, str, dict[str, Any]]) -> tuple[bool, str, str]:
    """Return whether the healthy pair is the same, the verdict on the wrong one, its place and its cause."""
    model, kind, name, change = case
    # In training Keras's moving variance differs as well, so that only a momentum needs it.
    healthy = compared(model, {}, training=False).same
    try:
        wrong = compared(model, {name: change}, training=kind == "momentum")
    except Exception as error:
        return healthy, f"refused: {type(error).__name__}", ""
    if wrong.same or wrong.divergence is None:
        return healthy, "the same" if wrong.same else "different", ""
    first = wrong.divergence
    cause = first.causes[0].text if first.causes else "no cause"
    return healthy, "different", f"{first.candidate} ({first.kind}): {cause}"


def page(seed: int, count: int) -> str:
    layers = []
    for name, pair in PAIRS.items():
        try:
            layers.append((name, pair.compared().same, not pair.compared(wrong=True).same, ""))
        except Exception as error:
            layers.append((name, False, False, type(error).__name__))
    models = [(case, *judged(case)) for case in planted(seed, count)]
    same, wrong = (sum(x[i] for x in layers) for i in (1, 2))
    healthy, different = sum(x[1] for x in models), sum(x[2] == "different" for x in models)
    lines = [
        "# Keras 3 against torch",
        "",
        f"{len(layers)} layers of `keras.layers` that torch has, too: {same} are the same as torch's in",
        f"float64, and {wrong} are different with a mistake in Keras's. Of {count} models that are drawn",
        f"by seed {seed}, {healthy} are the same, with weights by `load_torch`, and {different} are",
        "different with one mistake.",
        f"Keras {keras.__version__}. Printed by `python benchmarks/parity/keras_models.py`.",
        "",
        f"Not the same: {', '.join(f'{x[0]} ({x[3]})' for x in layers if not (x[1] and x[2])) or 'none'}.",
        "",
        f"Asked: {', '.join(x[0] for x in layers)}.",
        "",
        "| planted | in | healthy | wrong | first place and cause |",
        "|---|---|---|---|---|",
    ]
    for (_, kind, name, _), is_same, verdict, where in models:
        lines.append(f"| {kind} | {name} | {'the same' if is_same else 'different'} | {verdict} | {where} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--models", type=int, default=10)
    arguments = parser.parse_args()
    print(page(arguments.seed, arguments.models), end="")
