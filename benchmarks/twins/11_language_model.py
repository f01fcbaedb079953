"""What torch does in examples/11_language_model.py. It carries a state of its own from segment to segment."""

import torch
from torch import nn

from jaxpar import parity


class Model(nn.Module):
    def __init__(self, vocabulary, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=layers)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.embedding.weight

    def forward(self, x, h, c):
        x, state = self.lstm(self.embedding(x), (h, c))
        return self.decoder(x), *state


def twin(example, net, n, accumulate):
    theirs = Model(example.V, example.H, example.L).double()
    theirs.load_state_dict(parity.to_torch(net.module, like=theirs, mapping={"decoder.bias": "bias"}))
    theirs = nn.DataParallel(theirs, device_ids=list(range(n)), dim=1)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=10.0)
    state = None

    def loss_fn(x, t, their_state):
        nonlocal state
        begins = not any(s.any() for s in their_state)
        state = their_state if begins else [s.detach() for s in state]
        y, *state = theirs(x, *state)
        loss = nn.functional.cross_entropy(y.reshape(-1, example.V), t.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.25)
        optimizer.step()
        return loss

    return {"loss_fn": loss_fn}
