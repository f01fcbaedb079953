"""`jaxpar.program`: state of each device's own, slices that devices put together, random numbers for rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxpar
from jaxpar._tools.program import followed

DEVICES = 8


def mesh(*sizes: int, names: tuple[str, ...] = ("data",)) -> Mesh:
    return Mesh(np.array(jax.devices()[:DEVICES]).reshape(sizes or (DEVICES,)), names)


def loss(w, x):
    return (jnp.tanh(x @ w) ** 2).mean()


def report(step, arguments, in_specs, out_specs, on=None, **options):
    run = jax.shard_map(step, mesh=on or mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jaxpar.program(run, *arguments, **options)


def kinds(judged: jaxpar.ProgramReport) -> list[str]:
    return sorted({f.kind for f in judged.findings})


W, X = jnp.ones((6, 4), jnp.float32), jnp.ones((64, 6), jnp.float32)

# ----------------------------------------------------------------------------------- a device's own state


def error_feedback(w, left, x, reduces=True):
    """The largest quarter of a gradient is sent, and each device keeps what it did not send."""
    g = jax.grad(loss)(w, x) + left[0]
    least = lax.top_k(jnp.abs(g).reshape(-1), g.size // 4)[0][-1]
    sent = jnp.where(jnp.abs(g) >= least, g, 0)
    return w - 0.1 * (lax.pmean(sent, "data") if reduces else sent), (g - sent)[None]


def local_sgd(w, turn, x):
    """Each device trains weights of its own, whose mean is taken in every fourth step."""
    w = lax.cond(turn % 4 == 0, lambda v: lax.pmean(v, "data"), lambda v: v, w[0])
    return (w - 0.1 * jax.grad(loss)(w, x))[None], turn + 1


OWN = jnp.zeros((DEVICES, 6, 4), jnp.float32)


def test_what_is_made_of_a_devices_own_state_is_reduced():
    specs = (P(), P("data"), P("data"))
    judged = report(error_feedback, (W, OWN, X), specs, specs[:2], local=r"args\[1\]")
    assert judged.verdict == "right", str(judged)


def test_a_missing_reduction_of_a_devices_own_state_is_named():
    specs = (P(), P("data"), P("data"))
    judged = report(
        lambda *args: error_feedback(*args, reduces=False),
        (W, OWN, X),
        specs,
        specs[:2],
        local=r"args\[1\]",
    )
    assert [f.leaves for f in judged.findings if f.kind == "missing"] == [("args[0]",)]


def test_state_that_is_not_declared_a_devices_own_is_not_right():
    specs = (P(), P("data"), P("data"))
    assert report(error_feedback, (W, OWN, X), specs, specs[:2]).verdict == "wrong"


def test_weights_of_each_device_may_be_averaged_now_and_then():
    specs = (P("data"), P(), P("data"))
    arguments = OWN, jnp.zeros((), jnp.int32), X
    judged = report(local_sgd, arguments, specs, (P("data"), P()), local=r"args\[0\]")
    assert judged.verdict == "right", str(judged)


def test_a_sum_of_each_devices_weights_is_complete():
    def step(w, own, x):
        return 0.05 * lax.psum(own[0], "data") - 0.1 * lax.pmean(jax.grad(loss)(w, x), "data"), own + 1

    specs = (P(), P("data"), P("data"))
    judged = report(step, (W, OWN, X), specs, specs[:2], local=r"args\[1\]")
    assert judged.verdict == "right", str(judged)


@pytest.mark.parametrize(
    ("axes", "found"), [(("data", "model"), []), (("data",), ["differs"])], ids=["both", "one"]
)
def test_devices_with_the_same_rows_have_states_of_their_own(axes, found):
    def step(w, own, x):
        return w - 0.1 * lax.pmean(jax.grad(loss)(w, x) + own[0, 0], axes), own + 1

    specs = (P(), P("data", "model"), P("data"))
    own = jnp.zeros((4, 2, 6, 4), jnp.float32)
    on = mesh(4, 2, names=("data", "model"))
    judged = report(step, (W, own, X), specs, specs[:2], on, local=r"args\[1\]")
    assert kinds(judged) == found, str(judged)


# --------------------------------------------------------------------------------- slices put together


def hosts_and_chips(fault):
    """A gradient is scattered over a host's chips, added over the hosts, and collected from the chips."""

    def step(w, x):
        flat = jax.grad(loss)(w, x).reshape(-1)
        part = lax.psum_scatter(flat, "chip", tiled=True)
        for _ in range({"": 1, "missing": 0, "again": 2}[fault]):
            part = lax.psum(part, "host")
        return w - 0.1 * lax.all_gather(part, "chip", tiled=True).reshape(w.shape) / DEVICES

    return step


@pytest.mark.parametrize("runs", [followed.BUDGET, 0], ids=["followed", "by_its_rule"])
@pytest.mark.parametrize(("fault", "found"), [("", []), ("missing", ["part"]), ("again", ["again"])])
def test_a_reduction_by_hosts_and_chips(fault, found, runs, monkeypatch):
    monkeypatch.setattr(followed, "BUDGET", runs)
    on, rows = mesh(2, 4, names=("host", "chip")), P(("host", "chip"))
    judged = report(hosts_and_chips(fault), (W, X), (P(), rows), P(), on)
    assert (judged.verdict, kinds(judged)) == ("wrong" if found else "right", found), str(judged)


def weights_by_a_sum(place):
    """Each device updates a slice of the weights; a sum of slices in zeros puts them together."""

    def step(w, x):
        index, length = lax.axis_index("data"), w.size // DEVICES
        part = lax.psum_scatter(jax.grad(loss)(w, x).reshape(-1), "data", tiled=True) / DEVICES
        held = lax.dynamic_slice_in_dim(w.reshape(-1), index * length, length) - 0.1 * part
        buffer = jnp.full(w.size, float(place == "ones"), w.dtype)
        start = 0 if place == "one place" else index * length
        return lax.psum(lax.dynamic_update_slice_in_dim(buffer, held, start, 0), "data").reshape(w.shape)

    return step


@pytest.mark.parametrize("place", ["zeros", "ones", "one place"])
def test_slices_that_a_sum_puts_together_are_proven_if_they_do_not_meet(place):
    judged = report(weights_by_a_sum(place), (W, X), (P(), P("data")), P())
    assert (judged.verdict == "right") == (place == "zeros"), str(judged)


# -------------------------------------------------------------------------------- random numbers for rows


def interpolated(folded, axis):
    """Random numbers for each row, or for each feature, that are repeated along the other axis."""

    def step(w, x, key):
        key = jax.random.fold_in(key, lax.axis_index("data")) if folded else key
        part = jax.random.uniform(key, x.shape[:1] if axis == "rows" else x.shape[1:])
        mixed = (part[:, None] if axis == "rows" else part) * x
        return w - 0.1 * lax.pmean(jax.grad(loss)(w, mixed), "data")

    return step


@pytest.mark.parametrize("width", [6, 8], ids=["narrow", "as_wide_as_the_rows"])
@pytest.mark.parametrize(("folded", "axis"), [(False, "rows"), (True, "rows"), (False, "features")])
def test_equal_numbers_for_rows_are_named_though_they_are_repeated(folded, axis, width):
    shapes = jnp.ones((width, 4), jnp.float32), jnp.ones((64, width), jnp.float32), jax.random.key(0)
    judged = report(interpolated(folded, axis), shapes, (P(), P("data"), P()), P())
    assert kinds(judged) == ([] if folded or axis == "features" else ["keys"]), str(judged)


# ------------------------------------------------------------------------------------ slices and numbers


def test_a_number_for_each_device_may_change_alike():
    def step(w, losses, x):
        value, g = jax.value_and_grad(loss)(w, x)
        mean = lax.pmean((value, g), "data")
        return w - 0.1 * mean[1], mean[0][None], losses

    on = mesh(4, 2, names=("data", "model"))
    specs = P(), P(("data", "model")), P("data")
    judged = report(step, (W, jnp.zeros(DEVICES, jnp.float32), X), specs, (*specs[:2], specs[1]), on)
    assert judged.verdict == "right", str(judged)


def test_a_slice_that_is_centred_by_its_mean_is_named():
    def step(w, x):
        g = lax.pmean(jax.grad(loss)(w, x), "data")
        return w - 0.1 * (g - g.mean())

    on = mesh(4, 2, names=("data", "model"))
    judged = report(step, (W, X), (P(None, "model"), P("data")), P(None, "model"), on)
    assert [(f.kind, "number of its own" in f.text) for f in judged.findings] == [("slices", True)]


def test_what_one_stage_sends_to_the_next_is_no_slice_of_its_weights():
    def stages(w, x):
        stage = lax.axis_index("stage")
        first = jnp.tanh(jnp.where(stage == 0, x, 0) @ w[0])
        second = jnp.tanh(lax.ppermute(first, "stage", [(0, 1)]) @ w[0])
        return jnp.where(stage == 1, jnp.mean((second - x) ** 2), 0)

    def step(w, x):
        return w - 0.1 * lax.pmean(jax.grad(stages)(w, x), "data")

    on = mesh(4, 2, names=("data", "stage"))
    w, x = jnp.ones((2, 6, 6), jnp.float32), jnp.ones((64, 6), jnp.float32)
    judged = report(step, (w, x), (P("stage"), P("data")), P("stage"), on)
    assert judged.verdict == "right", str(judged)
