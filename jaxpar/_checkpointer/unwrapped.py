"""The state of a program without wrappers: load it into wrapped objects, and return it from them.

A wrapper adds a level `module` to the path of every leaf. Each object in a target gives its leaves' paths in
both forms; a source is compared with them leaf by leaf before anything changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._parallel.data_parallel import DataParallel
from .._training.distributed_data_parallel import DistributedDataParallel
from .._typing import PyTree
from ..errors import CheckpointError
from .fit import bare, check_same, like, listed, matched, spec_of
from .foreign import read_foreign
from .item import NNXItem, is_value, raw
from .json_values import is_key

Path = tuple[Any, ...]

LEVEL, VALUE = "module", "value"
"""What wrappers add to a path, and what an `nnx.State` or a box of Linen adds to it in a file."""

_WRAPPERS = (DataParallel, DistributedDataParallel)

LOAD, EXPORT = "load_unwrapped_state", "unwrapped_state"


def load_unwrapped_state(
    source: str | os.PathLike[str] | bytes | PyTree,
    target: PyTree,
    *,
    ignore: Sequence[str] = (),
    strict_dtype: bool = True,
) -> PyTree:
    """Load what a program without jaxpar saved into modules, optimizers and trees, wrapped or not.

    Leaves are matched by path: parameters, statistics, random streams, moments and step counts. Every leaf of
    either side must have its counterpart, of the same shape and dtype; all are compared before the first one
    changes. Arrays are placed on the devices of the arrays that they replace. Every process reads the file.

    Args:
      source: a folder that orbax wrote (StandardCheckpointer, PyTreeCheckpointer, a CheckpointManager or one
        of its steps), a file or folder of `flax.training.checkpoints`, the bytes of `flax.serialization`, or
        a tree that was restored: an `nnx.State`, dicts with numbers or texts as keys, a FrozenDict, a
        TrainState. Of several steps, the newest one.
      target: the objects in the structure in which their states were saved: one NNX module or optimizer, or
        a dict or tuple of these and of trees, such as Linen's variables, a TrainState, or a pair of
        parameters and optax state.
      ignore: paths to leave out with everything below them, where `*` is any text: leaves of the source that
        `target` does not have, and leaves of `target` that keep their values.
      strict_dtype: whether a different dtype is an error, instead of a conversion with a warning.

    Returns:
      `target` with the values: the same NNX objects, updated in place, and new trees.

    Raises:
      CheckpointError: a leaf exists on one side only, or has another shape, dtype or kind there; the source
        cannot be read. Nothing has changed then.

    torch counterpart: `load_state_dict`, and in `torch.nn.modules.utils`
    `consume_prefix_in_state_dict_if_present`.

    >>> import jaxpar
    >>> from flax import nnx
    >>> saved = nnx.to_pure_dict(nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))))
    >>> net = jaxpar.DataParallel(nnx.Linear(2, 3, rngs=nnx.Rngs(1)))
    >>> net = jaxpar.load_unwrapped_state(saved, net)
    >>> bool((net.module.kernel[...] == saved["kernel"]).all())
    True
    """
    ignored = _ignores(ignore)
    tree, where = read_foreign(source, LOAD, ignored)
    saved = {leaf.full: leaf.value for leaf in _Leaves(tree, LOAD).leaves if not ignored(leaf.full)}
    targets = _Leaves(target, LOAD)
    live = [leaf for leaf in targets.leaves if not (ignored(leaf.name) or ignored(leaf.full))]
    names = _matched(live, saved, where)
    values = {}
    for leaf, name in zip(live, names, strict=True):
        values[leaf.full] = _fitting(leaf, saved[name], where, strict_dtype)
    return targets.replaced([values.get(leaf.full, leaf.value) for leaf in targets.leaves])


def unwrapped_state(target: PyTree, net: Any = None, *, ignore: Sequence[str] = ()) -> PyTree:
    """Return the states that the same program without jaxpar's wrappers would have, to save them for it.

    Any saver of orbax or Flax takes them, and `restore(path, nnx.state(net))` or `from_bytes` in the other
    program fits. The arrays are the target's own: save them before the next training step, which may donate
    them. What lies on several devices in equal copies is returned on one; if any array is divided between
    devices, all stay where they are.

    Args:
      target: NNX modules, optimizers and streams, or a dict or tuple of these and of trees, such as Linen's
        variables or a TrainState, in the structure in which the other program saves them.
      net: the wrapped module, if `target` does not have it: of an optimizer alone, or of Linen's variables.
      ignore: paths of NNX leaves to leave out with everything below them, where `*` is any text.

    Returns:
      `target` with an `nnx.State` for each NNX object and with trees without wrappers' levels.

    Raises:
      CheckpointError: a level `module` that may be a wrapper's or a module's own, since `net` is missing.

    torch counterpart: `net.module.state_dict()`.

    >>> import jaxpar
    >>> from flax import nnx
    >>> net = jaxpar.DataParallel(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    >>> list(nnx.to_pure_dict(nnx.state(net))), list(nnx.to_pure_dict(jaxpar.unwrapped_state(net)))
    (['module'], ['bias', 'kernel'])
    """
    leaves, ignored = _Leaves(target, EXPORT, net), _ignores(ignore)
    return _on_one_device(_without_levels(leaves.states(ignored), net))


def _ignores(patterns: Sequence[str]) -> Callable[[str], bool]:
    if isinstance(patterns, str):
        raise TypeError(f"ignore is a sequence of paths, not a text: [{patterns!r}].")

    def ignored(name: str) -> bool:
        return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in patterns)

    return ignored


class _Leaf(NamedTuple):
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


class _Leaves:
    """The leaves of a tree of NNX objects, variables, arrays and numbers."""

    def __init__(self, tree: PyTree, function: str, net: Any = None):
        self._function = function
        pairs, self._structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_node)
        self._nodes = [(_keys(path), _node(_name(_keys(path)), node)) for path, node in pairs]
        self._renamed = self._without_wrappers(net)
        self.leaves = [leaf for i in range(len(self._nodes)) for leaf in self._leaves_of(i)]
        names = [leaf.full for leaf in self.leaves]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{function}: two leaves are called {twice}.")

    def _without_wrappers(self, net: Any) -> dict[int, dict[Path, Path]]:
        """Return the paths without wrappers of the variables of each NNX object."""
        items = {i: node for i, (_, node) in enumerate(self._nodes) if isinstance(node, NNXItem)}
        nets = [item for item in items.values() if not isinstance(item.node, nnx.Optimizer)]
        if isinstance(net, nnx.Pytree):
            nets.append(NNXItem("net", net))
        of_nets: dict[Path, Path] = {}
        for item in nets:
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
        """Return an optimizer leaf's path, which ends with that of a parameter, without wrappers."""
        for i in range(len(path)):
            if path[i:] in of_nets:
                return path[:i] + of_nets[path[i:]]
        if LEVEL in path and not of_nets and self._function == EXPORT:
            raise CheckpointError(_ambiguous(_name(path)))
        return path

    def _leaves_of(self, i: int) -> Iterator[_Leaf]:
        prefix, node = self._nodes[i]
        if isinstance(node, NNXItem):
            for entry in node.entries():
                subpath = _keys(entry.subpath)
                full, bare_path = (
                    _forms(prefix + path, subpath) for path in (entry.path, self._renamed[i][entry.path])
                )
                yield _Leaf(full, bare_path, entry.value)
        elif isinstance(node, nnx.Variable):
            for subpath, value in jax.tree_util.tree_leaves_with_path(raw(node)):
                forms = _forms(prefix, _keys(subpath))
                yield _Leaf(forms, forms, value)
        elif not is_value(node):
            raise CheckpointError(
                f"{self._function}: {_name(prefix) or 'target'} is a {type(node).__name__} without a state "
                "of its own; pass its variables or parameters, which are a tree."
            )
        else:
            forms = _forms(prefix, ())
            yield _Leaf(forms, forms, node)

    def replaced(self, values: Iterable[PyTree]) -> PyTree:
        """Return the tree with other values, and update its NNX objects."""
        remaining, nodes = iter(values), []
        for i, (_, node) in enumerate(self._nodes):
            new = [next(remaining) for _ in self._leaves_of(i)]
            if isinstance(node, NNXItem):
                node.put(dict(enumerate(new)))
            elif isinstance(node, nnx.Variable):
                node = node.copy(jax.tree.unflatten(jax.tree.structure(raw(node)), new))
            else:
                (node,) = new
            nodes.append(node.node if isinstance(node, NNXItem) else node)
        return jax.tree.unflatten(self._structure, nodes)

    def states(self, ignored: Callable[[str], bool]) -> PyTree:
        """Return the tree with the state of each NNX object under the paths without wrappers."""
        nodes = []
        for i, (prefix, node) in enumerate(self._nodes):
            if isinstance(node, NNXItem):
                state = node.state([entry.value for entry in node.entries()], self._renamed[i])
                flat = nnx.to_flat_state(state)
                node = nnx.from_flat_state([(p, v) for p, v in flat if not ignored(_name(prefix + p))])
            nodes.append(node)
        return jax.tree.unflatten(self._structure, nodes)


def _is_node(node: object) -> bool:
    return isinstance(node, (nnx.Pytree, nnx.Variable))


def _node(name: str, node: PyTree) -> PyTree:
    return NNXItem(name, node) if isinstance(node, nnx.Pytree) else node


def _keys(path: Path) -> Path:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _name(path: Path) -> str:
    return ".".join(map(str, path))


def _forms(path: Path, subpath: Path) -> tuple[str, ...]:
    """Return a leaf's name as it is, in a box, and outside of the box in which it may be here."""
    unboxed = [path[:-1]] if not subpath and path[-1:] == (VALUE,) else []
    return tuple(_name(form) for form in (path + subpath, (*path, VALUE, *subpath), *unboxed))


def _paths(item: NNXItem) -> dict[Path, Path]:
    """Map the paths of a module's variables to those without the levels of the wrappers in it."""
    wrappers = {path for path, node in nnx.iter_graph(item.node, graph=True) if isinstance(node, _WRAPPERS)}
    return {
        path: tuple(key for i, key in enumerate(path) if key != LEVEL or path[:i] not in wrappers)
        for path in (entry.path for entry in item.entries())
    }


def _matched(live: Sequence[_Leaf], saved: Mapping[str, PyTree], where: str) -> list[str]:
    """Return the name in the source of every leaf, or raise CheckpointError."""
    for all_forms in ([leaf.forms for leaf in live], [leaf.full_forms for leaf in live]):
        names = [next((form for form in forms if form in saved), "") for forms in all_forms]
        if sorted(names) == sorted(saved):
            return names
    # Neither fits exactly: wrappers stand elsewhere there, or leaves are missing.
    there = set(bare(saved).values())
    names = [next((form for form in leaf.forms if _bare(form) in there), leaf.name) for leaf in live]
    of_names, only_live, only_saved = matched(names, saved)
    if only_live or only_saved:
        raise CheckpointError(
            f"{LOAD}: target is another tree than the one in {where}. Only here: {listed(only_live)}; only "
            f"there: {listed(only_saved)}. Nothing was loaded. Build target in the structure that was saved, "
            "or leave out paths with ignore=[...]."
        )
    return [of_names[name] for name in names]


def _bare(name: str) -> str:
    return bare([name])[name]


def _fitting(leaf: _Leaf, new: PyTree, where: str, strict_dtype: bool) -> PyTree:
    """Return a saved value as the leaf needs it, or raise CheckpointError."""
    old, title = leaf.value, f"{LOAD}: {leaf.name}"
    if isinstance(new, np.generic):
        new = np.asarray(new)
    if isinstance(new, jax.Array) and new.is_fully_replicated:
        new = new.addressable_data(0)
    if is_key(old) and not is_key(new) and spec_of(new) == spec_of(jax.eval_shape(jax.random.key_data, old)):
        # Files hold a key's data only; of a shape, the implementation is not public.
        impl = jax.random.key_impl(old) if isinstance(old, jax.Array) else None
        new = jax.random.wrap_key_data(jnp.asarray(new), impl=impl)
    elif is_key(new) and not is_key(old):
        new = jax.random.key_data(new)
    if spec_of(old) is None and type(old) is not type(new):
        raise CheckpointError(f"{title} is {old!r} here and {new!r} in {where}. Nothing was loaded.")
    check_same(title, spec_of(old), spec_of(new), where, strict_dtype)
    return like(old, new)


def _without_levels(tree: PyTree, net: Any) -> PyTree:
    """Return trees of Linen modules without the levels of the wrappers around the modules."""

    def is_stop(node: object) -> bool:
        return isinstance(node, nnx.State) or _is_train_state(node) or _is_level(node)

    def without(node: PyTree) -> PyTree:
        if isinstance(node, nnx.State):
            return node
        if not _is_train_state(node):
            return _without_level(node, net) if _is_level(node) else node
        owner = getattr(node.apply_fn, "__self__", net)
        node = jax.tree.map(
            lambda part: _without_level(part, owner) if _is_level(part) else part, node, is_leaf=_is_level
        )
        inner = getattr(owner, LEVEL, None) if isinstance(owner, _WRAPPERS) else None
        if inner is None or not hasattr(node.apply_fn, "__self__"):
            return node
        return node.replace(apply_fn=getattr(inner, node.apply_fn.__name__))

    return jax.tree.map(without, tree, is_leaf=is_stop)


def _is_level(node: object) -> bool:
    return isinstance(node, Mapping) and list(node) == [LEVEL]


def _is_train_state(node: object) -> bool:
    return all(hasattr(node, name) for name in ("apply_fn", "params", "opt_state", "replace"))


def _without_level(node: Mapping[str, PyTree], net: Any) -> PyTree:
    if net is None:
        raise CheckpointError(_ambiguous(LEVEL))
    # A DistributedDataParallel of a Linen module takes the module's own variables.
    return node[LEVEL] if isinstance(net, DataParallel) else node


def _ambiguous(path: str) -> str:
    return (
        f"{EXPORT}: the level `module` of {path} may be a wrapper's or a module's own. Pass the module to "
        "which the leaves belong, too: net=net."
    )


def _on_one_device(tree: PyTree) -> PyTree:
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    if not all(x.is_fully_replicated for x in arrays):
        return tree
    return jax.tree.map(lambda x: x.addressable_data(0) if isinstance(x, jax.Array) else x, tree)
