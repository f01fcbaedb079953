"""estimate without XLA's compiler for GPUs: bytes, operations and seconds against numbers worked out by hand.

What needs that compiler is in gpu_programs/test_estimate.py. What reads its text is here, on a text of its
kind.
"""

import dataclasses
import itertools
import json
import re
import resource
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from click.testing import CliRunner
from flax import linen, nnx

import jaxpar
from jaxpar._cli.main import cli
from jaxpar._tools.estimate import Estimate, Hardware, estimate, report, schedule
from jaxpar._tools.estimate.hardware import CARDS
from jaxpar._tools.estimate.hlo import KernelWork, arrays, read
from jaxpar._tools.estimate.largest import largest
from jaxpar._tools.estimate.program import PARTS, Program, size
from jaxpar._tools.estimate.schedule import (
    CollectiveStart,
    CollectiveWait,
    Kernel,
    events,
    exchange,
    lanes,
    scale,
)
from jaxpar._tools.estimate.table import COLOURS, number

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


@pytest.fixture(autouse=True, scope="module")
def no_compiler():
    """Also where it is installed."""

    def missing(*_, **__):
        raise ImportError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxpar._tools.estimate.program.topology", missing)
        yield


@pytest.fixture(scope="module")
def found(no_compiler) -> Estimate:
    return estimate(Net, optax.adam(1e-3), loss_fn, *rows(ROWS, 5, 3))


# ---------------------------------------------------------------------------------------- memory


def test_bytes_of_a_small_network_with_adam(found):
    held = dataclasses.asdict(found.memory)
    activations = held.pop("activations")
    assert held == {
        "parameters": PARAMETERS,
        "buffers": 0,
        "optimizer": 2 * PARAMETERS + 4,  # two moments and a count
        "gradients": PARAMETERS,
        "batch": BATCH,
    }
    # Between one hidden layer, and all of them twice with the replica's gradients beside the summed ones.
    assert ROWS * 6 * F32 <= activations <= 4 * ROWS * (6 + 3) * F32 + PARAMETERS
    assert found.memory.total == sum(held.values()) + activations


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [(None, 0), (optax.sgd(0.1, momentum=0.9), 1), (nnx.Optimizer, 2)],
    ids=["none", "momentum", "nnx"],
)
def test_optimizers(optimizer, states):
    net = nnx.eval_shape(Net)
    if optimizer is nnx.Optimizer:
        optimizer = nnx.Optimizer(Net(), optax.adamw(1e-3), wrt=nnx.Param)
    memory = estimate(net, optimizer, loss_fn, *rows(ROWS, 5, 3), devices=1).memory
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


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*BatchNorm takes the statistics of each")  # in a loop of the user's own
def test_memory_and_exchange_are_those_of_a_data_parallel_step_on_8_devices():
    """Of a step as a user writes it, with the loss outside of the wrapper."""
    tx, N = optax.adam(1e-3), 8
    told = estimate(Normed, tx, loss_fn, *rows(ROWS, 5, 3), devices=N)
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
    traced = jax.jit(train, donate_argnums=(0, 1, 2)).trace(*replicated, *batch)
    program = Program(traced, "", placement.devices)
    m = told.memory
    held = m.parameters + m.optimizer + m.buffers + m.batch
    assert held + m.gradients + m.activations == m.total
    assert program.arguments == held
    assert program.everything == pytest.approx(m.total, rel=0.02)
    exchanged = list(starts(events(read(program.text), Hardware.of("h100").seconds)))
    assert len(exchanged) == told.traffic.count == 2  # the float32s, and with x64 the counter as float64
    assert sum(start.bytes for start in exchanged) == told.traffic.bytes
    assert told.traffic.bytes >= m.gradients


def test_a_wrapper_is_its_module(found):
    wrapped = estimate(jaxpar.DataParallel(Net()), optax.adam(1e-3), loss_fn, *rows(ROWS, 5, 3))
    assert wrapped == found


def test_a_marked_argument_has_no_rows():
    table = jax.ShapeDtypeStruct((7, 3), "float32")

    def summed(net, x, y, table):
        return loss_fn(net, x, y) + table.sum()

    marked = estimate(Net, optax.sgd(0.1), summed, *rows(ROWS, 5, 3), jaxpar.replicated(table))
    plain = estimate(Net, optax.sgd(0.1), loss_fn, *rows(ROWS, 5, 3))
    assert marked.memory.batch - plain.memory.batch == 7 * 3 * 4
    with pytest.raises(jaxpar.errors.NoRowsError, match=f"they have 7, {ROWS}"):
        estimate(Net, optax.sgd(0.1), summed, *rows(ROWS, 5, 3), table)


def test_a_host_with_one_device_knows_the_exchange_of_many(monkeypatch, found):
    one = jaxpar.devices()[:1]
    monkeypatch.setattr(jaxpar._devices.devices, "devices", lambda: one)
    alone = estimate(Net, optax.adam(1e-3), loss_fn, *rows(ROWS, 5, 3))
    assert alone.traffic == found.traffic
    assert 0 <= found.traffic.bytes - PARAMETERS <= 8  # and the loss


@pytest.mark.parametrize(
    ("card", "why"),
    [("h100", r'not installed \(pip install "jaxpar\[gpu-compiler\]"\)'), ("t4", "no figures of T4")],
)
def test_another_compiler_is_named(card, why):
    told = estimate(Net, None, loss_fn, *rows(ROWS, 5, 3), device=card)
    assert told.platform == "cpu"
    assert re.search(why, told.why)


# ------------------------------------------------------------------------------------ a program's text

TEXT = (Path(__file__).parent / "scheduled.hlo").read_text()
"""A GPU's program, cut down to one instruction of every sort that is counted."""
GEMM = 2 * 64 * 16 * 32
CONVOLUTION = 2 * (2 * 7 * 7 * 8) * (3 * 3 * 4)
CUBE = 2 * 8**3


def starts(program) -> list[CollectiveStart]:
    """The collectives, every turn of a loop as one of its own."""
    started = [event for event in program if isinstance(event, CollectiveStart)]
    return [dataclasses.replace(event, turns=1) for event in started for _ in range(event.turns)]


def flat(work: KernelWork) -> float:
    """Seconds in which only products count."""
    return work.flops


def counted(text: str = TEXT) -> dict[str, Kernel]:
    return {event.name: event for event in events(read(text), flat) if isinstance(event, Kernel)}


KERNELS = [
    # flops, bytes, type, turns
    ("gemm_fusion", GEMM, 2 * (64 * 32 + 32 * 16 + 64 * 16), "bfloat16", 1),
    ("cublas", GEMM, 2 * (64 * 32 + 32 * 16 + 64 * 16) + 4096, "bfloat16", 1),
    ("conv", CONVOLUTION, 2 * (648 + 288 + 784), "bfloat16", 1),
    ("conv_input", CONVOLUTION, 2 * (648 + 288 + 784), "bfloat16", 1),
    ("conv_filter", CONVOLUTION, 2 * (648 + 288 + 784), "bfloat16", 1),
    ("slice_fusion", 0, 2 * 400 + 4, "", 1),
    ("update_fusion", 0, 2 * 400 + 4, "", 1),
    ("turn", CUBE, 3 * 256, "float32", 12),
    ("second", CUBE, 3 * 256, "float32", 1),
    ("solve", 0, 2 * 256, "", 1),
]


@pytest.mark.parametrize(
    ("name", "flops", "moved", "kind", "turns"), KERNELS, ids=[row[0] for row in KERNELS]
)
def test_what_a_kernel_does(name, flops, moved, kind, turns):
    kernel = counted()[name]
    assert (kernel.work.flops, kernel.work.bytes, kernel.work.kind) == (flops, moved, kind)
    assert kernel.turns == turns


OTHER_KERNELS = """
HloModule others

ENTRY %main (a: c64[4,8], b: c64[8,2], t: f32[10,4], i: s32[3,1], u: f32[3,4]) -> f32[10,4] {
  %a = c64[4,8]{1,0} parameter(0)
  %b = c64[8,2]{1,0} parameter(1)
  %t = f32[10,4]{1,0} parameter(2)
  %i = s32[3,1]{1,0} parameter(3)
  %u = f32[3,4]{1,0} parameter(4)
  %q = bf16[1,2,16,8]{3,2,1,0} parameter(5)
  %complex = c64[4,2]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %whole = bf16[1,2,16,8]{3,2,1,0} custom-call(%q, %q, %q), ATTENTION
  ROOT %rows = f32[10,4]{1,0} scatter(%t, %i, %u), to_apply=%add
}
""".replace(
    "ATTENTION",
    'custom_call_target="__cudnn$fmhaSoftmax", backend_config={"mask_type":"NO_MASK",'
    '"intermediate_tensor_shape":{"dimensions":["1","2","16","16"]}}',
)


def test_what_rarer_kernels_do():
    found = counted(OTHER_KERNELS)
    assert (found["complex"].work.flops, found["complex"].work.kind) == (4 * 2 * 4 * 2 * 8, "float32")
    assert found["rows"].work.bytes == 2 * (3 * 4 * 4) + 3 * 4  # in place: old rows, new rows, indices
    assert found["whole"].work.flops == 2 * 2 * (2 * 16 * 16) * 8
    half = counted(OTHER_KERNELS.replace("NO_MASK", "CAUSAL"))["whole"].work.flops
    assert 2 * half == found["whole"].work.flops


def test_the_order_of_events():
    found = [event.name for event in events(read(TEXT), flat)]
    assert found == [
        *("gemm_fusion", "cublas", "conv", "conv_input", "conv_filter"),
        *("all-reduce-start", "slice_fusion", "update_fusion", "all-reduce-start"),  # started, and waited for
        *("turn", "first", "second", "solve", "all-reduce", "all-reduce"),
    ]


def test_collectives_and_where_a_kernel_comes_from():
    assert [(start.kind, start.bytes) for start in starts(events(read(TEXT), flat))] == [
        ("all-reduce", 4000),
        ("all-reduce", 4),
    ]
    assert counted()["gemm_fusion"].origin == "jvp()/dot_general"


def test_only_a_function_that_nobody_can_count_is_unknown():
    assert [name for name, kernel in counted().items() if not kernel.work.counted] == ["solve"]


FAULTS = [
    # what a wrong reader would see, and the kernel that is then counted wrongly
    (
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n\n%sliced",
        "lhs_contracting_dims={0}\n}\n\n%sliced",
        "gemm_fusion",
    ),
    ('"lhs_contracting_dimensions":["1"]', '"lhs_contracting_dimensions":["0"]', "cublas"),
    ("__cudnn$convBackwardInput", "__cudnn$convForward", "conv_input"),
    ("__cudnn$convBackwardFilter", "__cudnn$convForward", "conv_filter"),
    ("dynamic-slice(%p0, %p1, %p1)", "negate(%p0)", "slice_fusion"),
    ("dynamic-update-slice(%p0, %p1, %p2, %p2)", "negate(%p0)", "update_fusion"),
    ('"known_trip_count":{"n":"12"}', '"known_trip_count":{"n":"11"}', "turn"),
    ('"known_trip_count":{"n":"12"}', "", "turn"),
    ("branch_computations={%short, %long}", "branch_computations={%short, %short}", "second"),
]


@pytest.mark.parametrize(("text", "fault", "name"), FAULTS, ids=range(len(FAULTS)))
def test_a_planted_fault_in_the_text_is_found(text, fault, name, monkeypatch):
    assert TEXT.count(text) == 1
    monkeypatch.setitem(globals(), "TEXT", TEXT.replace(text, fault))
    monkeypatch.setattr(counted, "__defaults__", (TEXT,))
    with pytest.raises((AssertionError, KeyError)):
        test_what_a_kernel_does(*next(row for row in KERNELS if row[0] == name))


def test_a_text_without_a_program():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        read("HloModule empty")


@pytest.mark.parametrize(
    ("kind", "size"),
    [("f32", 12), ("bf16", 6), ("pred", 3), ("f8e4m3fn", 3), ("s4", 2), ("c64", 24), ("token", 0)],
)
def test_sizes_of_types(kind, size):
    assert next(iter(arrays(f"({kind}[3]{{0}}, {kind}[])"))).bytes == size


def test_a_loop_in_a_loop():
    twelve = "%turn = f32[8,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    five = (
        "%turn = (f32[8,8]{1,0}) while(%p), condition=%condition, body=%long, "
        'backend_config={"known_trip_count":{"n":"5"}}'
    )
    assert twelve in TEXT
    inside = TEXT.replace(twelve, five)
    assert {event.turns for event in events(read(inside), flat) if event.name == "second"} == {1, 60}


def test_every_turn_of_a_scan_counts():
    """XLA's own analysis counts the body once."""

    def turns(x, w):
        return jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=10)[0]

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    done = events(read(jax.jit(turns).trace(x, x).lower().compile().as_text()), flat)
    assert sum(e.work.flops * e.turns for e in done if isinstance(e, Kernel)) == 10 * 2 * 64**3


def test_operations_of_a_small_network(found):
    assert sum(slot.flops for slot in found.schedule.slots) == PRODUCTS
    moved = sum(slot.bytes for slot in found.schedule.slots if slot.lane == "compute")
    assert moved >= 3 * PARAMETERS


# ------------------------------------------------------------------------------------------ two lanes


def kernel(name: str, seconds: float) -> Kernel:
    return Kernel(name, "", KernelWork(bytes=seconds))


def start(name: str, seconds: int, turns: int = 1) -> CollectiveStart:
    return CollectiveStart(name, "all-reduce", seconds, turns)


A, B = CollectiveWait("a"), CollectiveWait("b")
LANES = [
    # events; step; seconds of the exchange, and those hidden
    ([kernel("x", 3)], 3, 0, 0),
    ([kernel("x", 3), start("a", 2), A, kernel("y", 1)], 6, 2, 0),
    ([start("a", 2), kernel("x", 3), A], 3, 2, 2),
    ([start("a", 5), kernel("x", 3), A, kernel("y", 1)], 6, 5, 3),
    ([start("a", 2), start("b", 2), kernel("x", 3), A, kernel("y", 2), B], 5, 4, 4),
    ([kernel("x", 1), start("a", 4), kernel("y", 1)], 5, 4, 1),
    ([start("a", 2), start("b", 2), kernel("x", 1), A, B], 4, 4, 1),
    ([start("a", 2, 3), kernel("x", 3), A], 6, 6, 3),
]


@pytest.mark.parametrize(("program", "step", "exchanged", "hidden"), LANES, ids=range(len(LANES)))
def test_two_lanes_by_hand(program, step, exchanged, hidden):
    found = lanes(program, lambda work: work.bytes, lambda start: float(start.bytes))
    assert (found.step, found.communicating) == (step, exchanged)
    assert sum(slot.hidden for slot in found.exchanges) == hidden
    assert found.overlap == (hidden / exchanged if exchanged else 1)


@pytest.mark.parametrize("fault", ["nothing waits", "no second lane", "turns left out"])
def test_a_planted_fault_in_the_lanes_is_found(fault):
    def wrong(program):
        if fault == "nothing waits":
            return [event for event in program if not isinstance(event, CollectiveWait)]
        if fault == "turns left out":
            return [dataclasses.replace(e, turns=1) if isinstance(e, CollectiveStart) else e for e in program]
        waits = [
            [event, CollectiveWait(event.name)] if isinstance(event, CollectiveStart) else [event]
            for event in program
        ]
        return [event for both in waits for event in both]

    def all_lanes():
        for program, *row in LANES:
            test_two_lanes_by_hand(wrong(program), *row)

    with pytest.raises(AssertionError):
        all_lanes()


# --------------------------------------------------------------------------------------------- time

ROUND = Hardware("round", {"float32": 1e12}, 1e11, 1e9, 1e9, 1e8, 1e-5, 1e-4, 1.0, 1.0, 1.0, 0.0, 0.0)
PER_HOST = 4
MESSAGE = CollectiveStart("a", "all-reduce", 4_000_000)
WORK = KernelWork(2e10, 1e9, "float32")


def test_the_roofline():
    assert ROUND.seconds(WORK) == pytest.approx(2e-2)  # operations: 20 ms; bytes: 10 ms
    assert ROUND.seconds(dataclasses.replace(WORK, bytes=4e9)) == pytest.approx(4e-2)
    assert dataclasses.replace(ROUND, products=0.5).seconds(WORK) == pytest.approx(4e-2)
    assert dataclasses.replace(ROUND, streaming=0.25).seconds(WORK) == pytest.approx(4e-2)
    assert dataclasses.replace(ROUND, kernel=1.0).seconds(WORK) == pytest.approx(1.02)


@pytest.mark.parametrize(
    ("n", "seconds"),
    [
        (1, 0),
        (2, 2 * 1 / 2 * 4e-3 + 2 * 1e-5),
        (4, 2 * 3 / 4 * 4e-3 + 6 * 1e-5),
        (8, 2 * 3 / 4 * 4e-3 + 6 * 1e-5 + 2 * 1 / 2 * 4e-2 + 2 * 1e-4),
        (
            16,
            2 * 3 / 4 * 4e-3 + 6 * 1e-5 + 2 * 3 / 4 * 4e-2 + 4 * 1e-4,
        ),  # a tree of four hosts has two floors
    ],
)
def test_rings_within_and_between_hosts(n, seconds):
    assert exchange(MESSAGE, n, PER_HOST, ROUND) == pytest.approx(seconds, rel=1e-12)


def test_a_collective_that_goes_around_once_takes_half():
    gather = dataclasses.replace(MESSAGE, kind="all-gather")
    assert 2 * exchange(gather, 8, PER_HOST, ROUND) == pytest.approx(exchange(MESSAGE, 8, PER_HOST, ROUND))


NUMBERS = tuple(2**i for i in range(11))
PROGRAM = (
    Kernel("x", "", KernelWork(1e10, 0, "float32")),
    MESSAGE,
    Kernel("y", "", KernelWork(1e10, 0, "float32")),
    CollectiveWait("a"),
)


def points(program=PROGRAM, **changes):
    return scale(8, program, dataclasses.replace(ROUND, **changes), NUMBERS, PER_HOST)


def test_a_point_by_hand():
    p = points()[3]
    assert (p.devices, p.hosts) == (8, 2)
    assert p.communicating == pytest.approx(exchange(MESSAGE, 8, PER_HOST, ROUND))
    assert p.waiting == pytest.approx(p.communicating - 1e-2)  # a kernel of 10 ms beside it
    assert p.step == pytest.approx(1e-2 + p.communicating)
    assert p.efficiency == pytest.approx(2e-2 / p.step)
    assert p.rows_per_second == pytest.approx(64 / p.step)


def test_more_devices_are_never_more_efficient():
    steps = [p.step for p in points()]
    assert steps == sorted(steps)
    assert points()[0].efficiency == 1
    rates = [p.rows_per_second for p in points()]
    assert all(r <= n * rates[0] for r, n in zip(rates, NUMBERS, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"link": 2e9},
        {"network": 2e8},
        {"latency": 0.0},
        {"network_latency": 0.0},
        {"flops": {"float32": 2e12}},
    ],
    ids=str,
)
def test_a_better_figure_never_costs(change):
    better, now = points(**change), points()
    assert all(a.step <= b.step for a, b in zip(better, now, strict=True))
    assert better[-1].step < now[-1].step


def test_all_hidden_is_perfect_scaling():
    fast = {"link": 1e12, "network": 1e12, "latency": 0.0, "network_latency": 0.0}
    assert {p.efficiency for p in points(**fast)} == {1.0}


@pytest.mark.parametrize("fault", ["n+1", "once around", "latency left out", "hosts left out"])
def test_a_planted_fault_in_the_ring_is_found(fault, monkeypatch):
    def wrong(n, sent, rate):
        if fault == "hosts left out" and rate == ROUND.network:
            return 0.0
        return (n + 1 if fault == "n+1" else n - 1) / n * sent / rate

    monkeypatch.setattr("jaxpar._tools.estimate.schedule._ring", wrong)
    hardware = dataclasses.replace(ROUND, latency=0.0) if fault == "latency left out" else ROUND
    message = dataclasses.replace(MESSAGE, kind="all-gather") if fault == "once around" else MESSAGE
    monkeypatch.setitem(globals(), "ROUND", hardware)
    monkeypatch.setitem(globals(), "MESSAGE", message)
    with pytest.raises(AssertionError):
        test_rings_within_and_between_hosts(8, 6e-3 + 6e-5 + 4e-2 + 2e-4)


def test_a_planted_fault_in_the_bytes_is_found(monkeypatch):
    half = lambda tree: size(tree) // 2  # noqa: E731 (as if of 16 bits)
    monkeypatch.setattr("jaxpar._tools.estimate.program.size", half)
    with pytest.raises(AssertionError):
        test_bytes_of_a_small_network_with_adam(estimate(Net, optax.adam(1e-3), loss_fn, *rows(ROWS, 5, 3)))


# ------------------------------------------------------------------------------- the largest batch

BYTES = {
    "a line": lambda b: 100 + 7 * b,
    "nearly": lambda b: 100 + 7 * b + b % 3,
    "a jump": lambda b: 3 * b if b <= 10 else 10**9,
    "a square": lambda b: 5 * b * b,
    "nothing fits": lambda b: 10**6,
}


@pytest.mark.parametrize("begin", [1, 16, 500])
@pytest.mark.parametrize("name", BYTES)
def test_the_largest_batch_is_the_largest(name, begin):
    held = BYTES[name]
    compiled = []
    found = largest(lambda b: compiled.append(b) or held(b), 1000, begin, held(begin))
    most = max((b for b in range(1, 1000) if held(b) <= 1000), default=0)
    assert found.compiles == len(compiled) == len(set(compiled)) <= 6
    assert found.rows <= most
    assert found.sure <= (found.rows == most)
    assert found.sure or name == "a square" or begin != 16  # far off, or no line


@pytest.mark.full
def test_the_largest_batch_of_a_network():
    def told(b: int, **options) -> Estimate:
        return estimate(
            Net, None, loss_fn, *rows(b, 5, 3), device=Hardware.of("h100", memory=1e5), devices=2, **options
        )

    most = told(ROWS, watch_batch=True).largest_batch
    assert most is not None
    assert most.sure
    assert told(most.rows).fits
    assert not told(most.rows + 1).fits


# ----------------------------------------------------------------------------- hardware and reports


def test_every_card_is_plausible():
    for card in CARDS.values():
        assert card.flops["float32"] <= card.flops["float16"]
        assert card.network_latency > card.latency
        assert card.link < card.bandwidth < card.flops["float32"]


UNITS = {"T": 1e12, "TB/s": 1e12, "GB": 1e9, "GB/s": 1e9}


def test_the_page_has_every_figure_of_every_card():
    page = (Path(__file__).parents[1] / "docs" / "estimate.md").read_text().partition("| `device=` |")[2]
    rows = re.findall(r"^\| (\S+)[^|]* " + r"\| ([^|]+) " * 8 + r"\|$", page, re.MULTILINE)
    listed = {}
    for name, *cells in rows:
        values = [cell.split() for cell in cells]
        listed[name] = [None if v == ["-"] else pytest.approx(float(v[0]) * UNITS[v[1]]) for v in values]
    kinds = ("float64", "float32", "bfloat16", "float16")
    assert listed == {
        name: [*map(card.flops.get, kinds), card.memory, card.bandwidth, card.link, card.network]
        for name, card in CARDS.items()
    }


@pytest.mark.parametrize("name", ["a100-80", "A100 80", "a100", "A100"])
def test_a_card_may_be_called_as_topology_calls_it(name):
    assert Hardware.of(name) is not CARDS["a100"]  # a copy
    assert Hardware.of(name) == CARDS["a100"]


def test_a_card_without_a_name_is_none():
    with pytest.raises(ValueError, match="device='' is none of"):
        Hardware.of("")


def test_figures_are_replaced():
    changed = Hardware.of("RTX 4090", flops=1e12, link=5e9)
    assert (changed.rate("float64"), changed.link, changed.memory) == (1e12, 5e9, 24e9)


def test_fits(found):
    assert found.fits
    assert found.room == 0.75 * 80e9
    assert not dataclasses.replace(found, room=found.memory.total - 1).fits


@pytest.mark.full
def test_json_and_picture(found, tmp_path):
    document = json.loads(found.to_json())
    assert document["memory"]["optimizer"] == 2 * PARAMETERS + 4
    assert document["memory"]["total"] == found.memory.total
    assert [p["devices"] for p in document["points"]] == [1, 2, 4, 8]
    assert document["traffic"]["count"] == 1
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def lab(colour: str) -> np.ndarray:
    """CIE L*a*b* of #rrggbb, where equal distances look about equally far."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(to_xyz @ linear / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(colours: list[str]) -> float:
    return min(float(np.linalg.norm(lab(a) - lab(b))) for a, b in itertools.combinations(colours, 2))


def test_no_colour_means_two_things():
    assert nearest([*COLOURS, *report.KINDS.values()]) > 20
    assert nearest([*COLOURS, *report.KINDS.values(), "#0070B0"]) < 5  # planted


@pytest.mark.parametrize(("room", "dashed"), [(60e9, False), (1e4, True)])
def test_a_small_model_fills_its_panel(room, dashed, found):
    """Beside 60 GB its kilobytes would be an empty panel."""
    pytest.importorskip("matplotlib")
    memory, _ = report.drawn(dataclasses.replace(found, room=room)).axes
    top = max(bar.get_y() + bar.get_height() for bar in memory.patches)
    assert top > 0.02 * memory.get_ylim()[1]
    assert memory.get_ylabel().startswith("memory [kB]")
    assert ("dashed" in memory.get_ylabel()) is bool(memory.lines) is dashed


def legend(panel) -> list[str]:
    return [text.get_text() for text in panel.get_legend().get_texts()]


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_lane_without_anything_is_not_drawn(exchanges, found):
    pytest.importorskip("matplotlib")
    if not exchanges:
        slots = tuple(slot for slot in found.schedule.slots if slot.lane == schedule.COMPUTE)
        found = dataclasses.replace(found, schedule=dataclasses.replace(found.schedule, slots=slots))
    memory, lanes = report.drawn(found).axes
    assert [text.get_text() for text in lanes.get_yticklabels()] == ["exchange"] * exchanges + ["computes"]
    assert ("exchange" in legend(lanes)) is exchanges
    rows = {bars.get_label(): bars.get_paths()[0].get_extents() for bars in lanes.collections}
    for label, row in rows.items():
        assert row.y0 < (1.0 if label == "exchange" else 2.0) < row.y1  # at its name
    there = [part for part in PARTS if getattr(found.memory, part)]
    assert legend(memory) == there
    assert len(there) < len(PARTS)  # a Linear has no buffers


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
    ended = command(
        tmp_path,
        "--json",
        "--device",
        "l4",
        "--link",
        "2",
        "--devices",
        "3",
        "--hosts",
        "2",
        "--latency",
        "0",
    )
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert told["memory"]["parameters"] == F32 * 18
    assert (told["hardware"]["link"], told["hardware"]["latency"]) == (2e9, 0)
    assert [p["devices"] for p in told["points"]] == [1, 2, 4, 6]
    assert [p["hosts"] for p in told["points"]] == [1, 1, 2, 2]


@pytest.mark.full
def test_the_table(tmp_path):
    ended = command(tmp_path, "--hosts", "2", "--watch-batch", "--memory", "0.001")
    shown = " ".join(ended.output.split())
    for word in (
        "Linear, 16 rows on each of 8 H100 SXM (figures changed) on each of 2 hosts, compiled for cpu",
        "NOT THE CARD'S PROGRAM: XLA's compiler for GPUs is not installed",
        '(pip install "jaxpar[gpu-compiler]")',
        "optimizer",
        "1 collective of",
        "jvp()/dot_general",
        "Largest batch:",
        "A prediction, not a measurement",
    ):
        assert word in shown


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


def on_a_mesh():
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jaxpar.devices()[:4])
    return jaxpar.DataParallel(Net(), mesh=mesh, axis="data")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"device": "v200"}, ValueError, "device='v200' is none of b200"),
        ({"devices": 0}, ValueError, "devices is 0; it must be 1 or more"),
        ({"hosts": 2.5}, TypeError, "hosts is 2.5; it must be int"),
        ({"memory_share": 2}, ValueError, "memory_share=2 must be above 0 and at most 1"),
        ({"device": dataclasses.replace(ROUND, flops={"int8": 1.0})}, ValueError, "no figure for float32"),
        ({"net": linen.Dense(3)}, TypeError, "net must be an nnx.Module .*ToNNX"),
        ({"net": on_a_mesh}, TypeError, "net was wrapped with mesh="),
        ({"batch": ()}, jaxpar.errors.NoRowsError, "at least 1; they have none"),
        ({"batch": rows(4, 5) + rows(3, 3)}, jaxpar.errors.NoRowsError, "they have 3, 4"),
    ],
    ids=["card", "devices", "hosts", "share", "type", "Linen", "mesh", "nothing", "rows"],
)
def test_misuse(change, error, message):
    arguments = {"net": Net, "batch": rows(4, 5, 3)} | change
    net, batch = arguments.pop("net"), arguments.pop("batch")
    with pytest.raises(error, match=message):
        estimate(net, None, loss_fn, *batch, **arguments)


@pytest.mark.parametrize(
    "change",
    [
        {"link": 0},
        {"flops": -1},
        {"latency": -1},
        {"memory": float("inf")},
        {"products": 0},
        {"streaming": 2},
    ],
)
def test_impossible_figures(change):
    with pytest.raises(ValueError, match=r"must|part"):
        Hardware.of("h100", **change)
