"""Initial values: which statements of constructors only change the values of parameters, by what they did.

While a statement runs, the writes to parameters are counted, and the attributes of modules that were set.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .source import Source, start_of

Place = tuple[str, int, int]
"""A statement's file, line and column."""
MEASURED = (ast.Expr, ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While, ast.With)
BUILDING = ("__setattr__", "register_buffer", "register_parameter", "add_module")


class Initial(TorchFunctionMode):
    """Counts the writes to parameters, and marks the statements that did nothing else.

    A write to a tensor that is neither a parameter nor in the state counts as setting an attribute.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes = self.attributes = 0
        self._open: list[tuple[Place, int, int, set[tuple[str, int]]]] = []
        self._initial: set[Place] = set()
        self._other: set[Place] = set()
        self._idle: set[Place] = set()
        self._storages: dict[int, torch.Tensor] = {}  # by address; a reference keeps the address taken
        self._constants: dict[int, torch.Tensor] = {}

    def is_initial(self, source: Source, node: ast.stmt) -> bool:
        location = (source.path, *start_of(node))
        initial = self._initial | self._idle if is_apply(node) else self._initial
        return location in initial and location not in self._other

    def begin(self, location: Place) -> None:
        self._open.append((location, self.writes, self.attributes, set()))

    def end(self, location: Place, is_apply: bool = False) -> set[tuple[str, int]]:
        """Return the lines inside of the statement that did more than set initial values."""
        lines: set[tuple[str, int]] = set()
        while self._open:
            begun, writes, attributes, inner = self._open.pop()
            lines |= inner
            if begun == location:
                if self.attributes > attributes:
                    self._other.add(location)
                elif self.writes > writes or is_apply:
                    (self._initial if self.writes > writes else self._idle).add(location)
                    return set()
                break
        return lines

    def lines(self) -> set[tuple[str, int]] | None:
        """Return the lines of the innermost open statement; None without one."""
        return self._open[-1][3] if self._open else None

    def close(self) -> Iterator[tuple[str, int]]:
        """Yield the lines of statements that an exception or a `return` ended."""
        while self._open:
            yield from self._open.pop()[3]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count while modules are made."""
        methods = {name: getattr(nn.Module, name) for name in BUILDING}
        for name, method in methods.items():
            setattr(nn.Module, name, self._counted(method))
        try:
            with self:
                yield
        finally:
            for name, method in methods.items():
                setattr(nn.Module, name, method)
            self._storages.clear()
            self._constants.clear()

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # `layer.weight *= 0.5` writes to the weight, and then sets the attribute to the same object.
            weights = vars(module).get("_parameters", {})
            is_same = len(args) == 2 and args[1] is not None and weights.get(args[0]) is args[1]
            self.attributes += not is_same
            result = method(module, *args, **kwargs)
            for name, value in zip(args, args[1:] or kwargs.values(), strict=False):
                # No weights come along for a tensor that is not in the state.
                buffers = vars(module).get("_buffers", {})  # none before the constructor of nn.Module
                in_state = name in buffers and name not in module._non_persistent_buffers_set
                # One that is computed, as weight_norm's weight, is computed anew by each call.
                if type(value) is torch.Tensor and value.grad_fn is None and not in_state:
                    self._constants[_address(value)] = value
            return result

        return counted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [
            x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and not x.is_inference()
        ]
        for tensor in tensors:
            if isinstance(tensor, nn.Parameter):
                self._storages.setdefault(_address(tensor), tensor)
        before = [tensor._version for tensor in tensors]
        result = func(*args, **kwargs)
        changed = [
            tensor for tensor, version in zip(tensors, before, strict=True) if tensor._version != version
        ]
        if getattr(func, "__self__", None) is torch.Tensor.data and func.__name__ == "__set__":  # p.data = x
            changed += tensors[:1]
        self.writes += any(_address(tensor) in self._storages for tensor in changed)
        self.attributes += any(_address(tensor) in self._constants for tensor in changed)
        return result


def is_apply(node: ast.AST) -> bool:
    """Return whether a statement is `module.apply(function)`, which sets initial values, or none."""
    func = getattr(getattr(node, "value", None), "func", None)
    return isinstance(node, ast.Expr) and isinstance(func, ast.Attribute) and func.attr == "apply"


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0
