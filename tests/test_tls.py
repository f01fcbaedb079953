"""TLS of JAX's coordinator: wrong certificates are exceptions before JAX starts, and strangers stay out."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import pytest
from meetings import meeting, start
from processes import free_port

from jaxpar import errors
from jaxpar._tools.launch import environment
from jaxpar.distributed import tls
from jaxpar.distributed.tls import FILES, PREFIX

AVAILABLE = "mtls_ca_file" in inspect.signature(jax.distributed.initialize).parameters


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two jobs' variables, and a place where nothing is."""
    folders = [tmp_path_factory.mktemp(name) for name in ("job", "other")]
    job, other = (list(environment.certificates(folder).values()) for folder in folders)
    return {"job": job, "other": other, "nowhere": [str(folders[0] / "nowhere")] * 3}


@pytest.fixture(autouse=True)
def without(monkeypatch):
    for name in (*FILES, PREFIX):
        monkeypatch.delenv(name, raising=False)


def demand(monkeypatch, paths: list[str]) -> None:
    for name, path in zip(FILES, paths, strict=True):
        if path:
            monkeypatch.setenv(name, path)


def pretend(monkeypatch) -> None:
    """As if this JAX had TLS."""
    monkeypatch.setattr(jax.distributed, "initialize", lambda mtls_ca_file=None: None)


CERTIFICATES = {  # whose certificate, key and authority; rank; rank 0's host; the peer's URI; the error
    "the job's": ("job job job", 0, "127.0.0.1", "", None),
    "the job's, on another rank": ("job job job", 1, "elsewhere", "", None),
    "another host": ("job job job", 0, "elsewhere", "", "elsewhere"),
    "another host, and a URI counts": ("job job job", 0, "elsewhere", "job://", None),
    "another authority": ("job job other", 1, "127.0.0.1", "", "certificate"),
    "another key": ("job other job", 1, "127.0.0.1", "", "KEY_VALUES_MISMATCH|key values mismatch"),
    "no file": ("nowhere job job", 1, "127.0.0.1", "", "No such file"),
    "no authority": ("job job nowhere", 1, "127.0.0.1", "", "No such file"),
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_a_wrong_certificate_is_an_exception(case, files, monkeypatch):
    whose, rank, host, prefix, error = CERTIFICATES[case]
    pretend(monkeypatch)
    demand(monkeypatch, [files[name][i] for i, name in enumerate(whose.split())])
    if prefix:
        monkeypatch.setenv(PREFIX, prefix)
    if error is None:
        assert len(tls.authority(start(rank, 2, 1, host))) == 16
    else:
        with pytest.raises(errors.GroupError, match=error) as raised:
            tls.authority(start(rank, 2, 1, host))
        assert f"rank {rank}" in str(raised.value)
        assert FILES[2] in str(raised.value)


def test_without_variables_there_is_no_tls():
    assert tls.authority(start(0, 2, 1)) == ""


@pytest.mark.parametrize("missing", FILES)
def test_all_three_files_are_needed(missing, files, monkeypatch):
    pretend(monkeypatch)
    paths = dict(zip(FILES, files["job"], strict=True)) | {missing: ""}
    demand(monkeypatch, list(paths.values()))
    with pytest.raises(errors.GroupError, match=f"is set, and {missing} is not"):
        tls.authority(start(0, 2, 1))


def test_a_jax_without_tls_refuses_what_it_would_ignore(files, monkeypatch):
    demand(monkeypatch, files["job"])
    monkeypatch.setattr(jax.distributed, "initialize", lambda: None)  # as in JAX 0.10
    with pytest.raises(errors.GroupError, match=rf"the coordinator of JAX {jax.__version__} has none"):
        tls.authority(start(0, 2, 1))


@pytest.mark.full
def test_ranks_with_other_authorities_all_get_the_same_error(files, monkeypatch):
    pretend(monkeypatch)
    demand(monkeypatch, files["job"])
    port = free_port()
    ended = meeting(start(0, 2, port), start(1, 2, port), timeout=1, said={1: {"tls": ""}})
    assert len({str(one) for one in ended}) == 1
    assert "rank 1" in str(ended[0])
    assert "has TLS with the certificate authority none, rank 0" in str(ended[0])
    assert str(ended[0]).endswith("Start all ranks with the same JAX_MTLS_CA_FILE, or none.")


def test_variables_that_are_set_are_kept(files, monkeypatch, tmp_path):
    monkeypatch.setenv(FILES[2], "mine")
    assert environment.certificates(tmp_path) == {}
    assert not list(tmp_path.iterdir())


def test_nobody_can_sign_for_the_job_later(files):
    folder = Path(files["job"][0]).parent
    assert sorted(file.name for file in folder.iterdir()) == ["ca.pem", "rank.key", "rank.pem"]


def test_a_host_without_openssl(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.DistributedError, match="--tls needs the command openssl"):
        environment.certificates(tmp_path)


SCRIPT = """
    import os, socket, ssl
    import jaxpar.distributed as dist

    dist.init_process_group(timeout=60)
    certificate, key, ca = (os.environ[f"JAX_MTLS_{name}_FILE"] for name in ("CERT", "KEY", "CA"))

    def knock(mine):
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2"])
        if mine:
            context.load_cert_chain(certificate, key)
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        with socket.create_connection(address, 20) as plain, context.wrap_socket(
            plain, server_hostname=address[0]
        ) as end:
            end.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            return len(end.recv(9))  # the coordinator's first frame

    if dist.get_rank() == 0:
        print("a rank", knock(True))
        try:
            print("a stranger", knock(False))
        except (ssl.SSLError, ConnectionError) as error:
            print("a stranger is refused:", error)
    print(dist.all_gather_object([None, None], dist.get_rank()))
"""


@pytest.mark.slow
def test_a_job_with_certificates_of_its_own(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    line = [sys.executable, "-m", "jaxpar", "launch", "-n", "2", "--max-restarts", "2", "--tls"]
    ended = subprocess.run([*line, str(tmp_path / "train.py")], capture_output=True, text=True, timeout=120)
    if not AVAILABLE:
        assert ended.returncode == 78
        assert "demands TLS, and the coordinator of JAX" in ended.stderr
        assert "never restarted" in ended.stderr
        return
    assert ended.returncode == 0, ended.stderr
    assert "[0] a rank 9\n" in ended.stdout
    assert "[0] a stranger is refused:" in ended.stdout
    assert "[1] [0, 1]\n" in ended.stdout
