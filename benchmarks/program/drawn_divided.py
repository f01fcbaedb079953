"""Random training steps whose layers are divided over an axis, and what running them shows of a verdict.

The network is a residual block: `e` and `n` are on all devices, `a` is divided by columns and `b` by rows
over the axis "model". A seed draws how the block enters and leaves the axis, how each gradient crosses the
devices, where its slices are kept, and by which norm they are clipped.

The truth is one device's gradient, once through the block and once past it. An update that is proven must be
a sum of both with two positive factors, since factors are not proven, and equal where the sharding says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, HIDDEN, ROWS = 8, 16, 3
MESHES = ((4, 2), (2, 4))
TOLERANCE = 1e-9
SPECS = {"e": P(), "n": P(), "a": P(None, "model"), "b": P("model", None)}


@dataclasses.dataclass
class Divided:
    """`run(w, x)` is the step; `terms(w, x)` are the parts of each gradient on one device."""

    run: Callable[..., Any]
    terms: Callable[..., dict[str, list[np.ndarray]]]
    arguments: tuple[Any, Any]
    plan: dict[str, Any]


# --------------------------------------------------------------------------------- how the block is entered


@jax.custom_vjp
def _enter(x: Any) -> Any:
    return x


_enter.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "model"),))


@jax.custom_vjp
def _leave(x: Any) -> Any:
    return lax.psum(x, "model")


_leave.defvjp(lambda x: (lax.psum(x, "model"), None), lambda _, g: (g,))

ENTRIES: dict[str, Callable[[Any], Any]] = {
    "summed backward": _enter,
    "nothing": lambda x: x,
    "summed over data": lambda x: x + 0 * lax.pmean(x, "data"),
}
EXITS: dict[str, Callable[[Any], Any]] = {
    "summed forward": _leave,
    "summed both ways": lambda x: lax.psum(x, "model"),
    "nothing": lambda x: x,
}

# ----------------------------------------------------------------------------------- how a gradient crosses


def _scattered(g: Any, axis: str, shift: int = 0) -> Any:
    """Sum slices over an axis and collect them again, each `shift` places on."""
    part = lax.psum_scatter(g, axis, tiled=True)
    count = lax.axis_size(axis)
    if shift:
        part = lax.ppermute(part, axis, [(i, (i + shift) % count) for i in range(count)])
    return lax.all_gather(part, axis, tiled=True)


def _by_index(g: Any, axis: str) -> Any:
    """Take a device's slice of its own gradient, and collect the slices."""
    count = lax.axis_size(axis)
    part = lax.dynamic_slice_in_dim(g, lax.axis_index(axis) * (len(g) // count), len(g) // count)
    return lax.all_gather(part, axis, tiled=True)


CROSSINGS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda g: lax.pmean(g, "data"),
    "total": lambda g: lax.psum(g, "data"),
    "scattered": lambda g: _scattered(g, "data"),
    "over both": lambda g: lax.psum(g, ("data", "model")),
    "mean over both": lambda g: lax.pmean(g, ("data", "model")),
    "mean, then over model": lambda g: lax.pmean(lax.pmean(g, "data"), "model"),
    "over model": lambda g: lax.psum(g, "model"),
    "nothing": lambda g: g,
    "scattered over model": lambda g: _scattered(lax.pmean(g, "data"), "model"),
    "slices by index": lambda g: _by_index(g, "data"),
    "slices of the mean": lambda g: _by_index(lax.pmean(g, "data"), "data"),
    "slices shifted": lambda g: _scattered(g, "data", 1),
}
RIGHT = {"block": ("mean", "total", "scattered", "slices of the mean")}
RIGHT["all"] = (*RIGHT["block"], "mean over both", "mean, then over model")


def _norm(g: dict[str, Any], over: tuple[str, ...], kept: str) -> Any:
    """Return the norm of all gradients, with the squares of the arrays in `over` added over the axis."""
    squares = {k: jnp.sum(v**2) for k, v in g.items()}
    if kept and over:
        squares["e"] = lax.psum(squares["e"], "data")
    return jnp.sqrt(sum(lax.psum(v, "model") if k in over else v for k, v in squares.items()))


NORMS: dict[str, tuple[str, ...]] = {
    "norm": ("a", "b"),
    "norm of slices": (),
    "norm of one": ("a",),
    "norm of all": ("a", "b", "e", "n"),
}


# ------------------------------------------------------------------------------------------------- the step


def _loss(plan: dict[str, Any], w: Any, x: Any, entry: Any, leave: Any, past: Any, through: Any) -> Any:
    """Return the loss; `past` and `through` may stop the gradient of one of the two paths."""
    hidden = x @ w["e"]
    block = jnp.tanh(leave(jnp.tanh(entry(through(hidden) * w["n"]) @ w["a"]) @ w["b"]))
    return jnp.mean((block if plan["no path past"] else past(hidden) + block) ** 2)


def draw(seed: int) -> Divided:
    return divided(drawn_plan(seed), seed)


def drawn_plan(seed: int) -> dict[str, Any]:
    r = np.random.default_rng(seed)
    mesh = MESHES[r.integers(len(MESHES))]

    def pick(table: dict[str, Any], right: tuple[str, ...], share: float) -> str:
        return str(r.choice(right if r.random() < share else tuple(table)))

    return {
        "mesh": mesh,
        "entry": pick(ENTRIES, ("summed backward",), 0.7),
        "exit": pick(EXITS, ("summed forward",), 0.7),
        **{k: pick(CROSSINGS, RIGHT["all"], 0.8) for k in ("e", "n")},
        **{k: pick(CROSSINGS, RIGHT["block"], 0.8) for k in ("a", "b")},
        "norm": str(r.choice(["", "", "norm", "norm", *NORMS])),
        "kept": str(r.choice(["", "", "data", "data, shifted"], p=[0.4, 0.3, 0.2, 0.1])),
        "turns": int(r.choice([1, 1, 2])),
        "no path past": bool(r.random() < 0.2),
    }


def divided(plan: dict[str, Any], seed: int = 0) -> Divided:
    """Return the step of a plan, with numbers from a seed."""
    sizes = plan["mesh"]
    mesh = Mesh(np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes), ("data", "model"))
    specs = {**SPECS, "e": P("data")} if plan["kept"] else SPECS
    values = np.random.default_rng(seed + 1_000_000)
    shapes = {"e": (WIDTH, WIDTH), "n": (WIDTH,), "a": (WIDTH, HIDDEN), "b": (HIDDEN, WIDTH)}
    w = {k: values.normal(size=s) / np.sqrt(s[0]) for k, s in shapes.items()}
    x = values.normal(size=(sizes[0] * ROWS * plan["turns"], WIDTH))
    body = jax.shard_map(
        lambda w, x: _step(plan, w, x),
        mesh=mesh,
        in_specs=(specs, P("data")),
        out_specs=specs,
        check_vma=False,
    )
    placed = {k: jax.device_put(v, NamedSharding(mesh, specs[k])) for k, v in w.items()}
    return Divided(jax.jit(body), lambda w, x: _terms(plan, w, x), (placed, x), plan)


def _step(plan: dict[str, Any], w: Any, x: Any) -> Any:
    entry, leave = ENTRIES[plan["entry"]], EXITS[plan["exit"]]

    def loss_fn(w: Any, rows: Any) -> Any:
        if plan["kept"]:  # the gradient of the slices is scattered as JAX transposes a gather
            e = lax.all_gather(w["e"], "data", tiled=True)
            w = {**w, "e": jnp.roll(e, WIDTH // 2, 0) if "shifted" in plan["kept"] else e}
        return _loss(plan, w, rows, entry, leave, lambda v: v, lambda v: v)

    g = jax.tree.map(jnp.zeros_like, w)
    for rows in x.reshape(plan["turns"], -1, WIDTH):
        g = jax.tree.map(jnp.add, g, jax.grad(loss_fn)(w, rows))
    g = {k: v if k == "e" and plan["kept"] else CROSSINGS[plan[k]](v) for k, v in g.items()}
    if plan["norm"]:
        norm = _norm(g, NORMS[plan["norm"]], plan["kept"])
        g = jax.tree.map(lambda v: v / (1 + norm), g)
    return jax.tree.map(lambda v, u: v - 0.1 * u, w, g)


def _terms(plan: dict[str, Any], w: Any, x: Any) -> dict[str, list[np.ndarray]]:
    """Return the gradient of each array on one device, through the block and past it."""

    def stopped(past: Any, through: Any) -> Any:
        def loss_fn(w: Any) -> Any:
            if "shifted" in plan["kept"]:
                w = {**w, "e": jnp.roll(w["e"], WIDTH // 2, 0)}
            # Slices of a layer that are never added are models of their own, and their losses are.
            cuts = plan["mesh"][1] if plan["exit"] == "nothing" else 1
            pairs = zip(jnp.split(w["a"], cuts, 1), jnp.split(w["b"], cuts, 0), strict=True)
            models = ({**w, "a": a, "b": b} for a, b in pairs)
            return sum(_loss(plan, v, x, lambda v: v, lambda v: v, past, through) for v in models)

        return jax.jit(jax.grad(loss_fn))(w)

    paths = [stopped(lax.stop_gradient, lambda v: v), stopped(lambda v: v, lax.stop_gradient)]
    return {k: [np.asarray(p[k]) for p in paths if np.abs(p[k]).max() > TOLERANCE] for k in w}


# ------------------------------------------------------------------------------------- what the numbers say


def refuted(drawn: Divided, right: set[str]) -> list[str]:
    """Run a step; return why the arrays in `right`, which are proven, are not."""
    w, x = drawn.arguments
    after = drawn.run(w, x)
    alone = {k: np.asarray(v) for k, v in w.items()}
    terms = drawn.terms(alone, x)
    reasons = []
    for name in sorted(right):
        if _pieces_differ(after[name]):
            reasons.append(f"{name}: devices differ")
            continue
        update = (alone[name] - np.asarray(after[name])).ravel() / 0.1
        columns = np.stack([term.ravel() for term in terms[name]], 1)
        factors, *_ = np.linalg.lstsq(columns, update)
        if np.abs(columns @ factors - update).max() > TOLERANCE * max(1.0, np.abs(update).max()):
            reasons.append(f"{name}: is no sum of the gradient's terms")
        elif (factors < TOLERANCE).any():
            reasons.append(f"{name}: a term does not count")
    return reasons


def _pieces_differ(array: Any) -> bool:
    """Return whether devices that hold the same part of an array by its sharding hold other numbers."""
    pieces: dict[str, np.ndarray] = {}
    for shard in array.addressable_shards:
        values = np.asarray(shard.data)
        first = pieces.setdefault(str(shard.index), values)
        if np.abs(values - first).max() > TOLERANCE * max(1.0, np.abs(first).max()):
            return True
    return False
