"""Layers: arguments without a counterpart, layers that take `rngs`, and the names of their leaves."""

DROPPED = ("inplace", "device", "dtype", "sparse", "enable_nested_tensor", "mask_check")
"""Arguments of torch's layers that mean nothing in JAX."""

_SPATIAL = tuple(f"{name}{n}d" for name in ("Conv", "ConvTranspose", "Dropout") for n in (1, 2, 3))
_RECURRENT = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")
_ATTENTIONS = ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer")
_DENSE = ("Linear", "Bilinear", "Embedding", "EmbeddingBag", "Dropout", "AlphaDropout")
RANDOM = frozenset((*_SPATIAL, *_RECURRENT, *_ATTENTIONS, *_DENSE))
"""Layers that are built with `rngs`."""

_NORMS = tuple(f"{name}{n}d" for name in ("BatchNorm", "InstanceNorm") for n in (1, 2, 3))
_ACTIVATIONS = (
    *(
        "ReLU",
        "ReLU6",
        "LeakyReLU",
        "PReLU",
        "ELU",
        "CELU",
        "SELU",
        "GELU",
        "SiLU",
        "Mish",
        "Sigmoid",
        "Tanh",
    ),
    *("LogSigmoid", "Hardtanh", "Hardsigmoid", "Hardswish", "Hardshrink", "Softsign", "Softplus", "Softmax"),
    *("Softshrink", "Tanhshrink", "LogSoftmax", "GLU", "Threshold", "Identity"),
)
ACCEPTING = RANDOM | {*_NORMS, *_ACTIVATIONS, "GroupNorm", "LayerNorm", "RMSNorm"}
"""Layers that accept `rngs`, so that code that takes their class as an argument can build them."""

LEAVES = {
    **{(name, "weight"): "scale[...]" for name in (*_NORMS, "GroupNorm", "LayerNorm", "RMSNorm")},
    **{(name, "bias"): "bias[...]" for name in (*_NORMS, "GroupNorm", "LayerNorm", "Linear", *_SPATIAL)},
    **{(name, "running_mean"): "mean[...]" for name in _NORMS},
    **{(name, "running_var"): "var[...]" for name in _NORMS},
    ("Linear", "weight"): "kernel[...].T",
    ("Embedding", "weight"): "embedding[...]",
    ("PReLU", "weight"): "negative_slope[...]",
    **{
        (f"Conv{n}d", "weight"): f"kernel[...].transpose({axes})"
        for n, axes in ((1, "2, 1, 0"), (2, "3, 2, 0, 1"), (3, "4, 3, 0, 1, 2"))
    },
}
"""The counterpart in a layer of jaxpar of a tensor of torch's layer, in torch's layout."""
