"""jaxpar launch: whatever happens to one process, all end, the first is named, the code says which kind."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxpar import errors
from jaxpar._tools.launch import environment
from jaxpar._tools.launch.gang import Worker
from jaxpar._tools.launch.output import frames, waits
from jaxpar._tools.launch.report import last_words
from jaxpar._tools.launch.settings import LaunchSettings
from jaxpar._tools.launch.supervise import Supervisor
from jaxpar._tools.launch.watch import LOOK
from jaxpar._training.watchdog import Marks

WORKER = """
    import atexit, os, signal, subprocess, sys, time
    from pathlib import Path
    from jaxpar import beat, errors

    folder, plan, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    rank, attempt = int(os.environ["RANK"]), int(os.environ["JAXPAR_RESTART_COUNT"])
    (folder / f"{attempt}-{rank}-{os.environ['MASTER_PORT']}").write_text(str(os.getpid()))

    def until(condition):
        while not condition():
            time.sleep(0.01)

    def die(how):
        while how.endswith("+"):  # after the other one
            until((folder / "died").exists)
            time.sleep(0.1)
            how = how[:-1]
        (folder / "died").write_text(str(time.time()))
        if how == "raise":
            raise RuntimeError("rank %d has had enough" % rank)
        if how == "chain":
            try:
                {}["step"]
            except KeyError as missing:
                raise RuntimeError("no such step") from missing
        if how == "hang":
            while True:
                time.sleep(60)  # stuck here
        if how == "wrong":
            raise errors.GroupError("RANK is nonsense")
        if how == "slow":  # jaxpar.distributed tells the others first
            sys.excepthook = lambda *error: (time.sleep(0.2), sys.__excepthook__(*error))
            raise RuntimeError("slow to leave")
        if how == "memory":  # none to report the first error with
            atexit.register(time.sleep, 60)  # as exit handlers wait that need the other ranks
            sys.excepthook = lambda *error: bytearray(1 << 62)
            bytearray(1 << 62)
        if how == "peer":  # this rank's exception, and the other's end, which is noticed later
            raise ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:2")
        if how == "shared":  # all ranks raise rank 0's error
            error = errors.CheckpointError("rank 0's disk is full")
            error.of_rank = 0
            raise error
        if how in ("leave", "follow"):
            os._exit(how == "follow")
        if how.startswith("exit"):
            sys.exit(int(how[4:]))
        if how == "say":
            sys.exit("nothing to train on")
        if how == "child":
            child = subprocess.Popen(["sleep", "600"])
            (folder / "child").write_text(str(child.pid))
        else:
            os.kill(os.getpid(), getattr(signal, how))

    def save(number, frame):
        print("saved")
        sys.exit(75)

    if plan == "saves":
        signal.signal(signal.SIGTERM, save)
    if plan == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    events = dict(event.split(":") for event in plan.split(",") if ":" in event)
    print("begins")
    until(lambda: len(list(folder.glob(f"{attempt}-*-*"))) == int(os.environ["WORLD_SIZE"]))
    for step in range(steps):
        beat(step)
        time.sleep(0.02)
        how = events.get(f"{rank}.{step}.{attempt}") or events.get(f"{rank}.{step}")
        if how:
            die(how)
    print("done")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launch") / "train.py"
    path.write_text(textwrap.dedent(WORKER))
    return path


def start(script: Path, folder: Path, plan: str, *options: str, steps: int = 8) -> subprocess.Popen[str]:
    line = ["-m", "jaxpar", "launch", "-n", "2", *options, str(script), str(folder), plan, str(steps)]
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *line], stdout=pipe, stderr=pipe, text=True)


def launch(script: Path, folder: Path, plan: str, *options: str, steps: int = 8) -> tuple[int, str, str]:
    """The exit code, what was printed, and what is left of stderr without the lines of the ranks."""
    process = start(script, folder, plan, *options, steps=steps)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, "\n".join(line for line in err.splitlines() if line[:1] != "[")


def pids(folder: Path) -> list[int]:
    return [int(file.read_text()) for file in folder.iterdir() if file.name != "died"]


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


ENDS = {  # plan: options, exit code, what is said of it
    "nothing": ([], 0, ""),
    "1.3:raise": (
        [],
        1,
        r"rank 1 failed first, .* after step 3: exit code 1; .*RuntimeError: rank 1 has had",
    ),
    "0.3:raise": (
        [],
        1,
        r"rank 0 failed first, .* after step 3: exit code 1; .*RuntimeError: rank 0 has had",
    ),
    "1.0:chain": (
        [],
        1,
        r"Rank 1, .*Traceback.*KeyError: 'step'.*The above.*Traceback.*RuntimeError: no such",
    ),
    "1.3:SIGKILL": ([], 137, r"rank 1 failed first, .*: SIGKILL; .*\n +1 .* SIGKILL\n +0 .* SIGKILL, by jax"),
    "0.3:SIGSEGV": ([], 139, r"rank 0 failed first, .*: SIGSEGV; .*File .*train.py., line \d+ in die"),
    "1.3:exit3": ([], 3, r"rank 1 failed first, .*: exit code 3;"),
    "1.3:say": ([], 1, r"rank 1 failed first, .*: exit code 1;.*\n\nnothing to train on$"),
    "1.3:exit2": (["--max-restarts", "2"], 2, r"exit code 2; exit code 2 is never restarted"),
    "1.3:exit78": (["--max-restarts", "2"], 78, r"exit code 78; exit code 78 is never restarted"),
    "1.3:wrong": (
        ["--max-restarts", "2"],
        78,
        r"exit code 78; exit code 78 is never restarted.*RANK is nons",
    ),
    "1.3:slow,0.3:follow+": ([], 1, r"rank 1 failed first, .*: exit code 1;.*RuntimeError: slow to leave"),
    "1.3:leave,0.3:raise+": ([], 1, r"rank 1 failed first, .*: exit code 0 in the middle of its script; "),
    "1.3:shared,0.3:shared+": ([], 1, r"rank 0 failed first, .*: exit code 1;.*\n +1 .* exit code 1\n"),
    "1.3:memory": ([], 1, r"rank 1 failed first, .* after step 3: exit code 1;"),
    "0.3:peer,1.3:SIGABRT+": ([], 134, r"rank 1 failed first, .*: SIGABRT;.*\n +0 .* exit code 1\n"),
    "1.3:hang": (
        ["--step-timeout", "0.5"],
        70,
        r"rank 1 made no step for .*Rank 1 stands at .*line \d+ in die",
    ),
    "1.3:leave,0.3:hang+": (
        ["--step-timeout", "0.5"],
        1,
        r"rank 1 failed first, .* in the middle of its scr",
    ),
    "1.3.0:SIGKILL": (["--max-restarts", "1"], 0, r"SIGKILL; restart 1 of 1 in 1 s$"),
    "1.3:raise,0.0.1:raise": (
        ["--max-restarts", "1"],
        1,
        r"rank 1 fa.*1 in 1 s.*rank 0.*--max-restarts is 1",
    ),
    "0.3.0:exit75,1.3.0:exit75+": ([], 0, r"preempted at step 3; restarting for free in 1 s$"),
    "0.3.0:exit75,1.3.0:hang+": (["--grace", "0.3"], 0, r"preempted at step 3; restarting for free in 1 s$"),
    "0.3.0:exit75,1.3.0:SIGABRT+": ([], 134, r"rank 1 failed first, .*: SIGABRT; not restarted"),
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", ENDS)
def test_every_kind_of_end(plan, script, tmp_path):
    options, code, said = ENDS[plan]
    ended, out, err = launch(script, tmp_path, plan, *options)
    assert ended == code, err
    assert re.search(said, err, re.S), err
    assert said or not err
    assert out.count("] begins\n") == 2 * (1 + len(re.findall(r"restart \d of|restarting", err)))
    assert not any(map(alive, pids(tmp_path)))
    assert (code == 0) == ("[0] done" in out and "[1] done" in out)


@pytest.mark.slow
def test_the_rank_is_blamed_in_whose_name_another_one_raised(script, tmp_path):
    """It ends because of that, without an exception, and after the others, since it hosts the coordinator."""
    plan = "1.3:shared,2.3:follow+,0.3:follow++++"
    ended, _, err = launch(script, tmp_path, plan, "-n", "3")
    assert ended == 1
    assert re.search(r"rank 0 failed first, .*: exit code 1;", err), err


@pytest.mark.slow
def test_every_attempt_has_a_port_of_its_own(script, tmp_path):
    launch(script, tmp_path, "0.0.0:raise,1.0.1:raise", "--max-restarts", "2", steps=1)
    found = {tuple(map(int, file.name.split("-"))) for file in tmp_path.glob("*-*-*")}
    assert {(attempt, rank) for attempt, rank, _ in found} == {(a, r) for a in range(3) for r in range(2)}
    ports = {attempt: {port for a, _, port in found if a == attempt} for attempt in range(3)}
    assert [len(p) for p in ports.values()] == [1, 1, 1]
    assert len(set.union(*ports.values())) == 3


@pytest.mark.slow
def test_a_dead_process_is_noticed_at_once(script, tmp_path):
    launch(script, tmp_path, "1.3:SIGKILL")
    # Seconds on a quiet machine: 0.01 to notice and kill, 0.05 for this process to be told.
    assert time.time() - float((tmp_path / "died").read_text()) < 2


STOPS = {  # what the workers do, signals to the supervisor: exit code, what is said
    "saves, SIGTERM": (75, r"^jaxpar launch: stopped by SIGTERM( at step \d+)?; exit code 75\n"),
    "saves, SIGINT": (75, r"stopped by SIGINT( at step \d+)?; exit code 75\n"),
    "saves, SIGHUP": (75, r"stopped by SIGHUP"),
    "dies, SIGTERM": (143, r"exit code 143\n.*\n +\d .* SIGTERM\n +\d .* SIGTERM$"),
    "dies, SIGINT": (130, r"exit code 130\n.*\n +\d .* SIGTERM\n +\d .* SIGTERM$"),
    "deaf, SIGTERM": (143, r"exit code 143\n.*\n +\d .* SIGKILL, by jaxpar launch"),
    "deaf, SIGINT, SIGINT": (130, r"exit code 130\n.*\n +\d .* SIGKILL, by jaxpar launch"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STOPS)
def test_a_supervisor_that_is_asked_to_stop(case, script, tmp_path):
    code, said = STOPS[case]
    plan, *numbers = case.split(", ")
    grace = "60" if len(numbers) > 1 else "0.5" if plan == "deaf" else "20"
    process = start(script, tmp_path, plan, "--grace", grace, "--max-restarts", "3", steps=3000)
    begun = [process.stdout.readline(), process.stdout.readline()]
    assert sorted(begun) == ["[0] begins\n", "[1] begins\n"]
    for number in numbers:
        process.send_signal(getattr(signal, number))
        time.sleep(0.2)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert re.search(said, err.strip()), err
    assert out.count("saved\n") == (2 if plan == "saves" else 0)
    assert not any(map(alive, pids(tmp_path)))


@pytest.mark.slow
def test_what_is_ignored_stays_ignored(script, tmp_path):
    line = [sys.executable, "-m", "jaxpar", "launch", "-n", "2", str(script), str(tmp_path), "nothing", "20"]
    shell = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *line]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() in ("[0] begins\n", "[1] begins\n")
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out.count("done"), err) == (0, 2, "")


@pytest.mark.slow
def test_a_signal_between_two_attempts(script, tmp_path):
    code = """
        import sys
        from jaxpar._tools.launch.settings import LaunchSettings
        from jaxpar._tools.launch.supervise import run

        class Patient(LaunchSettings):
            def delay(self, idle):
                return 60.0  # a second is short for a signal on a busy machine

        sys.exit(run(Patient(2, sys.argv[1], (sys.argv[2], "0.0:raise", "8"), max_restarts=3)))
    """
    line = [sys.executable, "-c", textwrap.dedent(code), str(script), str(tmp_path)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        while "restart 1 of 3 in 60 s" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (143, "jaxpar launch: stopped by SIGTERM between two attempts\n")


class Late:
    """A queue whose first waiting misses a signal, as one that comes just before it begins."""

    def __init__(self):
        self.waited = []

    def get(self, timeout):
        self.waited.append(timeout)
        if len(self.waited) == 1:
            raise queue.Empty
        return signal.SIGTERM


def test_a_signal_that_comes_just_before_a_long_wait(tmp_path):
    signals = Late()
    supervisor = Supervisor(LaunchSettings(1, "train.py"), signals, tmp_path, None)
    assert supervisor._sleep(60.0) == signal.SIGTERM
    assert max(signals.waited) <= LOOK


@pytest.mark.slow
@pytest.mark.parametrize("how", ["supervisor killed", "rank killed", "asked to stop"])
def test_nothing_is_left_behind(how, script, tmp_path):
    events = "1.0:child,1.50:SIGKILL" if how == "rank killed" else "1.0:child"
    process = start(script, tmp_path, events, steps=3000)
    until((tmp_path / "child").exists)
    until(lambda: len(pids(tmp_path)) == 3)
    children = pids(tmp_path)
    assert all(map(alive, children))
    if how == "supervisor killed":
        process.kill()
    elif how == "asked to stop":
        process.terminate()
    process.communicate(timeout=30)
    until(lambda: not any(map(alive, children)))


@pytest.mark.slow
def test_the_thread_that_follows_a_supervisor_where_the_kernel_cannot(tmp_path):
    code = """
        import fcntl, os, sys, time
        del fcntl.F_SETSIG
        from jaxpar._tools.launch.worker import hold
        hold(int(sys.argv[1]))
        print("holds", flush=True)
        while True:
            time.sleep(0.01)
    """
    reading, writing = os.pipe()
    line = [sys.executable, "-c", textwrap.dedent(code), str(reading)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, pass_fds=(reading,), process_group=0) as process:
        os.close(reading)
        assert process.stdout.readline() == b"holds\n"
        assert process.poll() is None
        os.close(writing)
        assert process.wait(10) == -signal.SIGKILL


# ------------------------------------------------------------------------------- what a worker gets


def run(path: Path, source: str, *options: str, arguments: tuple[str, ...] = ()) -> tuple[str, str]:
    script = path / "script.py"
    script.write_text(textwrap.dedent(source))
    line = [sys.executable, "-m", "jaxpar", "launch", *options]
    target = ["-m", "script"] if "-m" in options else [str(script)]
    line = [*line[: len(line) - ("-m" in options)], *target, *arguments]
    ended = subprocess.run(line, capture_output=True, text=True, errors="replace", cwd=path, check=False)
    return ended.stdout, ended.stderr


SHOW = """
    import json, os, sys
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "JAXPAR_DEVICES",
             "TORCHELASTIC_RESTART_COUNT", "JAXPAR_RESTART_COUNT", "JAXPAR_STEP_TIMEOUT")
    class Here: pass
    seen = {name: os.environ.get(name) for name in names}
    seen |= {"argv": sys.argv[1:], "name": __name__, "file": __file__, "path": sys.path[0]}
    seen |= {"pickles": Here.__module__ == "__main__" and sys.modules["__main__"].Here is Here}
    seen["lifeline"] = "JAXPAR_LIFELINE" in os.environ
    seen["heavy"] = sorted({"jax", "numpy", "click"} & set(sys.modules))
    print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "module"])
def test_a_worker_sees_what_torchrun_would_show_it(how, tmp_path):
    import json

    options = ["-n", "2", "--devices-per-process", "3", "--step-timeout", "9.5", *["-m"] * (how == "module")]
    out, err = run(tmp_path, SHOW, *options, arguments=("-n", "7", "--lr=1", "two words"))
    assert err == ""
    lines = dict(line.split(" ", 1) for line in out.splitlines())
    assert sorted(lines) == ["[0]", "[1]"]
    for rank in range(2):
        assert json.loads(lines[f"[{rank}]"]) == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "JAXPAR_DEVICES": "3",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "JAXPAR_RESTART_COUNT": "0",
            "JAXPAR_STEP_TIMEOUT": "9.5",
            "argv": ["-n", "7", "--lr=1", "two words"],
            "name": "__main__",
            "file": str(tmp_path / "script.py"),
            "path": str(tmp_path),
            "pickles": True,
            "lifeline": False,
            "heavy": [],
        }


GPUS = {  # CUDA_VISIBLE_DEVICES, JAX_PLATFORMS, n, k: the shares
    "two each": ("4,5,6,7", None, 2, 2, ["4,5", "6,7"]),
    "some are left": ("0,1,2,3", "cuda,cpu", 3, 1, ["0", "1", "2"]),
    "names": ("GPU-a, GPU-b", None, 2, 1, ["GPU-a", "GPU-b"]),
    "hidden": ("", None, 2, 2, [None, None]),
    "off": ("-1", None, 2, 2, [None, None]),
    "not for JAX": ("0,1", "cpu", 2, 2, [None, None]),
    "not asked for": ("0,1", None, 2, None, [None, None]),
}


def see(monkeypatch: pytest.MonkeyPatch, visible: str | None, platforms: str | None) -> None:
    for name, value in {"CUDA_VISIBLE_DEVICES": visible, "JAX_PLATFORMS": platforms}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize("case", GPUS)
def test_shares_of_gpus(case, monkeypatch):
    visible, platforms, n, k, shares = GPUS[case]
    see(monkeypatch, visible, platforms)
    settings = LaunchSettings(n, "train.py", devices_per_process=k)
    found = [environment.variables(settings, rank, 1, "s", 0) for rank in range(n)]
    assert [variables.get("CUDA_VISIBLE_DEVICES") for variables in found] == shares
    assert [variables.get("JAXPAR_DEVICES") for variables in found] == [str(k) if k else None] * n
    own = ",".join(map(str, range(k))) if shares[0] else None
    assert [variables.get("JAX_LOCAL_DEVICE_IDS") for variables in found] == [own] * n


def test_too_few_gpus(monkeypatch):
    see(monkeypatch, "0,1,2", None)
    said = "2 processes with 2 devices each need 4 GPUs, and there are 3 \\(0, 1, 2\\)"
    with pytest.raises(errors.DeviceError, match=said):
        environment.variables(LaunchSettings(2, "train.py", devices_per_process=2), 0, 1, "s", 0)


def test_gpus_are_counted_as_nvidia_smi_lists_them(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\necho "GPU 0: H100 (UUID: a)"\necho "  MIG 1g"\necho "GPU 1: H100 (UUID: b)"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    see(monkeypatch, None, None)
    environment._listed.cache_clear()
    assert environment.visible_gpus() == ("0", "1")
    environment._listed.cache_clear()


JOB = """
    import os
    import jaxpar
    from jaxpar import distributed

    distributed.init_process_group()
    rank, attempt = distributed.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    total = float(distributed.all_reduce(1.0 + rank))
    jaxpar.beat()
    if attempt == 0 and rank == 1:
        raise RuntimeError("the first attempt")
    print(f"attempt {attempt} total {total}\\n", end="", flush=True)  # one piece, or ranks mix theirs
"""


@pytest.mark.long
def test_a_script_runs_and_restarts_under_torchrun(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(JOB))
    line = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    line += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    taken = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    env = {k: v for k, v in os.environ.items() if k not in taken and "PJRT_NPROC" not in k}
    env |= {"JAX_PLATFORMS": "cpu", "JAXPAR_DEVICES": "1"}
    ended = subprocess.run(
        [sys.executable, *line, str(script)], capture_output=True, text=True, env=env, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("attempt 1 total 3.0") == 2
    assert "RuntimeError: the first attempt" in ended.stderr


# ------------------------------------------------------------------------------ what is printed where

TALK = r"""
    import sys
    sys.stdout.write("no end of line")
    sys.stderr.buffer.write(b"\xff bytes\n" + b"x" * 70000 + b"\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--log-dir", "logs"], ["--log-dir", "logs", "--no-tee"]])
def test_output_goes_to_the_terminal_and_to_files(options, tmp_path):
    out, err = run(tmp_path, TALK, "-n", "2", *options)
    if "--no-tee" in options:
        assert (out, err) == ("", "")
    else:
        assert sorted(out.splitlines()) == ["[0] no end of line", "[1] no end of line"]
        assert all(line[:4] in ("[0] ", "[1] ") for line in err.splitlines())
        assert err.count("x" * 1000) >= 2
        assert err.count("x") == 140000
    if options:
        logs = sorted((tmp_path / "logs").rglob("*.log"))
        assert [str(log.relative_to(tmp_path)) for log in logs] == [
            f"logs/attempt_0/rank_{rank}.log" for rank in range(2)
        ]
        for log in logs:
            data = log.read_bytes()
            assert data.count(b"x") == 70000
            assert b"no end of line" in data
            assert b"\xff bytes\n" in data


MISUSE = {
    "no such script": (["-n", "2", "nowhere.py"], "There is no script 'nowhere.py'"),
    "no number": (["train.py"], "Missing option '-n'"),
    "nobody": (["-n", "0", "train.py"], "0 is not in the range x>=1"),
    "lost output": (["-n", "1", "--no-tee", __file__], "--no-tee needs --log-dir"),
    "no number of seconds": (["-n", "1", "--step-timeout", "nan", __file__], "nan is not a finite number"),
    "no end": (["-n", "1", "--grace", "inf", __file__], "inf is not a finite number"),
    "no time": (["-n", "1", "--step-timeout", "0", __file__], "0.0 is not in the range x>0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", MISUSE)
def test_misuse_exits_with_2(case):
    line, said = MISUSE[case]
    ended = subprocess.run([sys.executable, "-m", "jaxpar", "launch", *line], capture_output=True, text=True)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_dry_run_prints_and_starts_nothing_and_the_supervisor_loads_no_jax(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it ran')")
    code = (
        "import sys\nfrom jaxpar._cli.main import cli\n"
        f"try: cli(['launch', '-n', '2', '--dry-run', {str(script)!r}, '--lr', '1e-3'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'jax', 'flax', 'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, heavy = ended.stdout.splitlines()
    assert heavy == "[]"
    assert first.startswith("RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 ")
    assert second.startswith("RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 ")
    assert second.endswith(f" {script} --lr 1e-3")


def cache_of_worker(monkeypatch, tmp_path, **variables):
    for name in ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    added = environment.variables(LaunchSettings(1, "train.py"), 0, 1234, None, 0)
    return added.get("JAX_COMPILATION_CACHE_DIR")


def test_programs_are_kept_where_the_user_says_or_in_the_users_cache(monkeypatch, tmp_path):
    folder = cache_of_worker(monkeypatch, tmp_path)
    assert Path(folder).parent == tmp_path / ".cache" / "jaxpar"
    assert cache_of_worker(monkeypatch, tmp_path) == folder
    assert cache_of_worker(monkeypatch, tmp_path, XDG_CACHE_HOME="/elsewhere").startswith(
        "/elsewhere/jaxpar/"
    )
    assert cache_of_worker(monkeypatch, tmp_path, JAX_COMPILATION_CACHE_DIR="") is None
    assert cache_of_worker(monkeypatch, tmp_path, HOME="/dev/null") is None
    assert cache_of_worker(monkeypatch, tmp_path, XDG_CACHE_HOME="here") is None
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cache_of_worker(monkeypatch, tmp_path) is None


def test_another_processor_has_another_folder(monkeypatch):
    folders = set()
    for instructions in ("avx2 fma", "avx2 avx512f fma"):
        monkeypatch.setattr(environment, "_instructions", lambda names=instructions: names)
        folders.add(environment.cache_folder())
    assert len(folders) == 2
    assert len({folder.parent for folder in folders}) == 1


@pytest.mark.slow
def test_the_folder_of_programs_is_said_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, jax\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "print(jax.jit(lambda x: x + 1)(1.0))\n"
    )
    variables = {name: os.environ[name] for name in os.environ if name != "JAX_COMPILATION_CACHE_DIR"}
    variables["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    line = [sys.executable, "-m", "jaxpar", "launch", "-n", "1", str(script)]
    printed = [subprocess.run(line, capture_output=True, text=True, env=variables) for _ in range(2)]
    assert [ended.returncode for ended in printed] == [0, 0]
    assert [ended.stdout for ended in printed] == ["[0] 2.0\n"] * 2
    (folder,) = (tmp_path / "cache" / "jaxpar").iterdir()
    assert f"later starts read compiled programs from {folder}." in printed[0].stderr
    assert printed[1].stderr == ""
    assert any(folder.iterdir())


# ------------------------------------------------------------------------------ who, and how often


def marks(path: Path, **cells: int) -> Marks:
    found = Marks.create(path)
    for name, value in cells.items():
        found.cells[getattr(Marks, name)] = value
    return found


def test_causes_come_before_what_they_cause(tmp_path):
    ends = [(-6, 0, 0), (1, 0, 0), (1, 900, 0), (1, 700, 0), (-9, 0, 0), (1, 100, 1)]
    workers = [
        Worker(i, SimpleNamespace(pid=i), marks(tmp_path / str(i), FAILED=raised, LOST_PEER=lost), code)
        for i, (code, raised, lost) in enumerate(ends)
    ]
    assert [w.rank for w in sorted(workers, key=Worker.ending)] == [4, 3, 2, 0, 1, 5]


PROGRESS = {  # per attempt (steps, beats, seconds); restarts in a row without progress, after each
    "further each time": ([(3, 4, 1), (5, 3, 1), (6, 2, 1)], [0, 0, 0]),
    "the same place": ([(3, 4, 1), (3, 4, 1), (3, 4, 1), (2, 3, 1)], [0, 1, 2, 3]),
    "never starts again": ([(3, 4, 1), (-1, 0, 1), (-1, 0, 99), (4, 5, 1)], [0, 1, 2, 0]),
    "beats without numbers": ([(-1, 4, 1), (-1, 4, 1), (-1, 0, 99)], [0, 0, 1]),
    "never beats, dies young": ([(-1, 0, 1), (-1, 0, 1)], [1, 2]),
    "never beats, lives long": ([(-1, 0, 99), (-1, 0, 99), (-1, 0, 1)], [0, 0, 1]),
}


@pytest.mark.parametrize("case", PROGRESS)
def test_restarts_without_progress_are_counted(case, tmp_path):
    attempts, expected = PROGRESS[case]
    supervisor = Supervisor(LaunchSettings(2, "train.py"), None, tmp_path, None)
    counts = []
    for step, beats, seconds in attempts:
        worker = SimpleNamespace(step=step, beats=beats)
        supervisor.judge(SimpleNamespace(workers=[worker], clock=time.monotonic() - seconds))
        counts.append(supervisor.idle)
    assert counts == expected


@pytest.mark.slow
def test_it_gives_up_without_progress(script, tmp_path, monkeypatch, capfd):
    from jaxpar._tools.launch.supervise import run

    monkeypatch.setattr(LaunchSettings, "delay", lambda self, idle: 0.01)
    arguments = (str(tmp_path), "0.0:exit75,1.0:exit75", "1")
    settings = LaunchSettings(2, str(script), arguments, max_restarts=9, patience=2)
    assert run(settings) == 75
    assert len(list(tmp_path.glob("*-0-*"))) == 4
    assert (
        "preempted at step 0; gave up after 2 restarts in a row without progress beyond step 0"
        in capfd.readouterr().err
    )


def test_delays_double_and_stay():
    assert [LaunchSettings(1, "").delay(idle) for idle in range(5)] == [1, 2, 4, 4, 4]


WORDS = {
    "nothing special": ([str(i) for i in range(30)], [str(i) for i in range(10, 30)]),
    "the last of two": (
        [
            "Traceback (most recent call last):",
            "E: 1",
            "",
            "",
            "",
            "Traceback (most recent call last):",
            "E: 2",
        ],
        ["Traceback (most recent call last):", "E: 2"],
    ),
    "one": (
        ["a", "Traceback (most recent call last):", " x", "E: y"],
        ["Traceback (most recent call last):", " x", "E: y"],
    ),
    "what came after it": (
        ["Traceback (most recent call last):", "E", "b"],
        ["Traceback (most recent call last):", "E", "b"],
    ),
    "nothing": ([], []),
    "with the rank": (
        ["a", "[rank 1] Traceback (most recent call last):", "[rank 1] E"],
        ["[rank 1] Traceback (most recent call last):", "[rank 1] E"],
    ),
}


@pytest.mark.parametrize("case", WORDS)
def test_last_words(case):
    lines, words = WORDS[case]
    assert last_words(lines) == words


def test_where_a_process_stands():
    def frame(file):
        return f'  File "{file}", line 3 in step'

    ours = [frame("<frozen runpy>"), frame("/lib/jaxpar/_tools/launch/worker.py")]
    dump = ["Thread 0x01 (most recent call first):", frame("/lib/threading.py"), ""]
    head = "Current thread 0x02 (most recent call first):"
    stack = frames(
        ["loss 3", head, frame("old.py"), *dump, head, frame("a.py"), frame("b.py"), *ours, "more"]
    )
    assert stack == [frame("a.py"), frame("b.py")]
    assert frames(["loss 3", *dump]) == []
    found = {file: waits([frame(file)]) for file in ("/lib/jax/_src/array.py", "/home/me/train.py")}
    assert found == {"/lib/jax/_src/array.py": True, "/home/me/train.py": False}
    assert not waits([])


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("stuck", [0, 1])
def test_of_ranks_that_stopped_together_the_one_outside_of_jax_is_blamed(stuck, tmp_path):
    source = f"""
        import os, sys, time
        from jaxpar import beat
        sys.path.insert(0, {str(tmp_path)!r})
        import jax.wait
        open({str(tmp_path)!r} + "/at" + os.environ["RANK"], "w").close()
        while len([name for name in os.listdir({str(tmp_path)!r}) if name[:2] == "at"]) < 2:
            time.sleep(0.01)
        beat()
        if os.environ["RANK"] == "{stuck}":
            time.sleep(60)  # for a file that never comes
        jax.wait.forever()
    """
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").touch()
    (tmp_path / "jax" / "wait.py").write_text("import time\ndef forever():\n    time.sleep(60)\n")
    _, err = run(tmp_path, source, "-n", "2", "--step-timeout", "0.3")
    assert f"rank {stuck} made no step for" in err
    assert re.search(rf'Rank {1 - stuck} stands at File ".*/jax/wait.py", line 3 in forever', err)
    assert err.rstrip().endswith('script.py", line 11 in <module>')
