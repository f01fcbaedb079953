"""Every order in which a few ranks can run `jaxpar.distributed._protocol`, over all programs of a length.

A rank runs a program of OPERATIONS, chosen one by one, with the library's state machine. What it has received
determines its state, so a state of the job is one `Local` of each rank. A text is read only under the one key
that its writer posts once, so the store needs no state. Messages between two ranks arrive in order, at any
time. Of orders that end in the same state one is explored (`following`). Ranks that have made the same calls
and owe each other nothing go on like ranks that have just begun (`merged`), so what follows is explored once.
A step is dispatched, as JAX does; `evaluate` waits for the devices, which run programs in order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from jaxpar.distributed import call_log
from jaxpar.distributed._protocol import attendance, calls, lockstep, steps
from jaxpar.distributed._protocol.effects import Begin, Post, Read, Send, Wait
from jaxpar.distributed.group import Group
from jaxpar.errors import DivergenceError

OPERATIONS = ("step", "accumulate", "rate", "save_one", "save_all", "barrier", "objects", "evaluate")
ENDS = ("end", "crash", "signal")
HASTY = re.compile(r"/answers/|/(DistributedDataParallel|the program|collectives)")
"""Keys of texts after which a rank may answer a message in another way: rank 0's, and those about steps."""
RECORDS = ("DistributedDataParallel 1", "the program of DistributedDataParallel 1", "collectives")


class Device(NamedTuple):
    """A compiled program with a collective, which ends once all ranks have entered the same one."""

    program: str


class Rank:
    """One rank: the library's machine, and the calls that the library makes with it."""

    def __init__(self, rank, size, familiar):
        self.rank, self.size = rank, size
        self.group = Group(rank, size, "", 1, 60.0, 1, tuple(range(size)))
        self.log = calls.BegunLog(rank, str)
        self.lockstep = lockstep.Lockstep()
        self.records = [steps.StepRecord(name, self.group) for name in RECORDS]
        self.rate, *known = familiar
        for record, keys in zip(self.records, known, strict=True):
            record.known = {key: {"what": str(key)} for key in keys}
        self.attendance = attendance.Attendance(
            self.log,
            size,
            "jaxpar/1",
            lambda: steps.latest_steps(self.records),
            lambda latest, other: steps.asks_beyond(self.records, latest, other),
        )
        self.program = []
        self.calls = None  # the generator of the call that it is in
        self.effect = None  # what that wants done next
        self.posts, self.sent, self.devices = {}, [], []
        self.heard = [0] * size
        self.refusal = ""

    # ------------------------------------------------------------------------------------- operations

    def line(self):
        return f"rank{self.rank}.py:{len(self.program)}"

    def check(self, which, step, key):
        record = self.records[which]
        parts = None if key in record.known else {"what": str(key)}
        yield from record.enter(step, key, parts, self.line())

    def step(self, mode="averaging"):
        number = self.records[0].latest + 1
        if mode == "averaging":
            yield Begin("train_step", "train_step of 1", None)
        yield from self.check(0, number, (mode, self.rate))
        yield from self.check(1, number, mode)
        if mode == "averaging":
            self.devices.append("train_step")  # dispatched; `evaluate` waits for what was dispatched before

    def accumulate(self):
        return self.step("no_sync()")

    def set_rate(self):
        self.rate += 1
        yield from ()

    def save(self, directory):
        yield from self.attendance.exchange(f"Checkpointer.save {directory}", "1", "Checkpointer.save", 1800)

    def exchange(self, what, label=""):
        begin = Begin(label or what, *call_log.counted(what, self.group))
        yield from self.lockstep.collect(f"jaxpar/1/{what}", begin, self.group.ranks, self.rank, "text")

    def objects(self):
        yield from self.exchange("objects")
        yield from self.exchange("objects, read")

    def evaluate(self):
        yield Begin("all_reduce", "collectives", None)
        yield from self.check(2, self.records[2].latest + 1, "sum")
        yield Device("all_reduce")

    def leave(self):
        yield Send("left", {"reason": self.program[-1]})

    def call(self, name):
        return {
            "step": self.step,
            "accumulate": self.accumulate,
            "rate": self.set_rate,
            "save_one": lambda: self.save("one"),
            "save_all": lambda: self.save("all"),
            "barrier": lambda: self.exchange("barrier"),
            "objects": self.objects,
            "evaluate": self.evaluate,
            "end": lambda: self.exchange("end", call_log.END),
        }[name]()

    # -------------------------------------------------------------------------------------- transitions

    def begin(self, name):
        self.program.append(name)
        self.calls = self.call(name)
        self.advance(None)

    def advance(self, text):
        """Give the call a text, and do what it wants up to where it waits for another rank."""
        try:
            self.effect = self.calls.send(text)
            while not isinstance(self.effect, Read | Device):
                self.perform(self.effect)
                self.effect = self.calls.send(None)
        except StopIteration:
            self.effect = self.calls = None
        except DivergenceError as error:
            self.effect, self.refusal = None, str(error)
        if isinstance(self.effect, Device):
            self.devices.append(self.effect.program)

    def perform(self, effect):
        if isinstance(effect, Begin):
            self.log.record(effect.call, effect.name, effect.needs, self.line())
        if isinstance(effect, Begin | Wait):
            self.post(self.attendance.go_by())
        if isinstance(effect, Send):
            self.sent.append((effect.kind, json.dumps({"rank": self.rank} | effect.fields)))
        if isinstance(effect, Post):
            self.post([effect])

    def hear(self, sender, kind, text):
        self.heard[sender] += 1
        message = json.loads(text)
        if kind == "attend":
            self.post(self.attendance.hear(message))
        if kind == "question":
            record = next(record for record in self.records if record.name == message["name"])
            self.post(record.hear(message))

    def post(self, posts):
        for post in posts:
            assert post.key not in self.posts, f"{post.key} is posted twice"
            self.posts[post.key] = post.text

    def positions(self):
        return self.log.calls() | steps.positions(self.records, self.log.number)


class Local:
    """A state of one rank: what it has received since it began, and what others can notice."""

    def __init__(self, rank, size, familiar, before=None, received=None):
        self.root = rank, size, familiar
        self.before, self.received, self.after = before, received, {}
        self.live = self.replayed()
        for name in ("effect", "refusal"):
            setattr(self, name, getattr(self.live, name))
        self.posts = (
            before.posts if before and len(before.posts) == len(self.live.posts) else dict(self.live.posts)
        )
        self.sent, self.heard = tuple(self.live.sent), tuple(self.live.heard)
        self.devices, self.program = tuple(self.live.devices), tuple(self.live.program)
        self.positions = self.live.positions()
        self.idle = self.live.calls is None
        # Whether it could answer rank 0's announcement of a call in another way once it has gone on.
        at_answer = isinstance(self.effect, Read) and HASTY.search(self.effect.key)
        self.hasty = rank > 0 and bool(self.idle or at_answer)
        self.done = self.idle and self.program[-1:] == ("end",)
        # Where its call began, and what it had heard when the call first went on.
        kind = received[0] if received else "begin"
        self.start = self if self.idle else before if kind == "begin" else before.start
        self.early = before.early if before and before.advanced and not self.idle else self.heard
        self.advanced = not self.idle and (kind == "advance" or (kind == "hear" and before.advanced))

    def replayed(self):
        history, local = [], self
        while local is not None and getattr(local, "live", None) is None:
            if local.received is not None:
                history.append(local.received)
            last, local = local, local.before
        # A machine cannot be copied, so that of an earlier state is taken from it, if it has not gone on.
        machine = local.live if local is not None else Rank(*last.root)
        if local is not None:
            local.live = None
        for kind, *received in reversed(history):
            getattr(machine, kind)(*received)
        return machine

    def unheard(self, sent):
        """The state before the messages that came last, beyond the first `sent` of their senders."""
        local = self
        while (
            local.before
            and local.received[0] == "hear"
            and local.heard[local.received[1]] > sent[local.received[1]]
        ):
            local = local.before
        return local

    def machine(self):
        if self.live is None:
            self.live = self.replayed()
        return self.live

    def then(self, *received):
        if received not in self.after:
            self.after[received] = Local(*self.root, self, received)
        return self.after[received]


class Explorer:
    """All states of `size` ranks whose programs have up to `length` operations before their end."""

    def __init__(self, size, length, rebase=True):
        self.size, self.rebase = size, rebase
        self.states = self.jobs = 0
        self.outcomes = {"success": 0, "refusal": 0, "failure of a peer": 0}
        self.problems = []
        self.roots = {}
        self.merges = {}
        self.explored = {}
        self.bases = [(((0, *[frozenset()] * 3),) * size, (length,) * size)]

    def run(self, problems=1):
        """Explore, until so many problems are known."""
        while self.bases and len(self.problems) < problems:
            self.bases.sort(key=lambda base: sum(base[1]))
            familiar, budgets = self.bases.pop()
            earlier = self.explored.setdefault(familiar, [])
            if any(all(a >= b for a, b in zip(other, budgets, strict=True)) for other in earlier):
                continue
            earlier.append(budgets)
            self.jobs += 1
            self.explore(familiar, budgets, problems)
        return self

    def explore(self, familiar, budgets, problems):
        first = tuple(
            self.roots.setdefault((r, known), None) or Local(r, self.size, known)
            for r, known in enumerate(familiar)
        )
        for r, known in enumerate(familiar):
            self.roots[r, known] = first[r]
        seen, stack = {first}, [first]
        while stack and len(self.problems) < problems:
            state = stack.pop()
            self.states += 1
            if self.rebase and self.merged(state, budgets):
                continue
            following = list(self.following(state, budgets))
            if not following:
                self.end(state)
            for new in following:
                if any(local.refusal for local in new):
                    self.refused(new)
                elif new not in seen:
                    seen.add(new)
                    stack.append(new)

    def following(self, state, budgets) -> Iterator[tuple]:
        # What one rank does commutes with what the others do; and with hearing a message, if it is not hasty
        # (test_hearing_commutes). So the first such event is explored alone.
        for r in range(self.size):
            if question := next(self.hearings(state, r, ("question", "left")), None):
                yield question
                return
        for r in sorted(range(self.size), key=lambda r: state[r].idle):
            moves = [] if state[r].hasty else list(self.moves(state, r, budgets))
            if moves:
                yield from moves
                return
        for r in range(self.size):
            yield from self.hearings(state, r)
            yield from self.moves(state, r, budgets)

    def hearings(self, state, r, kinds=("question", "attend", "left")) -> Iterator[tuple]:
        """What the message thread of rank r can do."""
        for sender, other in enumerate(state):
            if sender != r and state[r].heard[sender] < len(other.sent):
                kind, text = other.sent[state[r].heard[sender]]
                if kind in kinds:
                    yield replaced(state, r, state[r].then("hear", sender, kind, text))

    def moves(self, state, r, budgets) -> Iterator[tuple]:
        """What the main thread of rank r can do."""
        local = state[r]
        if local.done:
            return
        # A crash, and a signal at any time, end all ranks: whatever they wait for, they hear of it.
        self.outcomes["failure of a peer"] += 1 + local.idle
        if local.idle:
            names = OPERATIONS if len(local.program) < budgets[r] else ()
            # One directory is like the other, until one of them is used.
            used = any("save_one" in other.program for other in state)
            for name in (*names, "end"):
                if name == "save_all" and not used:
                    continue
                yield replaced(state, r, local.then("begin", name))
        elif isinstance(local.effect, Device):
            if self.entered(state, local):
                yield replaced(state, r, local.then("advance", None))
        elif (text := state[local.effect.rank].posts.get(local.effect.key)) is not None:
            yield replaced(state, r, local.then("advance", text))

    def entered(self, state, local):
        """Whether all ranks are in the device program that this one is in."""
        at = len(local.devices) - 1
        return all(other.devices[at : at + 1] == local.devices[at:] for other in state)

    # ------------------------------------------------------------------------------------------- verdicts

    def end(self, state):
        """Nothing can happen any more: all ranks are done, or the watch names those that wait."""
        if all(local.done for local in state):
            self.outcomes["success"] += 1
            return
        texts = self.apart(state)
        if not texts:
            self.problem("waits for ever", state)
        for text in texts:
            self.refusal(state, text, set(re.findall(r"\(rank(\d)\.py:\d+\)", text)))

    def apart(self, state):
        """What the watch would report: ranks that miss each other do so for good."""
        positions = {r: local.positions for r, local in enumerate(state)}
        return [text for r in positions if (text := calls.deadlock(positions, r))]

    def refused(self, state):
        for local in state:
            if local.refusal:
                named = re.findall(r"ranks? ([\d, ]+) ha(?:s|ve)", local.refusal)
                self.refusal(state, local.refusal, {r for ranks in named for r in ranks.split(", ")})

    def refusal(self, state, text, named):
        self.outcomes["refusal"] += 1
        if len(named) < 2:
            self.problem(f"does not name both sides: {text}", state)
        if len({local.root[2][0] for local in state}) == 1 and compatible([local.program for local in state]):
            self.problem(f"is refused: {text}", state)

    def problem(self, what, state):
        programs = "; ".join(f"rank {r}: {', '.join(local.program)}" for r, local in enumerate(state))
        self.problems.append(f"{what} [{programs}]")

    # ------------------------------------------------------------------------------------------- merging

    def merged(self, state, budgets):
        """Whether all of this follows from fresh ranks: those that their calls began from, once in step."""
        sent = [len(local.start.sent) for local in state]
        starts = tuple(local.start.unheard(sent) for local in state)
        if all(start.before is None for start in starts):
            return False
        for r, local in enumerate(state):
            if any(local.early[s] < len(start.sent) for s, start in enumerate(starts) if s != r):
                return False
        # A question that was heard before a call went on could have been heard before it began.
        for r in range(self.size):
            while hearings := list(self.hearings(starts, r, ("question",))):
                starts = hearings[0]
            if next(self.hearings(starts, r), None):
                return False
        if starts not in self.merges:
            self.merges[starts] = self.synced(starts)
        if self.merges[starts]:
            left_over = (b - len(start.program) for b, start in zip(budgets, starts, strict=True))
            self.bases.append((self.merges[starts], tuple(left_over)))
        return bool(self.merges[starts])

    def synced(self, state):
        """Return what the ranks are familiar with, if they owe each other nothing."""
        if not all(local.idle and not local.done and local.devices == state[0].devices for local in state):
            return None
        machines = [local.machine() for local in state]
        if len({tuple(record.latest for record in m.records) for m in machines}) > 1:
            return None
        if any(m.attendance.pending or m.attendance._early for m in machines):
            return None
        if any(record.questions or record.problem for m in machines for record in m.records):
            return None
        begun = [m.log.calls() for m in machines]
        pairs = [(a, b) for a in range(self.size) for b in range(self.size) if a != b]
        if any(calls.first_missed(begun[a], begun[b], b) for a, b in pairs):
            return None
        for r, m in enumerate(machines):
            reads = machines[0].attendance._read
            if r and any(count != reads[what, r] for what, count in m.attendance._sent.items()):
                return None
        slowest = min(m.rate for m in machines)
        return tuple(fresh(m, m.rate - slowest) for m in machines)


def fresh(machine, rate):
    """How often a rank has set the rate more than another one; the keys that it may use again."""
    first, second, third = (frozenset(record.known) for record in machine.records)
    return rate, frozenset((mode, rate) for mode, number in first if number == machine.rate), second, third


def replaced(state, r, local):
    return (*state[:r], local, *state[r + 1 :])


def compatible(programs):
    """Whether ranks that are only slow could have got here: no refusal is right then."""
    for save in ("save_one", "save_all"):  # rank 0 may save alone
        if not any(save in program for program in programs[1:]):
            programs = [[name for name in program if name != save] for program in programs]
    longest = max(programs, key=len)
    return all(list(program) == list(longest)[: len(program)] for program in programs)
