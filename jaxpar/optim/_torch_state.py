"""Optimizer state from torch's `optimizer.state_dict()` and back, so that a run can change sides.

torch has a dict for each parameter; here each stage of the optimizer has trees like the parameters. Nothing
is matched by shape or by order, which would confuse parameters of equal shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .._typing import REPLICA, PyTree
from ._adafactor import AdafactorState
from ._adagrad import AdagradState
from ._adam import AdamaxState, AdamState, NAdamState, RAdamState
from ._asgd import ASGDState
from ._lbfgs import LBFGSState
from ._leafwise import RateState, leaf_path
from ._rprop import RpropState
from ._sgd import MomentumState

SHARED = {"step", "mu_product", "eta", "mu"}
"""Torch stores one of these numbers for each parameter, all equal; a stage has one for all parameters."""

STEPLESS = {"momentum_buffer"}
"""The state of torch.optim.SGD, which does not count its steps."""


class Slot(NamedTuple):
    """A field of a stage and torch's key. `shared`: one number for all parameters, else a tree like them."""

    field: str
    key: str
    shared: bool = False


SLOTS: dict[type, tuple[Slot, ...]] = {
    **{
        kind: tuple(Slot(field, field, field in SHARED) for field in kind._fields)
        for kind in (
            AdafactorState,
            AdagradState,
            AdamState,
            AdamaxState,
            ASGDState,
            MomentumState,
            NAdamState,
            RAdamState,
            RateState,
            RpropState,
        )
    },
    optax.TraceState: (Slot("trace", "momentum_buffer"),),
    optax.ScaleByRmsState: (Slot("nu", "square_avg"),),
    optax.ScaleByRStdDevState: (Slot("mu", "grad_avg"), Slot("nu", "square_avg")),
    optax.ScaleByAdaDeltaState: (Slot("e_g", "square_avg"), Slot("e_x", "acc_delta")),
}
"""What each kind of stage shares with torch's state. Both directions go through this table."""


class TorchParam(NamedTuple):
    """The torch parameter that a leaf corresponds to.

    `to_flax(array)` converts from torch's layout to the leaf's and `to_torch` back; without them the layouts
    are equal. They must only move elements, since they are applied to squares of gradients as well.

    Several leaves may share a parameter (three kernels that are one `in_proj_weight`). Then each `to_flax`
    cuts out its part, and each `to_torch` returns an array that is zero outside of its part; these are added.

    >>> from jaxpar import optim
    >>> optim.TorchParam("fc.weight", lambda w: w.T, lambda w: w.T).name
    'fc.weight'
    """

    name: str
    to_flax: Callable[[np.ndarray], np.ndarray] | None = None
    to_torch: Callable[[np.ndarray], np.ndarray] | None = None


Layout: TypeAlias = "Mapping[str, str | TorchParam] | Callable[[str], str | TorchParam] | None"


def state_from_torch(
    tx: optax.GradientTransformation,
    params: PyTree,
    state_dict: Mapping[str, Any],
    layout: Layout = None,
    *,
    names: Sequence[str] | None = None,
    step: int | None = None,
) -> PyTree:
    """Return the state with which `tx` continues a torch optimizer's run: `load_state_dict` in torch.

    Args:
      tx: made by jaxpar.optim with the options of the torch optimizer; also in `optax.chain`, `param_groups`
        or `optax.inject_hyperparams`. Counters called `count` in other stages are set to the step as well.
      params: as for `tx.init`.
      state_dict: `optimizer.state_dict()`; its values are tensors or numpy arrays.
      layout: for each leaf its `TorchParam`, or just its name: a mapping from paths such as
        "layers/0/kernel", or a function of them. Without it "layers/0/kernel" is "layers.0.kernel".
      names: of torch's parameters, as in `module.named_parameters()`, in the order in which the optimizer got
        them. Without it the state_dict's own "param_names", or else "0", "1", ...
      step: the number of steps taken; needed only for torch.optim.SGD, which does not keep it.

    Raises: ValueError: a leaf without a state of its shape, torch's state without a leaf, parameters that are
      not all at the same step, SGD without `step`.
    """
    fresh = tx.init(params)
    _stages(fresh, "state_from_torch")
    entries = _read(state_dict, names)
    reader = _StateReader(entries, layout, _common_step(entries, step))
    filled = jax.tree.map(reader.fill, fresh, is_leaf=_is_stage)
    reader.check()

    # optax's own stages, such as scale_by_schedule, count as well, and torch has no state for them.
    def count(path, leaf):
        last = path[-1] if path else None
        counts = isinstance(last, jax.tree_util.GetAttrKey) and last.name == "count"
        return jnp.full_like(leaf, reader.step) if counts else leaf

    return jax.tree_util.tree_map_with_path(count, filled)


def state_to_torch(
    state: PyTree,
    like: Mapping[str, Any],
    layout: Layout = None,
    *,
    names: Sequence[str] | None = None,
    tensor: Callable[[np.ndarray], Any] = np.asarray,
) -> dict[str, Any]:
    """Return a state as torch's `optimizer.state_dict()`, for `optimizer.load_state_dict`.

    Args:
      state: of an optimizer of this package; of an `nnx.Optimizer`, `nnx.as_pure(optimizer.opt_state)`.
      like: the `state_dict()` of the torch optimizer that will continue, whose "param_groups" are returned.
      layout, names: as in `state_from_torch`.
      tensor: makes a tensor of a numpy array, which it may keep: `torch.from_numpy`.

    Raises: ValueError: a leaf has no counterpart in `like`, a parameter of `like` got no state, or replicas
      divide the state between them.
    """
    ids = {name: i for i, name in _ids_and_names(like, names)}
    stages = _stages(state, "state_to_torch")
    steps = {int(stage.step) for stage in stages if "step" in stage._fields}
    entries: dict[str, dict[str, np.ndarray]] = {name: {} for name in ids}
    unknown = []
    for stage in stages:
        shared = {slot.key: _number(stage, slot) for slot in SLOTS[type(stage)] if slot.shared}
        for path, key, value in _moments(stage):
            param = _torch_param(layout, path)
            if param.name not in entries:
                unknown.append(f"{path} (torch name {param.name})")
                continue
            if param.to_flax is not None and param.to_torch is None:
                raise ValueError(f"state_to_torch: the layout of {path} has a to_flax and no to_torch.")
            _check_whole(path, value)
            array = _own_array(param.to_torch(value) if param.to_torch else value)
            # Several leaves may be parts of one parameter, each zero outside of its own.
            entry = entries[param.name]
            entry[key] = entry[key] + array if key in entry else array
            entry.update(shared)
    if steps == {0}:  # torch creates its state at the first step
        entries = {name: {} for name in ids}
    _complete(entries, steps, unknown)
    return {
        "state": {
            ids[name]: {key: tensor(np.array(value)) for key, value in entry.items()}
            for name, entry in entries.items()
            if entry
        },
        "param_groups": [dict(group) for group in like["param_groups"]],
    }


def _check_whole(path: str, value: Any) -> None:
    axes = jax.tree.leaves(tuple(getattr(getattr(value, "sharding", None), "spec", ())))
    if REPLICA in axes:
        raise ValueError(
            f"state_to_torch: {path} is divided between the replicas (shard_optimizer=True), as pieces of "
            f"shape {list(value.shape)}. Pass whole arrays: jaxpar.unwrapped_state(optimizer, net)."
        )


def _complete(entries: dict[str, dict[str, np.ndarray]], steps: set[int], unknown: list[str]) -> None:
    keys = set().union(*entries.values())
    # In parameter groups, SGD without momentum has no state, and its parameters lack none.
    empty = [] if keys <= STEPLESS | {"step"} else [name for name, entry in entries.items() if not entry]
    if unknown or empty:
        raise ValueError(
            f"state_to_torch: without a counterpart: leaves {unknown}, torch parameters {empty}; see "
            "`layout` and `names`."
        )
    # All of torch's optimizers but SGD store their step.
    for entry in entries.values():
        if set(entry) <= STEPLESS | {"step"}:
            entry.pop("step", None)
        elif "step" not in entry:
            entry["step"] = np.array(max(steps, default=0), np.float32)


def _number(stage: Any, slot: Slot) -> np.ndarray:
    # Torch counts steps in float32, whatever the parameters are.
    return np.array(getattr(stage, slot.field), np.float32 if slot.key == "step" else None)


class _StateReader:
    def __init__(self, entries: Mapping[str, Mapping[str, np.ndarray]], layout: Layout, step: int):
        self.entries, self.layout, self.step = entries, layout, step
        self.used: set[tuple[str, str]] = set()
        self.absent: list[str] = []

    def fill(self, stage: Any) -> Any:
        if not _is_stage(stage):
            return stage
        # Before the first step, and for plain SGD, torch has nothing but possibly the number of steps.
        if not any(self.entries.values()):
            return (
                stage._replace(step=jnp.full_like(stage.step, self.step))
                if "step" in stage._fields
                else stage
            )
        # Absent entries are collected, not raised, so that the error can name them all.
        return stage._replace(**{slot.field: self._value(stage, slot) for slot in SLOTS[type(stage)]})

    def _value(self, stage: Any, slot: Slot) -> Any:
        value = getattr(stage, slot.field)
        if slot.shared:
            return self._shared(stage, slot.key, value)
        return jax.tree_util.tree_map_with_path(
            lambda path, old: self._moment(leaf_path(path), slot.key, old), value
        )

    def _moment(self, path: str, key: str, old: jax.Array) -> jax.Array:
        param = _torch_param(self.layout, path)
        if key not in self.entries.get(param.name, {}):
            self.absent.append(f"{path} needs {key} of {param.name}")
            return old
        self.used.add((param.name, key))
        value = self.entries[param.name][key]
        value = param.to_flax(value) if param.to_flax else value
        if np.shape(value) != old.shape:
            raise ValueError(
                f"state_from_torch: {path} has shape {old.shape} and {key} of {param.name} "
                f"{np.shape(value)}; see `layout`."
            )
        return jnp.asarray(value, old.dtype)

    def _shared(self, stage: Any, key: str, old: jax.Array) -> jax.Array:
        if key == "step":
            return jnp.full_like(old, self.step)
        # torch has one number per parameter, so read it from the parameters of this stage only.
        params = {_torch_param(self.layout, path).name for path, _, _ in _moments(stage)}
        numbers = {
            param: self.entries[param][key] for param in sorted(params) if key in self.entries.get(param, {})
        }
        self.used |= {(param, key) for param in numbers}
        # torch has one number for each parameter, this state one for all of them: they must agree.
        values = {float(value) for value in numbers.values()}
        if len(values) > 1:
            raise ValueError(f"state_from_torch: {key} differs between parameters: {numbers}.")
        return jnp.full_like(old, values.pop()) if values else old

    def check(self) -> None:
        unused = [
            f"{key} of {name}"
            for name, entry in self.entries.items()
            for key in entry
            if key != "step" and (name, key) not in self.used
        ]
        if self.absent or unused:
            raise ValueError(
                f"state_from_torch: not found: {self.absent}; not used: {unused}. The options must be those "
                "of the torch optimizer, and the names must meet; see `layout` and `names`."
            )


def _is_stage(node: Any) -> bool:
    return type(node) in SLOTS


def _stages(state: PyTree, function: str) -> list[Any]:
    nodes = jax.tree.leaves(state, is_leaf=lambda node: _is_stage(node) or isinstance(node, LBFGSState))
    if any(isinstance(node, LBFGSState) for node in nodes):
        raise NotImplementedError(
            f"{function}: the history of lbfgs is one flat vector over all parameters in their order, which "
            "differs from torch's; begin with an empty one, it fills within history_size iterations."
        )
    stages = [node for node in nodes if _is_stage(node)]
    if not stages:
        raise ValueError(f"{function}: there is no state of an optimizer of jaxpar.optim in {type(state)}.")
    return stages


def _moments(stage: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield (leaf's path, torch's key, value) for the trees of a stage that are like the parameters."""
    for slot in SLOTS[type(stage)]:
        if not slot.shared:
            for path, value in jax.tree_util.tree_leaves_with_path(getattr(stage, slot.field)):
                yield leaf_path(path), slot.key, value


def _torch_param(layout: Layout, path: str) -> TorchParam:
    if layout is None:
        return TorchParam(path.replace("/", "."))
    if callable(layout):
        param = layout(path)
    elif path in layout:
        param = layout[path]
    else:
        raise ValueError(f"the layout has no entry for {path}; it has {sorted(layout)}.")
    return TorchParam(param) if isinstance(param, str) else param


def _ids_and_names(state_dict: Mapping[str, Any], names: Sequence[str] | None) -> list[tuple[Any, str]]:
    groups = state_dict["param_groups"]
    numbers = [i for group in groups for i in group["params"]]
    stored = [name for group in groups for name in group.get("param_names", ())]
    called = list(names) if names is not None else stored or [str(i) for i in numbers]
    if len(called) != len(numbers) or len(set(called)) != len(called):
        raise ValueError(f"{len(numbers)} torch parameters and the names {called}: not one for each.")
    return list(zip(numbers, called, strict=True))


def _read(state_dict: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, dict[str, np.ndarray]]:
    """Return torch's entries by name, without None (a momentum buffer before its first step)."""
    return {
        called: {
            key: _array(value) for key, value in state_dict["state"].get(i, {}).items() if value is not None
        }
        for i, called in _ids_and_names(state_dict, names)
    }


def _array(value: Any) -> np.ndarray:
    """Convert a tensor to numpy without importing torch; numpy lacks bfloat16."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    # Copy, because JAX may alias a numpy array's memory, and torch updates its state in place.
    return np.array(value)


def _own_array(value: Any) -> np.ndarray:
    """Copy to numpy. torch.from_numpy refuses bfloat16, and loading casts to the parameter's type."""
    array = np.array(value)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _common_step(entries: Mapping[str, Mapping[str, np.ndarray]], expected: int | None) -> int:
    # torch counts steps per parameter; a parameter without a gradient in some step lags.
    steps = {called: int(entry["step"]) for called, entry in entries.items() if "step" in entry}
    if len(set(steps.values())) > 1:
        raise ValueError(f"state_from_torch: the parameters are not at the same step: {steps}.")
    if steps:
        (step,) = set(steps.values())
        if expected is not None and expected != step:
            raise ValueError(f"state_from_torch: step={expected}, and the state_dict says {step}.")
        return step
    if expected is None and any(entries.values()):
        raise ValueError("state_from_torch: torch.optim.SGD does not keep its number of steps; pass step=.")
    return expected or 0
