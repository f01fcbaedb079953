"""Models of images, in the shapes of those that pytorch/examples trains, small."""

from __future__ import annotations

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
    """The same, which draws its noise."""

    def __init__(self, pixels=36, hidden=16, latent=4):
        super().__init__(pixels, hidden, latent)

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, self.pixels))
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return self.decode(z), mu, logvar


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
