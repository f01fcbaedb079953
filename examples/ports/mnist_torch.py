"""Digits, in torch: the program of https://github.com/pytorch/examples/tree/main/mnist in words of our own.

python examples/ports/mnist_torch.py --epochs 3
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from data import Digits
from torch.optim import Adadelta
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(2 * dropout)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
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
    return (torch.tensor(image, dtype=torch.float32)[None] / 255 - 0.1307) / 0.3081


def train(args, model, loader, optimizer, epoch):
    losses = []
    model.train()
    for batch, (data, target) in enumerate(loader):
        data, target = data.to(args.device, torch.get_default_dtype()), target.to(args.device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if batch % args.log_interval == 0:
            seen = batch * args.batch_size
            print(f"epoch {epoch} [{seen}/{len(loader.dataset)}] loss {loss.item():.6f}")
            if args.dry_run:
                break
    return losses


@torch.no_grad()
def test(args, model, loader):
    loss, correct = 0.0, 0
    model.eval()
    for data, target in loader:
        data, target = data.to(args.device, torch.get_default_dtype()), target.to(args.device)
        output = model(data)
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

    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.manual_seed(args.seed)
    args.device = torch.device("cuda" if torch.cuda.is_available() and not args.no_accel else "cpu")

    train_set, test_set = Digits(train=True, transform=transform), Digits(train=False, transform=transform)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.test_batch_size)

    model = Net(args.dropout).to(args.device)
    optimizer = Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    numbers = []
    for epoch in range(1, args.epochs + 1):
        numbers += train(args, model, train_loader, optimizer, epoch)
        numbers.append(test(args, model, test_loader))
        scheduler.step()
    if args.save_model:
        torch.save(model.state_dict(), args.save_model)
    return model, numbers


if __name__ == "__main__":
    main()
