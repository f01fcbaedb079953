"""What is to be launched, and how it may go wrong: one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DONE, EXCEPTION, USAGE, STALLED, PREEMPTED, MISTAKE = 0, 1, 2, 70, 75, 78
"""Exit codes. 75 restarts for free; 2 and 78 never restart, because the same would happen again."""

NEVER_RESTARTED = (USAGE, MISTAKE)


@dataclass(frozen=True)
class Settings:
    """The arguments of `jaxpar launch`; times are seconds."""

    n: int
    target: str
    """A script, or a module's name if `module`."""
    arguments: tuple[str, ...] = ()
    module: bool = False
    devices_per_process: int | None = None
    max_restarts: int = 0
    step_timeout: float | None = None
    grace: float = 30
    log_dir: Path | None = None
    tee: bool = True

    patience: int = 3
    """Restarts in a row without progress."""
    lasting: float = 60
    """What a gang that never beats has to live for to have made progress."""

    def delay(self, idle: int) -> float:
        """How long to wait before the restart after `idle` restarts without progress: 1, 2, 4, 4, ..."""
        return float(2 ** min(idle, 2))
