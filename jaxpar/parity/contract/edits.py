"""Edits of a port's source that a cause suggests: guesses until a run of the edited port agrees."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

from .._comparison_data import Cause, Divergence
from .._trace.reading import TraceFile
from .source import with_keyword

# "epsilon=1e-05 (it acts as 1e-06)", with a remark between
ACTS_AS = re.compile(r"^(\w+)=(\([^)]*\)|[^\s(]+).*?\(it acts as (.+?)\)+$")
SPELLINGS = {"epsilon": ("epsilon", "eps"), "rate": ("rate", "p"), "eps": ("eps", "epsilon")}
FACTORIES = "jaxpar.nn.channels_first", "jaxpar.nn.channels_last"
HEADER = "# Proposed by `jaxpar contract check`: what torch does here."


def proposals(
    source: str, divergence: Divergence, cause: Cause | None, recorded: TraceFile, is_factory: bool
) -> Iterator[str]:
    """Yield changed sources, the smallest change first; `flax_module` may be what makes the model."""
    called = ["flax_module = flax_module()"] if is_factory else []
    if cause and (match := ACTS_AS.match(cause.text)):
        yield from _with_keyword(source, divergence, *match.groups())
    if divergence.candidate == "optimizer":
        yield from _appended(source, _optimizer(recorded))
    elif divergence.candidate == "loss":
        yield from _appended(source, _loss(recorded))
    else:
        for path in _layers(divergence, recorded):
            for factory in FACTORIES:
                if statements := _twin(path, factory, recorded):
                    yield from _appended(source, [*called, *statements])


# ------------------------------------------------------------------------------------- settings in the source


def _with_keyword(source: str, divergence: Divergence, name: str, right: str, wrong: str) -> Iterator[str]:
    """Set a keyword of the call that makes the layer, of any call with the keyword, or of the function."""
    leaf = divergence.candidate.rpartition(".")[2]
    tree = ast.parse(source)
    makers = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and leaf in _targets(node)
    ]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for spelling in SPELLINGS.get(name, (name,)):
        having = [call for call in calls if any(k.arg == spelling for k in call.keywords)]
        for call in dict.fromkeys([*makers, *having]):
            for value in _values(name, right):
                yield with_keyword(source, call, spelling, value)
    function = wrong.partition("(")[0]
    named = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == function]
    for call in named:
        yield with_keyword(source, call, name, right)


def _targets(node: ast.Assign) -> set[str]:
    """Return the names that an assignment binds: of `self.a, self.b = ...` both."""
    targets = [t for target in node.targets for t in (getattr(target, "elts", None) or [target])]
    return {getattr(target, "attr", getattr(target, "id", "")) for target in targets}


def _values(name: str, right: str) -> list[str]:
    if name == "momentum":  # Flax counts the weight of the old value
        return [right, f"{1 - float(right):.12g}"]
    return [right]


# --------------------------------------------------------------------------- torch's own settings, by a twin


def _appended(source: str, statements: list[str]) -> Iterator[str]:
    if statements:
        yield "\n".join([source.rstrip("\n"), "", HEADER, *statements]) + "\n"


def _layers(divergence: Divergence, recorded: TraceFile) -> list[str]:
    """Return the torch layers that may be meant: the layer itself, or all between two layers."""
    calls = [entry["path"] for entry in recorded.manifest["layers"]]
    if divergence.kind.startswith("between "):
        first, _, last = divergence.kind.removeprefix("between ").partition(" and ")
        start = calls.index(first) + 1 if first in calls else 0
        end = calls.index(last) if last in calls else len(calls)
        return calls[start:end][::-1]
    if divergence.kind == "after the last layer":
        start = calls.index(divergence.reference) + 1 if divergence.reference in calls else 0
        return calls[start:]
    return [divergence.reference]


def _twin(path: str, factory: str, recorded: TraceFile) -> list[str]:
    """Return the statements that put jaxpar's layer, with torch's settings, into the layer's place."""
    import importlib

    module = recorded.module(path)
    kind = next((k for k in module["kinds"] if hasattr(importlib.import_module(factory), k)), None)
    if kind is None or not path:
        return []
    parameters = inspect.signature(getattr(importlib.import_module(factory), kind)).parameters
    settings = {name: x for name, x in module["settings"].items() if name in parameters}
    if "bias" in parameters:
        names = recorded.below("start/")
        settings["bias"] = any(name.startswith(f"{path}.") and "bias" in name for name in names)
    defaults = {name: p.default for name, p in parameters.items()}
    changed_settings = {name: x for name, x in settings.items() if _plain(defaults[name]) != _plain(x)}
    arguments = [f"{name}={_literal(x)}" for name, x in changed_settings.items()]
    imports = [f"import {factory}"]
    if "rngs" in parameters:
        imports, arguments = [*imports, "from flax import nnx"], [*arguments, "rngs=nnx.Rngs(0)"]
    path_in_model = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split("."))
    return [*imports, f"flax_module{path_in_model} = {factory}.{kind}({', '.join(arguments)})"]


def _optimizer(recorded: TraceFile) -> list[str]:
    from ... import optim

    optimizer = recorded.manifest["optimizer"] or {}
    name, settings = str(optimizer.get("kind", "")).lower(), dict(optimizer.get("settings", {}))
    if not hasattr(optim, name):
        return []
    parameters = inspect.signature(getattr(optim, name)).parameters
    changed_settings = {
        key: x
        for key, x in settings.items()
        if key in parameters and _plain(parameters[key].default) != _plain(x)
    }
    arguments = ", ".join(f"{key}={_literal(x)}" for key, x in changed_settings.items())
    return ["import jaxpar.optim", f"optimizer = jaxpar.optim.{name}({arguments})"]


def _loss(recorded: TraceFile) -> list[str]:
    from ...nn import functional

    call = recorded.manifest.get("loss_call")
    if not isinstance(call, dict) or not hasattr(functional, str(call.get("name"))):
        return []
    keywords = [f"{name}={_constant(x)}" for name, x in call["settings"].items()]
    arguments = ", ".join([*map(str, call["arguments"]), *keywords])
    return [
        "import jax.numpy as jnp",
        "import jaxpar.nn.functional",
        f"def loss(outputs, *targets):\n    return jaxpar.nn.functional.{call['name']}({arguments})",
    ]


def _constant(x: Any) -> str:
    return f"jnp.asarray({x['array']})" if isinstance(x, dict) else _literal(x)


def _plain(x: Any) -> Any:
    return list(x) if isinstance(x, tuple) else x


def _literal(x: Any) -> str:
    return repr(tuple(x)) if isinstance(x, list) else repr(x)
