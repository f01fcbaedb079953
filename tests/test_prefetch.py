"""prefetch: the same batches, on their devices, never too many, and a thread that ends."""

from __future__ import annotations

import gc
import itertools
import signal
import subprocess
import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hosts import aligned

import jaxpar
from jaxpar import errors
from jaxpar.data import DataLoader, TensorDataset, prefetch

X, Y = np.arange(72.0).reshape(24, 3), np.arange(24)


def threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name in ("prefetch",) or t.name.startswith("DataLoader")}


def gone(some: set[threading.Thread]) -> bool:
    for thread in some:
        thread.join(10)
    return not any(thread.is_alive() for thread in some)


def spread(x: jax.Array, axis: int = 0) -> list[tuple[jax.Device, list]]:
    """What each device holds of the rows, in row order."""
    shards = sorted(x.addressable_shards, key=lambda s: s.index[axis].start or 0)
    return [(s.device, s.data.tolist()) for s in shards]


# ----------------------------------------------------------------------------------------- placement


def test_rows_lie_where_the_replicas_are(devices):
    placement = jaxpar.Placement((devices[2], devices[0], devices[1], devices[3]))
    loader = DataLoader(TensorDataset(X, Y), 8)
    for (x, y), (want, labels) in zip(prefetch(loader, placement), loader, strict=True):
        assert x.dtype == want.dtype
        np.testing.assert_array_equal(x, want)
        pieces = np.split(want, 4)
        assert spread(x) == [(d, p.tolist()) for d, p in zip(placement.devices, pieces, strict=True)]
        assert spread(y)[1] == (devices[0], labels[2:4].tolist())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_dim(dim, devices):
    x = np.arange(64.0).reshape(8, 8)
    placement = jaxpar.Placement(tuple(devices[:4]), dim)
    (got,) = prefetch([x], placement)
    want = [(d, p.tolist()) for d, p in zip(devices, np.split(x, 4, dim), strict=False)]
    assert spread(got, dim % 2) == want


# docs/semantics.md row 15: pieces of torch.chunk's sizes cannot be one array
@pytest.mark.parametrize("rows", [0, 1, 3, 10])
def test_rows_that_do_not_divide_evenly_are_on_all_devices(rows, devices):
    x = np.arange(rows * 2.0).reshape(rows, 2)
    (got,) = prefetch([x], devices[:4])
    assert got.devices() == set(devices[:4])
    assert got.is_fully_replicated
    np.testing.assert_array_equal(got, x)


PLACES = {"one id": 2, "text": "cpu:2", "a list of one": [2]}


@pytest.mark.parametrize("place", PLACES)
def test_one_device(place, devices):
    (got,) = prefetch([{"x": X, "n": 3}], PLACES[place])
    assert got["x"].devices() == {devices[2]}
    assert got["n"] == 3


def test_all_devices_are_the_default(devices):
    (got,) = prefetch([X])
    assert [d for d, _ in spread(got)] == devices


@pytest.mark.slow
def test_one_cpu_device_is_no_placement():
    code = """
        import jax, numpy as np
        from jaxpar.data import prefetch
        (x,) = prefetch([np.ones(3)])
        print(x.devices() == set(jax.devices()), x.committed)
    """
    import textwrap

    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout.strip() == "True False"


@pytest.mark.parametrize("B", [8, 7])
def test_outputs_are_those_of_the_host_batch(B, devices):
    net = jaxpar.DataParallel(lambda x, y: (jnp.sin(x) + x.mean(), y), devices[:4])
    for batch in prefetch([(X[:B], Y[:B])], devices[:4]):
        for got, want in zip(net(*batch), net(X[:B], Y[:B]), strict=True):
            np.testing.assert_array_equal(got, want)
        for got, want in zip(jax.jit(net)(*batch), net(X[:B], Y[:B]), strict=True):
            np.testing.assert_array_equal(got, want)


def test_even_rows_stay_on_their_devices_when_they_are_scattered(devices):
    """The stacked form of an even batch is made of the same bytes on each device: nothing is sent."""
    from jaxpar._parallel.scatter import _stack

    placement = jaxpar.Placement(tuple(devices[:4]))
    (x,) = prefetch([X], placement)
    program = jax.jit(lambda x: jax.lax.with_sharding_constraint(_stack(x, 0, 6, 4), placement.stacked))
    text = program.lower(x).compile().as_text()
    (whole,) = prefetch([jax.device_put(X, placement.replicated)], placement)
    across = ("all-gather", "all-to-all", "collective-permute", "all-reduce")
    assert not any(word in text for word in across)
    assert spread(whole) == spread(x)
    # The planted fault: rows along another axis have to move.
    moved = jax.device_put(np.ones((8, 4)), jax.NamedSharding(placement.mesh, jax.P(None, "replica")))
    program = jax.jit(lambda x: jax.lax.with_sharding_constraint(_stack(x, 0, 2, 4), placement.stacked))
    assert any(word in program.lower(moved).compile().as_text() for word in across)


def test_an_array_that_lies_right_is_passed_as_it_is(devices):
    placement = jaxpar.Placement(tuple(devices[:4]))
    (once,) = prefetch([(X, X[:3])], placement)
    (twice,) = prefetch([once], placement)
    assert twice[0] is once[0]
    assert twice[1] is once[1]
    (there,) = prefetch([jax.device_put(X, devices[5])], 5)
    assert there.devices() == {devices[5]}
    (moved,) = prefetch([jax.device_put(X, devices[5])], placement)
    np.testing.assert_array_equal(moved, X)
    keys = jax.random.split(jax.random.key(0), 8)
    (sent,) = prefetch([keys], placement)
    np.testing.assert_array_equal(jax.random.key_data(sent), jax.random.key_data(keys))


@pytest.mark.parametrize("columns", [1024, 40_000])
def test_a_source_may_use_its_arrays_again(devices, columns):
    def filling():
        x = aligned((8, columns))
        for i in range(6):
            x[:] = i
            yield x

    for place in (devices[:4], 1, devices[:3]):
        got = list(prefetch(filling(), place, size=6))
        assert [float(x.min()) for x in got] == [float(x.max()) for x in got] == [0, 1, 2, 3, 4, 5]


def test_batches_of_torch_and_others(devices):
    torch = pytest.importorskip("torch")
    from torch.utils import data

    rows = data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    for x, y in prefetch(data.DataLoader(rows, 8), devices[:4]):
        assert isinstance(x, jax.Array)
        assert (x.dtype, y.dtype) == (np.float64, np.int64)
    shape = types.SimpleNamespace
    marker = shape()
    tree = {"text": ["a", "b"], "none": None, "number": 3, "scalar": np.float32(2), "thing": marker, "x": X}
    (got,) = prefetch([tree], devices[:4])
    assert {k: v for k, v in got.items() if k != "x"} == {k: v for k, v in tree.items() if k != "x"}
    assert got["thing"] is marker
    said = pytest.warns(UserWarning, match="prefetch: batch is float64 and becomes float32")
    with jax.enable_x64(False), said:
        (got,) = prefetch([X], devices[:4])
    assert got.dtype == np.float32  # the caller's setting, not that of the process


# ---------------------------------------------------------------------------------------- the thread


@pytest.mark.parametrize("size", [1, 2, 4])
def test_no_more_batches_than_asked(size):
    made, alive = [], []

    def batches():
        for i in range(12):
            made.append(i)
            yield np.full(8, i)

    for i, batch in enumerate(prefetch(batches(), 0, size)):
        assert int(batch[0]) == i
        time.sleep(0.01)
        alive.append(len(made) - (i + 1))
    assert max(alive) == size  # it does read ahead
    assert made == list(range(12))


def test_every_loop_is_a_pass():
    before = threads()
    loader = prefetch(DataLoader(np.arange(20), 6, shuffle=True, seed=1), 0)
    twin = DataLoader(np.arange(20), 6, shuffle=True, seed=1)
    assert len(loader) == 4
    for _ in range(2):
        assert [b.tolist() for b in loader] == [b.tolist() for b in twin]
    assert gone(threads() - before)
    with pytest.raises(TypeError, match="has no len"):
        len(prefetch(iter([X])))


ENDS = ["break", "error", "dropped", "close", "with", "with and error", "end"]


@pytest.mark.full
@pytest.mark.sampled(3)
@pytest.mark.parametrize("end", ENDS)
def test_the_thread_ends_with_the_loop(end):
    before = threads()
    batches = prefetch(DataLoader(Y, 2, num_workers=2), 0)
    if end == "break":
        for _ in batches:
            break
    elif end == "error":
        with pytest.raises(KeyError):  # noqa: PT012
            for _ in batches:
                raise KeyError
    elif end == "dropped":
        one = iter(batches)
        next(one)
        del one
    elif end == "close":
        one = iter(batches)
        next(one)
        running = {t for t in threads() - before if t.name == "prefetch"}
        assert len(running) == 1
        batches.close()
        assert not any(t.is_alive() for t in running)
        assert list(one) == []
    elif end == "with":
        with batches as same:
            assert same is batches
            one = iter(batches)
            next(one)
    elif end == "with and error":
        with pytest.raises(KeyError), batches:  # noqa: PT012
            one = iter(batches)
            next(one)
            raise KeyError
    else:
        assert len(list(batches)) == 12
    del batches
    gc.collect()
    assert gone(threads() - before)


def test_ctrl_c_while_waiting_for_a_batch():
    before, asked = threads(), threading.Event()

    def waiting():
        yield X
        asked.wait(20)
        yield X

    timer = threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught, prefetch(waiting(), 0) as batches:
        list(batches)
    asked.set()
    assert gone(threads() - before)
    timer.join()
    assert caught.traceback


@pytest.mark.slow
def test_a_process_ends_with_a_batch_under_way():
    code = """
        import itertools, time
        import jaxpar
        jaxpar.virtual_devices(2)
        import numpy as np
        from jaxpar.data import prefetch, DataLoader

        def batches():
            for i in itertools.count():
                yield np.zeros((512, 512), np.float32)

        kept = iter(prefetch(batches(), [0, 1], 3))
        loader = iter(DataLoader(np.zeros(100, np.float32), num_workers=2))
        next(kept), next(loader)
        print("done")
    """
    import textwrap

    out = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, timeout=60)
    assert (out.returncode, out.stdout, out.stderr) == (0, b"done\n", b"")


# torch's loaders cannot do this: several threads launch, and virtual devices have few places
def test_training_on_virtual_devices_does_not_stop(devices):
    placement = jaxpar.Placement(tuple(devices))
    step = jax.jit(lambda w, x: w + jax.lax.with_sharding_constraint(x, placement.replicated).sum())
    w = jax.device_put(jnp.zeros(()), placement.replicated)
    rows = np.ones((64, 512))  # copies of more than 100 KB are tasks of XLA's pool
    for x in prefetch(itertools.repeat(rows, 200), placement):
        w = step(w, x)
    assert float(w) == 200 * rows.size


# ------------------------------------------------------------------------------------------- errors


def failing(error):
    yield X
    yield X
    raise error


@pytest.mark.parametrize("error", [OSError("disk"), KeyError("k"), RuntimeError("r")], ids=repr)
def test_an_error_comes_after_the_batches_before_it(error):
    before = threads()
    batches = iter(prefetch(failing(error), 0, 4))
    assert [len(next(batches)), len(next(batches))] == [24, 24]
    for _ in range(2):  # and again: nobody takes it for the end
        with pytest.raises(type(error)) as caught:
            next(batches)
        assert caught.value is error
    assert caught.value.__notes__ == ["prefetch: raised while batch 2 was read."]
    assert "failing" in [entry.name for entry in caught.traceback]
    assert gone(threads() - before)


def test_a_row_that_cannot_be_read_is_named_by_both():
    class Rows(list):
        def __getitem__(self, i):
            return [][i] if i == 5 else i

    with pytest.raises(IndexError) as caught:
        list(prefetch(DataLoader(Rows(range(8)), 2, num_workers=2), 0))
    assert caught.value.__notes__ == [
        "DataLoader: raised by dataset[5], sample 1 of batch 2.",
        "prefetch: raised while batch 2 was read.",
    ]


BAD = {
    "text": (lambda: [np.array(["a"])], errors.LeafError, r"prefetch: batch has dtype <U1"),
    "objects": (
        lambda: [{"x": np.array([{}])}],
        errors.LeafError,
        r"prefetch: batch\['x'\] has dtype object",
    ),
    "containers": (
        lambda: [type("Mine", (dict,), {})(x=X)],
        errors.LeafError,
        "a container that JAX does not",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_leaves_that_no_device_can_hold(case):
    batches, kind, text = BAD[case]
    with pytest.raises(kind, match=text) as caught:
        list(prefetch(batches(), 0))
    assert caught.value.__notes__ == ["prefetch: raised while batch 0 was sent to the devices."]


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"], ids=repr)
def test_bad_sizes(size):
    with pytest.raises((ValueError, TypeError), match=r"prefetch: size is .*; it must be (int|1 or more)"):
        prefetch([X], size=size)


def test_bad_sources_and_devices():
    with pytest.raises(TypeError, match="prefetch: iterable is 3; it must be Iterable"):
        prefetch(3)
    with pytest.raises(errors.DeviceError, match="out of range"):
        prefetch([X], 99)
    with pytest.raises(errors.DeviceError, match="given twice"):
        prefetch([X], [0, 0])


# --------------------------------------------------------------------------------------- its place


@pytest.mark.parametrize("taken", [0, 1, 4, 7])
def test_the_place_is_that_of_the_last_batch_given_out(taken):
    def make():
        return prefetch(DataLoader(np.arange(20), 3, shuffle=True, seed=1, num_workers=1), 0, 4)

    want = [b.tolist() for b in itertools.chain(make(), ())]
    batches = make()
    run = iter(batches)
    done = [next(run).tolist() for _ in range(taken)]
    time.sleep(0.02)  # it is ahead by now
    state = batches.state_dict()
    other = make()
    other.load_state_dict(state)
    assert other.state_dict()["batches"] == taken
    assert done + [b.tolist() for b in other] == want
    assert len(list(other)) == 7  # the next epoch is a whole one


class Grains:
    """Grain's protocol: the iterator has the place."""

    def __iter__(self):
        return Grain()


class Grain:
    next_index = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next_index == 6:
            raise StopIteration
        self.next_index += 1
        return np.full(4, self.next_index)

    def get_state(self):
        return {"next_index": self.next_index}

    def set_state(self, state):
        self.next_index = state["next_index"]


def test_the_place_of_an_iterator_with_get_state():
    batches = prefetch(Grains(), 0, 3)
    run = iter(batches)
    next(run), next(run)
    assert batches.state_dict() == {"next_index": 2}
    other = prefetch(Grains(), 0)
    other.load_state_dict({"next_index": 4})
    assert other.state_dict() == {"next_index": 4}
    assert [int(b[0]) for b in other] == [5, 6]
    assert [int(b[0]) for b in other] == [1, 2, 3, 4, 5, 6]


def test_a_place_that_cannot_be_kept():
    with pytest.raises(TypeError, match="the place in a list cannot be saved"):
        prefetch([X]).state_dict()
