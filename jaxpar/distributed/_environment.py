"""Find rank, world size and rank 0's address from arguments and environment variables.

torchrun's variables, the only ones that torch reads, have priority over those that JAX's cluster detection
reads.
"""

from __future__ import annotations

import dataclasses
import os
from urllib.parse import parse_qs, urlparse

from .._arguments import whole
from ..errors import DistributedError, GroupError

ENV = "env://"
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SCHEDULERS = (
    ("SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "",
    ),
)
"""Per scheduler, the variable that identifies it, and its names of RANK, WORLD_SIZE, LOCAL_RANK and
LOCAL_WORLD_SIZE."""


@dataclasses.dataclass(frozen=True)
class Start:
    rank: int
    size: int
    host: str = ""
    port: int = 0
    local_rank: int | None = None
    local_size: int | None = None

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.size > 1 else ""


def find(init_method: str | None, world_size: int, rank: int, timeout: float) -> Start:
    if not isinstance(init_method, str | None):
        raise TypeError(f"init_process_group: init_method is {init_method!r}; it must be a text.")
    rank, world_size = (
        whole("init_process_group", name, number)
        for name, number in (("rank", rank), ("world_size", world_size))
    )
    method = init_method or ENV
    if method.startswith(ENV):
        start = _from_environment(world_size, rank, timeout)
    elif method.startswith("tcp://"):
        start = _from_address(method, world_size, rank)
    else:
        raise GroupError(
            f"init_process_group: init_method={method!r} is unknown; write 'env://', or "
            "'tcp://host:port' with rank and world_size."
        )
    if start.size < 1:
        raise GroupError(f"init_process_group: world_size must be positive, not {start.size}.")
    if not 0 <= start.rank < start.size:
        raise GroupError(
            f"init_process_group: rank {start.rank} is not below world_size {start.size}; ranks are "
            f"0 to {start.size - 1}."
        )
    return start


def _from_address(method: str, world_size: int, rank: int) -> Start:
    url = urlparse(method)
    query = parse_qs(url.query)
    if "rank" in query and rank < 0:
        rank = number("rank", query["rank"][0])
    if "world_size" in query and world_size < 0:
        world_size = number("world_size", query["world_size"][0])
    error = "Error initializing jaxpar.distributed using tcp:// rendezvous: "
    try:
        port = url.port
    except ValueError as bad:
        raise GroupError(f"{error}{bad} in {method!r}") from None
    if port == 0:
        raise GroupError(f"{error}port 0 in {method!r} is no port; write one from 1 to 65535.")
    if port is None:
        raise GroupError(f"{error}port number missing in {method!r}; write tcp://host:port.")
    if not url.hostname:
        raise GroupError(f"{error}host name missing in {method!r}; write tcp://host:port.")
    if rank < 0:
        raise GroupError(f"{error}rank parameter missing; pass rank=.")
    if world_size < 0:
        raise GroupError(f"{error}world size parameter missing; pass world_size=.")
    return Start(rank, world_size, url.hostname, port, *_local())


def _from_environment(world_size: int, rank: int, timeout: float) -> Start:
    scheduler = next((names for names in SCHEDULERS if names[0] in os.environ), None)
    if scheduler is None and rank < 0 and world_size < 0 and not any(map(os.environ.get, VARIABLES)):
        return _detected(timeout) if _in_cluster() else Start(0, 1, local_rank=0, local_size=1)
    names = scheduler or ("", "RANK", "WORLD_SIZE", "LOCAL_RANK", "")
    if rank < 0:
        rank = _variable("RANK", names[1])
    if world_size < 0:
        world_size = _variable("WORLD_SIZE", names[2])
    local_rank, local_size = _local()
    if local_rank is None and names[3] in os.environ:
        local_rank = number(names[3], os.environ[names[3]])
    if world_size == 1:
        return Start(rank, 1, local_rank=local_rank, local_size=local_size)
    # SLURM and Open MPI set no MASTER_ADDR; JAX derives an address and a port from their variables.
    if scheduler and not os.environ.get("MASTER_ADDR"):
        detected = _detected(timeout)
        return dataclasses.replace(detected, local_rank=local_rank, local_size=local_size)
    port = _variable("MASTER_PORT", "MASTER_PORT")
    if not 0 < port < 2**16:
        raise GroupError(
            f"init_process_group: MASTER_PORT is {port}, and a port is a number from 1 to 65535, the same on "
            "all ranks. `jaxpar launch` and torchrun find a free one."
        )
    if not os.environ.get("MASTER_ADDR"):
        raise _unset("MASTER_ADDR")
    return Start(
        rank,
        world_size,
        os.environ["MASTER_ADDR"].strip("[]"),
        _coordinator_port(port),
        local_rank,
        local_size,
    )


def _coordinator_port(port: int) -> int:
    """Return MASTER_PORT, or a derived port if torchrun's own store occupies MASTER_PORT."""
    # Every rank computes the same port. It is below the range that systems assign to clients, and it changes
    # with every restart, since the previous port may still be closing.
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return port
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    candidate = 20_000 + (31 * port + attempt) % 12_000
    return candidate if candidate != port else candidate + 1


def _local() -> tuple[int | None, int | None]:
    rank, size = (os.environ.get(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    return (number("LOCAL_RANK", rank) if rank else None, number("LOCAL_WORLD_SIZE", size) if size else None)


def _variable(name: str, otherwise: str) -> int:
    for candidate in (name, otherwise):
        if os.environ.get(candidate):
            return number(candidate, os.environ[candidate])
    raise _unset(name)


def number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise GroupError(f"init_process_group: {name} is {text!r}, which is not an integer.") from None


def _unset(name: str) -> GroupError:
    return GroupError(
        f"Error initializing jaxpar.distributed using env:// rendezvous: environment variable {name} "
        "expected, but not set. torchrun and `jaxpar launch` set it; or call "
        "init_process_group(init_method='tcp://host:port', rank=, world_size=)."
    )


def _in_cluster() -> bool:
    from .._upstream import in_cloud_tpu_vm

    return "JOB_COMPLETION_INDEX" in os.environ or in_cloud_tpu_vm()


def heartbeat(hosts: int) -> int:
    """Return the seconds without a heartbeat after which JAX declares a rank dead."""
    text = os.environ.get("JAXPAR_HEARTBEAT")
    # On one host a missing heartbeat means a dead process; between hosts it may be a slow network.
    seconds = number("JAXPAR_HEARTBEAT", text) if text else 10 if hosts == 1 else 30
    if seconds < 1:
        raise GroupError(f"init_process_group: JAXPAR_HEARTBEAT must be positive, not {seconds}.")
    return seconds


def _detected(timeout: float) -> Start:
    from .._upstream import detect_cluster

    address, size, rank, local = detect_cluster(timeout)
    if address is None or size is None or rank is None:
        raise GroupError(
            "init_process_group: this looks like one of several processes of a job, and JAX does not "
            "find the others. Set MASTER_ADDR and MASTER_PORT to a host and a free port of rank 0."
        )
    host, _, port = address.rpartition(":")
    local_rank = None if local is None else next(iter(local))
    return Start(rank, size, host.strip("[]"), int(port), local_rank, None)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return LOCAL_RANK, this process's rank on its host, or `fallback_rank` if it is unset.

    Raises:
      DistributedError: LOCAL_RANK is unset and no fallback was passed (torch's RuntimeError).

    torch counterpart: `torch.distributed.get_node_local_rank`.

    >>> from jaxpar.distributed import get_node_local_rank
    >>> get_node_local_rank(fallback_rank=0)
    0
    """
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise DistributedError(
            "LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow "
            "`get_node_local_rank` to work, or start the script by `jaxpar launch`."
        )
    return int(fallback_rank)


def is_torchelastic_launched() -> bool:
    """Whether torchrun started this process, as `torch.distributed.is_torchelastic_launched`."""
    return "TORCHELASTIC_RUN_ID" in os.environ
