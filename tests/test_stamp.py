"""stamp: when, with which versions and by which command."""

from __future__ import annotations

import re
import sys

import jax
import pytest

from jaxpar import _stamp


def test_the_time_is_now_or_what_makes_a_file_again(monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", _stamp.when())
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    assert _stamp.when() == "2001-09-09 01:46 UTC"


@pytest.mark.parametrize("epoch", ["", "now", "-1", "1e9", "9" * 12])
def test_another_epoch_is_refused(epoch, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    with pytest.raises(ValueError, match="is no number of seconds"):
        _stamp.when()


COMMANDS = {
    "a script": (["/home/me/train.py", "--lr", "0.1"], "train.py --lr 0.1"),
    "a module": (["/env/site-packages/jaxpar/__main__.py", "env"], "python -m jaxpar env"),
    "a console script": (["/env/bin/jaxpar", "parity", "spec.py"], "jaxpar parity spec.py"),
    "inline code": (["-c"], "-c"),
    "nothing": ([], ""),
    "several lines": (["x.py", "a\nb"], "x.py a b"),
    "a secret": (["x.py", "--api-key", "s3cret", "--lr", "1"], "x.py --api-key=... --lr 1"),
    "a secret with =": (["x.py", "--hub_token=s3cret"], "x.py --hub_token=..."),
    "a long one": (["x.py", "y" * 300], "x.py " + "y" * 194 + "…"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_the_command(case, monkeypatch):
    arguments, shown = COMMANDS[case]
    monkeypatch.setattr(sys, "argv", arguments)
    assert _stamp.command() == shown


def test_versions_are_of_what_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert f"jax {jax.__version__}" in _stamp.versions()
    assert "torch" not in _stamp.versions()
    assert _stamp.installed("no-such-package") == "not installed"


def test_a_line_has_all_three(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert re.fullmatch(r"1970-01-01 00:00 UTC · jaxpar [\d.]+, .*jax [\d.]+.* · train\.py", _stamp.line())
