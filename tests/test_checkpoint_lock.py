"""One process at a time saves to a directory, and the lock ends with the process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from processes import environment, free_port

from jaxpar import Checkpointer
from jaxpar._checkpointer.store import Store
from jaxpar.errors import CheckpointError

HOLDER = """
import os, sys, time
import jaxpar

checkpointer = jaxpar.Checkpointer(sys.argv[1])
checkpointer.save(0, tree=0)
checkpointer.wait()
child = os.fork() if sys.argv[2] == "with a child" else 0
if sys.argv[2] == "alone" or child:
    print(child, flush=True)
time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alone", "with a child"])
def test_another_process_is_named_and_its_lock_dies_with_it(how, tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, str(tmp_path), how]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(0, 1, free_port())
    ) as process:
        child = int(process.stdout.readline())
        try:
            checkpointer = Checkpointer(tmp_path)
            holder = f"process {process.pid} on {socket.gethostname()}"
            with pytest.raises(CheckpointError, match=f"save: {holder} saves to .*, and a second writer"):
                checkpointer.save(1, tree=1)
            assert checkpointer.restore(tree=5) == (0, {"tree": 0})  # reading takes no lock
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        try:
            assert checkpointer.save(1, tree=1)  # though the child has inherited the open file
            checkpointer.close()
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


@pytest.mark.full
def test_two_checkpointers_of_one_process(tmp_path):
    first, second = Checkpointer(tmp_path), Checkpointer(tmp_path)
    first.save(0, tree=0)
    with pytest.raises(CheckpointError, match="another Checkpointer of this process saves to"):
        second.save(1, tree=1)
    first.close()
    second.save(1, tree=1)
    second.wait()
    with pytest.raises(CheckpointError, match="another Checkpointer of this process"):
        first.save(2, tree=2)
    del second  # as in a notebook whose cell is run again
    gc.collect()  # the errors above hold it in their tracebacks
    first.save(2, tree=2)
    first.close()


def test_a_failing_with_block_gives_the_lock_back(tmp_path):
    def fail():
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(0, tree=0)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.save(1, tree=1)


def test_ctrl_c_while_closing_keeps_the_lock_until_the_step_is_written(tmp_path, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    go, write = threading.Event(), Store.write
    monkeypatch.setattr(Store, "write", lambda *args: (go.wait(30), write(*args)))
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(0, tree=0)
    with monkeypatch.context() as patched:
        patched.setattr(checkpointer, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpointer.close()
    with pytest.raises(CheckpointError, match="another Checkpointer of this process"):
        Checkpointer(tmp_path).save(1, tree=1)
    go.set()
    checkpointer.close()
    with Checkpointer(tmp_path) as other:
        assert other.save(1, tree=1)


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.warns(
            UserWarning, match="has no locks; make sure that no other process saves there"
        ) as said:
            assert checkpointer.save(0, tree=0)
        assert said[0].filename == __file__
        assert checkpointer.save(1, tree=1)


def test_a_directory_that_cannot_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    with pytest.raises(CheckpointError, match=r"cannot be written to: Permission denied"):
        Checkpointer(tmp_path).save(0, tree=0)
