"""Progress on stderr: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Watch = Callable[[str], None]
"""Called with a text after every step."""

SECONDS = 5
START = "starting JAX and PyTorch"


@contextmanager
def progress(total: int) -> Iterator[Watch]:
    """Shows how many of `total` steps have been reported."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(START, total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


def _lines(console: Console, total: int) -> Watch:
    done, due = 0, 0.0

    def watch(text: str) -> None:
        nonlocal done, due
        done += 1
        if time.monotonic() >= due:
            due = time.monotonic() + SECONDS
            console.print(f"step {done} of {total}: {text}", highlight=False)

    console.print(START, highlight=False)
    return watch
