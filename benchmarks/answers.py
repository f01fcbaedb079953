"""Answers of processes of their own, kept as JSON, and the tables of the pages printed from them."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def asked(module: str, arguments: Iterable[object], log: Path, limit: float) -> str:
    """Run `python -m module arguments` with its output in a file, and return why it failed, or ""."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with log.open("w") as output:
        try:
            subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, timeout=limit, check=True)
        except subprocess.TimeoutExpired as error:
            return f"it timed out after {error.timeout:g} seconds"
        except subprocess.CalledProcessError as error:
            return f"its process ended with {error.returncode}"
    return ""


def read(path: Path) -> dict[str, Any] | None:
    """An answer, if there is one."""
    return json.loads(path.read_text()) if path.exists() else None


def table(head: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *(line(row) for row in rows)])


def machine(libraries: Iterable[str]) -> str:
    """The versions of what is installed, and the computer."""
    versions = ", ".join(filter(None, map(_version, libraries)))
    return (
        f"{versions}; Python {platform.python_version()} on {platform.machine()} ({platform.system()}), CPU."
    )


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return ""
