"""Random training steps over devices, and what running them shows of a verdict.

A step is drawn by a seed: what is computed of the rows, how each gradient crosses the devices, what follows.
Running it on virtual devices can refute "right":

* devices that should hold equal numbers do not;
* an array changes when the parts of the batch change places, although sums over parts are symmetric;
* an array stays the same when the rows of one part are replaced, although every part has a term;
* a sum over the devices of the batch has one term on all of them, up to factors, and is not made a mean.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

WIDTH, ROWS = 4, 3
MESHES = ((8,), (4, 2), (2, 4))
TOLERANCE = 1e-9


@dataclasses.dataclass
class Drawn:
    """`run(w, x)` is the step over `mesh`; with `watched`, it also returns whether a sum has equal terms."""

    mesh: Mesh
    run: Callable[..., Any]
    watched: Callable[..., Any]
    arguments: tuple[Any, Any]
    text: str


class Crossing:
    """The ways in which a gradient can cross the devices, each under its name."""

    def __init__(self, mesh: Mesh, repeated: list[Any] | None) -> None:
        self.mesh, self.repeated = mesh, repeated
        self.parts = mesh.shape["data"]
        self.index = lax.axis_index("data")

    def _add(self, x: Any, groups: Any = None, axis: str = "data") -> Any:
        self._watch(x, groups, axis)
        return lax.psum(x, axis, axis_index_groups=groups)

    def _watch(self, x: Any, groups: Any = None, axis: str = "data") -> None:
        """Note whether the terms of a sum, zeros aside, are one array on several devices, up to a factor.

        The note is -1 if they are not, and otherwise a number that tells the factors.
        """
        if self.repeated is not None:
            terms = lax.stop_gradient(lax.all_gather(x, axis, axis_index_groups=groups).reshape(-1, x.size))
            largest = jnp.abs(terms).max(-1, keepdims=True)
            terms = terms / jnp.where(largest > 0, largest, 1)
            equal = (jnp.abs(terms[:, None] - terms[None]) < 1e-13).all(-1) & (largest > 0)
            factors = jnp.sum(largest[:, 0] * jnp.arange(1, len(terms) + 1)) / jnp.max(largest)
            self.repeated.append(jnp.where(equal.sum() > (largest > 0).sum(), factors, -1.0))

    def total(self, x: Any) -> Any:
        return self._add(x)

    def _over_model(self, x: Any) -> Any:
        return self._add(x, axis="model")

    def mean(self, x: Any) -> Any:
        return lax.pmean(x, "data")

    def nothing(self, x: Any) -> Any:
        return x

    def pairs(self, x: Any) -> Any:
        groups = np.arange(self.parts).reshape(-1, 2).tolist()
        return self._add(x, groups)

    def pairs_and_all(self, x: Any) -> Any:
        rows = np.arange(self.parts).reshape(-1, 2)
        return self._add(self.pairs(x), rows.T.tolist())

    def first(self, x: Any) -> Any:
        return self._add(jnp.where(self.index == 0, x, 0))

    def all_but_last(self, x: Any) -> Any:
        return self._add(jnp.where(self.index < self.parts - 1, x, 0))

    def weighted(self, x: Any) -> Any:
        return self._add(x * (1.0 + self.index))

    def largest(self, x: Any) -> Any:
        return lax.pmax(x, "data")

    def collected(self, x: Any) -> Any:
        return lax.all_gather(x, "data").mean(0)

    def collected_in_part(self, x: Any) -> Any:
        if self.parts > 2:  # of two parts one is taken, which is no sum
            self._watch(x)
        return lax.all_gather(x, "data")[1:].sum(0)

    def scattered(self, x: Any) -> Any:
        self._watch(x)
        flat = jnp.pad(x.reshape(-1), (0, -x.size % self.parts))
        part = lax.psum_scatter(flat, "data", tiled=True)
        return lax.all_gather(part, "data", tiled=True)[: x.size].reshape(x.shape)

    def ring(self, x: Any) -> Any:
        self._watch(x)
        added = x
        for _ in range(self.parts - 1):
            x = lax.ppermute(x, "data", self._links())
            added = added + x
        return added

    def ring_in_a_loop(self, x: Any) -> Any:
        return self._around(x, self.parts - 1)

    def ring_without_a_step(self, x: Any) -> Any:
        return self._around(x, self.parts - 2)

    def ring_with_a_step_more(self, x: Any) -> Any:
        return self._around(x, self.parts)

    def open_ring(self, x: Any) -> Any:
        return self._around(x, self.parts - 1, self.parts - 1)

    def _links(self, count: int | None = None, by: int = 1) -> list[tuple[int, int]]:
        return [(i, (i + by) % self.parts) for i in range(self.parts)][:count]

    def _around(self, x: Any, steps: int, links: int | None = None) -> Any:
        if steps:  # a ring of two parts without a step adds nothing
            self._watch(x)

        def turn(_: Any, state: Any) -> Any:
            passed = lax.ppermute(state[0], "data", self._links(links))
            return passed, state[1] + passed

        return lax.fori_loop(0, steps, turn, (x, x))[1]

    def _slices(self, x: Any) -> Any:
        return jnp.pad(x.reshape(-1), (0, -x.size % self.parts)).reshape(self.parts, -1)

    def _whole(self, part: Any, x: Any) -> Any:
        return lax.all_gather(part, "data").reshape(-1)[: x.size].reshape(x.shape)

    def exchanged(self, x: Any) -> Any:
        self._watch(x)
        return self._whole(lax.all_to_all(self._slices(x), "data", 0, 0).sum(0), x)

    def exchanged_in_part(self, x: Any) -> Any:
        return self._whole(lax.all_to_all(self._slices(x), "data", 0, 0)[1:].sum(0), x)

    def exchanged_in_another_order(self, x: Any) -> Any:
        part = lax.all_to_all(self._slices(x), "data", 0, 0).sum(0)
        return self._whole(lax.ppermute(part, "data", self._links()), x)

    def ring_of_slices(self, x: Any) -> Any:
        self._watch(x)
        return self._whole(self._slice_around(x, self.parts), x)

    def ring_of_slices_without_a_step(self, x: Any) -> Any:
        return self._whole(self._slice_around(x, self.parts - 1), x)

    def _slice_around(self, x: Any, steps: int) -> Any:
        slices = self._slices(x)

        def term(n: Any) -> Any:
            return lax.dynamic_index_in_dim(slices, (self.index - 1 - n) % self.parts, 0, keepdims=False)

        def turn(n: Any, added: Any) -> Any:
            return lax.ppermute(added, "data", self._links()) + term(n)

        return lax.fori_loop(1, steps, turn, term(0))

    def butterfly(self, x: Any) -> Any:
        self._watch(x)
        for bit in (n for n in (1, 2, 4) if n < self.parts):
            x = x + lax.ppermute(x, "data", [(i, i ^ bit) for i in range(self.parts)])
        return x

    def collected_one_by_one(self, x: Any) -> Any:
        every = lax.all_gather(x, "data", axis=x.ndim)
        return sum(every[..., i] for i in range(self.parts)) / self.parts

    def collected_with_weights(self, x: Any) -> Any:
        every = lax.all_gather(x, "data")
        return sum(every[i] * (1.0 + (i == 1)) for i in range(self.parts))

    def neighbour(self, x: Any) -> Any:
        return x + lax.ppermute(x, "data", self._links())

    def mean_of_totals(self, x: Any) -> Any:
        return self.mean(self.total(x))

    def total_of_means(self, x: Any) -> Any:
        return self.total(self.mean(x))

    def total_with_own(self, x: Any) -> Any:
        return self.total(self.mean(x) + x)

    def function_of_pairs(self, x: Any) -> Any:
        rows = np.arange(self.parts).reshape(-1, 2)
        return self._add(jnp.tanh(self.pairs(x)), rows.T.tolist())


RIGHT_WAYS = ("mean", "total", "pairs_and_all", "scattered", "mean_of_totals")
RIGHT_BY_HAND = (
    *("collected", "collected_one_by_one", "exchanged", "ring", "ring_in_a_loop", "ring_of_slices"),
    "butterfly",
)
WAYS = tuple(n for n in vars(Crossing) if not n.startswith("_"))


def draw(seed: int) -> Drawn:
    r = np.random.default_rng(seed)
    sizes = MESHES[r.integers(len(MESHES))]
    mesh = Mesh(
        np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes), ("data", "model")[: len(sizes)]
    )

    def way() -> str:
        kind = r.random()
        return str(r.choice(RIGHT_WAYS if kind < 0.35 else RIGHT_BY_HAND if kind < 0.65 else WAYS))

    plan = {
        "a": way(),
        "b": way(),
        # The largest has no derivative in JAX.
        "statistics": str(r.choice(["", "mean", "nothing", way().replace("largest", "first")])),
        "after": str(r.choice(["", "norm", "tanh", "finite", "branch"])),
        "update": str(r.choice(["", "", "", "mean", way()])),
        "turns": int(r.choice([1, 1, 2])),
        "in the loop": bool(r.random() < 0.3),
        "model": str(r.choice(["", "", "mean", "sum"])) if len(sizes) > 1 else "",
        "one vector": bool(r.random() < 0.3),
        "noise": bool(r.random() < 0.15),
    }
    values = np.random.default_rng(seed + 1_000_000)
    w = {"a": values.normal(size=(WIDTH, WIDTH)), "b": values.normal(size=WIDTH)}
    x = values.normal(size=(mesh.shape["data"] * ROWS * plan["turns"], WIDTH))

    def mapped(watch: bool) -> Callable[..., Any]:
        def body(w: Any, x: Any) -> Any:
            repeated: list[Any] | None = [] if watch else None
            result = _step(plan, Crossing(mesh, repeated), w, x, watch)
            return (result, jnp.stack([jnp.array(-1.0), *(repeated or [])])) if watch else result

        out = (P(), P()) if watch else P()
        run = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=out, check_vma=False)
        return jax.jit(run)

    return Drawn(mesh, mapped(False), mapped(True), (w, x), str(plan))


def _step(plan: dict[str, Any], cross: Crossing, w: Any, x: Any, watch: bool) -> Any:
    def loss_fn(w: Any, x: Any) -> Any:
        hidden = x @ w["a"]
        if plan["statistics"]:
            hidden = hidden - getattr(cross, plan["statistics"])(hidden.mean(0))
        return jnp.mean((jnp.tanh(hidden) * w["b"]) ** 2 + 0.1 * hidden)

    def crossed(g: Any) -> Any:
        if plan["one vector"]:
            vector = getattr(cross, plan["a"])(jnp.concatenate([g["a"].reshape(-1), g["b"]]))
            g = {"a": vector[: g["a"].size].reshape(g["a"].shape), "b": vector[g["a"].size :]}
        else:
            g = {k: getattr(cross, plan[k])(v) for k, v in g.items()}
        if plan["model"]:
            over = (
                cross._over_model
                if plan["model"] == "sum"
                else functools.partial(lax.pmean, axis_name="model")
            )
            g = jax.tree.map(over, g)
        return g

    def turn(g: Any, rows: Any) -> tuple[Any, None]:
        new = jax.grad(loss_fn)(w, rows)
        return jax.tree.map(jnp.add, g, crossed(new) if plan["in the loop"] else new), None

    g = jax.tree.map(jnp.zeros_like, w)
    cut = x.reshape(plan["turns"], -1, WIDTH)
    if plan["turns"] == 1 or watch:
        for rows in cut:
            g, _ = turn(g, rows)
    else:
        g, _ = lax.scan(turn, g, cut)
    g = _after(plan["after"], g if plan["in the loop"] else crossed(g), w)
    if plan["noise"]:
        g = {**g, "b": g["b"] + 0.01 * cross.index}
    if plan["update"]:
        g = jax.tree.map(getattr(cross, plan["update"]), g)
    return jax.tree.map(lambda a, b: a - 0.1 * b, w, g)


def _after(how: str, g: Any, w: Any) -> Any:
    if how == "norm":
        return jax.tree.map(lambda v: v / (1 + jnp.sqrt(sum(jnp.sum(u**2) for u in jax.tree.leaves(g)))), g)
    if how == "tanh":
        return jax.tree.map(jnp.tanh, g)
    if how == "finite":
        fine = jnp.all(jnp.stack([jnp.isfinite(v).all() for v in jax.tree.leaves(g)]))
        return jax.tree.map(lambda v: jnp.where(fine, v, 0), g)
    if how == "branch":
        return lax.cond(w["b"].sum() > 0, lambda g: g, lambda g: jax.tree.map(lambda v: 2 * v, g), g)
    return g


# --------------------------------------------------------------------------------------- what the numbers say


def refuted(drawn: Drawn, right: set[str]) -> list[str]:
    """Run a step; return why the leaves in `right`, of which all is proven, are not."""
    w, x = drawn.arguments
    parts = drawn.mesh.shape["data"]
    blocks = x.reshape(parts, -1, *x.shape[1:])
    before, repeated = drawn.watched(w, x)
    moved = drawn.run(w, np.roll(blocks, 1, 0)[::-1].reshape(x.shape))
    reasons = []
    for name in sorted(right):
        pieces = [np.asarray(s.data) for s in before[name].addressable_shards]
        if any(_far(p, pieces[0]) for p in pieces):
            reasons.append(f"{name}: devices differ")
        if _far(np.asarray(moved[name]), pieces[0]):
            reasons.append(f"{name}: parts are not treated alike")
    for part in range(parts):
        other = blocks.copy()
        other[part] = np.random.default_rng(part).normal(size=blocks[part].shape)
        changed = drawn.run(w, other.reshape(x.shape))
        for name in sorted(right):
            if not _far(np.asarray(changed[name]), np.asarray(before[name]), 1e-14):
                reasons.append(f"{name}: part {part} does not count")
    _, again = drawn.watched(w, np.random.default_rng(0).normal(size=x.shape))
    # Factors that change with the rows make other terms; those that do not make a sum of equal ones.
    alike = (np.asarray(repeated) >= 0) & (np.abs(np.asarray(repeated) - np.asarray(again)) < TOLERANCE)
    if len(right) == len(w) and alike.any():
        reasons.append("a sum has equal terms")
    return reasons


def _far(a: np.ndarray, b: np.ndarray, tolerance: float = TOLERANCE) -> bool:
    return bool(np.max(np.abs(a - b)) > tolerance * max(1.0, float(np.max(np.abs(b)))))
