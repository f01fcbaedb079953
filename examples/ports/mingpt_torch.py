"""A small GPT that learns to sort, in torch: the trainer of https://github.com/karpathy/minGPT, and what its
demo trains, in words of our own.

    python examples/ports/mingpt_torch.py --max-iters 200
"""

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass

import torch
from gpt_torch import GPT
from torch.utils.data import DataLoader, Dataset, RandomSampler


class SortDataset(Dataset):
    """Rows of `length` digits, each followed by the same digits in order, which alone are predicted."""

    def __init__(self, rows=4096, length=6, digits=3):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randint(digits, (rows, length), generator=generator)
        self.length, self.digits = length, digits

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        input = self.inputs[index]
        both = torch.cat([input, torch.sort(input)[0]])
        x, y = both[:-1].clone(), both[1:].clone()
        y[: self.length - 1] = -1
        return x, y


@dataclass
class Config:
    num_workers: int = 0
    max_iters: int = 1000
    batch_size: int = 64
    learning_rate: float = 5e-4
    betas: tuple = (0.9, 0.95)
    weight_decay: float = 0.1  # of what is multiplied by a matrix
    grad_norm_clip: float = 1.0


class Trainer:
    """Trains any module that returns logits and a loss; callbacks see every batch."""

    def __init__(self, config, model, train_dataset):
        self.config = config
        self.train_dataset = train_dataset
        self.callbacks = defaultdict(list)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.iter_num, self.iter_time, self.iter_dt = 0, 0.0, 0.0

    def add_callback(self, event, callback):
        self.callbacks[event].append(callback)

    def trigger_callbacks(self, event):
        for callback in self.callbacks[event]:
            callback(self)

    def configure_optimizer(self):
        decay = [p for p in self.model.parameters() if p.ndim == 2]
        other = [p for p in self.model.parameters() if p.ndim != 2]
        groups = [
            {"params": decay, "weight_decay": self.config.weight_decay},
            {"params": other, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.config.learning_rate, betas=self.config.betas)

    def run(self):
        model, config = self.model, self.config
        optimizer = self.configure_optimizer()
        sampler = RandomSampler(self.train_dataset, replacement=True, num_samples=10**6)
        train_loader = DataLoader(
            self.train_dataset,
            sampler=sampler,
            batch_size=config.batch_size,
            num_workers=config.num_workers,
        )
        model.train()
        self.iter_num = 0
        self.iter_time = time.time()
        data_iter = iter(train_loader)
        while self.iter_num < config.max_iters:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(train_loader)
                batch = next(data_iter)
            x, y = (t.to(self.device) for t in batch)

            _, self.loss = model(x, y)
            model.zero_grad()
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_norm_clip)
            optimizer.step()

            self.trigger_callbacks("on_batch_end")
            self.iter_num += 1
            now = time.time()
            self.iter_dt = now - self.iter_time
            self.iter_time = now


@torch.no_grad()
def sorted_right(model, dataset, rows=256):
    """How many of `rows` rows the model sorts, taking the likeliest digit each time."""
    inputs = dataset.inputs[:rows]
    model.eval()
    text = inputs
    for _ in range(dataset.length):
        logits, _ = model(text)
        text = torch.cat([text, logits[:, -1:].argmax(-1)], 1)
    return (text[:, dataset.length :] == torch.sort(inputs)[0]).all(1).sum().item()


def main(arguments=None):
    parser = argparse.ArgumentParser(description="A small GPT that learns to sort")
    parser.add_argument("--max-iters", type=int, default=1000, help="batches to train on")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a batch")
    parser.add_argument("--layers", type=int, default=3, help="blocks")
    parser.add_argument("--width", type=int, default=48, help="numbers that stand for a digit")
    parser.add_argument("--dropout", type=float, default=0.1, help="share of activations left out")
    parser.add_argument("--seed", type=int, default=3407, help="of weights, order and dropout")
    parser.add_argument("--dtype", default="float32", help="float64 to compare")
    args = parser.parse_args(arguments)

    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.manual_seed(args.seed)
    dataset = SortDataset()
    model = GPT(dataset.digits, 2 * dataset.length - 1, args.layers, 3, args.width, args.dropout)
    trainer = Trainer(Config(max_iters=args.max_iters, batch_size=args.batch_size), model, dataset)

    numbers = []

    def batch_end(trainer):
        numbers.append(trainer.loss.item())
        if trainer.iter_num % 100 == 0:
            print(f"{trainer.iter_num}: {trainer.iter_dt * 1000:.1f} ms, loss {trainer.loss.item():.5f}")

    trainer.add_callback("on_batch_end", batch_end)
    trainer.run()
    numbers.append(sorted_right(model, dataset))
    print(f"sorted: {numbers[-1]} of 256")
    return model, numbers


if __name__ == "__main__":
    main()
