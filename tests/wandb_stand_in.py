"""A stand-in for wandb: the three calls of docs/logging.md, with wandb's own arguments."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class Run:
    def __init__(self, **settings: Any) -> None:
        self.settings, self.logged, self.finished = settings, [], False

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.logged.append((step, data))

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        self.finished = True


def stand_in() -> tuple[ModuleType, list[Run]]:
    """The module, and the runs that it begins."""
    runs: list[Run] = []

    def init(*, project=None, config=None, dir=None, id=None, resume=None, mode=None) -> Run:
        runs.append(Run(project=project, config=config, dir=dir, id=id, resume=resume, mode=mode))
        return runs[-1]

    module = ModuleType("wandb")
    module.init = init
    return module, runs
