"""Messages and bytes between ranks: in the library's state machine for many, in real processes for a few."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from jaxpar.distributed._protocol.effects import Begin, Delete, Post, Read, Send
from jaxpar.distributed._protocol.lockstep import Lockstep
from jaxpar.distributed._protocol.steps import StepRecord
from jaxpar.distributed.group import Group

PARTS = {"the module's structure": "0123456789ab", "the mode": "averaging", "what is trained": "kernel, bias"}
"""What ranks compare; a program has about twenty such entries."""


class Store:
    """The coordinator's keys and values; it counts what ranks write and read."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def post(self, key: str, text: str) -> None:
        self.texts[key] = text
        self.counts.update({"posts": 1, "bytes posted": len(key) + len(text)})

    def read(self, text: str) -> str:
        self.counts.update({"reads": 1, "bytes read": len(text)})
        return text

    def run(self, calls: list[Any], records: list[StepRecord] | None = None) -> dict[str, float]:
        """Run a call of every rank, each until it waits for a key that is not posted yet."""
        waiting = {rank: (call, next(call)) for rank, call in enumerate(calls)}
        while waiting:
            turns = {rank: self._turn(rank, *state, records) for rank, state in waiting.items()}
            waiting = {rank: state for rank, state in turns.items() if state}
        ranks = len(calls)
        return {f"{name} by a rank": count / ranks for name, count in self.counts.items()} | {
            f"{name} by all ranks": count for name, count in self.counts.items()
        }

    def _turn(self, rank: int, call: Any, effect: Any, records: list[StepRecord] | None) -> Any:
        try:
            while True:
                text = None
                match effect:
                    case Post():
                        self.post(*effect)
                    case Send():
                        self._send(rank, effect, records or [])
                    case Read() if effect.key not in self.texts:
                        return call, effect
                    case Read():
                        text = self.read(self.texts[effect.key])
                    case Delete():
                        self.counts["deletes"] += 1
                effect = call.send(text)
        except StopIteration:
            return None

    def _send(self, rank: int, effect: Send, records: list[StepRecord]) -> None:
        message = {"kind": effect.kind, "rank": rank, **effect.fields}
        text = json.dumps(message)
        self.post(f"messages/{len(self.texts)}", text)
        for record in records:  # every rank's message thread reads every message
            self.read(text)
            if record.group.rank != rank:
                for answer in record.hear(message):
                    self.post(*answer)


def exchanged(ranks: int) -> dict[str, float]:
    """Return what the second exchange of a text costs, in which ranks also delete the first one's keys."""
    machines = [Lockstep() for _ in range(ranks)]

    def calls() -> list[Any]:
        return [
            machine.collect("exchange", Begin("exchange", "exchange", None), range(ranks), rank, "x" * 64)
            for rank, machine in enumerate(machines)
        ]

    store = Store()
    store.run(calls())
    store.counts.clear()
    return store.run(calls())


def new_step(ranks: int) -> dict[str, float]:
    """Return what a step costs that is new to all ranks."""
    records = [_record(rank, ranks) for rank in range(ranks)]
    return Store().run([record.enter(0, "key", PARTS, "train.py:7") for record in records], records)


def known_step(ranks: int) -> dict[str, float]:
    """Return what a step costs that no rank has anything new in."""
    records = [_record(rank, ranks) for rank in range(ranks)]
    Store().run([record.enter(0, "key", PARTS, "train.py:7") for record in records], records)
    effects = [effect for record in records for effect in record.enter(1, "key", None, "train.py:7")]
    return {"posts, reads and waits by all ranks": len(effects)}


def _record(rank: int, ranks: int) -> StepRecord:
    group = Group(rank, ranks, "", 1, 60.0, 1, tuple(range(ranks)))
    return StepRecord("DistributedDataParallel 1", group)


SCRIPT = """
import json, os, socket
from collections import Counter
counts = Counter()

class Socket(socket.socket):
    def sendall(self, data, *flags):
        counts.update({"messages of the rendezvous by all ranks": 1})
        counts.update({"bytes of the rendezvous by all ranks": len(data)})
        return super().sendall(data, *flags)

socket.socket = Socket
import jaxpar
jaxpar.virtual_devices(1)
jaxpar.distributed.init_process_group(timeout=200)
from jaxpar.distributed import exchange
call = exchange._call

def counted(method, *arguments):
    answer = call(method, *arguments)
    kind = "posts" if "set" in method else "reads" if "get" in method else "others"
    text = answer if isinstance(answer, str) else "".join(map(str, arguments))
    counts.update({f"{kind} of a training by all ranks": 1, "bytes of a training by all ranks": len(text)})
    return answer

exchange._call = counted
import numpy as np
from benchmarks.scale.step import training
net, optimizer, loss_fn = training(int(os.environ["LEAVES"]))
step = jaxpar.train_step(net, optimizer(net), loss_fn)
for i in range(3):
    float(step(np.ones((2, 3), np.float32)))
jaxpar.distributed.barrier()
print(json.dumps(counts))
jaxpar.distributed.destroy_process_group()
"""


def processes(ranks: int, leaves: int = 2) -> dict[str, float]:
    """Return what the rendezvous and a training of three steps cost in real processes on this host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = str(Path(__file__).resolve().parents[2])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    shared = {"PYTHONPATH": root, "LEAVES": str(leaves), "JAX_PLATFORMS": "cpu"} | address
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    total: Counter[str] = Counter()
    for process in started:
        output, _ = process.communicate(timeout=500)
        if process.returncode:
            raise SystemExit(f"a rank of {ranks} ended with {process.returncode}")
        total.update(json.loads(output.splitlines()[-1]))
    return dict(total)
