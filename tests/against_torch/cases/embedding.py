"""Embedding and EmbeddingBag: torch's call, jaxpar's, and the inputs."""

import numpy as np
from against_torch.layers import Case, Refused

ROWS, WIDTH = 7, 3


def some(*shape):
    return lambda random: random.randint(0, ROWS, shape)


def row(options, *inputs, name="Embedding", **more):
    text = f"{name}({ROWS}, {WIDTH}{options and ', ' + options})"
    return Case(text, inputs=inputs, channels=None, **more)


def bag(options, *inputs, **more):
    return row(options, *inputs, name="EmbeddingBag", **more)


def offsets(net, x, offsets):
    return net(x, offsets)


def weighted(net, x, weights):
    return net(x, per_sample_weights=weights)


OFFSETS = np.array([0, 3, 3, 5])  # the second bag is empty
ENDS = np.array([0, 3, 3, 5, 9])
FREQUENT = [[1, 1, 1], [1, 2, 1]]
PAIRS = [[1, 4, 2], [2, 1, 4]]

CASES = [
    row("", some(5)),
    row("", some(2, 3, 4)),
    row("padding_idx=2", some(40)),
    row("padding_idx=-1", some(40)),
    *[row(f"max_norm={norm}", some(4)) for norm in (0.5, 1.0, 1e9, 0.0)],
    row("max_norm=0.7, norm_type=1.0", some(3, 2)),
    row("max_norm=0.7, norm_type=3.0, padding_idx=1", some(3, 2)),
    row("max_norm=0.4, norm_type=float('inf')", some(3)),
    row("scale_grad_by_freq=True", np.array(FREQUENT)),
    row("padding_idx=1, max_norm=0.6, scale_grad_by_freq=True", some(20)),
    Case(
        "lambda x, w: functional.embedding(x, w, 2, scale_grad_by_freq=True)",
        inputs=(some(20), (ROWS, WIDTH)),
        channels=None,
    ),
    *[
        bag(f"mode='{mode}'{more}", x)
        for mode in ("sum", "mean", "max")
        for more in ("", ", padding_idx=2", ", max_norm=0.5")
        for x in (some(3, 4),)
    ],
    *[bag(f"mode='{mode}'", some(9), OFFSETS, call=offsets) for mode in ("sum", "mean", "max")],
    *[
        bag(f"mode='{mode}', padding_idx=-3, include_last_offset=True", some(9), ENDS, call=offsets)
        for mode in ("sum", "mean", "max")
    ],
    bag("mode='max', padding_idx=1", np.array([[1, 1], [1, 2], [3, 3]])),
    bag("mode='mean', padding_idx=1", np.array([[1, 1], [1, 2], [3, 3]])),
    bag("mode='sum'", np.array([2, 3]), np.array([0, 0, 2, 2]), call=offsets),
    # Where all indices are as frequent: elsewhere torch's bag is wrong (see test_embedding.py).
    *[bag(f"mode='{mode}', scale_grad_by_freq=True", np.array(PAIRS)) for mode in ("sum", "mean")],
    bag("mode='sum'", some(3, 4), (3, 4), call=weighted),
    bag("mode='sum', padding_idx=2", some(3, 4), (3, 4), call=weighted),
]

REFUSED = [
    *[
        Refused(f"{name}(4, 2, padding_idx={index})", f"{name}(4, 2, padding_idx={index})", ValueError,
                f"padding_idx must be within num_embeddings, but is {index} for 4 rows")
        for name in ("Embedding", "EmbeddingBag")
        for index in (4, -5)
    ],
    Refused("Embedding(4, 2, sparse=True)", "Embedding(4, 2, sparse=True)", ValueError,
            "JAX has no sparse gradients", torch_too=False),
    *[
        Refused(f"EmbeddingBag(4, 2, {options})(torch.zeros(1, 1).long())", f"EmbeddingBag(4, 2, {options})",
                ValueError, reason)
        for options, reason in {
            "mode='foo'": "mode has to be one of sum, mean or max",
            "mode='max', scale_grad_by_freq=True": "max mode does not support scaling the gradient",
            "mode='max', sparse=True": "max mode does not support sparse weights",
        }.items()
    ],
    *[
        Refused(f"{call}", call.replace("torch.tensor", "jnp.array"), error, reason)
        for call, error, reason in [
            ("Embedding(4, 2)(torch.tensor([1.0]))", TypeError, "Expected 'indices' to be integers"),
            ("EmbeddingBag(4, 2)(torch.tensor([[1.0]]))", TypeError, "Expected 'indices' to be integers"),
            ("EmbeddingBag(4, 2)(torch.tensor([[[1]]]))", ValueError, "input has to be 1D or 2D"),
            ("EmbeddingBag(4, 2)(torch.tensor([[1]]), torch.tensor([0]))", ValueError, "has to be None"),
            ("EmbeddingBag(4, 2)(torch.tensor([1]))", ValueError, "offsets has to be 1D but got None"),
            ("EmbeddingBag(4, 2)(torch.tensor([1]), torch.tensor([1]))", ValueError, "[0] has to be 0"),
            ("EmbeddingBag(4, 2)(torch.tensor([1]), torch.tensor([0, 5]))", ValueError,
             "offsets[-1] can not be greater than input's length 1 but got 5"),
            ("EmbeddingBag(4, 2)(torch.tensor([[1]]), per_sample_weights=torch.tensor([[1.0]]))", ValueError,
             "only supported for mode='sum' (got mode='mean')"),
            ("EmbeddingBag(4, 2, mode='sum')(torch.tensor([[1]]), per_sample_weights=torch.tensor([1.0]))",
             ValueError, "must have the same shape as the input"),
        ]
    ],
]  # fmt: skip
