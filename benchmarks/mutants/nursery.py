"""Runs pytest again and again, each time in a fork that has the large packages already.

    python benchmarks/mutants/nursery.py

On stdin a line of JSON for each run: pytest's arguments and the seconds that it may take. On stdout one for
each answer: pytest's exit code, None where the time was over, and what it said. jaxpar itself is not imported
before the fork, since it is what changes from run to run. SIGTERM ends the nursery and the run.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings

LARGE = (
    *("numpy", "jax", "jax.numpy", "jax.experimental", "flax.linen", "flax.nnx", "optax", "orbax.checkpoint"),
    *("torch", "torch.utils.data", "pytest", "rich.console"),
)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # What tests/conftest.py sets for JAX, which reads it when it is imported.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    warnings.simplefilter("ignore")  # JAX warns of forks, and is not running yet
    for name in LARGE:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        answers.write(json.dumps(run(**json.loads(line))) + "\n")


def run(arguments: list[str], seconds: float) -> dict[str, int | str | None]:
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _pytest(arguments, said.fileno())
        code = _wait(child, time.monotonic() + seconds)
        said.seek(0)
        return {"code": code, "said": said.read().decode(errors="replace")}


def _pytest(arguments: list[str], output: int) -> None:
    os.setsid()  # what the tests start is ended with them
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    warnings.resetwarnings()
    import pytest

    code = 3
    try:
        code = int(pytest.main(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, deadline: float) -> int | None:
    """The exit code; None if the time is over. A process ended by a signal has a negative one."""
    code = None
    try:
        while code is None and time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if code is None:
            os.waitpid(child, 0)
    return code


if __name__ == "__main__":
    main()
