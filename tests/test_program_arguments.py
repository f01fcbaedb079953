"""`jaxpar.program`: which arguments of a step are its state, and which have rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpar
from benchmarks.program.by_hand import flat_shards

MESH = Mesh(np.array(jax.devices()[:8]), ("data",))
ROWS, WHOLE = P("data"), P()


def shape(spec, *sizes, kind="float32"):
    return jax.ShapeDtypeStruct(sizes, kind, sharding=NamedSharding(MESH, spec))


def report_of(body, specs, out, *arguments, donated=(), **options):
    run = jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=out, check_vma=False)
    return jaxpar.program(jax.jit(run, donate_argnums=donated), *arguments, **options)


def gradient_of(w, x, y):
    return jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)


# ----------------------------------------------------------------- a state that comes back in another type


def momentum_step(fault="", last=False):
    """ZeRO-2 whose float32 momentum is float64 when it is returned, in a dict."""

    def step(w, m, x, y):
        g = gradient_of(w, x, y)
        part = lax.psum_scatter(g, "data", tiled=True) / 8
        index = lax.axis_index("data")
        own = lax.dynamic_slice_in_dim(g, index, 1)
        new = 0.9 * m["m"] + (own if fault == "missing" else part)
        update = lax.dynamic_slice_in_dim(w, index, 1) - 0.1 * (0.9 * m["m"] + part)
        w = lax.all_gather(update, "data", tiled=True)
        return ({"m": new}, w) if last else (w, {"m": new})

    state = {"m": shape(ROWS, 8, 4)}
    arguments = shape(WHOLE, 8, 4, kind="float64"), state
    rows = shape(ROWS, 32, 8, kind="float64"), shape(ROWS, 32, 4, kind="float64")
    out = ({"m": ROWS}, WHOLE) if last else (WHOLE, {"m": ROWS})
    return report_of(step, (WHOLE, ROWS, ROWS, ROWS), out, *arguments, *rows)


@pytest.mark.parametrize("last", [False, True], ids=["parameters_first", "momentum_first"])
def test_a_state_of_another_type_is_no_batch(last):
    report = momentum_step(last=last)
    assert not report.findings, str(report)
    verdicts = {leaf.path: leaf.verdict for leaf in report.leaves}
    assert verdicts == {"args[0]": "right", "args[1]['m']": "not proven"}
    assert "comes as float32 and is returned as float64, so that the next step is another" in str(report)
    assert report.verdict == "not proven"


def test_a_missing_sum_in_a_state_of_another_type_is_named():
    report = momentum_step("missing")
    assert [(f.kind, f.leaves) for f in report.findings] == [("missing", ("args[1]['m']",))]


def test_optax_state_in_float32_with_float64_gradients():
    step, (params, state, *rows), options = flat_shards()
    halved = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, jnp.float32 if s.ndim else s.dtype, sharding=s.sharding),
        state,
    )
    whole = jaxpar.program(step, params, state, *rows, **options)
    assert whole.verdict == "right", str(whole)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float64")}
    report = jaxpar.program(step, params, halved, *rows, **options)
    # The memory of a float32 array cannot be taken by a float64 one.
    assert {f.kind for f in report.findings} <= {"donation"}, str(report)
    assert {leaf.verdict for leaf in report.leaves if leaf.path.startswith("args[0]")} == {"right"}
    assert [leaf.path for leaf in report.leaves if "another program" in leaf.why] == ["args[1][0].mu"]


@pytest.mark.parametrize("last", [False, True], ids=["parameters_first", "momentum_first"])
@pytest.mark.parametrize("donated", [True, False])
def test_a_single_array_is_a_state_of_another_type_if_it_is_donated(donated, last):
    def step(w, m, x, y):
        part = lax.psum_scatter(gradient_of(w, x, y), "data", tiled=True) / 8
        w, m = lax.pmean(w, "data"), 0.9 * m + part
        return (m, w) if last else (w, m)

    arguments = shape(WHOLE, 8, 4, kind="float64"), shape(ROWS, 8, 4)
    rows = shape(ROWS, 32, 8, kind="float64"), shape(ROWS, 32, 4, kind="float64")
    specs = WHOLE, ROWS, ROWS, ROWS
    out = (ROWS, WHOLE) if last else (WHOLE, ROWS)
    report = report_of(step, specs, out, *arguments, *rows, donated=(1,) if donated else ())
    state = {leaf.path for leaf in report.leaves if leaf.state}
    assert ("args[1]" in state) == donated
    assert "args[0]" in state or (last and not donated)  # the same type, divided otherwise


def test_what_comes_back_whole_in_another_type_is_no_state():
    def step(w, table, x, y):
        table = {"t": lax.all_gather(table["t"].astype("float64"), "data", tiled=True)}
        return w - 0.1 * lax.pmean(gradient_of(w, x, y), "data"), table

    arguments = shape(WHOLE, 8, 4, kind="float64"), {"t": shape(ROWS, 16, 4)}
    rows = shape(ROWS, 32, 8, kind="float64"), shape(ROWS, 32, 4, kind="float64")
    report = report_of(step, (WHOLE, ROWS, ROWS, ROWS), (WHOLE, WHOLE), *arguments, *rows)
    assert [leaf.path for leaf in report.leaves if leaf.state] == ["args[0]"]


# --------------------------------------------------------------------------------- rows that come back


def reconstructing(**options):
    """An autoencoder, which returns what it makes of the rows, in another type than theirs."""

    def step(w, x):
        def loss_fn(w):
            made = jnp.tanh(x["image"] @ w) @ w.T
            return jnp.mean((made - x["image"]) ** 2), made

        g, made = jax.grad(loss_fn, has_aux=True)(w)
        return w - 0.1 * lax.pmean(g, "data"), {"image": made}

    rows = {"image": shape(ROWS, 32, 8, kind="bfloat16")}
    specs = WHOLE, ROWS
    return report_of(step, specs, specs, shape(WHOLE, 8, 4, kind="float32"), rows, **options)


@pytest.mark.parametrize("options", [{}, {"batch": [1]}], ids=["inferred", "named"])
def test_rows_that_come_back_in_another_type_are_no_state(options):
    report = reconstructing(**options)
    assert report.verdict == "right", str(report)
    assert [leaf.path for leaf in report.leaves if leaf.state] == ["args[0]"]


def test_rows_that_are_named_are_no_state():
    def step(w, x, y):
        return w - 0.1 * lax.pmean(gradient_of(w, x, y), "data"), jnp.tanh(x @ w)

    arguments = shape(WHOLE, 8, 4), shape(ROWS, 32, 8), shape(ROWS, 32, 4)
    report = report_of(step, (WHOLE, ROWS, ROWS), (WHOLE, ROWS), *arguments, batch=[1, 2])
    assert report.verdict == "right", str(report)
    assert [leaf.path for leaf in report.leaves if leaf.state] == ["args[0]"]


# ---------------------------------------------------------------------------------- rows that fill up


def masked(how, x, y, mask):
    """A gradient of 32 rows, some of which fill up the batch."""
    index = lax.axis_index("data")
    if how == "mask_by_index":
        mask = (index * 4 + jnp.arange(4) < 30).astype(x.dtype)

    def total(w):
        return jnp.sum(mask * jnp.sum((jnp.tanh(x @ w) - y) ** 2, -1))

    def reduced(w):
        g, count = jax.grad(total)(w), mask.sum()
        if how == "means_of_means":
            return lax.pmean(g / jnp.maximum(count, 1), "data")
        if how == "last_device_left_out":
            g = g * (index < 7)
        if how == "own_count":
            return lax.psum(g, "data") / count
        return lax.psum(g, "data") / lax.psum(count, "data")

    return reduced


MASKED = {
    "all_counts": ("right", set()),
    "means_of_means": ("right", set()),
    "mask_by_index": ("not proven", set()),
    "own_count": ("wrong", {"missing"}),
    "last_device_left_out": ("wrong", {"rows"}),
}


@pytest.mark.parametrize("how", MASKED)
def test_rows_that_fill_up_a_batch(how):
    def step(w, x, y, mask):
        return w - 0.1 * masked(how, x, y, mask)(w)

    arguments = shape(WHOLE, 4, 2), shape(ROWS, 32, 4), shape(ROWS, 32, 2), shape(ROWS, 32)
    report = report_of(step, (WHOLE, ROWS, ROWS, ROWS), WHOLE, *arguments)
    verdict, kinds = MASKED[how]
    assert report.verdict == verdict, str(report)
    assert {f.kind for f in report.findings} == kinds


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrapper", [jaxpar.DataParallel, jaxpar.DistributedDataParallel])
@pytest.mark.parametrize("rows", [30, 5])
def test_uneven_batches_of_a_wrapper_are_no_alarm_and_no_proof(wrapper, rows):
    net = wrapper(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    report = jaxpar.program(step, jax.ShapeDtypeStruct((rows, 4), "float32"))
    assert report.verdict == "not proven", str(report)
    assert not report.findings


def test_a_step_on_one_device():
    arguments = np.ones((2, 1), np.float32), np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)
    report = jaxpar.program(jax.jit(lambda w, x, y: w - 0.1 * gradient_of(w, x, y)), *arguments)
    assert report.verdict == "right", str(report)
    assert "on 1 x cpu" in str(report)


def test_equal_numbers_that_do_not_depend_on_the_batch_may_be_added():
    """A norm of divided weights, of which each slice is on two devices."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))

    def step(w, x, y):
        gradient = lax.pmean(gradient_of(lax.all_gather(w, "model", tiled=True), x, y), "data")
        gradient = lax.dynamic_slice_in_dim(gradient, 2 * lax.axis_index("model"), 2)
        norms = lax.all_gather((w * w).sum(), ("data", "model"))
        return w - 0.1 * (gradient + 1e-4 * norms.sum())

    specs = P("model"), P("data"), P("data")
    run = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P("model"), check_vma=False)
    sizes = (8, 4), (32, 8), (32, 4)
    arguments = [
        jax.ShapeDtypeStruct(size, "float32", sharding=NamedSharding(mesh, spec))
        for size, spec in zip(sizes, specs, strict=True)
    ]
    report = jaxpar.program(jax.jit(run), *arguments)
    assert report.verdict == "right", str(report)
