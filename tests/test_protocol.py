"""No rank waits for ever: every order of two and three ranks, over all programs of a length."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random

import pytest
from protocol_model import ENDS, NAMED, OPERATIONS, PAIRS, Explorer, canonical, replaced

from jaxpar.distributed._protocol import attendance, calls, ending, lockstep, steps

JOBS = {
    "two ranks": (2, 4),
    "three ranks": (3, 2),
    "two ranks, longer programs": (2, 5),
    "three ranks, longer programs": (3, 3),
}
"""Ranks, and operations in a program."""


def programs(size, length):
    """The number of tuples of programs: up to so many operations, then one of ENDS."""
    return sum(len(OPERATIONS) ** n * len(ENDS) for n in range(length + 1)) ** size


@pytest.mark.full
@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=[pytest.mark.long] * ("longer" in job)) for job in JOBS]
)
def test_every_wait_ends(job):
    explorer = Explorer(*JOBS[job]).run()
    print(f"{job}: {programs(*JOBS[job]):,} programs, {explorer.states:,} states, {explorer.outcomes}")
    assert not explorer.problems
    assert all(explorer.outcomes.values())


def machine_state(local):
    """All that a rank knows, in an order of its own."""
    machine = local.machine()
    records = [{k: v for k, v in vars(record).items() if k != "group"} for record in machine.records]
    attends = {k: v for k, v in vars(machine.attendance).items() if not callable(v) and k != "_log"}
    seen = machine.posts, machine.sent, machine.devices, machine.heard, machine.effect, machine.program
    return plain([machine.log._begun, records, attends, *seen, bool(machine.refusal)])


def plain(value):
    if isinstance(value, dict):
        return sorted((repr(key), plain(entry)) for key, entry in value.items())
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else repr(value)


def all_locals(explorer):
    """All states of single ranks that an explorer has met."""
    stack = list(explorer.first)
    while stack:
        local = stack.pop()
        yield local
        stack += local.after.values()


@pytest.mark.full
def test_hearing_commutes():
    """A message is heard before or after what the main thread does, to the same effect; or it refuses."""
    locals_ = list(all_locals(Explorer(2, 2, merging=False).run()))
    messages = {}
    for local in locals_:
        for event in local.after:
            if event[0] == "hear":
                messages.setdefault((local.root[0], local.heard), set()).add(event)
    compared = 0
    for local in locals_:
        for message in messages.get((local.root[0], local.heard), ()):
            for event in [event for event in local.after if event[0] != "hear"]:
                if local.hasty and message[2] == "attend":
                    continue
                try:
                    last, first = local.then(*event).then(*message), local.then(*message).then(*event)
                except AssertionError:  # a message that cannot come here: it was answered before
                    continue
                problems = [record.problem for record in last.machine().records]
                compared += 1
                assert any(problems) or last.refusal or machine_state(last) == machine_state(first)
    assert compared > 1000


def test_the_rate_can_be_set_later():
    """Only steps read the rate: after another operation the rank is in the same state as before it."""

    def all_but_the_rate(local):
        return {name: value for name, value in vars(local.view).items() if name not in ("rate", "known")}

    compared = 0
    for local in list(all_locals(Explorer(2, 2).run())):
        for name in set(OPERATIONS) - {"rate", "step", "accumulate"} if local.idle and not local.done else ():
            later, earlier = local.then("begin", name), local.then("begin", "rate").then("begin", name)
            assert all_but_the_rate(later) == all_but_the_rate(earlier)
            compared += 1
    assert compared > 100


@pytest.mark.full
@pytest.mark.parametrize("length", [2, pytest.param(3, marks=pytest.mark.long)])
def test_jobs_with_one_canonical_state_go_on_equally(length):
    """So what follows from one of them follows from all."""
    explorer = Explorer(2, length, merging=False).run()
    successors = {}
    for state in explorer.explored:
        programs = [local.program for local in state]
        events = [(r, new) for r, *event in explorer.events(state) for new in [state[r].then(*event)]]
        following = {
            (r, tuple(NAMED.findall(new.refusal)) or canonical(replaced(state, r, new))) for r, new in events
        }
        refused = bool(explorer.apart(state, 0, 1)) if not events else None
        # The second directory for a save is not tried before the first one.
        used = any("save_one" in program for program in programs)
        kind = canonical(state), explorer.left(state), used
        successors.setdefault(kind, []).append((following, refused))
    assert sum(map(len, successors.values())) > len(successors)
    for kind, alike in successors.items():
        for one in alike:
            assert one == alike[0], kind


@pytest.mark.full
@pytest.mark.parametrize("job", [(2, 1), (2, 2), pytest.param((3, 1), marks=pytest.mark.long)], ids=str)
def test_every_order_ends_as_the_explored_ones(job):
    explored, every = Explorer(*job).run(), Explorer(*job, every_order=True).run()
    assert explored.states < every.states
    assert explored.ends == every.ends
    assert not explored.problems + every.problems


CIRCLE = ("step", "step", "save_one"), ("step", "save_one"), ("step", "accumulate")
"""Rank 0 waits in its save for rank 2, which asks about its step and waits for rank 1, which is in a save."""


@pytest.mark.full
@pytest.mark.sampled(3)
@pytest.mark.parametrize("job", [(2, 2, 300), (2, 3, 60), (3, 2, 12), (3, 3, 4)], ids=str)
def test_given_programs_end_in_every_order_as_in_the_explored_ones(job):
    size, length, count = job
    draw = random.Random(f"{job}")
    jobs = [
        tuple(draw.choices(OPERATIONS, k=draw.randint(0, length)) for _ in range(size)) for _ in range(count)
    ]
    # Programs that differ in one place only, and those that do not.
    jobs += [(job[0],) * size for job in jobs] + [(*job[:1] * (size - 1), job[0][:-1]) for job in jobs]
    ways = set()
    for programs in [*jobs, CIRCLE[:size]]:
        explored = Explorer(size, length, programs=programs).run()
        every = Explorer(size, length, programs=programs, every_order=True).run()
        assert explored.ends <= every.ends, programs
        kinds = [{isinstance(end, frozenset) for end in explorer.ends} for explorer in (explored, every)]
        assert kinds[0] == kinds[1], programs
        assert not explored.problems + every.problems
        ways |= kinds[0]
    assert ways == {False, True}


OF_GROUPS = ("save_one", "barrier", *(f"barrier {pair}" for pair in PAIRS))


def projection(program, rank):
    """What one rank does of a program of all: only rank 0 saves, and only members meet in a group."""
    of_others = {f"barrier {pair}" for pair in PAIRS if str(rank) not in pair}
    return tuple(name for name in program if name not in of_others and (rank == 0 or name != "save_one"))


@pytest.mark.full
@pytest.mark.parametrize("length", [1, 2, 3])
def test_groups_of_two_of_three_ranks_end(length):
    """In whatever order: also where rank 0 saves alone while the others meet without it."""
    for program in itertools.product(OF_GROUPS, repeat=length):
        programs_ = tuple(projection(program, rank) for rank in range(3))
        explorer = Explorer(3, length, programs=programs_, merging=False, pairs=True).run()
        assert not explorer.problems
        assert explorer.ends == {"success"}, program


CIRCLES = {
    "barriers": (("barrier 01", "barrier 02"), ("barrier 12", "barrier 01"), ("barrier 02", "barrier 12")),
    "a save": (("save_one", "barrier 01"), ("barrier 12", "barrier 01"), ("barrier 02", "barrier 12")),
    "two ranks": (("barrier", "barrier 01"), ("barrier 01", "barrier"), ("barrier",)),
}  # fmt: skip


@pytest.mark.parametrize("case", CIRCLES)
def test_ranks_that_wait_in_a_circle_of_groups_are_named(case):
    explorer = Explorer(3, 3, programs=CIRCLES[case], merging=False, pairs=True).run()
    assert not explorer.problems
    assert explorer.ends == {frozenset("01" if case == "two ranks" else "012")}


def explored(size, programs):
    return Explorer(size, 4, every_order=True, merging=False, programs=programs, pairs=True).run()


JOINED = {2: ("join", "barrier", "save_one", "step"), 3: ("join", "barrier")}
"""Operations for each number of ranks; of three ranks, steps and saves have too many orders."""


@pytest.mark.full
@pytest.mark.parametrize(("size", "length"), [(2, 1), (2, 2), (3, 2)])
def test_ranks_with_different_numbers_of_batches_end(size, length):
    """In every order: each rank has one batch more than the one before it, and all go on after join."""
    for program in itertools.product(JOINED[size], repeat=length):
        for others in {program, tuple(name for name in program if name != "save_one")}:
            explorer = explored(size, (program, *(others,) * (size - 1)))
            assert not explorer.problems
            assert explorer.ends == {"success"}, program


@pytest.mark.parametrize("other", ["barrier", "step", "evaluate"])
def test_a_rank_that_does_not_join_is_named(other):
    for programs in ((("join",), (other,)), ((other,), ("join",)), (("join",), ())):
        explorer = explored(2, programs)
        assert not explorer.problems
        assert explorer.ends == {frozenset("01")}, programs


FAILING = {2: ("barrier", "objects", "save_all", "join", "step"), 3: ("barrier", "objects", "join")}


def failures(size, length):
    """Programs of which some ranks do the beginning, and then fail."""
    for program in itertools.product(FAILING[size], repeat=length):
        for ranks, at in itertools.product(((0,), (size - 1,), (0, 1)), range(length + 1)):
            yield tuple((*program[:at], "fail") if r in ranks else program for r in range(size)), ranks


@pytest.mark.full
@pytest.mark.parametrize(("size", "length"), [(2, 1), (2, 2), (3, 1)])
def test_a_failure_ends_all_ranks(size, length):
    """In every order, and wherever the others are; each names a rank that failed."""
    for programs, ranks in failures(size, length):
        explorer = explored(size, programs)
        assert not explorer.problems, programs
        assert explorer.ends <= {frozenset(some) for n in (1, 2) for some in itertools.combinations(ranks, n)}


ENDING_MUTATIONS = {
    "nobody hears of a failure": (ending, 'yield Send("left", fields)', "pass"),
    "a rank that ends does not report it": (ending, 'yield Post(f"{self._folder}/{self._rank}", "")', "pass"),
    "rank 0 waits for itself": (ending, "range(1, self._size)", "range(self._size)"),
    "join ends with the first rank": (
        lockstep,
        "len(exhausted(announcements)) == len(announcements)",
        "bool(exhausted(announcements))",
    ),
    "join never ends": (lockstep, '"kinds" not in announcement', "False"),
}


def unsuccessful(size, programs):
    """Whether an exploration has a problem, or a rank breaks what the model asserts."""
    try:
        return explored(size, programs).problems
    except AssertionError:
        return True


@pytest.mark.parametrize("name", ENDING_MUTATIONS)
def test_a_mutation_of_join_or_of_the_end_is_found(name):
    with mutated(*ENDING_MUTATIONS[name]):
        jobs = [(2, (("join", "barrier"),) * 2), *((2, programs) for programs, _ in failures(2, 1))]
        assert any(unsuccessful(size, programs) for size, programs in jobs)


@pytest.mark.parametrize(("call", "passed"), [(1, 0), (2, 1)])
def test_a_report_that_a_rank_has_passed_a_call_is_about_that_call(call, passed):
    log = calls.BegunLog(1, str)
    log.record("barrier", "barrier, group 12", (1, 2), None)
    side = attendance.Attendance(log, 3, "jaxpar/1", dict, lambda steps, rank: False, lambda: False)
    message = {"what": "save", "begun": {}, "steps": {}}
    assert side.hear(message | {"rank": 0, "call": 2}) == []
    assert len(side.hear(message | {"rank": 2, "call": call})) == passed


GROUPS = (
    CIRCLES["barriers"],
    (("save_one", "barrier 02"), ("barrier 12",), ("barrier 02", "barrier 12")),
)
MUTATIONS = {
    "a text is posted after the others are read": (
        lockstep,
        'yield Post(f"{folder}/{call}/{rank}", text)',
        "pass",
    ),
    "an exchange keeps its number": (lockstep, "self._calls[folder] += 1", "self._calls[folder] = 1"),
    "nobody hears of a call of rank 0": (
        attendance,
        "self.pending.append(Announcement(what, call, {0: position}))",
        "pass",
    ),
    "a rank that waits at a step passes nothing": (
        attendance,
        " or self._asks_beyond(steps, rank)",
        "",
    ),
    "one's own text passes a call": (
        attendance,
        'counts.pop(f"{pending.what} of rank {self._log.rank}", None)',
        "pass",
    ),
    "a report about another call counts": (attendance, 'entry["passed"] == call', "True"),
    "the answer has the wrong number": (
        attendance,
        'answers/{rank}/{number}", answer',
        'answers/{rank}/{call}", answer',
    ),
    "a question is answered at once only": (steps, "if self.questions:", "if False:"),
    "a question is answered a step late": (steps, "if step <= self.latest]", "if step < self.latest]"),
    "a rank that asks does not report that it waits": (steps, "yield Wait()", "pass"),
    "rank 0 does not tell its steps": (attendance, "steps = self._latest_steps()", "steps = {}"),
    "a rank that is as far as rank 0 is beyond": (
        attendance,
        "count > leader_counts.get(name, 0)",
        "count >= leader_counts.get(name, 0)",
    ),
    "a call that was skipped is not seen by the watch": (
        calls,
        "own_call = own_call or skipping_call(own_snapshot, other_snapshot)",
        "pass",
    ),
    "a call that both have begun is missed": (calls, "begun.calls > (", "begun.calls >= ("),
    "the watch sees calls without the other rank": (
        calls,
        "or rank in begun.needs)",
        "or rank not in begun.needs)",
    ),
    "a rank that differs is not believed before all have answered": (steps, "break", "pass"),
    "a step is recorded after its question": (steps, "self.latest = step\n", "pass\n"),
    "the watch forgets the other side": (
        calls,
        "calls |= {rank: own_call, r: other_call}",
        "calls |= {rank: own_call}",
    ),
    "a rank that passes a call tells only rank 0": (attendance, "if self._has_subgroups():", "if False:"),
    "a circle of three ranks is not seen by the watch": (
        calls,
        "calls = calls or circle(snapshots, rank)",
        "pass",
    ),
    "a question that waits is not seen by the watch": (
        steps,
        "book.group.ranks if book.asks_at else ()",
        "()",
    ),
}


@contextlib.contextmanager
def mutated(module, right, wrong):
    source = inspect.getsource(module)
    assert source.count(right) == 1
    before = dict(vars(module))
    exec(compile(source.replace(right, wrong), module.__file__, "exec"), vars(module))
    try:
        yield
    finally:
        vars(module).update(before)


@pytest.mark.full
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_found(name):
    with mutated(*MUTATIONS[name]):
        try:
            groups = [Explorer(3, 4, True, False, job, pairs=True) for job in GROUPS]
            # Two ranks show most mistakes, and soon.
            jobs = Explorer(2, 2), *groups, Explorer(3, 3, programs=CIRCLE), Explorer(2, 3)
            problems = any(explorer.run().problems for explorer in jobs)
        except (AssertionError, KeyError) as error:
            problems = [repr(error)]
    assert problems
