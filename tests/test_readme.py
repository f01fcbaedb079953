"""Everything the README shows is run."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from processes import outputs, ranks

from jaxpar._cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
BLOCKS = FENCE.findall(README)
PYTHON = [code for language, code in BLOCKS if language == "python"]
OUTPUTS = [code for language, code in BLOCKS if language == ""]
IN_TORCH, IN_JAXPAR, VERBS = [code for _, code in FENCE.findall((ROOT / "docs/same_script.md").read_text())]


def run(code: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    return printed.getvalue()


def test_there_are_three_python_blocks():
    assert len(PYTHON) == 3
    assert {language for language, _ in BLOCKS} == {"sh", "diff", "python", ""}


def test_the_front_is_short_and_its_first_screen_has_the_commands_and_the_picture():
    lines = README.splitlines()
    assert len(lines) <= 200
    first = "\n".join(lines[:40])
    for part in ("make demo", "make test", "jaxpar port", "DataParallel(net)", "](docs/images/"):
        assert part in first, part


def test_the_quick_start_prints_what_it_says():
    assert run(PYTHON[0]) == OUTPUTS[0]
    assert len(PYTHON[0].strip().split("\n")) <= 10


@pytest.mark.full
def test_torch_and_jaxpar_print_the_same():
    torch = pytest.importorskip("torch")
    import torch_ref

    torch.set_num_threads(1)
    with torch_ref.pretend(8):
        theirs = run(IN_TORCH)
    ours = run(IN_JAXPAR)
    assert ours == theirs
    assert ours.count("epoch") == 3


def test_the_verbs():
    assert run(VERBS) == "(10, 3)\n"


@pytest.mark.slow
def test_one_script_for_one_process_and_several():
    printed = re.fullmatch(r"loss (\d\.\d\d) after (\d+) updates\n", run(PYTHON[1]))
    assert printed is not None
    assert float(printed[1]) < 3
    assert int(printed[2]) == 2 * (1000 // 64)
    both = outputs(ranks(2, "import jaxpar\n" + PYTHON[1], devices=2))
    assert [out.count("after 14 updates") for out in both] == [1, 0]


def test_the_wrong_epsilon_is_named():
    pytest.importorskip("torch")
    assert run(PYTHON[2]) == OUTPUTS[1]


def test_the_commands_exist():
    shell, port = [code for language, code in BLOCKS if language == "sh"]
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make (\w+)", shell, re.M)
    assert commands == ["demo", "test"]
    for target in [*commands, "benchmark"]:
        assert re.search(rf"^{target}:", makefile, re.M)
    options = {name for parameter in cli.commands["port"].params for name in parameter.opts}
    assert port.startswith("jaxpar port ")
    assert set(re.findall(r"--\w+", port)) <= options


GUIDES = ["README.md", "CONTRIBUTING.md", "tests/README.md", "examples/README.md", "torch_ref/README.md"]
ROOMS = [f"jaxpar/{room}/README.md" for room in ("_parallel", "_training", "distributed")]


@pytest.mark.parametrize("guide", GUIDES)
def test_links_lead_somewhere(guide):
    path = ROOT / guide
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.full
@pytest.mark.parametrize("guide", ["CONTRIBUTING.md", "tests/README.md", *ROOMS])
def test_files_and_commands_that_a_guide_names_are_there(guide):
    path = ROOT / guide
    text, makefile = path.read_text(), (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make (\w+)", text):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for name in re.findall(r"`([\w./]+\.(?:py|md))`", text):
        found = [*path.parent.rglob(name), *(ROOT / "tests").rglob(name)]
        assert (ROOT / name).exists() or found, name
