"""torch modules with packed sequences: `All` has all that are written in one, `Refused` the others."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    """Packed in any order, in two directions; the states go to the next layer."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, (h, c) = self.lstm(packed)
        out, last = self.gru(packed, torch.cat((h[:1], c[:1]), dim=-1))
        out, sizes = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        return self.head(out), h, c, last, sizes


class Sorted(nn.Module):
    """Time first, sorted by the module; lengths that are assigned again, an array of another layout."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(3, 4)
        self.gru = nn.GRU(3, 4)

    def forward(self, x, lengths):
        lengths, order = lengths.sort(descending=True)
        x = x[:, order]
        y = nn.utils.rnn.pack_padded_sequence(x, lengths)
        _, h = self.rnn(y)
        lengths = lengths * 0 + 1
        out, _ = self.gru(y)
        return pad_packed_sequence(out, batch_first=True, total_length=len(x))[0], h, lengths


class Encoder(nn.Module):
    """Only the last states are read."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)

    def forward(self, x, lengths):
        n = lengths + 0
        packed = pack_padded_sequence(x, n, True, enforce_sorted=False)
        n.clamp_(max=1)
        _, h = self.gru(packed)
        _, other = self.gru(pack_padded_sequence(x, lengths, True, enforce_sorted=False))
        return h[-1], other


class Longest(nn.Module):
    """As long as the longest sequence, to which batches are padded."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x, lengths):
        n = lengths.clone()
        packed = pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        n[1] = 1
        out, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return out


class All(nn.Module):
    def __init__(self):
        super().__init__()
        self.tagger, self.sorted, self.encoder = Tagger(), Sorted(), Encoder()
        self.longest = Longest()

    def forward(self, x, lengths):
        states = self.sorted(x.transpose(0, 1), lengths), self.encoder(x, lengths)
        return self.tagger(x, lengths), self.longest(x, lengths), states


class Refused(nn.Module):
    """What a padded array cannot be."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4)
        self.first = nn.GRU(3, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        out, _ = self.gru(packed)
        _, h = self.first(packed)
        filled, _ = pad_packed_sequence(out, padding_value=1.0, total_length=5)
        return out.data, h, filled
