"""More gradients than XLA puts into one all-reduce: buckets behind the backward pass, as by hand."""

import hlo
import pytest
from by_hand import by_hand
from steps import WRAPPERS, program

ROWS = 64


def ours(kind, **options):
    return program(kind, ROWS, net="gpt", **options)


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("way", ["shard_map", "sharding"])
def test_the_schedule_is_that_of_a_step_by_hand(kind, way):
    found, theirs = ours(kind, on_nonfinite="ignore"), by_hand(way, "gpt", ROWS)
    hlo.check_collectives(found, *theirs.collectives)
    hlo.check_same_schedule(found, theirs)
    hlo.check_overlaps(found)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_looking_at_gradients_sends_nothing_more(kind):
    found, theirs = ours(kind), by_hand("shard_map", "gpt", ROWS)
    hlo.check_overlaps(found)
    hlo.check_no_collective_in_branches(found)
    hlo.check_stays_on_device(found)
    hlo.check_only_sums(found)
    # XLA may cut the buckets in another place.
    assert len(found.collectives) == len(theirs.collectives)
    assert sum(n for _, n in found.collectives) == sum(n for _, n in theirs.collectives)
