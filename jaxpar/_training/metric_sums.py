"""metric_sums: which metrics among a step's arguments are sums over rows, so that replicas add theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flax import nnx

from .._parallel.modules.nnx_view import NNXView

SUMS = (nnx.metrics.Average.update, nnx.metrics.Accuracy.update)


def is_additive(metric: nnx.Metric) -> bool:
    """Whether each Variable of a metric is a sum over rows: Flax's averages, and what its class declares."""
    if type(metric) is nnx.MultiMetric:
        parts = [x for x in vars(metric).values() if isinstance(x, nnx.Metric)]
        return all(map(is_additive, parts))
    declared = getattr(type(metric), "additive", None)
    return bool(declared) if declared is not None else type(metric).update in SUMS


def refuse_other_metrics(objects: Sequence[Any], function: str) -> None:
    """Raise TypeError for a metric that replicas cannot add."""
    for metric in (x for x in objects if isinstance(x, nnx.Metric)):
        if not is_additive(metric):
            raise TypeError(
                f"{function}: {type(metric).__name__} is an argument, and on replicas only metrics whose "
                "Variables are sums over rows can be counted: nnx.metrics.Average, Accuracy, a MultiMetric "
                "of them, or a class with `additive = True`. Return what it counts, and update it with the "
                "outputs."
            )


def sums_in(thing: Any, view: NNXView) -> tuple[int, ...]:
    """Return which of the values of `thing` are sums over rows."""
    counted: set[int] = set()
    for _, node in nnx.iter_graph(thing, graph=True):
        if isinstance(node, nnx.Metric) and is_additive(node):
            counted |= {id(x) for _, x in nnx.iter_graph(node, graph=True) if isinstance(x, nnx.Variable)}
    return tuple(i for i, leaf in enumerate(view.leaves) if id(leaf) in counted)
