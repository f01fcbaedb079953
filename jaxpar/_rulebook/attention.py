"""MultiheadAttention: one packed projection in torch, three of (E, H, E/H) in Flax."""

from __future__ import annotations

import numpy as np

from .rule import Layer, Part, Rule, Shapes, kernel, same

KERNELS = ("query.kernel", "key.kernel", "value.kernel")
BIASES = ("query.bias", "key.bias", "value.bias")


def attention(layer: Layer, shapes: Shapes | None) -> Rule | None:
    """Convert in_proj_weight (3E, E) to three kernels (E, H, E/H), out_proj.weight (E, E) to (H, E/H, E).

    With kdim or vdim, torch has q_proj_weight, k_proj_weight and v_proj_weight instead.
    """
    # torch's heads are slices of the features, so (E, E) splits to (E, H, E/H) without a permutation.
    H = layer.num_heads
    if getattr(layer, "num_kv_heads", H) not in (H, None):
        return None
    single = tuple(
        _single_kernel(f"{letter}_proj_weight", leaf, H) for letter, leaf in zip("qkv", KERNELS, strict=True)
    )
    return Rule(
        "MultiheadAttention",
        (
            _packed_kernel(H),
            *single,
            Part(
                ("in_proj_bias",),
                BIASES,
                lambda b: tuple(part.reshape(H, -1) for part in np.split(b, 3)),
                lambda *parts: (np.concatenate([part.reshape(-1) for part in parts]),),
            ),
            Part(
                ("out_proj.weight",),
                ("out.kernel",),
                lambda w: (w.T.reshape(H, -1, w.shape[0]),),
                lambda k: (k.reshape(-1, k.shape[-1]).T,),
            ),
            same("out_proj.bias", "out.bias"),
        ),
    )


def _single_kernel(torch: str, flax: str, H: int) -> Part:
    return Part(
        (torch,),
        (flax,),
        lambda w: (w.T.reshape(w.shape[1], H, -1),),
        lambda k: (k.reshape(k.shape[0], -1).T,),
        when=_differ,
    )


def _packed_kernel(H: int) -> Part:
    def forth(w: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(part.T.reshape(w.shape[1], H, -1) for part in np.split(w, 3))

    def back(*kernels: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.concatenate([k.reshape(k.shape[0], -1) for k in kernels], 1).T,)

    return Part(("in_proj_weight",), KERNELS, forth, back, when=lambda shapes: not _differ(shapes))


def _differ(shapes: Shapes) -> bool:
    return len({shapes[leaf][0] for leaf in KERNELS}) > 1


JAXPAR_ATTENTION = Rule(  # torch's tensors, with transposed matrices
    "MultiheadAttention",
    (
        *(kernel(name, name) for name in ("in_proj_weight", *(f"{letter}_proj_weight" for letter in "qkv"))),
        kernel("out_proj.weight", "out_proj.kernel"),
        *(same(name) for name in ("in_proj_bias", "out_proj.bias", "bias_k", "bias_v")),
    ),
)

ROWS = {
    "jaxpar.nn.MultiheadAttention": JAXPAR_ATTENTION,
    **dict.fromkeys(("nnx.MultiHeadAttention", "linen.MultiHeadAttention"), attention),
    "linen.MultiHeadDotProductAttention": attention,
}
