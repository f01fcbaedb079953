"""`jaxpar.program(..., alone=)`: a mean in place of a sum is a factor between one device and several."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from click.testing import CliRunner
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpar
from jaxpar._cli.main import cli
from jaxpar._tools.program.alone import _as_alone
from jaxpar._tools.program.report import LeafVerdict

ROWS, WHOLE = P("data"), P()
DEVICES = jax.devices()


def loss_of(w, x, y):
    return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)


def shapes(mesh, *specs):
    sizes = [{"a": (4, 6), "b": (6, 2)}] * (len(specs) - 2) + [(32, 4), (32, 2)]

    def shape(size, spec):
        return jax.ShapeDtypeStruct(size, "float32", sharding=NamedSharding(mesh, spec))

    return tuple(
        {k: shape(v, spec) for k, v in size.items()} if isinstance(size, dict) else shape(size, spec)
        for size, spec in zip(sizes, specs, strict=True)
    )


def by_shard_map(devices, fault):
    mesh = Mesh(np.array(devices), ("data",))
    reduce = lax.psum if fault == "sum for mean" else lax.pmean

    def step(w, m, x, y):
        g = reduce(jax.grad(loss_of)(w, x, y), "data")
        if fault == "mean twice":
            g = jax.tree.map(lambda v: v / lax.axis_size("data"), g)
        m = jax.tree.map(lambda a, b: 0.9 * a + b, m, g)
        return jax.tree.map(lambda a, b: a - 0.1 * b, w, m), m

    specs = WHOLE, WHOLE, ROWS, ROWS
    run = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=WHOLE, check_vma=False)
    return jax.jit(run, donate_argnums=(0, 1)), shapes(mesh, *specs)


def by_sharding(devices, fault):
    mesh = Mesh(np.array(devices), ("data",))

    def step(w, x, y):
        g = jax.grad(loss_of)(w, x, y)
        factor = len(devices) if fault == "sum for mean" else 1 / len(devices) if fault == "mean twice" else 1
        return jax.tree.map(lambda a, b: a - 0.1 * factor * b, w, g)

    return jax.jit(step), shapes(mesh, WHOLE, ROWS, ROWS)


def by_pmap(devices, fault):
    n = len(devices)
    reduce = lax.psum if fault == "sum for mean" else lax.pmean

    def step(w, x, y):
        g = reduce(jax.grad(loss_of)(w, x, y), "data")
        return jax.tree.map(lambda a, b: a - 0.1 * b / (n if fault == "mean twice" else 1), w, g)

    w = {k: jax.ShapeDtypeStruct((n, *v), "float32") for k, v in {"a": (4, 6), "b": (6, 2)}.items()}
    rows = [jax.ShapeDtypeStruct((n, 32 // n, width), "float32") for width in (4, 2)]
    return jax.pmap(step, axis_name="data", devices=devices), (w, *rows)


def with_adam(devices, fault):
    mesh = Mesh(np.array(devices), ("data",))
    tx = optax.adam(1e-3)
    reduce = lax.psum if fault == "sum for mean" else lax.pmean

    def step(w, state, x, y):
        g = reduce(jax.grad(loss_of)(w, x, y), "data")
        if fault == "mean twice":
            g = jax.tree.map(lambda v: v / lax.axis_size("data"), g)
        updates, state = tx.update(g, state, w)
        return optax.apply_updates(w, updates), state

    w, *rows = shapes(mesh, WHOLE, ROWS, ROWS)
    state = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, WHOLE)),
        jax.eval_shape(tx.init, w),
    )
    specs = WHOLE, WHOLE, ROWS, ROWS
    run = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=WHOLE, check_vma=False)
    return jax.jit(run), (w, state, *rows)


MAKERS = {f.__name__: f for f in (by_shard_map, by_sharding, by_pmap, with_adam)}


def compared(make, fault, devices=8):
    step, arguments = make(DEVICES[:devices], fault)
    return jaxpar.program(step, *arguments, alone=make(DEVICES[:1], fault))


@pytest.mark.parametrize("name", MAKERS)
def test_a_right_step_is_still_proven(name):
    report = compared(MAKERS[name], "")
    assert report.verdict == "right", str(report)
    assert not report.findings


FACTORS = {"sum for mean": "8", "mean twice": "0.125"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", FACTORS, ids=[f.replace(" ", "_") for f in FACTORS])
@pytest.mark.parametrize("name", MAKERS)
def test_a_factor_is_named(name, fault):
    make = MAKERS[name]
    step, arguments = make(DEVICES[:8], fault)
    assert jaxpar.program(step, *arguments).verdict == "right"  # the program alone does not show it
    report = compared(make, fault)
    assert report.verdict == "wrong", str(report)
    assert {f.kind for f in report.findings} == {"scale"}
    assert f"changes {FACTORS[fault]} times as much on 8 devices as on one" in str(report)
    named = {path for f in report.findings for path in f.leaves}
    assert not named & {leaf.path for leaf in report.leaves if leaf.verdict == "right"}
    # Adam's parameters do not show it, because the factor cancels; its first moments do. 1/64 of a change of
    # the second ones is less than float32 has digits for.
    moments = {f"args[1][0].mu['{k}']" for k in "ab"}
    assert moments <= named if name == "with_adam" else len(named) == (4 if name == "by_shard_map" else 2)


def test_statistics_of_each_devices_rows_are_no_factor():
    def make(devices, fault):
        mesh = Mesh(np.array(devices), ("data",))

        def step(w, x, y):
            def loss_fn(w):
                h = x @ w["a"]
                return jnp.mean((jnp.tanh((h - h.mean(0)) / (h.std(0) + 0.1)) @ w["b"] - y) ** 2)

            return jax.tree.map(lambda a, b: a - 0.1 * lax.pmean(b, "data"), w, jax.grad(loss_fn)(w))

        specs = WHOLE, ROWS, ROWS
        run = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=WHOLE, check_vma=False)
        return jax.jit(run), shapes(mesh, *specs)

    assert compared(make, "").verdict == "right"


def test_activations_of_a_wide_layer_are_not_saturated():
    def make(devices, _):
        mesh = Mesh(np.array(devices), ("data",))

        def step(w, x):
            return w - 0.1 * len(devices) * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)

        shape = jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, WHOLE))
        return jax.jit(step), (
            shape,
            jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, ROWS)),
        )

    assert [f.kind for f in compared(make, "").findings] == ["scale"]


def test_a_change_of_rounding_alone_is_no_other_change():
    leaf = LeafVerdict("w", True, "right", "")
    one, other = np.array([1e-8, 0.0]), np.array([0.0, 1e-8])
    assert _as_alone(leaf, one, other, 1e-7).verdict == "right"
    assert _as_alone(leaf, one, other, 1e-9).verdict == "not proven"
    assert _as_alone(leaf, one, -one, 1e-9).verdict == "not proven"


def test_other_rows_are_refused():
    step, (w, m, x, y) = by_shard_map(DEVICES[:8], "")
    one, (w1, m1, *_) = by_shard_map(DEVICES[:1], "")
    fewer = [jax.ShapeDtypeStruct((4, n), "float32", sharding=w1["a"].sharding) for n in (4, 2)]
    with pytest.raises(ValueError, match=r"\[4, 4\] on one device and \[32, 4\] on several"):
        jaxpar.program(step, w, m, x, y, alone=(one, (w1, m1, *fewer)))


def test_a_train_step_is_refused():
    net = jaxpar.DistributedDataParallel(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), lambda n, x: n(x).sum())
    x = jax.ShapeDtypeStruct((8, 4), "float32")
    with pytest.raises(TypeError, match="keeps its state itself"):
        jaxpar.program(step, x, alone=(step, (x,)))


STEP = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P

def make(devices):
    mesh = Mesh(np.array(devices), ("data",))
    def step(w, x):
        return w - jax.lax.{reduce}(jax.grad(lambda w: (x @ w).mean())(w), "data")
    run = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    return jax.jit(run), (np.ones(4, np.float32), np.ones((8, 4), np.float32))
"""


@pytest.mark.parametrize("reduce", ["pmean", "psum"])
def test_the_command_runs_it(reduce, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(STEP.replace("{reduce}", reduce))
    result = CliRunner().invoke(cli, ["program", f"{file}:make", "--on", "cpux8", "--run"])
    assert result.exit_code == (reduce == "psum"), result.output
    assert ("changes 8 times as much" in result.output) == (reduce == "psum")
    refused = CliRunner().invoke(cli, ["program", f"{file}:make", "--on", "h100x8", "--run"])
    assert refused.exit_code == 2
    assert "--run needs devices" in refused.output
