"""Statements that other tests run without a look at their result, each with a test of its own.

Which these are, benchmarks/mutants/drawn.py shows: it changes statements that a seed draws.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxpar import errors, optim
from jaxpar._checkpointer.item import NNXItem
from jaxpar._tools.launch import watch
from jaxpar._tools.program import interpreter
from jaxpar.distributed import _collectives, exchange
from jaxpar.optim import lr_scheduler, swa_utils
from jaxpar.optim.swa_utils import _averaged_model
from jaxpar.parity import _match
from jaxpar.parity._runs import batches, passes, world_causes
from jaxpar.parity.contract import tries
from jaxpar.random import _uniform


def test_keys_and_counters_of_random_streams_are_marked_in_a_checkpoint():
    leaves = NNXItem("net", nnx.Dropout(0.5, rngs=nnx.Rngs(0))).leaves()
    assert {name.rpartition(".")[2] for name, leaf in leaves.items() if leaf.stream} == {"key", "count"}
    key_elsewhere = NNXItem("net", nnx.Dict(key=nnx.Variable(jax.random.key(0)), x=nnx.Param(jnp.ones(2))))
    assert {name for name, leaf in key_elsewhere.leaves().items() if leaf.stream} == {"key"}


def test_a_resumed_cosine_starts_at_its_epoch():
    net = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = optim.Optimizer(net, optim.sgd(lr=0.1))
    twin = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.param_groups[0]["initial_lr"] = twin.param_groups[0]["initial_lr"] = 0.1
    ours = lr_scheduler.CosineAnnealingLR(optimizer, 10, 0.01, last_epoch=3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(twin, 10, 0.01, last_epoch=3)
    assert math.isclose(ours.get_last_lr()[0], theirs.get_last_lr()[0], rel_tol=1e-7)


@pytest.mark.full
def test_schedules_without_a_factor_are_chained():
    twin = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    cosines = [torch.optim.lr_scheduler.CosineAnnealingLR(twin, length) for length in (5, 7)]
    theirs = torch.optim.lr_scheduler.ChainedScheduler(cosines)
    ours = lr_scheduler.chained_scheduler(
        [lr_scheduler.cosine_annealing_lr(0.1, length) for length in (5, 7)]
    )
    for step in range(9):
        assert math.isclose(float(ours(step)), twin.param_groups[0]["lr"], rel_tol=1e-6, abs_tol=1e-9)
        twin.step()
        theirs.step()


def test_batches_go_to_the_device_that_update_bn_is_given(monkeypatch):
    batches_seen = []
    monkeypatch.setattr(_averaged_model, "_forward", lambda model, x: batches_seen.append(x))
    norm, device = nnx.BatchNorm(3, rngs=nnx.Rngs(0)), jax.devices()[1]
    swa_utils.update_bn([np.ones((4, 3), np.float32)], norm, device)
    swa_utils.update_bn([np.ones((4, 3), np.float32)], norm)
    assert batches_seen[0].devices() == {device}
    assert isinstance(batches_seen[1], np.ndarray)


SHAPES = {"other lengths": ([[2, 4]], [[3, 4]], (3, 4)), "other axes": ([[2, 4]], [[2, 4, 1]], (2, 4))}


@pytest.mark.parametrize("name", SHAPES)
def test_only_arrays_with_equal_axes_are_padded(name, monkeypatch):
    first, second, sent = SHAPES[name]
    padded = []

    def gathered(group, function, x):
        padded.append(x.shape)
        return [x, x]

    monkeypatch.setattr(_collectives, "exchange_json", lambda *_: {0: first, 1: second})
    monkeypatch.setattr(_collectives, "_gathered", gathered)
    monkeypatch.setattr(_collectives, "_cut", lambda x, shape: x)
    _collectives._uneven(SimpleNamespace(timeout=1, size=2), jnp.ones((2, 4)))
    assert padded == [sent]


def test_a_call_without_a_connection_is_refused_and_one_with_it_is_made(monkeypatch):
    monkeypatch.setattr(exchange, "_client", lambda: None)
    with pytest.raises(errors.DistributedError, match="no connection to the other ranks"):
        exchange._call("key_value_set", "a", "b")
    calls = []
    client = SimpleNamespace(key_value_set=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(exchange, "_client", lambda: client)
    exchange._call("key_value_set", "a", "b")
    assert calls == [("a", "b")]


def test_a_sum_that_is_rounded_to_odd():
    numbers = np.random.RandomState(0).standard_normal((2, 500)) * 2.0 ** np.array([[0], [-30]])
    for a, b, total in zip(*numbers, _uniform._odd_sum(*numbers), strict=True):
        exact = Fraction(a) + Fraction(b)
        if Fraction(total) != exact:
            other = np.nextafter(total, np.inf if exact > Fraction(total) else -np.inf)
            assert min(Fraction(total), Fraction(other)) < exact < max(Fraction(total), Fraction(other))
            assert np.float64(total).view(np.int64) & 1


def test_rows_are_told_apart_by_each_of_their_arrays():
    first, second = np.array([1, 1, 2, 1], np.uint64), np.array([5, 6, 5, 5], np.uint64)
    identities = batches._identities([first, second])
    assert identities[0] == identities[3]
    assert len(set(identities.tolist())) == 3


@pytest.mark.parametrize(("factor", "named"), [(1024.0, True), (4096.5, False), (1.0, False)])
def test_powers_of_two_may_be_a_loss_scale(factor, named):
    scene = SimpleNamespace(a=SimpleNamespace(steps={1: SimpleNamespace(batch={})}), step=1)
    assert ("a loss scale?" in passes.reduction(scene, factor)) is named


@pytest.mark.parametrize(("rows", "named"), [({1: 8, 2: 7}, True), ({1: 7, 2: 7}, False), ({2: 7}, False)])
def test_the_first_batch_that_does_not_divide_is_named(rows, named, monkeypatch):
    monkeypatch.setattr(world_causes, "row_count", lambda step: step)
    run = SimpleNamespace(steps=rows)
    scene = SimpleNamespace(walk=SimpleNamespace(steps=list(rows)), step=2, a=run, b=run)
    worlds = (SimpleNamespace(parts=lambda: 1), SimpleNamespace(parts=lambda: 2))
    assert any("not equal" in text for text in world_causes._unequal_parts(scene, worlds)) is named


@pytest.mark.parametrize(("apart", "named"), [(0.0, True), (0.5, False)])
def test_a_mean_over_processes_is_named_if_it_is_the_other_value(apart, named, monkeypatch):
    monkeypatch.setattr(world_causes, "_averages", lambda *_: [])
    tables = [
        SimpleNamespace(rows=lambda names, x=x: SimpleNamespace(samples=np.array([[x]]))) for x in (1.0, 3.0)
    ]
    step = SimpleNamespace(ranks={"extra": tables})
    samples = SimpleNamespace(samples=np.array([[2.0 + apart]]))
    after = SimpleNamespace(distances=[1.0], names=["accuracy"], a=samples, b=samples)
    scene = SimpleNamespace(
        aligned=lambda kind: after,
        walk=SimpleNamespace(tolerance=lambda kind: 0.1),
        a=SimpleNamespace(steps={1: step}),
        b=SimpleNamespace(steps={1: step}),
        step=1,
    )
    worlds = (SimpleNamespace(), SimpleNamespace())
    monkeypatch.setattr(world_causes, "_reduced", lambda *_: [])
    assert any("is not reduced" in text for text in world_causes._extra_causes(scene, worlds)) is named


def test_a_fact_joins_with_a_tuple_that_is_known_in_part():
    shares = interpreter.Shares(range(2))
    assert interpreter._pairs(lambda a, b: a, shares.free, (shares.free, shares.free)) is shares.free
    assert interpreter._pairs(lambda a, b: a, (shares.free,), shares.free) is shares.free


@pytest.mark.parametrize("others", [1, 2])
def test_an_edit_mends_if_nothing_else_differs_than_before(others):
    names = [SimpleNamespace(candidate=name, kind="layer") for name in ("first", "second", "third")]
    first = SimpleNamespace(candidate="first", kind="layer", others=tuple(names[1:]))
    before = SimpleNamespace(divergence=first)
    now = SimpleNamespace(candidate="second", kind="layer", others=tuple(names[2 : others + 1]))
    assert tries.mends(before, SimpleNamespace(same=False, divergence=now))
    again = SimpleNamespace(candidate="first", kind="layer", others=())
    assert not tries.mends(before, SimpleNamespace(same=False, divergence=again))


@pytest.mark.parametrize("is_mended", [True, False])
def test_an_edit_is_offered_only_if_the_whole_comparison_agrees_after_it(is_mended, monkeypatch):
    place = SimpleNamespace(candidate="fc", kind="output", causes=(), phase="forward")
    before = SimpleNamespace(same=False, divergence=SimpleNamespace(**vars(place), others=(place,)))
    after = SimpleNamespace(same=True, divergence=None) if is_mended else before
    monkeypatch.setattr(
        tries.Tries, "_changed", lambda *_: [("x = 2\n", SimpleNamespace(text="2", relative=0.1), 0)]
    )
    monkeypatch.setattr(tries.Tries, "_again", lambda *_: after)
    attempts = tries.Tries(Path(), Path("port.py"), "x = 1\n", None, 0.0)
    answer = attempts.best(before, place)
    assert (answer["edit"] is not None) == is_mended
    assert attempts.mended == ("x = 2\n" if is_mended else None)


def test_an_axis_order_that_fits_as_well_is_noted():
    turn = SimpleNamespace(axes=("as it is", "transposed"), pairs=[("fc.weight", "fc.kernel")])
    guesses = SimpleNamespace(turns=lambda groups: [turn])
    tried = []

    def error(attempt):
        tried.append(attempt[1])
        return 0.0

    notes = list(_match._notes(guesses, ([], (0,)), [0.0], error))
    assert tried == [(1,)]
    assert notes[-1] == "ambiguous: fc.weight may lie as transposed as well"


def test_a_rank_that_does_not_wait_is_blamed_for_the_silence(monkeypatch):
    workers = [SimpleNamespace(rank=rank, beats=3, left_early=False) for rank in range(3)]
    output = SimpleNamespace(last_words=lambda rank: rank)
    monkeypatch.setattr(watch, "frames", lambda words: words)
    monkeypatch.setattr(watch, "waits", lambda rank: rank != 2)
    watcher = SimpleNamespace(
        gang=SimpleNamespace(running=workers, output=output),
        _stall=lambda cause, text: watch.AttemptEnd(1, cause),
    )
    assert watch.GangWatch._silence(watcher, workers[0], 1.0).cause is workers[2]
