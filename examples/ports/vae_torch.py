"""A variational autoencoder, in torch: the program of https://github.com/pytorch/examples/tree/main/vae in
words of our own.

python examples/ports/vae_torch.py --epochs 3
"""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from data import Digits
from torch.optim import Adam
from torch.utils.data import DataLoader


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.fc21 = nn.Linear(400, 20)
        self.fc22 = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 784)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.fc21(h), self.fc22(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return F.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.reshape(-1, 784))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(reconstructed, x, mu, logvar):
    """The evidence lower bound, negative and summed over the batch (Kingma and Welling, 2014, appendix B)."""
    cross_entropy = F.binary_cross_entropy(reconstructed, x.reshape(-1, 784), reduction="sum")
    divergence = -0.5 * (1 + logvar - mu**2 - torch.exp(logvar)).sum()
    return cross_entropy + divergence


def transform(image):  # torchvision: ToTensor()
    return torch.tensor(image, dtype=torch.float32) / 255


def train(args, model, loader, optimizer, epoch):
    losses = []
    model.train()
    for batch, (data, _) in enumerate(loader):
        data = data.to(args.device, torch.get_default_dtype())
        optimizer.zero_grad()
        reconstructed, mu, logvar = model(data)
        loss = loss_function(reconstructed, data, mu, logvar)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if batch % args.log_interval == 0:
            seen = batch * args.batch_size
            print(f"epoch {epoch} [{seen}/{len(loader.dataset)}] loss {loss.item() / len(data):.4f}")
    print(f"epoch {epoch}: mean loss {sum(losses) / len(loader.dataset):.4f}")
    return losses


@torch.no_grad()
def test(args, model, loader, epoch):
    loss = 0.0
    model.eval()
    for i, (data, _) in enumerate(loader):
        data = data.to(args.device, torch.get_default_dtype())
        reconstructed, mu, logvar = model(data)
        loss += loss_function(reconstructed, data, mu, logvar).item()
        if i == 0 and args.results:
            pairs = np.stack([data[:8].cpu(), reconstructed[:8].reshape(-1, 28, 28).cpu()])
            np.save(f"{args.results}/reconstruction_{epoch}.npy", pairs)
    print(f"test: loss {loss / len(loader.dataset):.4f}")
    return loss


def main(arguments=None):
    parser = argparse.ArgumentParser(description="A variational autoencoder")
    parser.add_argument("--batch-size", type=int, default=128, help="rows of a batch")
    parser.add_argument("--epochs", type=int, default=10, help="how often to go through the data")
    parser.add_argument("--no-accel", action="store_true", help="train on the CPU")
    parser.add_argument("--seed", type=int, default=1, help="of weights, order and noise")
    parser.add_argument("--log-interval", type=int, default=10, help="batches between two lines")
    parser.add_argument("--results", default="", help="folder for pictures")
    parser.add_argument("--dtype", default="float32", help="float64 to compare")
    args = parser.parse_args(arguments)

    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.manual_seed(args.seed)
    args.device = torch.device("cuda" if torch.cuda.is_available() and not args.no_accel else "cpu")

    train_set, test_set = Digits(train=True, transform=transform), Digits(train=False, transform=transform)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.batch_size)

    model = VAE().to(args.device)
    optimizer = Adam(model.parameters(), lr=1e-3)
    numbers = []
    for epoch in range(1, args.epochs + 1):
        numbers += train(args, model, train_loader, optimizer, epoch)
        numbers.append(test(args, model, test_loader, epoch))
        with torch.no_grad():
            sample = model.decode(torch.randn(64, 20).to(args.device))
        if args.results:
            np.save(f"{args.results}/sample_{epoch}.npy", sample.reshape(-1, 28, 28).cpu())
    return model, numbers


if __name__ == "__main__":
    main()
