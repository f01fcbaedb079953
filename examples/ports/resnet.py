"""ResNet-18 in Flax: resnet_torch.py line by line."""

from flax import nnx

import jaxpar
import jaxpar.nn.channels_first as nn
import jaxpar.nn.channels_first.functional as F
from jaxpar.random.init import kaiming_normal_


class BasicBlock(nnx.Module):
    def __init__(self, inplanes, planes, stride, rngs):
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, padding=1, bias=False, rngs=rngs)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False, rngs=rngs)
        self.bn2 = nn.BatchNorm2d(planes)
        downsample = None
        if stride != 1 or inplanes != planes:
            conv = nn.Conv2d(inplanes, planes, 1, stride, bias=False, rngs=rngs)
            downsample = nn.Sequential(conv, nn.BatchNorm2d(planes))
        self.downsample = downsample

    def __call__(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nnx.Module):
    def __init__(self, blocks, width, num_classes, rngs):
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False, rngs=rngs)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        layers, inplanes = [], width
        for i, count in enumerate(blocks):
            for j in range(count):
                stride = 2 if i > 0 and j == 0 else 1
                layers.append(BasicBlock(inplanes, width * 2**i, stride, rngs))
                inplanes = width * 2**i
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(inplanes, num_classes, rngs=rngs)

    def __call__(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        return self.fc(self.layers(x).mean((2, 3)))


def init_weights(kind, tensors, generator):
    if kind == "Conv2d":
        kaiming_normal_(tensors["weight"], mode="fan_out", nonlinearity="relu", generator=generator)


def resnet18(width=64, num_classes=1000, *, generator, dtype="float32"):
    model = jaxpar.to(ResNet([2, 2, 2, 2], width, num_classes, nnx.Rngs(0)), dtype=dtype)
    return jaxpar.random.torch_init(model, generator, apply=init_weights)
