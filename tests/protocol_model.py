"""Every order in which a few ranks can run `jaxpar.distributed._protocol`, over all programs of a length.

A rank runs a program of OPERATIONS, chosen one by one, with the library's state machine. What it has received
determines its state, so a state of the job is one `Local` of each rank. A text is read only under the one key
that its writer posts once, so the store needs no state. Messages between two ranks arrive in order, at any
time. Of orders that end in the same state one is explored (`Explorer.events`). Jobs that go on in the same
way, whatever their programs were so far, are explored once (`canonical`). Jobs in which two ranks wait for
each other are not explored further (`Explorer.stuck`).
A step is dispatched, as JAX does; `evaluate` waits for the devices, which run programs in order.
"""

from __future__ import annotations

import functools
import gc
import heapq
import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from copy import deepcopy
from itertools import chain, combinations
from sys import intern
from typing import NamedTuple

from jaxpar.distributed import call_log
from jaxpar.distributed._protocol import attendance, calls, ending, lockstep, steps
from jaxpar.distributed._protocol.effects import Begin, Post, Read, Send, Wait
from jaxpar.distributed.group import Group
from jaxpar.errors import DivergenceError

# `join` and `fail`, an exception, are in given programs only.
OPERATIONS = ("step", "accumulate", "rate", "save_one", "save_all", "barrier", "objects", "evaluate")
ENDS = ("end", "crash", "signal")
PAIRS = ("01", "02", "12")
"""Groups of two of three ranks, whose barriers only given programs have."""
HASTY = re.compile(r"/answers/|/(DistributedDataParallel|the program|collectives)")
"""Keys of texts after which a rank may answer a message in another way: rank 0's, and those about steps."""
RECORDS = ("DistributedDataParallel 1", "the program of DistributedDataParallel 1", "collectives")


class Device(NamedTuple):
    """A compiled program with a collective, which ends once all ranks have entered the same one."""

    program: str


class Rank:
    """One rank: the library's machine, and the calls that the library makes with it."""

    def __init__(self, rank, size, pairs=False):
        self.rank, self.size = rank, size
        self.group = Group(rank, size, "", 1, 60.0, 1, tuple(range(size)))
        self.log = calls.BegunLog(rank, str)
        self.lockstep = lockstep.Lockstep()
        self.ending = ending.Ending(rank, size, "jaxpar/1/gone")
        self.follows = None  # the rank whose failure ends this one
        self.records = [steps.StepRecord(name, self.group) for name in RECORDS]
        self.rate = 0
        self.attendance = attendance.Attendance(
            self.log,
            size,
            "jaxpar/1",
            self.latest_steps,
            self.asks_beyond,
            lambda: pairs,
        )
        self.program = []
        self.calls = None  # the generator of the call that it is in
        self.effect = None  # what that wants done next
        self.posts, self.sent, self.devices, self.read = {}, [], [], []
        self.heard = [0] * size
        self.refusal = ""

    # ------------------------------------------------------------------------------------- operations

    def line(self):
        # Without the rates: states are compared in which they were set at another time.
        return f"rank{self.rank}.py:{sum(name != 'rate' for name in self.program)}"

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

    def exchange(self, what, label="", group=None, text=""):
        group = group or self.group
        begin = Begin(label or what, *call_log.counted(what, group))
        folder = f"jaxpar/{group.folder}/{what}"
        return (yield from self.lockstep.collect(folder, begin, group.ranks, group.rank, text))

    def join(self):
        """Rank r has r + 1 batches, and takes part in the steps of the others after its own."""
        for batches in range(self.rank + 1, -self.size, -1):
            announcement = {"kinds": []} if batches > 0 else {"never": False}
            texts = yield from self.exchange("DistributedDataParallel.join", text=json.dumps(announcement))
            if lockstep.is_over([json.loads(text) for text in texts]):
                assert batches <= 0, "join drops a batch"
                break
            yield Device("train_step")
        else:
            raise AssertionError("join has more rounds than batches")
        yield Device("the last rank's values")

    def pair_barrier(self, members):
        ranks = tuple(map(int, members))
        rank, name = ranks.index(self.rank), f"group {members}"
        yield from self.exchange("barrier", group=Group(rank, 2, "", 1, 60.0, 1, ranks, name))

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
            "join": self.join,
            "fail": lambda: self.ending.fail({"reason": "an exception", "code": 1}),
            "end": lambda: self.exchange("end", call_log.END),
            **{f"barrier {members}": lambda m=members: self.pair_barrier(m) for members in PAIRS},
        }[name]()

    # -------------------------------------------------------------------------------------- transitions

    def begin(self, name):
        self.program.append(name)
        self.calls = self.call(name)
        self.advance(None)

    def advance(self, text):
        """Give the call a text, and do what it wants up to where it waits for another rank."""
        if isinstance(self.effect, Read):
            self.read.append(self.effect.key)
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
            self.send(effect)
        if isinstance(effect, Post):
            self.post([effect])

    def hear(self, sender, kind, text):
        self.heard[sender] += 1
        message = json.loads(text)
        if kind == "left" and self.follows is None and self.program[-1:] != ["fail"]:
            self.follows, self.calls, self.effect = sender, self.ending.end(), None
            self.advance(None)
        if kind == "attend":
            self.post(self.attendance.hear(message))
        if kind == "question":
            record = next(record for record in self.records if record.name == message["name"])
            self.post(record.hear(message))

    def send(self, message):
        self.sent.append((message.kind, intern(json.dumps({"rank": self.rank} | message.fields))))

    def post(self, posts):
        for post in posts:
            if isinstance(post, Send):
                self.send(post)
                continue
            assert post.key not in self.posts, f"{post.key} is posted twice"
            self.posts[intern(post.key)] = intern(post.text)

    def positions(self):
        return self.log.calls() | steps.positions(self.records, self.log.number)

    def latest_steps(self):
        return steps.latest_steps(self.records)

    def asks_beyond(self, latest, rank):
        return steps.asks_beyond(self.records, latest, rank)

    def copy(self):
        """Return a rank in the same state, which is between two calls: a call cannot be copied."""
        new = copied(self)
        new.log, new.lockstep, new.attendance = map(copied, (self.log, self.lockstep, self.attendance))
        new.records = [copied(record) for record in self.records]
        new.attendance._log = new.log
        new.attendance._latest_steps, new.attendance._asks_beyond = new.latest_steps, new.asks_beyond
        return new


def copied(part):
    """Return an object whose containers are new, as are the lists in them."""
    new = object.__new__(type(part))
    values = vars(new)
    values.update(vars(part))
    for name, value in values.items():
        kind = type(value)
        if kind is dict:
            values[name] = (
                {step: texts[:] for step, texts in value.items()} if name == "questions" else {**value}
            )
        elif kind is list or kind is set:
            values[name] = value.copy()
        elif kind is Counter:  # whose own copy counts each entry anew
            values[name] = Counter.__new__(Counter)
            dict.update(values[name], value)
    return new


RECENT: deque[Local] = deque()
"""States whose machines are at hand; those of others are run again from their history."""
KEPT = 10_000


class Local:
    """A state of one rank: what it has received since it began, and what others can notice."""

    def __init__(self, rank, size, pairs, before=None, received=None):
        self.root = rank, size, pairs
        self.before, self.received, self.after = before, received, {}
        self.live = self.replayed()
        for name in ("effect", "refusal"):
            setattr(self, name, getattr(self.live, name))
        self.posts = (
            before.posts if before and len(before.posts) == len(self.live.posts) else dict(self.live.posts)
        )
        self.sent, self.heard = tuple(self.live.sent), tuple(self.live.heard)
        self.devices, self.program = tuple(self.live.devices), tuple(self.live.program)
        self.idle = self.live.calls is None
        self.latest = tuple(record.latest for record in self.live.records)
        self.exchanged = self.asks = ()
        if isinstance(self.effect, Read):
            folder = self.effect.key.rpartition("/")[0]
            if LOCKSTEP.match(folder + "/"):  # the keys of all ranks' texts
                self.exchanged = tuple(f"{folder}/{other}" for other in range(size))
            elif (words := folder.split("/"))[2] in RECORDS:  # the record and the step
                self.asks = RECORDS.index(words[2]), int(words[3])
        self.number_heard = sum(self.heard)
        # Whether it could answer rank 0's announcement of a call in another way once it has gone on.
        at_answer = isinstance(self.effect, Read) and HASTY.search(self.effect.key)
        self.hasty = rank > 0 and bool(self.idle or at_answer)
        self.follows = self.live.follows
        self.done = self.idle and (self.program[-1:] in (("end",), ("fail",)) or self.follows is not None)

    def forget(self):
        """Drop what can be had again from the history."""
        if self.live is not None:
            vars(self.live).clear()  # its parts refer to each other, and nothing collects them
        self.live = None
        for name in ("view", "positions"):
            vars(self).pop(name, None)

    @functools.cached_property
    def positions(self):
        return self.machine().positions()

    @functools.cached_property
    def view(self):
        return View(self.machine())

    def replayed(self):
        history, local = [], self
        while local is not None and getattr(local, "live", None) is None:
            if local.received is not None:
                history.append(local.received)
            last, local = local, local.before
        # In a call a machine cannot be copied: that of an earlier state is taken from it, if it is there.
        machine = local.live if local is not None else Rank(*last.root)
        if local is not None and local.idle:
            machine = machine.copy()
        elif local is not None:
            local.live = None
        for kind, *received in reversed(history):
            getattr(machine, kind)(*received)
        RECENT.append(self)
        if len(RECENT) > KEPT:
            RECENT.popleft().forget()
        return machine

    def machine(self):
        if self.live is None:
            self.live = self.replayed()
        return self.live

    def then(self, *received):
        if received not in self.after:
            self.after[received] = Local(*self.root, self, received)
        return self.after[received]


parsed = functools.cache(json.loads)


def named(text):
    """Return the ranks whose lines an error names."""
    return frozenset(re.findall(r"[Rr]ank (\d) is at [^,]*rank\1\.py:\d", text))


class View:
    """All of a rank's state on which its future depends, with the numbers that it counts in."""

    def __init__(self, machine):
        attendance = machine.attendance
        self.counts = {name: n for name, (n, *_) in machine.log._begun.items() if not name.endswith(" led")}
        begun = sorted(
            (number, name) for name, (_, needs, number, *_) in machine.log._begun.items() if needs is None
        )
        self.order = [name for _, name in begun]
        self.rate, self.latest = machine.rate, [record.latest for record in machine.records]
        self.known = tuple(
            frozenset(mode for mode, rate in record.known if rate == machine.rate)
            if i == 0
            else frozenset(record.known)
            for i, record in enumerate(machine.records)
        )
        self.records = [
            {step: parts for step, (parts, _) in record.record.items()} for record in machine.records
        ]
        self.new_steps = [set(record.new_steps) for record in machine.records]
        self.asked = [record.asked_step for record in machine.records]
        self.questions = [
            [parsed(text) for texts in record.questions.values() for text in texts]
            for record in machine.records
        ]
        self.problems = tuple(tuple(NAMED.findall(record.problem)) for record in machine.records)
        self.calls, self.streams = dict(attendance._calls), dict(attendance._sent)
        self.reads, self.early = dict(attendance._read), dict(attendance._early)
        self.pending = list(attendance.pending)
        self.read = frozenset(key for key in machine.read if not in_lockstep(key))
        self.posts = {key: text for key, text in machine.posts.items() if not in_lockstep(key)}
        self.doing = machine.program[-1] if machine.calls is not None else ""
        self.frames = []
        call = machine.calls
        while call is not None:
            values = call.gi_frame.f_locals if call.gi_frame is not None else {}
            self.frames.append(
                {
                    name: deepcopy(values[name])
                    for name in ("texts", "text_numbers", "begun", "answers")
                    if name in values
                }
            )
            call = call.gi_yieldfrom


LOCKSTEP = re.compile(r"jaxpar/1/(barrier|objects|objects, read|end|DistributedDataParallel.join)/")
NAMED = re.compile(r"ranks? ([\d, ]+) ha(?:s|ve)")
KEY = re.compile(r"jaxpar/1/(.*?)/(answers/)?(\d+)/(\d+)(?:/(\d+))?$")


@functools.cache
def in_lockstep(key):
    return LOCKSTEP.match(key) is not None


@functools.cache
def key_words(key):
    return KEY.match(key).groups()


@functools.cache
def relative(part, rate):
    """Return the text of a step's part with its rate counted from `rate`."""
    return re.sub(r"(\d+)\)$", lambda m: f"{int(m[1]) - rate})", part) if part.startswith("(") else part


def canonical(state):
    """Return what the future of a job depends on: states with the same value go on in the same way.

    Numbers are relative to the lowest among the ranks: the protocol only compares them.
    """
    views = [local.view for local in state]
    names = {name for view in views for name in view.counts}
    least = {}
    for name in names:
        of = [views[0], views[int(name[-1])]] if " of rank " in name else views
        least[name] = min(view.counts.get(name, 0) for view in of)
    latest = [min(view.latest[i] for view in views) for i in range(len(RECORDS))]
    reads, calls_ = views[0].reads, views[0].calls
    rate = min(view.rate for view in views)
    consumed = frozenset().union(*(view.read for view in views))
    asked = {(i, view.asked[i]) for view in views for i in range(len(RECORDS)) if view.asked[i] is not None}

    def counts(begun):
        relative = ((name, begun.get(name, 0) - low) for name, low in least.items())
        return tuple(sorted((name, n) for name, n in relative if n))

    def parts(value):
        return tuple((k, relative(v, rate)) for k, v in value.items())

    def entry(what, r, value):
        number = value["number"] - reads.get((what, r), 0)
        if "text" in value:
            return number, counts(value["begun"])
        return number, value["passed"] - calls_.get(what, 0)

    def begun_steps(steps_):
        return tuple(sorted((name[2:], at - latest[RECORDS.index(name[2:])]) for name, at in steps_.items()))

    def announced(what, call, begun, steps_):
        return what, call - calls_.get(what, 0), counts(begun), begun_steps(steps_)

    def pending_call(pending):
        [position] = pending.positions.values()
        return announced(pending.what, pending.call, *position)

    def message(kind, text):
        value = parsed(text) if isinstance(text, str) else text
        if kind == "attend":
            return announced(value["what"], value["call"], value["begun"], value["steps"])
        i = RECORDS.index(value["name"])
        return i, value["step"] - latest[i], value["rank"], parts(value["parts"])

    def key(text):
        if in_lockstep(text):
            return text.split("/")[2], text.rpartition("/")[2]
        what, answers, first, second, third = key_words(text)
        if third is not None:
            return what, int(first) - latest[RECORDS.index(what)], second, third
        return what, answers, first, int(second) - reads.get((what, int(first)), 0)

    def posted(key_, text):
        what, answers, first, _, third = key_words(key_)
        value = parsed(text)
        if third is not None:
            return parts(value["parts"]), value["asked"]
        if answers:
            return value["call"] - calls_.get(what, 0), tuple(value["texts"])
        return entry(what, int(first), value)

    def frame(values):
        result = []
        if "answers" in values:
            result += [(r, parts(a["parts"]), a["asked"]) for r, a in values["answers"].items()]
        if "text_numbers" in values:
            begun = values["begun"]
            result += [tuple(values["texts"]), counts(begun), tuple(values["text_numbers"].items())]
        return tuple(result)

    # A call and the text for it have two numbers, which differ if a rank has passed a call without a report.
    streams = [(what, r) for what in calls_ for r in range(1, len(state))]
    ahead = tuple((s, n) for s in sorted(streams) if (n := calls_[s[0]] - reads.get(s, 0)))
    shared = 0
    while (
        all(shared < len(local.devices) for local in state) and len({l.devices[shared] for l in state}) == 1
    ):
        shared += 1
    waiting = [len(l.devices) - 1 for l in state if isinstance(l.effect, Device)]
    shared = min([shared, *waiting])
    ranks = []
    for r, (local, view) in enumerate(zip(state, views, strict=True)):
        more = [name for name in view.order if view.counts[name] > least[name]]
        ranks.append(
            (
                view.doing,
                key(local.effect.key) if isinstance(local.effect, Read) else str(local.effect),
                local.done,
                local.idle and local.program[-1:] == ("rate",),
                counts(view.counts),
                tuple((name, frozenset(view.order[view.order.index(name) + 1 :])) for name in more),
                view.rate - rate,
                tuple(at - low for at, low in zip(view.latest, latest, strict=True)),
                view.known,
                tuple(
                    (i, step - latest[i], parts(value), step in view.new_steps[i])
                    for i in range(len(RECORDS))
                    for step, value in view.records[i].items()
                    if step > latest[i] or (i, step) in asked
                ),
                tuple(i if at is None else at - latest[i] for i, at in enumerate(view.asked)),
                tuple(
                    message("question", question) for questions in view.questions for question in questions
                ),
                view.problems,
                tuple(
                    sorted(
                        (what, n - reads.get((what, r), 0))
                        for what, n in view.streams.items()
                        if n != reads.get((what, r), 0)
                    )
                ),
                tuple(sorted((stream, entry(*stream, value)) for stream, value in view.early.items())),
                tuple(map(pending_call, view.pending)),
                tuple(
                    sorted((key(k), posted(k, text)) for k, text in view.posts.items() if k not in consumed)
                ),
                tuple(frame(values) for values in view.frames),
                local.devices[shared:],
                tuple(
                    (sender, message(kind, text))
                    for sender, other in enumerate(state)
                    if sender != r
                    for kind, text in other.sent[local.heard[sender] :]
                ),
            )
        )
    return ahead, *ranks


@functools.cache
def tails(programs):
    """Return what is left of programs once what all have, and what rank 0 saved alone, is taken away.

    None if the programs are different, so that a refusal is right.
    """
    first, *others = (list(program) for program in programs)
    while True:
        heads = {program[0] for program in others if program}
        if first and first[0].startswith("save") and heads - {first[0]}:
            del first[0]
        elif len(heads | set(first[:1])) > 1:
            return None
        elif first and all(others):
            for program in (first, *others):
                del program[0]
        else:
            break
    # Those that are further must agree about what comes first there.
    further = [program for program in others if program]
    if first and 0 < len(further) < len(others):
        agree = tails((tuple(first), *map(tuple, further))) is not None
    else:
        agree = all(a == b for one in further for other in further for a, b in zip(one, other, strict=False))
    return tuple(map(tuple, (first, *others))) if agree else None


class Explorer:
    """All states of `size` ranks whose programs have up to `length` operations before their end.

    `programs`: only these, one of each rank. `pairs`: the ranks are in PAIRS, too.
    """

    def __init__(self, size, length, every_order=False, merging=True, programs=(), pairs=False):
        self.size, self.length, self.every_order, self.merging = size, length, every_order, merging
        self.programs = programs
        self.states = 0
        self.outcomes = {"success": 0, "refusal": 0, "failure of a peer": 0}
        self.problems, self.reports = [], {}
        self.explored = {}
        self.ends = set()
        """How the job ended: with success in a state, or with a refusal by some ranks."""
        self.first = tuple(Local(r, size, pairs) for r in range(size))
        self.pairs = pairs

    def left(self, state):
        """How many operations each rank may still begin."""
        return tuple(self.length - len(local.program) for local in state)

    def is_new(self, state):
        """Whether no explored state goes on in all the ways in which this one does."""
        if not self.merging:
            return self.explored.setdefault(state, state) is state
        left, same = self.left(state), tails(tuple(local.program for local in state))
        earlier = self.explored.setdefault((canonical(state), self.programs and left), [])
        for other_left, other_same in earlier:
            if same in (None, other_same) and all(a >= b for a, b in zip(other_left, left, strict=True)):
                return False
        earlier.append((left, same))
        return True

    def run(self, problems=1):
        """Explore, until so many problems are known."""
        gc.disable()  # a collection would search the states, which are all in use
        try:
            self.explore(problems)
        finally:
            gc.enable()
        return self

    def explore(self, problems):
        RECENT.clear()
        heap, number = [(0, 0, self.first, self.events(self.first))], 0
        while heap and len(self.problems) < problems:
            *_, state, events = heapq.heappop(heap)
            if not self.is_new(state):
                continue
            for event in events:
                new, following = self.follow(state, event)
                if following:
                    number -= 1
                    heapq.heappush(heap, (-sum(self.left(new)), number, new, following))

    def follow(self, state, event):
        """Return the first state after an event that has several events or none, and the events.

        A state with one successor needs no comparison with others: that successor is compared.
        """
        while True:
            self.states += 1
            r, *received = event
            state = replaced(state, r, state[r].then(*received))
            if state[r].refusal:
                self.refused(state)
                return state, []
            events = self.events(state) if self.every_order or not self.stuck(state, r) else []
            if not events:
                self.end(state)
            if len(events) != 1 or self.every_order:
                return state, events
            [event] = events

    def events(self, state) -> list[tuple]:
        """What can happen next: a rank, and what it receives. Of orders with the same end one is enough."""
        sent = sum(len(local.sent) for local in state)
        hears = [
            [*self.hearings(state, r)] if sent > len(local.sent) + local.number_heard else []
            for r, local in enumerate(state)
        ]
        # What one rank does commutes with what the others do; and with hearing a message, if it is not hasty
        # (test_hearing_commutes). So the first such event is explored alone.
        questions = [event for events in hears for event in events if event[3] == "question"]
        if questions and not self.every_order:
            return questions[:1]
        moves = [[*self.moves(state, r)] for r in range(self.size)]
        every = list(map(list.__add__, hears, moves))
        if self.every_order:
            return [*chain(*every)]
        for r in sorted(range(self.size), key=lambda r: state[r].idle):
            if moves[r] and not state[r].hasty:
                return moves[r]
        if not any(moves):
            # Only rank 0 can go on after a hearing, by the rank it waits for. The others commute with that.
            return sorted(chain(*hears), key=lambda event: event[0] not in self.missing(state, 0))[:1]
        # A hasty rank waits for the next announcement, unless rank 0 needs that rank before it can make one.
        for r in range(self.size):
            if moves[r] and (hears[r] or self.needs(state, every, 0, r)):
                return every[r]
        return [*chain(*every)]

    def missing(self, state, r):
        """The ranks without which a rank cannot go on."""
        local = state[r]
        if isinstance(local.effect, Device):
            at = len(local.devices) - 1
            return {s for s in range(self.size) if state[s].devices[at : at + 1] != local.devices[at:]}
        if isinstance(local.effect, Read) and local.effect.key not in state[local.effect.rank].posts:
            return {local.effect.rank}
        return set()

    def needed(self, state, r):
        """The ranks whose main threads have to go on before that of a rank leaves its call."""
        local = state[r]
        if local.exchanged:
            return {s for s, key in enumerate(local.exchanged) if key not in state[s].posts}
        if local.asks:
            record, step = local.asks
            return {s for s, other in enumerate(state) if other.latest[record] < step}
        return self.missing(state, r)

    def needs(self, state, every, rank, other, seen=()):
        """Whether a rank cannot go on before another one does."""
        if every[rank] or rank in seen:
            return False
        missing = self.missing(state, rank)
        return other in missing or any(self.needs(state, every, r, other, (*seen, rank)) for r in missing)

    def stuck(self, state, r):
        """Whether rank r and another wait for each other, so that the watch names them whatever others do.

        Each needs the other's main thread before its own leaves its call, and what they would hear comes from
        third ranks: that may be answered, but moves neither. So it is for good, and ends in a refusal.
        """
        sent = sum(len(local.sent) for local in state)
        waits = [
            self.needed(state, s)
            if self.missing(state, s) and sent == len(local.sent) + local.number_heard
            else ()
            for s, local in enumerate(state)
        ]
        return any(r in waits[s] and self.apart(state, *sorted((r, s))) for s in waits[r])

    def hearings(self, state, r) -> Iterator[tuple]:
        """What the message thread of rank r can do."""
        for sender, other in enumerate(state):
            if sender != r and state[r].heard[sender] < len(other.sent):
                message = other.sent[state[r].heard[sender]]
                # There is one queue of messages: an announcement is heard before the reports about its call.
                if sender == 0 or message[0] != "attend" or self.is_announced(state, r, message[1]):
                    yield (r, "hear", sender, *message)

    def is_announced(self, state, r, text):
        call = [parsed(text)[name] for name in ("what", "call")]
        later = [parsed(text) for kind, text in state[0].sent[state[r].heard[0] :] if kind == "attend"]
        return r == 0 or call not in [[message[name] for name in ("what", "call")] for message in later]

    def moves(self, state, r) -> Iterator[tuple]:
        """What the main thread of rank r can do."""
        local = state[r]
        if local.done:
            return
        # A crash, and a signal at any time, end all ranks: whatever they wait for, they hear of it.
        self.outcomes["failure of a peer"] += 1 + local.idle
        if local.idle and self.programs:
            yield r, "begin", (*self.programs[r], "end")[len(local.program)]
        elif local.idle:
            left = self.length - len(local.program)
            names = [*OPERATIONS, "end"] if left > 0 else ["end"]
            # Only steps read the rate, so it is set right before one (test_the_rate_can_be_set_later).
            if local.program[-1:] == ("rate",):
                names = ["rate", "step", "accumulate"]
            # One directory is like the other, until one of them is used.
            used = any("save_one" in other.program for other in state)
            for name in names:
                if (left > 1 or name != "rate") and (used or name != "save_all"):
                    yield r, "begin", name
        elif isinstance(local.effect, Device):
            if not self.missing(state, r):
                yield r, "advance", None
        elif (text := state[local.effect.rank].posts.get(local.effect.key)) is not None:
            yield r, "advance", text

    # ------------------------------------------------------------------------------------------- verdicts

    def end(self, state):
        """Nothing can happen any more: all ranks are done, or the watch names those that wait."""
        failed = {r for r, local in enumerate(state) if local.program[-1:] == ("fail",)}
        if failed:
            self.ends.add(frozenset(failed))
            follow = all(local.follows in failed for r, local in enumerate(state) if r not in failed)
            if not follow or not all(local.done for local in state):
                self.problem("waits for ever after a failure", state)
            return
        if all(local.done for local in state):
            self.outcomes["success"] += 1
            self.ends.add("success" if self.pairs else canonical(state))
            return
        reports = [self.apart(state, *pair) for pair in combinations(range(self.size), 2)]
        if not any(reports) and self.pairs:
            positions = {r: local.positions for r, local in enumerate(state)}
            reports = [named(calls.deadlock(positions, r)) for r in positions]
        if not any(reports):
            self.problem("waits for ever", state)
        for ranks in filter(None, reports):
            self.refusal(state, ranks)

    def apart(self, state, a, b):
        """The ranks that the watch would name of two: those that miss each other do so for good."""
        key = state[a], state[b]
        if key not in self.reports:
            self.reports[key] = named(calls.deadlock({a: state[a].positions, b: state[b].positions}, a))
        return self.reports[key]

    def refused(self, state):
        for local in state:
            if local.refusal:
                self.refusal(state, named(local.refusal))

    def refusal(self, state, ranks):
        self.ends.add(ranks)
        self.outcomes["refusal"] += 1
        if len(ranks) < 2:
            self.problem(f"does not name both sides, but {sorted(ranks)}", state)
        if tails(tuple(local.program for local in state)) is not None:
            self.problem(f"is refused by {sorted(ranks)}", state)

    def problem(self, what, state):
        programs = "; ".join(f"rank {r}: {', '.join(local.program)}" for r, local in enumerate(state))
        self.problems.append(f"{what} [{programs}]")


def replaced(state, r, local):
    return (*state[:r], local, *state[r + 1 :])
