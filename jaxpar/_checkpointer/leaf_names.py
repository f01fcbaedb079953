"""The names of all leaves of a tree that contains NNX objects, with and without wrappers' levels.

A wrapper adds a level `module` to the path of every leaf of its module, and of every leaf of an optimizer
that belongs to a parameter. Which levels are wrappers' is read from the objects: a module may be called
`module`, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx

from .._parallel.data_parallel import DataParallel
from .._training.distributed_data_parallel import DistributedDataParallel
from .._typing import PyTree
from ..errors import CheckpointError
from .item import FUNCTIONS, NNXItem, is_value, raw

Path = tuple[Any, ...]

LEVEL, VALUE = "module", "value"
"""What wrappers add to a path, and what an `nnx.State` or a box of Linen adds to it in a file."""

WRAPPERS = (DataParallel, DistributedDataParallel)


class Leaf(NamedTuple):
    """A leaf's names with and without wrappers' levels, in and outside of a box, and its value."""

    full_forms: tuple[str, ...]
    forms: tuple[str, ...]
    value: PyTree

    @property
    def full(self) -> str:
        return self.full_forms[0]

    @property
    def name(self) -> str:
        return self.forms[0]


class Leaves:
    """The leaves of a tree of NNX objects, variables, arrays and numbers."""

    def __init__(self, tree: PyTree, function: str, net: Any = None, *, needs_net: bool = False):
        self._function, self._needs_net = function, needs_net
        pairs, self._structure = jax.tree_util.tree_flatten_with_path(
            tree, is_leaf=lambda node: isinstance(node, (nnx.Pytree, nnx.Variable))
        )
        named = [(_keys(path), node) for path, node in pairs]
        self._nodes = [(k, NNXItem(_name(k), x) if isinstance(x, nnx.Pytree) else x) for k, x in named]
        self._renamed = self._without_wrappers(net)
        self.leaves = [leaf for i in range(len(self._nodes)) for leaf in self._leaves_of(i)]
        names = [leaf.full for leaf in self.leaves]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{function}: two leaves are called {twice}.")

    def _without_wrappers(self, net: Any) -> dict[int, dict[Path, Path]]:
        """Return the paths without wrappers of the variables of each NNX object."""
        items = {i: node for i, (_, node) in enumerate(self._nodes) if isinstance(node, NNXItem)}
        optimizers = [item.node for item in items.values() if isinstance(item.node, nnx.Optimizer)]
        # `nnx.ModelAndOptimizer` has its module inside.
        others = [net, *(getattr(optimizer, "model", None) for optimizer in optimizers)]
        nets = [item for item in items.values() if not isinstance(item.node, nnx.Optimizer)]
        nets += [NNXItem("net", node) for node in others if isinstance(node, nnx.Pytree)]
        of_nets: dict[Path, Path] = {}
        for item in nets if optimizers else ():
            for path, bare_path in _paths(item).items():
                if of_nets.setdefault(path, bare_path) != bare_path:
                    raise CheckpointError(
                        f"{self._function}: {_name(path)} is in one net below a wrapper and in another one "
                        "not, so that an optimizer's leaves could belong to either. Pass each net with its "
                        "optimizer in a call of its own."
                    )
        renamed = {}
        for i, item in items.items():
            if isinstance(item.node, nnx.Optimizer):
                renamed[i] = {entry.path: self._of_optimizer(entry.path, of_nets) for entry in item.entries()}
            else:
                renamed[i] = _paths(item)
        return renamed

    def _of_optimizer(self, path: Path, of_nets: Mapping[Path, Path]) -> Path:
        """Return the path of an optimizer's leaf, which ends with a parameter's, without wrappers' levels."""
        for i in range(len(path)):
            if path[i:] in of_nets:
                return path[:i] + of_nets[path[i:]]
        if LEVEL in path and not of_nets and self._needs_net:
            raise CheckpointError(ambiguous(self._function, _name(path)))
        return path

    def _leaves_of(self, i: int) -> Iterator[Leaf]:
        prefix, node = self._nodes[i]
        if isinstance(node, NNXItem):
            for entry in node.entries():
                subpath = _keys(entry.subpath)
                full, bare_path = (
                    _forms(prefix + path, subpath) for path in (entry.path, self._renamed[i][entry.path])
                )
                yield Leaf(full, bare_path, entry.value)
        elif isinstance(node, nnx.Variable):
            for subpath, value in jax.tree_util.tree_leaves_with_path(raw(node)):
                forms = _forms(prefix, _keys(subpath))
                yield Leaf(forms, forms, value)
        elif isinstance(node, FUNCTIONS):
            return  # of an Equinox module; files do not have it, and it stays
        elif not is_value(node):
            raise CheckpointError(
                f"{self._function}: {_name(prefix) or 'target'} is a {type(node).__name__} without a state "
                "of its own; pass its variables or parameters, which are a tree."
            )
        else:
            forms = _forms(prefix, ())
            yield Leaf(forms, forms, node)

    def replaced(self, values: Iterable[PyTree]) -> PyTree:
        """Return the tree with new values, and update its NNX objects."""
        remaining, nodes = iter(values), []
        for i, (_, node) in enumerate(self._nodes):
            new = [next(remaining) for _ in self._leaves_of(i)]
            if isinstance(node, NNXItem):
                node.put(dict(zip(node.leaves(), new, strict=True)))
            elif isinstance(node, nnx.Variable):
                node = node.copy(jax.tree.unflatten(jax.tree.structure(raw(node)), new))
            elif new:
                (node,) = new
            nodes.append(node.node if isinstance(node, NNXItem) else node)
        return jax.tree.unflatten(self._structure, nodes)

    def states(self, ignored: Callable[[str], bool]) -> PyTree:
        """Return the tree with the state of each NNX object under the paths without wrappers."""
        nodes = []
        for i, (prefix, node) in enumerate(self._nodes):
            if isinstance(node, NNXItem):
                state = node.state([entry.value for entry in node.entries(complete=True)], self._renamed[i])
                flat = nnx.to_flat_state(state)
                node = nnx.from_flat_state([(p, v) for p, v in flat if not ignored(_name(prefix + p))])
            nodes.append(node)
        return jax.tree.unflatten(self._structure, nodes)


def _keys(path: Path) -> Path:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _name(path: Path) -> str:
    return ".".join(map(str, path))


def _forms(path: Path, subpath: Path) -> tuple[str, ...]:
    """Return a leaf's name as it is, in a box, and outside of the box in which it may be here."""
    unboxed = [path[:-1]] if not subpath and path[-1:] == (VALUE,) else []
    return tuple(_name(form) for form in (path + subpath, (*path, VALUE, *subpath), *unboxed))


def _paths(item: NNXItem) -> dict[Path, Path]:
    """Map the paths of a module's variables to their paths without its wrappers' levels."""
    wrappers = {path for path, node in nnx.iter_graph(item.node, graph=True) if isinstance(node, WRAPPERS)}
    return {
        path: tuple(key for i, key in enumerate(path) if key != LEVEL or path[:i] not in wrappers)
        for path in (entry.path for entry in item.entries())
    }


def ambiguous(function: str, path: str) -> str:
    return (
        f"{function}: the level `module` of {path} may be a wrapper's or a module's own. Pass the module to "
        "which the leaves belong, too: net=net."
    )
