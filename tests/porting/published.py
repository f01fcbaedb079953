"""torch modules in the style of published code. Every class with `inputs` is a case."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class MeanShift(nn.Conv2d):
    """Weights by `.data`, changed in place by an array, and an attribute that means nothing."""

    def __init__(self, means, stds):
        super().__init__(3, 3, kernel_size=1)
        std = torch.Tensor(stds)
        self.weight.data = torch.eye(3).view(3, 3, 1, 1)
        self.weight.data.div_(std.view(3, 1, 1, 1))
        self.bias.data = -1.0 * torch.Tensor(means)
        self.requires_grad = False


class Shifted(nn.Module):
    inputs = ((2, 3, 5, 5),)

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.shift = MeanShift((0.4, 0.5, 0.6), (1.0, 2.0, 0.5))
        for p in self.shift.parameters():
            p.requires_grad = False
        self.conv = nn.Conv2d(3, 4, 3)
        self.scale = nn.Parameter(torch.Tensor(4))
        self.scale.data = torch.linspace(1, 2, 4)

    def forward(self, x):
        return self.conv(self.shift(x)) * self.scale[:, None, None]


class Steps(nn.Module):
    """A table of sines in an Embedding that is not trained, and one that is."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        angles = torch.arange(5.0)[:, None] * torch.arange(1, 3) / 7
        table = torch.stack([angles.sin(), angles.cos()], -1).view(5, 4)
        self.steps = nn.Sequential(nn.Embedding.from_pretrained(table), nn.Linear(4, 4))
        self.words = nn.Embedding.from_pretrained(2 * table, freeze=False, padding_idx=0)

    def forward(self, x):
        step = (x.abs().sum(1) > 2).long()
        return self.steps(step) + self.words(3 * step) * x


class Neighbours(nn.Module):
    """Features of the nearest points: of equally near ones, `topk` takes any, and gradients go there."""

    inputs = ((2, 3, 7),)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 4, 1)

    def forward(self, x):
        square = (x**2).sum(1, keepdim=True)
        near = 2 * x.transpose(2, 1) @ x - square - square.transpose(2, 1)
        index = near.topk(k=3, dim=-1)[1]
        points = x.transpose(2, 1)
        gathered = torch.stack([row[i] for row, i in zip(points, index, strict=True)])
        centers = points.unsqueeze(2).expand_as(gathered)
        return self.conv(torch.cat((gathered - centers, centers), 3).permute(0, 3, 1, 2)).max(-1)[0]


class Delays(nn.Module):
    """The strongest correlations, which are equal where a row is 0."""

    inputs = ((3, 8),)

    def __init__(self):
        super().__init__()
        self.queries = nn.Linear(8, 8, bias=False)
        self.keys = nn.Linear(8, 8, bias=False)

    def forward(self, x):
        queries, keys = torch.fft.rfft(self.queries(x)), torch.fft.rfft(self.keys(x))
        strength = torch.fft.irfft(queries * torch.conj(keys))
        weights, delay = torch.topk(strength, 2, dim=-1)
        index = torch.arange(8) + delay.unsqueeze(-1)
        rows = torch.gather(x.repeat(1, 2).unsqueeze(1).expand(-1, 2, -1), -1, index)
        return (rows * weights.softmax(-1).unsqueeze(-1)).sum(1)


class Triplets(nn.Module):
    inputs = ((4, 3), (4, 3), (4, 3))

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.criterion = nn.TripletMarginWithDistanceLoss(
            distance_function=lambda a, b: 1.0 - F.cosine_similarity(a, b), margin=0.3, swap=True
        )

    def forward(self, anchor, positive, negative):
        return self.criterion(*map(self.linear, (anchor, positive, negative)))


class Types(nn.Module):
    """A type that a variable holds, which converts and makes tensors, and `**kwargs` without entries."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def initial(self, rows, **kwargs):
        return torch.zeros(rows, 4, **kwargs)

    def forward(self, x):
        FloatTensor = torch.cuda.FloatTensor if x.is_cuda else torch.FloatTensor
        grid = torch.arange(4).type(FloatTensor)
        boxes = FloatTensor(x.shape)
        boxes[..., :2] = self.linear(x)[..., :2] + grid[:2]
        boxes[..., 2:] = x[..., 2:] * FloatTensor([(1.5, 2.0)])
        return boxes + self.initial(len(x))


class Rescale(nn.Module):
    """A weight with torch's axes, and one that has no norm."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, 2 * width).view(2, width))
        self.offset = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x @ self.weight.T @ self.weight + self.offset


class Rescaled(nn.Module):
    inputs = ((4, 3),)

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(Rescale(3))
        self.second = nn.utils.parametrizations.weight_norm(Rescale(3), name="weight")

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Seeds(nn.Module):
    """A hole: each call draws the same numbers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        torch.manual_seed(0)
        return self.linear(x) + torch.randn_like(x)


class Proxy(object):  # noqa: UP004
    """Layers by their numbers, of a module that it keeps."""

    def __init__(self, module, prefix):
        self.module = module
        self.prefix = prefix

    def __getitem__(self, i):
        return getattr(self.module, self.prefix + str(i))


class Pairs:
    def __init__(self, first, second):
        self.first, self.second = first, second

    def run(self, x):
        return self.second(F.relu(self.first(x)))


class Proxies(nn.Module):
    """Plain objects that keep modules, marks of weights, and checks that decide by data."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        for i in range(2):
            self.add_module(f"layer_{i}", nn.Linear(4, 4))
        self.layers = Proxy(self, "layer_")
        self.pairs = Pairs(self.layer_0, self.layer_1)
        self.scale = nn.Parameter(torch.ones(4))
        self.scale._no_weight_decay = True
        for name in ("scale",):
            setattr(getattr(self, name), "_optim", {"lr": 1.0})  # noqa: B010
        permutation, lower, upper = torch.linalg.lu(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.permutation, self.lower = nn.Parameter(permutation, requires_grad=False), nn.Parameter(lower)
        self.upper = nn.Parameter(upper)

    def forward(self, x):
        mask = x.abs() >= 0
        starts = self.training and mask[:, 0].all()
        starts_in_evaluation = not self.training and mask[:, 0].all()
        if not starts and not starts_in_evaluation:
            raise ValueError("the first column is masked")
        for i in range(2):
            x = self.layers[i](x)
        product = self.permutation @ self.lower @ self.upper
        return self.pairs.run(x) * self.scale, x.view(-1, 2) @ product


def uniform(scale):
    """Return a function that draws, as the score networks have it."""

    def init(shape, dtype=torch.float32):
        return scale * torch.rand(*shape, dtype=dtype)

    return init


class Drawn(nn.Module):
    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(uniform(0.5)((4, 5)))

    def forward(self, x):
        return x @ self.weight


class Codebook(nn.Module):
    """A table that averages in the call, and buffers that a lambda registers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 4)
        self.table.weight.data.uniform_(-1, 1)
        self.table.weight.requires_grad = False
        register_buffer = lambda name, val: self.register_buffer(name, val.float())  # noqa: E731
        register_buffer("sums", self.table.weight.data.clone())
        register_buffer("counts", torch.ones(3))

    def forward(self, x):
        chosen = F.one_hot(torch.cdist(x, self.table.weight).argmin(1), 3).to(x.dtype)
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.9).add_(0.1 * chosen.sum(0))
                self.sums.mul_(0.9).add_(0.1 * chosen.t() @ x)
                self.table.weight.data.copy_(self.sums / self.counts.unsqueeze(1))
        return x + (chosen @ self.table.weight - x).detach()


class Chosen(nn.Module):
    """The constructor chooses the method that is called."""

    def __init__(self, mode):
        super().__init__()
        if mode == "scaled":
            self.forward = self.forward_scaled
        else:
            self.forward = self.forward_plain

    def forward_plain(self, x, y):
        return self.loss(x, y, reduction="none")

    def forward_scaled(self, x, y):
        return 2 * self.loss(x, y, reduction="none")

    @property
    def loss(self):
        return F.smooth_l1_loss


class Repository(nn.Module):
    inputs = ((5, 4),)

    def __init__(self):
        super().__init__()
        self.scales = np.array([1.0, 2.0])
        self.linear, self.codebook = nn.Linear(4, 4), Codebook()
        self.losses = nn.ModuleList([Chosen("scaled"), Chosen("plain")])
        for layer in self.children():
            for name, _ in layer.named_parameters(recurse=False):
                setattr(getattr(layer, name), "_optim", {"lr": 0.1})  # noqa: B010

    def forward(self, x):
        y = self.linear(x)
        rows = [np.arange(2) * scale for scale in self.scales]
        boxes = np.concatenate(rows)
        codes, target = self.codebook(y), x.new(x) + torch.from_numpy(boxes)
        return codes, [loss(y, target) for loss in self.losses]
