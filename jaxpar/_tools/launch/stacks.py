"""Parse the stacks that faulthandler prints in a worker, even while its main thread is blocked in C++."""

from __future__ import annotations

import re

MAIN = re.compile(r"Current thread 0x")
FRAME = re.compile(r'  File "(.*)", line \d+ in ')
OURS = re.compile(r"<frozen runpy>|/jaxpar/_tools/launch/worker\.py$")
WAITING = re.compile(r"/(jax|jaxlib|jaxpar)/")


def frames(lines: list[str]) -> list[str]:
    """Return the main thread's frames in the last dump, innermost first; empty without a dump."""
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
    """Return whether the innermost frame is JAX's, as in a process that waits for its peers."""
    frame = FRAME.match(stack[0]) if stack else None
    return frame is not None and WAITING.search(frame[1]) is not None
