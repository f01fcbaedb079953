"""Which versions are installed."""

from __future__ import annotations

from importlib import metadata


def version(package: str) -> str:
    """The installed version of a package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
