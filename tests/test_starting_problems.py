"""What goes wrong before a group stands is an exception on every rank: who, where, how long, what to do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time

import pytest
from meetings import in_background, joined, knock, meeting, start
from processes import ROOT, environment, free_port, ranks

from jaxpar import errors
from jaxpar.distributed._environment import Start, find
from jaxpar.distributed._process_group import _devices_of
from jaxpar.distributed._rendezvous import hello, read

# ----------------------------------------------------------- ranks that meet: threads, no JAX involved


def test_ranks_that_fit_meet():
    port = free_port()
    found = meeting(*(start(r, 4, port) for r in (3, 0, 2, 1)))
    assert [one.hosts for one in found] == [1] * 4
    assert [one.hosts for one in meeting(start(0, 2, port), start(1, 2, port))] == [1, 1]  # at once again
    two = meeting(start(0, 2, port), start(1, 2, port), said={1: {"host": "another"}})
    assert [one.hosts for one in two] == [2, 2]


PROBLEMS = {
    "a rank is missing": (
        lambda p: [start(0, 4, p), start(2, 4, p)],
        {},
        r"ranks 1, 3 of 4 did not come to rank 0 at 127\.0\.0\.1:\d+ within 1 s; ranks 0, 2 did",
    ),
    "another world": (
        lambda p: [start(0, 2, p), start(1, 3, p)],
        {},
        r"rank 1 \(process \d+ on .*\) has world_size 3, rank 0 .* has world_size 2",
    ),
    "another JAX": (
        lambda p: [start(0, 2, p), start(1, 2, p)],
        {1: {"jax": "0.9.0"}},
        r"rank 1 .* has jax 0\.9\.0, rank 0 .* has jax \d",
    ),
    "another jaxlib": (
        lambda p: [start(0, 2, p), start(1, 2, p)],
        {1: {"jaxlib": "0.9.0"}},
        r"has jaxlib 0\.9\.0",
    ),
    "another jaxpar": (
        lambda p: [start(0, 2, p), start(1, 2, p)],
        {0: {"jaxpar": "0.0.1"}},
        r"rank 0 .* has jaxpar 0\.0\.1",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_rank_that_is_there_gets_the_same_text(problem):
    starts, said, text = PROBLEMS[problem]
    began = time.monotonic()
    found = meeting(*starts(free_port()), timeout=1, said=said)
    assert time.monotonic() - began < 6
    assert all(isinstance(one, errors.DistributedError) for one in found), found
    assert len({str(one) for one in found}) == 1
    assert re.search(text, str(found[0])), found[0]


@pytest.mark.full
def test_a_second_process_of_a_rank_is_turned_away_alone():
    port, pair = free_port(), r"two processes are rank 1: process \d+ on .* and process \d+ on"
    zero, results = in_background(start(0, 3, port))
    with joined(start(1, 3, port)):
        (found,) = meeting(start(1, 3, port))
        assert re.search(pair, str(found)), found
    meeting(start(1, 3, port), start(2, 3, port))  # and the job goes on
    zero.join(10)
    assert results[0].hosts == 1
    alone = meeting(start(0, 3, port), start(1, 3, port), start(1, 3, port), timeout=1)
    assert sum(bool(re.search("rank 2 of 3 did not come.*" + pair, str(one))) for one in alone) == 2, alone


@pytest.mark.parametrize(
    ("host", "text"),
    [
        (
            "127.0.0.1",
            r"rank 1 of 2 did not reach rank 0 at 127\.0\.0\.1:\d+ within 0\.5 s: Connection refused",
        ),
        ("no-such-host.invalid", r"the host name 'no-such-host\.invalid' is unknown"),
    ],
)
def test_rank_0_cannot_be_reached(host, text):
    (found,) = meeting(start(1, 2, free_port(), host), timeout=0.5)
    assert re.search(text, str(found)), found


def test_rank_0_does_not_know_its_own_name():
    (found,) = meeting(start(0, 2, free_port(), "no-such-host.invalid"), timeout=0.5)
    assert "the host name 'no-such-host.invalid' is unknown" in str(found)


@pytest.mark.slow
def test_the_port_is_taken_by_another_program():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        zero, one = meeting(start(0, 2, port), start(1, 2, port), timeout=1)
    assert f"rank 0 cannot listen at 127.0.0.1:{port}: Address already in use" in str(zero)
    assert f"rank 1 of 2 did not reach rank 0 at 127.0.0.1:{port} within 1 s" in str(one)


@pytest.mark.slow
def test_two_ranks_0_on_one_host():
    port = free_port()
    found = meeting(start(0, 2, port), start(0, 2, port), timeout=4)
    assert all("two processes are rank 0" in str(one) for one in found), found


STRANGERS = {
    "a browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a scanner": b"\x16\x03\x01\x00\xf4\x01\x00\x00" * 20,
    "other JSON": b'{"rank": 1}\n',
    "no object": b"[1, 2]\n",
    "a list for a name": b'{"jaxpar": [], "rank": "x"}\n',
    "no end": b"x" * 100_000,
    "nothing": b"",
}


def test_strangers_at_the_port_change_nothing():
    port = free_port()
    zero, results = in_background(start(0, 2, port))
    strangers = []
    for words in STRANGERS.values():
        strangers.append(knock(port))
        with contextlib.suppress(OSError):  # some are shown the door while they speak
            strangers[-1].sendall(words)
    (one,) = meeting(start(1, 2, port))
    zero.join(10)
    assert one.hosts == 1
    assert results[0].hosts == 1
    for stranger in strangers:
        stranger.close()


def test_a_rank_that_ended_before_all_were_there_can_come_again():
    port = free_port()
    zero, results = in_background(start(0, 3, port))
    with joined(start(1, 3, port)):
        pass
    assert [one.hosts for one in meeting(start(1, 3, port), start(2, 3, port))] == [1, 1]
    zero.join(10)
    assert results[0].hosts == 1


@pytest.mark.parametrize("line", STRANGERS.values(), ids=STRANGERS)
def test_no_stranger_is_read_as_a_rank(line):
    assert read(line) is None
    assert read(json.dumps(hello(start(1, 3, 1))).encode()) is not None


# --------------------------------------------------------------------------- arguments and variables

VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def variables(monkeypatch, **changed):
    for name in [*environment(0, 1, 1), *os.environ]:
        if name.startswith(("RANK", "WORLD", "LOCAL_", "MASTER", "SLURM", "OMPI", "TORCHELASTIC")):
            monkeypatch.delenv(name, raising=False)
    for name, text in (VARIABLES | changed).items():
        if text is not None:
            monkeypatch.setenv(name, text)


def test_variables_and_arguments(monkeypatch):
    variables(monkeypatch, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    assert find("env://", -1, -1, 1) == Start(1, 2, "127.0.0.1", 29500, 0, 1)
    assert find(None, 4, 3, 1) == Start(3, 4, "127.0.0.1", 29500, 0, 1)
    assert find("env://", 4, 0, 1) == Start(0, 4, "127.0.0.1", 29500, 0, 1)
    assert find("tcp://h:80?rank=1&world_size=3", 5, 0, 1) == Start(0, 5, "h", 80, 0, 1)
    assert find("tcp://[::1]:80", 2, 0, 1) == Start(0, 2, "::1", 80, 0, 1)
    assert find("tcp://[::1]:80", 2, 0, 1).address == "[::1]:80"
    assert find("tcp://h:80?rank=1&world_size=3", -1, -1, 1) == Start(1, 3, "h", 80, 0, 1)
    variables(monkeypatch, **dict.fromkeys(VARIABLES))
    assert find("env://", -1, -1, 1).size == 1


def test_under_torchrun_the_port_is_another_one_and_changes_with_every_restart(monkeypatch):
    ports = []
    for attempt in ("0", "1", "2"):
        variables(monkeypatch, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=attempt)
        ports += {find("env://", 2, rank, 1).port for rank in (0, 1)}
    assert len(set(ports)) == 3
    assert all(20_000 <= port <= 32_000 for port in ports)
    variables(
        monkeypatch, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="10", MASTER_PORT="20133"
    )
    assert find("env://", 2, 0, 1).port == 20_134  # the rule gives the very port that torchrun has


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[03-04],other",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


def test_schedulers(monkeypatch):
    nothing = dict.fromkeys(VARIABLES)
    variables(monkeypatch, **nothing, **SLURM)
    found = find("env://", -1, -1, 1)
    assert (found.rank, found.size, found.host, found.local_rank) == (3, 4, "node03", 1)
    address = {"MASTER_ADDR": "h", "MASTER_PORT": "5"}
    variables(monkeypatch, **nothing | SLURM | address)
    assert find("env://", -1, -1, 1) == Start(3, 4, "h", 5, 1, None)
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    uri = {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp://10.0.0.1,10.0.0.2:34911"}
    variables(monkeypatch, **nothing | mpi | uri)
    found = find("env://", -1, -1, 1)
    assert (found.rank, found.size, found.host) == (1, 2, "10.0.0.1")


GPUS = {
    "no LOCAL_RANK": (Start(0, 2), {}, None),
    "alone on its host": (Start(1, 2, local_rank=0, local_size=1), {}, None),
    "one of two": (Start(1, 2, local_rank=1, local_size=2), {}, [1]),
    "of all that are visible": (
        Start(1, 2, local_rank=1, local_size=2), {"CUDA_VISIBLE_DEVICES": "4,7"}, [1],
    ),
    "the launcher has given it one": (
        Start(1, 2, local_rank=1, local_size=2), {"CUDA_VISIBLE_DEVICES": "7"}, None,
    ),
    "JAX was told": (Start(1, 2, local_rank=1, local_size=2), {"JAX_LOCAL_DEVICE_IDS": "0"}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", GPUS)
def test_the_gpu_of_a_rank(case, monkeypatch):
    start, given, want = GPUS[case]
    variables(monkeypatch, **{"CUDA_VISIBLE_DEVICES": None, "JAX_LOCAL_DEVICE_IDS": None} | given)
    assert _devices_of(start) == want


BAD = {
    "no RANK": ({"RANK": None}, {}, "environment variable RANK expected, but not set"),
    "no WORLD_SIZE": ({"WORLD_SIZE": None}, {}, "environment variable WORLD_SIZE expected, but not set"),
    "no MASTER_ADDR": ({"MASTER_ADDR": None}, {}, "environment variable MASTER_ADDR expected, but not set"),
    "no MASTER_PORT": ({"MASTER_PORT": None}, {}, "environment variable MASTER_PORT expected, but not set"),
    "RANK is text": ({"RANK": "one"}, {}, "RANK is 'one', which is not an integer"),
    "rank too large": ({"RANK": "2"}, {}, "rank 2 is not below world_size 2; ranks are 0 to 1"),
    "no world": ({}, {"world_size": 0}, "world_size must be positive, not 0"),
    "no port": ({}, {"init_method": "tcp://localhost"}, "port number missing in 'tcp://localhost'"),
    "a bad port": ({}, {"init_method": "tcp://localhost:99999"}, "Port out of range 0-65535"),
    "port 0": ({}, {"init_method": "tcp://localhost:0"}, "port 0 in 'tcp://localhost:0' is no port"),
    "MASTER_PORT 0": ({"MASTER_PORT": "0"}, {}, "MASTER_PORT is 0, and a port is a number from 1 to 65535"),
    "MASTER_PORT -1": ({"MASTER_PORT": "-1"}, {}, "MASTER_PORT is -1, and a port is a number from 1"),
    "MASTER_PORT 99999": ({"MASTER_PORT": "99999"}, {}, "MASTER_PORT is 99999, and a port is a number"),
    "no host": ({}, {"init_method": "tcp://:80"}, "host name missing"),
    "no rank": ({}, {"init_method": "tcp://h:80", "world_size": 2}, "rank parameter missing"),
    "no size": ({}, {"init_method": "tcp://h:80", "rank": 0}, "world size parameter missing"),
    "another method": ({}, {"init_method": "file:///shared/x"}, "init_method='file:///shared/x' is unknown"),
    "another backend": ({}, {"backend": "mpi"}, "backend='mpi' is unknown; write 'gloo', 'nccl' or None"),
    "a bad heartbeat": (
        {"JAXPAR_HEARTBEAT": "soon"},
        {},
        "JAXPAR_HEARTBEAT is 'soon', which is not an integer",
    ),
    "no time": ({}, {"timeout": 0}, "timeout must be positive"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_and_variables_are_value_errors(case, monkeypatch):
    import jaxpar.distributed as dist

    changed, arguments, text = BAD[case]
    variables(monkeypatch, **changed)
    with pytest.raises(errors.GroupError) as caught:
        # What is let through waits for others.
        dist.init_process_group(**{"timeout": 2} | arguments)
    assert isinstance(caught.value, ValueError)
    assert text in str(caught.value)
    assert not dist.is_initialized()


# ------------------------------------------------------------------------------------ real processes

JOB = """
import os
r = os.environ["RANK"]
os.environ |= {changes!r}.get(r, {{}})
import jaxpar.distributed as dist
{before}
dist.init_process_group({arguments})
print("STARTED", flush=True)
{after}
"""
ROWS = {
    "two processes are one rank": (
        {"changes": {"2": {"RANK": "1"}}, "arguments": "timeout=20"},
        3,
        "two processes are rank 1",
    ),
    "another secret": (
        {"changes": {"1": {"JAXPAR_JOB_SECRET": "another"}}, "arguments": "timeout=3"},
        2,
        "another secret",
    ),
    "other numbers of devices": (
        {"changes": {"1": {"JAXPAR_DEVICES": "2"}}, "arguments": "timeout=20"},
        2,
        "rank 0 has 1 cpu, rank 1 has 2 cpu devices",
    ),
    "JAX runs already": (
        {"before": "import jax; jax.devices()", "arguments": "timeout=20"},
        2,
        "JAX has started already",
    ),
    "an exception in one rank": (
        {
            "after": "if r == '1': raise KeyError('lost')\nimport time; time.sleep(60)",
            "arguments": "timeout=60",
        },
        2,
        "KeyError: 'lost'",
    ),
    "an exception where the script shows exceptions itself": (
        {
            "before": "import sys; sys.excepthook = lambda *_: print('OWN WAY', file=sys.stderr)",
            "after": "if r == '0': raise KeyError('lost')\nimport time; time.sleep(60)",
            "arguments": "timeout=60",
        },
        2,
        "KeyError: 'lost'",
    ),
    "a rank leaves early and the others wait in a collective": (
        {"after": "if r == '1': 1 / 0\ndist.all_reduce(1.0)", "arguments": "timeout=60"},
        2,
        "ZeroDivisionError: division by zero",
    ),
}


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_every_process_ends_by_itself_with_code_1(row):
    blanks = {"changes": {}, "before": "", "after": "", "arguments": ""}
    fields, n, text = ROWS[row]
    for one in ranks(n, JOB.format(**blanks | fields), timeout=90):
        assert one.code == 1, (one.code, one.err)
        assert text in one.err
        assert "Fatal Python error" not in one.err


@pytest.mark.slow
def test_a_host_without_ipv6():
    """Rank 0 listens on all interfaces, and so does JAX, in processes for which IPv6 is switched off."""
    here = address_of_this_host()
    if here is None:
        pytest.skip("this host has no address but loopback's, where ranks never listen on all interfaces")
    source = """
        import no_ipv6
        no_ipv6.switch_off()
        import jax.numpy as jnp
        from jaxpar import distributed

        distributed.init_process_group()
        print(distributed.all_reduce(jnp.ones(2)))
        distributed.destroy_process_group()
    """
    env = {"MASTER_ADDR": here, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    for ended in ranks(2, source, env=env):
        assert ended.code == 0, ended.err
        assert "[2. 2.]" in ended.out


def address_of_this_host() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # sends nothing; it only chooses an interface
        except OSError:
            return None
        address = asked.getsockname()[0]
    return None if address.startswith("127.") else address
