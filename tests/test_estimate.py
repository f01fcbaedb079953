"""estimate: bytes, operations and seconds against numbers worked out by hand."""

import dataclasses
import json
import resource

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from click.testing import CliRunner
from flax import linen, nnx

import jaxpar
from jaxpar._cli.main import cli
from jaxpar._tools.estimate import Estimate, Hardware, estimate
from jaxpar._tools.estimate.count import Traffic, Work, all_reduces
from jaxpar._tools.estimate.hardware import CARDS
from jaxpar._tools.estimate.matrices import products
from jaxpar._tools.estimate.program import Program, size
from jaxpar._tools.estimate.scaling import all_reduce, computing, scale
from jaxpar._tools.estimate.table import number

F32 = 4
ROWS = 16
PARAMETERS = F32 * (5 * 6 + 6 + 6 * 3 + 3)
BATCH = ROWS * (5 + 3) * F32
PRODUCTS = 2 * ROWS * (3 * 6 * 3 + 2 * 5 * 6)
"""Forward, by weights and by inputs; the input of the first layer has no gradient."""


class Net(nnx.Module):
    def __init__(self, width=6):
        self.a = nnx.Linear(5, width, rngs=nnx.Rngs(0))
        self.b = nnx.Linear(width, 3, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.b(nnx.relu(self.a(x)))


def loss_fn(net, x, y):
    return jnp.mean((net(x) - y) ** 2)


def rows(b: int, *widths: int) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((b, width), np.float32) for width in widths]


@pytest.fixture(scope="module")
def found() -> Estimate:
    return estimate(Net, optax.adam(1e-3), loss_fn, *rows(ROWS, 5, 3))


# ---------------------------------------------------------------------------------------- memory


def test_bytes_of_a_small_network_with_adam(found):
    held = dataclasses.asdict(found.memory)
    activations, whole = held.pop("activations"), held.pop("compiled_step")
    assert held == {
        "parameters": PARAMETERS,
        "buffers": 0,
        "optimizer": 2 * PARAMETERS + 4,  # two moments and a count
        "gradients": PARAMETERS,
        "batch": BATCH,
    }
    assert (
        ROWS * 6 * F32 <= activations <= 4 * ROWS * (6 + 3) * F32
    )  # between one hidden layer and all, twice
    assert found.memory.total == sum(held.values()) + activations
    assert whole >= 3 * PARAMETERS + BATCH


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [(None, 0), (optax.sgd(0.1, momentum=0.9), 1), (nnx.Optimizer, 2)],
    ids=["none", "momentum", "nnx"],
)
def test_optimizers(optimizer, states):
    net = nnx.eval_shape(Net)
    if optimizer is nnx.Optimizer:
        optimizer = nnx.Optimizer(Net(), optax.adamw(1e-3), wrt=nnx.Param)
    memory = estimate(net, optimizer, loss_fn, *rows(ROWS, 5, 3), devices=[1]).memory
    assert memory.optimizer - states * PARAMETERS in (0, 4)


def test_a_model_of_100_gigabytes_allocates_nothing():
    before, alive = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(jax.live_arrays())

    class Large(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jax.random.normal(jax.random.key(0), (160_000, 160_000), jnp.float32))

        def __call__(self, x):
            return x @ self.w[...]

    memory = estimate(Large, optax.sgd(0.1), lambda net, x: net(x).sum(), *rows(4, 160_000)).memory
    assert memory.parameters == F32 * 160_000**2 > 100e9
    assert len(jax.live_arrays()) == alive
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 1e6


class Normed(nnx.Module):
    """Statistics and a counter beside the parameters."""

    def __init__(self):
        self.net, self.norm = Net(64), nnx.BatchNorm(3, rngs=nnx.Rngs(0))
        self.drop = nnx.Dropout(0.1, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.norm(self.drop(self.net(x)))


def test_memory_and_exchange_are_those_of_a_data_parallel_step_on_8_devices():
    """Of a step as a user writes it, with the loss outside of the wrapper."""
    tx, N = optax.adam(1e-3), 8
    told = estimate(Normed, tx, loss_fn, *rows(ROWS, 5, 3), devices=[N])
    graphdef, params, buffers = nnx.split(nnx.eval_shape(Normed), nnx.Param, ...)
    state = jax.eval_shape(tx.init, params)
    placement = jaxpar.Placement(tuple(jaxpar.devices()))

    def train(params, state, buffers, x, y):
        def loss_of(params):
            net = jaxpar.DataParallel(nnx.merge(graphdef, params, buffers, copy=True), placement)
            return loss_fn(net, x, y), nnx.state(net.module, nnx.Not(nnx.Param))

        (loss, buffers), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, state = tx.update(gradients, state, params)
        return loss, optax.apply_updates(params, updates), state, buffers

    def placed(tree, sharding):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    replicated = placed((params, state, buffers), placement.replicated)
    cut = jax.sharding.NamedSharding(placement.mesh, jax.sharding.PartitionSpec("replica"))
    batch = placed(rows(N * ROWS, 5, 3), cut)
    program = Program(jax.jit(train, donate_argnums=(0, 1, 2)).trace(*replicated, *batch), "")
    m = told.memory
    held = m.parameters + m.optimizer + m.buffers + m.batch
    assert held + m.gradients + m.activations == m.total
    assert program.arguments == held
    assert program.everything == pytest.approx(m.compiled_step, rel=0.02)
    exchanged = all_reduces(program.text)
    assert len(exchanged) == told.traffic.count == 2  # the float32s, and with x64 the counter as float64
    assert sum(exchanged) == told.traffic.bytes
    assert told.traffic.bytes >= m.gradients


def test_a_wrapper_is_its_module(found):
    wrapped = estimate(jaxpar.DataParallel(Net()), optax.adam(1e-3), loss_fn, *rows(ROWS, 5, 3))
    assert wrapped == found


def test_with_one_device_the_exchange_is_that_of_the_shapes(monkeypatch, found):
    one = jaxpar.devices()[:1]
    monkeypatch.setattr(jaxpar._devices.devices, "devices", lambda: one)
    alone = estimate(Net, optax.adam(1e-3), loss_fn, *rows(ROWS, 5, 3))
    assert alone.traffic == Traffic(1, PARAMETERS, "shapes")
    assert found.traffic.source == "compiled"
    assert 0 <= found.traffic.bytes - PARAMETERS <= 8  # and the loss


# -------------------------------------------------------------------------------------- operations


def test_operations_of_a_small_network(found):
    assert products(jaxpr_of(lambda w, x: loss_fn(nnx.merge(*w), x, x[:, :3]), *args())).flops == PRODUCTS
    assert PRODUCTS <= found.work.flops <= 4 * PRODUCTS  # with the loss and the optimizer
    assert found.work.kind == "float32"
    assert found.work.bytes >= 3 * PARAMETERS


def args():
    graphdef, params = nnx.split(nnx.eval_shape(Net))
    return (params,), lambda params: (graphdef, params), *rows(ROWS, 5)


def jaxpr_of(f, params, split, x):
    return jax.make_jaxpr(jax.grad(lambda p, x: f(split(p), x)))(*params, x).jaxpr


def test_every_turn_of_a_scan_counts():
    """XLA's own analysis counts the body once."""

    def turns(x, w):
        return jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=10)[0]

    x = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    told = products(jax.make_jaxpr(turns)(x, x).jaxpr)
    assert (told.flops, told.bytes, told.kind) == (10 * 2 * 8**3, 10 * 3 * 64 * 2, "bfloat16")


def test_a_scan_in_a_scan():
    def turns(x, w):
        def inner(c, _):
            return jax.lax.scan(lambda c, _: (c @ w, None), c, None, length=5)

        return jax.lax.scan(inner, x, None, length=3)[0]

    x = jnp.ones((4, 4))
    assert products(jax.make_jaxpr(turns)(x, x).jaxpr).flops == 15 * 2 * 4**3


def test_of_a_cond_the_longest_branch_counts():
    def either(x):
        return jax.lax.cond(x.sum() > 0, lambda: x @ x @ x, lambda: x @ x)

    assert products(jax.make_jaxpr(either)(jnp.ones((4, 4))).jaxpr).flops == 2 * 2 * 4**3


def test_a_convolution():
    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", feature_group_count=2)

    x, w = jnp.ones((1, 4, 5, 5)), jnp.ones((6, 2, 3, 3))
    # 6 x 3 x 3 results of 2 channels x 3 x 3 products
    assert products(jax.make_jaxpr(convolve)(x, w).jaxpr).flops == 2 * 54 * 18


def test_all_reduces_of_a_text():
    text = """
      %a = (f32[2,3]{1,0}, /*index=1*/bf16[]) all-reduce(%x, %y), replica_groups={{0,1}}
      %b = f64[5]{0} all-reduce-start(%z)
      %c = f64[5]{0} all-reduce-done(%b)
      %d = pred[3]{0} all-reduce(%p), to_apply=%or
      %e = f32[9]{0} add(%all-reduce, %q)
    """
    assert all_reduces(text) == [26, 40, 3]


# --------------------------------------------------------------------------------------------- time

ROUND = Hardware("round", {"float32": 1e12}, 1e11, 1e9, 1e9, 1e8, 1e-5, 1e-4, per_host=4)
WORK, TRAFFIC = Work(2e10, 1e9, "float32"), Traffic(2, 4_000_000, "compiled")


def test_the_roofline():
    assert computing(WORK, ROUND) == pytest.approx(2e-2)  # operations: 20 ms; bytes: 10 ms
    assert computing(dataclasses.replace(WORK, bytes=4e9), ROUND) == pytest.approx(4e-2)
    assert computing(WORK, ROUND, 0.5) == pytest.approx(4e-2)


@pytest.mark.parametrize(
    ("n", "seconds"),
    [
        (1, 0),
        (2, 2 * 1 / 2 * 4e-3 + 2 * 2 * 1e-5),
        (4, 2 * 3 / 4 * 4e-3 + 2 * 6 * 1e-5),
        (8, 2 * 3 / 4 * 4e-3 + 2 * 6 * 1e-5 + 2 * 1 / 2 * 4e-2 + 2 * 2 * 1e-4),
        (16, 2 * 3 / 4 * 4e-3 + 2 * 6 * 1e-5 + 2 * 3 / 4 * 4e-2 + 2 * 6 * 1e-4),
    ],
)
def test_rings_within_and_between_hosts(n, seconds):
    assert all_reduce(n, TRAFFIC, ROUND) == pytest.approx(seconds, rel=1e-12)


NUMBERS = tuple(2**i for i in range(11))


def points(*, efficiency=1.0, overlap=0.0, work=WORK, **changes):
    hardware = dataclasses.replace(ROUND, **changes)
    return scale(8, work, TRAFFIC, hardware, NUMBERS, efficiency=efficiency, overlap=overlap)


def test_a_point_by_hand():
    p = points(overlap=0.25)[2]
    assert (p.devices, p.hosts) == (4, 1)
    exchange = 1.5 * 4e-3 + 12e-5
    assert p.waiting == pytest.approx(0.75 * exchange)
    assert p.step == pytest.approx(2e-2 + 0.75 * exchange)
    assert p.efficiency == pytest.approx(2e-2 / p.step)
    assert p.rows_per_second == pytest.approx(32 / p.step)


def test_no_more_is_hidden_than_there_is_to_hide_behind():
    tiny = dataclasses.replace(WORK, flops=1e3, bytes=1e3)
    p = points(overlap=1.0, work=tiny)[-1]
    assert p.waiting == pytest.approx(p.communicating - p.computing)


def test_more_devices_are_never_more_efficient():
    steps = [p.step for p in points()]
    assert steps == sorted(steps)
    assert points()[0].efficiency == 1
    rates = [p.rows_per_second for p in points()]
    assert all(r <= n * rates[0] for r, n in zip(rates, NUMBERS, strict=True))


@pytest.mark.parametrize(
    "change",
    [{"link": 2e9}, {"network": 2e8}, {"latency": 0.0}, {"network_latency": 0.0}, {"overlap": 0.5}],
    ids=str,
)
def test_a_better_link_never_costs(change):
    better, now = points(**change), points()
    assert all(a.step <= b.step for a, b in zip(better, now, strict=True))
    assert better[-1].step < now[-1].step


def test_all_hidden_is_perfect_scaling():
    assert {
        p.efficiency for p in points(overlap=1.0, link=1e12, network=1e12, latency=0.0, network_latency=0.0)
    } == {1.0}


@pytest.mark.parametrize("fault", ["2(n+1)", "no factor 2", "latency once", "hosts left out"])
def test_a_planted_fault_in_the_ring_is_found(fault, monkeypatch):
    def wrong(n, traffic, rate, latency):
        if fault == "hosts left out" and rate == ROUND.network:
            return 0.0
        steps = {"2(n+1)": 2 * (n + 1), "no factor 2": n - 1}.get(fault, 2 * (n - 1))
        return (
            steps / n * traffic.bytes / rate
            + traffic.count * (1 if fault == "latency once" else steps) * latency
        )

    monkeypatch.setattr("jaxpar._tools.estimate.scaling._ring", wrong)
    with pytest.raises(AssertionError):
        test_rings_within_and_between_hosts(8, 6e-3 + 12e-5 + 4e-2 + 4e-4)


def test_a_planted_fault_in_the_bytes_is_found(monkeypatch):
    half = lambda tree: size(tree) // 2  # noqa: E731 (as if of 16 bits)
    monkeypatch.setattr("jaxpar._tools.estimate.program.size", half)
    with pytest.raises(AssertionError):
        test_bytes_of_a_small_network_with_adam(estimate(Net, optax.adam(1e-3), loss_fn, *rows(ROWS, 5, 3)))


# ----------------------------------------------------------------------------- hardware and reports


def test_every_card_is_plausible():
    for card in CARDS.values():
        assert card.flops["float32"] <= card.flops["float16"]
        assert card.network_latency > card.latency
        assert card.link < card.bandwidth < card.flops["float32"]


def test_figures_are_replaced():
    changed = Hardware.of("RTX 4090", flops=1e12, link=5e9)
    assert (changed.rate("float64"), changed.link, changed.memory) == (1e12, 5e9, 24e9)


def test_fits(found):
    assert found.fits
    assert not dataclasses.replace(found, hardware=Hardware.of("t4", memory=found.memory.total - 1)).fits


def test_json_and_picture(found, tmp_path):
    document = json.loads(found.to_json())
    assert document["memory"]["optimizer"] == 2 * PARAMETERS + 4
    assert document["memory"]["total"] == found.memory.total
    assert [p["devices"] for p in document["points"]] == list(NUMBERS)
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999.7, "1 kB"),
        (99864216040, "99.9 GB"),
        (1, "1 B"),
        (3.24e-5, "32.4 µB"),
        (5e-12, "0.005 nB"),
    ],
)
def test_numbers(value, text):
    assert number(value, "B") == text


SPEC = """
import jax, optax
from flax import nnx

def make_net():
    return nnx.Linear(5, 3, rngs=nnx.Rngs(0))

def loss_fn(net, x):
    return (net(x) ** 2).mean()

optimizer = optax.adam(1e-3)
batch = jax.ShapeDtypeStruct((16, 5), "float32")
"""


def command(folder, *options: str, spec: str = SPEC):
    (folder / "spec.py").write_text(spec)
    return CliRunner().invoke(cli, ["estimate", str(folder / "spec.py"), *options])


def test_the_command(tmp_path):
    ended = command(tmp_path, "--json", "--device", "l4", "--link", "2", "--up-to", "6", "--latency", "0")
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert told["memory"]["parameters"] == F32 * 18
    assert (told["hardware"]["link"], told["hardware"]["latency"]) == (2e9, 0)
    assert [p["devices"] for p in told["points"]] == [1, 2, 4, 6]


def test_the_table(tmp_path):
    ended = command(tmp_path, "--up-to", "2")
    for word in ("Linear, 16 rows on each H100 SXM", "optimizer", "all-reduce", "not a measurement"):
        assert word in ended.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("def make_net", "def other"), "spec.py: it defines neither make_net"),
        (("batch =", "rows ="), "spec.py: it does not define batch."),
        ((".mean()", ""), r"loss_fn must return a scalar and returned shape (16, 3)"),
        (("(16, 5)", "()"), "which has no rows"),
        (("(16, 5)", "(16, 4)"), "spec.py: TypeError"),
        (("optax.adam(1e-3)", "'adam'"), "optimizer must be an optax transformation"),
    ],
    ids=["no net", "no batch", "no scalar", "no rows", "other widths", "no optimizer"],
)
def test_specs_with_errors(tmp_path, change, message):
    ended = command(tmp_path, spec=SPEC.replace(*change))
    assert ended.exit_code == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.output


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"device": "v200"}, ValueError, "device='v200' is none of h200"),
        ({"efficiency": 0}, ValueError, "efficiency=0 must be above 0"),
        ({"overlap": 2}, ValueError, "overlap=2 must be between"),
        ({"devices": [0]}, ValueError, "must be numbers from 1 up"),
        ({"device": dataclasses.replace(ROUND, flops={"int8": 1.0})}, ValueError, "no figure for float32"),
        ({"net": linen.Dense(3)}, TypeError, "net must be an nnx.Module .*ToNNX"),
        ({"batch": ()}, jaxpar.errors.NoRowsError, "at least 1; they have none"),
        ({"batch": rows(4, 5) + rows(3, 3)}, jaxpar.errors.NoRowsError, "they have 3, 4"),
    ],
    ids=["card", "efficiency", "overlap", "devices", "type", "Linen", "nothing", "rows"],
)
def test_misuse(change, error, message):
    arguments = {"net": Net, "batch": rows(4, 5, 3)} | change
    net, batch = arguments.pop("net"), arguments.pop("batch")
    with pytest.raises(error, match=message):
        estimate(net, None, loss_fn, *batch, **arguments)


@pytest.mark.parametrize("change", [{"link": 0}, {"flops": -1}, {"latency": -1}, {"memory": float("inf")}])
def test_impossible_figures(change):
    with pytest.raises(ValueError, match="must"):
        Hardware.of("h100", **change)
