"""Models in the shapes of those that pytorch/examples trains, small."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Digits(nn.Module):
    """Two convolutions and two layers behind them, with dropout between."""

    def __init__(self, size=12, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(16 * ((size - 4) // 2) ** 2, 32)
        self.fc2 = nn.Linear(32, classes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = torch.flatten(x, 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


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


class Generator(nn.Module):
    """Noise to an image, by transposed convolutions."""

    def __init__(self, noise=10, features=4, channels=3):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(noise, features * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(features * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(features * 4, features * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(features * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(features * 2, channels, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    """An image to one number."""

    def __init__(self, features=4, channels=3):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(channels, features, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(features, features * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(features * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(features * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input).view(-1, 1).squeeze(1)


class Autoencoder(nn.Module):
    """A variational autoencoder, whose noise comes with the input."""

    def __init__(self, pixels=36, hidden=16, latent=4):
        super().__init__()
        self.pixels = pixels
        self.fc1 = nn.Linear(pixels, hidden)
        self.fc21 = nn.Linear(hidden, latent)
        self.fc22 = nn.Linear(hidden, latent)
        self.fc3 = nn.Linear(latent, hidden)
        self.fc4 = nn.Linear(hidden, pixels)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x, noise):
        mu, logvar = self.encode(x.view(-1, self.pixels))
        z = mu + noise * torch.exp(0.5 * logvar)
        return self.decode(z), mu, logvar


class SampledAutoencoder(Autoencoder):
    """The same, whose noise is torch's own: what no other generator draws."""

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, self.pixels))
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return self.decode(z), mu, logvar


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


class SuperResolution(nn.Module):
    """A larger image by a shuffle of channels."""

    def __init__(self, upscale_factor=2):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 8, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(8, 8, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(8, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        self._initialize_weights()

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        return self.pixel_shuffle(self.conv3(x))

    def _initialize_weights(self):
        nn.init.orthogonal_(self.conv1.weight, nn.init.calculate_gain("relu"))
        nn.init.orthogonal_(self.conv2.weight, nn.init.calculate_gain("relu"))
        nn.init.orthogonal_(self.conv3.weight)


class PaddedConv(nn.Module):
    """A convolution of a reflected border, of an image that may be enlarged before."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, upsample=None):
        super().__init__()
        self.upsample = upsample
        self.reflection_pad = nn.ReflectionPad2d(kernel_size // 2)
        self.conv2d = nn.Conv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        if self.upsample:
            x = F.interpolate(x, mode="nearest", scale_factor=self.upsample)
        return self.conv2d(self.reflection_pad(x))


class Residual(nn.Module):
    """Two convolutions with InstanceNorm around which the input goes."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = PaddedConv(channels, channels, kernel_size=3, stride=1)
        self.in1 = nn.InstanceNorm2d(channels, affine=True)
        self.conv2 = PaddedConv(channels, channels, kernel_size=3, stride=1)
        self.in2 = nn.InstanceNorm2d(channels, affine=True)
        self.relu = nn.ReLU()

    def forward(self, x):
        residual = x
        out = self.relu(self.in1(self.conv1(x)))
        out = self.in2(self.conv2(out))
        return out + residual


class Style(nn.Module):
    """An image in another style."""

    def __init__(self, width=4, blocks=2):
        super().__init__()
        self.conv1 = PaddedConv(3, width, kernel_size=5, stride=1)
        self.in1 = nn.InstanceNorm2d(width, affine=True)
        self.conv2 = PaddedConv(width, 2 * width, kernel_size=3, stride=2)
        self.in2 = nn.InstanceNorm2d(2 * width, affine=True)
        self.blocks = nn.Sequential(*(Residual(2 * width) for _ in range(blocks)))
        self.deconv1 = PaddedConv(2 * width, width, kernel_size=3, stride=1, upsample=2)
        self.in3 = nn.InstanceNorm2d(width, affine=True)
        self.deconv2 = PaddedConv(width, 3, kernel_size=5, stride=1)
        self.relu = nn.ReLU()

    def forward(self, X):
        y = self.relu(self.in1(self.conv1(X)))
        y = self.relu(self.in2(self.conv2(y)))
        y = self.blocks(y)
        y = self.relu(self.in3(self.deconv1(y)))
        return self.deconv2(y)


class Siamese(nn.Module):
    """Whether two images show the same, by one network for both."""

    def __init__(self, width=8):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.fc = nn.Sequential(
            nn.Linear(width * 6 * 6 * 2, 16),
            nn.ReLU(inplace=True),
            nn.Linear(16, 1),
        )
        self.sigmoid = nn.Sigmoid()
        self.net.apply(self.init_weights)
        self.fc.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward_once(self, x):
        output = self.net(x)
        return output.view(output.size()[0], -1)

    def forward(self, input1, input2):
        output1 = self.forward_once(input1)
        output2 = self.forward_once(input2)
        output = torch.cat((output1, output2), 1)
        return self.sigmoid(self.fc(output))


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


class PatchTransformer(nn.Module):
    """A vision transformer of patches with a token for the class."""

    def __init__(self, patch_size=4, image_size=8, width=8, heads=2, depth=2, classes=5):
        super().__init__()
        self.patch_size = patch_size
        patches = (image_size // patch_size) ** 2
        self.to_patch = nn.Unfold(patch_size, stride=patch_size)
        self.embedding = nn.Linear(3 * patch_size**2, width)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, patches + 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, x):
        x = self.embedding(self.to_patch(x).transpose(1, 2))
        cls_tokens = self.cls_token.expand(x.shape[0], -1, -1)
        x = torch.cat((cls_tokens, x), dim=1) + self.positions[:, : x.shape[1] + 1]
        return self.head(self.encoder(x)[:, 0])
