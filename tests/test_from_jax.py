"""examples/from_jax: programs of JAX users and their forms in jaxpar: the same numbers, few other lines."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "from_jax"
README = (SCRIPTS / "README.md").read_text()
MOST = 5
"""Lines changed or new, where nothing but data parallelism changes."""
MORE = {
    "haiku_vae": 7,  # as vae
    "haiku_vqvae": 8,  # an axis for the codebook, and marks on the state, which goes in and out
    "imagenet": 7,  # a pmap by hand: its collectives are in seven places
    "spmd_mnist": 7,  # likewise; its update becomes an optax one
    "vae": 7,  # the noise of the whole batch is drawn outside of the module
}


def load(name):
    spec = importlib.util.spec_from_file_location(f"from_jax_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where NamedTuple looks
    spec.loader.exec_module(module)
    return module


scripts = load("compare")
NAMES = scripts.names()


@pytest.fixture(autouse=True)
def _imports(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:  # other examples have files of these names
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(SCRIPTS)):
            del sys.modules[name]


def rows(text):
    """The cells of the README's table, by script."""
    table = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|(.*)\|$", text, re.M)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in table}


def test_the_readme_has_a_row_for_every_script():
    assert list(rows(README)) == NAMES
    assert all((SCRIPTS / f"{name}.py").exists() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_counts_the_lines(name):
    changed, gone = scripts.lines_of(name)
    assert rows(README)[name][1:3] == [str(changed), str(gone)]
    assert changed <= MORE.get(name, MOST)


@pytest.mark.parametrize("name", NAMES)
def test_each_plain_script_names_its_model_and_has_nothing_of_jaxpar(name):
    plain = (SCRIPTS / f"{name}_plain.py").read_text()
    assert re.search(r'\A""".* Structure: \S+', plain)
    assert "jaxpar" not in plain


@pytest.mark.parametrize(
    ("new", "counts"),
    [("abcd", (0, 0)), ("abxd", (1, 0)), ("abd", (0, 1)), ("abcde", (1, 0)), ("xyz", (3, 1)), ("", (0, 4))],
)
def test_lines_that_are_new_count_as_changed(new, counts):
    assert scripts.changed_lines(list("abcd"), list(new)) == counts


def bounds(name: str, dtype: str, differences: tuple[float, float], steps: int) -> tuple[float, float]:
    """The bounds for losses and for parameters: 1e-6 in float32, or the plain program's own rounding there.

    Machines differ in that, and float64 has no excuse.
    """
    bound = scripts.BOUNDS[dtype]
    if dtype == "float64" or max(differences) <= bound:
        return bound, bound
    return tuple(max(bound, own) for own in scripts.rounding(name, dtype, steps))


def is_same(name: str, dtype: str, differences: tuple[float, float], steps: int) -> bool:
    allowed = bounds(name, dtype, differences, steps)
    return all(size <= bound for size, bound in zip(differences, allowed, strict=True))


@pytest.mark.slow
@pytest.mark.sampled(13)
@pytest.mark.parametrize("dtype", scripts.BOUNDS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name == "imagenet")) for name in NAMES]
)
@pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0")
def test_both_give_the_same_numbers(name, dtype):
    differences = scripts.compare(name, dtype, steps=4)
    assert is_same(name, dtype, differences, steps=4), differences


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "change"), [("float64", 1e-9), ("float32", 1e-3)])
def test_another_learning_rate_is_seen(dtype, change, monkeypatch):
    """Planted: a rate that is a little larger."""
    import optax

    adam = optax.adam
    rates = iter([1.0, 1 + change])
    monkeypatch.setattr(optax, "adam", lambda rate, **options: adam(rate * next(rates, 1.0), **options))
    differences = scripts.compare("seq2seq", dtype, steps=2)
    assert not is_same("seq2seq", dtype, differences, steps=2), differences


def test_an_array_of_another_shape_is_seen():
    with pytest.raises(AssertionError, match="is not"):
        scripts.relative([1.0, 2.0], [1.0])


def benchmark():
    path = SCRIPTS.parents[1] / "benchmarks" / "from_jax.py"
    spec = importlib.util.spec_from_file_location("benchmark_from_jax", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_table_reports_every_program_that_the_seed_draws(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    table = (SCRIPTS.parents[1] / "docs" / "tables" / "from_jax.md").read_text()
    module = benchmark()
    sections = table.split("## Drawn from")[1:]
    for draw, section in zip(module.DRAWS, sections, strict=True):
        names = draw.names()
        assert [name for name in names if name in draw.converted] == list(draw.converted)
        assert set(names) == {*draw.converted, *draw.left_out}
        assert re.findall(r"^\| \d \| (\S+) \|", section, re.M) == names
        assert all(f"| {name} | {reason} |" in section for name, reason in draw.left_out.items())
        for script in draw.converted.values():
            assert f"| {script} |" in section
            assert script in NAMES


def test_the_tables_lines_and_differences_are_those_of_the_readme():
    table = (SCRIPTS.parents[1] / "docs" / "tables" / "from_jax.md").read_text()
    measured = dict(re.findall(r"^\| (\w+) \|((?: \S+ \|){4})(?: \S* ?\|){4}$", table, re.M))
    assert len(measured) > 5
    for script, cells in measured.items():
        assert [cell.strip() for cell in cells.split("|")[:4]] == rows(README)[script][1:5]
