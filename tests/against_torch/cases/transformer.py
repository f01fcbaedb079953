"""Transformer layers: torch's call, jaxpar's where it is another, and the inputs."""

import numpy as np
from against_torch.layers import Case, Refused

L, S, B, E = 3, 4, 2, 4
SRC, MEMORY = (L, B, E), (S, B, E)
CAUSAL = np.triu(np.ones((L, L), bool), 1)
PADDING = np.array([[0, 0, 1], [0, 0, 0]], bool)
MEMORY_MASK = np.array([[0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]], bool)


def weights(tensors):
    """Linear layers and norms as Flax names them, matrices transposed."""

    def name(torch):
        parent, _, leaf = torch.rpartition(".")
        kind = parent.rpartition(".")[2]
        if leaf == "weight":
            leaf = "scale" if kind.startswith("norm") else "kernel"
        return f"{parent}.{leaf}"

    return {name(torch): x.T if x.ndim == 2 else x for torch, x in tensors.items()}


def case(torch, inputs, jaxpar="", **options):
    return Case(torch, jaxpar, inputs, None, weights=weights, options=options)


def layer(kind, options=""):
    return f"{kind}({E}, 2, 6{options and ', ' + options})"


ENCODER, DECODER = "TransformerEncoderLayer", "TransformerDecoderLayer"

CASES = [
    case(layer(ENCODER, "dropout=0.0"), (SRC,)),
    case(layer(ENCODER, "dropout=0.0, norm_first=True, activation='gelu'"), (SRC, CAUSAL)),
    case(layer(ENCODER, "dropout=0.0, batch_first=True, bias=False"), ((B, L, E), CAUSAL, PADDING)),
    case(layer(ENCODER, "dropout=1.0, layer_norm_eps=1e-3"), (SRC,)),
    case(layer(ENCODER, "dropout=0.0"), ((L, E), CAUSAL), is_causal=True),
    case(
        layer(ENCODER, "dropout=0.0, activation=torch.tanh"),
        (SRC,),
        layer(ENCODER, "dropout=0.0, activation=jnp.tanh"),
    ),
    case(layer(DECODER, "dropout=0.0"), (SRC, MEMORY)),
    case(layer(DECODER, "dropout=0.0, norm_first=True"), (SRC, MEMORY, CAUSAL, MEMORY_MASK)),
    case(
        layer(DECODER, "dropout=0.0, batch_first=True, bias=False"),
        ((B, L, E), (B, L, E), CAUSAL, CAUSAL, PADDING, PADDING),
    ),
    case(
        layer(DECODER, "dropout=0.0"), (SRC, SRC, CAUSAL, CAUSAL), tgt_is_causal=True, memory_is_causal=True
    ),
    case(layer(DECODER, "dropout=1.0"), (SRC, MEMORY)),
    case(
        f"TransformerEncoder({layer(ENCODER, 'dropout=0.0')}, 2, LayerNorm({E}), enable_nested_tensor=False)",
        (SRC, CAUSAL, PADDING),
        f"TransformerEncoder({layer(ENCODER, 'dropout=0.0')}, 2, LayerNorm({E}))",
    ),
    case(f"TransformerDecoder({layer(DECODER, 'dropout=0.0')}, 2)", (SRC, MEMORY)),
    case(f"Transformer({E}, 2, 2, 1, 6, dropout=0.0)", (MEMORY, SRC)),
    case(
        f"Transformer({E}, 2, 1, 2, 6, dropout=0.0, batch_first=True, norm_first=True, bias=False)",
        ((B, L, E), (B, L, E), CAUSAL, CAUSAL, CAUSAL, PADDING, PADDING, PADDING),
    ),
]

REFUSED = [
    Refused(text, text, error, reason)
    for text, error, reason in [
        (layer(ENCODER, "activation='tanh'"), RuntimeError, "activation should be relu/gelu, not tanh"),
        (layer(DECODER, "dropout=1.5"), ValueError, "dropout probability has to be between 0 and 1"),
        ("Transformer(4, 3)", ValueError, "embed_dim must be divisible by num_heads"),
        ("TransformerEncoderLayer(4, 3)", ValueError, "embed_dim must be divisible by num_heads"),
    ]
]
