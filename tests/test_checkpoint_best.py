"""The best steps by a metric, and a resume that is not off by one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import outputs, ranks
from test_checkpoint_ranks import START

from jaxpar import Checkpointer
from jaxpar._checkpointer.step import Metric
from jaxpar._checkpointer.store import BestStore
from jaxpar.errors import CheckpointError

NAN, INF = float("nan"), float("inf")

# ------------------------------------------------------------------------------------------- the best


def saved(checkpointer, metrics, mode):
    return [checkpointer.save_best(i, m, mode=mode, tree=i) for i, m in enumerate(metrics)]


CASES = {
    "less is better": ("min", [3.0, 2.0, 2.5, 1.0], [True, True, False, True], 3),
    "more is better": ("max", [3.0, 2.0, 4.0, 1.0], [True, False, True, False], 2),
    "a tie keeps the earlier": ("min", [2.0, 2.0, 2.0], [True, False, False], 0),
    "not a number": ("min", [NAN, 2.0, NAN], [False, True, False], 1),
    "not a number, more is better": ("max", [NAN, -INF, NAN, 0.0], [False, True, False, True], 3),
    "never a number": ("max", [NAN, NAN], [False, False], None),
    "arrays": ("max", [np.float32(1), jnp.asarray([2.0]), jnp.asarray(1.5), 3], [True, True, False, True], 3),
}


@pytest.mark.parametrize(("mode", "metrics", "which", "best"), CASES.values(), ids=CASES)
def test_the_best_step_is_saved_and_restored(mode, metrics, which, best, tmp_path):
    checkpointer = Checkpointer(tmp_path, asynchronous=False)
    assert saved(checkpointer, metrics, mode) == which
    assert checkpointer.best_step() == best
    if best is not None:
        assert checkpointer.restore_best(tree=0) == (best, {"tree": best})
    assert checkpointer.latest_step() is None  # a series of its own


class Writes:
    """What `BestStore` reads, without disks."""

    def __init__(self, directory, keep):
        self.store, self.kept = BestStore(directory, keep), {}
        self.store._metrics = lambda: self.kept


@given(
    st.integers(1, 4),
    st.sampled_from(["min", "max"]),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, NAN]), max_size=12),
)
def test_the_best_k_are_kept(tmp_path_factory, k, mode, metrics):
    """Against sorting all of them at once."""
    writes = Writes(tmp_path_factory.getbasetemp(), k)
    for i, value in enumerate(metrics):
        if writes.store.accepts(Metric(value, mode)):
            writes.kept[i] = Metric(value, mode)
            worst = writes.store._ranked()[:-k]
            writes.kept = {step: m for step, m in writes.kept.items() if step not in worst}
    sign = 1 if mode == "min" else -1
    numbers = [i for i, value in enumerate(metrics) if value == value]
    want = sorted(numbers, key=lambda i: (sign * metrics[i], i))[:k]
    assert writes.store._ranked()[::-1] == want


@pytest.mark.parametrize("asynchronous", [False, True])
def test_max_to_keep_leaves_the_best_alone(asynchronous, tmp_path):
    with Checkpointer(tmp_path, max_to_keep=2, keep_best=2, asynchronous=asynchronous) as checkpointer:
        for i, loss in enumerate([5.0, 1.0, 4.0, 2.0, 3.0, 3.0]):
            checkpointer.save_best(i, loss, tree={"best": i})
            checkpointer.save(i, tree=i)
    names = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("**/manifest"))
    assert names == ["4/manifest", "5/manifest", "best/1/manifest", "best/3/manifest"]
    assert checkpointer.restore_best(tree={"best": 0}).trees == {"tree": {"best": 1}}
    assert checkpointer.restore(tree=0) == (5, {"tree": 5})


def test_what_was_best_before_an_interruption_is_compared(tmp_path):
    with Checkpointer(tmp_path) as first:
        saved(first, [2.0, 1.0], "min")
    with Checkpointer(tmp_path) as again:
        assert not again.save_best(2, 1.5, tree=2)
        assert again.save_best(3, 0.5, tree=3)
        assert again.restore_best(tree=0) == (3, {"tree": 3})


def test_a_step_that_is_trained_again_and_better_takes_the_place_of_the_first(tmp_path):
    with Checkpointer(tmp_path) as first:
        saved(first, [2.0, 1.0], "min")
    with Checkpointer(tmp_path) as again:
        assert not again.save_best(1, 1.0, tree="again")
        assert again.save_best(1, 0.5, tree="again")
        assert again.restore_best(tree="") == (1, {"tree": "again"})
    assert sorted(p.name for p in (tmp_path / "best").iterdir()) == [".lock", "1"]


def test_where_the_best_is_damaged_the_next_one_is_restored(tmp_path):
    with Checkpointer(tmp_path, keep_best=2) as checkpointer:
        saved(checkpointer, [2.0, 1.0, 3.0], "min")
        checkpointer.wait()
        (tmp_path / "best/1/manifest").write_bytes(b"")
        with pytest.warns(UserWarning, match="step 1 is damaged and is passed over"):
            assert checkpointer.restore_best(tree=0) == (0, {"tree": 0})


REFUSED = {
    "a mode": (
        lambda c: c.save_best(0, 1.0, mode="least", tree=0),
        ValueError,
        "'min' or 'max', not 'least'",
    ),
    "a text": (lambda c: c.save_best(0, "good", tree=0), TypeError, "the metric is 'good'"),
    "rows": (lambda c: c.save_best(0, np.ones(3), tree=0), TypeError, r"has shape \(3,\).*\.mean\(\)"),
    "nothing": (lambda c: c.save_best(0, 1.0), TypeError, "there is nothing to save"),
    "nothing to restore": (lambda c: c.restore_best(), TypeError, "there is nothing to restore"),
    "a step": (lambda c: c.save_best(-1, 1.0, tree=0), ValueError, "the step is -1"),
    "another mode": (
        lambda c: [c.save_best(i, 1.0, mode=m, tree=0) for i, m in enumerate(["min", "max"])],
        CheckpointError,
        "another mode than 'max'",
    ),
    "a number to keep": (lambda c: Checkpointer(c.directory, keep_best=0), ValueError, "keep_best is 0"),
    "no best": (lambda c: c.restore_best(tree=0), CheckpointError, "there is no step in .*best"),
}


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(call, error, text, tmp_path):
    with pytest.raises(error, match=text):
        call(Checkpointer(tmp_path, asynchronous=False))


TOGETHER = """
checkpointer = jaxpar.Checkpointer(folder)
for epoch, loss in enumerate([3.0, 1.0, float("nan"), 2.0]):
    step(x)
    # Each rank has a metric of its own, and rank 0's decides.
    print("SAVED", checkpointer.save_best(epoch, loss if rank == 0 else -epoch, net=net, place=Place(rank)))
    step(x)
    if rank == 0:
        assert checkpointer.save_best(10 + epoch, 0.5 - epoch, net=net, place=Place(7)) is True
    step(x)
checkpointer.wait()
place = Place(None)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    print("BEST", checkpointer.restore_best(place=place).step, place.at)
"""


@pytest.mark.slow
def test_rank_0s_metric_decides(tmp_path):
    for out in outputs(ranks(2, START + TOGETHER, env={"RUN": str(tmp_path)})):
        said = [line.split()[1:] for line in out.splitlines() if line.startswith(("SAVED", "BEST"))]
        assert said == [["True"], ["False"], ["False"], ["False"], ["13", "7"]]


# ---------------------------------------------------------------------------------------- the next step


class Sum:
    """Training, whose every epoch counts once: its state is the list of those that it has seen."""

    def __init__(self):
        self.seen = []

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 6),
    st.sampled_from([1, 2, 4]),
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=4),
)
def test_however_often_a_run_is_interrupted_it_trains_every_epoch_once(
    tmp_path_factory, n, every, interruptions
):
    """`interruptions`: at which epoch of the run, and whether by an exception or a `break`."""
    folder = tmp_path_factory.mktemp("run")
    for at, raises in [*interruptions, (n, False)]:
        training = Sum()
        with Checkpointer(folder, save_every=every, asynchronous=False) as checkpointer:
            try:
                for epoch in checkpointer.epochs(n, training=training):
                    if epoch == at and raises:
                        raise KeyError
                    if epoch == at:
                        break
                    training.seen.append(epoch)
            except KeyError:
                pass
    assert training.seen == list(range(n))
    assert checkpointer.resume(training=training) == n


def test_restored_says_what_is_next(tmp_path):
    checkpointer = Checkpointer(tmp_path, asynchronous=False)
    training = Sum()
    assert checkpointer.resume(training=training) == 0
    for epoch in range(checkpointer.resume(training=training), 3):
        training.seen.append(epoch)
        checkpointer.save(epoch, training=training)
    restored = checkpointer.restore(training=Sum())
    assert (restored.step, restored.next) == (2, 3)
    assert checkpointer.resume(training=training) == 3


def test_a_tree_cannot_be_resumed_in_place(tmp_path):
    checkpointer = Checkpointer(tmp_path, asynchronous=False)
    checkpointer.save(0, tree=0)
    for resume in (checkpointer.resume, lambda **items: list(checkpointer.epochs(3, **items))):
        with pytest.raises(CheckpointError, match=r"tree is a tree.*returns another one and the `next` step"):
            resume(tree=0)


def test_early_stopping_with_the_best_step(tmp_path):
    net, trained = nnx.Linear(1, 1, rngs=nnx.Rngs(0)), []
    for _ in range(2):  # the second time after an interruption: nothing is left to do
        with Checkpointer(tmp_path) as checkpointer:
            for epoch in checkpointer.epochs(20, net=net):
                if epoch - (checkpointer.best_step() or 0) > 2:
                    break
                trained.append(epoch)
                checkpointer.save_best(epoch, abs(epoch - 4), net=net)
    assert trained == list(range(7))
