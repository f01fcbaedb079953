"""Training steps as XLA compiles them for H100s: what devices exchange, what is donated, what stays away.

Small nets have one all-reduce. The large one is in test_schedule.py.
"""

from __future__ import annotations

import hlo
import jax
import jax.numpy as jnp
import pytest
from by_hand import by_hand
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from steps import ARRAYS, IN, MAKE, OUT, PARAMETERS, STATISTICS, WRAPPERS, compiled, program, shapes, step_of

import jaxpar
from jaxpar import Precision, comm_hooks

F32, HALF = 4, 2
ALL = F32 * (PARAMETERS + STATISTICS + 1)
"""Bytes of one message: gradients, statistics and the loss."""

ONE = (("all-reduce", ALL),)
BFLOAT16, FLOAT16 = Precision("bfloat16"), Precision("float16")
STEP = ARRAYS + 2 * 6 + 2
"""What a step donates: parameters and statistics, Adam's two moments of each parameter, and two counters."""

SMALL = [
    # wrapper, rows, options, collectives, donated arrays
    ("dp", 64, {}, ONE, STEP + 1),
    ("ddp", 64, {}, ONE, STEP + 1),
    ("dp", 60, {}, ONE, STEP + 1),
    ("ddp", 60, {}, ONE, STEP + 1),
    ("dp", 64, {"on_nonfinite": "ignore"}, ONE, STEP),
    ("ddp", 60, {"on_nonfinite": "skip"}, ONE, STEP),
    ("dp", 64, {"accumulate": 2}, ONE, STEP + 1),
    ("ddp", 64, {"accumulate": 2}, ONE, STEP + 1),
    ("dp", 64, {"precision": BFLOAT16}, ONE, STEP + 1),
    ("ddp", 60, {"precision": BFLOAT16}, ONE, STEP + 1),
    ("dp", 60, {"precision": FLOAT16}, ONE, STEP + 2),
    ("ddp", 64, {"precision": FLOAT16}, ONE, STEP + 2),
    ("dp", 8192, {"hosts": 128}, ONE, STEP + 1),
    ("ddp", 8192, {"hosts": 128}, ONE, STEP + 1),
    ("dp", 8000, {"hosts": 128}, ONE, STEP + 1),
    ("ddp", 8000, {"hosts": 128}, ONE, STEP + 1),
]


@pytest.mark.parametrize(("kind", "rows", "options", "collectives", "donated"), SMALL)
def test_a_step(kind, rows, options, collectives, donated):
    found = program(kind, rows, **options)
    hlo.check_collectives(found, *collectives)
    hlo.check_no_collective_in_branches(found)
    hlo.check_stays_on_device(found)
    hlo.check_donates(found, donated)


def state_bytes():
    """Of parameters, statistics, moments and counters, each of which XLA may round up to 4 bytes."""
    return F32 * (3 * PARAMETERS + STATISTICS + 2)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_the_memory_of_the_old_state_is_the_new_ones(kind):
    told = compiled(kind, 64, on_nonfinite="ignore").memory_analysis()
    assert told.alias_size_in_bytes >= state_bytes()
    assert told.argument_size_in_bytes - told.alias_size_in_bytes < 2 * F32 * 64 // 8 * (IN + OUT)


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("few", [8, 16])
def test_more_devices_make_no_larger_program(kind, few):
    few_devices = program(kind, 8 * few, hosts=few // 8)
    assert few_devices.size == program(kind, 8192, hosts=128).size


@pytest.mark.parametrize(("kind", "rows"), [("dp", 64), ("ddp", 60)])
def test_calls_that_keep_gradients_exchange_little(kind, rows):
    step = step_of(kind, accumulate=2)
    kept = hlo.read(step._engine.trace(shapes("batch_norm", rows), {}, keep=True).lower().compile().as_text())
    # DataParallel's gradients are those of the whole batch, so replicas meet in every call.
    hlo.check_collectives(kept, *(ONE if kind == "dp" else ()))
    hlo.check_no_collective_in_branches(kept)
    hlo.check_stays_on_device(kept)


@pytest.mark.parametrize(
    ("hook", "nbytes"),
    [(comm_hooks.bf16_compress, HALF * PARAMETERS), (comm_hooks.fp16_compress, HALF * PARAMETERS)],
    ids=["bf16", "fp16"],
)
@pytest.mark.parametrize("rows", [64, 60])
def test_a_hook_that_compresses_sends_half(hook, nbytes, rows):
    found = program("ddp", rows, hook=hook)
    hlo.check_only_sums(found)
    hlo.check_no_collective_in_branches(found)
    hlo.check_stays_on_device(found)
    # XLA may sum halves as float32; what is asserted is what the program sends.
    assert sum(n for _, n in found.collectives) <= nbytes + F32 * (STATISTICS + 1), found.collectives


def test_powersgd_sends_less():
    found = program("ddp", 64, hook=comm_hooks.powersgd(matrix_approximation_rank=1))
    hlo.check_only_sums(found)
    hlo.check_stays_on_device(found)
    sent = [nbytes for _, nbytes in found.collectives]
    # Of the first thousand steps: whole gradients, in a branch that all replicas take by their counter.
    sent.remove(F32 * PARAMETERS)
    assert 0 < sum(sent) < ALL / 4, found.collectives


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("rows", [64, 60])
def test_synchronised_statistics_are_sums_outside_of_branches(kind, rows):
    found = program(kind, rows, net="sync_batch_norm")
    hlo.check_only_sums(found)
    hlo.check_no_collective_in_branches(found)
    hlo.check_stays_on_device(found)
    assert len(found.collectives) <= 5, found.collectives


def gradients(kind, rows):
    """The program of value_and_grad alone, inside of a user's jit."""
    gpus = jaxpar.topology("h100")
    net = WRAPPERS[kind](nnx.eval_shape(MAKE["batch_norm"]), gpus)
    placement = jaxpar.Placement(gpus.devices)

    def loss_fn(net, x, y):
        return ((net(x) - y) ** 2).mean()

    definition, state = nnx.split(net)

    def run(state, x, y):
        net = nnx.merge(definition, state)

        def with_module(loss_fn):
            return lambda *batch: nnx.value_and_grad(loss_fn)(net, *batch)

        make = net.value_and_grad if kind == "ddp" else with_module
        return make(loss_fn)(x, y), nnx.state(net, nnx.BatchStat)

    def on(x, spec):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(placement.mesh, spec))

    state = jax.tree.map(lambda x: on(x, PartitionSpec()), state)
    run = jax.jit(run, compiler_options={"xla_gpu_autotune_level": "0"})
    cut = PartitionSpec("replica") if rows % len(gpus) == 0 else PartitionSpec()
    return hlo.read(run.lower(state, *(on(x, cut) for x in shapes("batch_norm", rows))).compile().as_text())


@pytest.mark.filterwarnings("ignore:.*BatchNorm takes the statistics of each")  # in a loop of the user's own
@pytest.mark.parametrize(("kind", "rows"), [("dp", 64), ("ddp", 64), ("ddp", 60)])
def test_value_and_grad_in_a_users_program(kind, rows):
    found = gradients(kind, rows)
    hlo.check_only_sums(found)
    hlo.check_no_collective_in_branches(found)
    hlo.check_stays_on_device(found)
    hlo.check_collectives(found, *ONE)


def test_a_step_exchanges_what_one_by_hand_does_and_statistics():
    mine = by_hand("shard_map", "batch_norm", 64)
    hlo.check_collectives(mine, ("all-reduce", ALL - F32 * STATISTICS))


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("card", ["a100-40", "b200"])
def test_other_cards(kind, card):
    found = program(kind, 64, card=card)
    hlo.check_collectives(found, *ONE)
    hlo.check_donates(found, STEP + 1)


def test_shapes_stay_shapes():
    step = step_of("ddp")
    before = jax.tree.leaves(nnx.state(step.net))
    step.lower(*shapes("batch_norm", 64))
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in before)
    assert jax.tree.leaves(nnx.state(step.net)) == before
    assert step.calls == step.updates == 0
    assert jnp.ones(2).devices() == {jax.devices()[0]}
