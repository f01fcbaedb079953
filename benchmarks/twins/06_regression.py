"""What torch does in examples/06_regression.py."""

from itertools import pairwise

import torch

from jaxpar import parity


class DNN(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


def twin(example, net, n, accumulate):
    theirs = DNN([10, 64, 64, 1]).double()
    theirs.load_state_dict(parity.to_torch(net, like=theirs))
    theirs = torch.nn.DataParallel(theirs, device_ids=list(range(n)))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-2)

    def step(x, y):
        loss = ((theirs(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {"step": step}
