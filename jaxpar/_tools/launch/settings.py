"""The arguments and exit codes of `jaxpar launch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DONE, EXCEPTION, USAGE, STALLED, PREEMPTED, MISTAKE = 0, 1, 2, 70, 75, 78
"""Exit codes; 70 and above follow sysexits.h. Restarts after 75 are not counted. After 2 and 78 the gang is
not restarted, because the same would happen again."""

NEVER_RESTARTED = (USAGE, MISTAKE)


@dataclass(frozen=True)
class LaunchSettings:
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
    tls: bool = False

    patience: int = 3
    """The number of consecutive restarts that may make no progress."""
    lasting: float = 60
    """The lifetime after which a gang that never beats counts as progress."""

    def delay(self, idle: int) -> float:
        """Return the seconds to wait before a restart after `idle` restarts without progress."""
        return float(2 ** min(idle, 2))
