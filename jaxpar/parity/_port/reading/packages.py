"""Which files are the user's, whose functions are watched and written, and which are a library's."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import re
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import torch

from ..rules.transformers_names import LIBRARY

STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
"""Python's own folders."""
INSTALLED = {"site-packages", "dist-packages"}  # The subfolders of installed packages
FOREIGN = (Path(torch.__file__).resolve().parent, Path(__file__).resolve().parents[3])
"""The folders of torch and of jaxpar."""
NUMERIC = {"numpy", "torch", "torchgen", "jax", "flax"}  # Packages that have their own rules, or none
MODULES, JAX = r"class \w+\(.*\bnn\.Module\b", r"\s*(import|from) jax\b"
"""Lines of packages: of those that have torch modules, and not only functions for any library's tensors."""


@functools.cache
def is_users(path: str) -> bool:
    if path.startswith("<") or not path.endswith(".py"):
        return False
    real = Path(path).resolve()
    packages = {package for folder, package in itertools.pairwise(real.parts) if folder in INSTALLED}
    if not packages and any(map(real.is_relative_to, STANDARD)):
        return False
    if not real.is_file() or any(map(real.is_relative_to, FOREIGN)):
        return False
    return all(_uses_torch(package) or _imports_torch(package, real) for package in packages)


@functools.cache
def _uses_torch(package: str) -> bool:
    """Return whether an installed package requires torch; a file imports from others as torch's code does."""
    distributions = _distributions().get(package, [])
    required = [line for name in distributions for line in importlib.metadata.requires(name) or []]
    by_torch = any(re.match(r"torch\b(?!.*\bextra\b)", line) for line in required)
    return package not in NUMERIC and (by_torch or package == LIBRARY or not distributions)


def is_installed(package: str) -> bool:
    return package in _distributions()


def _imports_torch(package: str, path: Path) -> bool:
    """Return whether a file imports torch and its package requires torch for an extra of that name.

    If a package has modules and declares no requirements at all, each of its files counts; unless one of them
    imports JAX, whose arrays its functions then take as they are.
    """
    required = [
        line for name in _distributions().get(package, ()) for line in importlib.metadata.requires(name) or ()
    ]
    if not required:
        return (
            package not in NUMERIC
            and _has_a_line(MODULES, package, path)
            and not _has_a_line(JAX, package, path)
        )
    is_extra = any(re.match(r"torch\b.*\bextra *== *['\"]torch['\"]", line) for line in required)
    imports = re.compile(r"^\s*(import torch\b|from torch\b)", re.MULTILINE)
    imported = bool(imports.search(path.read_text(encoding="utf-8")))
    return package not in NUMERIC and is_extra and imported and _has_a_line(MODULES, package, path)


@functools.cache
def _has_a_line(pattern: str, package: str, path: Path) -> bool:
    """Return whether a line of a package's files begins with a pattern."""
    folder = next(parent for parent in path.parents if parent.name == package)
    texts = (file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py")))
    return any(re.search(f"^{pattern}", text, re.MULTILINE) for text in texts)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
