"""Bugs of attention and of recurrent layers."""

import functools

import jax.numpy as jnp
from flax import nnx

import jaxpar

from .bug import Bug, changed, flax, replaced
from .twins import GRU, LSTM, MASKED, SEQUENCE, FlaxSequence, weights


class Gates(jaxpar.nn.LSTM):
    """The blocks of torch's four gates (i, f, g, o) read in another order."""

    def __call__(self, x):
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            i, f, g, o = jnp.split(getattr(self, name)[...], 4, -1)
            getattr(self, name)[...] = jnp.concatenate([i, g, f, o], -1)
        return super().__call__(x)


class OneBias(jaxpar.nn.LSTM):
    """torch's second bias forgotten."""

    def __call__(self, x):
        self.bias_hh_l0[...] = jnp.zeros_like(self.bias_hh_l0[...])
        return super().__call__(x)


class Merged(jaxpar.nn.GRU):
    """torch's b_hn added outside the reset gate, where `nnx.GRUCell` has its only bias."""

    def __call__(self, x):
        h = jnp.zeros((len(x), self.hidden_size), x.dtype)
        outputs = []
        for t in range(x.shape[1]):
            both = x[:, t] @ self.weight_ih_l0 + self.bias_ih_l0 + self.bias_hh_l0
            (xr, xz, xn), (hr, hz, hn) = (jnp.split(a, 3, -1) for a in (both, h @ self.weight_hh_l0))
            r, z = nnx.sigmoid(xr + hr), nnx.sigmoid(xz + hz)
            h = (1 - z) * nnx.tanh(xn + r * hn) + z * h
            outputs.append(h)
        return jnp.stack(outputs, 1), h[None]


class NormLast(FlaxSequence):
    """The norm after the residual instead of before the attention."""

    def attend(self, x):
        return self.norm(x + self.attention(x))


def crosswise(x, heads):
    """[..., head, heads] for torch's [..., heads, head]."""
    return x.reshape(*x.shape[:-1], -1, heads).swapaxes(-1, -2)


def layer(kind):
    return lambda rngs: kind(4, 3, batch_first=True, rngs=rngs)


def attending(**options):
    """`weights` with other options in the place of the healthy ones."""
    return changed("attention", weights=functools.partial(weights, **options))


def swapped(q, k):
    return weights(k, q)


BUGS = [
    Bug("mask polarity", MASKED, changed("", inverted=True), "polarity"),
    Bug("query and key swapped", SEQUENCE, changed("attention", weights=swapped), "exchanged"),
    Bug("heads split crosswise", SEQUENCE, changed("attention", split=crosswise), "(size, heads)"),
    Bug("scale of the whole width", SEQUENCE, attending(scale=8), "the root of 8"),
    Bug("no scale", SEQUENCE, attending(scale=1), "scaled by 1)"),
    Bug("softmax over queries", SEQUENCE, attending(axis=-2), "over the queries"),
    Bug("no causal mask", SEQUENCE, attending(causal=False), "is_causal=True"),
    Bug("norm after the residual", SEQUENCE, flax(NormLast)),
    Bug("LSTM gates in another order", LSTM, replaced("rnn", layer(Gates)), "torch's order"),
    Bug("LSTM with one bias", LSTM, replaced("rnn", layer(OneBias)), "bias_hh is added"),
    Bug("GRU, b_hn outside the gate", GRU, replaced("rnn", layer(Merged))),
]
