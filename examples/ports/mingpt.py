"""A small GPT that learns to sort, in jaxpar: what mingpt_torch.py does.

python examples/ports/mingpt.py --max-iters 200
"""

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass

import jax
import numpy as np
import optax
from flax import nnx
from gpt import GPT, init_weights

import jaxpar
from jaxpar.data import DataLoader, RandomSampler
from jaxpar.optim import adamw, clip_grad_norm, param_groups


class SortDataset:
    """Rows of `length` digits, each followed by the same digits in order, which alone are predicted."""

    def __init__(self, rows=4096, length=6, digits=3):
        generator = jaxpar.random.Generator(0)
        self.inputs = generator.randint(digits, (rows, length))
        self.length, self.digits = length, digits

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        input = self.inputs[index]
        both = np.concatenate([input, np.sort(input)])
        x, y = both[:-1].copy(), both[1:].copy()
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

    def __init__(self, config, model, train_dataset, generator):
        self.config = config
        self.generator = generator
        self.train_dataset = train_dataset
        self.callbacks = defaultdict(list)
        self.model = model
        self.iter_num, self.iter_time, self.iter_dt = 0, 0.0, 0.0

    def add_callback(self, event, callback):
        self.callbacks[event].append(callback)

    def trigger_callbacks(self, event):
        for callback in self.callbacks[event]:
            callback(self)

    def configure_optimizer(self):
        groups = [
            {"params": decays, "weight_decay": self.config.weight_decay},
            {"params": ..., "weight_decay": 0.0},
        ]
        tx = param_groups(adamw, groups, lr=self.config.learning_rate, betas=self.config.betas)
        tx = optax.chain(clip_grad_norm(self.config.grad_norm_clip), tx)
        return nnx.Optimizer(self.model, tx, wrt=nnx.Param)

    def run(self):
        model, config = self.model, self.config
        step = jaxpar.train_step(model, self.configure_optimizer(), lambda model, x, y: model(x, y)[1])
        sampler = RandomSampler(self.train_dataset, replacement=True, num_samples=10**6, seed=self.generator)
        train_loader = DataLoader(
            self.train_dataset,
            sampler=sampler,
            batch_size=config.batch_size,
            num_workers=config.num_workers,
            seed=self.generator,
        )
        self.iter_num = 0
        self.iter_time = time.time()
        data_iter = iter(train_loader)
        while self.iter_num < config.max_iters:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(train_loader)
                batch = next(data_iter)
            self.loss = step(*batch)

            self.trigger_callbacks("on_batch_end")
            self.iter_num += 1
            now = time.time()
            self.iter_dt = now - self.iter_time
            self.iter_time = now


def decays(path):
    return path.endswith(("/kernel", "/embedding"))


def sorted_right(model, dataset, rows=256):
    """How many of `rows` rows the model sorts, taking the likeliest digit each time."""
    inputs = dataset.inputs[:rows]
    evaluate = jaxpar.eval_step(model, lambda model, text: model(text)[0])
    text = inputs
    for _ in range(dataset.length):
        logits = evaluate(text)
        text = np.concatenate([text, logits[:, -1:].argmax(-1)], 1)
    return (text[:, dataset.length :] == np.sort(inputs)).all(1).sum().item()


def main(arguments=None):
    parser = argparse.ArgumentParser(description="A small GPT that learns to sort, in jaxpar")
    parser.add_argument("--max-iters", type=int, default=1000, help="batches to train on")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a batch")
    parser.add_argument("--layers", type=int, default=3, help="blocks")
    parser.add_argument("--width", type=int, default=48, help="numbers that stand for a digit")
    parser.add_argument("--dropout", type=float, default=0.1, help="share of activations left out")
    parser.add_argument("--seed", type=int, default=3407, help="of weights, order and dropout")
    parser.add_argument("--dtype", default="float32", help="float64 to compare")
    args = parser.parse_args(arguments)

    jax.config.update("jax_enable_x64", args.dtype == "float64")
    generator = jaxpar.random.Generator(args.seed)
    dataset = SortDataset()
    model = GPT(dataset.digits, 2 * dataset.length - 1, args.layers, 3, args.width, args.dropout, nnx.Rngs(0))
    model = jaxpar.to(model, dtype=args.dtype)
    model = jaxpar.random.torch_init(model, generator, apply=init_weights)
    config = Config(max_iters=args.max_iters, batch_size=args.batch_size)
    trainer = Trainer(config, model, dataset, generator)

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
