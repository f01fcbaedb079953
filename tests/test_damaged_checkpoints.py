"""Damaged checkpoints: nothing that was not saved is ever restored."""

from __future__ import annotations

import json
import random
import re
import shutil
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorstore as ts

from jaxpar import Checkpointer
from jaxpar._checkpointer.manifest import ManifestHandler
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
    want = TREE | {"epoch": 3 + found}
    assert trees["tree"].keys() == want.keys()
    for name, x in trees["tree"].items():
        np.testing.assert_array_equal(x, want[name])
    return found, [str(warning.message) for warning in caught]


def files(run):
    """Everything that is read of step 1: the arrays' files, the manifest and the digests."""
    kept = [p for p in (run / "1").rglob("*") if p.is_file() and p.parent.name != "1"]
    return sorted(p for p in kept if p.relative_to(run / "1").as_posix() != "manifest/commit_success.txt")


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_whole_run_has_nothing_to_say(run):
    assert restored(run) == (1, [])
    assert Checkpointer(run).latest_valid() == 1


def test_every_flipped_bit_is_noticed(run):
    chosen, checkpointer = random.Random(0), Checkpointer(run)
    assert len(files(run)) > 8
    for path in files(run):
        for _ in range(3):
            before = path.read_bytes()
            flip(path, chosen.randrange(8 * len(before)))
            step, (message,) = restored(run)
            assert step == 0
            assert message.startswith("Checkpointer.restore: step 1 is damaged and is passed over: ")
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


def test_orbax_notes_do_not_matter(run):
    """Nothing is read from them, so nothing in them can be wrong."""
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt", "manifest/commit_success.txt"):
        (run / "1" / name).write_bytes(b"\xff{")
    assert restored(run) == (1, [])
    with Checkpointer(run) as checkpointer:
        assert checkpointer.save(2, tree=TREE)


def sealed(run):
    """New digests for all files, as if what is in them had been written; the leaves' stay."""
    (run / "1" / "manifest" / "files").unlink()
    ManifestHandler().finalize(run / "1" / "manifest")


def edited(run, change):
    """The manifest with other content."""
    path = run / "1" / "manifest" / "metadata"
    manifest = json.loads(path.read_text())
    change(manifest["items"]["tree"]["arrays"])
    path.write_text(json.dumps(manifest))
    sealed(run)


def stored(run):
    """The arrays' own key-value store."""
    return ts.KvStore.open({"driver": "ocdbt", "base": f"file://{run}/1/arrays/"}).result()


def test_other_values_in_healthy_files_are_noticed(run):
    """The leaves' digests are of the memory that was saved, whatever the files say of themselves."""
    sealed(run)
    assert restored(run) == (1, [])
    kvstore = {"driver": "ocdbt", "base": f"file://{run}/1/arrays/", "path": "tree.['leaf 2']/"}
    array = ts.open({"driver": "zarr", "kvstore": kvstore}).result()
    array[7, 1] = np.nextafter(array[7, 1].read().result(), np.float32(9))
    sealed(run)
    assert restored(run) == (0, [PASSED + "tree: ['leaf 2'] has other values than were saved."])


PASSED = "Checkpointer.restore: step 1 is damaged and is passed over: "
GIANT = [1 << 40, 1 << 20]


def test_a_giant_shape_is_refused_before_anything_is_allocated(run):
    def change(arrays):
        arrays["['leaf 1']"]["shape"] = GIANT

    edited(run, change)
    with pytest.raises(
        CheckpointError, match=r"leaf 1'\] has shape \(400, 2\) here and \(1099511627776, 1048576\)"
    ):
        restored(run)


@pytest.mark.parametrize("what", ["shape", "chunks"])
def test_a_giant_shape_in_an_array_header_is_refused(what, run):
    store, key = stored(run), "tree.['leaf 1']/.zarray"
    header = json.loads(store[key])
    header[what] = GIANT
    store[key] = json.dumps(header)
    sealed(run)
    step, (message,) = restored(run)
    assert step == 0
    assert "leaf 1" in message
    assert "1099511627776, 1048576" in message


def test_a_missing_leaf_is_noticed(run):
    del stored(run)["tree.['leaf 1']/.zarray"]
    sealed(run)
    step, (message,) = restored(run)
    assert (step, len(message) < 400) == (0, True)


def test_where_every_step_is_damaged_nothing_is_restored(run):
    for step in "01":
        (run / step / "manifest" / "files").write_text("")
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
    with Checkpointer(run) as checkpointer:
        with pytest.warns(UserWarning, match="step 1 is damaged"):
            assert checkpointer.restore(tree=BLANK).step == 0
        assert checkpointer.save(1, tree=TREE | {"epoch": 4})
    assert restored(run) == (1, [])


def test_what_is_in_a_manifest_is_never_executed(run):
    path = run / "1" / "manifest" / "metadata"
    manifest = json.loads(path.read_text())
    manifest["states"][0]["tree"]["['epoch']"]["value"] = {"eval": "__import__('os').abort()"}
    path.write_text(json.dumps(manifest))
    sealed(run)
    step, (message,) = restored(run)
    assert (step, "eval" in message) == (0, True)
