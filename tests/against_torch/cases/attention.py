"""Attention: torch's call, jaxpar's, and the inputs. Masks are True where torch blocks."""

import numpy as np
from against_torch.layers import Case, Refused

L, S, B, E = 3, 4, 2, 4
Q, K = (L, B, E), (S, B, E)


def masked(net, query, key, value, attn_mask=None, key_padding_mask=None, **options):
    return net(query, key, value, attn_mask=attn_mask, key_padding_mask=key_padding_mask, **options)


def padded(net, query, key, value, key_padding_mask, **options):
    return net(query, key, value, key_padding_mask=key_padding_mask, **options)


def itself(net, x, **options):
    return net(x, x, x, **options)


def twice(net, query, memory, **options):
    return net(query, memory, memory, **options)


def layer(options="", inputs=(Q, K, K), call=masked, heads=2, **call_options):
    text = f"MultiheadAttention({E}, {heads}{options and ', ' + options})"
    return Case(text, inputs=inputs, channels=None, call=call, options=call_options)


BLOCKED = np.array([[0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]], bool)
NO_KEY = np.array([[0, 1, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0]], bool)
CAUSAL = np.triu(np.ones((L, S), bool), 1)
PADDING = np.array([[0, 0, 0, 1], [0, 0, 1, 1]], bool)
BY_HEAD = np.random.RandomState(0).rand(B * 2, L, S) < 0.3
BY_HEAD[..., 0] = False
MINUS = np.where(BLOCKED, -np.inf, 0.5)
LIGHT = {"need_weights": False}

CASES = [
    layer(call=itself, inputs=(Q,)),
    layer(call=itself, inputs=(Q,), **LIGHT),
    layer(call=twice, inputs=(Q, K)),
    layer("bias=False"),
    layer("batch_first=True", ((B, L, E), (B, S, E), (B, S, E)), average_attn_weights=False),
    layer("", ((L, E), (S, E), (S, E), BLOCKED, PADDING[0])),
    layer("", ((L, E), (S, E), (S, E), BY_HEAD[:2]), average_attn_weights=False),
    layer("kdim=3, vdim=5", (Q, (S, B, 3), (S, B, 5)), heads=1),
    layer("kdim=3, bias=False", (Q, (S, B, 3), K), **LIGHT),
    # Everything is dropped in training, nothing in evaluation.
    layer("dropout=1.0"),
    layer("dropout=1.0", **LIGHT),
    *[
        layer(options, (Q, K, K, *masks), **kind)
        for options in ("", "add_bias_kv=True, add_zero_attn=True")
        for kind in ({}, LIGHT)
        for masks in [(BLOCKED,), (BY_HEAD, PADDING), ((L, S), np.where(PADDING, -np.inf, 0.0)), (MINUS,)]
    ],
    layer("add_bias_kv=True", (Q, K, K, PADDING), padded),
    layer("add_zero_attn=True", (Q, K, K, PADDING), padded, average_attn_weights=False),
    layer("", (Q, K, K, CAUSAL), is_causal=True),
    layer("", (Q, K, K, CAUSAL, PADDING), is_causal=True, **LIGHT),
    # The hint is believed: this mask is not read, and what bias_kv adds is out of reach.
    layer("", (Q, K, K, BLOCKED), is_causal=True, **LIGHT),
    layer("add_bias_kv=True", (Q, K, K, CAUSAL), is_causal=True, **LIGHT),
    # A query without keys: NaN with weights, 0 before the output's projection without.
    layer("", (Q, K, K, NO_KEY)),
    layer("", (Q, K, K, NO_KEY), **LIGHT),
    layer("", (Q, K, K, np.where(NO_KEY, -np.inf, 0.0)), **LIGHT),
    *[
        Case(
            f"lambda q, k, v, *m: functional.scaled_dot_product_attention(q, k, v, {options})",
            "",
            inputs,
            None,
        )
        for options, inputs in [
            ("", ((B, 2, L, E), (B, 2, S, E), (B, 2, S, 5))),
            ("", ((L, E), (S, E), (S, E))),
            ("*m", ((B, 2, L, E), (B, 2, S, E), (B, 2, S, E), ~NO_KEY)),
            ("*m", ((B, 2, L, E), (B, 2, S, E), (B, 2, S, E), (B, 1, L, S))),
            ("*m, scale=0.3", ((B, 2, L, E), (B, 2, S, E), (B, 2, S, E), ~BY_HEAD.reshape(B, 2, L, S))),
            ("is_causal=True", ((B, 2, L, E), (B, 2, S, E), (B, 2, S, E))),
            ("is_causal=True", ((B, 2, S, E), (B, 2, L, E), (B, 2, L, E))),
            ("enable_gqa=True", ((B, 4, L, E), (B, 2, S, E), (B, 2, S, E))),
        ]
    ],
]

REFUSED = [
    Refused(
        "MultiheadAttention(4, 3)",
        "MultiheadAttention(4, 3)",
        ValueError,
        "embed_dim must be divisible by num_heads",
    ),
    Refused(
        "MultiheadAttention(0, 1)",
        "MultiheadAttention(0, 1)",
        ValueError,
        "embed_dim and num_heads must be greater than 0, got embed_dim=0 and num_heads=1 instead",
    ),
    Refused(
        "MultiheadAttention(4, 2, 1.5)",
        "MultiheadAttention(4, 2, 1.5)",
        ValueError,
        "dropout probability has to be between 0 and 1, but got 1.5",
        inputs=(Q, K, K),
    ),
]
