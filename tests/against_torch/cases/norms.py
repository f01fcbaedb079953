"""Normalisations: torch's call, jaxpar's, and the inputs (channels last)."""

from against_torch.layers import Case, Refused, named

NORM = named({"weight": "scale", "running_mean": "mean", "running_var": "var"})

CASES = [
    Case("BatchNorm1d(6)", "BatchNorm(6)", ((5, 6),), weights=NORM),
]
REFUSED: list[Refused] = []
