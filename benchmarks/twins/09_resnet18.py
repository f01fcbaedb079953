"""What torch does in examples/09_resnet18.py, in float64 like all that is compared."""

import torch
from torch import nn
from torch.nn import functional as F

from jaxpar import parity


def conv(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        down = (conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)) if stride > 1 else ()
        self.down = nn.Sequential(*down)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.down(x))


class ResNet18(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = conv(1, width, 3, 1), nn.BatchNorm2d(width)
        blocks = [Block(width, width, 1), Block(width, width, 1)]
        for w in (width, 2 * width, 4 * width):
            blocks += [Block(w, 2 * w, 2), Block(2 * w, 2 * w, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x):
        x = (x.double().movedim(-1, 1) / 255 - 0.45) / 0.225
        return self.head(self.blocks(F.relu(self.norm(self.conv(x)))).mean((2, 3)))


def twin(example, net, n, accumulate):
    theirs = ResNet18(example.WIDTH).double()
    theirs.load_state_dict(parity.to_torch(net.module, like=theirs))
    theirs = nn.DataParallel(theirs, device_ids=list(range(n)))
    groups = [
        {"params": [p for p in theirs.parameters() if p.ndim == 1], "weight_decay": 0.0},  # norms and biases
        {"params": [p for p in theirs.parameters() if p.ndim > 1]},
    ]
    optimizer = torch.optim.SGD(groups, lr=example.highest, momentum=0.9, weight_decay=1e-4)
    up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=example.warm)
    down = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=example.steps - example.warm)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [up, down], milestones=[example.warm])

    def loss_fn(x, y):
        loss = F.cross_entropy(theirs(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return {"loss_fn": loss_fn}
