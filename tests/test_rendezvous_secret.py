"""The port knows its job: who does not show the job's secret neither joins it, nor ends or delays it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest
from meetings import in_background, introduced, joined, knock, meeting, start
from processes import ROOT, environment, free_port, ranks
from test_starting_problems import address_of_this_host

from jaxpar import _upstream, errors
from jaxpar._tools.devices_and_environment import environment as reported
from jaxpar._tools.launch import environment as launch
from jaxpar._tools.launch.settings import LaunchSettings
from jaxpar.distributed import _door, _port, _rendezvous, secret
from jaxpar.distributed._handshake import RANK, RANK_0, REFUSED, LineReader, OtherSecret, Session
from jaxpar.distributed._rendezvous import hello, read

OURS, THEIRS = secret.derived(secret.VARIABLE, "ours"), secret.derived(secret.VARIABLE, "theirs")

# ------------------------------------------------------------------------------------------- the proof


def sessions(ours: secret.Secret = OURS, theirs: secret.Secret = OURS) -> tuple[Session, Session]:
    """A rank's and rank 0's."""
    return Session(ours, b"1" * 32, b"2" * 32, b"x"), Session(theirs, b"1" * 32, b"2" * 32, b"x")


def test_a_line_is_opened_by_who_has_the_same_secret():
    rank, zero = sessions()
    for text in (b"{}", b"", b"a b c"):
        assert zero.open(RANK, rank.seal(RANK, text).rstrip(b"\n")) == text
        assert rank.open(RANK_0, zero.seal(RANK_0, text).rstrip(b"\n")) == text


FORGED = {
    "another secret": lambda rank, zero: sessions(THEIRS)[0].seal(RANK, b"{}"),
    "nobody's secret": lambda rank, zero: sessions(secret.NOBODYS)[0].seal(RANK, b"{}"),
    "another text": lambda rank, zero: rank.seal(RANK, b"{}").replace(b"{", b"["),
    "another place": lambda rank, zero: (rank.seal(RANK, b"{}"), rank.seal(RANK, b"{}"))[1],
    "another connection": lambda rank, zero: Session(OURS, b"1" * 32, b"3" * 32, b"x").seal(RANK, b"{}"),
    "its own words": lambda rank, zero: zero.seal(RANK_0, b"{}"),
    "no seal": lambda rank, zero: b"{}",
    "not even text": lambda rank, zero: b"\xff\x00 {}",
    "an empty line": lambda rank, zero: b"\n",
}


@pytest.mark.parametrize("how", FORGED)
def test_no_other_line_is_opened(how):
    rank, zero = sessions()
    with pytest.raises(OtherSecret, match="another secret"):
        zero.open(RANK, FORGED[how](rank, zero).rstrip(b"\n"))


@pytest.mark.full
def test_a_recorded_conversation_proves_nothing_a_second_time():
    port = free_port()
    zero, results = in_background(start(0, 2, port), timeout=2, secrets=OURS)
    recorded: list[bytes] = []
    with knock(port) as connection:
        session, _, _ = introduced(connection, OURS)
        recorded.append(b"jaxpar 1 %s %s\n" % (session.nonces[:32], OURS.source.encode()))
        recorded.append(session.seal(RANK, json.dumps(hello(start(1, 2, port))).encode()))
    with knock(port) as thief:
        thief.sendall(recorded[0])
        thief.recv(4096)
        thief.sendall(recorded[1])
        assert thief.recv(4096) == REFUSED
    zero.join(10)
    assert "rank 1 of 2 did not come" in str(results[0])


@pytest.mark.full
def test_the_secret_is_never_sent():
    spoken, text = [], "a text that nobody else may have"
    ours = secret.derived(secret.VARIABLE, text)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        rank, _ = in_background(start(1, 2, port), timeout=1, secrets=ours)
        connection, _ = listener.accept()
        with connection:
            spoken.append(connection.recv(4096))
            connection.sendall(b"jaxpar 1 %s nothing\n" % (b"0" * 32))
            spoken.append(connection.recv(4096))
    rank.join(10)
    assert b"rank" in spoken[1]  # it is the hello
    assert not any(
        word in line for line in spoken for word in (text.encode(), ours.key, ours.key.hex().encode())
    )
    assert text not in repr(ours)
    assert repr(ours.key) not in repr(ours)


# ------------------------------------------------------------------------------------ where it is from

NAMES = ("JAXPAR_JOB_SECRET", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "JOB_COMPLETION_INDEX", "MASTER_ADDR")
SOURCES = {
    "nothing": ({}, "nothing"),
    "a secret": ({"JAXPAR_JOB_SECRET": "s", "TORCHELASTIC_RUN_ID": "7", "SLURM_JOB_ID": "8"}, NAMES[0]),
    "an empty secret": ({"JAXPAR_JOB_SECRET": "", "SLURM_JOB_ID": "8"}, "SLURM_JOB_ID"),
    "torchrun": ({"TORCHELASTIC_RUN_ID": "7", "SLURM_JOB_ID": "8"}, "TORCHELASTIC_RUN_ID"),
    "torchrun without an id": ({"TORCHELASTIC_RUN_ID": "none"}, "nothing"),
    "SLURM": ({"SLURM_JOB_ID": "8"}, "SLURM_JOB_ID"),
    "Kubernetes, which nobody has asked": ({"JOB_COMPLETION_INDEX": "0"}, "nothing"),
}


def variables(monkeypatch, **values: str) -> None:
    for name in (*NAMES, "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("row", SOURCES)
def test_where_the_secret_comes_from(row, monkeypatch):
    given, source = SOURCES[row]
    variables(monkeypatch, **given)
    assert secret.find().source == source
    assert secret.find() == secret.find()


def test_other_jobs_have_other_secrets(monkeypatch):
    found = []
    for given in (
        {},
        {"JAXPAR_JOB_SECRET": "7"},
        {"JAXPAR_JOB_SECRET": "8"},
        {"SLURM_JOB_ID": "7"},
        {"SLURM_JOB_ID": "8"},
        {"TORCHELASTIC_RUN_ID": "7", "MASTER_PORT": "1"},
        {"TORCHELASTIC_RUN_ID": "7", "MASTER_PORT": "2"},
    ):
        variables(monkeypatch, **given)
        found.append(secret.find().key)
    assert len(set(found)) == len(found)
    variables(monkeypatch, JAXPAR_JOB_SECRET="\udcff")  # bytes that are no text
    assert secret.find().source == "JAXPAR_JOB_SECRET"


def test_the_uid_of_a_kubernetes_job(monkeypatch):
    class Job:
        metadata = type("Metadata", (), {"uid": "0f1e"})

    assert _upstream.kubernetes_job() is None
    monkeypatch.setattr(_upstream.clusters.K8sCluster, "_core_api", object(), raising=False)
    monkeypatch.setattr(_upstream.clusters.K8sCluster, "_job", Job)
    variables(monkeypatch, JOB_COMPLETION_INDEX="0")
    assert secret.find() == secret.derived("JOB_COMPLETION_INDEX", "0f1e")
    variables(monkeypatch, JOB_COMPLETION_INDEX="0", MASTER_ADDR="h")  # several Jobs may be one job then
    assert secret.find() == secret.NOBODYS


def test_the_launcher_makes_a_secret_and_leaves_the_users_alone(monkeypatch):
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    assert len({secret.fresh() for _ in range(10)}) == 10
    assert all(re.fullmatch("[0-9a-f]{32}", secret.fresh()) for _ in range(3))
    given = [launch.variables(LaunchSettings(2, "x.py"), rank, 1, "s", 0) for rank in (0, 1)]
    assert [one[secret.VARIABLE] for one in given] == ["s", "s"]
    monkeypatch.setenv(secret.VARIABLE, "the user's")
    assert secret.fresh() is None
    assert secret.VARIABLE not in launch.variables(
        LaunchSettings(2, "x.py"), 0, 1, None, 0
    )  # --dry-run prints them


SAYS = """
    import os
    from pathlib import Path
    folder, restart = Path(__file__).parent, os.environ["JAXPAR_RESTART_COUNT"]
    (folder / f"{restart}-{os.environ['RANK']}").write_text(os.environ["JAXPAR_JOB_SECRET"])
    while len(list(folder.glob(f"{restart}-*"))) < 2:
        pass
    raise SystemExit(1 if restart == "0" else 0)
"""


@pytest.mark.slow
def test_every_attempt_has_a_secret_of_its_own(tmp_path):
    script = tmp_path / "says.py"
    script.write_text(textwrap.dedent(SAYS))
    line = [sys.executable, "-m", "jaxpar", "launch", "-n", "2", "--max-restarts", "1", str(script)]
    clean = {name: text for name, text in os.environ.items() if name != secret.VARIABLE}
    subprocess.run(line, env=clean | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True, timeout=120)
    said = {path.name: path.read_text() for path in tmp_path.glob("?-?")}
    assert said["0-0"] == said["0-1"] != said["1-0"] == said["1-1"]


def test_a_bug_report_does_not_show_it(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # which it sets, and which is put back
    monkeypatch.setenv(secret.VARIABLE, "do not paste this")
    found = reported.environment()
    assert found["variables"][secret.VARIABLE] == "set, and not shown"
    assert "do not paste this" not in reported.text(found)


# ----------------------------------------------------------------------------------- ranks and secrets


def test_ranks_with_one_secret_meet():
    port = free_port()
    found = meeting(*(start(r, 3, port) for r in range(3)), secrets=OURS)
    assert [one.hosts for one in found] == [1] * 3


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("other", [THEIRS, secret.NOBODYS, secret.derived("SLURM_JOB_ID", "8")])
@pytest.mark.parametrize("who", [0, 1])
def test_ranks_with_other_secrets_do_not(who, other, caplog):
    port = free_port()
    with caplog.at_level(logging.WARNING, logger="jaxpar"):
        secrets = {who: OURS, 1 - who: other}
        zero, one = meeting(start(0, 2, port), start(1, 2, port), timeout=1.5, secrets=secrets)
    sources = secrets[1].source, secrets[0].source
    assert "rank 1 of 2 did not come" in str(zero)
    assert re.search(rf"connections \(\d+\) with another secret than rank 0's, .* {sources[1]}\.", str(zero))
    assert f"rank 0 has another secret (from {sources[1]}) than the one from {sources[0]} here" in str(one)
    for text in (str(zero), str(one)):
        assert "set JAXPAR_JOB_SECRET to the same text on all" in text
    said = [record.getMessage() for record in caplog.records]
    assert sum("turned away" in text for text in said) == 1  # at once, and once
    assert sum("waits for rank 0" in text for text in said) == 1


def test_whoever_says_that_it_is_rank_0_has_to_show_it():
    def pretend(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"jaxpar 1 %s %s\n" % (b"0" * 32, OURS.source.encode()))
                    connection.recv(4096)
                    connection.sendall(b'%s {"say": "error", "text": "go home"}\n' % (b"0" * 64))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=pretend, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        (found,) = meeting(start(1, 2, port), timeout=0.5, secrets=OURS)
        listener.shutdown(socket.SHUT_RDWR)
    assert "rank 0 has another secret" in str(found)
    assert "go home" not in str(found)


@pytest.mark.full
def test_a_silent_program_at_the_port_does_not_hold_a_rank(monkeypatch):
    monkeypatch.setattr(_rendezvous, "SOON", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (found,) = meeting(start(1, 2, listener.getsockname()[1]), timeout=1, secrets=OURS)
        listener.settimeout(1)
        for _ in range(3):  # it knocked again and again: rank 0 may be there by then
            listener.accept()[0].close()
    assert "is not rank 0 of this job" in str(found)


@pytest.mark.full
def test_an_older_jaxpar_gets_one_clear_sentence():
    port = free_port()
    zero, results = in_background(start(0, 2, port), timeout=1, secrets=OURS)
    with knock(port) as outdated:
        outdated.sendall(json.dumps(hello(start(1, 2, port))).encode() + b"\n")
        answer = json.loads(outdated.makefile().readline())
    assert answer["jaxpar"] == "error"
    assert "this rank's jaxpar knows of none. Install the same jaxpar on all hosts." in answer["text"]
    zero.join(10)
    assert "connections (1) of an older jaxpar" in str(results[0])


REFUSED_ALONE = {
    "without a host": ({"host": None}, "does not understand this process: a hello has rank, world, host"),
    "a rank that is text": ({"rank": "1"}, "does not understand this process"),
    "a rank that is true": ({"rank": True}, "does not understand this process"),
    "a rank too large": ({"rank": 2}, r"process \d+ on .* is rank 2, and ranks are 0 to 1"),
    "a rank below 0": ({"rank": -1}, r"is rank -1, and ranks are 0 to 1"),
    "rank 0 again": ({"rank": 0}, r"two processes are rank 0: process \d+ on .* and process \d+ on"),
}


@pytest.mark.parametrize("row", REFUSED_ALONE)
def test_a_hello_that_does_not_fit_is_refused_to_its_process_alone(row):
    said, text = REFUSED_ALONE[row]
    port = free_port()
    zero, results = in_background(start(0, 2, port), secrets=OURS)
    (found,) = meeting(start(1, 2, port), said={0: said}, secrets=OURS)
    assert isinstance(found, errors.DistributedError)
    assert re.search(text, str(found)), found
    (one,) = meeting(start(1, 2, port), secrets=OURS)
    zero.join(10)
    assert (one.hosts, results[0].hosts) == (1, 1)


@pytest.mark.full
def test_another_world_of_a_rank_that_knows_the_secret_is_an_error_for_all():
    port = free_port()
    found = meeting(start(0, 2, port), start(1, 3, port), secrets=OURS)
    assert all(re.search("rank 1 .* has world_size 3, rank 0 .* has world_size 2", str(one)) for one in found)


@pytest.mark.parametrize("text", [b"[" * 60_000, b'{"rank":' * 8_000, b"\xff", b"null", b"1" * 5000, b"{}"])
def test_what_is_no_hello_is_none(text):
    assert read(text) is None


# ------------------------------------------------------------------------------------ where it listens


def test_rank_0_listens_at_its_address_alone():
    here = address_of_this_host() or "127.0.0.2"
    port = free_port()
    zero, results = in_background(start(0, 2, port, here), secrets=OURS)
    knock(port, here).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)
    meeting(start(1, 2, port, here), secrets=OURS)
    zero.join(10)
    assert results[0].bind == f"{here}:{port}"  # JAX's coordinator listens there, too


@pytest.mark.slow
def test_jaxs_coordinator_listens_at_the_same_address_alone():
    here = address_of_this_host() or "127.0.0.2"
    source = """
        import os, socket
        from jaxpar import distributed

        distributed.init_process_group(timeout=60)
        try:
            socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])), 5)
        except ConnectionRefusedError:
            print("refused")
        distributed.destroy_process_group()
    """
    for ended in ranks(2, source, env={"MASTER_ADDR": here, secret.VARIABLE: "ours"}):
        assert ended.code == 0, ended.err
        assert "refused" in ended.out


def test_an_address_of_another_host_is_said(caplog):
    port = free_port()
    with caplog.at_level(logging.WARNING, logger="jaxpar"):
        zero, results = in_background(start(0, 2, port, "192.0.2.1"), secrets=OURS)  # a router's, perhaps
        meeting(start(1, 2, port), secrets=OURS)
        zero.join(10)
    assert results[0].bind is None
    assert f"cannot listen at 192.0.2.1:{port}, which is no address of this host" in caplog.text


@pytest.mark.parametrize(("known", "warnings"), [(OURS, 0), (secret.NOBODYS, 1)], ids=["secret", "none"])
def test_off_loopback_a_job_without_a_secret_warns_once(known, warnings, caplog):
    here = address_of_this_host()
    if here is None:
        pytest.skip("this host has no address but loopback's")
    port = free_port()
    with caplog.at_level(logging.WARNING, logger="jaxpar"):
        meeting(*(start(r, 3, port, here) for r in range(3)), secrets=known)
    said = [record.getMessage() for record in caplog.records if "knows no secret" in record.getMessage()]
    assert len(said) == warnings
    assert all("Set JAXPAR_JOB_SECRET to one random text on all ranks" in text for text in said)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="jaxpar"):
        meeting(*(start(r, 2, free_port()) for r in range(1)), timeout=0.1, secrets=known)
    assert "knows no secret" not in caplog.text  # on loopback it does not


# -------------------------------------------------------------------------------------------- strangers


def door() -> tuple[_door.Door, int]:
    port = _port.listen(start(0, 2, 0), 1)
    return _door.Door(port, OURS, b"outdated\n"), port.listeners[0].getsockname()[1]


def until(door: _door.Door, condition) -> None:
    deadline = time.monotonic() + 5  # before a stranger's time is over
    while not condition():
        assert time.monotonic() < deadline
        assert door.look(0.01) == ([], [])


def test_strangers_have_a_limited_number_of_places(monkeypatch):
    monkeypatch.setattr(_door, "PLACES", 10)
    opened, port = door()
    with contextlib.ExitStack() as stack:
        stack.callback(opened.close)
        polite = stack.enter_context(knock(port))
        polite.sendall(b"jaxpar 1 %s nothing\n" % (b"0" * 32))
        until(opened, lambda: any(one.session for one in opened.visitors.values()))
        for _ in range(50):
            stack.enter_context(knock(port))
            opened.look(0)
        until(opened, lambda: len(opened.visitors) == 10)
        assert any(one.session for one in opened.visitors.values())  # whoever is silent goes first


def test_a_flood_from_one_address_takes_places_of_that_address(monkeypatch):
    monkeypatch.setattr(_door, "PLACES", 10)
    opened, port = door()
    with contextlib.ExitStack() as stack:
        stack.callback(opened.close)
        other = socket.create_connection(("127.0.0.1", port), 1, ("127.0.0.3", 0))
        stack.enter_context(other)
        until(opened, lambda: len(opened.visitors) == 1)
        for _ in range(50):
            stack.enter_context(knock(port))
            opened.look(0)
        until(opened, lambda: len(opened.visitors) == 10)
        assert "127.0.0.3" in {one.address for one in opened.visitors.values()}


def test_strangers_have_a_limited_time(monkeypatch):
    monkeypatch.setattr(_door, "PATIENCE", 0.2)
    opened, port = door()
    with contextlib.closing(opened), knock(port) as silent, knock(port) as half:
        half.sendall(b"jaxpar 1 ")
        until(opened, lambda: len(opened.visitors) == 2)
        until(opened, lambda: not opened.visitors)
        for one in (silent, half):
            assert one.recv(1) == b""


def test_a_line_without_an_end_is_no_line(monkeypatch):
    pieces = iter([b"x" * 4096] * 20)
    connection = SimpleNamespace(settimeout=lambda seconds: None, recv=lambda size: next(pieces))
    assert LineReader(connection).line(time.monotonic() + 60) is None


def test_a_rank_of_another_world_ends_the_waiting(monkeypatch):
    """Rank 2 never comes; the others are told at once and not when the time is up."""
    monkeypatch.setattr(_rendezvous, "LATE", 0.3)
    port, begun = free_port(), time.monotonic()
    found = meeting(start(0, 3, port), start(1, 4, port), secrets=OURS, timeout=60)
    assert all("world_size 4" in str(one) for one in found)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("greeted", [False, True])
def test_strangers_have_a_limited_size(greeted):
    opened, port = door()
    with contextlib.closing(opened), knock(port) as one:
        if greeted:
            one.sendall(b"jaxpar 1 %s nothing\n" % (b"0" * 32))
            until(opened, lambda: any(one.session for one in opened.visitors.values()))
        else:
            until(opened, lambda: opened.visitors)
        one.sendall(b"x" * (_door.LONGEST_HELLO + 1))
        until(opened, lambda: not opened.visitors)


def test_a_stranger_that_breaks_its_connection_off_ends_that_alone():
    opened, port = door()
    with contextlib.closing(opened), knock(port) as silent:
        until(opened, lambda: len(opened.visitors) == 1)
        with knock(port) as rude:
            until(opened, lambda: len(opened.visitors) == 2)
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
        until(opened, lambda: len(opened.visitors) == 1)
        assert next(iter(opened.visitors)).getpeername() == silent.getsockname()


def test_without_files_to_open_the_door_goes_on(monkeypatch):
    """Accepting fails where a process has as many files as it may have."""

    class Full:
        def accept(self):
            raise OSError(24, "Too many open files")

    opened, port = door()
    with contextlib.closing(opened), knock(port), knock(port):
        until(opened, lambda: len(opened.visitors) == 2)
        opened._accept(Full())
        assert len(opened.visitors) == 1


@pytest.mark.full
def test_a_guest_that_says_more_than_a_rank_does_is_a_guest_no_more():
    port = free_port()
    zero, results = in_background(start(0, 3, port), timeout=1, secrets=OURS)
    with joined(start(1, 3, port), OURS) as chatty:
        chatty.sendall(b"more\n")
        with contextlib.suppress(ConnectionResetError):
            assert chatty.recv(1) == b""
        zero.join(10)
    assert "ranks 1, 2 of 3 did not come" in str(results[0])


HELLO = json.dumps(hello(start(1, 2, 1))).encode()
GREETING = b"jaxpar 1 %s JAXPAR_JOB_SECRET\n" % (b"0" * 32)
WORDS = {
    "nothing": b"",
    "a browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a scanner": b"\x16\x03\x01\x00\xf4\x01\x00\x00" * 20,
    "depth": b"[" * 60_000,
    "depth in a line": b"[" * 60_000 + b"\n",
    "depth after a greeting": GREETING + b"0" * 64 + b" " + b"[" * 60_000 + b"\n",
    "a hello": HELLO + b"\n",
    "a hello without a host": b'{"jaxpar": "0.1.0", "rank": 1, "world": 2}\n',
    "a hello of another world": HELLO.replace(b'"world": 2', b'"world": 7') + b"\n",
    "half a hello": HELLO[:40],
    "half a greeting": GREETING[:20],
    "a greeting": GREETING,
    "a forged hello": GREETING + b"0" * 64 + b" " + HELLO + b"\n",
    "a hello with nobody's seal": GREETING + Session(secret.NOBODYS, b"0", b"0", b"x").seal(RANK, HELLO),
    "too much": b"x" * 200_000,
    "lines": b"\n" * 5000,
}


class Attack:
    """Four threads that connect again and again, each time with other words, and keep many of them open."""

    def __init__(self, port: int, times: int, places: int = 300):
        self.port, self.times, self.places = port, times // 4, places
        self.made: list[int] = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._attack) for _ in range(4)]
        for thread in self.threads:
            thread.start()

    def _attack(self) -> None:
        kept: list[socket.socket] = []
        words = list(WORDS.values())
        with contextlib.ExitStack() as stack:
            for i in range(self.times):
                if self.over.is_set():
                    return
                with contextlib.suppress(OSError):
                    one = stack.enter_context(socket.create_connection(("127.0.0.1", self.port), 1))
                    self.made.append(i)
                    kept.append(one)
                    one.setblocking(False)
                    one.send(words[i % len(words)])
                if len(kept) >= self.places:
                    kept.pop(0).close()
            self.over.wait(200)

    def wait(self, made: int) -> None:
        deadline = time.monotonic() + 200
        while len(self.made) < made:
            assert time.monotonic() < deadline, len(self.made)
            time.sleep(0.01)

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(60)


@pytest.mark.parametrize("words", WORDS)
def test_a_stranger_does_not_hold_up_a_job(words):
    port = free_port()
    zero, results = in_background(start(0, 2, port), secrets=OURS)
    with knock(port) as stranger:
        with contextlib.suppress(OSError):  # some are shown the door while they speak
            stranger.sendall(WORDS[words])
        began = time.monotonic()
        (one,) = meeting(start(1, 2, port), secrets=OURS)
        zero.join(10)
        assert time.monotonic() - began < 2
    assert (one.hosts, results[0].hosts) == (1, 1)


JOB = """
    import jax.numpy as jnp
    from jaxpar import distributed

    distributed.init_process_group(timeout=60)
    print(distributed.all_reduce(jnp.ones(2)), flush=True)
    distributed.destroy_process_group()
"""


def process(rank: int, port: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(JOB)],
        env=environment(rank, 2, port) | {secret.VARIABLE: "ours"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("times", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_job_starts_whatever_comes_to_its_port(times):
    """Strangers, garbage, depth, silence, a flood, half hellos: all of it at once, while two ranks start."""
    port = free_port()
    started = [process(0, port)]
    knock(port).close()  # rank 0 listens
    attack = Attack(port, times * 11 // 10)
    try:
        attack.wait(times)  # the rest comes beside rank 1, and to JAX's coordinator
        started.append(process(1, port))
        for rank in started:
            out, err = rank.communicate(timeout=120)
            assert rank.returncode == 0, err
            assert "[2. 2.]" in out
    finally:
        attack.end()
        for rank in started:
            rank.kill()
            rank.communicate()
