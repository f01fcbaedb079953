"""What seq2seq_plain.py does, with its batches shared out over all devices."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import batches, cast, main
from flax.training.train_state import TrainState

import jaxpar

SYMBOLS = "_$0123456789+="  # filling, end


class Decoder(nn.RNNCellBase):
    size: int
    teacher_force: bool

    @nn.compact
    def __call__(self, carry, x):
        state, last = carry
        state, y = nn.LSTMCell(self.size, param_dtype=x.dtype)(state, x if self.teacher_force else last)
        logits = nn.Dense(len(SYMBOLS))(y)
        symbol = jax.random.categorical(self.make_rng("lstm"), logits)
        last = jax.nn.one_hot(symbol, len(SYMBOLS), dtype=last.dtype)
        return (state, last), (logits, last)

    @property
    def num_feature_axes(self):
        return 1


class Seq2seq(nn.Module):
    size: int = 32
    teacher_force: bool = True

    @nn.compact
    def __call__(self, query, answer):
        encoder = nn.RNN(nn.LSTMCell(self.size, param_dtype=query.dtype), return_carry=True)
        decoder = nn.RNN(Decoder(self.size, self.teacher_force), split_rngs={"params": False, "lstm": True})
        state, _ = encoder(query, seq_lengths=(query.argmax(-1) == 1).argmax(-1))
        return decoder(answer[:, :-1], initial_carry=(state, answer[:, 0]))


def additions(count, seed=0):
    """Return one-hot texts `12+345$` and `=357$`."""
    pairs = np.random.RandomState(seed).randint(1000, size=(count, 2))
    texts = [(f"{a}+{b}$".ljust(8, "_"), f"={a + b}$".ljust(6, "_")) for a, b in pairs]
    index = {symbol: i for i, symbol in enumerate(SYMBOLS)}
    return [
        np.eye(len(SYMBOLS))[[[index[c] for c in text] for text in side]] for side in zip(*texts, strict=True)
    ]


def cross_entropy(logits, labels):
    lengths = (labels.argmax(-1) == 1).argmax(-1) + 1
    mask = jnp.arange(labels.shape[1]) < lengths[:, None]
    return -((nn.log_softmax(logits) * labels).sum(-1) * mask).mean()


@jax.jit
def train_step(state, query, answer, key):
    key = jax.random.fold_in(key, state.step)

    def loss_fn(params):
        logits, _ = state.apply_fn({"params": params}, query, answer, rngs={"lstm": key})
        return cross_entropy(logits, answer[:, 1:]), logits

    (loss, _), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradients), loss


def train(dtype="float32"):
    data = cast(additions(512), dtype)
    model = jaxpar.DataParallel(Seq2seq())
    keys = dict(zip(("params", "lstm"), jax.random.split(jax.random.key(0)), strict=True))
    params = cast(model.init(keys, *(x[:1] for x in data))["params"], dtype)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(0.003, eps=1e-6))
    for query, answer in batches(16, *data, dtype=dtype):
        state, loss = train_step(state, query, answer, jax.random.key(1))
        yield loss, state.params


if __name__ == "__main__":
    main(train)
