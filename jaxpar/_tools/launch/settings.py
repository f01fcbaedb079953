"""What to launch, and how patient to be with it: the arguments of `jaxpar launch` as one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DONE, EXCEPTION, USAGE, STALLED, PREEMPTED, MISTAKE = 0, 1, 2, 70, 75, 78
"""Exit codes; 70 and above are those of sysexits.h. After 75 a restart is free. After 2 and 78 there is none,
because the same would happen again."""

NEVER_RESTARTED = (USAGE, MISTAKE)


@dataclass(frozen=True)
class LaunchSettings:
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
    """How many restarts in a row may bring no progress."""
    lasting: float = 60
    """How long a gang that never beats must live to count as progress."""

    def delay(self, idle: int) -> float:
        """Seconds to wait before a restart after `idle` ones without progress: 1, 2, 4, 4, ..."""
        return float(2 ** min(idle, 2))
