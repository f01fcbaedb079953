"""Train the demo's CNN, and compare every step of the same training with PyTorch's."""

from __future__ import annotations

import functools
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar

from ..._tools.estimate.program import bytes_on
from ...errors import JaxparError
from ...parity import Comparison, Policy
from .settings import LEARNING_RATE, MOMENTUM, TOLERANCE, TRAIN_ROWS, DemoSettings, has_torch

if TYPE_CHECKING:
    import torch

Watch = Callable[[str], None]


class EpochFigures(NamedTuple):
    loss: float
    accuracy: float
    ms_per_step: float


class DemoResult(NamedTuple):
    """`reference` describes PyTorch's side; it and `comparison` are None where torch is not installed."""

    settings: DemoSettings
    devices: str
    reference: str | None
    epochs: list[EpochFigures]
    comparison: Comparison | None
    bytes_per_device: dict[str, dict[str, int]]


class DigitsCNN(nnx.Module):
    """Logits [B, 10] of images [B, 8, 8]."""

    def __init__(self, rngs: nnx.Rngs):
        conv = functools.partial(jaxpar.nn.Conv, kernel_size=(3, 3), padding=1, bias=False, rngs=rngs)
        self.conv1, self.norm1 = conv(1, 8), jaxpar.nn.BatchNorm(8)
        self.conv2, self.norm2 = conv(8, 16), jaxpar.nn.BatchNorm(16)
        self.linear = nnx.Linear(16 * 4 * 4, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm1(self.conv1(images[..., None])))
        x = nnx.relu(self.norm2(self.conv2(x)))
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        # torch flattens channels first, so the linear layer's rows have the same order only this way.
        return self.linear(x.transpose(0, 3, 1, 2).reshape(len(x), -1))


def torch_cnn(seed: int) -> torch.nn.Module:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[tuple[str, nn.Module]] = [
            ("channel", nn.Unflatten(1, (1, 8))),
            ("conv1", nn.Conv2d(1, 8, 3, padding=1, bias=False)),
            ("norm1", nn.BatchNorm2d(8)),
            ("relu1", nn.ReLU()),
            ("conv2", nn.Conv2d(8, 16, 3, padding=1, bias=False)),
            ("norm2", nn.BatchNorm2d(16)),
            ("relu2", nn.ReLU()),
            ("pool", nn.AvgPool2d(2)),
            ("flatten", nn.Flatten()),
            ("linear", nn.Linear(16 * 4 * 4, 10)),
        ]
        return nn.Sequential(OrderedDict(layers)).double()


class Digits(NamedTuple):
    """Images [1797, 8, 8] in float64, from 0 to 1, and labels; the first TRAIN_ROWS are for training."""

    images: np.ndarray
    labels: np.ndarray
    settings: DemoSettings

    def rows(self, step: int) -> np.ndarray:
        epoch, batch = divmod(step - 1, self.settings.steps_per_epoch)
        order = np.random.default_rng((self.settings.seed, epoch)).permutation(TRAIN_ROWS)
        size = self.settings.batch_size
        return order[batch * size : (batch + 1) * size]


def run(settings: DemoSettings, watch: Watch) -> DemoResult:
    """Compare with PyTorch if torch is installed, and train; `watch` is called after every step of both."""
    with jax.enable_x64(True):
        digits = load(settings)
        net = flax_cnn(settings)
        comparison = _compared(net, digits, watch) if has_torch() else None
        epochs, sizes = _trained(net, digits, watch)
    reference = _reference() if comparison is not None else None
    return DemoResult(settings, _devices(), reference, epochs, comparison, sizes)


def load(settings: DemoSettings) -> Digits:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise JaxparError('demo: the digits come with scikit-learn; pip install "jaxpar[demo]"') from error
    digits = load_digits()
    mixed = np.random.default_rng(0).permutation(len(digits.target))
    return Digits(digits.images[mixed] / 16, digits.target[mixed].astype(np.int64), settings)


def flax_cnn(settings: DemoSettings) -> nnx.Module:
    # JAX's default generator, threefry, takes the CPU compiler seconds.
    rngs = nnx.Rngs(jax.random.key(settings.seed, impl="rbg"))
    return jaxpar.to(DigitsCNN(rngs), dtype=jnp.float64)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _compared(net: nnx.Module, digits: Digits, watch: Watch) -> Comparison:
    """Compare all steps, and leave the torch model's first weights in `net`."""
    # Here, because parity.compare needs torch and the training does not.
    import torch

    import torch_ref

    from ...parity import Stopped, compare, load_torch

    settings = digits.settings
    reference = torch_cnn(settings.seed)
    # `_trained` then starts from the weights that both sides start from here.
    load_torch(net, reference)
    try:
        return compare(
            reference,
            net,
            inputs=lambda step: digits.images[digits.rows(step)],
            targets=lambda step: digits.labels[digits.rows(step)],
            loss=(torch.nn.functional.cross_entropy, cross_entropy),
            optimizer=(
                lambda parameters: torch.optim.SGD(parameters, LEARNING_RATE, MOMENTUM),
                optax.sgd(LEARNING_RATE, MOMENTUM),
            ),
            steps=settings.steps,
            replicas=len(jaxpar.devices()),
            training=True,
            policy=Policy(relative=TOLERANCE),
            progress=lambda step, _: watch("compared with PyTorch"),
        )
    except torch_ref.UnsupportedTorch as error:
        raise JaxparError(f"demo: {error}") from error
    except Stopped as stop:
        stop.add_note(_completed(stop.comparison, settings))
        raise


def _trained(
    net: nnx.Module, digits: Digits, watch: Watch
) -> tuple[list[EpochFigures], dict[str, dict[str, int]]]:
    settings, epochs = digits.settings, list[EpochFigures]()
    net = jaxpar.DataParallel(net)
    optimizer = nnx.Optimizer(net, optax.sgd(LEARNING_RATE, MOMENTUM), wrt=nnx.Param)
    train_step = jaxpar.train_step(net, optimizer, lambda net, x, y: cross_entropy(net(x), y))
    for epoch in range(settings.epochs):
        loss, times = 0.0, list[float]()
        first = epoch * settings.steps_per_epoch + 1
        for step in range(first, first + settings.steps_per_epoch):
            rows = digits.rows(step)
            begun = time.perf_counter()
            # `float` waits for the step, so that the time is the step's and not the dispatch's.
            loss += float(train_step(digits.images[rows], digits.labels[rows])) * len(rows) / TRAIN_ROWS
            times.append(1000 * (time.perf_counter() - begun))
            watch(f"epoch {epoch + 1} of {settings.epochs}")
        net.eval()
        predicted = np.asarray(net(digits.images[TRAIN_ROWS:])).argmax(1)
        net.train()
        accuracy = float((predicted == digits.labels[TRAIN_ROWS:]).mean())
        epochs.append(EpochFigures(loss, accuracy, statistics.median(times)))
    return epochs, _bytes_per_device(net, optimizer)


def _completed(comparison: Comparison | None, settings: DemoSettings) -> str:
    epochs = 0 if comparison is None else comparison.steps // settings.steps_per_epoch
    done = f"{epochs} of {settings.epochs} epochs were completed"
    if comparison is None or not epochs:
        return f"{done}."
    return f"{done}, and both sides were {'the same' if comparison.same else 'different'} in them."


def _bytes_per_device(net: nnx.Module, optimizer: nnx.Optimizer) -> dict[str, dict[str, int]]:
    parameters, state = nnx.state(net, nnx.Param, ...)
    kinds = {"parameters": parameters, "statistics": state, "optimizer": nnx.state(optimizer)}
    return {
        f"{device.platform}:{i}": {kind: bytes_on(arrays, device) for kind, arrays in kinds.items()}
        for i, device in enumerate(jaxpar.devices())
    }


def _devices() -> str:
    devices = jaxpar.devices()
    if devices[0].platform != "cpu":
        return f"{len(devices)} x {devices[0].device_kind}"
    return f"{len(devices)} virtual CPU devices" if len(devices) > 1 else "1 CPU device"


def _reference() -> str:
    import torch

    n = len(jaxpar.devices())
    return f"torch.nn.DataParallel (PyTorch {torch.__version__}) on {n} pretend CPU device{'s' * (n > 1)}"
