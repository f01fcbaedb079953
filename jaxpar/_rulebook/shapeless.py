"""Layers of jaxpar.nn without tensors: pooling, resizing, padding and dropout."""

from __future__ import annotations

from .rule import Rule


def _by_axes(name: str) -> Rule:
    kinds = tuple(f"{name}{n}d" for n in (2, 1, 3))
    return Rule(kinds[0], (), "last", also=kinds[1:])


POOLS = ("MaxPool", "MaxUnpool", "AvgPool", "LPPool", "AdaptiveAvgPool", "AdaptiveMaxPool")
PADS = ("ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad")
ROWS = {f"jaxpar.nn.{name}": _by_axes(name) for name in POOLS + PADS}
ROWS |= {
    f"jaxpar.nn.{name}": Rule(name, (), "last")
    for name in ("Upsample", "PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "Unfold", "Fold")
}
ROWS |= {
    "jaxpar.nn.Dropout": Rule("Dropout"),
    "jaxpar.nn.AlphaDropout": Rule("AlphaDropout"),
    "jaxpar.nn.RReLU": Rule("RReLU"),
    "jaxpar.nn.FeatureDropout": Rule("Dropout2d", (), "last", also=("Dropout1d", "Dropout3d")),
    "jaxpar.nn.FeatureAlphaDropout": Rule("FeatureAlphaDropout", (), "last"),
}
