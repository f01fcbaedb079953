"""The variables of a worker: torchrun's names, a port, devices, the compilation cache, and certificates."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import socket
import subprocess
from functools import cache
from pathlib import Path

from ..._training.watchdog import STEP_TIMEOUT
from ...distributed.secret import VARIABLE as SECRET
from ...distributed.tls import FILES
from ...errors import DeviceError, DistributedError
from .settings import LaunchSettings

ADDRESS = "127.0.0.1"
VISIBLE = "CUDA_VISIBLE_DEVICES"
CACHE = "JAX_COMPILATION_CACHE_DIR"
DAYS = "3650"
"""Longer than any job. The keys are deleted with the job."""
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def free_port() -> int:
    with socket.socket() as s:
        s.bind((ADDRESS, 0))
        return int(s.getsockname()[1])


def variables(
    settings: LaunchSettings, rank: int, port: int, secret: str | None, restart: int
) -> dict[str, str]:
    """Return the variables that a worker's environment has in addition to this process's."""
    n, k = settings.n, settings.devices_per_process
    added = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": n,
        "LOCAL_WORLD_SIZE": n,
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": restart,
        "JAXPAR_RESTART_COUNT": restart,
    }
    if secret is not None:
        added[SECRET] = secret
    if CACHE not in os.environ and (folder := cache_folder()):
        added[CACHE] = folder
    if settings.step_timeout is not None:
        added[STEP_TIMEOUT] = f"{settings.step_timeout:g}"
    if k is not None:
        added["JAXPAR_DEVICES"] = k  # virtual CPU devices; where there are GPUs, JAX prefers those
        if (gpus := visible_gpus()) is not None:
            added[VISIBLE] = ",".join(share(gpus, rank, n, k))
            # Without this, init_process_group would use device LOCAL_RANK only, as torch scripts do.
            added["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(k)))
    return {name: str(value) for name, value in added.items()}


def cache_folder() -> Path | None:
    """Return the folder in which JAX keeps compiled programs if the user names none; None without a home."""
    # Programs for the CPU are machine code, and a home folder may be shared by hosts of several kinds.
    processor = hashlib.sha256(f"{platform.machine()} {_instructions()}".encode()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return caches / "jaxpar" / f"programs-{processor}" if _writable(caches) else None


def _writable(folder: Path) -> bool:
    """Return whether a folder can be written to, or made."""
    if not folder.is_absolute():  # "~/.cache" without a home; the standard has relative variables ignored
        return False
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)


def _instructions() -> str:
    """Return the names of the processor's instruction sets, or its model where the system lists none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.M)
    return " ".join(sorted(names[1].split())) if names else platform.processor()


def share(gpus: tuple[str, ...], rank: int, n: int, k: int) -> tuple[str, ...]:
    """Return the k GPUs of a rank, in order."""
    if len(gpus) < n * k:
        raise DeviceError(
            f"jaxpar launch: {n} processes with {k} devices each need {n * k} GPUs, and there are "
            f"{len(gpus)} ({', '.join(gpus)}). Use fewer, or JAX_PLATFORMS=cpu for virtual devices."
        )
    return gpus[rank * k : (rank + 1) * k]


def visible_gpus() -> tuple[str, ...] | None:
    """Return CUDA's names of this process's GPUs; None without GPUs or if JAX may not use them."""
    # `jax.devices` would start the backend in the supervisor, which reserves memory on every GPU.
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return None
    if (text := os.environ.get(VISIBLE)) is not None:
        # A negative entry means "no device".
        return tuple(entry.strip() for entry in text.split(",") if re.match(r"\s*[^-\s]", entry)) or None
    return tuple(map(str, range(_listed()))) or None


@cache
def _listed() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(re.findall(r"^GPU ", listing.stdout, re.M))


def certificates(folder: Path) -> dict[str, str]:
    """Return JAX's variables for new certificates in `folder`; none if they are set, which ranks inherit."""
    if any(map(os.environ.get, FILES)):
        return {}
    certificate, key, ca = (str(folder / name) for name in ("rank.pem", "rank.key", "ca.pem"))
    ca_key = str(folder / "ca.key")
    signs = ("-addext", "keyUsage=critical,keyCertSign")
    _openssl("-keyout", ca_key, "-out", ca, "-subj", "/CN=jaxpar job", *signs)
    rank = ["-addext", f"subjectAltName=IP:{ADDRESS}", "-addext", "basicConstraints=critical,CA:FALSE"]
    _openssl(
        "-keyout", key, "-out", certificate, "-subj", "/CN=jaxpar rank", *rank, "-CA", ca, "-CAkey", ca_key
    )
    os.unlink(ca_key)  # a later certificate for this job would be a stranger's
    return dict(zip(FILES, (certificate, key, ca), strict=True))


def _openssl(*options: str) -> None:
    line = ["openssl", "req", "-x509", *KEY, "-days", DAYS, *options]
    try:
        subprocess.run(line, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise DistributedError(
            "jaxpar launch: --tls needs the command openssl (3.0 or newer); install it, or make the "
            f"certificates elsewhere and set {', '.join(FILES)}."
        ) from None
    except subprocess.CalledProcessError as error:
        raise DistributedError(f"jaxpar launch: --tls: {' '.join(line)} failed: {error.stderr}") from None
