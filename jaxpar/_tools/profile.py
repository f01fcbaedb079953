"""`profile`: trace some calls of a step for Perfetto, and print the longest operations as a table."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from .._arguments import Count, Positive
from ..distributed.group import rank
from ..errors import BackendError

LONGEST = 10
"""The number of rows of the table."""


class Operation(NamedTuple):
    """An operation of a compiled program, summed over all traced steps and all devices of this process.

    Attributes:
      name, module: XLA's names of the operation and its program.
      calls: how often it ran. seconds: the total time.
      share: the fraction of all operations' time, from 0 to 1.

    >>> import jaxpar
    >>> jaxpar.Operation("dot.1", "jit_step", calls=4, seconds=0.5, share=0.25).share
    0.25
    """

    name: str
    module: str
    calls: int
    seconds: float
    share: float


def profile(
    function: Callable[..., Any],
    directory: str | os.PathLike[str] = "profile",
    *,
    wait: Count = 2,
    active: Positive = 3,
) -> Profile:
    """Return the function, with some of its calls traced; the first ones, which compile, are skipped.

    >>> import jaxpar
    >>> profiled = jaxpar.profile(lambda x: 2 * x, wait=5)
    >>> profiled(21), profiled.trace  # not traced yet
    (42, None)

    Args:
      function: a TrainStep, or any other function of arrays.
      directory: the folder of the trace.
      wait: calls before the first traced one. active: the number of traced calls.

    Returns:
      A Profile, to be called instead of the function, or a context in which it is. After the last traced call
      it prints the table on process 0; later calls are passed on unchanged.

    Raises:
      TypeError: not a function. ValueError: no call would be traced. When called: BackendError, if a trace
        is running already.

    torch counterpart: `torch.profiler.profile(schedule=schedule(wait=, active=))`, `key_averages().table()`.
    """
    return Profile(function, Path(directory), wait, active)


class Profile:
    """The function that `profile` returns.

    Attributes:
      trace: the file for ui.perfetto.dev; None before the last traced call.
      operations: the traced operations, the longest first.

    ```python
    with jaxpar.profile(step) as profiled:
        for x, y in loader:
            loss = profiled(x, y)
    profiled.operations[0]
    ```
    """

    def __init__(self, function: Callable[..., Any], directory: Path, wait: Count, active: Positive):
        self._function, self._directory = function, directory
        self._first, self._last, self._calls = wait, wait + active, 0
        self._running = False
        self.trace: Path | None = None
        self.operations: list[Operation] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._calls == self._first:
            self._start()
        try:
            outputs = self._function(*args, **kwargs)
            # Also after the call before the first traced one, whose operations may still run.
            if self._first - 1 <= self._calls < self._last:
                # Operations run asynchronously, and must end before the trace starts or stops.
                jax.block_until_ready(outputs)
        except BaseException:
            self._stop()
            raise
        self._calls += 1
        if self._calls == self._last:
            self.stop()
        return outputs

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.stop() if kind is None else self._stop()

    def stop(self) -> None:
        """End the trace, read it and print the table. Does nothing if no trace is running."""
        if not self._stop():
            return
        traces = self._directory.glob("**/perfetto_trace.json.gz")
        self.trace = max(traces, key=lambda file: file.stat().st_mtime)
        self.operations = operations(self.trace)
        if rank() == 0:
            print(self.table())

    def table(self) -> str:
        """Return the longest operations, as text."""
        rows = self.operations[:LONGEST]
        width = max([len(row.name) for row in rows], default=9)
        lines = [f"{'operation':<{width}}  {'share':>6}  {'ms':>10}  {'calls':>6}  program"]
        for name, module, calls, seconds, share in rows:
            lines.append(f"{name:<{width}}  {share:>6.1%}  {1e3 * seconds:>10.3f}  {calls:>6}  {module}")
        return "\n".join([*lines, f"the trace, for ui.perfetto.dev: {self.trace}"])

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # torch: with_stack=False
        try:
            jax.profiler.start_trace(self._directory, create_perfetto_trace=True, profiler_options=options)
        except RuntimeError as error:
            raise BackendError(
                f"profile: {error}. JAX takes one trace at a time: end the other one, or profile one "
                "function."
            ) from None
        self._running = True

    def _stop(self) -> bool:
        running, self._running = self._running, False
        if running:
            jax.profiler.stop_trace()
        return running


def operations(trace: Path) -> list[Operation]:
    with gzip.open(trace, "rt") as file:
        events: Iterable[dict[str, Any]] = json.load(file)["traceEvents"]
    counts: Counter[tuple[str, str]] = Counter()
    microseconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        arguments = event.get("args", {})
        # Only complete events of compiled operations; the trace also has Python's and the runtime's.
        if event.get("ph") != "X" or "hlo_op" not in arguments:
            continue
        key = arguments["hlo_op"], arguments.get("hlo_module", "")
        counts[key] += 1
        microseconds[key] += event["dur"]
    total = sum(microseconds.values()) or 1.0
    order = sorted(counts, key=lambda key: -microseconds[key])
    return [Operation(*key, counts[key], microseconds[key] / 1e6, microseconds[key] / total) for key in order]
