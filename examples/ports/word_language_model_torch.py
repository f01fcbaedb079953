"""An LSTM that predicts words, in torch: the program of
https://github.com/pytorch/examples/tree/main/word_language_model in words of our own.

    python examples/ports/word_language_model_torch.py --epochs 3
"""

import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from data import Corpus


class RNNModel(nn.Module):
    """An embedding, a recurrent network, and a layer that scores every word."""

    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid, self.nlayers = nhid, nlayers
        self.init_weights()

    def init_weights(self):
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, input, hidden):
        embedded = self.drop(self.encoder(input))
        output, hidden = self.rnn(embedded, hidden)
        decoded = self.decoder(self.drop(output))
        decoded = decoded.reshape(-1, decoded.shape[-1])
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        zeros = self.decoder.bias.new_zeros(self.nlayers, bsz, self.nhid)
        return zeros, zeros


def batchify(data, bsz, device):
    """bsz pieces of text side by side, [T, bsz]: each column goes on below."""
    rows = len(data) // bsz
    return torch.tensor(data[: rows * bsz]).reshape(bsz, rows).T.contiguous().to(device)


def get_batch(source, i, bptt):
    """bptt words of every column, and the words that follow each."""
    length = min(bptt, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].reshape(-1)


def repackage_hidden(hidden):
    """Without the history, or the gradient would go back to the first word."""
    return tuple(h.detach() for h in hidden)


def train(args, model, source, optimizer, epoch):
    losses, total, start = [], 0.0, time.time()
    model.train()
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, len(source) - 1, args.bptt)):
        data, targets = get_batch(source, i, args.bptt)
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        loss = F.nll_loss(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
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


@torch.no_grad()
def evaluate(args, model, source):
    total = 0.0
    model.eval()
    hidden = model.init_hidden(args.eval_batch_size)
    for i in range(0, len(source) - 1, args.bptt):
        data, targets = get_batch(source, i, args.bptt)
        output, hidden = model(data, hidden)
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

    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.no_accel else "cpu")

    corpus = Corpus(args.words)
    train_data = batchify(corpus.train, args.batch_size, device)
    val_data = batchify(corpus.valid, args.eval_batch_size, device)
    test_data = batchify(corpus.test, args.eval_batch_size, device)

    ntoken = len(corpus.dictionary)
    model = RNNModel(ntoken, args.emsize, args.nhid, args.nlayers, args.dropout).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    numbers, best = [], math.inf
    try:
        for epoch in range(1, args.epochs + 1):
            start = time.time()
            numbers += train(args, model, train_data, optimizer, epoch)
            loss = evaluate(args, model, val_data)
            numbers.append(loss)
            print(f"epoch {epoch}: {time.time() - start:.0f} s, perplexity {math.exp(loss):.2f}")
            if loss < best:
                best = loss
                torch.save(model.state_dict(), args.save)
            else:  # no better: smaller steps
                optimizer.param_groups[0]["lr"] /= 4
    except KeyboardInterrupt:
        print("stopped early")

    model.load_state_dict(torch.load(args.save))
    numbers.append(evaluate(args, model, test_data))
    print(f"test: perplexity {math.exp(numbers[-1]):.2f}")
    return model, numbers


if __name__ == "__main__":
    main()
