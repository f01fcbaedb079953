"""progress: a loop's progress on stderr, as a bar on a terminal and otherwise as a line every few seconds.

A value is shown as soon as it is ready, and the previous one until then, so no step waits for the device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, overload

from .._arguments import Count, NonNegative
from .._interrupt import between_steps
from ..distributed.group import current
from .rows import check_scalar, is_device_array, is_ready, read

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

T = TypeVar("T")

REFRESH = 0.1
"""Seconds between two updates of a bar: a step may be shorter than it takes to draw one."""


@overload
def progress(
    iterable_or_total: int,
    *,
    total: Count | None = None,
    description: str = "",
    every: NonNegative = 5.0,
    leave: bool = True,
) -> Progress[int]: ...
@overload
def progress(
    iterable_or_total: Iterable[T],
    *,
    total: Count | None = None,
    description: str = "",
    every: NonNegative = 5.0,
    leave: bool = True,
) -> Progress[T]: ...
def progress(
    iterable_or_total: Count | Iterable[T],
    *,
    total: Count | None = None,
    description: str = "",
    every: NonNegative = 5.0,
    leave: bool = True,
) -> Progress[int] | Progress[T]:
    """Iterate over an iterable and display the progress on stderr.

    Args:
      iterable_or_total: the iterable, or a number of steps n for `range(n)`.
      total: the number of steps, where the iterable has no length.
      description: printed before the numbers.
      every: seconds between two lines where stderr is not a terminal.
      leave: whether the last state stays on the screen when the loop has ended.

    Returns: A `Progress`: an iterable with `.show(loss=loss)`. As a context manager it counts the calls of
      its `.step()` instead.

    Raises: KeyboardInterrupt: Ctrl-C came during the step that has just been completed. A second Ctrl-C
      raises in the middle of a step.

    Only process 0 shows anything, and with JAXPAR_PROGRESS=off none does.
    """
    if isinstance(iterable_or_total, int):
        steps = range(iterable_or_total)
        return Progress(steps, len(steps) if total is None else total, description, every, leave)
    if total is None and isinstance(iterable_or_total, Sized):
        with suppress(TypeError):  # a torch DataLoader over a stream has a length that raises
            total = len(iterable_or_total)
    return Progress(iterable_or_total, total, description, every, leave)


class Progress(Generic[T]):
    """The iterable and context manager that `progress` returns."""

    def __init__(
        self, steps: Iterable[T], total: Count | None, description: str, every: NonNegative, leave: bool
    ) -> None:
        self.total, self.description, self.done = total, description, 0
        self._steps, self._every, self._leave = steps, every, leave
        self._values: dict[str, _Latest] = {}
        self._view: _Silence | None = None

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError("progress: the iterable has no length; pass total=.")
        return self.total

    def __iter__(self) -> Iterator[T]:
        with between_steps() as check, ExitStack() as stack:
            # Within `with progress(...)` the display exists already and outlives this loop.
            if self._view is None:
                self._view = _view(self)
                stack.push(self)
            self.done = 0
            for item in self._steps:
                yield item
                self.step()
                check()

    def __enter__(self) -> Progress[T]:
        self._view = _view(self)
        self._view.begin()
        return self

    def __exit__(self, *error: object) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.end(self._leave)

    def step(self, description: str | None = None) -> None:
        """Count one more step. Iterating over the Progress calls this."""
        self.done += 1
        if description is not None:
            self.description = description
        if self._view is not None:
            self._view.look()

    def show(self, **values: object) -> None:
        """Display values next to the step count. Never waits for a device.

        Values are text, numbers, or single-number arrays, shown when they are ready; else MetricError.
        """
        for name, value in values.items():
            if not isinstance(value, str):
                check_scalar(value, name, "progress.show")
            self._values.setdefault(name, _Latest()).take(value)

    def values(self) -> str:
        """Return the newest values passed to `show` that are ready, as a string."""
        return ", ".join(f"{name} {text}" for name, value in self._values.items() if (text := value.text()))


class _Latest:
    # The newest alone would never be ready while the host runs ahead of the device. The oldest will be: it is
    # then displayed, and the newest replaces it.
    def __init__(self) -> None:
        self.shown = ""
        self.waiting: list[object] = []

    def take(self, value: object) -> None:
        # Keep the oldest pending value, and replace the newest.
        self.waiting[1:] = [value]
        if len(self.waiting) == 2 and is_ready(self.waiting[0]):
            self.waiting.pop(0)

    def text(self) -> str:
        while self.waiting and is_ready(self.waiting[0]):
            value = self.waiting.pop(0)
            if isinstance(value, str):
                self.shown = value
            elif not (is_device_array(value) and value.is_deleted()):
                number = read(value)
                self.shown = f"{number:.4g}" if isinstance(number, float) else str(number)
        return self.shown


# ------------------------------------------------------------------------------------------- views


def is_first() -> bool:
    """Return whether this is process 0. Without a process group, a launcher's RANK decides."""
    group = current()
    return group.rank == 0 if group else os.environ.get("RANK", "0") in ("", "0")


def _view(of: Progress[T]) -> _Silence:
    if not is_first() or os.environ.get("JAXPAR_PROGRESS", "").lower() == "off":
        return _Silence()
    # Imported after the checks above, because processes that display nothing need no rich.
    from rich.console import Console

    console = Console(stderr=True)
    return _Bar(of, console) if console.is_terminal else _Lines(of, console)


class _Silence:
    """The base of the views: displays nothing."""

    def begin(self) -> None: ...

    def look(self) -> None: ...

    def end(self, leave: bool) -> None: ...


class _Lines(_Silence):
    def __init__(self, of: Progress[T], console: Console) -> None:
        self.of, self.console, self.due, self.printed = of, console, 0.0, 0

    def begin(self) -> None:
        self._print(self.of.description)

    def look(self) -> None:
        if (now := time.monotonic()) >= self.due:
            self.due = now + self.of._every
            self._print_step()

    def end(self, leave: bool) -> None:
        if leave and self.printed != self.of.done:
            self._print_step()

    def _print_step(self) -> None:
        of, self.printed = self.of, self.of.done
        count = f"step {of.done}" if of.total is None else f"step {of.done} of {of.total}"
        details = ", ".join(filter(None, (of.description, of.values())))
        self._print(f"{count}: {details}" if details else count)

    def _print(self, text: str) -> None:
        if text:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class _Bar(_Silence):
    """One row of the bars on the terminal; a loop inside a loop has its row below."""

    bars: ClassVar[Bars | None] = None  # shared by all loops: rich moves the cursor for one display only

    def __init__(self, of: Progress[T], console: Console) -> None:
        self.of, self.due = of, 0.0
        self.shown = _Bar.bars or _bars(console)
        if _Bar.bars is None:
            _Bar.bars = self.shown
            self.shown.start()
        self.task: TaskID = self.shown.add_task(of.description, total=of.total, values="")

    def look(self) -> None:
        if (now := time.monotonic()) >= self.due:
            self.due = now + REFRESH
            self._update()

    def _update(self) -> None:
        of = self.of
        self.shown.update(self.task, completed=of.done, description=of.description, values=of.values())

    def end(self, leave: bool) -> None:
        bars = self.shown
        try:
            self._update()
            row = next(task for task in bars.tasks if task.id == self.task)
            # Print the finished row above the live display, which then redraws the remaining ones.
            bars.remove_task(self.task)
            if leave:
                bars.console.print(bars.make_tasks_table([row]))
        finally:
            if not bars.tasks:
                _Bar.bars = None
                bars.stop()


def _bars(console: Console) -> Bars:
    from rich import progress as rich

    # `end` prints the finished rows, so the live display must leave nothing (transient).
    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("{task.fields[values]}", markup=False),
        console=console,
        transient=True,
    )
