"""step_state: save and restore the state of a training step that is not in its net or optimizer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._tree import is_key
from ..distributed import all_gather
from ..errors import CheckpointError
from .compiled_step import ReplicaState
from .engine import Engine
from .training_arrays import TrainingArrays
from .world import World

WHERE = "TrainStep.load_state_dict"


def saved(engine: Engine, arrays: TrainingArrays) -> dict[str, Any]:
    replica_state, world = engine.state.replica_state or ReplicaState(), engine.world
    state = {
        "step": {name: np.asarray(x) for name, x in world.local_shared(arrays.extra).items()},
        "gradients": [_gathered(x, world) for x in replica_state.gradients],
        "hook": [_gathered(x, world) for x in jax.tree.leaves(replica_state.hook)],
    }
    losses = [_gathered(x, world) for x in jax.tree.leaves(replica_state.losses)]
    if losses:
        state["losses"] = losses
    if arrays.hook is not None:
        state["on_update"] = {name: _on_host(x) for name, x in arrays.hook_values().items()}
    return state


def counts(state: dict[str, Any], accumulate: int) -> tuple[int, int]:
    """Return calls and updates. Raises CheckpointError where they belong to a different accumulation."""
    absent = {"calls", "updates", "step", "gradients", "hook"} - set(state)
    if absent:
        raise CheckpointError(
            f"{WHERE}: the state has no {', '.join(sorted(absent))}; give what state_dict() returned."
        )
    calls, updates = int(state["calls"]), int(state["updates"])
    if calls // accumulate != updates or bool(calls % accumulate) != bool(state["gradients"]):
        raise CheckpointError(
            f"{WHERE}: {updates} updates in {calls} calls is not the state of a step with "
            f"accumulate={accumulate}. Make the step with the accumulate that it was saved with."
        )
    return calls, updates


def restore(engine: Engine, arrays: TrainingArrays, state: dict[str, Any]) -> None:
    """Put a saved state back. After a CheckpointError nothing has changed."""
    current, stored = set(arrays.extra), set(state["step"])
    if current != stored:
        raise CheckpointError(
            f"{WHERE}: the step was saved with {_listed(stored)} and keeps {_listed(current)}. Give "
            "train_step the precision and the on_nonfinite that it had."
        )
    values, _ = arrays.take()
    trained = engine.world.local_shared([values[i] for i in arrays.parameters])
    replica_state = engine.work.replica_state_like(trained, bool(state["gradients"]))
    expected, form = jax.tree.flatten(replica_state)
    stored_arrays = [*state["gradients"], *state["hook"], *state.get("losses", ())]
    _check(expected, stored_arrays)
    hook_values = state.get("on_update", {})
    _check_hook(arrays.hook_values(), hook_values)
    # All checks come first, so that a state that does not fit leaves everything as it was.
    arrays.reset({name: jnp.asarray(x) for name, x in state["step"].items()})
    engine.state.replace(jax.tree.unflatten(form, list(map(_placed, expected, stored_arrays))))
    arrays.put_hook_values(hook_values)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing of its own"


def _check(expected: list, stored_arrays: list) -> None:
    current = [f"{x.dtype}{list(x.shape)}" for x in expected]
    stored = [f"{x.dtype}{list(np.shape(x))}" for x in stored_arrays]
    if current == stored:
        return
    i = next((i for i, both in enumerate(zip(current, stored, strict=False)) if both[0] != both[1]), None)
    what = f"{len(stored)} arrays, and {len(current)}" if i is None else f"{stored[i]}, and {current[i]}"
    raise CheckpointError(
        f"{WHERE}: the gradients and the hook's state were saved as {what} would fit: another module, hook "
        "or number of replicas. Resume with those that it was saved with, or at the end of an accumulation."
    )


def _check_hook(current: dict[str, Any], stored: dict[str, Any]) -> None:
    shapes, saved = ({name: np.shape(x) for name, x in values.items()} for values in (current, stored))
    differing = sorted(name for name in {*shapes, *saved} if shapes.get(name) != saved.get(name))
    if differing:
        name = differing[0]
        raise CheckpointError(
            f"{WHERE}: {name} of on_update has shape {shapes.get(name)} and was saved with {saved.get(name)} "
            "(None: it is not there). Give train_step the on_update that it had."
        )


def _on_host(x: jax.Array) -> Any:
    return x if is_key(x) else np.asarray(x)


def _gathered(x: jax.Array, world: World) -> Any:
    """Return every replica's part, on the host: [N, ...] if it is spread over them."""
    pieces = [x] if world.size == 1 else all_gather(world.local_stacked(x), world.group)
    assert pieces is not None, "a world is of its members"
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # the host has no such type
        return jnp.concatenate(pieces) if len(pieces) > 1 else pieces[0]
    return np.concatenate(pieces) if len(pieces) > 1 else np.asarray(pieces[0])


def _placed(like: Any, x: Any) -> jax.Array:
    """Each device takes its own part, so that nothing is sent between processes."""
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: x[index])
