"""Differences between both sides of others' models: found by a comparison, explained, confirmed by hand."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Difference:
    """Attributes:
    title: a heading.
    pairs: names of the pairs that have it.
    text: what either side does, what it changes, and how it was confirmed.
    """

    title: str
    pairs: tuple[str, ...]
    text: str


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "A window of one more key",
        ("Mistral",),
        "torch lets a query see `sliding_window` keys, itself among them "
        "(`transformers/masking_utils.py`: `kv_idx > q_idx - sliding_window`). `modeling_flax_mistral.py` "
        "cuts with `jnp.triu(mask, k=-sliding_window)`, which leaves one more. Texts shorter than the "
        "window do not show it. The comparison says so itself, in both layers; confirmed by reading both "
        "sources.",
    ),
    Difference(
        "A parameter without a gradient, and weight decay",
        ("Wav2Vec2", "Whisper", "Dinov2"),
        "`mask_token` and `masked_spec_embed` have no part in a call without masks, and Whisper's encoder "
        "keeps its sines frozen in torch, behind a `stop_gradient` in Flax. torch leaves their gradient "
        "None, and its AdamW leaves such a parameter alone; in JAX the gradient is zero, and optax decays "
        "the weight. Outputs and gradients are the same. Confirmed: the weight differs by rate times "
        "decay, 1e-5 of it, in each step, and for Whisper the comparison says so itself.",
    ),
    Difference(
        "A position that is not trained",
        ("Roberta, positions from 0",),
        "torch's table of positions has `padding_idx=1`, so position 1 gets no gradient; Flax has no such "
        "thing. RoBERTa's own positions begin at 2, as in the row Roberta, and then both are the same. "
        "Who gives positions from 0 trains another model, and so does Flax on a text with padding whose "
        "outputs count. Confirmed: with positions from 2 all gradients agree.",
    ),
    Difference(
        "A running variance that is biased",
        ("RegNet, training", "ResNet, training"),
        "In training Flax's BatchNorm keeps the biased variance of a batch, torch the unbiased "
        "one, n/(n-1) times as much. Outputs, gradients and weights are the same in training; the model "
        "that is evaluated afterwards is not. With large batches it is little, and in the last stage of a "
        "small image much. Confirmed: it is the only thing that differs, and equal to 1e-16 with that "
        "factor, as the comparison says itself.",
    ),
    Difference(
        "An epsilon, and another GELU",
        ("UNet2DCondition",),
        "torch's blocks of attention have `GroupNorm(eps=1e-6)` (`transformer_2d.py`) and the exact GELU; "
        "Flax's have `GroupNorm(epsilon=1e-5)` and `nn.gelu`, which is tanh's form by default "
        "(`attention_flax.py`, lines 388 and 524). Outputs are 1.4e-4 apart. All places are found, and "
        "named. Confirmed by reading both sources only.",
    ),
)
