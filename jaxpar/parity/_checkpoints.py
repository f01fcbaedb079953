"""Checkpoints of a torch training script: weights and optimizer, here and back.

Such scripts write a dict, `{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}`,
with `module.` before every name where the model was wrapped in DataParallel or DistributedDataParallel. The
weights go through `load_torch` and `to_torch`, and the optimizer's state through the same links, because a
moment lies as its parameter does.
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
from ._files import read_weights
from ._files.path import written
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
    """Continues a torch run: its weights into `net`, its optimizer's state into `optimizer`.

    Args:
      path: what `torch.save` wrote; read without running any code in it.
      net: an NNX module, also in DataParallel or the like; updated in place.
      optimizer: with a `tx` of `jaxpar.optim` that has the options of the torch optimizer, for all
        parameters; updated in place. The file's hyperparameters are not taken.
      mapping, ignore_torch, ignore_flax: as in `load_torch`.
      names: torch's parameters in the order in which its optimizer got them. Without it the file's own
        "param_names", or else the order of the weights, which is right for `model.parameters()`.
      step: the number of steps taken, which torch.optim.SGD does not keep.
      lossy: allows weights to change when they are converted to a leaf's element type.
      keys: where the two state_dicts are in the file.

    Returns:
      The rest of the file: the epoch and the like.

    Raises:
      FileError: no such file, damaged, or without such entries. MatchError: the weights do not fit.
      ValueError: the optimizer's state does not fit. Nothing has changed then.

    torch counterpart: `torch.load` and two calls of `load_state_dict`.
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
        step_count = max(
            (int(entry["step"]) for entry in optimizer_state["state"].values() if "step" in entry), default=0
        )
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
    """Writes a file that a torch script goes on from; it appears when it is complete.

    Args:
      path: ending in `.pt`, `.pth` or `.bin`.
      net, optimizer, mapping, ignore_torch, ignore_flax, names, keys: as in `load_checkpoint`.
      like: a checkpoint of the torch script, read or not: its names and their order, and the optimizer's
        "param_groups", without which torch cannot go on. Needed with `optimizer`.
      module_prefix: puts `module.` before every name, for a script that loads into the wrapper.
      extra: further entries, such as the epoch: numbers, texts, and containers of these.

    Raises:
      MatchError: the names of `like` are not the model's. ValueError: the optimizer's state does not fit.
      FileError: `like` cannot be read. OSError: the file cannot be written; what was there still is.

    torch counterpart: `torch.save({"model": ..., "optimizer": ...}, path)`.
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
    # Tuples, because they are read twice: for the weights, and for the optimizer's state.
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
    """The parameters as the optimizer got them: of the net, or of its wrapper."""
    for net in nets:
        parameters = nnx.as_pure(nnx.state(net, optimizer.wrt, graph=True))
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
    """The parameters' names in the optimizer's order, as they are in the weights."""
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
    """For the path of a parameter: its torch parameter, and the way there and back."""
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
            # Flax may hold a torch parameter in several leaves; the state of one is known here.
            leaf_values = [np.zeros(shape, array.dtype) for shape in shapes]
            leaf_values[i] = array
            return part.back(leaf_values)[0]

        return jaxpar.optim.TorchParam(part.torch[0], to_flax, to_torch)

    return layout
