"""torch modules that compute some rows, as mixtures of experts do, and that build layers from a list."""

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cpu")


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w1, self.w2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)))


class Experts(nn.Module):
    """Rows by `torch.where` of a mask, added back by an index and by `index_add_`."""

    inputs = ((2, 3, 4),)

    def __init__(self, count=3):
        super().__init__()
        self.gate = nn.Linear(4, count, bias=False)
        self.experts = nn.ModuleList(Expert(4) for _ in range(count))

    def forward(self, x):
        rows = x.view(-1, 4)
        weights, chosen = torch.topk(self.gate(rows).softmax(-1), 2)
        y, z = torch.zeros_like(rows), torch.zeros_like(rows)
        mask = F.one_hot(chosen, 3).permute(2, 1, 0)
        counts = torch.bincount(chosen.flatten(), minlength=3).tolist()
        for i in range(len(self.experts)):
            if counts[i] == 0:
                continue
            layer = self.experts[i]
            batch, nth = torch.where(chosen == i)
            y[batch] += weights[batch, nth, None] * layer(rows[batch])
        for i in range(3):
            chooses = chosen == i
            if not chooses.any():
                continue
            at, place = torch.where(chooses)
            y[at] += weights[at, place, None] * rows[at]
        for i, expert in enumerate(self.experts):
            first, token = mask[i].nonzero(as_tuple=True)
            if token.numel() == 0:
                continue
            current = rows[None, token].reshape(-1, 4)
            current = expert(current) * weights[token, first, None]
            z.index_add_(0, token, current.to(x.dtype))
        used = torch.bincount(chosen.view(-1), minlength=3)
        return y, z, used / used.sum()


class Selected(nn.Module):
    """`y[mask] = f(x[mask])`, and the same with an operation."""

    inputs = ((2, 3, 4),)

    def __init__(self, device=device):
        super().__init__()
        self.device = device
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        mask = x.mean(-1) > 0
        y = torch.zeros_like(x).to(self.device)
        y[mask] = self.first(x[mask])
        z = x.clone()
        z[mask] += 2 * self.second(x[mask]) - x[mask]
        if mask.any().item():
            y[mask] = self.second(y[mask])
        if (y > 1).any():
            y[y > 1] = 1.0
        large = z > 2
        if torch.any(large):
            z = z.masked_fill(large, 2.0)
            z = torch.where(large, -z, z)
        if self.first is not None and mask.any().item():
            if mask.dim() == 2:
                z = z.float().masked_fill(mask[:, :, None], -1.0).type_as(z)
            elif mask.dim() == 1:
                z = z.masked_fill(mask.unsqueeze(-1), -2.0)
        if bool(large.any()):
            z.masked_fill_(large, 0.5)
        return y, z


class Sigmoid2(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(2 * x)


class Listed(nn.Module):
    """Classes of a list, of which some take no random numbers, and a function with `**kwargs`."""

    inputs = ((2, 3, 6, 6),)

    def __init__(self, device):
        super().__init__()
        rows = [(nn.Conv2d, (3, 4, 3)), (nn.MaxPool2d, (2,)), (Sigmoid2, ()), (nn.Conv2d, (4, 4, 1))]
        self.layers = nn.Sequential(*(kind(*arguments) for kind, arguments in rows))

    def forward(self, x):
        options = {"mode": "nearest"}
        if len(self.layers) > 1:
            options["scale_factor"] = (2.0, 3.0)
        return F.interpolate(self.layers(x), **options)


def listed():
    return Listed(device)


listed.inputs = Listed.inputs
del Listed.inputs


class Normed(nn.Module):
    """A hole: what BatchNorm computes of a row depends on the other rows that are selected."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        (rows,) = torch.where(x.mean(-1) > 0)
        y, z = torch.zeros_like(x), torch.zeros_like(x)
        y[rows] = self.norm(x[rows])
        mask = x.mean(-1) > 0
        z[mask] = self.norm(x[mask])
        return y, z


class Averaged(nn.Module):
    """A hole: a mean of the selected rows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        (rows,) = torch.where(x.mean(-1) > 0)
        y = torch.zeros_like(x)
        y[rows] = self.layer(x[rows]) - x[rows].mean(0)
        return y + x[rows].sum()


class Halved(nn.Module):
    """A hole: a turn that selects no row does more than to put rows back."""

    def forward(self, x):
        y, scale = torch.zeros_like(x), 1.0
        for i in range(2):
            (rows,) = torch.where(x.mean(-1) > i)
            if len(rows) == 0:
                continue
            scale = scale / 2
            y[rows] = scale * x[rows]
        return y


class Divided(nn.Module):
    """A hole: of rows that are not selected the derivative may not be finite."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        mask = (x != 0).all(-1)
        y = torch.zeros_like(x)
        y[mask] = self.layer(x[mask]) / x[mask]
        return y


class Scales(nn.Module):
    """A hole: what is done where the mask has a true value changes other places too."""

    def forward(self, x):
        mask = x > 0
        if mask.any():
            x = 2 * x
        if mask.all() or mask.any():
            x = x.masked_fill(mask, 1.0)
        if mask.any():
            x = torch.where(mask, 2 * x, x + 1)
        return x


class Largest:
    """A plain object whose constructor has a hole."""

    def __init__(self, layer):
        self.flips = torch.histc(layer.weight, 4).tolist()


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.largest = Largest(self.layer)

    def forward(self, x):
        return self.layer(x)
