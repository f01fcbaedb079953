"""The state of a program without wrappers: load it into wrapped objects, and return it from them.

A wrapper adds a level `module` to the path of every leaf. Each object in a target gives its leaves' paths in
both forms; a source is compared with them leaf by leaf before anything changes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from .._devices.context import Outside
from .._parallel.data_parallel import DataParallel
from .._tree import check_alive
from .._typing import PyTree
from ..errors import CheckpointError
from .json_values import is_key
from .leaf_names import LEVEL, WRAPPERS, Leaf, Leaves, ambiguous
from .reading import bare, check_same, like, listed, matched, spec_of
from .step import ARRAYS, MANIFEST

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
        TrainState. The newest step is read where there are several.
      target: the objects in the structure in which their states were saved: one NNX module or optimizer, or
        a dict or tuple of these and of trees, such as Linen's variables, a TrainState, or a pair of
        parameters and optax state.
      ignore: paths to leave out with everything below them, where `*` is any text: leaves of the source that
        `target` does not have, and leaves of `target` that keep their values.
      strict_dtype: whether a different dtype is an error, instead of a conversion with a warning.

    Returns:
      `target` with the values: the same NNX objects, updated in place, and new trees.

    Raises:
      CheckpointError: a leaf exists on one side only or differs in shape, dtype or kind; the source cannot
        be read. Nothing has changed then.

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
    ignored, targets = _ignores(ignore), Leaves(target, LOAD)
    top = {name.partition(".")[0] for leaf in targets.leaves for name in (leaf.full, leaf.name)}
    tree, where = read_foreign(source, LOAD, ignored, top)
    saved = {leaf.full: leaf.value for leaf in Leaves(tree, LOAD).leaves if not ignored(leaf.full)}
    live = [leaf for leaf in targets.leaves if not (ignored(leaf.name) or ignored(leaf.full))]
    names = _matched(live, saved, where)
    values = {}
    with Outside():  # where an array that is not committed would go to the context's mesh
        for leaf, name in zip(live, names, strict=True):
            values[leaf.full] = _fitting(leaf, saved[name], where, strict_dtype)
    return targets.replaced([values.get(leaf.full, leaf.value) for leaf in targets.leaves])


def unwrapped_state(target: PyTree, net: Any = None, *, ignore: Sequence[str] = ()) -> PyTree:
    """Return the states that the same program without jaxpar's wrappers would have, for its checkpoints.

    Any saver of orbax or Flax takes them, and the other program restores them by
    `restore(path, nnx.state(net))` or `from_bytes`. The arrays are the target's own: save them before the
    next training step, which may donate them. Arrays with equal copies on several devices are returned on one
    device; if any array is divided between devices, all keep their shardings.

    Args:
      target: NNX modules, optimizers and streams, or a dict or tuple of these and of trees, such as Linen's
        variables or a TrainState, in the structure in which the other program saves them.
      net: the wrapped module, if `target` does not contain it: for an optimizer alone, for Linen's variables.
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
    leaves = Leaves(_without_levels(target, net), EXPORT, net, needs_net=True)
    check_alive([leaf.value for leaf in leaves.leaves], [leaf.name for leaf in leaves.leaves], EXPORT)
    return _on_one_device(leaves.states(_ignores(ignore)))


def _ignores(patterns: Sequence[str]) -> Callable[[str], bool]:
    if isinstance(patterns, str):
        raise TypeError(f"ignore is a sequence of paths, not a text: [{patterns!r}].")

    def ignored(name: str) -> bool:
        return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in patterns)

    return ignored


def _matched(live: Sequence[Leaf], saved: Mapping[str, PyTree], where: str) -> list[str]:
    """Return the name in the source of every leaf, or raise CheckpointError."""
    for all_forms in ([leaf.forms for leaf in live], [leaf.full_forms for leaf in live]):
        names = [next((form for form in forms if form in saved), "") for forms in all_forms]
        if sorted(names) == sorted(saved):
            return names
    # Neither fits exactly: the source has wrappers at other levels, or leaves are missing.
    saved_bare = set(bare(saved).values())
    names = [next((form for form in leaf.forms if _bare(form) in saved_bare), leaf.name) for leaf in live]
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


def _fitting(leaf: Leaf, new: PyTree, where: str, strict_dtype: bool) -> PyTree:
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
    numbers = not isinstance(spec_of(old), tuple) and not isinstance(spec_of(new), tuple)
    if numbers and type(old) is not type(new):
        raise CheckpointError(f"{title} is {old!r} here and {new!r} in {where}. Nothing was loaded.")
    check_same(title, spec_of(old), spec_of(new), where, strict_dtype)
    if isinstance(new, jax.Array) and not new.is_fully_addressable:
        # Divided between processes, so no process has it on its host.
        return jax.device_put(new.astype(old.dtype), old.sharding, may_alias=False)
    return like(old, new)


def _without_levels(tree: PyTree, net: Any) -> PyTree:
    """Return trees of Linen modules without the levels of the wrappers around the modules."""

    def is_stop(node: object) -> bool:
        return isinstance(node, nnx.Pytree) or _is_train_state(node) or _is_level(node)

    def without(node: PyTree) -> PyTree:
        if not _is_train_state(node):
            return _without_level(node, net) if _is_level(node) else node
        owner = getattr(node.apply_fn, "__self__", net)
        node = jax.tree.map(
            lambda part: _without_level(part, owner) if _is_level(part) else part, node, is_leaf=_is_level
        )
        inner = getattr(owner, LEVEL, None) if isinstance(owner, WRAPPERS) else None
        if inner is None or not hasattr(node.apply_fn, "__self__"):
            return node
        return node.replace(apply_fn=getattr(inner, node.apply_fn.__name__))

    return jax.tree.map(without, tree, is_leaf=is_stop)


def _is_level(node: object) -> bool:
    return isinstance(node, Mapping) and not isinstance(node, nnx.Pytree) and list(node) == [LEVEL]


def _is_train_state(node: object) -> bool:
    return all(hasattr(node, name) for name in ("apply_fn", "params", "opt_state", "replace"))


def _without_level(node: Mapping[str, PyTree], net: Any) -> PyTree:
    if net is None:
        raise CheckpointError(ambiguous(EXPORT, "a tree"))
    # A DistributedDataParallel of a Linen module takes the module's own variables, and one of a function
    # the parameters as they are.
    adds_level = isinstance(net, DataParallel) and isinstance(net, linen.Module)
    adds_level |= isinstance(net, WRAPPERS) and isinstance(net, nnx.Pytree)
    return node[LEVEL] if adds_level else node


def _on_one_device(tree: PyTree) -> PyTree:
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    if not all(x.is_fully_replicated for x in arrays):
        return tree

    def one(x: PyTree) -> PyTree:
        # An array that is on one device may not be committed to it, and stays as it is.
        return x.addressable_data(0) if isinstance(x, jax.Array) and len(x.devices()) > 1 else x

    return jax.tree.map(one, tree)


TREE, JSON_ITEM, STEP_METADATA = "_METADATA", "metadata", "_CHECKPOINT_METADATA"
"""The files by which a folder is recognised as orbax's tree, as an item of `JsonSave`, and as a step."""

# What others wrote comes as NumPy's arrays, wherever the devices were on which they lay when they were saved.
STEP = re.compile(r"(?:.*_)?(\d+)")
"""The name of a step of `CheckpointManager`, perhaps with its prefix, or of `flax.training.checkpoints`."""


def read_foreign(
    source: PyTree, function: str, ignored: Callable[[str], bool], top: Collection[str]
) -> tuple[PyTree, str]:
    """Return the tree in a path, in msgpack's bytes, or given as it is, and how an error names the source.

    `ignored` items are not read, and `top` holds the names at the first level of the tree that is needed.
    """
    if isinstance(source, (bytes, bytearray)):
        return _msgpack(bytes(source), "the bytes", function), "the bytes"
    if not isinstance(source, (str, os.PathLike)):
        return source, "source"
    path = Path(os.path.abspath(os.fspath(source)))
    if path.is_file():
        return _msgpack(path.read_bytes(), str(path), function), str(path)
    if not path.is_dir():
        raise CheckpointError(f"{function}: {path} does not exist.")
    return _folder(path, function, ignored, top)


def _folder(
    path: Path, function: str, ignored: Callable[[str], bool], top: Collection[str]
) -> tuple[PyTree, str]:
    if (path / TREE).exists():
        return _orbax_tree(path), str(path)
    is_step = (path / STEP_METADATA).exists()
    numbers = {} if is_step else {child: STEP.fullmatch(child.name) for child in path.iterdir()}
    steps = [(int(number[1]), child) for child, number in numbers.items() if number]
    newest = max(steps)[1] if steps else path
    if any((folder / MANIFEST).exists() and (folder / ARRAYS).exists() for folder in (path, newest)):
        raise CheckpointError(f"{function}: {path} is jaxpar.Checkpointer's; its `restore` reads it.")
    if newest is not path:
        return read_foreign(newest, function, ignored, top)
    items = [child for child in sorted(path.iterdir()) if child.is_dir() and not ignored(child.name)]
    if is_step or any((child / TREE).exists() for child in items):
        tree = {child.name: _item(child, function) for child in items}
        # An only item may have a name of orbax's: "default", "pytree" or "state", by version and interface.
        only = tree[items[0].name] if len(items) == 1 and items[0].name not in top else tree
        return only, str(path)
    files = ", ".join(sorted(child.name for child in path.iterdir())[:5]) or "nothing"
    raise CheckpointError(
        f"{function}: {path} is neither a checkpoint of orbax nor of flax.training.checkpoints; it holds "
        f"{files}. Give the folder that orbax's `save` was given, or a step of its CheckpointManager."
    )


def _item(path: Path, function: str) -> PyTree:
    if (path / TREE).exists():
        return _orbax_tree(path)
    if (path / JSON_ITEM).is_file():
        return json.loads((path / JSON_ITEM).read_text())
    raise CheckpointError(
        f"{function}: {path} is neither a tree nor JSON, but an item of another kind, such as a data "
        f"iterator; leave it out with ignore=[{path.name!r}]."
    )


def _orbax_tree(path: Path) -> PyTree:
    import orbax.checkpoint as ocp

    from .writing import quiet

    # The handler, because orbax's Checkpointer has barriers, which a rank alone would not pass.
    handler = ocp.PyTreeCheckpointHandler()

    def host_array(entry: Any) -> Any:
        # Only arrays: a number or a text has no type to be restored as.
        is_array = type(entry).__name__ == "ArrayMetadata"
        return ocp.RestoreArgs(restore_type=np.ndarray if is_array else None)

    with quiet():
        metadata: Any = handler.metadata(path)
        restore_args = jax.tree.map(host_array, getattr(metadata, "tree", metadata))
        return handler.restore(path, args=ocp.args.PyTreeRestore(restore_args=restore_args))


def _msgpack(data: bytes, where: str, function: str) -> PyTree:
    import msgpack
    from flax import serialization

    try:
        return serialization.msgpack_restore(data)
    except (msgpack.exceptions.UnpackException, ValueError) as error:
        raise CheckpointError(
            f"{function}: {where} cannot be read as Flax's msgpack ({type(error).__name__}: {error}). Files "
            "of torch are read by jaxpar.parity.load_checkpoint."
        ) from None
