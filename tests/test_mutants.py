"""The planted bugs of benchmarks/mutants: each fits its file, and its tests are there."""

from __future__ import annotations

import ast
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.mutants import counting, drawn, page, run, tree  # noqa: E402
from benchmarks.mutants.plant import MisfitError, Plant  # noqa: E402
from benchmarks.mutants.plants import PLANTS  # noqa: E402
from benchmarks.mutants.tree import Result  # noqa: E402

ROOMS = (
    *("_checkpointer", "_cli", "_devices", "_metrics", "_parallel", "_rulebook", "_tools", "_training"),
    *("comm_hooks", "data", "distributed", "distributions", "nn", "optim", "parity", "random"),
)


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """The tests of a file."""
    tree = ast.parse(file.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("file", sorted({plant.file for plant in PLANTS}))
def test_every_plant_fits_its_file(file):
    content = (ROOT / file).read_text()
    for plant in PLANTS:
        if plant.file == file:
            ast.parse(plant.apply(content))  # a mistake that a programmer makes, and no typing error


def problem(plant):
    """What is wrong with a plant's tests, if anything."""
    if not plant.test_files():
        return "no tests"
    for word in plant.arguments():
        file, _, name = word.partition("::")
        if not file.startswith("tests/"):
            continue
        if not (ROOT / file).exists():
            return f"there is no {file}"
        if name and name.partition("[")[0] not in names_in(ROOT / file):
            return f"there is no {word}"
    arguments = plant.arguments()
    if "-k" in arguments:
        wanted = arguments[arguments.index("-k") + 1].replace("(", " ").replace(")", " ").split()
        texts = [(ROOT / file).read_text().lower() for file in plant.test_files() if (ROOT / file).is_file()]
        words = [word.lower() for word in wanted if word not in ("and", "or", "not")]
        if texts and not any(word in text for word in words for text in texts):
            return f"-k {' '.join(wanted)} selects nothing"
    return None


def test_the_tests_of_every_plant_are_there():
    assert {plant: problem(plant) for plant in PLANTS if problem(plant)} == {}


@pytest.mark.parametrize(
    ("tests", "text"),
    [
        ("", "no tests"),
        ("tests/test_nowhere.py", "there is no tests/test_nowhere.py"),
        ("tests/test_mutants.py::test_nothing[1]", r"there is no tests/test_mutants.py::test_nothing[1]"),
        ('tests/test_suite.py -k "zebra or unicorn"', "-k zebra or unicorn selects nothing"),
    ],
)
def test_tests_that_are_not_there_are_found(tests, text):
    assert problem(Plant("a", "b", "c", tests)) == text


def test_every_room_has_plants():
    rooms = {plant.file.split("/")[1] for plant in PLANTS if plant.file.startswith("jaxpar/")}
    assert rooms >= set(ROOMS)
    assert any(plant.file.startswith("torch_ref/") for plant in PLANTS)
    assert sum(not plant.equivalent for plant in PLANTS) >= 150
    assert len(set(PLANTS)) == len(PLANTS)


@pytest.mark.parametrize(
    ("text", "replacement", "nth", "want"),
    [
        ("b", "x", 0, "a x a"),
        ("a", "x", 1, "x b a"),
        ("a", "x", 2, "a b x"),
        ("a", "x", 0, "occurs 2 times"),
        ("a", "x", 3, "occurs 2 times and nth is 3"),
        ("c", "x", 0, "occurs 0 times"),
        ("b", "b", 0, "replaced by itself"),
    ],
)
def test_a_plant_is_put_where_it_says(text, replacement, nth, want):
    plant = Plant("file", text, replacement, "", nth)
    if " x" in want or want.startswith("x"):
        assert plant.apply("a b a") == want
    else:
        with pytest.raises(MisfitError, match=want):
            plant.apply("a b a")


def test_arguments_are_pytests():
    plant = Plant("f", "a", "b", 'tests/test_a.py "tests/test_b.py::test[x y]" -k "one or two"')
    assert plant.arguments() == ["tests/test_a.py", "tests/test_b.py::test[x y]", "-k", "one or two"]
    assert plant.test_files() == ["tests/test_a.py", "tests/test_b.py"]


def test_the_page_counts_and_escapes():
    one, two, three = (
        Plant("jaxpar/x.py", f"a | {i}", "b", "tests/t.py", 0, "so" * (i == 3)) for i in (1, 2, 3)
    )
    text = page.write([one, two, three], {one: Result("killed", "tests/t.py::t"), two: Result("survived")})
    assert "2 planted: 1 killed, 1 survived; 1 equivalent." in text
    assert r"| `x.py` | `a \| 1` becomes `b` | killed | `t.py::t` |" in text
    assert r"| `x.py` | `a \| 2` becomes `b` | survived | `t.py` |" in text
    assert r"| `jaxpar/x.py` | `a \| 3` becomes `b` | so |" in text


RUN = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from benchmarks.mutants import run, tree
from benchmarks.mutants.plant import Plant

here = Path(sys.argv.pop(1))
run.ROOT = tree.ROOT = here
run.KEPT = here / ".cache" / "mutants.jsonl"
run.PLANTS = [Plant("one.py", "1", to, f"tests/test_{{to}}.py") for to in ("quick", "slow")]
try:
    raise SystemExit(run.main())
except KeyboardInterrupt:
    raise SystemExit("stopped") from None
"""
QUICK = "def test():\n    import one\n"
SLOW = """
import os, pathlib, time

def test():
    pathlib.Path({!r}).write_text(f"{{os.getpid()}} ")
    time.sleep(600)
"""


def wait_until(happened):
    end = time.monotonic() + 180
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def begun(tmp_path):
    """A run of two plants whose second never ends, and the process of its test. Started as a shell starts
    what is in the background: with SIGINT ignored."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "one.py").write_text("X = 1\n")
    (tmp_path / "tests" / "test_quick.py").write_text(QUICK)
    there = tmp_path / ".cache" / "process"
    there.parent.mkdir()
    (tmp_path / "tests" / "test_slow.py").write_text(SLOW.format(str(there)))
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    with subprocess.Popen(
        [*ignoring, sys.executable, "-c", RUN.format(root=str(ROOT)), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path / ".cache")},
    ) as process:
        wait_until(lambda: there.exists() and there.read_text().endswith(" "))
        yield process, int(there.read_text())
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_run_and_keeps_what_it_has_seen(begun, tmp_path, number):
    process, test = begun
    process.send_signal(number)
    assert process.wait(20) == 1
    assert "stopped" in process.stderr.read()
    wait_until(lambda: not Path(f"/proc/{test}").exists())
    assert list((tmp_path / ".cache").glob("mutants-*")) == []  # the copy
    entries = [json.loads(line) for line in (tmp_path / ".cache" / "mutants.jsonl").read_text().splitlines()]
    assert [entry["kind"] for entry in entries] == ["killed"]


def test_the_tests_that_a_summary_names_are_read_whole():
    lines = [
        "FAILED tests/test_a.py::test_row[x - (y - 1)] - AssertionError: assert [1] == [2]",
        "ERROR tests/test_b.py::test_plain - fixture 'z' not found",
        "FAILED tests/test_c.py::test_alone",
    ]
    names = [
        "tests/test_a.py::test_row[x - (y - 1)]",
        "tests/test_b.py::test_plain",
        "tests/test_c.py::test_alone",
    ]
    assert tree._failed("\n".join(lines)) == names


def test_a_plant_whose_tests_are_all_slow_is_run_against_them(monkeypatch):
    asked = []

    def pytest_(self, arguments, seconds):
        asked.append(arguments)
        return (5, "1 deselected") if "-m" in arguments else (1, "FAILED tests/test_a.py::test_slow")

    monkeypatch.setattr(tree.Tree, "_pytest", pytest_)
    result = tree.Tree.test(object.__new__(tree.Tree), ["tests/test_a.py", "-k", "slow"], 9)
    assert (result.kind, result.by) == ("killed", "tests/test_a.py::test_slow")
    assert len(asked) == 2


def test_only_what_was_seen_to_fail_by_the_plant_is_a_kill(tmp_path, monkeypatch):
    """Also of an earlier run, which ended before it could look."""
    monkeypatch.setattr(run, "KEPT", tmp_path / "kept.jsonl")
    ill, well, sure = (Plant(name, "a", "b", f"tests/{name}.py") for name in ("ill", "well", "sure"))
    results = {p: Result("killed", p.tests, p is sure) for p in (ill, well, sure)}
    asked = []

    class Healthy:
        def failing(self, tests, seconds):
            asked.extend(tests)
            return [ill.tests]

    keys = {p: p.file for p in results}
    checked = run.check_health(Healthy(), results, keys, 1.0)
    assert asked == [ill.tests, well.tests]
    assert {p.file: r.kind for p, r in checked.items()} == {
        "ill": "broken",
        "well": "killed",
        "sure": "killed",
    }
    assert run.read() == {"well": Result("killed", well.tests, True)}


MUTATED = {
    "a = b + c": ["a = b - c", "pass"],
    "x(a, b)": ["x(b, a)", "pass"],
    "x(a, a)": ["pass"],
    "if a < b: x()": ["if not (a < b): x()", "if a <= b: x()", "if a < b: pass"],
    "while a is not b: break": [
        "while not (a is not b): break",
        "while a is b: break",
        "while a is not b: pass",
    ],
    "a = b and c or d": ["a = b or c or d", "a = b and c and d", "pass"],
    "def f(): return 1": ["def f(): return None", "def f(): return 2"],
    "def f(x: int = 0) -> int: return None": ["def f(x: int = 1) -> int: return None"],
    "a = True if b else 2.5": [
        "a = False if b else 2.5",
        "a = True if b else 3.5",
        "a = True if not (b) else 2.5",
        "pass",
    ],
    "a = [b for b in c if b]": ["a = [b for b in c if not (b)]", "pass"],
    "'text'": [],
    "f'{a + b}'": ["pass"],
    "if TYPE_CHECKING: import a": [],
    "ä = 'ö' * b": ["ä = 'ö' / b", "pass"],
}


@pytest.mark.parametrize("line", MUTATED)
def test_what_a_line_can_become(line):
    edits = drawn.Source(line + "\n").edits()
    content = line.encode()
    changed = [(content[:first] + new.encode() + content[last:]).decode() for _, first, last, new in edits]
    assert sorted(changed) == sorted(MUTATED[line])
    for text in changed:
        ast.parse(text)


SAMPLE = '''
def f(x):
    """A docstring."""
    if x > 1:
        return x
    y = x + 1
    return y


def g(x):
    y = x + 1
    return f(y)
'''
RUNS = {
    ("jaxpar/sample.py", "f:5"): {
        "tests/a.py::t[1]": (9, 1.0),
        "tests/a.py::t[2]": (3, 1.0),
        "tests/b.py::u": (5, 58.0),
        "tests/d.py::w": (7, 2.0),
    },
    ("jaxpar/sample.py", "g:1"): {"tests/c.py::v": (1, 99.0)},
}


def test_a_seed_draws_the_same_mutants_with_the_tests_that_run_them(tmp_path):
    (tmp_path / "jaxpar").mkdir()
    (tmp_path / "jaxpar" / "sample.py").write_text(SAMPLE)
    possible = drawn.frame(tmp_path)
    assert len(possible) == 12
    plants = drawn.draw(possible, 12, 3, RUNS, tmp_path)
    assert plants == drawn.draw(possible, 12, 3, RUNS, tmp_path)
    assert plants != drawn.draw(possible, 12, 4, RUNS, tmp_path)
    assert len({plant.apply(SAMPLE) for plant in plants}) == 12
    # The second of two equal lines is changed in the second function.
    second = [plant for plant in plants if plant.text == "    y = x + 1" and plant.nth == 2]
    assert {plant.tests for plant in second} == {'"tests/c.py::v"'}
    first = [plant for plant in plants if plant.text == "    y = x + 1" and plant.nth == 1]
    assert {plant.tests for plant in first} == {'"tests/a.py::t[2]" "tests/b.py::u"'}


def test_a_survivor_with_an_explanation_is_an_equivalent(monkeypatch):
    key = ("jaxpar/sample.py", "y = x + 1", "y = x - 1")
    monkeypatch.setitem(drawn.EQUIVALENTS, key, "nobody reads y")
    plants = [drawn.mutant(key[0], i, SAMPLE, RUNS) for i in range(12)]
    assert {plant.equivalent for plant in plants if plant.replacement == "    y = x - 1"} == {
        "nobody reads y"
    }
    assert sum(not plant.equivalent for plant in plants) == 10


def test_statements_are_noted_when_they_run(monkeypatch, tmp_path):
    monkeypatch.setattr(counting, "ROOT", tmp_path)
    monkeypatch.setattr(counting, "recorded", {})
    monkeypatch.setitem(sys.modules, "sitecustomize", counting)
    names = {}
    exec(counting.noted(SAMPLE.encode(), str(tmp_path / "jaxpar" / "sample.py")), names)
    assert counting.take() == {}
    assert names["f"](1) == 2
    assert counting.take() == {"jaxpar/sample.py": ["f:2", "f:4", "f:5"]}
    names["g"](1)
    assert counting.take() == {"jaxpar/sample.py": ["f:2", "f:3", "g:1", "g:2"]}


def test_the_page_of_drawn_mutants():
    one, two = (Plant("jaxpar/x.py", f"a{i}", "b", "tests/t.py", 0, "so" * (i == 2)) for i in (1, 2))
    text = page.drawn([one, two], {one: Result("killed", "tests/t.py::t")}, 1234, 100, 7)
    assert text.startswith(page.DRAWN)
    assert "--drawn 100 --seed 7` draws 100 of the 1,234" in text
    assert "Of the first 2: 1 planted: 1 killed; 1 equivalent." in text
    assert "| `x.py` | `a2` becomes `b` | survived | `so` |" in text
