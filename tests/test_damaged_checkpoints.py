"""Damaged checkpoints: nothing that was not saved is ever restored."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorstore as ts

from jaxpar import Checkpointer
from jaxpar.errors import CheckpointError

rng = np.random.RandomState(0)
TREE = {f"leaf {i}": rng.randn(400, i + 1).astype(np.float32) for i in range(4)} | {"epoch": 3}
BLANK = jax.tree.map(lambda x: x * 0, TREE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with the steps 0 and 1, which nobody writes to."""
    folder = tmp_path_factory.mktemp("whole")
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, tree=TREE)
        checkpointer.save(1, tree=TREE | {"epoch": 4})
    return folder


@pytest.fixture
def run(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "run"))


def restored(run, *step):
    """The step and what was warned of, everything in it being right."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, trees = Checkpointer(run).restore(*step, tree=BLANK)
    assert all(warning.filename == __file__ for warning in caught)  # the caller's line is shown
    want = TREE | {"epoch": 3 + found}
    assert trees["tree"].keys() == want.keys()
    for name, x in trees["tree"].items():
        np.testing.assert_array_equal(x, want[name])
    return found, [str(warning.message) for warning in caught]


def files(run):
    """The manifest of step 1, and the file of each leaf."""
    return sorted(p for p in (run / "1").rglob("*") if p.is_file() and p not in notes(run))


def notes(run):
    """What orbax writes beside the leaves."""
    return sorted((run / "1" / "arrays").glob("**/[._]*"))


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_whole_run_has_nothing_to_say(run):
    assert restored(run) == (1, [])
    assert Checkpointer(run).latest_valid() == 1


def test_every_flipped_bit_of_manifest_and_leaves_is_noticed(run):
    chosen, checkpointer = random.Random(0), Checkpointer(run)
    assert len(files(run)) == 1 + 4
    for path in files(run):
        for _ in range(3):
            before = path.read_bytes()
            flip(path, chosen.randrange(8 * len(before)))
            step, (message,) = restored(run)
            assert step == 0
            assert message.startswith("Checkpointer.restore: step 1 is damaged and is passed over: ")
            assert " has other bytes than were written" in message  # the digest, and not what follows from it
            assert len(message) < 400
            with pytest.warns(UserWarning, match="step 1 is damaged"):
                assert checkpointer.latest_valid() == 0
            path.write_bytes(before)
    assert restored(run) == (1, [])


def test_the_message_names_the_leaf_and_the_file(run):
    found = set()
    for path in files(run):
        name = path.relative_to(run / "1").as_posix()
        for at in np.linspace(0.05, 0.95, 12 if path.stat().st_size > 500 else 0):
            flip(path, bit := int(at * 8 * path.stat().st_size))
            _, (message,) = restored(run)
            assert f"{name} " in message
            found |= set(re.findall(r"tree: \['(leaf \d)'\]", message))
            flip(path, bit)
    assert found == {"leaf 0", "leaf 1", "leaf 2", "leaf 3"}


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b"")


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


def flip_some(path):
    size = path.stat().st_size
    for bit in random.Random(0).sample(range(8 * size), 20):
        flip(path, bit)


@pytest.mark.parametrize("harm", [flip_some, cut, lengthen, empty, Path.unlink])
def test_what_orbax_notes_beside_the_leaves_changes_nothing(harm, run):
    assert len(notes(run)) == 1 + 4  # the tree, and the header of each leaf
    for path in notes(run):
        harm(path)
        assert restored(run) == (1, [])
        assert Checkpointer(run).latest_valid() == 1


@pytest.mark.parametrize("harm", [cut, lengthen, empty, Path.unlink])
def test_files_that_are_cut_longer_missing_or_empty_are_noticed(harm, run):
    for path in files(run):
        before = path.read_bytes()
        harm(path)
        step, (message,) = restored(run)
        assert step == 0
        assert re.search("is missing|bytes instead of|other bytes than", message)
        with pytest.raises(
            CheckpointError, match=r"step 1 in .* is damaged: .* takes the newest one that is not"
        ):
            restored(run, 1)
        path.write_bytes(before)


def test_files_that_others_put_into_a_step_do_not_matter(run):
    """Nothing is read from them, so nothing in them can be wrong."""
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt", "arrays/commit_success.txt"):
        (run / "1" / name).write_bytes(b"\xff{")
    assert restored(run) == (1, [])
    with Checkpointer(run) as checkpointer:
        assert checkpointer.save(2, tree=TREE)


def edited(run, change):
    """Step 1 with another manifest, sealed as if that had been written."""
    path = run / "1" / "manifest"
    manifest = json.loads(path.read_text().split("\n", 1)[1])
    change(manifest)
    text = json.dumps(manifest)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


def leaf_folder(run, i):
    return run / "1" / "arrays" / f"tree.['leaf {i}']"


def test_other_values_in_healthy_files_are_noticed(run):
    """The leaves' digests are of the memory that was saved, whatever the files say of themselves."""
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{leaf_folder(run, 2)}/"}}
    array = ts.open(spec).result()
    np.testing.assert_array_equal(array.read().result(), TREE["leaf 2"])
    array[7, 1] = np.nextafter(array[7, 1].read().result(), np.float32(9))
    words = "arrays/tree.['leaf 2']/0.0 has other bytes than were written (leaf tree: ['leaf 2'])."
    assert restored(run) == (0, [PASSED + words])


PASSED = "Checkpointer.restore: step 1 is damaged and is passed over: "
GIANT = [1 << 40, 1 << 20]


def test_a_giant_shape_is_refused_before_anything_is_allocated(run):
    edited(run, lambda manifest: manifest["arrays"]["tree"]["['leaf 1']"].update(shape=GIANT))
    with pytest.raises(
        CheckpointError, match=r"leaf 1'\] has shape \(400, 2\) here and \(1099511627776, 1048576\)"
    ):
        restored(run)
    with pytest.warns(UserWarning, match=r"step 1 is damaged: .*leaf 1"):
        assert Checkpointer(run).latest_valid() == 0  # which compares with no object


@pytest.mark.parametrize("what", ["shape", "chunks"])
def test_a_giant_shape_in_an_array_header_is_not_looked_at(what, run):
    path = leaf_folder(run, 1) / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | {what: GIANT}))
    assert restored(run) == (1, [])


def test_a_giant_file_is_not_read(run):
    with (leaf_folder(run, 1) / "0.0").open("r+b") as file:
        file.truncate(1 << 40)  # without a byte on the disk
    step, (message,) = restored(run)
    assert (step, "1099511627776 bytes instead of 3200" in message) == (0, True)


def test_a_missing_leaf_is_noticed(run):
    shutil.rmtree(leaf_folder(run, 1))
    step, (message,) = restored(run)
    assert (step, len(message) < 400) == (0, True)


def test_all_damaged_leaves_are_named(run):
    for i in (0, 3):
        cut(leaf_folder(run, i) / "0.0")
    _, (message,) = restored(run)
    assert re.findall(r"tree: \['(leaf \d)'\]", message) == ["leaf 0", "leaf 3"]


def test_a_damaged_leaf_of_another_item_counts(tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        for step in (0, 1):
            checkpointer.save(step, tree=TREE | {"epoch": 3 + step}, other=np.ones(3))
    flip(tmp_path / "1" / "arrays" / "other.value" / "0", 5)
    step, (message,) = restored(tmp_path)
    assert (step, "leaf other: value" in message) == (0, True)


def test_where_every_step_is_damaged_nothing_is_restored(run):
    for step in "01":
        (run / step / "manifest").write_text("")
    damaged = "step . is damaged"
    with (
        pytest.warns(UserWarning, match=damaged),
        pytest.raises(CheckpointError, match=r"every step in .* is damaged: 0, 1"),
    ):
        Checkpointer(run).restore(tree=BLANK)
    with pytest.warns(UserWarning, match=damaged):
        assert Checkpointer(run).latest_valid() is None


def test_training_writes_over_the_step_that_it_could_not_resume(run):
    cut(files(run)[0])
    damaged = files(run)[0].read_bytes()
    with Checkpointer(run) as checkpointer:
        with pytest.warns(UserWarning, match="step 1 is damaged"):
            assert checkpointer.restore(tree=BLANK).step == 0
        with pytest.warns(
            UserWarning, match=r"step 1 in .* is damaged, and was renamed to 1.damaged"
        ) as said:
            assert checkpointer.save(1, tree=TREE | {"epoch": 4})
        assert said[0].filename == __file__
    assert restored(run) == (1, [])
    aside = run / "1.damaged"
    assert (aside / files(run)[0].relative_to(run / "1")).read_bytes() == damaged


def test_what_is_in_a_manifest_is_never_executed(run):
    def change(manifest):
        manifest["states"][0]["tree"]["['epoch']"]["value"] = {"eval": "__import__('os').abort()"}

    edited(run, change)
    step, (message,) = restored(run)
    assert (step, "eval" in message) == (0, True)


# --------------------------------------------------------------------- what cannot be read is never removed


def test_a_step_that_could_not_be_read_once_is_kept(run):
    manifest, away = run / "1" / "manifest", run / "1" / "away"
    manifest.rename(away)
    with Checkpointer(run, max_to_keep=1) as checkpointer:
        with pytest.warns(UserWarning, match="step 1 is damaged and is passed over: manifest is missing"):
            assert checkpointer.restore(tree=BLANK).step == 0
        away.rename(manifest)
        with pytest.raises(CheckpointError, match="step 1 exists"):
            checkpointer.save(1, tree=TREE)
        assert restored(run) == (1, [])
        manifest.rename(away)
        checkpointer.save(2, tree=TREE)  # removes step 0, which is readable and the oldest
        checkpointer.save(3, tree=TREE)
    away.rename(manifest)
    assert sorted(p.name for p in run.iterdir()) == [".lock", "1", "3"]
    assert Checkpointer(run).restore(1, tree=BLANK).step == 1


def test_a_disk_that_fails_to_read_is_damage_and_removes_nothing(run, monkeypatch):
    def fail(path, dtype):
        if path == leaf_folder(run, 2) / "0.0":
            raise OSError(errno.EIO, "Input/output error")
        return read(path, dtype)

    read = np.fromfile
    monkeypatch.setattr(np, "fromfile", fail)
    step, (message,) = restored(run)
    assert step == 0
    assert (
        message
        == PASSED + "arrays/tree.['leaf 2']/0.0 cannot be read: Input/output error (leaf tree: ['leaf 2'])."
    )
    monkeypatch.undo()
    assert restored(run) == (1, [])


@pytest.mark.parametrize("found", [1, 7])
def test_another_format_is_refused_and_kept(found, run):
    if found == 1:  # whose manifest was a folder
        (run / "1" / "manifest").unlink()
        (run / "1" / "manifest").mkdir()
        (run / "1" / "manifest" / "metadata").write_text('{"format": 1}')
    else:
        edited(run, lambda manifest: manifest.update(format=found))
    kept = {path: path.read_bytes() for path in files(run)}
    checkpointer = Checkpointer(run, max_to_keep=1)
    words = rf"1 has format {found}, and this version of jaxpar knows format 2 only. The step is not damaged"
    for read in (
        lambda: checkpointer.restore(tree=BLANK),
        lambda: checkpointer.restore(1, tree=BLANK),
        checkpointer.latest_valid,
        lambda: checkpointer.save(1, tree=TREE),
    ):
        with pytest.raises(CheckpointError, match=words):
            read()
    with checkpointer:
        for step in (2, 3):
            checkpointer.save(step, tree=TREE)
    assert sorted(p.name for p in run.iterdir()) == [".lock", "1", "3"]
    assert {path: path.read_bytes() for path in files(run)} == kept


@pytest.mark.parametrize("what", ["without a manifest", "an empty folder", "a folder of the user's"])
def test_the_step_before_is_restored_where_the_newest_is(what, run):
    newest = run / "5"
    if what == "without a manifest":
        shutil.copytree(run / "1", newest)
        (newest / "manifest").unlink()
    else:
        newest.mkdir()
    if what == "a folder of the user's":
        (newest / "notes.txt").write_text("mine")
    step, (message,) = restored(run)
    assert step == 1
    assert "step 5 is damaged and is passed over" in message
    assert re.search("manifest is missing|was not written by jaxpar.Checkpointer", message)
    with Checkpointer(run, max_to_keep=1) as checkpointer:
        with pytest.raises(CheckpointError, match=r"step 5 in .* is damaged"):
            checkpointer.restore(5, tree=BLANK)
        with pytest.warns(UserWarning, match="step 5 is damaged"):
            assert checkpointer.latest_valid() == 1
        checkpointer.save(6, tree=TREE)
        checkpointer.save(7, tree=TREE)
    assert sorted(p.name for p in run.iterdir()) == [".lock", "5", "7"]
    with Checkpointer(run) as checkpointer, pytest.warns(UserWarning, match=r"renamed to 5\.damaged"):
        checkpointer.save(5, tree=TREE | {"epoch": 8})
    assert Checkpointer(run).restore(5, tree=BLANK).trees["tree"]["epoch"] == 8
    if what == "a folder of the user's":
        assert (run / "5.damaged" / "notes.txt").read_text() == "mine"


def test_a_name_is_not_taken_twice_for_what_is_set_aside(run):
    for name in ("1.damaged", "1.damaged-1"):
        (run / name).mkdir()
    cut(files(run)[0])
    with Checkpointer(run) as checkpointer, pytest.warns(UserWarning, match=r"renamed to 1\.damaged-2"):
        checkpointer.save(1, tree=TREE)


def test_folders_whose_names_look_like_numbers_are_no_steps(run):
    for name in ("²", "٣", "007", "-1", "1e3", "5 notes.tmp"):
        (run / name).mkdir()
    assert restored(run) == (1, [])
    with Checkpointer(run, max_to_keep=1) as checkpointer:
        checkpointer.save(2, tree=TREE | {"epoch": 5})
    assert restored(run) == (2, [])
    assert {"²", "٣", "007", "-1", "1e3", "5 notes.tmp"} < {path.name for path in run.iterdir()}


@pytest.mark.long
@pytest.mark.slow
def test_the_benchmark_of_what_survives():
    """It kills, damages and restores at random; a few of each here."""
    program = Path(__file__).resolve().parents[1] / "benchmarks" / "checkpoints.py"
    few = {"kills": 2, "flips": 6, "damaged": 6, "failures": 3, "megabytes": 4, "rounds": 1}
    options = [f"--{name}={n}" for name, n in few.items()]
    ended = subprocess.run([sys.executable, program, *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"(\d+) of (\d+) (?:restored|named)", ended.stdout) == [(n, n) for n in "2663"]
    assert re.findall(r"step kept (\d+) of (\d+)", ended.stdout) == [(n, n) for n in "663"]
    assert ended.stdout.count("step 3 refused; 3 of 3 earlier steps right") == 2


@pytest.mark.parametrize("how", ["rename", "copy"])
def test_a_renamed_step_is_not_believed(how, run):
    move = {"rename": shutil.move, "copy": shutil.copytree}[how]
    move(run / "0", run / "9")
    number, texts = restored(run)
    assert number == 1
    assert texts == [
        "Checkpointer.restore: step 9 is damaged and is passed over: it holds step 0: the folder was renamed "
        "or copied."
    ]
    with pytest.raises(CheckpointError, match="it holds step 0: the folder was renamed or copied"):
        Checkpointer(run).restore(9, tree=BLANK)


def sealed(run, text):
    """Write a manifest with the right digest."""
    seal = hashlib.sha256(text.encode()).hexdigest()
    (run / "1" / "manifest").write_text(f"{seal}\n{text}")


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, "[]", "{}", "null", '"', '{"format": 2}'])
def test_a_sealed_manifest_that_makes_no_sense(text, run):
    sealed(run, text)
    with pytest.raises(
        CheckpointError, match=r"step 1 .* is damaged: (its manifest makes no sense|it holds step None)"
    ):
        Checkpointer(run).restore(1, tree=BLANK)


@pytest.mark.parametrize("file", ["/etc/hostname", "../0/manifest", "arrays/../../0/manifest"])
def test_a_file_outside_of_the_step(file, run):
    manifest = json.loads((run / "1" / "manifest").read_text().partition("\n")[2])
    manifest["arrays"]["tree"]["['leaf 0']"]["file"] = file
    sealed(run, json.dumps(manifest))
    with pytest.raises(CheckpointError, match="is outside of the step's folder"):
        Checkpointer(run).restore(1, tree=BLANK)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["manifest", "leaf"])
def test_what_is_not_a_file_is_not_waited_for(name, run):
    path = run / "1" / "manifest" if name == "manifest" else files(run)[0]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="is not a regular file"):
        Checkpointer(run).restore(1, tree=BLANK)
