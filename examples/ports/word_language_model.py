"""An LSTM that predicts words, in jaxpar: what word_language_model_torch.py does.

python examples/ports/word_language_model.py --epochs 3
"""

import argparse
import math
import time

import jax
import numpy as np
import optax
from data import Corpus
from flax import nnx

import jaxpar
import jaxpar.nn.channels_first as nn
import jaxpar.nn.channels_first.functional as F
from jaxpar.optim import Optimizer, clip_grad_norm, sgd


class RNNModel(nn.Module):
    """An embedding, a recurrent network, and a layer that scores every word."""

    def __init__(self, ntoken, ninp, nhid, nlayers, dropout, rngs):
        super().__init__()
        self.drop = nn.Dropout(dropout, rngs=rngs)
        self.encoder = nn.Embedding(ntoken, ninp, rngs=rngs)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout, rngs=rngs)
        self.decoder = nn.Linear(nhid, ntoken, rngs=rngs)
        self.nhid, self.nlayers = nhid, nlayers

    def __call__(self, input, hidden):
        embedded = self.drop(self.encoder(input))
        output, hidden = self.rnn(embedded, hidden)
        decoded = self.decoder(self.drop(output))
        decoded = decoded.reshape(-1, decoded.shape[-1])
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        zeros = np.zeros((self.nlayers, bsz, self.nhid), self.decoder.bias.dtype)
        return zeros, zeros


def init_weights(kind, tensors, generator):
    if kind in ("Embedding", "Linear"):
        generator.uniform_(tensors["weight"], -0.1, 0.1)
    if kind == "Linear":
        tensors["bias"][...] = 0


def batchify(data, bsz):
    """bsz pieces of text side by side, [T, bsz]: each column goes on below."""
    rows = len(data) // bsz
    return data[: rows * bsz].reshape(bsz, rows).T


def get_batch(source, i, bptt):
    """bptt words of every column, and the words that follow each."""
    length = min(bptt, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].reshape(-1)


def train_loss(model, data, targets, hidden):
    output, hidden = model(data, hidden)
    return F.nll_loss(output, targets), hidden


def train(args, model, source, optimizer, step, epoch):
    losses, total, start = [], 0.0, time.time()
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, len(source) - 1, args.bptt)):
        data, targets = get_batch(source, i, args.bptt)
        loss, hidden = step(data, targets, hidden)
        losses.append(loss.item())
        total += loss.item()
        if batch % args.log_interval == 0 and batch > 0:
            lr, mean = optimizer.param_groups[0]["lr"], total / args.log_interval
            took = (time.time() - start) * 1000 / args.log_interval
            print(f"epoch {epoch}, batch {batch}, lr {lr:.2f}, {took:.0f} ms a batch, loss {mean:.2f}")
            total, start = 0.0, time.time()
        if args.dry_run:
            break
    return losses


def evaluate(args, model, source, eval_step):
    total = 0.0
    hidden = model.init_hidden(args.eval_batch_size)
    for i in range(0, len(source) - 1, args.bptt):
        data, targets = get_batch(source, i, args.bptt)
        output, hidden = eval_step(data, hidden)
        total += len(data) * F.nll_loss(output, targets).item()
    return total / (len(source) - 1)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="An LSTM that predicts words")
    parser.add_argument("--emsize", type=int, default=200, help="numbers that stand for a word")
    parser.add_argument("--nhid", type=int, default=200, help="hidden units of a layer")
    parser.add_argument("--nlayers", type=int, default=2, help="layers")
    parser.add_argument("--lr", type=float, default=20, help="initial learning rate")
    parser.add_argument("--clip", type=float, default=0.25, help="largest norm of the gradient")
    parser.add_argument("--epochs", type=int, default=40, help="at most")
    parser.add_argument("--batch-size", type=int, default=20, help="columns of text")
    parser.add_argument("--eval-batch-size", type=int, default=10, help="columns of text in evaluation")
    parser.add_argument("--bptt", type=int, default=35, help="words between two updates")
    parser.add_argument("--dropout", type=float, default=0.2, help="share of activations left out")
    parser.add_argument("--words", type=int, default=24000, help="length of the text")
    parser.add_argument("--seed", type=int, default=1111, help="of weights and dropout")
    parser.add_argument("--no-accel", action="store_true", help="train on the CPU")
    parser.add_argument("--log-interval", type=int, default=20, help="batches between two lines")
    parser.add_argument("--save", default="model.pt", help="file for the best weights")
    parser.add_argument("--dry-run", action="store_true", help="one batch only")
    parser.add_argument("--dtype", default="float32", help="float64 to compare")
    args = parser.parse_args(arguments)

    jax.config.update("jax_enable_x64", args.dtype == "float64")
    jax.config.update("jax_platforms", "cpu" if args.no_accel else None)

    corpus = Corpus(args.words)
    train_data = batchify(corpus.train, args.batch_size)
    val_data = batchify(corpus.valid, args.eval_batch_size)
    test_data = batchify(corpus.test, args.eval_batch_size)

    ntoken = len(corpus.dictionary)
    model = RNNModel(ntoken, args.emsize, args.nhid, args.nlayers, args.dropout, nnx.Rngs(args.seed))
    model = jaxpar.to(model, dtype=args.dtype)
    model = jaxpar.random.torch_init(model, args.seed, apply=init_weights)
    optimizer = Optimizer(model, optax.chain(clip_grad_norm(args.clip), sgd(lr=args.lr)))
    step = jaxpar.train_step(model, optimizer, train_loss, has_aux=True)
    eval_step = jaxpar.eval_step(model)

    numbers, best = [], math.inf
    try:
        for epoch in range(1, args.epochs + 1):
            start = time.time()
            numbers += train(args, model, train_data, optimizer, step, epoch)
            loss = evaluate(args, model, val_data, eval_step)
            numbers.append(loss)
            print(f"epoch {epoch}: {time.time() - start:.0f} s, perplexity {math.exp(loss):.2f}")
            if loss < best:
                best = loss
                jaxpar.parity.write_weights(args.save, jaxpar.parity.to_torch(model))
            else:  # no better: smaller steps
                optimizer.param_groups[0]["lr"] /= 4
    except KeyboardInterrupt:
        print("stopped early")

    jaxpar.parity.load_torch(model, args.save)
    numbers.append(evaluate(args, model, test_data, eval_step))
    print(f"test: perplexity {math.exp(numbers[-1]):.2f}")
    return model, numbers


if __name__ == "__main__":
    main()
