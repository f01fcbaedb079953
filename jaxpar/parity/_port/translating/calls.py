"""Calls of torch's functions and layers, of tensor methods, and of the user's own classes.

Functions and methods follow the tables in `rules`. Functions that build layers take `rngs`.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from flax import nnx
from torch import nn

from .. import rules
from ..reading.scope import (
    UNKNOWN,
    Scope,
    defined_by_user,
    definition,
    dotted,
    is_layer,
    is_torchs,
    jaxpar_layer,
    rule_name,
)
from ..reading.source import Source, end_of, start_of
from ..reading.watching import Site
from ..rules import CallRule
from .drawing import draws, draws_first, draws_itself
from .libraries import Libraries
from .needs import Needs
from .words import Hole, positioned

PARAMETERS = {nn.ParameterList: "List", nn.ParameterDict: "Dict"}
DRAWN = "JAX draws other random numbers"
DRAWING = ("exponential_", "random_", "geometric_", "log_normal_", "cauchy_")
RANDOM_FUNCTIONS = (
    "rand_like",
    "randint",
    "randint_like",
    "multinomial",
    "normal",
)
_BUILDS: dict[FunctionType, bool] = {}


class Calls(Libraries):
    """Translates expressions with calls."""

    def _expr_call(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute):
            written = self._method(node, node.func)
            if written is not None:
                return written
        target = self.scope.value(node.func)
        if target is isinstance and self._is_beyond(self.scope.value(node.args[1])):
            return "False"
        if target is hasattr and is_torchs(owner := self.scope.value(node.args[0])):
            return self._resolved(node, hasattr(owner, ast.literal_eval(node.args[1])))
        if target is not UNKNOWN and (is_torchs(target) or rule_name(target)):
            return self._of_torch(node, target)
        self.check_python(node)
        return self._with_rngs(node, self._targets(node))

    def _method(self, node: ast.Call, func: ast.Attribute) -> str | None:
        """Write a call of a tensor's or module's method; None for any other."""
        owner, name = self.site(func.value), func.attr
        if isinstance(func.value, ast.Call) and _is_super(func.value):
            return self._super(node, func)
        if owner and any(issubclass(kind, nn.Module) for kind in owner.kinds):
            return self._of_module_method(node, func, owner)
        if name == "copy" and owner and owner.kinds == {list}:
            return f"list({self.text(func.value)})"  # attributes that are lists have become tuples
        method = owner is None and self.scope.value(func) is UNKNOWN and is_method(name)
        if not (owner and owner.is_tensor) and not method:
            return None
        if owner and not all(issubclass(kind, torch.Tensor) for kind in owner.kinds):
            raise Hole("it is a tensor here and something else there")
        if name in ("item", "tolist") and self.only_making(node):
            return f"{self.text(func.value, 'a')}.{name}()"
        if name in ("to", "type"):
            return self._to(node, func.value)
        if name == "requires_grad_" and owner and owner.kinds & {nn.Parameter}:
            raise Hole("JAX has no frozen weights: leave them to the optimizer")
        if self.is_pair(node):
            raise Hole("it gives values and places")
        if name in rules.INITIAL or name in DRAWING:
            if self.in_call(node):
                raise Hole(DRAWN)
            self.needs.note("initial values are not ported: they come with torch's weights")
            return self.text(func.value)
        candidates = rules.METHODS.get(rules.IN_PLACE.get(name, name), [])
        return self._ruled(node, candidates, f"a tensor's {name}", func.value)

    def _ruled(
        self, node: ast.Call, candidates: Sequence[CallRule], what: str, owner: ast.expr | None = None
    ) -> str:
        for rule in candidates:
            written = rule.apply(node, self.text, owner, self._stream())
            if written is not None:
                if self.kind and rule.draws(node):
                    self._check_stream()
                if rule.note:
                    code = " ".join(self.source.segment(node).split())
                    self.needs.note(f"{self.source.place(node)}: {code}: {rule.note}")
                return written
        raise Hole(f"there is no rule for {what} with these arguments")

    def _to(self, node: ast.Call, owner: ast.expr) -> str:
        """Write `to` and `type`: they convert to a type; a device is left out."""
        arguments = [
            *node.args,
            *(k.value for k in node.keywords if k.arg not in ("device", "copy", "non_blocking")),
        ]
        written, callee = self.text(owner, "a"), self.source.segment(node.func)
        for argument in arguments:
            site, value = self.site(argument), self.scope.value(argument)
            if isinstance(value, torch.dtype) or (site and torch.dtype in site.kinds):
                return f"{written}.astype({self.text(argument)})"
            if site and site.is_tensor:
                return f"{written}.astype({self.text(argument, 'a')}.dtype)"
            if isinstance(value, torch.device) or (site and site.kinds <= {torch.device}):
                continue
            if (
                isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
                and not callee.endswith(".type")
            ):
                continue
            raise Hole("it is not clear whether this is a type or a device")
        return written

    def is_pair(self, node: ast.Call) -> bool:
        """Return whether a call of `max`, `min`, `sort` or `topk` returns values and indices."""
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if f"{name}.values" not in rules.PAIRS:
            return False
        site = self.site(node)
        return bool(
            site and site.kinds and all(kind.__module__ == "torch.return_types" for kind in site.kinds)
        )

    def _of_module_method(self, node: ast.Call, func: ast.Attribute, owner: Site) -> str | None:
        if func.attr == "forward":
            return f"{self.text(func.value)}({self._arguments(node)})"
        if func.attr == "add_module" and not any(
            issubclass(kind, nn.Sequential | nn.ModuleList | nn.ModuleDict) for kind in owner.kinds
        ):
            return f"setattr({self.text(func.value)}, {self._arguments(node)})"
        if func.attr in ("children", "named_children") and not all(
            issubclass(kind, nn.Sequential | nn.ModuleList | nn.ModuleDict) for kind in owner.kinds
        ):
            return f"nn.{func.attr}({self.text(func.value)})"
        if func.attr == "parameters" and not node.args and not node.keywords:
            leaves = f"jax.tree.leaves(nnx.state({self.text(func.value)}, nnx.Param))"
            return f"iter({leaves})" if self.scope.value(_caller(self.source, node)) is next else leaves
        methods = [getattr(kind, func.attr, None) for kind in owner.kinds]
        layers = {kind: _own(kind) for kind in owner.kinds}
        if any(is_torchs(method) for method in methods) and not all(
            hasattr(method, func.attr) for method in layers.values()
        ):
            raise Hole(f"Flax's modules have no {func.attr}")
        return None

    def _super(self, node: ast.Call, func: ast.Attribute) -> str:
        name = "__call__" if func.attr == "forward" else func.attr
        if name in vars(nn.Module) and name not in ("__init__", "__call__", "extra_repr", "__repr__"):
            base = next((base for base in (self.kind or nn.Module).__mro__[1:] if name in vars(base)), object)
            if is_torchs(base):
                raise Hole(f"Flax's modules have another {name}")
        arguments = self._arguments(node)
        if func.attr == "__init__" and self.kind is not None:
            base = next((base for base in self.kind.__mro__[1:] if "__init__" in vars(base)), object)
            if self._takes_rngs_as_base(base):
                arguments = f"{arguments}, rngs=rngs" if arguments else "rngs=rngs"
        return f"super().{name}({arguments})"

    def _takes_rngs_as_base(self, base: type) -> bool:
        return (defined_by_user(base) and issubclass(base, nn.Module)) or (
            is_layer(base) and base.__name__ in rules.ACCEPTING
        )

    def _arguments(self, node: ast.Call) -> str:
        """Write the arguments of a call, without its parentheses."""
        parts = [*node.args, *node.keywords]
        if len(parts) == 1 and isinstance(parts[0], ast.GeneratorExp):
            return self.text(parts[0])[1:-1]
        written, at = "", min(map(start_of, parts), default=(0, 0))
        for part in sorted(parts, key=start_of):
            written += self.source.between(at, start_of(part)) + self.text(part)
            at = end_of(part)
        return written

    def _of_torch(self, node: ast.Call, target: Any) -> str:
        if is_layer(target):
            return self._layer(node, target)
        if target is nn.Parameter:
            return self._parameter(node)
        name_ = rule_name(target)
        if getattr(target, "__name__", "") in RANDOM_FUNCTIONS and self.in_call(node):
            raise Hole(DRAWN)
        if name_ is None or name_ not in rules.FUNCTIONS:
            raise Hole(f"there is no rule for {dotted(target)}")
        if self.is_pair(node):
            raise Hole("it gives values and places")
        if "rngs." in rules.FUNCTIONS[name_][0].template and self.in_call(node):
            raise Hole(DRAWN)
        return self._ruled(node, rules.FUNCTIONS[name_], name_)

    def _parameter(self, node: ast.Call) -> str:
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        flag = keywords.get("requires_grad", node.args[1] if len(node.args) > 1 else None)
        value = node.args[0] if node.args else keywords["data"]
        trained = flag is None or (isinstance(flag, ast.Constant) and flag.value)
        return f"nnx.{'Param' if trained else 'Variable'}({self.text(value)})"

    def _layer(self, node: ast.Call, target: type) -> str:
        """Write a layer's constructor without arguments that JAX has no use for."""
        if target in PARAMETERS:
            return f"nnx.{PARAMETERS[target]}({self._arguments(node)})"
        layer = jaxpar_layer(target)
        if layer is None:
            raise Hole(f"jaxpar has no {target.__name__}")
        names = list(inspect.signature(target).parameters)
        by_place = dict(zip(names, node.args, strict=False)) if _plain(node) else {}
        dropped: set[ast.AST] = {arg for name, arg in by_place.items() if name in rules.DROPPED}
        dropped |= {keyword for keyword in node.keywords if keyword.arg in rules.DROPPED}
        remaining = [argument for argument in (*node.args, *node.keywords) if argument not in dropped]
        self._check_arguments(target, layer, remaining)
        extra = "rngs=rngs" if target.__name__ in rules.RANDOM else ""
        if not dropped:
            return self._extended(node, extra)
        arguments = ", ".join(filter(None, [*(self.text(argument) for argument in remaining), extra]))
        return f"{self.text(node.func)}({arguments})"

    def _check_arguments(self, target: type, layer: type, arguments: Sequence[ast.AST]) -> None:
        if target.__name__ in ("Softmax", "LogSoftmax") and not arguments:
            raise Hole("without dim torch chooses the axis by the number of axes")
        parameters = inspect.signature(layer).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return
        for argument in arguments:
            if isinstance(argument, ast.keyword) and argument.arg and argument.arg not in parameters:
                raise Hole(f"jaxpar's {target.__name__} has no {argument.arg}")

    def _with_rngs(self, node: ast.Call, targets: list[Any]) -> str:
        """Write a call of a user's function, with `rngs` if it builds layers or draws."""
        targets = [target_ for target_ in targets if not self._sees_rngs(target_, node)]
        if any(self.needs_rngs(target) for target in targets):
            return self._extended(node, "rngs=rngs")
        drawing = any(draws(self, target) for target in targets)
        return self._extended(node, f"rngs={self._stream()}" if drawing else "")

    def _sees_rngs(self, target: Any, call: ast.Call) -> bool:
        """Return whether a function is nested in one around the call, and can use that one's `rngs`."""
        plain = isinstance(target, FunctionType) and target.__code__.co_filename == self.source.path
        node = self.source.function(target.__code__) if plain else None
        outer, enclosing = self.source.around(node) if node else None, self.source.around(call)
        while outer and enclosing and enclosing is not outer:
            enclosing = self.source.around(enclosing)
        return bool(outer and enclosing)

    def _stream(self) -> str:
        """Return the stream of random numbers: the module's attribute, or a function's argument."""
        return "self.rngs" if self.kind else "rngs"

    def _check_stream(self) -> None:
        kinds: tuple[Any, ...] = self.kind.__mro__ if self.kind else ()
        first = [base for base in kinds if draws_first(self, base)]
        # Without any constructor, `definitions` writes one.
        if not any("__init__" in vars(base) or base.__init__ is nn.Module.__init__ for base in first):
            raise Hole("it draws random numbers, by a stream that a constructor of the class would make")

    def call_draws(self, node: ast.Call) -> bool:
        """Return whether a call draws random numbers, directly or in a user's function."""
        candidates = self._rules_of(node)
        if candidates:
            rule = next((rule for rule in candidates if rule.accepts(node)), None)
            return rule is not None and rule.draws(node)
        return any(draws(self, target) for target in self._targets(node))

    def _rules_of(self, node: ast.Call) -> list[CallRule]:
        name_ = rule_name(self.scope.value(node.func))
        if name_ or not isinstance(node.func, ast.Attribute):
            return rules.FUNCTIONS.get(name_ or "", [])
        site = self.site(node.func.value)
        return rules.METHODS.get(node.func.attr, []) if site is None or site.is_tensor else []

    def at(self, source: Source, names: Mapping[str, Any], kind: type | None = None) -> Calls:
        """Return a translator for a different file."""
        return Calls(source, self.watched, Scope(dict(names)), Needs(), kind)

    def _extended(self, node: ast.Call, extra: str) -> str:
        if not extra:
            return self.spliced(node)
        arguments = [*node.args, *node.keywords]
        if not arguments:
            return f"{self.text(node.func)}({extra})"
        last = max(arguments, key=end_of)
        if len(arguments) == 1 and isinstance(last, ast.GeneratorExp):
            return f"{self.text(node.func)}({self.text(last)}, {extra})"
        parts = sorted(positioned(node), key=start_of)
        written, at = [], start_of(node)
        for part in parts:
            written += [self.source.between(at, start_of(part)), self.text(part)]
            at = end_of(part)
            if part is last:
                written.append(f", {extra}")
        return "".join([*written, self.source.between(at, end_of(node))])

    def _targets(self, node: ast.Call) -> list[Any]:
        """Return the recorded callables of a call or, if it did not run, the value of the name."""
        site = self.site(node.func)
        if site:
            return list(site.objects.values())
        value = self.scope.value(node.func)
        return [] if value is UNKNOWN else [value]

    def needs_rngs(self, target: Any) -> bool:
        """Return whether a callable needs `rngs` to build layers."""
        if isinstance(target, functools.partial):
            return self.needs_rngs(target.func)
        if isinstance(target, MethodType):
            target = target.__func__
        if is_layer(target):
            return target.__name__ in rules.ACCEPTING
        if inspect.isclass(target) and issubclass(target, nn.Module):
            base = next(base for base in target.__mro__ if "__init__" in vars(base))
            constructed = defined_by_user(base) or (is_layer(base) and base.__name__ in rules.ACCEPTING)
            return constructed or any(draws_itself(self, base) for base in target.__mro__)
        return isinstance(target, FunctionType) and self._builds(target)

    def _builds(self, function: FunctionType) -> bool:
        """Return whether a user's function builds layers."""
        function = inspect.unwrap(function)
        builds = _BUILDS.get(function)
        if builds is None:
            _BUILDS[function] = False  # ends recursion
            _BUILDS[function] = builds = self._looks_building(function)
        return builds

    def _looks_building(self, function: FunctionType) -> bool:
        if "." in function.__qualname__ and function.__name__ in ("forward", "__call__"):
            return False
        try:
            source, node = definition(function)
        except (LookupError, OSError, SyntaxError):
            return False
        from ..reading.watching import is_users

        if not is_users(source.path):
            return False
        reader = self.at(source, function.__globals__).inside(node)
        calls = [child for child in ast.walk(node) if isinstance(child, ast.Call)]
        return any(
            (self.needs_rngs(target) and (not is_layer(target) or target.__name__ in rules.RANDOM))
            or _draws(target)
            for call in calls
            for target in reader._targets(call)
        )


def _own(kind: type) -> Any:
    """Return the counterpart of the torch layer that a class is or derives from."""
    layer = _layer(kind)
    return getattr(nnx, PARAMETERS[layer]) if layer in PARAMETERS else jaxpar_layer(layer) or nnx.Module


def _layer(kind: type) -> type:
    """Return the torch layer that a class is or derives from."""
    return next(base for base in kind.__mro__ if is_layer(base))


def _draws(target: Any) -> bool:
    return target in (torch.randn, torch.rand)


def is_method(name: str) -> bool:
    """Return whether a tensor's method has a rule."""
    return name in rules.METHODS or name in rules.IN_PLACE


def _caller(source: Source, node: ast.AST) -> ast.AST:
    """Return the callable that a node is an argument of; the node's parent if that is not a call."""
    parent = source.parents[node]
    return parent.func if isinstance(parent, ast.Call) else parent


def _is_super(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "super"


def _plain(node: ast.Call) -> bool:
    return not any(isinstance(argument, ast.Starred) for argument in node.args)
