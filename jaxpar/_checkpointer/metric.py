"""What the best steps are judged by."""

from __future__ import annotations

from typing import Any, NamedTuple


class Metric(NamedTuple):
    """What a step is judged by, and whether less of it is better ("min") or more ("max")."""

    value: float
    mode: str

    @classmethod
    def of(cls, value: Any, mode: str) -> Metric:
        """Raises ValueError or TypeError if it is none."""
        if mode not in ("min", "max"):
            raise ValueError(f"Checkpointer.save_best: mode is 'min' or 'max', not {mode!r}.")
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
        return self.value if self.mode == "min" else -self.value
