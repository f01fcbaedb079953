"""Files of weights: exact there and back, and hostile or damaged ones refused without a trace."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar import parity
from jaxpar.errors import FileError

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
from safetensors import torch as safetensors_torch  # noqa: E402

# ----------------------------------------------------------------------------------- there and back

TYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip


def of_type(name: str, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    bits = np.random.RandomState(0).randint(0, 2 if name == "bool" else 100, (*shape, dtype.itemsize))
    return bits.astype(np.uint8).reshape(-1).view(dtype).reshape(shape)


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
@pytest.mark.parametrize("name", TYPES)
def test_every_type_bit_for_bit(name, ending, tmp_path):
    arrays = {"a": of_type(name), "scalar": of_type(name, ()), "empty": of_type(name, (0, 3))}
    path = tmp_path / f"weights{ending}"
    parity.write_weights(path, arrays)
    read = parity.read_weights(path)
    assert set(read) == set(arrays)
    for key, want in arrays.items():
        got = parity._tensors.array_of(read[key]) if ending == ".pt" else read[key]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), key
        assert got.tobytes() == want.tobytes(), key
    if ending == ".safetensors":
        theirs = safetensors_torch.load_file(path)
        assert {key: tuple(x.shape) for key, x in theirs.items()} == {k: x.shape for k, x in arrays.items()}


NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")


@settings(deadline=None, max_examples=30)
@given(
    arrays=st.dictionaries(
        NAMES, st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=5
    )
)
def test_any_names_and_shapes(arrays, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "weights.safetensors"
    made = {name: of_type(kind, tuple(shape)) for name, (kind, shape) in arrays.items()}
    try:
        parity.write_weights(path, made)
    except UnicodeEncodeError:  # a lone surrogate is no text
        return
    read = parity.read_weights(path)
    assert {name: (x.dtype, x.shape, x.tobytes()) for name, x in read.items()} == {
        name: (x.dtype, x.shape, x.tobytes()) for name, x in made.items()
    }


def test_what_others_wrote(tmp_path):
    layer = torch.nn.Linear(3, 4).bfloat16()
    safetensors_torch.save_file(layer.state_dict(), tmp_path / "a.safetensors")
    torch.save(layer.state_dict(), tmp_path / "a.pt")
    torch.save(layer.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    want = layer.weight.detach().view(torch.int16).numpy()
    for name in ("a.safetensors", "a.pt", "old.pth"):
        got = parity.read_weights(tmp_path / name)["weight"]
        bits = got.view(torch.int16).numpy() if isinstance(got, torch.Tensor) else got.view(np.int16)
        assert np.array_equal(bits, want), name


def test_what_can_be_written(tmp_path):
    tensors = {
        "jax": jnp.arange(3.0), "numpy": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "torch": torch.nn.Parameter(torch.ones(2)), "view": np.arange(6).reshape(2, 3).T,
        "number": np.float32(2),
        "other end": np.arange(3, dtype=">i4"),
    }  # fmt: skip
    for ending in (".safetensors", ".pt"):
        parity.write_weights(tmp_path / f"w{ending}", tensors)
        read = parity.read_weights(tmp_path / f"w{ending}")
        for name, want in tensors.items():
            want = want.detach().numpy() if isinstance(want, torch.Tensor) else np.asarray(want)
            assert np.array_equal(np.asarray(read[name]), want), name


def test_a_checkpoint_with_more_than_weights(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {"net": {"w": torch.ones(2)}}, "epoch": 3}, path)
    assert parity.read_weights(path, key="model.net").keys() == {"w"}
    with pytest.raises(FileError, match=r"there is no 'model.n' in it; where 'n' was looked for is net"):
        parity.read_weights(path, key="model.n")
    with pytest.raises(FileError, match="it holds a int, not tensors by name"):
        parity.read_weights(path, key="epoch")


# ----------------------------------------------------------------------------------------- hostile

GOOD = {"a": np.ones((2, 3), np.float32)}


def header(entries: Any, data: bytes = b"\0" * 24) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: Any = (2, 3), offsets: Any = (0, 24), dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


SAFETENSORS = {
    "empty": (b"", "it is empty"),
    "three bytes": (b"abc", "announce a header of"),
    "a huge header": (struct.pack("<Q", 1 << 62) + b"{}", "announce a header of 4611686018427387904 bytes"),
    "a header longer than the file": (
        struct.pack("<Q", 500) + b"{}",
        "announce a header of 500 bytes, and 2 follow",
    ),
    "no JSON": (header(b"{'a': 1}"), "its header is no JSON"),
    "no text": (header(b"\xff\xfe\xfd"), "its header is no JSON"),
    "endless brackets": (header(b"[" * 100_000), "its header is no JSON"),
    "a list": (header([1, 2]), "does not map names to arrays"),
    "names to numbers": (header({"a": 3}), "does not map names to arrays"),
    "a name twice": (
        header(
            b'{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"a":{"dtype":"F32","shape":[6],'
            b'"data_offsets":[0,24]}}'
        ),
        "'a' is in its header twice",
    ),
    "a field twice": (
        header(b'{"a":{"dtype":"F32","shape":[9],"shape":[2,3],"data_offsets":[0,24]}}'),
        "'shape' is in its header twice",
    ),
    "cut off": (header({"a": entry()}, b"\0" * 20), "it is damaged"),
    "bytes too many": (header({"a": entry()}, b"\0" * 30), "it is damaged"),
    "overlap": (header({"a": entry(), "b": entry()}), "it is damaged"),
    "a gap": (header({"a": entry(), "b": entry(offsets=(48, 72))}, b"\0" * 72), "it is damaged"),
    "offsets backwards": (header({"a": entry(offsets=(24, 0))}), "it is damaged"),
    "offsets below zero": (header({"a": entry(offsets=(-24, 0))}), "it is damaged"),
    "a huge shape": (header({"a": entry((1 << 40, 1 << 40))}), "it is damaged"),
    "a shape whose product wraps to fit": (header({"a": entry((1 << 33, 1 << 31, 6))}), "it is damaged"),
    "a huge shape without elements": (
        header({"a": entry((0, 1 << 62), (0, 0))}, b""),
        r"a has the shape \[0, 46",
    ),
    "an axis beyond 63 bits": (header({"a": entry((0, 1 << 63), (0, 0))}, b""), r"a has the shape \[0, 92"),
    "a shape below zero": (header({"a": entry((-2, -3))}), "it is damaged"),
    "a shape of text": (header({"a": entry("ab")}), "it is damaged"),
    "an unknown type": (header({"a": entry(dtype="F99")}), "it is damaged"),
    "a type that NumPy lacks": (header({"a": entry((24,), dtype="F8_E8M0")}), "which NumPy does not know"),
    "a field missing": (header({"a": {"dtype": "F32", "shape": [2, 3]}}), "it is damaged"),
    "booleans that are none": (header({"a": entry((24,), dtype="BOOL")}, b"\2" * 24), "neither 0 nor 1"),
    "metadata of numbers": (header({"__metadata__": {"a": 3}, "a": entry()}), "it is damaged"),
    "a pickle": (pickle.dumps({"a": 1}), "announce a header of|it is damaged|no JSON"),
    "text": (b"weights = [1, 2, 3]\n" * 10, "announce a header of"),
}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_hostile_safetensors(name, tmp_path):
    content, message = SAFETENSORS[name]
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        parity.read_weights(path)
    assert str(path) in str(caught.value)


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def archive(**changed: bytes) -> dict[str, bytes]:
    """The entries of what torch.save writes, some of them changed."""
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2, 3)}, buffer)
    with zipfile.ZipFile(buffer) as whole:
        entries = {name: whole.read(name) for name in whole.namelist()}
    for ending, content in changed.items():
        (name,) = (n for n in entries if n.endswith(ending.replace("_", "/")))
        entries[name] = content
    return entries


def zipped(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as whole:
        for name, content in entries.items():
            whole.writestr(name, content)
    return buffer.getvalue()


def saved(value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def bigger(content: bytes) -> bytes:
    """The pickle of a (2, 3) tensor made to claim (2, 3 << 20)."""
    assert content.count(b"K\x02K\x03\x86") == 1
    return content.replace(b"K\x02K\x03\x86", b"K\x02J" + struct.pack("<i", 3 << 20) + b"\x86")


TORCH = {
    "text": lambda mark: (
        b"these are no weights\n" * 9,
        "it begins with b'thes', neither a zip nor a pickle",
    ),
    "safetensors renamed": lambda mark: (header({"a": entry()}), "neither a zip nor a pickle"),
    "empty": lambda mark: (b"", "it is empty"),
    "a pickle that runs code": lambda mark: (
        pickle.dumps(Touch(mark)),
        "it holds more than tensors|torch cannot read it",
    ),
    "a pickle that runs code, protocol 0": lambda mark: (
        pickle.dumps(Touch(mark), 0),
        "neither a zip nor a pickle",
    ),
    "an archive that runs code": lambda mark: (saved({"a": Touch(mark)}), "it holds more than tensors"),
    "an old archive that runs code": lambda mark: (
        saved({"a": Touch(mark)}, _use_new_zipfile_serialization=False),
        "it holds more than tensors",
    ),
    "a whole module": lambda mark: (
        saved(torch.nn.Linear(2, 2)),
        r"torch\.nn\.modules\.linear\.Linear for one, .* save module\.state_dict\(\) .*\.safetensors\.(\n|$)",
    ),
    "cut off": lambda mark: (saved(GOOD_TENSORS)[:-200], r"damaged or cut off \(\d+ bytes\)"),
    "half": lambda mark: (saved(GOOD_TENSORS)[:700], "damaged or cut off"),
    "an old file cut off": lambda mark: (
        saved(GOOD_TENSORS, _use_new_zipfile_serialization=False)[:-10],
        "torch cannot read it",
    ),
    "a zip of something else": lambda mark: (zipped({"readme.txt": b"hello"}), "torch cannot read it"),
    "compressed": lambda mark: (zipped(archive(), zipfile.ZIP_DEFLATED), "it has compressed entries"),
    "no data": lambda mark: (
        zipped({n: c for n, c in archive().items() if "/data/" not in n}),
        "torch cannot read it",
    ),
    "data too short": lambda mark: (
        zipped(archive(data_0=b"\0" * 8)),
        "torch cannot read it|claims 24 bytes",
    ),
    "no pickle in it": lambda mark: (
        zipped(archive(**{"data.pkl": b"nonsense"})),
        "torch cannot read it|more than tensors",
    ),
    "a shape bigger than its data": lambda mark: (
        zipped(archive(**{"data.pkl": bigger(archive_pickle())})),
        "torch cannot read it|claims",
    ),
    "a small tensor seen as a huge one": lambda mark: (
        saved({"a": torch.ones(1).expand(1 << 40, 1 << 20)}),
        r"a claims \d+ bytes, and the file has 4",
    ),
    "a number": lambda mark: (saved(3), "it holds a int, not tensors by name"),
}
GOOD_TENSORS = {"a": torch.ones(20, 30)}


def archive_pickle() -> bytes:
    return next(content for name, content in archive().items() if name.endswith("data.pkl"))


@pytest.mark.parametrize("name", TORCH)
def test_hostile_torch_files(name, tmp_path):
    mark = tmp_path / "ran"
    content, message = TORCH[name](mark)
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        parity.read_weights(path)
    assert str(path) in str(caught.value)
    assert not mark.exists()
    assert os.listdir(tmp_path) == ["weights.pt"]


def test_the_payload_would_run(tmp_path):
    """So that the test above can fail."""
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(Touch(mark)))
    assert mark.exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_entry_twice(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as whole:
        for name, content in [*archive().items(), *archive().items()]:
            whole.writestr(name, content)
    (tmp_path / "a.pt").write_bytes(buffer.getvalue())
    with pytest.raises(FileError, match="an entry is in the archive twice"):
        parity.read_weights(tmp_path / "a.pt")


@pytest.mark.full
@settings(deadline=None, max_examples=200)
@given(position=st.floats(0, 1), byte=st.integers(0, 255), cut=st.booleans())
@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_a_changed_byte_or_a_cut_is_refused_or_harmless(ending, position, byte, cut, tmp_path_factory):
    """No crash, no other exception, and no array of another size than the file's bytes."""
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / f"w{ending}"
    parity.write_weights(path, GOOD)
    content = bytearray(path.read_bytes())
    at = min(int(position * len(content)), len(content) - 1)
    content[at] = byte
    path.write_bytes(content[:at] if cut else content)
    read: dict[str, Any] = {}
    with contextlib.suppress(FileError):
        read = parity.read_weights(path)
    assert all(getattr(x, "nbytes", 0) <= len(content) for x in read.values())


# ----------------------------------------------------------------------------------- paths, writing


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_paths_that_are_no_files(ending, tmp_path):
    folder = tmp_path / f"folder{ending}"
    folder.mkdir()
    with pytest.raises(FileError, match="it is a folder; give the file in it"):
        parity.read_weights(folder)
    with pytest.raises(FileError, match="it is a folder; give a file's name"):
        parity.write_weights(folder, GOOD)
    with pytest.raises(FileError, match="it cannot be read: No such file or directory"):
        parity.read_weights(tmp_path / f"missing{ending}")
    pipe = tmp_path / f"pipe{ending}"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="it is no plain file"):
        parity.read_weights(pipe)
    with pytest.raises(ValueError, match=r"read_weights: path is 'a\\x00b.*with NUL"):
        parity.read_weights(f"a\0b{ending}")


def test_endings():
    for name in ("weights", "weights.npz", "weights.txt"):
        with pytest.raises(FileError, match=r"is unknown; known are \.safetensors, \.pt, \.pth, \.bin"):
            parity.read_weights(name)


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_what_cannot_be_written_leaves_the_old_file(ending, tmp_path):
    path = tmp_path / f"w{ending}"
    parity.write_weights(path, GOOD)
    before = path.read_bytes()
    for bad in ("text", object(), np.array(["a"]), np.zeros(2, [("x", "f4")])):
        with pytest.raises(FileError, match="b"):
            parity.write_weights(path, {**GOOD, "b": bad})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]
    with pytest.raises(OSError, match="No such file"):
        parity.write_weights(tmp_path / "nowhere" / path.name, GOOD)


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_a_file_that_is_larger_than_the_process_may_write(ending, tmp_path):
    import resource

    path, limits = tmp_path / f"w{ending}", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            parity.write_weights(path, {"a": np.ones((100, 100))})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["__metadata__", 3])
def test_names_that_safetensors_cannot_hold(name, tmp_path):
    with pytest.raises(FileError, match="cannot be the name of an array"):
        parity.write_weights(tmp_path / "w.safetensors", {name: np.zeros(2)})
    assert not os.listdir(tmp_path)


def test_a_file_can_be_replaced_while_it_is_read(tmp_path):
    path = tmp_path / "w.safetensors"
    parity.write_weights(path, GOOD)
    read = parity.read_weights(path)
    parity.write_weights(path, {"a": 2 * read["a"]})
    assert np.array_equal(read["a"], GOOD["a"])
    assert np.array_equal(parity.read_weights(path)["a"], 2 * GOOD["a"])


@pytest.mark.slow
def test_safetensors_need_no_torch(tmp_path):
    path = tmp_path / "w.safetensors"
    parity.write_weights(path, GOOD)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from jaxpar import parity\n"
        f"print(parity.read_weights({str(path)!r})['a'].sum(), 'jax' in sys.modules)\n"
        f"try: parity.read_weights({str(Path(__file__))!r}[:-2] + 'pt')\n"
        "except (ModuleNotFoundError, parity._files.FileError) as e: print(type(e).__name__)\n"
        f"open({str(tmp_path / 'x.pt')!r}, 'wb').write(b'PK')\n"
        f"try: parity.read_weights({str(tmp_path / 'x.pt')!r})\n"
        "except ModuleNotFoundError as e: print(e)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = ended.stdout.splitlines()
    assert lines[0] == "6.0 False"
    assert "needs torch, which is not installed (pip install 'jaxpar[torch]')" in lines[2]


def test_a_view_with_another_sign_is_written_as_what_it_shows(tmp_path):
    """torch keeps the sign of a conjugate's imaginary part as a mark on the view, which NumPy has not."""
    view = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert view.is_neg()
    path = tmp_path / "w.safetensors"
    parity.write_weights(path, {"imag": view})
    assert parity.read_weights(path)["imag"].tolist() == [-2.0, 4.0]
