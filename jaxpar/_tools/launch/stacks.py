"""Where a process stands, read from what faulthandler printed.

faulthandler is the only thing in a worker that answers while its main thread is stuck in C++.
"""

from __future__ import annotations

import re

MAIN = re.compile(r"Current thread 0x")
FRAME = re.compile(r'  File "(.*)", line \d+ in ')
OURS = re.compile(r"<frozen runpy>|/jaxpar/_tools/launch/worker\.py$")
WAITING = re.compile(r"/(jax|jaxlib|jaxpar)/")


def frames(lines: list[str]) -> list[str]:
    """The frames of the main thread in the last dump, innermost first; empty without a dump."""
    starts = [i for i, line in enumerate(lines) if MAIN.match(line)]
    main_frames = []
    for line in lines[starts[-1] + 1 :] if starts else []:
        frame = FRAME.match(line)
        if frame is None:
            break
        if not OURS.search(frame[1]):
            main_frames.append(line)
    return main_frames


def waits(stack: list[str]) -> bool:
    """Whether a process stands inside JAX, as a process does that waits for another one."""
    frame = FRAME.match(stack[0]) if stack else None
    return frame is not None and WAITING.search(frame[1]) is not None
