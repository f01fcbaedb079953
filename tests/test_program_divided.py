"""`jaxpar.program` on layers that are divided over an axis: proofs agree with one device's gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpar
from benchmarks.program.drawn_divided import Divided, divided, draw, refuted

PLAN = dict.fromkeys("enab", "mean") | {
    "mesh": (4, 2),
    "entry": "summed backward",
    "exit": "summed forward",
    "norm": "",
    "kept": "",
    "turns": 1,
    "no path past": False,
}

CHANGES = [
    # what changes in the plan, the verdict, and the arrays that the numbers refute
    ({}, "right", ""),
    ({"norm": "norm", "kept": "data"}, "right", ""),
    ({"kept": "data, shifted", "e": "nothing"}, "right", ""),
    ({"a": "scattered", "b": "slices of the mean", "turns": 2}, "right", ""),
    ({"e": "mean over both", "n": "mean, then over model", "mesh": (2, 4)}, "right", ""),
    ({"a": "over both"}, "wrong", "a"),
    ({"b": "over model"}, "wrong", "b"),
    ({"n": "nothing"}, "wrong", "n"),
    ({"entry": "nothing"}, "wrong", "en"),
    ({"norm": "norm of slices"}, "wrong", "aben"),
    ({"a": "slices by index"}, "not proven", "a"),
    ({"b": "slices shifted"}, "not proven", "b"),
    ({"n": "slices shifted", "mesh": (2, 4)}, "not proven", "n"),
]
DRAWN = range(2000, 2021)
"""Seeds on which nothing was developed. `python benchmarks/program/run.py` has others."""


def judged(step: Divided) -> tuple[jaxpar.ProgramReport, set[str]]:
    """Return the report, and the names of the arrays that are proven."""
    report = jaxpar.program(step.run, *step.arguments)
    proven = {leaf.path.split("'")[1] for leaf in report.leaves if leaf.state and leaf.verdict == "right"}
    return report, proven


@pytest.mark.parametrize("change", CHANGES, ids=lambda x: "_".join(map(str, x[0].values())) or "none")
def test_a_verdict_agrees_with_one_device(change):
    changed, verdict, wrong = change
    with jax.enable_x64(True):
        step = divided({**PLAN, **changed})
        report, proven = judged(step)
        reasons = refuted(step, set("aben"))
    assert report.verdict == verdict, str(report)
    assert {reason[0] for reason in reasons} == set(wrong)
    assert not proven & set(wrong)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("seed", DRAWN)
def test_a_proof_of_a_drawn_step_is_not_refuted(seed):
    with jax.enable_x64(True):
        step = draw(seed)
        report, proven = judged(step)
        assert refuted(step, proven) == [], f"{step.plan}\n{report}"


@pytest.mark.parametrize(("leave", "verdict"), [("summed forward", "right"), ("nothing", "not proven")])
def test_a_sum_that_is_left_out_of_all_layers_shows_beside_one_device(leave, verdict):
    plan = {**PLAN, "exit": leave, "no path past": True}
    step, one = divided(plan), divided({**plan, "mesh": (1, 1)})
    report = jaxpar.program(step.run, *step.arguments)
    assert report.verdict == "right"  # it is right, of a model for each slice
    report = jaxpar.program(step.run, *step.arguments, alone=(one.run, (one.arguments[0], step.arguments[1])))
    assert report.verdict == verdict, str(report)
    assert ("otherwise than on one device" in str(report)) == (leave == "nothing")


# ------------------------------------------------------------------------- slices that devices pass on


def around(shift=0, swap=False):
    """Return a step that scatters a gradient, and whose slices go around and are put in their places."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    links = [(i, (i + 1) % 4) for i in range(4)]

    def body(w, x):
        part = lax.psum_scatter(jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), "data", tiled=True)
        index, total = lax.axis_index("data"), jnp.zeros_like(w)
        for turn in range(4):
            at = (index - turn + shift) % 4 * len(part)
            total = lax.dynamic_update_slice_in_dim(total, part, at, 0)
            part = lax.ppermute(part, "data", links)
        if swap:
            total = lax.ppermute(total, "model", [(0, 1), (1, 0)])
        return w - 0.1 * total

    specs = P(None, "model"), P("data")
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)
    sizes = ((8, 4), specs[0]), ((16, 8), specs[1])
    shapes = [jax.ShapeDtypeStruct(x, "float32", sharding=NamedSharding(mesh, spec)) for x, spec in sizes]
    return jax.jit(mapped), *shapes


@pytest.mark.parametrize(
    ("changes", "verdict"), [({}, "right"), ({"shift": 1}, "not proven"), ({"swap": True}, "not proven")]
)
def test_slices_that_go_around_come_to_their_places(changes, verdict):
    assert jaxpar.program(*around(**changes)).verdict == verdict
