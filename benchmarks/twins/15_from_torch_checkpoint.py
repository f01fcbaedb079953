"""torch goes on with its own checkpoint of examples/15_from_torch_checkpoint.py."""

import torch
from torch import nn


def twin(example, net, n, accumulate):
    theirs = nn.DataParallel(example.TorchNet().double(), device_ids=list(range(n)))
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=3e-3, weight_decay=0.05)
    kept = torch.load(example.folder / "torch.pt")
    theirs.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])

    def loss_fn(x, y):
        loss = nn.functional.cross_entropy(theirs(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {"loss_fn": loss_fn}
