"""Digits, in jaxpar: what mnist_torch.py does.

python examples/ports/mnist.py --epochs 3
"""

import argparse

import jax
import numpy as np
from data import Digits
from flax import nnx

import jaxpar
import jaxpar.nn.channels_first as nn
import jaxpar.nn.channels_first.functional as F
from jaxpar.data import DataLoader
from jaxpar.optim import Optimizer, adadelta
from jaxpar.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self, dropout, rngs):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, rngs=rngs)
        self.conv2 = nn.Conv2d(32, 64, 3, rngs=rngs)
        self.dropout1 = nn.Dropout(dropout, rngs=rngs)
        self.dropout2 = nn.Dropout(2 * dropout, rngs=rngs)
        self.fc1 = nn.Linear(9216, 128, rngs=rngs)
        self.fc2 = nn.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = x.reshape(len(x), -1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def transform(image):  # torchvision: ToTensor(), Normalize((0.1307,), (0.3081,))
    return (image[None].astype(np.float32) / 255 - 0.1307) / 0.3081


def train_loss(model, data, target):
    return F.nll_loss(model(data), target)


def train(args, step, loader, epoch):
    losses = []
    for batch, (data, target) in enumerate(loader):
        loss = step(data, target)
        losses.append(loss.item())
        if batch % args.log_interval == 0:
            seen = batch * args.batch_size
            print(f"epoch {epoch} [{seen}/{len(loader.dataset)}] loss {loss.item():.6f}")
            if args.dry_run:
                break
    return losses


def test(args, evaluate, loader):
    loss, correct = 0.0, 0
    for data, target in loader:
        output = evaluate(data)
        loss += F.nll_loss(output, target, reduction="sum").item()
        correct += (output.argmax(1) == target).sum().item()
    count = len(loader.dataset)
    print(f"test: loss {loss / count:.4f}, {correct} of {count} right ({correct / count:.1%})")
    return loss / count


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Digits")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a training batch")
    parser.add_argument("--test-batch-size", type=int, default=1000, help="rows of a test batch")
    parser.add_argument("--epochs", type=int, default=14, help="how often to go through the data")
    parser.add_argument("--lr", type=float, default=1.0, help="learning rate of Adadelta")
    parser.add_argument("--gamma", type=float, default=0.7, help="what each epoch multiplies the rate by")
    parser.add_argument("--dropout", type=float, default=0.25, help="share of activations left out")
    parser.add_argument("--no-accel", action="store_true", help="train on the CPU")
    parser.add_argument("--dry-run", action="store_true", help="one batch only")
    parser.add_argument("--seed", type=int, default=1, help="of weights, order and dropout")
    parser.add_argument("--log-interval", type=int, default=10, help="batches between two lines")
    parser.add_argument("--save-model", default="", help="file for the weights")
    parser.add_argument("--dtype", default="float32", help="float64 to compare")
    args = parser.parse_args(arguments)

    jax.config.update("jax_enable_x64", args.dtype == "float64")
    jax.config.update("jax_platforms", "cpu" if args.no_accel else None)
    generator = jaxpar.random.Generator(args.seed)

    train_set, test_set = Digits(train=True, transform=transform), Digits(train=False, transform=transform)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, seed=generator)
    test_loader = DataLoader(test_set, batch_size=args.test_batch_size, seed=generator)

    model = jaxpar.to(Net(args.dropout, nnx.Rngs(args.seed)), dtype=args.dtype)
    model = jaxpar.random.torch_init(model, generator)
    optimizer = Optimizer(model, adadelta(lr=args.lr))
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    step, evaluate = jaxpar.train_step(model, optimizer, train_loss), jaxpar.eval_step(model)
    numbers = []
    for epoch in range(1, args.epochs + 1):
        numbers += train(args, step, train_loader, epoch)
        numbers.append(test(args, evaluate, test_loader))
        scheduler.step()
    if args.save_model:
        jaxpar.parity.write_weights(args.save_model, jaxpar.parity.to_torch(model))
    return model, numbers


if __name__ == "__main__":
    main()
