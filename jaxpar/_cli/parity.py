"""`jaxpar parity`: read a spec, compare its models, and return an exit code."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console

from .. import parity
from .._metrics.progress import progress
from ..errors import SpecError
from .spec import failed, read_names


def run(
    spec: str,
    *,
    optimizer: str | None,
    html: str | None,
    as_json: bool,
    junit: str | None,
    record: str | None,
    check: str | None,
    against: str | None = None,
    trace: str | None = None,
    **chosen: Any,
) -> int:
    """Return the exit code; `chosen` overrides the spec's arguments."""
    if trace:
        return _recorded(spec, trace)
    # First, because a typing error should not wait for the spec's models.
    both = read_optimizer(optimizer) if optimizer else None
    recorded = check or against
    arguments = read_spec(spec, (), AGAINST) if recorded else read_spec(spec)
    if recorded and not ("flax_module" in arguments or (against and "torch_module" in arguments)):
        raise SpecError(f"{spec}: it does not define flax_module.")
    arguments |= {name: value for name, value in chosen.items() if value is not None}
    if both:
        arguments["optimizer"] = both
    if arguments.get("search") == "none":
        arguments["search"] = None
    stopped = False
    try:
        comparison = _judged(check, against, arguments) if recorded else _compared(arguments, record)
    except parity.Stopped as stop:
        if stop.comparison is None:
            raise
        # The completed steps are worth a report, also after Ctrl-C.
        comparison, stopped = stop.comparison, True
    # These mostly come from the spec's own code, so the message names the spec's line.
    except (ValueError, TypeError, NotImplementedError, SystemExit) as error:
        raise failed(spec, "", error) from error
    if html:
        comparison.save_html(html)
    if junit:
        comparison.save_junit(junit)
    if as_json:
        click.echo(json.dumps(comparison.as_dict(), indent=1, allow_nan=False))
    else:
        Console(highlight=False).print(comparison)
    return 130 if stopped else 0 if comparison.same else 1


def _compared(arguments: dict[str, Any], record: str | None) -> parity.Comparison:
    with progress(arguments.get("steps", 1), description="starting JAX and PyTorch", leave=False) as shown:
        arguments["progress"] = lambda step, steps: shown.step("compared")
        arguments["on_result"] = _print_difference
        return parity.record(record, **arguments) if record else parity.compare(**arguments)


def _print_difference(comparison: parity.Comparison) -> None:
    """Print a verdict that the search may follow, and then the place it has found last."""
    divergence = comparison.divergence
    if divergence is not None:
        click.echo(f"{1 + len(divergence.others)}. {(divergence, *divergence.others)[-1].where}", err=True)
    elif not comparison.same:
        count = f"{len(comparison.different)} of {len(comparison.rows)} tensors"
        click.echo(f"Different: {count}. Ctrl-C ends the search for where and why.", err=True)


def _judged(check: str | None, against: str | None, arguments: dict[str, Any]) -> parity.Comparison:
    """Judge by a record or a trace; a spec without a JAX model is judged by a trace of JAX."""
    side = 1 if "flax_module" in arguments else 0
    module = arguments.pop(("torch_module", "flax_module")[side])
    # By name: the function for traces of JAX imports torch.
    judge = getattr(parity, "check" if check else ("against_jax", "against")[side])
    return judge(check or against or "", module, **_half(side, judge, arguments))


def _half(side: int, function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function takes; of pairs for both frameworks, one side's."""
    for name in ("loss", "optimizer"):
        both = arguments.get(name)
        # An optax transformation is a named tuple.
        if isinstance(both, tuple | list) and not hasattr(both, "_fields"):
            arguments[name] = both[side]
    named = inspect.signature(function).parameters
    return {name: x for name, x in arguments.items() if name in named}


def _recorded(spec: str, folder: str) -> int:
    names = tuple(name for name in inspect.signature(parity.record_jax).parameters if name != "folder")
    arguments = read_spec(spec, ("flax_module", "inputs"), names)
    try:
        trace = parity.record_jax(folder, **_half(1, parity.record_jax, arguments))
    except (ValueError, TypeError, NotImplementedError, SystemExit) as error:
        raise failed(spec, "", error) from error
    size = sum(file.stat().st_size for file in trace.iterdir())
    click.echo(f"{trace}: recorded, {size:,} bytes.")
    return 0


NEEDED = ("torch_module", "flax_module", "inputs")
AGAINST = (
    "flax_module", "flax_inputs", "outputs", "loss", "optimizer", "layout", "mapping", "ignore_torch",
    "ignore_flax", "variables", "flax_kwargs", "policy", "torch_module", "torch_inputs", "torch_kwargs",
)  # fmt: skip
"""The names in a spec that a record or a trace leaves open."""


def read_spec(
    path: str, needed: tuple[str, ...] = NEEDED, names: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """Return the file's definitions of `names`, by default the arguments of `compare`."""
    defined = read_names(path)
    # Two separate inputs replace the common one.
    both = {"torch_inputs", "flax_inputs"} <= defined.keys()
    undefined = [name for name in needed if name not in defined and not (both and name == "inputs")]
    if undefined:
        raise SpecError(f"{path}: it does not define {', '.join(undefined)}.")
    if names is None:
        from ..parity import compare

        parameters = inspect.signature(compare).parameters
        names = tuple(name for name in parameters if name not in ("progress", "on_result"))
    selected = {name: defined[name] for name in names if name in defined}
    if "torch_module" in selected and "flax_module" in selected and "torch_module" not in needed:
        del selected["torch_module"]  # not built: torch may not be installed
    for name in ("torch_module", "flax_module"):
        if name in selected:
            selected[name] = _built(path, name, selected[name])
    return selected


def _built(path: str, name: str, module: Any) -> Any:
    if not (inspect.isfunction(module) or inspect.isclass(module)):
        return module
    try:
        return module()
    except (Exception, SystemExit) as error:
        raise failed(path, f"{name}(): ", error) from error


def read_optimizer(text: str) -> tuple[Callable[..., Any], Any]:
    """Parse `adamw:lr=1e-3,weight_decay=0.1` into torch's optimizer and jaxpar.optim's of that name."""
    import ast

    import torch

    from jaxpar import optim

    name, _, settings = text.partition(":")
    try:
        # Parsed as the arguments of a call, and evaluated as literals only: nothing in the text is executed.
        call = ast.parse(f"f({settings})", mode="eval").body
        assert isinstance(call, ast.Call)
        keywords = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
        if call.args or "" in keywords:
            raise ValueError("settings are name=value")
    except (SyntaxError, ValueError) as error:
        raise SpecError(f"--optimizer {text}: write name:setting=value,setting=value ({error}).") from None
    kinds = {kind.lower(): getattr(torch.optim, kind) for kind in dir(torch.optim) if kind[0].isupper()}
    if name.lower() not in kinds or not hasattr(optim, name.lower()):
        both = sorted(kind for kind in kinds if hasattr(optim, kind))
        raise SpecError(f"--optimizer {name}: it is none of {', '.join(both)}.")
    try:
        jax_optimizer = getattr(optim, name.lower())(**keywords)
        # Both constructors validate the settings, before any model is built.
        kinds[name.lower()]([torch.nn.Parameter(torch.zeros(1))], **keywords)
    except (TypeError, ValueError) as error:
        raise SpecError(f"--optimizer {text}: {error}") from None
    return lambda parameters: kinds[name.lower()](parameters, **keywords), jax_optimizer
