"""MultiheadAttention: one packed projection in torch, three of (E, H, E/H) in Flax."""

from __future__ import annotations

import numpy as np

from .rule import Layer, Part, Rule, Shapes, kernel, same

PROJECTIONS = ("query", "key", "value", "out")


def attention(layer: Layer, shapes: Shapes | None) -> Rule | None:
    """Convert in_proj_weight (3E, E) to three kernels (E, H, E/H), out_proj.weight (E, E) to (H, E/H, E).

    With kdim or vdim, torch has q_proj_weight, k_proj_weight and v_proj_weight instead.
    """
    H = layer.num_heads
    return by_heads(H, PROJECTIONS) if getattr(layer, "num_kv_heads", H) in (H, None) else None


def by_heads(H: int, projections: tuple[str, ...]) -> Rule:
    # torch's heads are slices of the features, so (E, E) splits to (E, H, E/H) without a permutation.
    *inner, out = projections
    kernels = tuple(f"{name}.kernel" for name in inner)
    single = tuple(
        _single_kernel(f"{letter}_proj_weight", kernel, kernels, H)
        for letter, kernel in zip("qkv", kernels, strict=True)
    )
    return Rule(
        "MultiheadAttention",
        (
            _packed_kernel(kernels, H),
            *single,
            Part(
                ("in_proj_bias",),
                tuple(f"{name}.bias" for name in inner),
                lambda b: tuple(part.reshape(H, -1) for part in np.split(b, 3)),
                lambda *parts: (np.concatenate([part.reshape(-1) for part in parts]),),
            ),
            Part(
                ("out_proj.weight",),
                (f"{out}.kernel",),
                lambda w: (w.T.reshape(H, -1, w.shape[0]),),
                lambda k: (k.reshape(-1, k.shape[-1]).T,),
            ),
            same("out_proj.bias", f"{out}.bias"),
        ),
    )


def _single_kernel(torch: str, flax: str, kernels: tuple[str, ...], H: int) -> Part:
    return Part(
        (torch,),
        (flax,),
        lambda w: (w.T.reshape(w.shape[1], H, -1),),
        lambda k: (k.reshape(k.shape[0], -1).T,),
        when=lambda shapes: _differ(shapes, kernels),
    )


def _packed_kernel(names: tuple[str, ...], H: int) -> Part:
    def forth(w: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(part.T.reshape(w.shape[1], H, -1) for part in np.split(w, 3))

    def back(*kernels: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.concatenate([k.reshape(k.shape[0], -1) for k in kernels], 1).T,)

    return Part(("in_proj_weight",), names, forth, back, when=lambda shapes: not _differ(shapes, names))


def _differ(shapes: Shapes, kernels: tuple[str, ...]) -> bool:
    return len({shapes[leaf][0] for leaf in kernels}) > 1


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
