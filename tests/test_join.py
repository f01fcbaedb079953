"""What ranks tell each other inside of join(), with the other rank's words made up; gloo/ has real ones."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jaxpar
from jaxpar import errors
from jaxpar._training import join, local_batch
from jaxpar._training.engine_state import EngineState
from jaxpar._training.join import Announced, Join
from jaxpar._training.world import World

DEVICES = tuple(jaxpar.devices()[:4])
LOCAL = jaxpar.Placement(DEVICES[:2])


def world(rank=0):
    return World(LOCAL, jaxpar.Placement(DEVICES), rank, 2)


def rows(n=3, dtype=np.float32):
    return local_batch.take((np.ones((n, 3), dtype),), {}, world())


def test_a_replica_of_this_process_without_rows():
    here = rows(1)
    assert (here.sizes, here.kinds) == ((1,), (((1, 3),), None))


def announced(monkeypatch, other, *, rank=0, by_all=True, throws=False):
    """A strategy whose other rank says `other`, or what this one says if that is "the same"."""

    def exchange(what, text, timeout, group):
        said = [text, text if other == "the same" else json.dumps(other)]
        return said if rank == 0 else said[::-1]

    monkeypatch.setattr(join, "exchange", exchange)
    return Announced(world(rank), 1.0, by_all, throws, True)


def test_all_have_rows(monkeypatch):
    strategy = announced(monkeypatch, "the same")
    agreed, mine = strategy.agree(rows(), None, False)
    kind = (((2, 3),), ((1, 3),))
    assert (agreed.kinds, agreed.divisor, agreed.source, agreed.buffers_from) == (kind * 2, 4, None, 1)
    assert strategy.last == 1
    assert mine.sizes == (2, 1)


@pytest.mark.parametrize(("by_all", "divisor"), [(True, 4), (False, 2)])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_other_has_none_left(rank, by_all, divisor, monkeypatch):
    """docs/semantics.md rows J2, J4: what is divided by, and whose buffers count."""
    strategy = announced(monkeypatch, {"never": False}, rank=rank, by_all=by_all)
    agreed, _ = strategy.agree(rows(), None, False)
    none, mine = (None, None), (((2, 3),), ((1, 3),))
    assert agreed.kinds == (mine + none if rank == 0 else none + mine)
    assert (agreed.divisor, agreed.buffers_from, strategy.last) == (divisor, rank, rank)


def test_nobody_has_any_left(monkeypatch):
    strategy = announced(monkeypatch, {"never": False})
    strategy.rows = rows()
    assert strategy.announce(None) is None


def test_a_rank_that_never_had_any(monkeypatch):
    with pytest.raises(errors.DistributedError, match="rank 1 left without any batch"):
        announced(monkeypatch, {"never": True}).agree(rows(), None, False)


@pytest.mark.parametrize(
    ("rank", "rank_that_is_done", "text"),
    [(0, 1, "Detected at least one rank that exhausted"), (0, 0, "Rank 0 exhausted all inputs")],
)
def test_early_termination(rank, rank_that_is_done, text, monkeypatch):
    """docs/semantics.md row J6."""
    here = rows()
    other = {"never": False} if rank_that_is_done else join._announcement(here, False)
    strategy = announced(monkeypatch, other, rank=rank, throws=True)
    strategy.rows = here
    with pytest.raises(RuntimeError, match=text):
        strategy.announce(here if rank_that_is_done else None)


def test_other_rows_are_another_batch(monkeypatch):
    other = join._announcement(rows(dtype=np.int32), False)
    with pytest.raises(
        errors.DivergenceError, match=r"the batch's dtypes differs: rank 0 has float32, rank 1"
    ):
        announced(monkeypatch, other).agree(rows(), None, False)


def test_ranks_may_have_other_numbers_of_rows(monkeypatch):
    agreed, mine = announced(monkeypatch, join._announcement(rows(8), False)).agree(rows(), None, False)
    assert agreed.kinds == (((2, 3),), ((1, 3),), ((4, 3),), ((4, 3),))
    assert [x.shape for x in jax.tree.leaves(mine.batch)] == [(2, 4, 3)]  # filled up to the largest piece


@pytest.mark.parametrize("keep", [True, False])
def test_all_ranks_are_in_no_sync_or_none_is(keep, monkeypatch):
    """docs/semantics.md row J9."""
    strategy = announced(monkeypatch, "the same")
    for buffers_from in (1, None if keep else 1):  # after a step in no_sync each has its own
        agreed, _ = strategy.agree(rows(), None, keep)
        assert (agreed.keep, agreed.buffers_from) == (keep, buffers_from)
    other = join._announcement(rows(), not keep)
    with pytest.raises(errors.DivergenceError, match=r"the mode differs: rank 0 has .*, rank 1 has"):
        announced(monkeypatch, other).agree(rows(), None, keep)


def test_a_rank_that_has_left_learns_what_the_others_do(monkeypatch):
    strategy = announced(monkeypatch, join._announcement(rows(), True))
    strategy.rows = rows()
    assert strategy.announce(rows().empty()).keep


def test_a_rank_without_rows_takes_the_numbers_of_a_step(monkeypatch):
    def batch(*more):
        return local_batch.take((np.ones((3, 3)), *more, {"flag": True}), {}, world())

    other = json.loads(json.dumps(join._announcement(batch(0.1 + 0.2, "b", None, np.float32(2)), True)))
    strategy = announced(monkeypatch, other)
    strategy.rows = batch(5, "a", None, np.float32(1))
    _, mine = strategy.agree(strategy.rows.empty(), None, False)
    # An object that is no number or text of Python's stays this rank's own.
    assert mine.batch[0][1:] == (0.1 + 0.2, "b", None, np.float32(1), {"flag": True})


# ----------------------------------------------------------------------------------------- the block


def state():
    state = EngineState(SimpleNamespace(shares_buffers=True))
    state.timeout = 1.0
    return state


def fake_engine(turns):
    """Takes so many more steps, and tells whether it was asked."""
    calls = []

    def turn(rows):
        calls.append("turn")
        return None if calls.count("turn") > turns else "a step"

    def receive(values, last, buffers, parameters):
        calls.append(f"receive {values} {last}")

    arrays = SimpleNamespace(take=lambda: ("values", None))
    return SimpleNamespace(
        turn=turn, receive=receive, arrays=arrays, drop=lambda: calls.append("drop"), calls=calls
    )


def test_a_rank_goes_on_until_all_are_done():
    """docs/semantics.md rows J3, J5: then all take what the last one has, and the block's end is its end."""
    here, engine = state(), fake_engine(2)
    with Join(here, world(), True, True, False) as block:
        assert here.strategy is block._strategy
        block._strategy.rows, block._strategy.last, here.engine = rows(), 1, engine
    assert engine.calls == ["drop", "turn", "turn", "turn", "receive values 1"]
    assert here.strategy is here.usual
    assert here.engine is None


@pytest.mark.parametrize("enable", [True, False])
def test_after_an_exception_nobody_is_waited_for(enable):
    """docs/semantics.md row J7."""
    here, engine = state(), fake_engine(0)
    block = Join(here, world(), True, enable, False)
    block._strategy.rows, here.engine = rows(), engine
    with pytest.raises(ZeroDivisionError), block:
        raise ZeroDivisionError
    assert engine.calls == []
    assert here.strategy is here.usual


def test_a_block_that_is_not_enabled_does_nothing():
    """docs/semantics.md row J7."""
    here, engine = state(), fake_engine(0)
    with Join(here, world(), True, False, False):
        assert here.strategy is here.usual
        here.engine = engine
    assert engine.calls == []


def test_a_rank_without_any_batch_announces_that(monkeypatch):
    said = []
    monkeypatch.setattr(
        join, "exchange", lambda what, text, timeout, group: said.append(json.loads(text)) or [text] * 2
    )
    here = state()
    with Join(here, world(), True, True, False):
        pass
    assert said == [{"never": True}]
    assert here.strategy is here.usual
