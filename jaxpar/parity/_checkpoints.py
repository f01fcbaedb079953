"""Load and save the checkpoints of a torch training script: weights and optimizer state.

Such scripts write a dict, `{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}`.
The optimizer's state uses the links of the weights, because a moment has the layout of its parameter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
import numpy.typing as npt
from flax import nnx

import jaxpar

from .._typing import PyTree
from ..errors import FileError, MatchError
from ._files import read_weights, written
from ._weights import Links, links_of, load_torch, to_torch
from ._weights.mapping import Entries

Path: TypeAlias = "str | os.PathLike[str]"
KEYS = ("model", "optimizer")
PREFIX = "module."


def load_checkpoint(
    path: Path,
    net: nnx.Module,
    optimizer: nnx.Optimizer | None = None,
    *,
    mapping: Entries | None = None,
    ignore_torch: Iterable[str] = (),
    ignore_flax: Iterable[str] = (),
    names: Sequence[str] | None = None,
    step: int | None = None,
    lossy: bool = False,
    keys: tuple[str, str] = KEYS,
) -> dict[str, Any]:
    """Continue a torch run: load its weights into `net` and its optimizer's state into `optimizer`.

    Args:
      path: a file written by `torch.save`; reading it runs no code from the file.
      net: an NNX module, possibly wrapped in DataParallel or DistributedDataParallel; updated in place.
      optimizer: an optimizer over all parameters whose `tx` is the `jaxpar.optim` counterpart of the torch
        optimizer, with the same options; updated in place. The file's hyperparameters are ignored.
      mapping, ignore_torch, ignore_flax: as in `load_torch`.
      names: torch's parameter names in the order in which its optimizer received them. Defaults to the
        file's "param_names", or else to the order of the weights, as in `model.parameters()`.
      step: the number of steps taken, which torch.optim.SGD does not record.
      lossy: allows weights to change when they are converted to a leaf's dtype.
      keys: the file's keys for the two state_dicts.

    Returns:
      The file's other entries, such as the epoch.

    Raises:
      FileError, MatchError, ValueError: the file is unusable, or its weights or optimizer do not fit. Nothing
        has changed then.

    torch counterpart: `torch.load` and two calls of `load_state_dict`.

    >>> import os, tempfile
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "linear.pt")
    ...     parity.save_checkpoint(path, net, extra={"epoch": 3})
    ...     parity.load_checkpoint(path, nnx.Linear(2, 3, rngs=nnx.Rngs(1)))
    {'epoch': 3}
    """
    file = read_weights(path)
    wrapped, net = net, _bare(net)
    model = _entry(file, keys[0], path)
    options = _options(mapping, ignore_torch, ignore_flax)
    state, step_count = None, 0
    if optimizer is not None:
        optimizer_state = _entry(file, keys[1], path)
        weight_links = links_of(net, model, **options, function="load_checkpoint")
        state = jaxpar.optim.state_from_torch(
            optimizer.tx,
            _parameters(optimizer, wrapped, net),
            optimizer_state,
            _layout(weight_links),
            names=_names(weight_links, model, optimizer_state, names),
            step=step,
        )
        # torch counts steps per parameter, and skips those without a gradient: the run's is the largest.
        step_count = max(
            (int(entry["step"]) for entry in optimizer_state["state"].values() if "step" in entry), default=0
        )
    # After `state_from_torch`, which changes nothing: if it raises, the net still has its own weights.
    load_torch(net, model, lossy=lossy, **options)
    if optimizer is not None:
        nnx.update(optimizer.opt_state, nnx.state(state, graph=True))
        optimizer.step[...] = np.asarray(step or step_count, optimizer.step.dtype)
    return {key: value for key, value in file.items() if key not in keys}


def save_checkpoint(
    path: Path,
    net: nnx.Module,
    optimizer: nnx.Optimizer | None = None,
    *,
    like: Path | Mapping[str, Any] | None = None,
    module_prefix: bool = False,
    mapping: Entries | None = None,
    ignore_torch: Iterable[str] = (),
    ignore_flax: Iterable[str] = (),
    names: Sequence[str] | None = None,
    keys: tuple[str, str] = KEYS,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint that a torch script can resume from. The file appears only once it is complete.

    Args:
      path: a path ending in `.pt`, `.pth` or `.bin`.
      net, optimizer, mapping, ignore_torch, ignore_flax, names, keys: as in `load_checkpoint`.
      like: a checkpoint of the torch script (a path or its contents). Supplies the names and their order, and
        the optimizer's "param_groups", which torch needs to resume. Required with `optimizer`.
      module_prefix: prefixes every name with `module.`, for a script that loads into the wrapper.
      extra: additional entries, such as the epoch: numbers, strings, and containers of these.

    Raises:
      MatchError, ValueError, FileError: `like` does not fit, or cannot be read.
      OSError: the file cannot be written; an existing file is left unchanged.

    torch counterpart: `torch.save({"model": ..., "optimizer": ...}, path)`.

    >>> import os, tempfile, torch
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "linear.pt")
    ...     parity.save_checkpoint(path, nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    ...     sorted(torch.load(path)["model"])
    ['bias', 'weight']
    """
    import torch

    if optimizer is not None and like is None:
        raise ValueError(
            "save_checkpoint: torch's optimizer needs its hyperparameters from the file, and they are not in "
            "the state here. Pass like=, a checkpoint of the torch script or {'model': model.state_dict(), "
            "'optimizer': optimizer.state_dict()}."
        )
    template = like if like is None or isinstance(like, Mapping) else read_weights(like)
    template_path = "like" if isinstance(like, Mapping) or like is None else like
    model = None if template is None else _entry(template, keys[0], template_path)
    net = _bare(net)
    options = _options(mapping, ignore_torch, ignore_flax)
    tensors = to_torch(net, like=model, **options)
    prefix = PREFIX * module_prefix
    # The prefix is removed first, because the names in `like` have it already if its model was wrapped.
    content: dict[str, Any] = {keys[0]: {prefix + n.removeprefix(PREFIX): x for n, x in tensors.items()}}
    if optimizer is not None:
        optimizer_state = _entry(template or {}, keys[1], template_path)
        weight_links = links_of(net, tensors, **options, function="save_checkpoint")
        content[keys[1]] = jaxpar.optim.state_to_torch(
            nnx.as_pure(optimizer.opt_state),
            optimizer_state,
            _layout(weight_links),
            names=_names(weight_links, tensors, optimizer_state, names),
            tensor=torch.from_numpy,
        )
    with written(os.fspath(path)) as temporary:
        torch.save(content | dict(extra or {}), temporary)


def _options(
    mapping: Entries | None, ignore_torch: Iterable[str], ignore_flax: Iterable[str]
) -> dict[str, Any]:
    # As tuples: iterators would be exhausted after the weights, and the optimizer's state reads them again.
    return {"mapping": mapping, "ignore_torch": tuple(ignore_torch), "ignore_flax": tuple(ignore_flax)}


def _bare(net: Any) -> nnx.Module:
    while isinstance(net, (jaxpar.DataParallel, jaxpar.DistributedDataParallel)):
        net = net.module
    if not isinstance(net, nnx.Module):
        raise TypeError(
            f"{type(net).__name__} is no NNX module. For Linen, use load_torch and "
            "jaxpar.optim.state_from_torch, which work on variables."
        )
    return net


def _parameters(optimizer: nnx.Optimizer, *nets: nnx.Module) -> PyTree:
    """Return the parameters with the tree structure that the optimizer was built for."""
    # That is the bare net's or its wrapper's structure; only the optimizer's state shows which.
    for net in nets:
        parameters = nnx.as_pure(nnx.state(net, optimizer.wrt, graph=True))
        # Abstractly: a second set of moments might not fit on the device.
        fresh: Any = jax.tree.structure(jax.eval_shape(optimizer.tx.init, parameters))
        if fresh == jax.tree.structure(nnx.as_pure(optimizer.opt_state)):
            return parameters
    raise ValueError("load_checkpoint: the optimizer was not made for the parameters of this net.")


def _entry(file: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    if not isinstance(file.get(key), Mapping):
        keys = ", ".join(map(str, list(file)[:8]))
        raise FileError(f"{os.fspath(path)}: there is no state_dict called {key!r} in it; it has {keys}.")
    return file[key]


def _names(
    links: Links, model: Mapping[str, Any], optimizer_state: Mapping[str, Any], names: Sequence[str] | None
) -> list[str] | None:
    groups = optimizer_state["param_groups"]
    recorded_names = [called for group in groups for called in group.get("param_names", ())]
    count = sum(len(group["params"]) for group in groups)
    full_names: dict[str, str] = {}
    for part in links.parts:
        if all(links.leaves[leaf].parameter for leaf in part.flax):
            full_names |= {_without(name): name for name in part.torch}
    if names is not None or recorded_names:
        return [
            full_names.get(_without(name), name) for name in (names if names is not None else recorded_names)
        ]
    # An optimizer's state_dict numbers parameters in the order in which it received them, without names.
    ordered = [name for name in model if full_names.get(_without(name)) == name]
    if len(groups) > 1:
        raise ValueError(
            f"the torch optimizer has {len(groups)} groups, and the file does not say which parameter is in "
            "which; pass names=, in the order in which the groups got them."
        )
    if len(ordered) != count:
        raise ValueError(
            f"the torch optimizer has {count} parameters and the model {len(ordered)}; pass names=, in the "
            "order in which it got them."
        )
    return ordered


def _without(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "module")


def _layout(links: Links) -> Callable[[str], jaxpar.optim.TorchParam]:
    """Return a function from a leaf's path to its torch parameter and the conversions in both directions."""
    parts_by_leaf = {}
    for part in links.parts:
        for i, leaf in enumerate(part.flax):
            parts_by_leaf[_without(leaf)] = (part, i)

    def layout(path: str) -> jaxpar.optim.TorchParam:
        leaf = _without(path.replace("/", "."))
        if leaf not in parts_by_leaf:
            raise ValueError(f"the optimizer has a state for {leaf}, which is no parameter of the model.")
        part, i = parts_by_leaf[leaf]
        if len(part.torch) > 1:
            raise MatchError(
                f"{leaf} is made of {', '.join(part.torch)}: torch's optimizer has a state for each of them, "
                "which one leaf cannot hold. jaxpar.nn has layers with torch's own parameters."
            )
        shapes = [links.leaves[other].shape for other in part.flax]

        def to_flax(array: np.ndarray) -> np.ndarray:
            return part.forth([array])[i]

        def to_torch(array: npt.ArrayLike) -> np.ndarray:
            array = np.asarray(array)
            # Flax may split one torch parameter into several leaves. Only one leaf's state is available, so
            # the other leaves are zeros.
            leaf_values = [np.zeros(shape, array.dtype) for shape in shapes]
            leaf_values[i] = array
            return part.back(leaf_values)[0]

        return jaxpar.optim.TorchParam(part.torch[0], to_flax, to_torch)

    return layout
