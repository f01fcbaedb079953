"""A variational autoencoder, in jaxpar: what vae_torch.py does, the same noise included.

python examples/ports/vae.py --epochs 3
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from data import Digits
from flax import nnx

import jaxpar
import jaxpar.nn.channels_first as nn
import jaxpar.nn.channels_first.functional as F
from jaxpar.data import DataLoader
from jaxpar.optim import Optimizer, adam


class VAE(nn.Module):
    def __init__(self, rngs):
        super().__init__()
        self.fc1 = nn.Linear(784, 400, rngs=rngs)
        self.fc21 = nn.Linear(400, 20, rngs=rngs)
        self.fc22 = nn.Linear(400, 20, rngs=rngs)
        self.fc3 = nn.Linear(20, 400, rngs=rngs)
        self.fc4 = nn.Linear(400, 784, rngs=rngs)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.fc21(h), self.fc22(h)

    def reparameterize(self, mu, logvar, noise):
        std = jnp.exp(0.5 * logvar)
        return mu + noise * std

    def decode(self, z):
        return F.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def __call__(self, x, noise):
        mu, logvar = self.encode(x.reshape(-1, 784))
        z = self.reparameterize(mu, logvar, noise)
        return self.decode(z), mu, logvar


def loss_function(reconstructed, x, mu, logvar):
    """The evidence lower bound, negative and summed over the batch (Kingma and Welling, 2014, appendix B)."""
    cross_entropy = F.binary_cross_entropy(reconstructed, x.reshape(-1, 784), reduction="sum")
    divergence = -0.5 * (1 + logvar - mu**2 - jnp.exp(logvar)).sum()
    return cross_entropy + divergence


def train_loss(model, data, noise):
    reconstructed, mu, logvar = model(data, noise)
    return loss_function(reconstructed, data, mu, logvar)


def transform(image):  # torchvision: ToTensor()
    return image.astype(np.float32) / 255


def train(args, step, noise, loader, epoch):
    losses = []
    for batch, (data, _) in enumerate(loader):
        loss = step(data, noise.randn(len(data), 20, dtype=args.dtype))
        losses.append(loss.item())
        if batch % args.log_interval == 0:
            seen = batch * args.batch_size
            print(f"epoch {epoch} [{seen}/{len(loader.dataset)}] loss {loss.item() / len(data):.4f}")
    print(f"epoch {epoch}: mean loss {sum(losses) / len(loader.dataset):.4f}")
    return losses


def test(args, evaluate, noise, loader, epoch):
    loss = 0.0
    for i, (data, _) in enumerate(loader):
        reconstructed, mu, logvar = evaluate(data, noise.randn(len(data), 20, dtype=args.dtype))
        loss += loss_function(reconstructed, data, mu, logvar).item()
        if i == 0 and args.results:
            pairs = np.stack([data[:8], reconstructed[:8].reshape(-1, 28, 28)])
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

    jax.config.update("jax_enable_x64", args.dtype == "float64")
    jax.config.update("jax_platforms", "cpu" if args.no_accel else None)
    generator = jaxpar.random.Generator(args.seed)

    train_set, test_set = Digits(train=True, transform=transform), Digits(train=False, transform=transform)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, seed=generator)
    test_loader = DataLoader(test_set, batch_size=args.batch_size, seed=generator)

    model = jaxpar.random.torch_init(jaxpar.to(VAE(nnx.Rngs(args.seed)), dtype=args.dtype), generator)
    optimizer = Optimizer(model, adam(lr=1e-3))
    step, evaluate = jaxpar.train_step(model, optimizer, train_loss), jaxpar.eval_step(model)
    numbers = []
    for epoch in range(1, args.epochs + 1):
        numbers += train(args, step, generator, train_loader, epoch)
        numbers.append(test(args, evaluate, generator, test_loader, epoch))
        sample = model.decode(generator.randn(64, 20, dtype=args.dtype))
        if args.results:
            np.save(f"{args.results}/sample_{epoch}.npy", sample.reshape(-1, 28, 28))
    return model, numbers


if __name__ == "__main__":
    main()
