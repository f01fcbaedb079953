"""A language model of words: an LSTM that is trained in segments and keeps its state between them.

What is new: the batch is dimension 1 of the words [T, B] and of the state [L, B, H], so
`DataParallel(net, dim=1)` splits both; the state is an output of one step and an input of the next
(truncated backpropagation); one table of vectors is used for reading and for predicting; the
gradient is clipped. Without dropout, whose random numbers no two frameworks share. Ctrl-C saves, with
the state; `--run DIR` goes on.

The text is CPython's own reference, which `help()` shows: the module pydoc_data.topics (PSF License).

    python examples/11_language_model.py                      # on GPUs, or on virtual devices
    python examples/11_language_model.py --torch --float64    # beside torch's own nn.DataParallel
    python examples/11_language_model.py --words 150000 --vocabulary 5000 --width 650 --batch-size 64
"""

import argparse
import collections
import re
import sys
import tempfile
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar
from jaxpar.nn.functional import cross_entropy

parser = argparse.ArgumentParser(description="A word-level language model.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--steps", type=int, default=240)
parser.add_argument("--batch-size", type=int, default=18, help="B, pieces of text side by side")
parser.add_argument("--segment", type=int, default=16, help="T, words between two updates")
parser.add_argument("--words", type=int, default=24000, help="how much of the text is used")
parser.add_argument("--vocabulary", type=int, default=600)
parser.add_argument("--width", type=int, default=48)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--run", help="folder of checkpoint and log, to go on from; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="train torch's twin on the first 50 segments, too")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # before anything makes an array; GPUs are used where there are any
jax.config.update("jax_enable_x64", options.float64)
dtype = np.float64 if options.float64 else np.float32
run = options.run or tempfile.mkdtemp()
V, L, H, B, T = options.vocabulary, options.layers, options.width, options.batch_size, options.segment

# --------------------------------------------------------------------------------------------- data
words = re.findall(r"\w+|[^\w\s]", " ".join(topics[name] for name in sorted(topics)).lower())
words = words[: options.words]
known = [word for word, _ in collections.Counter(words).most_common(V - 1)]
number = {word: i for i, word in enumerate(known)}
text = np.array([number.get(word, V - 1) for word in words], np.int32)  # the last one: any other word


def columns(text):
    """B pieces of text side by side, [-1, B]: each column goes on below, none beside it."""
    rows = len(text) // B
    return text[: rows * B].reshape(B, rows).T


train, test = columns(text[: -len(text) // 10]), columns(text[-len(text) // 10 :])


def segments(text, first=0):
    """(words, the words that follow) from a segment on, and whether the text begins there."""
    starts = range(0, len(text) - 1, T)
    for i in starts[first:]:
        end = min(i + T, len(text) - 1)
        yield text[i:end], text[i + 1 : end + 1], i == 0


# -------------------------------------------------------------------------------------------- model
class Model(nnx.Module):
    def __init__(self, rngs):
        def init(key, shape, dtype):
            return jax.random.uniform(key, shape, dtype, -0.1, 0.1)

        self.embedding = nnx.Embed(V, H, dtype=dtype, embedding_init=init, rngs=rngs)
        self.lstm = jaxpar.nn.LSTM(H, H, num_layers=L, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(V))

    def __call__(self, x, state):
        x, state = self.lstm(self.embedding(x), state)
        return self.embedding.attend(x) + self.bias, state  # the same table once more


def loss_of(net, x, t, state):
    y, state = net(x, state)
    return cross_entropy(y.reshape(-1, V), t.reshape(-1)), state


net = jaxpar.DataParallel(jaxpar.to(Model(nnx.Rngs(0)), dtype=dtype), dim=1)
tx = optax.chain(jaxpar.optim.clip_grad_norm(0.25), jaxpar.optim.sgd(lr=10.0))
optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, loss_of, has_aux=True)
evaluate = jaxpar.eval_step(net, loss_of)
zeros = (np.zeros((L, B, H), dtype), np.zeros((L, B, H), dtype))


# ------------------------------------------------------------------------------------ the same in torch
def torch_twin(net):
    """A function that trains torch's net, which begins with the same weights, on a segment."""
    import torch

    from torch_ref import pretend

    n = max(1, jaxpar.device_count())  # one CPU device does not count
    torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(V, H)
            self.lstm = torch.nn.LSTM(H, H, num_layers=L)
            self.decoder = torch.nn.Linear(H, V)
            self.decoder.weight = self.embedding.weight

        def forward(self, x, h, c):
            x, state = self.lstm(self.embedding(x), (h, c))
            return self.decoder(x), *state

    theirs = Model()
    mapping = {"decoder.bias": "bias"}
    theirs.load_state_dict(jaxpar.parity.to_torch(net, like=theirs, mapping=mapping))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=10.0)
    state = None

    def step(x, t, begins):
        nonlocal state
        state = tuple(map(torch.tensor, zeros)) if begins else [s.detach() for s in state]
        with pretend(n) as devices:  # n GPUs, or as if there were n
            net = torch.nn.DataParallel(theirs.to(devices.device), device_ids=list(range(n)), dim=1)
            x, t, h, c = (a.to(devices.device) for a in (torch.tensor(x), torch.tensor(t).long(), *state))
            y, *state = net(x, h, c)
            loss = torch.nn.functional.cross_entropy(y.reshape(-1, V), t.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.25)
        optimizer.step()
        return loss.item()

    return step


# ----------------------------------------------------------------------------------------- training
def batches(done):
    """The segments after so many steps, over and over."""
    first = done % -(-(len(train) - 1) // T)
    while True:
        yield from segments(train, first)
        first = 0


items = {"net": net, "optimizer": optimizer}
with jaxpar.Checkpointer(run, save_every=100) as checkpointer, jaxpar.MetricsLog(run) as log:
    start, state, stopped = 0, zeros, False
    if checkpointer.latest_step() is not None:
        start, trees = checkpointer.restore(**items, state=zeros)
        state = trees["state"]
        log.resume_from(start + 1)
    if start and options.torch:
        parser.error("--torch begins at the first step: give another folder to --run")
    twin, done = torch_twin(net.module) if options.torch else None, start
    bar = jaxpar.progress(range(start + 1, options.steps + 1), description="training")
    try:
        for done, (x, t, begins) in zip(bar, batches(start), strict=False):
            loss, state = step(x, t, zeros if begins else state)
            bar.show(loss=loss)
            log.log(done, loss=loss)
            if twin and done <= 50:
                log.log(done, torch=twin(x, t, begins))
            checkpointer.save(done, **items, state=state)
    except KeyboardInterrupt:
        stopped = True
    checkpointer.wait()
    if checkpointer.latest_step() != done:
        checkpointer.save(done, force=True, **items, state=state)
if stopped:
    print(f"stopped after step {done}; to go on: --run {run}")
    sys.exit(130)

# ------------------------------------------------------------------------------------------- results
if options.torch:
    curves = jaxpar.MetricsLog.read(run)
    apart = np.nanmax(np.abs(curves["loss"] - curves["torch"]))
    print(f"losses of jaxpar and torch over {min(50, done)} steps: largest difference {apart:.1e}")
state, total = zeros, 0.0
for x, t, _ in segments(test):
    loss, state = evaluate(x, t, state)
    total += float(loss) * t.size
counts = np.bincount(train.ravel(), minlength=V) + 1
alone = -np.log(counts / counts.sum())[test[1:]].mean()
perplexity = np.exp(total / test[1:].size)
print(f"perplexity of other text: {perplexity:.0f}; from the frequencies alone {np.exp(alone):.0f}")
