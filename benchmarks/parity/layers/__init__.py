"""Layers, activations, losses and optimizers, each with its torch and its Flax form."""

from . import activations, attention, convolution, linear, losses, norms, optimizers, pooling, recurrent

SECTIONS = {
    "Linear and embedding": linear.CASES,
    "Convolutions": convolution.CASES,
    "Norms": norms.CASES,
    "Attention": attention.CASES,
    "Recurrent": recurrent.CASES,
    "Pools and shapes": pooling.CASES,
    "Activations": activations.CASES,
    "Losses": losses.CASES,
    "Optimizers, five steps": optimizers.CASES,
}
CASES = [case for cases in SECTIONS.values() for case in cases]
"""By reason: pairs that cannot be equal in float64, because torch itself is not exact there."""
