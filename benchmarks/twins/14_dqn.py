"""What torch does in examples/14_dqn.py, from the moves that jaxpar's net has played.

If each net played by itself, the first move that differs would make two games of one, and there would be
nothing to compare.
"""

import copy

import torch
from torch import nn

from jaxpar import parity


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((4, width), (width, width), (width, 2)))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def twin(example, net, n, accumulate):
    theirs = Net(64).double()
    theirs.load_state_dict(parity.to_torch(net.module, like=theirs))
    theirs, second = (nn.DataParallel(each, list(range(n))) for each in (theirs, copy.deepcopy(theirs)))
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=3e-3, amsgrad=True)
    steps, target = 0, None

    def target_fn(reward, then, fell):
        nonlocal target
        with torch.no_grad():
            target = reward + example.DISCOUNT * second(then).max(1).values * (1 - fell)
        return target

    def loss_fn(seen, action, their_target):  # which is not looked at: torch has computed its own
        nonlocal steps
        worth = theirs(seen).gather(1, action[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(worth, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(theirs.parameters(), 100.0)
        optimizer.step()
        steps += 1
        if steps % example.RENEW == 0:
            second.load_state_dict(theirs.state_dict())
        return loss

    return {"target_fn": target_fn, "loss_fn": loss_fn}
