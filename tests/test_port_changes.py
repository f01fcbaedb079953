"""What a call changes where no comparison looks, however it is written."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from jaxpar import parity  # noqa: E402
from jaxpar.parity._port.changes import hidden_changes  # noqa: E402


def raised(x):
    x += 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.calls, self.table, self.sizes = 0, torch.zeros(3), [1]
        self.register_buffer("seen", torch.zeros(3), persistent=False)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        return self.layer(x)


class Counts(Net):
    def forward(self, x):
        vars(self)["calls"] += 1
        return self.layer(x)


class Buffers(Net):
    def forward(self, x):
        raised(self.seen)
        return self.layer(x)


class Evaluates(Net):
    def forward(self, x):
        if not self.training:
            raised(self.table[:2])
        return self.layer(x)


class Appends(Net):
    def forward(self, x):
        getattr(self.sizes, "append")(3)  # noqa: B009
        return self.layer(x)


class Record:
    last = None


class Objects(Net):
    def __init__(self):
        super().__init__()
        self.record = Record()

    def forward(self, x):
        record = self.record
        record.last = self.layer(x)
        return record.last


class Arguments(Net):
    def forward(self, x):
        raised(x)
        return self.layer(x)


class State(Net):
    """Its state is compared, and what it makes once is not changed again."""

    def forward(self, x):
        raised(self.steps)
        if self.calls == 0:
            self.calls, self.table = 1, torch.ones(3)
        x = x.clone()
        raised(x)
        return self.layer(x)


CHANGES = {
    Counts: ["calls"],
    Buffers: ["seen"],
    Evaluates: ["table"],
    Appends: ["sizes[2]"],
    Arguments: ["argument[0][0]"],
    State: [],
    Objects: ["record.last"],
    Net: [],
}


@pytest.mark.parametrize("kind", CHANGES, ids=lambda kind: kind.__name__)
def test_what_a_call_changes_is_seen(kind):
    found = hidden_changes(kind, [torch.ones(2, 3)], {})
    assert found == CHANGES[kind]


LAYERS = [nn.BatchNorm1d(3), nn.Dropout(), nn.LSTM(3, 4), nn.MultiheadAttention(4, 2), nn.utils.weight_norm]


def layer(kind):
    return nn.utils.weight_norm(nn.Linear(3, 2)) if kind is nn.utils.weight_norm else kind


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: type(kind).__name__)
def test_torchs_layers_change_their_state_alone(kind):
    inputs = [torch.ones(2, 3)] if not isinstance(kind, nn.MultiheadAttention) else [torch.ones(2, 4)] * 3
    assert hidden_changes(lambda: layer(kind), inputs, {}) == []


@pytest.mark.full
def test_a_change_that_the_translation_does_not_see_is_no_proof():
    port = parity.port(Counts, torch.ones(2, 3))
    assert not port.holes
    assert port.status == 3
    assert "a call changes calls, where no comparison looks" in port.failure
