"""The user's line of an instruction: the frames that JAX writes into a program's text."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from ..estimate.hlo import Instruction

LIBRARIES = (sysconfig.get_path("purelib"), str(Path(__file__).parents[2]))


class Sources:
    """Reads the tables of files, lines and stack frames at the beginning of a program's text."""

    def __init__(self, text: str) -> None:
        self._files, self._lines, self._frames = {}, {}, {}
        # The tables end where the first computation begins.
        head = text[: match.start()] if (match := re.search(r"\n(?:ENTRY )?%\S+ \(", text)) else ""
        for table, lines in re.findall(r"\n(FileNames|FileLocations|StackFrames)\n((?:\d+ .*\n)+)", head):
            for line in lines.splitlines():
                number, _, content = line.partition(" ")
                if table == "FileNames":
                    self._files[int(number)] = content.strip('"')
                elif table == "FileLocations":
                    self._lines[int(number)] = tuple(map(int, _numbers(content, "file_name_id", "line")))
                else:
                    self._frames[int(number)] = tuple(
                        map(int, _numbers(content, "file_location_id", "parent_frame_id"))
                    )

    def line(self, instruction: Instruction) -> str:
        """Return `file.py:12`: the innermost frame outside of libraries, or "" without frames."""
        frame = next(iter(_numbers(instruction.attributes, "stack_frame_id")), None)
        if frame is None:
            file = re.search(r'source_file="([^"]+)" source_line=(\d+)', instruction.attributes)
            return f"{file.group(1)}:{file.group(2)}" if file else ""
        number, innermost = int(frame), ""
        while number in self._frames:
            location, parent = self._frames[number]
            file_number, line = self._lines.get(location, (0, 0))
            path = self._files.get(file_number, "")
            innermost = innermost or f"{path}:{line}"
            if path and not path.startswith(LIBRARIES):
                return f"{path}:{line}"
            # XLA writes the parent's number plus 1, so that the outermost frame has 1.
            number = min(parent, number) - 1
        return innermost


def _numbers(text: str, *keys: str) -> list[str]:
    match = (re.search(rf"\b{key}=(\d+)", text) for key in keys)
    return [match.group(1) for match in match if match]
