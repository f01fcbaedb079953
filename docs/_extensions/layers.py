"""The page api/layers: all layers and torch's, from the tables of the tests, made with the site."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "torch_form.py"


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "api" / "layers.md"))
    return {"parallel_read_safe": True}


def write(path: Path) -> None:
    """Write the page, unless it is as it was, so that Sphinx does not read it again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's remarks on its own defaults
        text = "\n".join(tables().lines([], measure=False))
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_form", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
