"""DataLoader: torch's order, batches and errors, threads that end, and a place that can be kept."""

from __future__ import annotations

import collections
import copy
import gc
import itertools
import json
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import jaxpar.data
from jaxpar import errors
from jaxpar.data import DataLoader, TensorDataset
from jaxpar.random import Generator

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

X, Y = np.arange(60.0).reshape(20, 3), np.arange(20)


class Squares:
    """A data set without arrays."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return {"x": np.full(2, i, np.float32), "i": i, "name": str(i)}


class Failing(Squares):
    """Cannot give one of its rows."""

    def __init__(self, bad: int, error: BaseException):
        self.bad, self.error = bad, error

    def __getitem__(self, i):
        if i == self.bad:
            raise self.error
        return i


def plain(batch):
    """A batch as types and lists, arrays and tensors alike."""
    if isinstance(batch, (np.ndarray, torch.Tensor)):
        return str(batch.dtype).removeprefix("torch."), tuple(batch.shape), batch.tolist()
    if isinstance(batch, collections.abc.Mapping):
        return type(batch).__name__, {k: plain(v) for k, v in batch.items()}
    if isinstance(batch, (list, tuple, collections.deque)):
        return type(batch).__name__, [plain(v) for v in batch]
    return type(batch).__name__, batch


def workers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("DataLoader worker")}


def gone(threads: set[threading.Thread]) -> bool:
    """Whether all end within a few seconds."""
    for thread in threads:
        thread.join(10)
    return not any(thread.is_alive() for thread in threads)


# ---------------------------------------------------------------------------------------------- order

ORDERS = [
    {},
    {"batch_size": 3},
    {"batch_size": 3, "drop_last": True},
    {"batch_size": 4, "shuffle": True},
    {"batch_size": 3, "shuffle": True, "drop_last": True},
    {"batch_size": None, "shuffle": True},
    {"batch_size": None},
    {"batch_size": 7, "sampler": [3, 1, 2, 2, 19, 0, 5, 6]},
    {"batch_sampler": [[0, 1], [5], [7, 7, 2]]},
]


# docs/semantics.md section 2.4: two draws from the default generator for each epoch, the workers' seed first
@pytest.mark.parametrize("options", ORDERS, ids=str)
@pytest.mark.parametrize("kind", ["given", "default"])
def test_order_of_two_epochs(options, kind):
    tensors = data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    torch.manual_seed(5)
    ours, theirs = Generator(5), torch.Generator().manual_seed(5)
    twin = data.DataLoader(tensors, **options, generator=theirs if kind == "given" else None)
    for dataset in (TensorDataset(X, Y), list(zip(X, Y, strict=True))):
        for n in (0, 2):
            ours.manual_seed(5)
            torch.manual_seed(5)
            theirs.manual_seed(5)
            mine = DataLoader(
                dataset, num_workers=n, **options, **{"generator" if kind == "given" else "seed": ours}
            )
            assert len(mine) == len(twin)
            for _ in range(2):
                got, want = [plain(b) for b in mine], [plain(b) for b in twin]
                if options.get("batch_size", 1) is None:  # rows of one number are numbers, not tensors
                    got, want = ([b[1][0] for b in side] for side in (got, want))
                assert got == want
            after = theirs.get_state() if kind == "given" else torch.get_rng_state()
            assert np.array_equal(ours.get_state(), after.numpy())


def test_a_number_is_a_seed():
    torch.manual_seed(11)
    want = torch.cat(list(data.DataLoader(torch.arange(9), 2, shuffle=True))).tolist()
    assert np.concatenate(list(DataLoader(np.arange(9), 2, shuffle=True, seed=11))).tolist() == want
    assert np.concatenate(list(DataLoader(np.arange(9), 2, shuffle=True, seed=12))).tolist() != want
    free = [np.concatenate(list(DataLoader(np.arange(99), 2, shuffle=True))).tolist() for _ in range(2)]
    assert free[0] != free[1]


def test_loaders_that_take_turns_share_a_generator():
    def losses(kit, rows, seed):
        train, test = (
            kit.DataLoader(rows, 4, shuffle=True, **seed),
            kit.DataLoader(rows, 5, shuffle=True, **seed),
        )
        for i, batch in enumerate(train):
            yield batch.tolist()
            if i % 2:
                yield from (b.tolist() for b in test)

    torch.manual_seed(0)
    want = list(losses(data, torch.arange(20), {}))
    assert list(losses(jaxpar.data, np.arange(20), {"seed": Generator(0)})) == want


def test_a_distributed_sampler():
    sampler = jaxpar.data.DistributedSampler(X, 4, 1)
    twin = data.DistributedSampler(X, 4, 1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        twin.set_epoch(epoch)
        got = DataLoader(TensorDataset(Y), 2, sampler=sampler)
        want = data.DataLoader(data.TensorDataset(torch.from_numpy(Y)), 2, sampler=twin)
        assert [plain(b) for b in got] == [plain(b) for b in want]


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(
    "options", [{"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}], ids=str
)
def test_iterables_are_read_once_and_in_order(n, options):
    class Stream(data.IterableDataset):
        def __len__(self):
            return 10

        def __iter__(self):
            return iter([(i, str(i)) for i in range(10)])

    mine, twin = DataLoader(Stream(), num_workers=n, **options), data.DataLoader(Stream(), **options)
    assert len(mine) == len(twin)
    for _ in range(2):
        assert [plain(b) for b in mine] == [plain(b) for b in twin]
    assert [b.tolist() for b in DataLoader((i for i in range(5)), 2, num_workers=n)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("n", [0, 2])
def test_an_iterable_that_is_longer_than_it_said(n):
    class Stream:
        def __len__(self):
            return 4

        def __iter__(self):
            return iter(range(6))

    loader = DataLoader(Stream(), 2, num_workers=n)
    assert len(list(loader)) == 3  # nobody asked for the length
    assert len(loader) == 2
    with pytest.warns(UserWarning, match=r"len\(loader\) was 2, and batch 2 has been read") as caught:
        assert len(list(loader)) == 3
    assert len(caught) == 1


# -------------------------------------------------------------------------------------------- batches

Point = collections.namedtuple("Point", "x y")


class Sealed(collections.abc.Mapping):
    """A mapping that cannot be changed or made anew."""

    def __getitem__(self, key):
        return {"a": 1}[key]

    def __iter__(self):
        return iter("a")

    def __len__(self):
        return 1


SAMPLES = {
    "floats": [1.5, 2.0],
    "float and int": [1.5, 2],
    "ints": [1, 2],
    "int and float": [1, 2.5],
    "bools": [True, False],
    "bool and int": [True, 2],
    "text": ["a", "b"],
    "bytes": [b"a", b"b"],
    "float32 scalars": [np.float32(1), np.float32(2)],
    "int8 scalars": [np.int8(1), np.int8(2)],
    "bool scalars": [np.bool_(True), np.bool_(False)],
    "arrays": [np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)],
    "arrays without axes": [np.array(1.5), np.array(2.5)],
    "float32 and float64": [np.ones(2, np.float32), np.ones(2)],
    "int64 and float32": [np.ones(2, np.int64), np.ones(2, np.float32)],
    "uint8 and int64": [np.ones(2, np.uint8), np.ones(2, np.int64)],
    "int64 and float16": [np.ones(2, np.int64), np.ones(2, np.float16)],
    "complex64 and float64": [np.ones(2, np.complex64), np.ones(2)],
    "tensors": [torch.ones(2), torch.zeros(2)],
    "dicts": [{"a": 1, "b": [np.ones(2), "x"]}, {"a": 2, "b": [np.zeros(2), "y"]}],
    "ordered dicts": [collections.OrderedDict(b=1, a=2.5), collections.OrderedDict(b=2, a=1.5)],
    "default dicts": [collections.defaultdict(int, a=1), collections.defaultdict(int, a=2)],
    "sealed mappings": [Sealed(), Sealed()],
    "namedtuples": [Point(1, "x"), Point(2, "y")],
    "tuples": [(1, (2.0, "x")), (2, (3.0, "y"))],
    "lists": [[1, [2.0, "x"]], [2, [3.0, "y"]]],
    "ranges": [range(3), range(3)],
    "empty tuples": [(), ()],
    "a NumPy and a Python float": [np.float32(1), 1.5],
    "a NumPy and a Python int": [np.int8(1), 300],
    "an int and a NumPy float": [1, np.float32(1.5)],
    "an int and a complex": [1, 2j],
    "deques": [collections.deque([1, 2]), collections.deque([3, 4])],
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_default_collate(kind):
    before = copy.deepcopy(SAMPLES[kind])
    mine, twin = (
        jaxpar.data.default_collate(SAMPLES[kind]),
        data.default_collate(copy.deepcopy(SAMPLES[kind])),
    )
    assert plain(mine) == plain(twin)
    assert plain(SAMPLES[kind]) == plain(before)  # nothing is written into the samples


@pytest.mark.parametrize("kind", SAMPLES)
def test_default_convert(kind):
    for sample in SAMPLES[kind]:
        assert plain(jaxpar.data.default_convert(sample)) == plain(data.default_convert(sample))


def test_bfloat16_rows():
    import ml_dtypes

    rows = np.arange(4).astype(ml_dtypes.bfloat16)
    assert jaxpar.data.default_collate(list(rows.reshape(4, 1))).dtype == ml_dtypes.bfloat16
    (batch,) = next(iter(DataLoader(TensorDataset(rows), 2)))
    assert batch.dtype == ml_dtypes.bfloat16


def test_rows_of_a_tensor_dataset_are_looked_up_at_once(monkeypatch):
    want = [
        plain(b)
        for b in DataLoader(
            TensorDataset(X, Y),
            3,
            shuffle=True,
            seed=1,
            collate_fn=lambda rows: jaxpar.data.default_collate(rows),
        )
    ]
    monkeypatch.setattr(TensorDataset, "__getitem__", None)
    assert [plain(b) for b in DataLoader(TensorDataset(X, Y), 3, shuffle=True, seed=1)] == want


def test_a_batch_of_an_array_in_memory_costs_a_fraction_of_its_rows_one_by_one():
    loader = DataLoader(TensorDataset(np.zeros((4096, 16), np.float32), np.zeros(4096)), 32, shuffle=True)
    collate = lambda rows: jaxpar.data.default_collate(rows)  # noqa: E731
    one_by_one = DataLoader(loader.dataset, 32, shuffle=True, collate_fn=collate)

    def seconds(loader):
        began = time.perf_counter()
        n = sum(1 for _ in loader)
        return (time.perf_counter() - began) / n

    # Taken in turn, so that both meet the same machine: about 1e-5 and 1e-4 on an idle one.
    ours, theirs = zip(*((seconds(loader), seconds(one_by_one)) for _ in range(5)), strict=True)
    assert 3 * min(ours) < min(theirs)


def test_tensor_dataset():
    dataset = TensorDataset(X, torch.arange(20))
    assert len(dataset) == 20
    assert [v.tolist() for v in dataset[3]] == [[9, 10, 11], 3]
    assert dataset.arrays[0] is X
    names = TensorDataset(np.array(["a", "b", "c"]), np.arange(3))
    assert [plain(b)[1][0][1] for b in DataLoader(names, 2)] == [
        [("str_", "a"), ("str_", "b")],
        [("str_", "c")],
    ]


def test_own_collate_and_batches_of_getitems():
    class Together:
        def __len__(self):
            return 5

        def __getitems__(self, rows):
            return [-r for r in rows]

    assert list(DataLoader(Together(), 2, collate_fn=sum)) == [-1, -5, -4]
    assert [b.tolist() for b in DataLoader(Together(), 3)] == [[0, -1, -2], [-3, -4]]


# ------------------------------------------------------------------------------------------- workers


@pytest.mark.parametrize("n", [1, 2, 5])
def test_workers_keep_the_order(n):
    class Slow(Squares):
        def __getitem__(self, i):
            time.sleep(0.002 * (i % 3 == 0))
            return i

    before = workers()
    assert [b.tolist() for b in DataLoader(Slow(), 3, num_workers=n)] == [
        list(range(i, min(i + 3, 20))) for i in range(0, 20, 3)
    ]
    assert gone(workers() - before)


def test_workers_are_no_further_ahead_than_asked():
    read = []

    class Counted(Squares):
        def __getitem__(self, i):
            read.append(i)
            return i

    epoch = iter(DataLoader(Counted(), 1, num_workers=2, prefetch_factor=3))
    next(epoch)
    time.sleep(0.05)
    assert len(read) <= 6


@pytest.mark.full
def test_worker_init_fn_and_which_worker_makes_which_batch():
    local, started = threading.local(), []

    def start(worker):
        local.worker = worker
        started.append(worker)

    class Who(Squares):
        def __getitem__(self, i):
            return local.worker

    options = {"num_workers": 3, "worker_init_fn": start}
    loader = DataLoader(Who(), 1, **options)
    assert [int(b[0]) for b in loader] == [i % 3 for i in range(20)]
    list(loader)
    assert sorted(started) == [0, 0, 1, 1, 2, 2]
    started.clear()
    before = workers()  # an earlier loader's threads may still be ending
    loader = DataLoader(Who(), 1, **options, persistent_workers=True)
    threads = [workers() - before for _ in range(2) if list(loader)]
    assert sorted(started) == [0, 1, 2]
    assert threads[0] == threads[1]
    del loader
    gc.collect()
    assert gone(threads[0])


@pytest.mark.parametrize("n", [0, 2])
@pytest.mark.parametrize(
    "error",
    [KeyError("wonderful"), OSError(5, "Input/output error", "cat.jpg"), StopIteration("no end")],
    ids=["key", "file", "stop"],
)
def test_an_error_says_the_row_and_the_epoch_goes_on(n, error):
    before = workers()
    epoch = iter(DataLoader(Failing(7, error), 2, num_workers=n))
    got = [next(epoch).tolist() for _ in range(3)]
    kind = RuntimeError if isinstance(error, StopIteration) else type(error)
    with pytest.raises(kind) as caught:
        next(epoch)
    if kind is RuntimeError:
        assert "dataset[7], sample 1 of batch 3" in str(caught.value)
        assert caught.value.__cause__ is error
    else:
        assert caught.value is error
        assert caught.value.__notes__[-1] == "DataLoader: raised by dataset[7], sample 1 of batch 3."
        assert "__getitem__" in [entry.name for entry in caught.traceback]
    assert gone(workers() - before)  # though the traceback is still held
    assert got + [b.tolist() for b in epoch] == [[i, i + 1] for i in range(0, 20, 2) if i != 6]
    if hasattr(error, "__notes__"):
        del error.__notes__


@pytest.mark.parametrize("n", [0, 2])
def test_an_unreadable_file(n, tmp_path):
    for i in range(4):
        if i != 2:
            np.save(tmp_path / f"{i}.npy", np.full(2, i))
    (tmp_path / "2.npy").write_bytes(b"\x93NUMPY cut off")

    class Files(Squares):
        def __getitem__(self, i):
            return np.load(tmp_path / f"{i}.npy")

    with pytest.raises(ValueError, match=r".") as caught:
        list(DataLoader(Files(), 2, sampler=[0, 1, 2, 3], num_workers=n))
    assert "dataset[2], sample 0 of batch 1" in caught.value.__notes__[0]


@pytest.mark.parametrize("n", [0, 2])
def test_other_places_that_raise(n):
    def failing_rows():
        yield [0, 1]
        raise KeyError("rows")

    cases = {
        "rows [0, 1] of batch 0 were put together": lambda: DataLoader([[1], [1, 2]], 2, num_workers=n),
        "in batch 1": lambda: DataLoader(TensorDataset(Y), batch_sampler=[[0], [20]], num_workers=n),
        "by dataset.__getitems__([0]), batch 0": lambda: DataLoader(Bad(), 1, num_workers=n),
        "by dataset[0], sample 0": lambda: DataLoader(Failing(0, KeyError(1)), None, num_workers=n),
        "by the data set's iterator, sample 3, in batch 1": lambda: DataLoader(
            (1 // (3 - i) for i in range(9)), 2, num_workers=n
        ),
        "": lambda: DataLoader(Y, batch_sampler=failing_rows(), num_workers=n),
    }
    if n:

        def start(worker):
            raise OSError("no licence")

        cases["by worker_init_fn(0)"] = lambda: DataLoader(Y, num_workers=2, worker_init_fn=start)

    for place, make in cases.items():
        epoch, taken = iter(make()), []
        with pytest.raises(Exception) as caught:  # noqa: PT011
            taken.extend(epoch)  # keeps what came before the error
        assert place in "".join(getattr(caught.value, "__notes__", [""])), place
        assert len(taken) == (1 if "batch 1" in place or not place else 0)


class Bad(Squares):
    def __getitems__(self, rows):
        raise ArithmeticError


ENDS = ["break", "error", "dropped", "loader too"]


@pytest.mark.parametrize("end", ENDS)
def test_threads_end_with_the_loop(end):
    before = workers()
    loader = DataLoader(Squares(), 2, num_workers=3)
    if end == "break":
        for _ in loader:
            break
    elif end == "error":
        with pytest.raises(KeyError):  # noqa: PT012
            for _ in loader:
                raise KeyError
    else:
        epoch = iter(loader)
        next(epoch)
        there = workers() - before
        assert len(there) == 3
        if end == "loader too":
            del loader
            next(epoch)
        del epoch
        assert gone(there)
    assert gone(workers() - before)


@pytest.fixture
def ctrl_c():
    """Python's own handler. Under nohup and in the background of a shell the signal is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_waiting_for_a_batch():
    asked = threading.Event()

    class Waiting(Squares):
        def __getitem__(self, i):
            asked.wait(20)
            return i

    before = workers()
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        for _ in DataLoader(Waiting(), num_workers=2):
            pass
    asked.set()
    assert gone(workers() - before)
    timer.join()
    assert caught.traceback


def test_timeout_and_what_comes_after_it():
    free = threading.Event()

    class Waiting(Squares):
        def __getitem__(self, i):
            free.wait(20)
            return i

    epoch = iter(DataLoader(Waiting(), 5, num_workers=1, timeout=0.05))
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.05 seconds"):
        next(epoch)
    free.set()
    assert next(epoch).tolist() == [0, 1, 2, 3, 4]

    class Impatient(Squares):
        def __getitem__(self, i):
            raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        list(DataLoader(Impatient(), num_workers=1, timeout=20))


@pytest.mark.full
def test_nothing_is_kept_alive():
    before = workers()
    dataset = Squares()
    there = weakref.ref(dataset)
    loader = DataLoader(dataset, 2, num_workers=2)
    for _ in loader:
        break
    held = workers() - before
    del loader, dataset
    assert gone(held)
    gc.collect()
    assert there() is None


# --------------------------------------------------------------------------------------- its place

RESUMED = {
    "plain": {},
    "seed": {"shuffle": True, "seed": 3},
    "generator": {"shuffle": True, "generator": 3},
    "workers": {"shuffle": True, "seed": 3, "num_workers": 2},
    "replacement": {"sampler": lambda: jaxpar.data.RandomSampler(range(20), True, 70, Generator(4))},
    "several permutations": {
        "sampler": lambda: jaxpar.data.RandomSampler(range(20), False, 45, Generator(4))
    },
    "weighted": {"sampler": lambda: jaxpar.data.WeightedRandomSampler(Y + 1, 30, seed=2), "num_workers": 2},
    "distributed": {"sampler": lambda: jaxpar.data.DistributedSampler(range(20), 2, 1)},
}


def resumable(case, **changed):
    options = dict(RESUMED[case])
    if "sampler" in options:
        options["sampler"] = options["sampler"]()
    if "generator" in options:
        options["generator"] = Generator(3)
    return DataLoader(TensorDataset(Y), 3, **options, **changed)


def epochs(loader, first, last):
    for epoch in range(first, last):
        if isinstance(loader.sampler, jaxpar.data.DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for (batch,) in loader:
            yield epoch, batch.tolist()


@pytest.mark.parametrize("case", RESUMED)
def test_a_loader_goes_on_where_it_was(case):
    want = list(epochs(resumable(case), 0, 4))
    n = len(want) // 4
    for taken in (0, 1, n - 1, n, n + 1, 2 * n + 2):
        loader = resumable(case)
        run = epochs(loader, 0, 4)
        done = list(itertools.islice(run, taken))
        epoch = done[-1][0] if done else 0
        state = json.loads(json.dumps(loader.state_dict()))
        other = resumable(case)
        list(epochs(other, 0, 1))  # it was elsewhere
        other.load_state_dict(state)
        assert other.state_dict()["batches"] == state["batches"]
        assert done + list(epochs(other, epoch, 4)) == want, taken
        assert done + list(run) == want  # saving changes nothing


def test_a_loader_that_was_resumed_can_be_saved_again():
    want = [batch.tolist() for (batch,) in resumable("seed")]
    for first, second in [(1, 1), (2, 3), (3, 1)]:
        loader, done = resumable("seed"), []
        for more in (first, second, None):
            other = resumable("seed")
            other.load_state_dict(loader.state_dict())
            loader = other
            done += [batch.tolist() for (batch,) in itertools.islice(loader, more)]
        assert done == want


def test_the_worker_of_a_batch_is_the_same_after_resuming():
    class Who(Squares):
        def __getitem__(self, i):
            return jaxpar.data.get_worker_info().id

    loader = DataLoader(Who(), 2, num_workers=3)
    want = [b.tolist() for b in loader]
    loader.load_state_dict({**DataLoader(Who(), 2).state_dict(), "batches": 4})
    assert [b.tolist() for b in loader] == want[4:]


def test_resuming_reads_no_row_twice():
    read = []

    class Counted(Squares):
        def __getitem__(self, i):
            read.append(i)
            return i

    loader = DataLoader(Counted(), 2)
    loader.load_state_dict({**DataLoader(Counted(), 2).state_dict(), "batches": 8})
    list(loader)
    assert read == [16, 17, 18, 19]


def test_resuming_a_loader_that_shares_its_generator():
    def run(state=None, stop=None):
        default = Generator(0)
        train, test = (DataLoader(Y, 4, shuffle=True, seed=default) for _ in range(2))
        if state:
            train.load_state_dict(state)
        seen = []
        for _ in range(2):
            for batch in train:
                seen.append(batch.tolist())
                seen += [b.tolist() for b in test]
                if len(seen) == stop:
                    return seen, train.state_dict()
        return seen, None

    want, _ = run()
    done, state = run(stop=12)
    assert done + run(state)[0] == want


def test_resuming_an_iterable():
    make = lambda: DataLoader(iter(range(7)), 2)  # noqa: E731
    loader = make()
    epoch = iter(loader)
    next(epoch)
    other = make()
    other.load_state_dict(loader.state_dict())
    assert [b.tolist() for b in other] == [[2, 3], [4, 5], [6]]


WRONG = {
    "batch_size=3 and this loader has batch_size=4": lambda: DataLoader(TensorDataset(Y), 4, shuffle=True),
    "rows=20 and this loader has rows=19": lambda: DataLoader(TensorDataset(Y[1:]), 3, shuffle=True),
    "drop_last=False and": lambda: DataLoader(TensorDataset(Y), 3, shuffle=True, drop_last=True),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_state_of_another_loader(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]().load_state_dict(resumable("seed").state_dict())


def test_a_state_of_another_epoch_or_a_longer_one():
    loader = resumable("distributed")
    list(itertools.islice(epochs(loader, 3, 4), 2))
    other = resumable("distributed")
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"middle of epoch 3 and set_epoch\(0\) was called since"):
        list(epochs(other, 0, 1))
    longer = {**resumable("plain").state_dict(), "batches": 9}
    other = resumable("plain")
    other.load_state_dict(longer)
    with pytest.raises(ValueError, match="saved after 9 batches; the epoch has 7"):
        iter(other)


# ----------------------------------------------------------------------------------------- bad input

ROWS = list(range(5))


class Endless(data.IterableDataset):
    def __iter__(self):
        return itertools.count()

    def __repr__(self):
        return "Endless"


BAD = {
    "workers below 0": lambda d: d.DataLoader(ROWS, num_workers=-1),
    "timeout below 0": lambda d: d.DataLoader(ROWS, timeout=-1),
    "prefetch without workers": lambda d: d.DataLoader(ROWS, prefetch_factor=2),
    "prefetch below 0": lambda d: d.DataLoader(ROWS, num_workers=1, prefetch_factor=-1),
    "persistent without workers": lambda d: d.DataLoader(ROWS, persistent_workers=True),
    "batch of 0": lambda d: d.DataLoader(ROWS, 0),
    "batch of -1": lambda d: d.DataLoader(ROWS, -1),
    "batch of 2.5": lambda d: d.DataLoader(ROWS, 2.5),
    "batch of text": lambda d: d.DataLoader(ROWS, "3"),
    "batch of True": lambda d: d.DataLoader(ROWS, True),
    "drop_last": lambda d: d.DataLoader(ROWS, drop_last=3),
    "empty and shuffled": lambda d: d.DataLoader([], shuffle=True),
    "a number": lambda d: list(d.DataLoader(5)),
    "a number, shuffled": lambda d: d.DataLoader(5, shuffle=True),
    "sampler and shuffle": lambda d: d.DataLoader(ROWS, sampler=[0], shuffle=True),
    "batches and batch_size": lambda d: d.DataLoader(ROWS, 2, batch_sampler=[[0]]),
    "batches and shuffle": lambda d: d.DataLoader(ROWS, shuffle=True, batch_sampler=[[0]]),
    "batches and sampler": lambda d: d.DataLoader(ROWS, sampler=[0], batch_sampler=[[0]]),
    "batches and drop_last": lambda d: d.DataLoader(ROWS, drop_last=True, batch_sampler=[[0]]),
    "no batches and drop_last": lambda d: d.DataLoader(ROWS, None, drop_last=True),
    "sampler": lambda d: list(d.DataLoader(ROWS, sampler=5)),
    "row 7 of 5": lambda d: list(d.DataLoader(ROWS, sampler=[0, 7])),
    "a stream, shuffled": lambda d: d.DataLoader(Endless(), shuffle=True),
    "a stream with a sampler": lambda d: d.DataLoader(Endless(), sampler=[0]),
    "a stream with batches": lambda d: d.DataLoader(Endless(), batch_sampler=[[0]]),
    "a stream without length": lambda d: len(d.DataLoader(Endless())),
    "context without workers": lambda d: d.DataLoader(ROWS, multiprocessing_context="fork"),
    "batch_size set": lambda d: setattr(d.DataLoader(ROWS), "batch_size", 2),
    "sampler set": lambda d: setattr(d.DataLoader(ROWS), "sampler", [1]),
    "None": lambda d: list(d.DataLoader([None])),
    "an object": lambda d: d.default_collate([Ellipsis]),
    "a complex": lambda d: d.default_collate([1j]),
    "array of text": lambda d: d.default_collate([np.array(["a"])]),
    "array of objects": lambda d: d.default_collate([np.array([{}])]),
    "lists of other lengths": lambda d: d.default_collate([[1], [1, 2]]),
    "other keys": lambda d: d.default_collate([{"a": 1}, {"b": 1}]),
    "another key": lambda d: d.default_collate([{"a": 1, "b": 1}, {"a": 1}]),
    "65 bits": lambda d: d.default_collate([2**63]),
    "65 bits beside an int64": lambda d: d.default_collate([np.int64(1), 2**63]),
    "other shapes": lambda d: d.default_collate([np.zeros(2), np.zeros(3)]),
    "other axes": lambda d: d.default_collate([np.zeros(2), np.zeros((1, 2))]),
    "tensor and int": lambda d: d.default_collate([torch.zeros(2), 3]),
}


OWN_WORDS = {"a number", "a number, shuffled", "sampler"}
"""Python's own errors, which do not name the argument."""


@pytest.mark.parametrize("case", BAD)
def test_refused_as_torch_refuses(case):
    with pytest.raises(Exception) as want:  # noqa: PT011
        BAD[case](data)
    with pytest.raises(want.type) as got:
        BAD[case](jaxpar.data)
    assert got.type is want.type
    assert case in OWN_WORDS or str(got.value) == str(want.value)


CLASSES = {  # torch's texts name its own classes, or what it has not
    "timeout": (lambda d: iter(d.DataLoader(ROWS, timeout=3)), "timeout == 0"),
    "generator": (lambda d: list(d.DataLoader(ROWS, shuffle=True, generator=3)), "jaxpar.random.Generator"),
    "int and text": (lambda d: d.default_collate([1, "a"]), "sample 0 is a number and sample 1 a str"),
    "dates": (lambda d: d.default_collate([np.array(["2020"], "M8[D]")]), "datetime64"),
}


@pytest.mark.parametrize("case", CLASSES)
def test_refused_with_torchs_class(case):
    make, text = CLASSES[case]
    with pytest.raises(Exception) as want:  # noqa: PT011
        make(data)
    with pytest.raises(want.type, match=text):
        make(jaxpar.data)


def test_an_empty_data_set_has_no_batches():
    assert list(DataLoader([])) == list(data.DataLoader([])) == []


def test_refused_on_its_own_terms():
    with pytest.raises(ValueError, match=r"context=.fork. copies"):
        DataLoader(ROWS, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ValueError, match="either generator or seed"):
        DataLoader(ROWS, generator=Generator(0), seed=0)
    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0"):  # torch: in the epoch
        DataLoader(ROWS, num_workers=1, prefetch_factor=0)


def test_tensor_datasets_that_do_not_fit():
    with pytest.raises(errors.CountError, match=r"arrays\[0\] with 3 rows and arrays\[2\] with 4") as caught:
        TensorDataset(np.zeros(3), np.zeros((3, 2)), np.zeros(4))
    with pytest.raises(AssertionError, match="Size mismatch between tensors"):
        data.TensorDataset(torch.zeros(3), torch.zeros(4))
    assert "Size mismatch between tensors" in str(caught.value)
    with pytest.raises(IndexError, match=r"arrays\[0\] has no axes \(Dimension specified as 0"):
        TensorDataset(np.zeros(()))
    with pytest.raises(TypeError, match=r"arrays\[1\] is a list"):
        TensorDataset(np.zeros(2), [1, 2])
    with pytest.raises(TypeError, match="at least one array"):
        TensorDataset()


@pytest.mark.slow
def test_no_torch_and_no_jax_are_loaded():
    import subprocess

    code = (
        "import sys, numpy as np, jaxpar.data as d\n"
        "list(d.DataLoader(d.TensorDataset(np.zeros(4)), 2, True))\n"
        "print([m for m in ('torch', 'jax', 'flax') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("first", [1.0, np.float32(1), 1, True])
@pytest.mark.parametrize("second", [None, "2.5", [2.5]])
def test_a_number_beside_something_else_is_refused(first, second):
    """NumPy would read None as NaN and text as a number; torch raises too."""
    with pytest.raises(TypeError, match="default_collate"):
        jaxpar.data.default_collate([first, second])
    with pytest.raises(TypeError, match="default_collate"):
        jaxpar.data.default_collate([{"x": first}, {"x": second}])


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_an_integer_of_more_than_64_bits_is_refused(number):
    inside = number - 1 if number > 0 else number + 1
    assert jaxpar.data.default_collate([0, inside]).tolist() == [0, inside]
    assert data.default_collate([0, inside]).tolist() == [0, inside]
    for collate in (jaxpar.data.default_collate, data.default_collate):
        with pytest.raises((ValueError, RuntimeError), match="Overflow when unpacking long"):
            collate([0, number])


def test_samples_of_other_kinds_are_refused():
    Point = collections.namedtuple("Point", "x y")
    for first, second in [
        ((1, 2), None),
        ({"a": 1}, 3),
        ((1, 2), {3: 0, 4: 0}),
        ([1, 2], "ab"),
        (Point(1, 2), None),
    ]:
        with pytest.raises(TypeError, match=r"default_collate: sample 0 is a .* and sample 1 a "):
            jaxpar.data.default_collate([first, second])
    with pytest.raises(RuntimeError, match="equal size"):
        jaxpar.data.default_collate([Point(1, 2), (1,)])


def test_what_torch_drops_is_refused():
    """A key that the first sample has not; a mask."""
    assert set(data.default_collate([{"a": 1}, {"a": 1, "b": 2}])) == {"a"}
    with pytest.raises(KeyError, match=r"sample 0 has the keys .'a'. and sample 1 has .'a', 'b'."):
        jaxpar.data.default_collate([{"a": 1}, {"a": 1, "b": 2}])
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    assert data.default_collate([masked]).tolist() == [[1.0, 2.0]]
    with pytest.raises(TypeError, match="sample 0 is a masked array"):
        jaxpar.data.default_collate([masked])
