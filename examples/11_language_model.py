"""A language model of words: an LSTM that is trained in segments and keeps its state between them.

What it adds: the batch is dimension 1 of the words [T, B] and of the state [L, B, H], so
`DataParallel(net, dim=1)` splits both; the state is an output of one step and an input of the next
(truncated backpropagation); one table of vectors reads and predicts; the gradient is clipped.

The text is CPython's own reference, which `help()` shows: the module pydoc_data.topics (PSF License).

    python examples/11_language_model.py
"""

import collections
import re
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar
from jaxpar.nn.functional import cross_entropy

jaxpar.virtual_devices(4)  # without a GPU; with GPUs these are used
V, L, H, B, T = 600, 2, 48, 18, 16  # vocabulary, layers, width, pieces of text, words between two updates

words = re.findall(r"\w+|[^\w\s]", " ".join(topics[name] for name in sorted(topics)).lower())[:24000]
known = [word for word, _ in collections.Counter(words).most_common(V - 1)]
number = {word: i for i, word in enumerate(known)}
text = np.array([number.get(word, V - 1) for word in words], np.int32)  # the last one: any other word


def columns(text):
    """B pieces of text side by side, [-1, B]: each column goes on below, none beside it."""
    rows = len(text) // B
    return text[: rows * B].reshape(B, rows).T


def segments(text):
    """Words [T, B], and the words that follow."""
    for i in range(0, len(text) - 1, T):
        end = min(i + T, len(text) - 1)
        yield text[i:end], text[i + 1 : end + 1]


train, test = columns(text[: -len(text) // 10]), columns(text[-len(text) // 10 :])


class Model(nnx.Module):
    def __init__(self, rngs):
        def init(key, shape, dtype):
            return jax.random.uniform(key, shape, dtype, -0.1, 0.1)

        self.embedding = nnx.Embed(V, H, embedding_init=init, rngs=rngs)
        self.lstm = jaxpar.nn.LSTM(H, H, num_layers=L, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(V))

    def __call__(self, x, state):
        x, state = self.lstm(self.embedding(x), state)
        return self.embedding.attend(x) + self.bias, state  # the same table once more


def loss_fn(net, x, t, state):
    y, state = net(x, state)
    return cross_entropy(y.reshape(-1, V), t.reshape(-1)), state


net = jaxpar.DataParallel(Model(nnx.Rngs(0)), dim=1)
tx = optax.chain(jaxpar.optim.clip_grad_norm(0.25), jaxpar.optim.sgd(lr=10.0))
optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, loss_fn, has_aux=True)
evaluate = jaxpar.eval_step(net, loss_fn)
zeros = (np.zeros((L, B, H), np.float32), np.zeros((L, B, H), np.float32))

for epoch in range(3):
    state = zeros
    for x, t in segments(train):
        loss, state = step(x, t, state)  # torch: state = [s.detach() for s in state]
    print(f"epoch {epoch}: loss {float(loss):.2f}")

state, total = zeros, 0.0
for x, t in segments(test):
    loss, state = evaluate(x, t, state)
    total += float(loss) * t.size
counts = np.bincount(train.ravel(), minlength=V) + 1
alone = -np.log(counts / counts.sum())[test[1:]].mean()
perplexity = np.exp(total / test[1:].size)
print(f"perplexity of other text: {perplexity:.0f}; from the frequencies alone {np.exp(alone):.0f}")
