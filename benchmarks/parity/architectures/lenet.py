"""LeNet-5 (LeCun et al. 1998). The flattened convolution is the trap: torch's order is channel, row, column.

Either the array is turned before it is flattened, as here, or the rows of `fc1` are reordered once when
weights are converted. Turning costs a copy of a small array and keeps the weights as they are.
"""

import flax.linen
from flax import nnx
from torch import nn

from ..case import Case, normal


class LeNet(nn.Module):
    def __init__(self, pixels):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.pool = nn.AvgPool2d(2)
        self.fc1 = nn.Linear(16 * ((pixels // 2 - 4) // 2) ** 2, 120)
        self.fc2, self.fc3 = nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(self.conv1(x).tanh())
        x = self.pool(self.conv2(x).tanh())
        x = x.flatten(1)
        x = self.fc1(x).tanh()
        x = self.fc2(x).tanh()
        return self.fc3(x)


class FlaxLeNet(nnx.Module):
    def __init__(self, pixels, rngs):
        self.conv1 = nnx.Conv(1, 6, (5, 5), padding=2, rngs=rngs)
        self.conv2 = nnx.Conv(6, 16, (5, 5), padding="VALID", rngs=rngs)
        self.fc1 = nnx.Linear(16 * ((pixels // 2 - 4) // 2) ** 2, 120, rngs=rngs)
        self.fc2, self.fc3 = nnx.Linear(120, 84, rngs=rngs), nnx.Linear(84, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.avg_pool(nnx.tanh(self.conv1(x)), (2, 2), (2, 2))
        x = nnx.avg_pool(nnx.tanh(self.conv2(x)), (2, 2), (2, 2))
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        x = nnx.tanh(self.fc1(x))
        x = nnx.tanh(self.fc2(x))
        return self.fc3(x)


class LinenLeNet(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x):
        x = nnx.tanh(flax.linen.Conv(6, (5, 5), padding=2, name="conv1")(x))
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        x = nnx.tanh(flax.linen.Conv(16, (5, 5), padding="VALID", name="conv2")(x))
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        x = nnx.tanh(flax.linen.Dense(120, name="fc1")(x))
        x = nnx.tanh(flax.linen.Dense(84, name="fc2")(x))
        return flax.linen.Dense(10, name="fc3")(x)


def lenet(pixels=28, rows=16):
    return Case(
        "LeNet-5",
        lambda: LeNet(pixels),
        lambda rngs: FlaxLeNet(pixels, rngs),
        (normal(rows, 1, pixels, pixels),),
        layout="channels_last",
    )


def lenet_linen(pixels=28, rows=16):
    return Case(
        "LeNet-5, Linen",
        lambda: LeNet(pixels),
        lambda rngs: LinenLeNet(),
        (normal(rows, 1, pixels, pixels),),
        layout="channels_last",
    )
