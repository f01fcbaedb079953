"""torch modules with operations that are rare, and one module of several of them."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import weight_norm

from .memories import Shown


class Square(torch.autograd.Function):
    """A function whose gradient is not its derivative, with an array, a number and None for `backward`."""

    @staticmethod
    def forward(ctx, x, weight, power, scale=2.0):
        ctx.save_for_backward(x, weight)
        ctx.scale, ctx.power = scale, power
        return x.pow(power) * weight, scale * x

    @staticmethod
    def backward(ctx, squares, multiples):
        x, weight = ctx.saved_tensors
        by_weight = (squares * x.pow(ctx.power)).sum(0) if ctx.needs_input_grad[1] else None
        gradient = squares * weight * x
        gradient[x.abs() > 1] = 0
        return gradient + ctx.scale * multiples, by_weight, None, None


square = Square.apply


class OwnGradients(nn.Module):
    """Operations with gradients of their own, called by the class and by a name for its `apply`."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        squares, multiples = Square.apply(self.layer(x), self.weight, 2)
        return squares, square(multiples, self.weight, 3, 0.5)


class Freezes(nn.Module):
    """Weights that are not trained: of a module, by a loop and by a call, and single ones."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.shift = nn.Parameter(torch.zeros(4))
        for _name, parameter in self.trunk.named_parameters():
            parameter.requires_grad = False
        self.body.requires_grad_(False)
        self.shift.requires_grad = False
        self.head.bias.requires_grad_(False)

    def forward(self, x):
        return self.head(self.body(self.trunk(x)) + self.shift)


class PassedOn(nn.Module):
    """Functions of torch in a list, in an attribute and as an argument's default."""

    inputs = ((3, 4),)

    def __init__(self, act=F.softplus):
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), act

    def forward(self, x):
        waves = [f(self.layer(x)) for f in (torch.sin, torch.cos, torch.square, torch.neg, F.mish)]
        return self.act(torch.cat(waves, 1))


class Likelihoods(nn.Module):
    """Distributions, `partial` of a function of torch, and `.data` for a form and for a value."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.layer = weight_norm(nn.Linear(4, 4))
        self.layer.weight.data.normal_(0, 0.1)
        self.classes = nn.Linear(4, 3)
        nn.init.zeros_(self.classes.bias)

    def forward(self, x):
        if not torch.jit.is_scripting():
            rows = x.data.size(0)
        joined = map(partial(torch.cat, dim=1), ((x, x.data), (x, -x)))
        normal = torch.distributions.Normal(self.layer(x), F.softplus(x) + 0.1)
        classes = torch.distributions.Categorical(logits=self.classes(x))
        joint = torch.distributions.Independent(normal, 1)
        other = torch.distributions.Independent(torch.distributions.Normal(x, 1.0), 1)
        distance = torch.distributions.kl_divergence(joint, other)
        return normal.log_prob(x[:rows] + 1), joint.log_prob(x), distance, classes.entropy(), *joined


class OlderConstructors(nn.Module):
    """Tensors by the names of their types, and what tensors are stored as."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.FloatTensor(4, 2))
        self.bias = nn.Parameter(torch.Tensor([0.5, -0.5]))
        self.register_buffer("order", torch.LongTensor([1, 0]))
        nn.init.normal_(self.weight)

    def forward(self, x):
        y = torch.spmm(x, self.weight) if x.is_sparse else torch.mm(x, self.weight)
        return (y + self.bias)[:, self.order]


class Spectrum(nn.Module):
    """A layer with complex weights, as in Fourier operators."""

    def __init__(self, modes=3):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.rand(3, 3, modes, dtype=torch.cfloat) / 9)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros(x.shape[0], 3, x.shape[-1] // 2 + 1, device=x.device, dtype=torch.cfloat)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", spectrum[:, :, : self.modes], self.weight)
        return torch.fft.irfft(out, n=x.shape[-1])


class NormsOfAxes(nn.Module):
    """Norms of weights along torch's axis 1 and 2."""

    inputs = ((2, 4, 6),)

    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 3, 3), dim=2)
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5), dim=1)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 2), dim=1)

    def forward(self, x):
        return self.spectral(self.linear(self.conv(x)))


class OlderSpectral(nn.Module):
    """torch.nn.utils.spectral_norm, called and by another name."""

    inputs = ((2, 3, 5, 5),)

    def __init__(self):
        super().__init__()
        normal = nn.utils.spectral_norm
        self.conv = normal(nn.Conv2d(3, 4, 3))
        self.up = nn.utils.spectral_norm(nn.ConvTranspose2d(4, 2, 2), n_power_iterations=2)

    def forward(self, x):
        return self.up(self.conv(x).relu())


class DropsBetween(nn.Module):
    """Recurrent layers that drop between their layers."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, 3, batch_first=True, dropout=0.4, bidirectional=True)
        self.gru = nn.GRU(6, 2, 2, dropout=0.3)

    def forward(self, x):
        y, (h, _) = self.lstm(x)
        return self.gru(y.transpose(0, 1))[0], h


class Translates(nn.Module):
    """nn.Transformer with masks, as in translation."""

    inputs = ((3, 5, 8), (3, 4, 8))

    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.transformer(source, target, tgt_mask=mask)


class Weights(nn.Module):
    """Gradients, constructors and states of weights that are not the usual ones."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.own, self.frozen, self.passed = OwnGradients(), Freezes(), PassedOn()
        self.older, self.likelihoods = OlderConstructors(), Likelihoods()

    def forward(self, x):
        return self.own(x), self.frozen(x), self.passed(x), self.older(x), self.likelihoods(x)


class Layers(nn.Module):
    """Layers with complex weights, with a spectral norm, recurrent ones with dropout."""

    inputs = ((2, 3, 8), (2, 3, 5, 5), (3, 5, 4))

    def __init__(self):
        super().__init__()
        self.spectrum, self.spectral, self.recurrent = Spectrum(), OlderSpectral(), DropsBetween()

    def forward(self, signal, image, sequence):
        return self.spectrum(signal), self.spectral(image), self.recurrent(sequence)


class JoinsSizes(nn.Module):
    """A list of the module's own, which is a tuple in Flax, between lists."""

    inputs = ((3, 6),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.size = [2, 3]

    def forward(self, x):
        size = self.size
        y = self.layer(x).view([len(x)] + size + [1])  # noqa: RUF005
        return y.reshape(self.size + [len(x)]), y.flatten(1).cumsum(1, dtype=y.dtype)  # noqa: RUF005


class CastsToAnArgument(nn.Module):
    """A type that is an argument, without a value when it runs."""

    inputs = ((3, 4),)

    def forward(self, x, dtype=None):
        return x.to(device=x.device, dtype=dtype) * 2


class ClassesInside(nn.Module):
    """Classes in a class: a layer, settings, and another layer of the same name beside it."""

    inputs = ((3, 4),)

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.fc = nn.Linear(width, width)

        def forward(self, x):
            return torch.relu(self.fc(x))

    class Settings:
        depth = 2

    class Head(nn.Module):
        class Block(nn.Module):
            def forward(self, x):
                return 2 * x

        def __init__(self):
            super().__init__()
            self.block = self.Block()

        def forward(self, x):
            return self.block(x)

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([self.Block(4) for _ in range(ClassesInside.Settings.depth)])
        self.head = ClassesInside.Head()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)


class Asserts(nn.Module):
    """Weights of a part that are scaled in place, computed names, and tensors that are one object."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.part_1 = Part()
        with torch.no_grad():
            self.part_1.linear.weight *= 0.5

    def forward(self, x):
        key = x
        assert key is x
        assert x.shape == key.shape or key is x, "one tensor"
        return self.__getattr__(f"part_{1}").linear(key)


class Normalized(nn.Module):
    """Norms of norms: of an image without contrast torch's roundings are all that is left."""

    inputs = ((2, 2, 6, 6),)

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(2, 2, 3, padding=1) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = F.instance_norm(layer(x))
        return x


class ReadsShown(Shown):
    """An array that a class of another file keeps."""

    def forward(self, x):
        return super().forward(x) * self.scores.sum()


class Losses(nn.Module):
    """Losses as layers, with arguments by position and by name."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.plain, self.smooth = nn.MSELoss(), nn.CrossEntropyLoss(label_smoothing=0.1)
        self.logits, self.huber = nn.BCEWithLogitsLoss(), nn.HuberLoss("sum", 0.7)
        self.distances = nn.ModuleList([nn.L1Loss(reduction="none"), nn.SmoothL1Loss(beta=0.5)])
        self.cosine, self.rows = nn.CosineSimilarity(-1, eps=1e-6), nn.PairwiseDistance(keepdim=True)

    def forward(self, x):
        y = self.layer(x)
        losses = (
            self.plain(y, x) + self.smooth(y, x.argmax(-1)) + self.logits(y, x.sigmoid()) + self.huber(y, x)
        )
        losses = losses + sum(distance(input=y, target=x).sum() for distance in self.distances)
        return losses, self.cosine(y, x), self.rows(y, x)


class AsksForOneTensor(nn.Module):
    """Attention that is only for one tensor, passed three times, and a choice by it inside."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)

    def scores(self, query, key, value):
        return self.query(query) * self.key(key) if query is key else self.query(query) + value

    def forward(self, query, key, value):
        assert query is key and key is value  # noqa: PT018
        x = query + 1
        return self.scores(x, x, value), self.scores(x, x + 1, value)


class Registry:
    """Layers by name and number of axes, registered by functions, as libraries have them."""

    def __init__(self):
        self.makers = {}

    def __getitem__(self, key):
        name, *arguments = (key,) if isinstance(key, str) else key
        return self.makers[name.upper()](*arguments)

    def __getattr__(self, name):
        if name != "makers" and name in self.makers:
            return name
        raise AttributeError(name)


LAYERS = Registry()
LAYERS.makers["CONV"] = lambda axes: (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
LAYERS.makers["NORM"] = lambda axes: (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1]
LAYERS.makers["ACT"] = lambda: nn.PReLU


def registered_layer(kind, axes, *arguments):
    chosen = LAYERS[kind, axes]
    return chosen(*arguments)


class FromRegistry(nn.Module):
    """Layers that a registry chooses: one in a line, and several in a function's line."""

    inputs = ((2, 3, 6, 6),)

    def __init__(self, axes=2):
        super().__init__()
        conv = LAYERS[LAYERS.CONV, axes]
        self.first, self.act = conv(3, 4, 3), LAYERS["act"]()
        self.second, self.norm = registered_layer("conv", axes, 4, 4, 1), registered_layer("norm", axes, 4)

    def forward(self, x):
        return self.act(self.norm(self.second(self.first(x))))


class Unpools(nn.Module):
    """A SegNet: positions of maxima go from pools to unpools; and other layers of images."""

    inputs = ((2, 3, 8, 7),)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.classes, self.least = nn.Softmax2d(), nn.Softmin(dim=1)
        self.larger = nn.UpsamplingNearest2d(scale_factor=2)
        self.smooth = nn.UpsamplingBilinear2d((9, 10))
        self.drops = nn.FeatureAlphaDropout(0.0)

    def forward(self, x):
        y = self.conv(x)
        pooled, positions = self.pool(y)
        y = self.unpool(pooled, positions, output_size=y.size())
        return self.classes(y), self.least(self.drops(y)), self.smooth(self.larger(pooled))


class WeightedLoss(nn.Module):
    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(torch.ones(4))

    def forward(self, x):
        return self.loss(x, x.argmax(-1))
