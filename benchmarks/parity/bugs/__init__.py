"""Planted bugs: each a healthy twin and what makes its Flax side wrong."""

from . import layers, plain, sequences, training

SECTIONS = {
    "Layers": layers.BUGS,
    "Attention and recurrence": sequences.BUGS,
    "Plain code": plain.BUGS,
    "Losses": training.LOSSES,
    "Optimizers": training.OPTIMIZERS,
}
BUGS = [bug for bugs in SECTIONS.values() for bug in bugs]
