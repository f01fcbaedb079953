"""Worker processes: torch's batches and random numbers, deaths that are said, and nothing left behind."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import worker_cases
import worker_faults as faults

from jaxpar import errors
from jaxpar.data import DataLoader, TensorDataset, get_worker_info
from jaxpar.data import _worker_messages as messages
from jaxpar.data import _worker_processes as processes
from jaxpar.data._worker_info import numpy_seed

TESTS = Path(__file__).parent
KIND = "forkserver"


def loader(dataset, batch_size=2, n=2, **options):
    return DataLoader(dataset, batch_size, num_workers=n, multiprocessing_context=KIND, **options)


def children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children()}


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No process and no descriptor, whatever a test does."""
    multiprocessing.get_context(KIND).Process(target=int).start()  # the server itself has some, and stays
    gc.collect()
    until(lambda: not children())
    before = descriptors()
    yield
    gc.collect()
    assert until(lambda: not children()), children()
    assert until(lambda: descriptors() <= before), (before, descriptors())


# ---------------------------------------------------------------------------------- torch's batches


def outcomes(kit: str) -> dict:
    command = [sys.executable, str(TESTS / "worker_cases.py"), kit]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def theirs():
    pytest.importorskip("torch")
    return outcomes("torch")


@pytest.fixture(scope="module")
def ours():
    return {kind: outcomes(kind) for kind in ("forkserver", "threads")}


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("case", worker_cases.CASES)
def test_processes_give_torchs_batches_and_random_numbers(case, ours, theirs):
    assert ours["forkserver"][case] == theirs[case]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("case", worker_cases.THREADS)
def test_threads_give_torchs_batches_and_random_numbers(case, ours, theirs):
    assert ours["threads"][case] == theirs[case]


@pytest.mark.slow
def test_the_cases_can_fail(theirs):
    """Each differs from the others, as far as it should."""
    assert theirs["shuffled"][0] != theirs["shuffled"][1]
    assert theirs["persistent"] != theirs["shuffled"]
    assert theirs["random numbers"][0] != theirs["random numbers"][1]
    assert theirs["a stream, unequal"] != theirs["a stream, three workers"]
    assert "KeyError" in theirs["errors"][0]


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize(("base", "worker"), [(0, 0), (1, 3), (2**31, 1), (2**63 - 1, 200)])
def test_numpy_seed(base, worker):
    theirs = pytest.importorskip("torch.utils.data._utils.worker")
    assert numpy_seed(base, worker).tolist() == theirs._generate_state(base, worker)


@pytest.mark.full
def test_spawned_ones_too():
    dataset = TensorDataset(np.arange(30).reshape(10, 3), np.arange(10))
    options = {"shuffle": True, "seed": 5}
    spawned = DataLoader(dataset, 4, num_workers=1, multiprocessing_context="spawn", **options)
    want = [[part.tolist() for part in batch] for batch in DataLoader(dataset, 4, **options)]
    assert [[part.tolist() for part in batch] for batch in spawned] == want


TORCHS = """
import torch
from jaxpar.data import DataLoader


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first = torch.rand(()).item()
        torch.manual_seed(info.seed)
        same = torch.rand(()).item() == first
        return iter([(i, same) for i in range(info.id, 6, info.num_workers)])


if __name__ == "__main__":
    loader = DataLoader(Stream(), None, num_workers=2, multiprocessing_context="spawn")
    print(sorted((int(i), bool(same)) for i, same in loader))
"""


@pytest.mark.slow
def test_torchs_own_data_sets_are_workers_of_torch(tmp_path):
    """A stream of torch takes its share by torch's own word, and draws what it draws in torch."""
    pytest.importorskip("torch")
    ran = script(TORCHS, tmp_path)
    assert ran.stdout.strip() == str([(i, True) for i in range(6)]), ran.stderr


def script(code: str, folder: Path) -> subprocess.CompletedProcess:
    """Runs a script from a file, as processes that are spawned need it."""
    path = folder / "script.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n{code}")
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=100, check=False
    )


# -------------------------------------------------------------------------------------------- deaths

DEATHS = {
    "killed": (faults.killed, r"is killed by signal: Killed \(SIGKILL\).*fewer workers"),
    "crashed": (faults.crashed, r"is killed by signal: Segmentation fault \(SIGSEGV\).*faulthandler"),
    "left": (faults.left, r"exited unexpectedly with exit code 3"),
}


@pytest.mark.sampled(7)
@pytest.mark.full
@pytest.mark.parametrize("death", DEATHS)
def test_a_death_is_said_and_the_epoch_goes_on(death):
    act, text = DEATHS[death]
    epoch = iter(loader(faults.Rows(7, act)))
    assert [next(epoch).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(errors.WorkerError, match=text) as caught:
        next(epoch)
    assert "DataLoader worker 1 (pid " in str(caught.value)
    assert "while it made batch 3, rows [6, 7]" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)  # torch's
    assert [b.tolist() for b in epoch] == [[8, 9], [10, 11]]


@pytest.mark.full
def test_a_death_between_two_batches():
    epoch = iter(loader(faults.Large(), 1, prefetch_factor=1, persistent_workers=True))
    ((_, pid),) = [next(epoch)]
    next(epoch)
    assert until(lambda: not epoch._todo or epoch._todo[0].future.done())
    os.kill(int(pid[0]), signal.SIGKILL)
    with pytest.raises(errors.WorkerError, match="SIGKILL"):
        list(epoch)


@pytest.mark.full
def test_persistent_workers_are_replaced_after_a_death():
    kept = loader(faults.Rows(7, faults.killed), persistent_workers=True)
    for _ in range(2):
        with pytest.raises(errors.WorkerError):
            list(kept)
    del kept


@pytest.mark.full
def test_a_stream_whose_worker_died_cannot_go_on():
    epoch = iter(loader(faults.Stream(faults.killed), 1, n=1))
    assert [int(next(epoch)[0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(errors.WorkerError, match=r"while it made batch 3\. "):
        next(epoch)
    with pytest.raises(RuntimeError, match="their places in the iterable data set"):
        next(epoch)


UNGUARDED = """
import worker_faults
from jaxpar.data import DataLoader
list(DataLoader(worker_faults.Rows(), num_workers=1, multiprocessing_context="spawn"))
"""


@pytest.mark.slow
def test_a_script_without_a_guard(tmp_path):
    said = script(UNGUARDED, tmp_path).stderr
    assert "before it could begin" in said
    assert "__name__ == '__main__'" in said.splitlines()[-1]


# -------------------------------------------------------------------------------------------- errors


@pytest.mark.full
def test_an_error_is_its_own_class_with_the_workers_traceback():
    epoch = iter(loader(faults.Rows(3, faults.key_error)))
    next(epoch)
    with pytest.raises(KeyError, match="wonderful") as caught:
        next(epoch)
    assert caught.value.__notes__ == ["DataLoader: raised by dataset[3], sample 1 of batch 1."]
    cause = str(caught.value.__cause__)
    assert cause.startswith("Caught KeyError in DataLoader worker process 1.\nOriginal Traceback")
    assert "in key_error" in cause
    assert [b.tolist() for b in epoch] == [[4, 5], [6, 7], [8, 9], [10, 11]]


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "name"), [("leaves_quietly", "SystemExit(0)"), ("raises_ctrl_c", "KeyboardInterrupt()")]
)
@pytest.mark.parametrize("kind", [KIND, None])
def test_what_would_end_the_training_is_an_error(fault, name, kind):
    epoch = iter(
        DataLoader(faults.Rows(3, getattr(faults, fault)), 2, num_workers=2, multiprocessing_context=kind)
    )
    next(epoch)
    with pytest.raises(errors.WorkerError) as caught:
        next(epoch)
    assert f"worker 1: {name} was raised while it made batch 1, rows [2, 3]" in str(caught.value)
    assert [b.tolist() for b in epoch] == [[4, 5], [6, 7], [8, 9], [10, 11]]


@pytest.mark.full
@pytest.mark.parametrize("kind", [KIND, None])
def test_worker_init_fn_that_leaves(kind):
    with pytest.raises(errors.WorkerError, match=r"SystemExit\(0\) was raised") as caught:
        list(
            DataLoader(
                faults.Rows(),
                num_workers=1,
                multiprocessing_context=kind,
                worker_init_fn=faults.leaves_at_once,
            )
        )
    assert caught.value.__notes__ == ["DataLoader: raised by worker_init_fn(0)."]


@pytest.mark.full
def test_an_error_that_cannot_travel_is_said():
    with pytest.raises(RuntimeError, match=r"WithoutArguments: cat\.jpg:7") as caught:
        list(loader(faults.Rows(3, faults.own_error)))
    assert "sample 1 of batch 1" in caught.value.__notes__[0]
    assert "in own_error" in str(caught.value.__cause__)


@pytest.mark.full
def test_a_stream_goes_on_after_an_error():
    epoch = iter(loader(faults.Stream(faults.key_error), 1, n=1))
    assert [int(next(epoch)[0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(epoch)
    assert list(epoch) == []  # Python ends a generator that has raised


@pytest.mark.full
def test_what_cannot_be_pickled_is_said():
    with pytest.raises(Exception, match="pickle") as caught:
        list(loader(faults.Rows(3, faults.a_lambda), collate_fn=faults.as_it_is))
    assert "batch 1 was pickled in worker process 1" in caught.value.__notes__[0]
    with pytest.raises(Exception, match="pickle") as caught:
        list(loader(faults.Rows(), collate_fn=lambda rows: rows))
    assert "leave multiprocessing_context out: threads" in caught.value.__notes__[0]


@pytest.mark.full
def test_worker_init_fn_that_raises():
    with pytest.raises(OSError, match="no licence") as caught:
        list(loader(faults.Rows(), worker_init_fn=faults.no_start))
    assert caught.value.__notes__ == ["DataLoader: raised by worker_init_fn(0)."]


@pytest.mark.full
def test_memory_that_is_used_up_is_an_error(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    before = descriptors()
    with pytest.raises(OSError, match="No space left"):
        messages.pack(np.zeros(messages.SMALL))
    assert descriptors() == before


@pytest.mark.full
def test_timeout(tmp_path):
    gate = tmp_path / "open"
    epoch = iter(loader(faults.Gated(gate), 1, n=1, timeout=0.5))
    assert patient(epoch).tolist() == [0]
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds"):
        next(epoch)
    gate.touch()
    assert patient(epoch).tolist() == [1]  # the same batch, as soon as it is there


def patient(epoch):
    """The next batch, however long the worker takes to start."""
    for _ in range(100):
        try:
            return next(epoch)
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
    raise AssertionError("no batch in 50 seconds")


# ---------------------------------------------------------------------------------------------- ends


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("end", ["break", "dropped", "ended", "persistent"])
def test_processes_end_with_the_loop(end):
    one = loader(faults.Large(), persistent_workers=end == "persistent")
    epoch = iter(one)
    next(epoch)
    assert len(children()) == 2
    if end in ("ended", "persistent"):
        list(epoch)
    if end == "persistent":
        there = children()
        assert {int(pid) for _, pids in one for pid in pids} == there
        del one
    del epoch
    gc.collect()
    assert until(lambda: not children())


@pytest.mark.full
def test_a_worker_that_is_not_done_in_time_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "GRACE", 0.2)
    epoch = iter(loader(faults.Gated(tmp_path / "open"), 1))
    next(epoch)
    assert until((tmp_path / "row 1 waits").exists)
    assert until((tmp_path / "row 2 waits").exists)
    del epoch
    gc.collect()
    assert until(lambda: not children(), 10)


RUN = """
import os, sys, signal, time
sys.path.insert(0, {tests!r})
import worker_faults
from jaxpar.data import DataLoader
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    loader = DataLoader(worker_faults.Slow({seconds}), 1, num_workers=2, multiprocessing_context="{kind}")
    for i, pid in enumerate(loader):
        print("first" if i == 0 else "next", flush=True)
"""


def alive_in_session(session: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry))
    return found


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("how", ["ctrl-c", "killed", "terminated"])
@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_a_script_that_ends_early_leaves_no_process(how, kind, tmp_path):
    """In the middle of a batch that takes an hour; Ctrl-C goes to all processes of the terminal."""
    path = tmp_path / "run.py"
    path.write_text(RUN.format(tests=str(TESTS), kind=kind, seconds=3600))
    with subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            assert run.stdout.readline() == "first\n"
            assert len(alive_in_session(run.pid)) >= 3
            if how == "ctrl-c":
                os.killpg(run.pid, signal.SIGINT)
            else:
                run.send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
            said = run.communicate(timeout=30)[1]
            assert until(lambda: not alive_in_session(run.pid)), alive_in_session(run.pid)
        finally:
            for pid in alive_in_session(run.pid):
                os.kill(pid, signal.SIGKILL)
    if how == "ctrl-c":
        assert said.count("Traceback") == 1
        assert said.strip().endswith("KeyboardInterrupt")
        assert "leaked" not in said


def test_ctrl_c_in_a_worker_alone_is_no_end():
    assert [b.tolist() for b in loader(faults.Rows(3, faults.interrupted))][1] == [2, -1]


@pytest.mark.full
def test_nobody_is_a_worker_here():
    assert get_worker_info() is None


# ------------------------------------------------------------------------------------- its place


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("taken", [1, 5, 7])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_goes_on_where_it_was(persistent, taken):
    make = lambda: loader(faults.Rows(), shuffle=True, seed=3, persistent_workers=persistent)  # noqa: E731
    batches = lambda one, epochs: (b.tolist() for _ in range(epochs) for b in one)  # noqa: E731
    want = list(batches(make(), 2))
    first = make()
    run = batches(first, 2)
    done = list(itertools.islice(run, taken))
    state = json.loads(json.dumps(first.state_dict()))
    other = make()
    other.load_state_dict(state)
    assert done + list(batches(other, 2 - taken // 7)) == want
    assert done + list(run) == want


@pytest.mark.full
def test_a_stream_goes_on_where_it_was():
    make = lambda: loader(worker_cases.IterableDataset(11, "turns"), 2)  # noqa: E731
    one = make()
    epoch = iter(one)
    done = [next(epoch).tolist() for _ in range(3)]
    other = make()
    other.load_state_dict(one.state_dict())
    want = [b.tolist() for b in make()]
    assert done + [b.tolist() for b in other] == want
    assert done + [b.tolist() for b in epoch] == want
