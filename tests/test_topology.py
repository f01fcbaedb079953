"""topology without a compiler for GPUs: the table of cards, and every error. `gpu_programs/` has the rest."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar import errors
from jaxpar._devices.topology import Topology, compiler_options, of_topology, refuse_topology
from jaxpar._devices.visible import CARDS, card_of


@pytest.mark.parametrize("card", CARDS)
def test_figures_are_plausible(card):
    found = CARDS[card]
    assert (7, 0) <= found.capability <= (12, 0)
    assert 80 <= found.cores <= 188
    assert found.fpus in (64, 128)
    assert found.threads in (1536, 2048)
    assert 1 < found.clock < 3
    assert 500 < found.gigabytes_per_second < 10_000
    assert 16e9 < found.memory < 300e9
    assert 4 < found.cache_mib < 200
    shared, block = found.shared_kib
    assert block <= shared <= 228


def test_cards_have_names_of_their_own():
    assert {card_of(found.kind) for found in CARDS.values()} == set(CARDS)


@pytest.mark.parametrize("card", CARDS)
def test_the_text_for_the_compiler_holds_the_figures(card):
    found, text = CARDS[card], CARDS[card].target()
    told = dict(re.findall(r"(\w+): ([\d.]+)$", text, re.M))
    assert told["core_count"] == str(found.cores)
    assert told["device_memory_size"] == str(found.memory)
    assert int(told["memory_bandwidth"]) == round(1e9 * found.gigabytes_per_second)
    assert int(told["l2_cache_size"]) == round(2**20 * found.cache_mib)
    assert f"major: {found.capability[0]} minor: {found.capability[1]}" in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("card", "options", "message"),
    [
        ("h300", {}, "'h300' is not a card; there are v100, a100-40"),
        ("H100", {}, "is not a card"),
        ("h100", {"hosts": 0}, "hosts must be a positive integer, not 0"),
        ("h100", {"devices": 2.0}, "devices must be a positive integer, not 2.0"),
        ("h100", {"devices": True}, "not True"),
        ("h100", {"hosts": 100_000}, "100000 hosts of 8 devices are more than 65536"),
    ],
)
def test_what_is_refused(card, options, message):
    with pytest.raises(errors.DeviceError, match=re.escape(message)):
        jaxpar.topology(card, **options)


def test_without_the_compiler():
    with pytest.raises(ImportError, match=re.escape('pip install "jaxpar[gpu-compiler]"')):
        jaxpar.topology("h100")


def test_devices_that_are_there_are_no_topology(devices):
    assert not of_topology(devices)
    assert not of_topology([0, "cuda:1"])
    assert compiler_options(devices) == ()
    refuse_topology(devices, "test")


def test_a_topology_is_a_sequence(devices):
    found = Topology("h100", 2, tuple(devices))
    assert (len(found), found[1], found[-2:]) == (8, devices[1], tuple(devices[-2:]))
    assert list(found) == devices
    assert repr(found) == "topology('h100', hosts=2, devices=4)"
    assert jaxpar.DataParallel(jnp.tanh, found).device_ids == list(range(8))


# ------------------------------------------------------------------ lower, on devices that are there


def squared(net, x, y):
    return ((net(x) - y) ** 2).mean()


def step_of(wrap, **options):
    net = wrap(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
    return jaxpar.train_step(net, nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param), squared, **options)


def batch(rows):
    return np.ones((rows, 4)), np.zeros((rows, 2))


def programs(step, *rows):
    """The text of the program that a call runs, and of the one that `lower` gives."""
    called = []
    turn = step._engine.work.program

    def watched(*args):
        program, given = turn(*args)

        def run(*arguments):
            called.append(program.lower(*arguments).as_text())
            return program(*arguments)

        return run, given

    lowered = step.lower(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in rows)).as_text()
    step._engine.work.program = watched
    for _ in range(step._accumulate):
        step(*rows)
    return called[-1], lowered


OPTIONS = [
    {},
    {"accumulate": 2},
    {"precision": jaxpar.Precision("float16")},
    {"on_nonfinite": "ignore"},
    {"on_nonfinite": "skip"},
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rows", [16, 15])
@pytest.mark.parametrize("wrap", [jaxpar.DataParallel, jaxpar.DistributedDataParallel, lambda net: net])
def test_lower_gives_the_program_that_a_call_runs(wrap, rows, options):
    ran, lowered = programs(step_of(wrap, **options), *batch(rows))
    assert ran == lowered


def test_a_planted_difference_is_seen():
    ran, _ = programs(step_of(jaxpar.DataParallel), *batch(16))
    _, lowered = programs(step_of(jaxpar.DataParallel, on_nonfinite="ignore"), *batch(16))
    assert ran != lowered


def test_lower_changes_nothing():
    step = step_of(jaxpar.DistributedDataParallel)
    before = jax.tree.leaves(nnx.state((step.net, step.optimizer)))
    step.lower(*batch(16)).compile()
    after = jax.tree.leaves(nnx.state((step.net, step.optimizer)))
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert (step.calls, step.updates) == (0, 0)


@pytest.mark.parametrize(
    ("rows", "error"), [((batch(0)), errors.BatchError), ((batch(16)[0], batch(8)[1]), errors.RowsError)]
)
def test_lower_refuses_what_a_call_refuses(rows, error):
    with pytest.raises(error):
        step_of(jaxpar.DistributedDataParallel).lower(*rows)
