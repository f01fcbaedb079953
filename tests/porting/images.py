"""torch modules whose lines mean the axes of images. Every class with `inputs` is a case."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


class Along(nn.Module):
    """Functions along axes; what is left of an image has torch's order, or is turned."""

    inputs = ((2, 4, 6, 5),)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        a = torch.cat([y, -y], dim=1)
        b, c = a.chunk(2, 1)
        d = torch.softmax(b, 1) + b.mean((2, 3), keepdim=True)
        e = c.sum(1), c.mean([2, 3]), c.amax(1), c.argmax(3, keepdim=True).sum((0, 1, 2, 3))
        f = d.sum(3)
        g = F.normalize(d, dim=1) * d.var((2, 3), keepdim=True) + d.cumsum(3)
        h = torch.flip(d, (2, 3)).roll(1, 1).mean()
        return g, f, e[:3], h


class Shapes(nn.Module):
    """Shapes, and parts of an image."""

    inputs = ((2, 3, 8, 6),)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        y = self.conv(x)
        B, C, H, W = y.shape
        *_, h, w = y.shape
        z = F.interpolate(y[:, :, ::2, ::2], size=y.shape[-2:], mode="nearest")
        z = F.pad(z, (1, 0, 0, 1))[:, :, 1:, :-1]
        part = z[:, : y.size(1) // 2]
        rows = y.view(B, C, H * W)
        first = z[:, 0], z[:, :, 0]
        return part * (h / w), rows, first


class Beside(nn.Module):
    """Parameters, buffers and numbers of the file beside an image; what other lines make of it."""

    inputs = ((2, 4, 5, 5),)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.scale = nn.Parameter(torch.rand(4, 1, 1))
        self.weight = nn.Parameter(torch.rand(4, 4, 3, 3) / 9)
        self.register_buffer("place", torch.rand(1, 4, 1, 1))
        self.columns = nn.Linear(5, 5)

    def forward(self, x):
        y = self.conv(x) * self.scale + self.place
        gate = y.mean((2, 3)).unsqueeze(-1).unsqueeze(-1)
        y += gate
        y = F.conv2d(y, self.weight, padding=1)
        y = self.columns(y)
        return torch.where(y > 0, y, 0.1 * y).clamp(max=2.0)


class Shuffle(nn.Module):
    """Reshapes that mix the channels with the space, between layers that take images."""

    inputs = ((2, 4, 6, 6),)

    def __init__(self):
        super().__init__()
        self.heads = nn.Conv2d(4, 4, 1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x):
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w)
        x = x.transpose(1, 2).reshape(n, c, h, w)
        x = self.norm(x)
        q = self.heads(x).view(n, 2, c // 2, h * w).transpose(2, 3)
        scores = torch.softmax(q @ q.transpose(-2, -1), -1)
        grown = F.pixel_shuffle(x, 2)
        return grown, (scores @ q).sum(1)


class Layers(nn.Module):
    """Layers in containers and lists, rows of numbers and images that come of them."""

    inputs = ((2, 3, 8, 8),)

    def __init__(self):
        super().__init__()
        self.stem = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.PReLU(4)])
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 12))
        self.back = nn.Sequential(nn.Unflatten(1, (3, 2, 2)), nn.Upsample(scale_factor=2))
        self.up = nn.ConvTranspose2d(4, 2, 3, stride=2, padding=3)

    def forward(self, x):
        features = []
        for layer in self.stem:
            x = layer(x)
            features.append(x)
        y = torch.cat(features, 1)
        up = self.up(x, output_size=[12, 12]) if self.training else self.up(x)
        rows = self.head(x)
        back = self.back(rows)
        return {"image": back, "up": up, "rows": rows, "all": y}


class Own(nn.Conv2d):
    """A layer with a forward of its own."""

    def forward(self, x):
        return super().forward(F.avg_pool2d(x, 2))


class Derived(nn.Module):
    """A class derived from a layer, a function of the file, two calls of one class, masks."""

    inputs = ((2, 3, 8, 8), (2, 1, 4, 4))

    def __init__(self):
        super().__init__()
        self.own = Own(3, 4, 3, padding=1)
        self.acts = (F.relu, torch.tanh, partial(F.leaky_relu, negative_slope=0.2))

    def forward(self, x, mask):
        y, count = masked(self.own(x), mask > 0)
        for act in self.acts:
            y = act(y)
        y = y.masked_fill(~(mask > 0), 0.0)
        rows = [each.flatten(1) for each in (y, x)]
        return y / count, rows


def masked(x, mask):
    return x * mask.to(x.dtype), x.size(1)


class Written(nn.Module):
    """It writes into a part of an image."""

    inputs = ((2, 3, 4, 4),)

    def forward(self, x):
        x = x * 2
        x[:, 0] = 0.0
        return x


class Normed(nn.Module):
    """A layer over the last axis, in a container behind one that takes images."""

    inputs = ((2, 3, 4, 4),)

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 3, 1), nn.LayerNorm(4))

    def forward(self, x):
        return self.layers(x)


class Sometimes(nn.Module):
    """A function that is given images and rows."""

    inputs = ((2, 3, 4, 4),)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return centred(self.conv(x)), centred(x.flatten(2))


def centred(x):
    return x.mean(1)


class Stacked(nn.Module):
    """A list of images that a line takes as a whole."""

    inputs = ((2, 3, 4, 4),)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        found = []
        for _ in range(2):
            x = self.conv(x)
            found.append(x)
        return torch.stack(found).sum(0)


class Listed(nn.Module):
    """Images in a list, of which one is given to a line that cannot be written."""

    def forward(self, images):
        return torch.stack(images)


class Named(nn.Module):
    """An image that is a keyword argument."""

    def forward(self, x, mask=None):
        return x.mean(1) + (0 if mask is None else mask.mean(1))


class Many(nn.Module):
    """A loop that joins thousands of images."""

    inputs = ((1, 1, 2, 2),)

    def forward(self, x):
        for _ in range(1500):
            x = x + 0.5
        return x


class Row(nn.Sequential):
    """A container, which has no call of its own in whose first line images could be turned."""

    inputs = ((2, 3, 4, 4),)

    def __init__(self):
        super().__init__(nn.Conv2d(3, 3, 1), nn.LayerNorm(4))


class Mixed(nn.Module):
    """One line that calls layers of images and others."""

    inputs = ((2, 4, 4, 4),)

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Linear(4, 4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Numbers(nn.Module):
    """Integers with four axes."""

    inputs = ((2, 3, 4, 4),)

    def forward(self, x):
        return x.argmax(1, keepdim=True), x.relu()
