"""The metric that ranks the best steps."""

from __future__ import annotations

from typing import Any, NamedTuple


class Metric(NamedTuple):
    """A number and its mode: whether lower ("min") or higher ("max") is better."""

    value: float
    mode: str

    @classmethod
    def of(cls, value: Any, mode: str) -> Metric:
        if mode not in ("min", "max"):
            raise ValueError(f"Checkpointer.save_best: mode is 'min' or 'max', not {mode!r}.")
        # float() accepts any array with one element; more dimensions usually mean a forgotten reduction.
        if getattr(value, "shape", ()) not in ((), (1,)):
            raise TypeError(
                f"Checkpointer.save_best: the metric has shape {value.shape}; it must be one number: .mean()."
            )
        try:
            return cls(float(value.item() if hasattr(value, "item") else value), mode)
        except (TypeError, ValueError):
            raise TypeError(
                f"Checkpointer.save_best: the metric is {value!r}; it must be one number."
            ) from None

    @property
    def badness(self) -> float:
        """The value, negated for "max", so that lower is always better."""
        return self.value if self.mode == "min" else -self.value
