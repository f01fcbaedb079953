"""The promised public signatures: `python tests/promised_signatures.py` writes them, at a release."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("promised_signatures.json")
Parameters = list[tuple[str, str, bool]]
"""Of each parameter its name, its kind ("positional", "keyword" or "any") and whether it is required."""

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "any",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def signatures() -> dict[str, Parameters]:
    """Return the parameters of all public functions, constructors and methods, by name."""
    import jaxpar

    package = Path(jaxpar.__file__).parent
    by_name: dict[str, Parameters] = {}
    for stub in sorted(package.rglob("__init__.pyi")):
        namespace = ".".join(("jaxpar", *stub.parent.relative_to(package).parts))
        module = importlib.import_module(namespace)
        for name in module.__all__:
            add(by_name, f"{namespace}.{name}", getattr(module, name))
    return by_name


def add(by_name: dict[str, Parameters], name: str, value: Any) -> None:
    # What the constructor of an enumeration takes is Python's, and differs between its versions.
    if inspect.ismodule(value) or not callable(value) or isinstance(value, enum.EnumType):
        return
    by_name[name] = parameters(value)
    if inspect.isclass(value) and value.__module__.startswith("jaxpar"):
        for attribute, method in vars(value).items():
            if not attribute.startswith("_") and inspect.isfunction(method):
                by_name[f"{name}.{attribute}"] = parameters(method)


def parameters(value: Any) -> Parameters:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # a class of another library, written in C
        return []
    return [(p.name, KINDS[p.kind], p.default is p.empty) for p in signature.parameters.values()]


def broken(old: Parameters, new: Parameters) -> str | None:
    """Return why a call that the old parameters accept may fail with the new ones, or mean something else."""
    if {"*", "**"} <= {kind for _, kind, _ in new}:
        return None
    positions = {name: (i, kind) for i, (name, kind, _) in enumerate(new)}
    variadic = {kind for _, kind, _ in new} & {"*", "**"}
    for i, (name, kind, _) in enumerate(old):
        if name not in positions:
            if ("**" in variadic and kind == "keyword") or (kind in ("*", "**") and kind in variadic):
                continue
            return f"{name} is gone"
        position, new_kind = positions[name]
        if kind in ("positional", "any") and (new_kind == "keyword" or position != i):
            return f"{name} is no longer argument {i}"
        if kind != "positional" and new_kind == "positional":
            return f"{name} cannot be named any more"
    known = {name for name, _, _ in old}
    required = {name for name, _, needed in old if needed}
    for name, kind, needed in new:
        if needed and kind not in ("*", "**") and (name not in known or name not in required):
            return f"{name} has to be given"
    return None


if __name__ == "__main__":
    import jaxpar

    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(signatures().items())]
    content = ",\n".join(lines)
    FILE.write_text(f'{{"version": "{jaxpar.__version__}", "signatures": {{\n{content}\n}}}}\n')
    print(f"{len(signatures())} signatures of {jaxpar.__version__}: {FILE.name}", file=sys.stderr)
