"""The page of `make gpu`: every side has a row with its numbers, or with the reason why it has none."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "gpu"))

import host  # noqa: E402
import page  # noqa: E402
import run  # noqa: E402
from ask import Answer, Ask, slowest  # noqa: E402
from page import Result  # noqa: E402
from side import HAND, SIDES, Step, measure  # noqa: E402

OURS = "jaxpar DataParallel"
ASK = Ask(HAND, "ResNet-50", "tf32", 2, 100, 20)
"""200 images a step."""


def visits(*seconds: float) -> tuple[Answer, ...]:
    return tuple(Answer(s, 6.9, 3 * 2**30) for s in seconds)


def rows(*results: Result) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in page.table(results).splitlines()[2:]]


def ours(**changes) -> Ask:
    return dataclasses.replace(ASK, side=OURS, **changes)


def test_a_row_has_the_rate_the_memory_and_the_ratios():
    hand, mine = rows(Result(ASK, visits(0.1, 0.2, 0.4)), Result(ours(), visits(0.1)))
    assert hand[:3] == ["ResNet-50, 100 a device", "tf32", HAND]
    assert hand[3:8] == ["1,000 images/s", "150%", "200.00", "6.900", "3.00 GiB"]
    assert mine[3] == "2,000 images/s"
    assert [hand[8], mine[8]] == ["1.000", "2.000"]
    assert mine[9:] == ["-"] * 4  # those that did not run are no reference


def test_tokens_are_counted_and_not_rows():
    (row,) = rows(Result(dataclasses.replace(ASK, model="GPT-2 124M"), visits(0.1)))
    assert row[3] == "2,048,000 tokens/s"


def test_a_ratio_is_to_the_same_model_and_precision():
    (_, mine) = rows(Result(ASK, visits(0.1)), Result(ours(precision="bfloat16"), visits(0.1)))
    assert mine[8] == "-"


FAILED = {
    "an error": ((Answer(why="RuntimeError: out of memory"),), "RuntimeError: out of memory"),
    "after a good visit": ((*visits(0.1), Answer(why="it died")), "it died"),
    "a bar and lines": ((Answer(why="a|b\n  c"),), "a/b c"),
    "never asked": ((), page.NOT_YET),
}


@pytest.mark.parametrize(("answers", "why"), FAILED.values(), ids=FAILED)
def test_a_side_without_a_number_says_why(answers, why):
    failed, hand = rows(Result(ours(), answers), Result(ASK, visits(0.1)))
    assert failed[3] == why
    assert len(failed) == len(hand)
    assert set(failed[4:]) == {"-"}


def test_a_long_reason_is_cut():
    (row,) = rows(Result(ASK, (Answer(why="x" * 1000),)))
    assert row[3] == "x" * page.LONGEST + "..."


def test_memory_that_nobody_counts_is_a_dash():
    (row,) = rows(Result(ASK, (Answer(0.1, 6.9, None),)))
    assert row[7] == "-"


def test_of_several_processes_the_slowest_and_the_fullest_count():
    assert slowest([Answer(1.0, 2.0, 5), Answer(3.0, 4.0, 1)]) == Answer(3.0, 3.0, 5)
    assert slowest([Answer(1.0), Answer(why="rank 1 died")]).why == "rank 1 died"


def test_the_page_names_machine_tests_and_other_benchmarks():
    text = page.page(
        "2026-11-23", {"devices": "2 of 2 x H100"}, [], {"tests/gpu": "9 passed"}, {"x": "y"}, small=True
    )
    for words in ("date: 2026-11-23", "2 of 2 x H100", "`tests/gpu`: 9 passed", "### x", page.SMALL):
        assert words in text
    assert page.SMALL not in page.page("", {}, [], {}, {}, small=False)


def test_steps_are_timed_between_two_waits():
    calls = []
    step = Step(lambda: calls.append("step"), lambda loss: calls.append("wait") or 7.0, lambda: 5)
    answer = measure(step, 4)
    assert (answer.loss, answer.memory) == (7.0, 5)
    assert calls == ["step", "wait"] * 3 + (["step"] * 4 + ["wait"]) * 3


def test_a_process_that_died_leaves_its_last_line(tmp_path):
    assert run.answered(tmp_path, 1, None, "one\n\x1b[1mlast\x1b[0m\n\n").why.endswith("last line: last")
    assert run.answered(tmp_path, 1, "no answer after 15 minutes", "one").why == "no answer after 15 minutes"


def test_a_host_without_a_driver_has_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "DRIVERS", (str(tmp_path / "none"),))
    assert not host.has_gpu()
    monkeypatch.setattr(host, "DRIVERS", (str(tmp_path / "none"), str(tmp_path)))
    assert host.has_gpu()


def test_without_a_gpu_it_ends_with_2_and_one_line(monkeypatch, capsys):
    monkeypatch.setattr(host, "has_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert run.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_every_side_and_every_other_benchmark_is_there():
    here = ROOT / "benchmarks" / "gpu"
    for side in SIDES.values():
        assert f"def {side.make}(" in (here / f"{side.module}.py").read_text()
    assert run.OTHERS.keys() == run.SHORT.keys()
    for path in [*(f"benchmarks/{name}" for name in run.OTHERS), *run.ORDINARY]:
        assert (ROOT / path).exists(), path


SIZES = {"ResNet-50": 25_557_032, "GPT-2 124M": 124_475_904}
"""Parameters. GPT-2's words are rounded up to 50304."""


@pytest.mark.parametrize("name", SIZES)
def test_torchs_models_have_the_published_number_of_parameters(name):
    torch = pytest.importorskip("torch")
    import torch_models
    from ask import MODELS

    make = torch_models.resnet if name == "ResNet-50" else torch_models.GPT
    with torch.device("meta"):
        assert sum(p.numel() for p in make(MODELS[name]).parameters()) == SIZES[name]


@pytest.mark.full
@pytest.mark.parametrize("name", SIZES)
def test_jaxs_models_have_as_many(name):
    import jax
    import jax_steps
    from flax import nnx

    ask = dataclasses.replace(ASK, model=name)
    net = nnx.eval_shape(lambda: jax_steps.model_of(ask)[0])
    counts = [x.size for x in jax.tree.leaves(nnx.state(net, nnx.Param))]
    unused = 2 * 768 + 2 if name == "GPT-2 124M" else 0  # BERT's answer
    assert sum(counts) - unused == SIZES[name]
