"""Models of words, graphs and numbers, in the shapes of those that pytorch/examples trains, small."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Rows(nn.Module):
    """An image as a sequence of its rows, read by an LSTM."""

    def __init__(self, width=12, hidden=16, classes=10):
        super().__init__()
        self.rnn = nn.LSTM(width, hidden, batch_first=True)
        self.batchnorm = nn.BatchNorm1d(hidden)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(hidden, 12)
        self.fc2 = nn.Linear(12, classes)

    def forward(self, input):
        input = input.reshape(-1, input.size(-2), input.size(-1))
        output, _ = self.rnn(input)
        output = self.batchnorm(output[:, -1, :])
        output = F.relu(self.fc1(self.dropout1(output)))
        return F.log_softmax(self.fc2(output), dim=1)


class Language(nn.Module):
    """The next word by an LSTM or a GRU; its state goes in and out."""

    def __init__(self, rnn_type="LSTM", ntoken=11, ninp=8, nhid=8, nlayers=2, dropout=0.2):
        super().__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        if rnn_type == "LSTM":
            self.rnn = nn.LSTM(ninp, nhid, nlayers)
        else:
            self.rnn = nn.GRU(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)
        self.init_weights()
        self.rnn_type = rnn_type
        self.nhid = nhid
        self.nlayers = nlayers

    def init_weights(self):
        initrange = 0.1
        nn.init.uniform_(self.encoder.weight, -initrange, initrange)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -initrange, initrange)

    def forward(self, input):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, self.init_hidden(input.size(1)))
        output = self.drop(output)
        decoded = self.decoder(output)
        decoded = decoded.view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = self.decoder.weight
        if self.rnn_type == "LSTM":
            return (
                weight.new_zeros(self.nlayers, bsz, self.nhid),
                weight.new_zeros(self.nlayers, bsz, self.nhid),
            )
        return weight.new_zeros(self.nlayers, bsz, self.nhid)


class Positions(nn.Module):
    """Sines and cosines of the place, added to the words."""

    def __init__(self, d_model, dropout=0.1, max_len=20):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        pe = pe.unsqueeze(0).transpose(0, 1)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(0), :]
        return self.dropout(x)


class TransformerLanguage(nn.Module):
    """The next word by a Transformer's encoder with a causal mask."""

    def __init__(self, ntoken=11, ninp=8, nhead=2, nhid=16, nlayers=2, dropout=0.2):
        super().__init__()
        self.pos_encoder = Positions(ninp, dropout)
        layer = nn.TransformerEncoderLayer(ninp, nhead, nhid, dropout)
        self.encoder = nn.TransformerEncoder(layer, nlayers)
        self.input_emb = nn.Embedding(ntoken, ninp)
        self.ninp = ninp
        self.decoder = nn.Linear(ninp, ntoken)

    def forward(self, src):
        mask = torch.log(torch.tril(torch.ones(len(src), len(src))))
        src = self.input_emb(src) * math.sqrt(self.ninp)
        src = self.pos_encoder(src)
        output = self.encoder(src, mask=mask)
        return F.log_softmax(self.decoder(output), dim=-1)


class Sequence(nn.Module):
    """The next values of a sine, by cells that are fed what they said."""

    def __init__(self, hidden=5):
        super().__init__()
        self.hidden = hidden
        self.lstm1 = nn.LSTMCell(1, hidden)
        self.lstm2 = nn.LSTMCell(hidden, hidden)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, input, future=0):
        outputs = []
        h_t = torch.zeros(input.size(0), self.hidden, dtype=input.dtype)
        c_t = torch.zeros(input.size(0), self.hidden, dtype=input.dtype)
        h_t2 = torch.zeros(input.size(0), self.hidden, dtype=input.dtype)
        c_t2 = torch.zeros(input.size(0), self.hidden, dtype=input.dtype)
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):  # if we should predict the future
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


class Inference(nn.Module):
    """What one sentence says of another, by one LSTM for both."""

    def __init__(self, words=13, width=6, hidden=5):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.projection = nn.Linear(width, width)
        self.rnn = nn.LSTM(width, hidden, num_layers=1, bidirectional=True)
        self.dropout = nn.Dropout(p=0.2)
        self.relu = nn.ReLU()
        sizes = [4 * hidden] * 2
        self.out = nn.Sequential(
            nn.Linear(*sizes), self.relu, self.dropout, nn.Linear(*sizes), self.relu, nn.Linear(4 * hidden, 3)
        )

    def encoded(self, x):
        x = self.relu(self.projection(self.embed(x)))
        _, (state, _) = self.rnn(x)
        return state[-2:].transpose(0, 1).contiguous().view(x.size(1), -1)

    def forward(self, premise, hypothesis):
        return self.out(torch.cat([self.encoded(premise), self.encoded(hypothesis)], 1))


class GraphConv(nn.Module):
    """Features of the neighbours in a graph, weighted."""

    def __init__(self, input_dim, output_dim, use_bias=False):
        super().__init__()
        self.kernel = nn.Parameter(torch.Tensor(input_dim, output_dim))
        nn.init.xavier_normal_(self.kernel)
        self.bias = None
        if use_bias:
            self.bias = nn.Parameter(torch.Tensor(output_dim))
            nn.init.zeros_(self.bias)

    def forward(self, input_tensor, adj_mat):
        support = torch.mm(input_tensor, self.kernel)
        output = torch.mm(adj_mat, support)
        if self.bias is not None:
            output = output + self.bias
        return output


class Graph(nn.Module):
    """Classes of the nodes of a graph."""

    def __init__(self, input_dim=6, hidden_dim=8, output_dim=3, use_bias=True, dropout_p=0.1):
        super().__init__()
        self.gc1 = GraphConv(input_dim, hidden_dim, use_bias=use_bias)
        self.gc2 = GraphConv(hidden_dim, output_dim, use_bias=use_bias)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input_tensor, adj_mat):
        x = F.relu(self.gc1(input_tensor, adj_mat))
        x = self.dropout(x)
        return F.log_softmax(self.gc2(x, adj_mat), dim=1)


class GraphAttention(nn.Module):
    """Features of the neighbours, weighted by how well they fit."""

    def __init__(self, in_features=6, n_hidden=4, n_heads=2, dropout=0.3, slope=0.2):
        super().__init__()
        self.n_heads = n_heads
        self.n_hidden = n_hidden
        self.dropout = dropout
        self.W = nn.Parameter(torch.empty(size=(in_features, n_hidden * n_heads)))
        self.a = nn.Parameter(torch.empty(size=(n_heads, 2 * n_hidden, 1)))
        self.leakyrelu = nn.LeakyReLU(slope)
        self.softmax = nn.Softmax(dim=1)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def _scores(self, h):
        source = torch.matmul(h, self.a[:, : self.n_hidden, :])
        target = torch.matmul(h, self.a[:, self.n_hidden :, :])
        return self.leakyrelu(source + target.mT)

    def forward(self, h, adj_mat):
        n_nodes = h.shape[0]
        h = torch.mm(h, self.W)
        h = F.dropout(h, self.dropout, training=self.training)
        h = h.view(n_nodes, self.n_heads, self.n_hidden).permute(1, 0, 2)
        e = self._scores(h)
        mask = -9e16 * torch.ones_like(e)
        attention = torch.where(adj_mat > 0, e, mask)
        attention = F.softmax(attention, dim=-1)
        attention = F.dropout(attention, self.dropout, training=self.training)
        return torch.matmul(attention, h).mean(dim=0)


class Policy(nn.Module):
    """What to do, and what the state is worth."""

    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 16)
        self.action_head = nn.Linear(16, 2)
        self.value_head = nn.Linear(16, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        action_prob = F.softmax(self.action_head(x), dim=-1)
        state_values = self.value_head(x)
        return action_prob, state_values


class PolynomialFit(nn.Module):
    """A straight line through the powers of a number."""

    def __init__(self, degree=4):
        super().__init__()
        self.degree = degree
        self.fc = nn.Linear(degree, 1)

    def forward(self, x):
        x = x.unsqueeze(1)
        return self.fc(torch.cat([x**i for i in range(1, self.degree + 1)], 1))


class Goodness(nn.Linear):
    """A layer of the forward-forward algorithm: directions, not lengths, are passed on."""

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.relu = nn.ReLU()
        self.threshold = 2.0

    def forward(self, x):
        x_direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(torch.mm(x_direction, self.weight.T) + self.bias.unsqueeze(0))


class ForwardForward(nn.Module):
    """Layers that are trained one by one."""

    def __init__(self, dims=(8, 6, 5)):
        super().__init__()
        self.layers = nn.ModuleList([Goodness(dims[d], dims[d + 1]) for d in range(len(dims) - 1)])

    def forward(self, x):
        goodness = []
        for layer in self.layers:
            x = layer(x)
            goodness.append(x.pow(2).mean(1))
        return sum(goodness)
