"""The plants, a file for each room. CONTRIBUTING.md says how one is added."""

from __future__ import annotations

import importlib
import pkgutil

from ..plant import Plant

PLANTS: list[Plant] = [
    plant
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name)
    for plant in importlib.import_module(f"{__name__}.{module.name}").PLANTS
]
