"""Programs of JAX, Flax, optax and orbax alone, that save and restore a training as their users do.

`python without_jaxpar.py first FOLDER` trains each program, saves it in every format after STEPS steps, and
trains on. `python without_jaxpar.py second FOLDER` goes on from what another program has saved in
`FOLDER/out`.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen, nnx, serialization
from flax.training import checkpoints
from flax.training.train_state import TrainState

STEPS, ROWS = 2, 8
TX = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(optax.cosine_decay_schedule(0.1, 20)))
WIDE = {"param_dtype": jnp.float64}


def batch(i):
    random = np.random.RandomState(i)
    return random.randn(ROWS, 3), random.randn(ROWS, 2)


def loss_fn(net, x, y):
    return ((net(x) - y) ** 2).mean()


class Net(nnx.Module):
    """With names that files and wrappers use, too, and statistics and random streams where `noisy`."""

    def __init__(self, seed, noisy):
        rngs = nnx.Rngs(seed)
        self.module = nnx.Linear(3, 4, rngs=rngs, **WIDE)
        self.blocks = nnx.List([nnx.Linear(4, 4, rngs=rngs, **WIDE), nnx.Linear(4, 2, rngs=rngs, **WIDE)])
        self.value = nnx.Param(jnp.ones(2, jnp.float64))
        self.tied = self.blocks[0]
        self.norm = nnx.BatchNorm(4, rngs=rngs, **WIDE) if noisy else nnx.identity
        if noisy:
            self.norm.mean = nnx.BatchStat(jnp.zeros(4))  # float32 in Flax's own
            self.norm.var = nnx.BatchStat(jnp.ones(4))
        self.drop = nnx.Dropout(0.5, rngs=rngs) if noisy else nnx.identity

    def __call__(self, x):
        x = self.drop(self.norm(jnp.tanh(self.module(x))))
        return self.blocks[1](self.tied(self.blocks[0](x))) + self.value[...]


class LinenNet(linen.Module):
    noisy: bool

    @linen.compact
    def __call__(self, x):
        x = jnp.tanh(linen.Dense(4, name="module", **WIDE)(x))
        if self.noisy:
            x = linen.BatchNorm(use_running_average=False, **WIDE)(x)
        kernel_init = linen.with_partitioning(linen.initializers.lecun_normal(), (None, None))
        return linen.Dense(2, kernel_init=kernel_init, **WIDE)(x)


class State(TrainState):
    batch_stats: Any
    key: Any


def function(params, x):
    return jnp.tanh(x @ params["layers"][0]) @ params["layers"][1] + params["module"]["bias"]


class NNXProgram:
    """`wrap` changes the module before its optimizer is made."""

    def __init__(self, noisy, seed, wrap=lambda net: net):
        self.net = wrap(Net(seed, noisy))
        self.optimizer = nnx.Optimizer(self.net, TX, wrt=nnx.Param)

    def train(self, first, n):
        for i in range(first, first + n):
            nnx_step(self.net, self.optimizer, *batch(i))

    def state(self):
        return {"net": nnx.state(self.net), "optimizer": nnx.state(self.optimizer)}

    def put(self, state):
        nnx.update(self.net, state["net"])
        nnx.update(self.optimizer, state["optimizer"])


@nnx.jit
def nnx_step(net, optimizer, x, y):
    optimizer.update(net, nnx.grad(loss_fn)(net, x, y))


class LinenProgram:
    def __init__(self, noisy, seed, wrap=lambda net: net):
        self.net = wrap(LinenNet(noisy))
        rngs = {"params": jax.random.key(seed), "dropout": jax.random.key(seed)}
        variables = self.net.init(rngs, batch(0)[0])
        self.state_ = State.create(
            apply_fn=self.net.apply,
            params=variables["params"],
            batch_stats=jax.tree.map(lambda x: x.astype("float64"), variables.get("batch_stats", {})),
            key=jax.random.PRNGKey(seed),
            tx=TX,
        )

    def train(self, first, n):
        for i in range(first, first + n):
            self.state_ = linen_step(self.state_, *batch(i))

    def state(self):
        return self.state_

    def put(self, state):
        self.state_ = state


@jax.jit
def linen_step(state, x, y):
    key = jax.random.fold_in(state.key, state.step)

    def loss(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        variables = {name: tree for name, tree in variables.items() if tree}
        return_value, updates = state.apply_fn(variables, x, rngs={"dropout": key}, mutable=["batch_stats"])
        return ((return_value - y) ** 2).mean(), updates

    gradients, updates = jax.grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradients, batch_stats=updates.get("batch_stats", {}))


class FunctionProgram:
    def __init__(self, noisy, seed, wrap=lambda net: net):
        del noisy
        random = np.random.RandomState(seed)
        layers = [jnp.asarray(random.randn(3, 4)), jnp.asarray(random.randn(4, 2))]
        params = {"layers": layers, "module": {"bias": jnp.zeros(2)}}
        self.net, self.pair = wrap(function), (params, TX.init(params))

    def train(self, first, n):
        for i in range(first, first + n):
            self.pair = function_step(self.net, *self.pair, *batch(i))

    def state(self):
        return self.pair

    def put(self, state):
        self.pair = state


def function_step(net, params, opt_state, x, y):
    def loss(params):
        return ((net(params, x) - y) ** 2).mean()

    updates, opt_state = jax.jit(TX.update)(jax.jit(jax.grad(loss))(params), opt_state, params)
    return optax.apply_updates(params, updates), opt_state


PROGRAMS = {
    "nnx": lambda *args: NNXProgram(False, *args),
    "noisy nnx": lambda *args: NNXProgram(True, *args),
    "linen": lambda *args: LinenProgram(False, *args),
    "noisy linen": lambda *args: LinenProgram(True, *args),
    "function": lambda *args: FunctionProgram(False, *args),
}


def key_data(tree):
    """Flax's msgpack and NumPy have no random keys."""
    return jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree
    )


def as_dicts(state):
    """Pure dicts, as `nnx.to_pure_dict` makes them, for formats without an `nnx.State`."""
    if isinstance(state, dict) and "optimizer" in state:
        return {name: key_data(nnx.to_pure_dict(part)) for name, part in state.items()}
    return state


def from_dicts(like, dicts):
    if not (isinstance(like, dict) and "optimizer" in like):
        return dicts
    for name, part in like.items():
        pairs = nnx.to_flat_state(part)
        values = jax.tree.leaves(dicts[name])
        new = []
        for (path, variable), value in zip(pairs, values, strict=True):
            if jnp.issubdtype(variable.get_raw_value().dtype, jax.dtypes.prng_key):
                value = jax.random.wrap_key_data(value)
            new.append((path, variable.copy(jnp.asarray(value))))
        like = {**like, name: nnx.from_flat_state(new)}
    return like


def save(saver, path, state):
    path.parent.mkdir(parents=True, exist_ok=True)
    if saver in ("standard", "pure"):
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, state if saver == "standard" else as_dicts(state))
    elif saver == "pytree":
        ocp.PyTreeCheckpointer().save(path, state)
    elif saver == "manager":
        with ocp.CheckpointManager(path) as manager:
            for step in (3, 10):
                manager.save(step, args=ocp.args.StandardSave(state if step == 10 else zeros(state)))
    elif saver == "items":
        parts = state if isinstance(state, dict) else {"state": state}
        items = {name: ocp.args.StandardSave(part) for name, part in parts.items()}
        with ocp.CheckpointManager(path) as manager:
            manager.save(7, args=ocp.args.Composite(**items, notes=ocp.args.JsonSave({"rate": 0.1})))
    elif saver == "bytes":
        path.write_bytes(serialization.to_bytes(as_dicts(state)))
    else:
        flax.config.update("flax_use_orbax_checkpointing", saver == "flax orbax")
        for step in (3, 10):
            tree = as_dicts(state if step == 10 else zeros(state))
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                checkpoints.save_checkpoint(str(path), tree, step, keep=2)


def restore(saver, path, like):
    if saver in ("standard", "pure"):
        with ocp.StandardCheckpointer() as checkpointer:
            if saver == "standard":
                return checkpointer.restore(path, like)
            return from_dicts(like, checkpointer.restore(path, as_dicts(like)))
    if saver == "pytree":
        restore_args = ocp.checkpoint_utils.construct_restore_args(like)
        return ocp.PyTreeCheckpointer().restore(path, item=like, restore_args=restore_args)
    if saver == "manager":
        with ocp.CheckpointManager(path) as manager:
            return manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(like))
    if saver == "items":
        parts = like if isinstance(like, dict) else {"state": like}
        items = {name: ocp.args.StandardRestore(part) for name, part in parts.items()}
        with ocp.CheckpointManager(path) as manager:
            parts = dict(manager.restore(7, args=ocp.args.Composite(**items)).items())
        return parts if isinstance(like, dict) else parts["state"]
    if saver == "bytes":
        return from_dicts(like, serialization.from_bytes(as_dicts(like), path.read_bytes()))
    return from_dicts(like, checkpoints.restore_checkpoint(str(path), as_dicts(like)))


def zeros(state):
    def zero(x):
        is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
        return x if is_key else jnp.zeros_like(x)

    return jax.tree.map(zero, state)


SAVERS = ("standard", "pure", "pytree", "manager", "items", "bytes", "flax file", "flax orbax")


def leaves(state):
    """Every leaf by its path, as a host array."""
    pairs = jax.tree.leaves_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(key_data(jnp.asarray(leaf))) for path, leaf in pairs}


def write(path, state):
    path.write_bytes(pickle.dumps(leaves(state)))


def first(folder):
    for name, make in PROGRAMS.items():
        program = make(0)
        program.train(0, STEPS)
        for saver in SAVERS:
            save(saver, folder / "in" / name / saver, program.state())
        write(folder / f"{name}.start", program.state())
        program.train(STEPS, STEPS)
        write(folder / f"{name}.middle", program.state())
        program.train(2 * STEPS, STEPS)
        write(folder / f"{name}.end", program.state())


def second(folder):
    for path in sorted((folder / "out").glob("*/*/*")):
        name, saver, _ = path.relative_to(folder / "out").parts
        program = PROGRAMS[name](1)
        program.put(restore(saver, path, program.state()))
        program.train(2 * STEPS, STEPS)
        write(path.parent / f"{path.name}.end", program.state())


if __name__ == "__main__":
    {"first": first, "second": second}[sys.argv[1]](Path(sys.argv[2]))
    assert "jaxpar" not in sys.modules
