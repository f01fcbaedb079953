"""Run a script in the processes of one world, under the supervision of `jaxpar launch`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ..._tools.launch import report
from ..._tools.launch.gang import Gang
from ..._tools.launch.settings import DONE, LaunchSettings
from ..._tools.launch.sink import Terminal
from ..._tools.launch.supervise import listening
from ..._tools.launch.watch import AttemptEnd, GangWatch
from .names import ACCUMULATE, ALONE, FOLDER, STEPS, WITHOUT

CHILD = f"{__package__}.child"


class ScriptWorld(NamedTuple):
    """Numbers of processes, of devices of each, and of batches that an update accumulates."""

    processes: int
    devices: int
    accumulate: int = 1

    def __str__(self) -> str:
        return f"{self.processes}x{self.devices}" + f"/{self.accumulate}" * (self.accumulate > 1)


@dataclass(frozen=True)
class Script:
    """What is run: a file and its arguments, for so many steps and seconds at most."""

    path: str
    arguments: tuple[str, ...]
    steps: int | None
    seconds: float
    folder: Path


@dataclass(frozen=True)
class WorldRun:
    """How a world ended: its taps, or the error."""

    world: ScriptWorld
    taps: Path | None
    seconds: float
    error: str = ""
    uses: tuple[str, ...] = ()
    keys: int = 0
    """The number of keys of random draws, if those were removed."""


def run_world(script: Script, world: ScriptWorld, without: Sequence[str] = ()) -> WorldRun:
    """Run the script in a world, without the suspects that `without` names.

    Raises:
      KeyboardInterrupt: a signal asked to stop; all processes have ended.
    """
    folder = script.folder / "-without-".join([str(world).replace("/", "-"), *without])
    numbers = {name: str(value) for name, value in world._asdict().items()}
    arguments = [script.path, *(_filled(x, numbers) for x in script.arguments)]
    settings = LaunchSettings(
        world.processes, CHILD, tuple(arguments), module=True, devices_per_process=world.devices,
        grace=0, log_dir=folder / "logs", tee=False,
    )  # fmt: skip
    variables = {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        FOLDER: str(folder.resolve()),
        ACCUMULATE: str(world.accumulate),
        WITHOUT: ",".join(without),
        **({} if script.steps is None else {STEPS: str(script.steps)}),
    }
    begun = time.monotonic()
    with listening() as signals, TemporaryDirectory(prefix="jaxpar-") as files:
        terminal = Terminal()
        try:
            gang = Gang(settings, 0, Path(files), terminal, variables)
            end = TimedWatch(gang, settings, signals, script.seconds).run()
            text = report.last(gang, end, "")
        finally:
            terminal.close()
    if end.stopped is not None:
        raise KeyboardInterrupt
    seconds = time.monotonic() - begun
    if end.code != DONE:
        return WorldRun(world, None, seconds, text)
    tapped = sorted(path.parent for path in folder.glob("*/rank-*.tap"))
    # A script that taps itself decides what is compared.
    tapped = [path for path in tapped if path.name != ALONE] or tapped
    uses = tuple(path.name.removeprefix("uses-") for path in sorted(folder.glob("uses-*")))
    keys = {key for path in folder.glob("keys-*.txt") for key in path.read_text().split()}
    return WorldRun(
        world, tapped[0] if tapped else None, seconds, "" if tapped else "no taps", uses, len(keys)
    )


def _filled(text: str, numbers: dict[str, str]) -> str:
    for name, number in numbers.items():
        text = text.replace(f"{{{name}}}", number)
    return text


class TimedWatch(GangWatch):
    """A watch that ends a world after so many seconds, and reports the stack of every process."""

    def __init__(self, gang: Gang, settings: LaunchSettings, signals: object, seconds: float):
        super().__init__(gang, settings, signals)  # type: ignore[arg-type]
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def _look(self) -> AttemptEnd | None:
        if time.monotonic() > self._end and not self.stopped and self.gang.running:
            return self._stall(self.gang.running[0], f"was not done after {self._seconds:g} s")
        return super()._look()
