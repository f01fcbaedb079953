"""Optimizer state from torch's `optimizer.state_dict()` and back, so that a run can change sides.

Torch numbers the parameters of an optimizer and keeps a dict for each: `{"state": {0: {"step": ...,
"exp_avg": ...}, ...}, "param_groups": [...]}`. Here a state is a tree with one stage for each part of
the optimizer and, in the stages that have moments, a tree like the parameters. The `layout` maps a leaf's
path (`layers/0/kernel`) to a torch parameter's name (`layers.0.weight`) and changes the layout of the
array. Nothing is matched by shape or by order, which would confuse parameters of equal shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .._typing import PyTree
from ._adafactor import AdafactorState
from ._adagrad import AdagradState
from ._adam import AdamaxState, AdamState, NAdamState, RAdamState
from ._asgd import ASGDState
from ._lbfgs import LBFGSState
from ._leafwise import RateState
from ._muon import MuonState
from ._paths import leaf_path
from ._rprop import RpropState
from ._sgd import MomentumState

OURS = (
    AdafactorState,
    AdagradState,
    AdamState,
    AdamaxState,
    ASGDState,
    MomentumState,
    MuonState,
    NAdamState,
    RAdamState,
    RateState,
    RpropState,
)
KEYS: dict[type, dict[str, str]] = {
    **{kind: {field: field for field in kind._fields} for kind in OURS},
    optax.TraceState: {"trace": "momentum_buffer"},
    optax.ScaleByRmsState: {"nu": "square_avg"},
    optax.ScaleByRStdDevState: {"mu": "grad_avg", "nu": "square_avg"},
    optax.ScaleByAdaDeltaState: {"e_g": "square_avg", "e_x": "acc_delta"},
}
"""A stage's fields and torch's keys for them. Our own states have torch's names, optax's have not."""

SCALARS = {"step", "mu_product", "eta", "mu"}
"""Torch keeps one of these for each parameter, all equal; here there is one for all."""

STEPLESS = {"momentum_buffer"}
"""What torch.optim.SGD keeps, which does not count its steps."""


class TorchParam(NamedTuple):
    """A leaf's counterpart in torch.

    `name`: of the parameter. `to_flax(array)`: from torch's layout to the leaf's; `to_torch`: the way
    back. Without them the layouts are equal. They must only move elements, since they are applied
    to squares of gradients as well.

    Several leaves may share a parameter (three kernels that are one `in_proj_weight`). Then each
    `to_flax` cuts out its part, and each `to_torch` returns the whole, zero outside of its part; these are
    added.
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
    """The state with which `tx` continues where a torch optimizer stopped.

    Args:
      tx: made by jaxpar.optim with the options of the torch optimizer; also in `optax.chain`,
        `param_groups` or `optax.inject_hyperparams`.
      params: as for `tx.init`.
      state_dict: `optimizer.state_dict()`; its values are tensors or numpy arrays.
      layout: for each leaf its `TorchParam`, or just its name: a mapping from paths such as
        "layers/0/kernel", or a function of them. Without it "layers/0/kernel" is "layers.0.kernel".
      names: of torch's parameters, in the order in which the optimizer got them: `[n for n, _ in
        module.named_parameters()]`. Without it the state_dict's own "param_names", or else "0", "1", ...
      step: the number of steps taken; needed only for torch.optim.SGD, which does not keep it.

    Returns:
      A tree like `tx.init(params)`. Counters called `count` in other stages are set to the step as well.

    Raises:
      ValueError: a leaf finds no state of its shape, or torch has state that no leaf takes; parameters
        that are not all at the same step; SGD without `step`.

    torch counterpart: `optimizer.load_state_dict`.
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
    """A state as torch's `state_dict`, for `optimizer.load_state_dict`.

    Args:
      state: of an optimizer of this package; of an `nnx.Optimizer`, `nnx.as_pure(optimizer.opt_state)`.
      like: the `state_dict()` of the torch optimizer that will continue, fresh or not; its
        "param_groups" (hyperparameters and order) are returned as they are.
      layout, names: as in `state_from_torch`.
      tensor: makes a tensor of a numpy array, which it may keep: `torch.from_numpy`.

    Raises:
      ValueError: a leaf has no counterpart in `like`, or a parameter of `like` got no state.

    torch counterpart: `optimizer.state_dict`.
    """
    ids = {called: i for i, called in _ids_and_names(like, names)}
    found: dict[str, dict[str, Any]] = {called: {} for called in ids}
    steps: set[int] = set()
    unknown = []
    for stage in _stages(state, "state_to_torch"):
        if "step" in stage._fields:
            steps.add(int(stage.step))
        for path, key, value in _moments(stage):
            param = _torch_param(layout, path)
            if param.name not in found:
                unknown.append(f"{path} (torch name {param.name})")
                continue
            if param.to_flax is not None and param.to_torch is None:
                raise ValueError(f"state_to_torch: the layout of {path} has a to_flax and no to_torch.")
            array = _own_array(param.to_torch(value) if param.to_torch else value)
            # Several leaves may be parts of one parameter, each zero outside of its own.
            entry = found[param.name]
            entry[key] = entry[key] + array if key in entry else array
            # Torch counts steps in float32, whatever the parameters are.
            for scalar in SCALARS & set(KEYS[type(stage)].values()):
                entry[scalar] = np.array(getattr(stage, scalar), np.float32 if scalar == "step" else None)
    if steps == {0}:  # torch creates its state at the first step
        found = {called: {} for called in ids}
    keys = set().union(*found.values())
    # With parameter groups, those of SGD without momentum have no state and are not missing any.
    empty = [] if keys <= STEPLESS | {"step"} else [called for called, entry in found.items() if not entry]
    if unknown or empty:
        raise ValueError(
            f"state_to_torch: without a counterpart: leaves {unknown}, torch parameters {empty}; see "
            "`layout` and `names`."
        )
    # SGD has no step in its state, all other optimizers have.
    for entry in found.values():
        if set(entry) <= STEPLESS | {"step"}:
            entry.pop("step", None)
        elif "step" not in entry:
            entry["step"] = np.array(max(steps, default=0), np.float32)
    return {
        "state": {
            ids[called]: {key: tensor(np.array(value)) for key, value in entry.items()}
            for called, entry in found.items()
            if entry
        },
        "param_groups": [dict(group) for group in like["param_groups"]],
    }


class _StateReader:
    """Fills the stages with torch's entries, and knows at the end what was missing and what was left."""

    def __init__(self, entries: Mapping[str, Mapping[str, np.ndarray]], layout: Layout, step: int):
        self.entries, self.layout, self.step = entries, layout, step
        self.used: set[tuple[str, str]] = set()
        self.missing: list[str] = []

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
        # What is missing is collected, not raised, so that the error can name all of it.
        new = {}
        for field, key in KEYS[type(stage)].items():
            value = getattr(stage, field)
            if key in SCALARS:
                new[field] = self._scalar(stage, key, value)
            else:
                new[field] = jax.tree_util.tree_map_with_path(
                    lambda path, old, key=key: self._moment(leaf_path(path), key, old), value
                )
        return stage._replace(**new)

    def _moment(self, path: str, key: str, old: jax.Array) -> jax.Array:
        param = _torch_param(self.layout, path)
        if key not in self.entries.get(param.name, {}):
            self.missing.append(f"{path} needs {key} of {param.name}")
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

    def _scalar(self, stage: Any, key: str, old: jax.Array) -> jax.Array:
        if key == "step":
            return jnp.full_like(old, self.step)
        params = {_torch_param(self.layout, path).name for path, _, _ in _moments(stage)}
        found = {
            param: self.entries[param][key] for param in sorted(params) if key in self.entries.get(param, {})
        }
        self.used |= {(param, key) for param in found}
        # torch has one number for each parameter, this state one for all of them: they must agree.
        values = {float(value) for value in found.values()}
        if len(values) > 1:
            raise ValueError(f"state_from_torch: {key} differs between parameters: {found}.")
        return jnp.full_like(old, values.pop()) if values else old

    def check(self) -> None:
        left = [
            f"{key} of {called}"
            for called, entry in self.entries.items()
            for key in entry
            if key != "step" and (called, key) not in self.used
        ]
        if self.missing or left:
            raise ValueError(
                f"state_from_torch: not found: {self.missing}; not used: {left}. The options must be those "
                "of the torch optimizer, and the names must meet; see `layout` and `names`."
            )


def _is_stage(node: Any) -> bool:
    return type(node) in KEYS


def _stages(state: PyTree, function: str) -> list[Any]:
    known = jax.tree.leaves(state, is_leaf=lambda node: _is_stage(node) or isinstance(node, LBFGSState))
    if any(isinstance(node, LBFGSState) for node in known):
        raise NotImplementedError(
            f"{function}: the history of lbfgs is one flat vector over all parameters in their order, which "
            "differs from torch's; begin with an empty one, it fills within history_size iterations."
        )
    stages = [node for node in known if _is_stage(node)]
    if not stages:
        raise ValueError(f"{function}: there is no state of an optimizer of jaxpar.optim in {type(state)}.")
    return stages


def _moments(stage: Any) -> Iterator[tuple[str, str, Any]]:
    """(path of the leaf, torch's key, value) for everything in a stage that is like the parameters."""
    for field, key in KEYS[type(stage)].items():
        if key not in SCALARS:
            for path, value in jax.tree_util.tree_leaves_with_path(getattr(stage, field)):
                yield leaf_path(path), key, value


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
    own = [called for group in groups for called in group.get("param_names", ())]
    called = list(names) if names is not None else own or [str(i) for i in numbers]
    if len(called) != len(numbers) or len(set(called)) != len(called):
        raise ValueError(f"{len(numbers)} torch parameters and the names {called}: not one for each.")
    return list(zip(numbers, called, strict=True))


def _read(state_dict: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, dict[str, np.ndarray]]:
    """By name, without what torch keeps as None (a momentum buffer before its first step)."""
    return {
        called: {
            key: _array(value) for key, value in state_dict["state"].get(i, {}).items() if value is not None
        }
        for i, called in _ids_and_names(state_dict, names)
    }


def _array(value: Any) -> np.ndarray:
    """A numpy array of a tensor, without importing torch. numpy lacks bfloat16; float32 holds it exactly.

    A copy: JAX may use a numpy array's memory as it is, and torch updates its state in place.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    return np.array(value)


def _own_array(value: Any) -> np.ndarray:
    """A fresh numpy array. torch.from_numpy refuses bfloat16, and loading casts to the parameter's type."""
    array = np.array(value)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _common_step(entries: Mapping[str, Mapping[str, np.ndarray]], given: int | None) -> int:
    # torch counts for each parameter, and one that had no gradient in some step lags behind.
    steps = {called: int(entry["step"]) for called, entry in entries.items() if "step" in entry}
    if len(set(steps.values())) > 1:
        raise ValueError(f"state_from_torch: the parameters are not at the same step: {steps}.")
    if steps:
        (step,) = set(steps.values())
        if given is not None and given != step:
            raise ValueError(f"state_from_torch: step={given}, and the state_dict says {step}.")
        return step
    if given is None and any(entries.values()):
        raise ValueError("state_from_torch: torch.optim.SGD does not keep its number of steps; pass step=.")
    return given or 0
