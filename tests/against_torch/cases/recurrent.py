"""RNN, LSTM, GRU and their cells: torch's call and the inputs."""

import jax
import numpy as np
import torch
from against_torch.layers import Case, Refused


def states(net, x, *hx):
    """One state, or two in a tuple."""
    return net(x, hx[0] if len(hx) == 1 else hx)


def packed(net, x, lengths, *hx):
    """torch's side packs the sequences, runs, and pads them again to the steps of x."""
    hidden = None if not hx else hx[0] if len(hx) == 1 else hx
    if isinstance(x, jax.Array):
        return net(x, hidden, lengths=lengths)
    first, steps = net.batch_first, x.shape[1 if net.batch_first else 0]
    sequences = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, first, enforce_sorted=False)
    outputs, hidden = net(sequences, hidden)
    return torch.nn.utils.rnn.pad_packed_sequence(outputs, first, total_length=steps)[0], hidden


LENGTHS = np.array([3, 5, 1, 4])
FULL = np.array([5, 5, 5, 5])


def stack(text, inputs=((5, 4, 3),), call=Case.call):
    return Case(text, inputs=inputs, channels=None, call=call)


def sizes(form, layers, width=2, batch=(4,)):
    """The shapes of a stack's states, of `layers` layers and directions, and 2 wide."""
    h = (layers, *batch, width)
    return (h, (layers, *batch, 2)) if form == "LSTM" else (h,)


STACKS = [
    case
    for form in ("LSTM", "GRU", "RNN")
    for case in [
        stack(f"{form}(3, 2)"),
        stack(f"{form}(3, 2, bias=False)"),
        stack(f"{form}(3, 2, 2, bidirectional=True, batch_first=True)", ((4, 5, 3),)),
        stack(f"{form}(3, 2, 3)", ((5, 4, 3), *sizes(form, 3)), states),
        stack(f"{form}(3, 2, bidirectional=True)", ((5, 4, 3), *sizes(form, 2)), states),
        stack(f"{form}(3, 2, 2, bidirectional=True)", ((5, 3), *sizes(form, 4, batch=())), states),
        stack(f"{form}(3, 2, batch_first=True)", ((5, 3),)),
        # Everything is dropped between the layers in training, nothing in evaluation.
        stack(f"{form}(3, 2, 2, dropout=1.0)"),
        stack(f"{form}(3, 2, 2, bidirectional=True)", ((5, 4, 3), LENGTHS, *sizes(form, 4)), packed),
        stack(f"{form}(3, 2, batch_first=True)", ((4, 5, 3), LENGTHS), packed),
        stack(f"{form}(3, 2)", ((5, 4, 3), FULL), packed),
    ]
]
CASES = [
    *STACKS,
    stack("RNN(3, 2, 2, 'relu')"),
    stack("RNN(3, 2, nonlinearity='relu', bidirectional=True)", ((5, 4, 3), LENGTHS), packed),
    stack("LSTM(3, 4, proj_size=2)"),
    stack(
        "LSTM(3, 4, 2, bias=False, bidirectional=True, proj_size=2)",
        ((5, 4, 3), LENGTHS, (4, 4, 2), (4, 4, 4)),
        packed,
    ),
    stack("LSTM(3, 4, 2, batch_first=True, proj_size=2)", ((4, 5, 3), (2, 4, 2), (2, 4, 4)), states),
    stack("LSTM(3, 4, proj_size=2)", ((5, 3), (1, 2), (1, 4)), states),
    *[
        stack(f"{form}Cell(3, 2{options})", inputs, call)
        for form in ("LSTM", "GRU", "RNN")
        for options, inputs, call in [
            ("", ((4, 3),), Case.call),
            ("", ((4, 3), (4, 2), *[(4, 2)] * (form == "LSTM")), states),
            (", bias=False", ((3,), (2,), *[(2,)] * (form == "LSTM")), states),
        ]
    ],
    stack("RNNCell(3, 2, nonlinearity='relu')", ((4, 3), (4, 2)), states),
]

REFUSED = [
    Refused("LSTM(0, 2)", "LSTM(0, 2)", ValueError, "input_size must be greater than zero"),
    Refused("GRU(3, 0)", "GRU(3, 0)", ValueError, "hidden_size must be greater than zero"),
    Refused("RNN(3, 2, 0)", "RNN(3, 2, 0)", ValueError, "num_layers must be greater than zero"),
    Refused("LSTM(3., 2)", "LSTM(3., 2)", TypeError, "input_size should be of type int, got: float"),
    Refused("LSTM(3, '2')", "LSTM(3, '2')", TypeError, "hidden_size should be of type int, got: str"),
    Refused("GRU(3, 2, bias=1)", "GRU(3, 2, bias=1)", TypeError, "bias should be of type bool, got: int"),
    Refused(
        "GRU(3, 2, batch_first=1)",
        "GRU(3, 2, batch_first=1)",
        TypeError,
        "batch_first should be of type bool, got: int",
    ),
    Refused(
        "LSTM(3, 2, 2, dropout=1.5)",
        "LSTM(3, 2, 2, dropout=1.5)",
        ValueError,
        "dropout should be a number in range [0, 1]",
    ),
    Refused(
        "LSTM(3, 2, proj_size=-1)",
        "LSTM(3, 2, proj_size=-1)",
        ValueError,
        "proj_size should be a positive integer or zero to disable projections",
    ),
    Refused(
        "LSTM(3, 2, proj_size=2)",
        "LSTM(3, 2, proj_size=2)",
        ValueError,
        "proj_size has to be smaller than hidden_size",
    ),
    Refused("GRU(3, 2, proj_size=1)", "GRU(3, 2, proj_size=1)", TypeError, "proj_size"),
    Refused(
        "RNN(3, 2, nonlinearity='sigmoid')",
        "RNN(3, 2, nonlinearity='sigmoid')",
        ValueError,
        "Unknown nonlinearity 'sigmoid'. Select from 'tanh' or 'relu'.",
    ),
    Refused(
        "RNNCell(3, 2, nonlinearity='sigmoid')",
        "RNNCell(3, 2, nonlinearity='sigmoid')",
        ValueError,
        "Unknown nonlinearity 'sigmoid'. Select from 'tanh' or 'relu'.",
        inputs=((4, 3),),
    ),
]
