"""torch_init: an NNX module with the weights that its torch twin is constructed with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from .._rulebook import Rule, rule_for
from ..errors import MatchError
from ._construction import axes_of, construction, keep_values, reason_missing
from ._dtypes import is_floating
from ._generator import Generator

Fill = Callable[[np.ndarray, Generator], Any]
Visit = Callable[[str, dict[str, np.ndarray], Generator], Any]
M = TypeVar("M", bound=nnx.Module)


def torch_init(
    module: M,
    seed: int | Generator,
    *,
    order: Sequence[str | nnx.Module] | None = None,
    parameters: Mapping[str, Fill] | None = None,
    apply: Visit | None = None,
    dtype: DTypeLike | None = None,
) -> M:
    """Give a module the weights of `torch.manual_seed(seed)` and its twin's constructor.

    Args:
      module: an NNX module of layers that have a torch counterpart; also an abstract one, from
        `nnx.eval_shape`. It is changed in place. Running statistics are reset as well; the slopes of a PReLU,
        which its constructor is given, stay.
      seed: of `torch.manual_seed`, or a `Generator` that has made all earlier draws.
      order: paths ("encoder", "blocks.0") in the order in which the twin constructs them; the order of the
        attributes by default. A path covers everything below that no earlier path covers; together they must
        cover every layer. A module in place of a path is one that only the twin has, such as the Linear after
        a tied embedding: it draws, and is not changed.
      parameters: for each parameter outside of any layer, what fills it: called with an array of the
        parameter's shape and dtype, and the generator, when its turn comes.
      apply: what the twin does with its layers after construction, as in `self.apply(self._init_weights)`:
        called for every layer, in the order of the attributes, with torch's class name, its tensors by
        torch's names in torch's layout, and the generator. For a MultiheadAttention, out_proj comes first, as
        a Linear.
      dtype: in which the twin is constructed, if it is converted to the module's afterwards; each layer's own
        if left out.

    Returns: The module. A parameter shared by two layers keeps the first value; both layers draw. Raises:
    MatchError: a layer or parameter without counterpart. ValueError: an `order` or `parameters` that do not
    fit, attributes whose order is lost. TypeError: not an NNX module. The module is not changed then.

    >>> from flax import nnx
    >>> from jaxpar import random
    >>> net = random.torch_init(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), 0)
    >>> [round(float(weight), 4) for weight in net.kernel[...].ravel()]
    [-0.0053, 0.3793]

    torch counterpart: `torch.manual_seed(seed)` and the constructor. Sources: _construction.py for the draws,
    jaxpar/_rulebook for the layouts.
    """
    if not isinstance(module, nnx.Module):
        raise TypeError(f"torch_init: expected an nnx.Module, but got {type(module).__name__}")
    generator = seed if isinstance(seed, Generator) else Generator(seed)
    visits = _visits(module, dict(parameters or {}))
    constructed = _constructed(module, visits, [""] if order is None else order)
    # Values are placed only when all draws have succeeded, so that an error leaves the module as it was.
    placed: dict[int, tuple[nnx.Variable, jax.Array]] = {}
    drawn: dict[str, dict[str, np.ndarray]] = {}
    for path, part in constructed.items():
        tensors = part.draw(generator, dtype)
        if path.startswith(_TWIN):
            continue
        if apply is None:
            # At once, so that never all of torch's and of Flax's arrays are alive.
            _convert(part, tensors, placed)
        else:
            drawn[path] = tensors
    if apply is not None:
        parts = {path: constructed[path] for path in drawn}
        # `apply` visits modules in the order of the attributes, not of construction, and
        # a shared layer once. Then it writes into torch's tensors, so shared ones must be one array.
        _tie(parts, drawn)
        for path in dict.fromkeys(part.path for _, part in visits):
            parts[path].visit(drawn[path], generator, apply)
        for path, part in parts.items():
            _convert(part, drawn[path], placed)
    for variable, value in placed.values():
        variable.set_raw_value(value)
    return module


def _convert(
    part: _Part, tensors: dict[str, np.ndarray], placed: dict[int, tuple[nnx.Variable, jax.Array]]
) -> None:
    for leaf, array in part.leaves(tensors).items():
        variable = part.variables[leaf]
        if id(variable) not in placed:
            placed[id(variable)] = variable, _put(array, variable)


@dataclasses.dataclass
class _DrawnLayer:
    path: str
    layer: Any
    rule: Rule
    variables: dict[str, nnx.Variable]

    def __str__(self) -> str:
        return self.path or "the module"

    def draw(self, generator: Generator, dtype: DTypeLike | None) -> dict[str, np.ndarray]:
        construct = construction(self.rule.torch)
        if construct is None:
            raise MatchError(
                f"torch_init: {self} is torch's {self.rule.torch}, {reason_missing(self.rule.torch)}"
            )
        shapes = self.rule.torch_shapes({leaf: v.shape for leaf, v in self.variables.items()})
        axes = axes_of(self.rule.torch)
        if axes is not None and len(shapes["weight"]) != axes:
            raise MatchError(
                f"torch_init: {self} is torch's {self.rule.torch}, whose weight has {axes} axes, and here it "
                f"would have the shape {shapes['weight']}. Layers stacked by nnx.vmap have no counterpart."
            )
        # The rulebook knows shapes in torch from those in Flax, so an abstract module will do.
        tensors = (
            self.rule.to_torch(self._values())
            if construct is keep_values
            else {name: np.empty(shape, dtype or self._dtype()) for name, shape in shapes.items()}
        )
        construct(tensors, self.layer, generator)
        return tensors

    def _values(self) -> dict[str, np.ndarray]:
        values = {leaf: v.get_raw_value() for leaf, v in self.variables.items()}
        if any(isinstance(value, jax.ShapeDtypeStruct) for value in values.values()):
            raise MatchError(
                f"torch_init: {self} is torch's {self.rule.torch}, which begins with what its "
                "constructor is told, and this one has no values. Build it without nnx.eval_shape."
            )
        return {leaf: np.array(value) for leaf, value in values.items()}

    def _dtype(self) -> np.dtype:
        dtypes = (np.dtype(v.get_raw_value().dtype) for v in self.variables.values())
        return next((dtype for dtype in dtypes if is_floating(dtype)), np.dtype(np.float32))

    def visit(self, tensors: dict[str, np.ndarray], generator: Generator, apply: Visit) -> None:
        inner = {name: t for name, t in tensors.items() if name.startswith("out_proj.")}
        if inner:
            apply("Linear", {name.removeprefix("out_proj."): t for name, t in inner.items()}, generator)
        apply(self.rule.torch, {name: t for name, t in tensors.items() if name not in inner}, generator)

    def leaves(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            leaves = self.rule.to_flax(tensors)
        except MatchError as error:
            error.add_note(f"in {self}")
            raise
        for leaf in self.variables.keys() ^ leaves.keys():
            raise MatchError(
                f"torch_init: {_join(self.path, leaf)} is no parameter of torch's {self.rule.torch}."
            )
        return leaves


@dataclasses.dataclass
class _Parameter:
    path: str
    fill: Fill | None
    variables: dict[str, nnx.Variable]

    def draw(self, generator: Generator, dtype: DTypeLike | None) -> dict[str, np.ndarray]:
        if self.fill is None:
            raise MatchError(
                f"torch_init: {self.path} is a parameter of no layer that torch has. Say what it begins "
                f"with: parameters={{{self.path!r}: lambda x, generator: generator.normal_(x)}}."
            )
        value = self.variables[""].get_raw_value()
        array = np.empty(value.shape, dtype or value.dtype)
        self.fill(array, generator)
        return {"": array}

    def visit(self, tensors: dict[str, np.ndarray], generator: Generator, apply: Visit) -> None:
        """torch's `apply` visits modules only."""

    def leaves(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return tensors


_Part = _DrawnLayer | _Parameter


def _visits(module: nnx.Module, fills: dict[str, Fill]) -> list[tuple[str, _Part]]:
    """Layers and parameters outside of layers, in the order of the attributes, under each of their paths."""
    parts: dict[int, _Part] = {}
    unused = dict(fills)

    def walk(node: Any, path: str, above: tuple[Any, ...]) -> Iterator[tuple[str, _Part]]:
        if any(node is parent for parent in above):  # a child may refer to its parent
            return
        if isinstance(node, nnx.Param):
            fill = unused.pop(path, None)
            # A shared node is one part, visited under each of its paths.
            yield path, parts.setdefault(id(node), _Parameter(path, fill, {"": node}))
            return
        rule = rule_for(node) if isinstance(node, nnx.Module) else None
        if rule is not None:
            variables = dict(_variables(node, ""))
            if variables:
                yield path, parts.setdefault(id(node), _DrawnLayer(path, node, rule, variables))
            return
        for key, child in _children(node):
            yield from walk(child, _join(path, key), (*above, node))

    visits = list(walk(module, "", ()))
    if unused:
        raise ValueError(f"torch_init: parameters names {', '.join(unused)}, which no layer leaves over.")
    return visits


def _variables(node: Any, path: str) -> Iterator[tuple[str, nnx.Variable]]:
    if isinstance(node, nnx.Param | nnx.BatchStat) or type(node) is nnx.Variable:  # which `freeze` makes
        yield path, node
    for key, child in _children(node):
        yield from _variables(child, _join(path, key))


def _children(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, list | tuple | nnx.List):
        return [(str(i), child) for i, child in enumerate(node)]
    if isinstance(node, dict):
        return [(str(key), child) for key, child in node.items()]
    if isinstance(node, nnx.Pytree):
        return [(key, child) for key, child in vars(node).items() if not key.startswith("_pytree__")]
    return []


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _below(path: str, root: str) -> bool:
    return not root or path == root or path.startswith(root + ".")


_TWIN = "the twin's own"
"""The prefix of paths of layers that only the twin has."""


def _constructed(
    module: nnx.Module, visits: list[tuple[str, _Part]], order: Sequence[str | nnx.Module]
) -> dict[str, _Part]:
    """The parts in the order of construction, each where it is first named."""
    constructed: dict[str, _Part] = {}
    for i, root in enumerate(order):
        if isinstance(root, nnx.Module):
            # Its draws move the generator on; the arrays are dropped, since the module has no such layer.
            others = _constructed(root, _visits(root, {}), [""])
            constructed |= {f"{_TWIN} {i}.{path}": part for path, part in others.items()}
            continue
        inner = [(path, part) for path, part in visits if _below(path, root)]
        if not inner and root:
            raise ValueError(f"torch_init: order names {root!r}, where there is no layer.")
        group = [(path, part) for path, part in inner if part.path not in constructed]
        _check_order(module, [path for path, _ in group])
        constructed |= {part.path: part for _, part in group}
    for _, part in visits:
        if part.path not in constructed:
            raise ValueError(f"torch_init: order does not name {part.path}.")
    return constructed


def _tie(constructed: Mapping[str, _Part], drawn: Mapping[str, dict[str, np.ndarray]]) -> None:
    """Give layers that share a Variable the tensor that was drawn first."""
    first: dict[int, np.ndarray] = {}
    for path, part in constructed.items():
        if isinstance(part, _DrawnLayer):
            for row in part.rule.parts_of_torch(drawn[path]):
                if len(row.torch) == len(row.flax) == 1:
                    (name,), (leaf,) = row.torch, row.flax
                    drawn[path][name] = first.setdefault(id(part.variables[leaf]), drawn[path][name])


def _check_order(module: nnx.Module, paths: list[str]) -> None:
    """Raise if these paths come from sorted attributes, which hide the order of construction."""
    # A node with one child in question cannot have it out of order.
    for path, node in _rebuilt(module, ""):
        keys = (_join(path, key) for key, _ in _children(node))
        heads = [key for key in keys if any(_below(p, key) for p in paths)]
        if len(heads) > 1:
            raise ValueError(
                f"torch_init: {path or 'the module'} was made by nnx.clone, merge or eval_shape, which sort "
                f"the attributes; in which order {', '.join(heads)} were constructed is lost. Say it with "
                "order=[...]."
            )


def _rebuilt(node: Any, path: str, above: bool = False) -> Iterator[tuple[str, Any]]:
    """Nodes whose attributes are sorted, Flax's own included, which no constructor leaves in that order."""
    if isinstance(node, nnx.Module) and rule_for(node) is not None:
        return
    if isinstance(node, nnx.Pytree):
        above = list(vars(node)) == sorted(vars(node))
    if above and not isinstance(node, list | tuple | nnx.List):
        yield path, node
    for key, child in _children(node):
        yield from _rebuilt(child, _join(path, key), above)


def _put(array: np.ndarray, variable: nnx.Variable) -> jax.Array:
    # A module that was spread over devices stays there; an uncommitted array goes where JAX likes.
    old = variable.get_raw_value()
    sharding = getattr(old, "sharding", None) if getattr(old, "committed", True) else None
    return jax.device_put(array.astype(old.dtype, copy=False), sharding)
