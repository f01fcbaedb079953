"""A plant: one small mistake in one file, and the tests that must see it."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path


class MisfitError(Exception):
    """The text does not occur in the file as the plant says."""


@dataclasses.dataclass(frozen=True)
class Plant:
    """A mistake.

    Attributes:
      file: where, from the root of the repository.
      text, replacement: what is replaced, and by what.
      tests: what follows `pytest`: node ids, files, `-k WORD`. One of them must fail.
      nth: which occurrence, from 1, if there are several; 0 says that there is one.
      equivalent: why no test can see it; such a plant is not run.
    """

    file: str
    text: str
    replacement: str
    tests: str
    nth: int = 0
    equivalent: str = ""

    def apply(self, content: str) -> str:
        """The file with the mistake in it. Raises MisfitError."""
        count = content.count(self.text)
        if self.nth == 0 and count != 1:
            raise MisfitError(f"{self.file}: {self.text!r} occurs {count} times; give nth, or mend the text")
        if self.nth > count:
            raise MisfitError(f"{self.file}: {self.text!r} occurs {count} times and nth is {self.nth}")
        parts = content.split(self.text)
        before = max(self.nth, 1)
        after = self.text.join(parts[before:])
        changed = self.text.join(parts[:before]) + self.replacement + after
        if changed == content:
            raise MisfitError(f"{self.file}: {self.text!r} is replaced by itself")
        return changed

    def arguments(self) -> list[str]:
        """`tests` for pytest; what stands in double quotes is one argument."""
        parts = self.tests.split('"')
        return [word for i, part in enumerate(parts) for word in ([part] if i % 2 else part.split())]

    def test_files(self) -> list[str]:
        return sorted({word.split("::")[0] for word in self.arguments() if word.startswith("tests/")})

    def key(self, root: Path) -> str:
        """Changes with the plant, with its file and with the files of its tests: what its result depends on
        in the first place."""
        digest = hashlib.sha256(repr(dataclasses.astuple(self)).encode())
        for name in [self.file, *self.test_files()]:
            digest.update((root / name).read_bytes() if (root / name).is_file() else b"no file")
        return digest.hexdigest()[:16]


def plants(file: str, *rows: tuple) -> list[Plant]:
    """(text, replacement, tests[, nth[, equivalent]]), each of them in `file`."""
    return [Plant(file, *row) for row in rows]
