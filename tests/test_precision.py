"""Types of operations are read on both sides, and named where they are the reason for a difference."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxpar import parity
from jaxpar.parity._runs.operation_types import OperationType, TypeDifference, differences, together
from jaxpar.parity._sides.jax_in_types import JaxTypes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.precision.run import HEALTHY, PLANTS, compared, main
from benchmarks.precision.taps import WORDS, tapped

BF16 = jnp.bfloat16
X = np.random.RandomState(0).standard_normal((4, 6)).astype(np.float32)


@pytest.mark.full
@pytest.mark.sampled(4)
@pytest.mark.parametrize("planted", PLANTS, ids=lambda p: p.text.replace(" ", "_"))
@pytest.mark.parametrize("seed", [5, 6])
def test_a_planted_type_is_named_and_nothing_else(planted, seed):
    result = compared(planted, np.random.RandomState(seed))
    assert result.names(planted.words), result


@pytest.mark.full
@pytest.mark.sampled(3)
@pytest.mark.parametrize("planted", HEALTHY, ids=[str(i) for i in range(len(HEALTHY))])
def test_nothing_is_blamed_in_a_healthy_pair(planted):
    result = compared(planted, np.random.RandomState(7))
    assert not result.causes
    assert not result.guesses
    assert all(any(word in text for text in result.harmless) for word in planted.words)


@pytest.mark.slow
def test_the_page_has_a_row_for_each_pair(capsys):
    main(["--plants", "1", "--healthy", "1", "--seed", "2"])
    text = capsys.readouterr().out
    assert "| differences whose operation is named, and nothing else | 1 of 1 |" in text
    assert "| pairs without a harmful difference in which nothing is blamed | 1 of 1 |" in text


# ------------------------------------------------------------------------------------------- what is read


@jax.jit
def softmax_in(x):
    return jax.nn.softmax(x.astype(BF16)).astype(jnp.float32)


def scanned(x):
    return jax.lax.scan(
        lambda carry, row: (carry + row.astype(BF16), jnp.dot(row, row)), x[0].astype(BF16), x
    )


READ = [
    ("a function of a library is one operation", softmax_in, [("softmax", "bfloat16")]),
    ("a cast and back", lambda x: x.astype(BF16).astype(jnp.float32), [("rounding", "bfloat16")]),
    ("a cast that is the result", lambda x: x.T.astype(jnp.float16), [("rounding", "float16")]),
    ("a cast in front of an operation is none", lambda x: x.astype(BF16) + 1, [("addition", "bfloat16")]),
    ("a cast to more bits", lambda x: x.astype(jnp.float32) * 2, [("arithmetic", "float32")]),
    (
        "two calls in one line",
        lambda x: nnx.relu(jax.nn.softmax(x)) @ x.T,
        [("softmax", "float32"), ("activation", "float32"), ("matmul", "float32")],
    ),
    (
        "preferred_element_type",
        lambda x: jnp.matmul(x.astype(BF16), x.T.astype(BF16), preferred_element_type=jnp.float32),
        [("matmul", "bfloat16 to float32")],
    ),
    ("inside of a scan", scanned, [("addition", "bfloat16"), ("matmul", "float32")]),
    ("the_backward_pass", jax.grad(lambda x: jax.nn.softmax(x)[0, 0]), [("softmax", "float32")]),
]


@pytest.mark.parametrize(("function", "rows"), [row[1:] for row in READ], ids=[row[0] for row in READ])
def test_types_are_read_from_a_program_of_jax(function, rows):
    found = parity.precisions(function, jnp.asarray(X))
    assert [(row.operation, row.label) for row in found][: len(rows)] == rows
    assert all(row.where.startswith("test_precision.py:") for row in found)


def test_products_of_the_backward_pass_are_left_out():
    rows = parity.precisions(jax.grad(lambda x: (x @ x.T)[0, 0]), jnp.asarray(X))
    assert [row.operation for row in rows].count("matmul") == 1


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 6)

    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(self.inner(x), x, x.bfloat16().float())


def test_types_are_read_from_a_run_of_torch():
    net, x = Attention(), torch.from_numpy(X)[None]
    rows = parity.precisions(net, x)
    read = [(row.operation, row.label, row.where.split(":")[0]) for row in rows]
    inner, outer = ("matmul", "float32", "inner"), "test_precision.py"
    assert read[0] == inner
    assert read[1] == ("rounding", "bfloat16", outer)
    assert [row[0] for row in read if row[0] not in ("rounding", "arithmetic")] == [
        *("matmul", "matmul", "softmax", "matmul")
    ]

    def step(x):
        optimizer = torch.optim.Adam(net.parameters())
        with torch.autocast("cpu", torch.bfloat16):
            loss = net.inner(x).float().mean()
        loss.backward()
        optimizer.step()

    assert [(row.operation, row.label) for row in parity.precisions(step, x)] == [
        ("matmul", "bfloat16"),
        ("mean", "float32"),
    ]
    assert not net._forward_hooks
    assert not net._forward_pre_hooks


def test_the_precision_of_products_is_read_from_the_program():
    before = torch.get_float32_matmul_precision()
    net = torch.nn.Linear(6, 6)
    try:
        torch.set_float32_matmul_precision("high")
        assert [row.precision for row in parity.precisions(net, torch.from_numpy(X))] == ["high"]
        with jax.default_matmul_precision("highest"):
            same = parity.compare(net, nnx.Linear(6, 6, rngs=nnx.Rngs(0)), X, level="as it runs")
    finally:
        torch.set_float32_matmul_precision(before)
    assert any("JAX asks for highest and torch for high" in note for note in same.notes), same.notes
    with jax.default_matmul_precision("highest"):
        same = parity.compare(net, nnx.Linear(6, 6, rngs=nnx.Rngs(0)), X, level="as it runs")
    assert not any("precision" in note for note in same.notes)


def row(operation, label, where="", inputs=""):
    return OperationType(operation, inputs or label, label, where)


DIFFERENCES = [
    ("equal", [row("softmax", "float32")], [row("softmax", "float32")], []),
    (
        "paired in order",
        [row("matmul", "float32", "n:1"), row("softmax", "bfloat16", "n:2")],
        [row("matmul", "float32", "a"), row("softmax", "float32", "b")],
        ["softmax runs in bfloat16 in JAX (n:2) and in float32 in torch (b)"],
    ),
    (
        "of one type",
        [row("softmax", "bfloat16", "n:1"), row("norm", "bfloat16", "n:2")],
        [row("softmax", "float32"), row("norm", "float32")],
        ["softmax and norm run in bfloat16 in JAX (n:1, n:2) and in float32 in torch"],
    ),
    (
        "a bias that torch fuses",
        [row("matmul", "bfloat16"), row("addition", "bfloat16")],
        [row("matmul", "bfloat16")],
        [],
    ),
    (
        "a mean that torch fuses",
        [row("loss", "bfloat16"), row("mean", "bfloat16")],
        [row("loss", "float32")],
        ["loss runs in bfloat16 in JAX and in float32 in torch"],
    ),
    (
        "alone",
        [row("softmax", "float32"), row("rounding", "float16", "n:3")],
        [row("softmax", "float32")],
        ["values are rounded to float16 in JAX (n:3), and nothing like it in torch"],
    ),
]


@pytest.mark.parametrize(("a", "b", "texts"), [r[1:] for r in DIFFERENCES], ids=[r[0] for r in DIFFERENCES])
def test_differences_of_types_are_sentences(a, b, texts):
    assert [x.text("in JAX", "in torch") for x in together(differences(a, b))] == texts


# -------------------------------------------------------------------------- running with other types


def looped(x):
    def body(carry, row):
        return carry + jax.nn.softmax(row.astype(BF16)).astype(jnp.float32), nnx.relu(row)

    carry, rows = jax.lax.scan(body, jnp.zeros_like(x[0]), x)
    branch = jax.lax.cond(carry.sum() > 0, lambda y: jnp.tanh(y) * 1.7, lambda y: y, carry)
    return branch + jax.lax.while_loop(lambda y: y[0] < 3, lambda y: y + 1, rows[0])


def test_a_program_without_changes_computes_the_same_bits():
    x = jnp.asarray(X)
    np.testing.assert_array_equal(jax.jit(JaxTypes()(looped))(x), jax.jit(looped)(x))


def test_an_operation_inside_of_a_scan_runs_in_another_type():
    def exact(x):
        return jax.nn.softmax(x).sum(0)

    def short(x):
        def body(carry, row):
            return carry + jax.nn.softmax(row.astype(BF16)).astype(jnp.float32), ()

        return jax.lax.scan(body, jnp.zeros_like(x[0]), x)[0]

    types = JaxTypes()
    types.read(short, (jnp.asarray(X),), {})
    index = [row.operation for row in types.operations].index("softmax")
    changed = JaxTypes({index: ("float32", "float32")})(short)(jnp.asarray(X))
    assert np.abs(short(jnp.asarray(X)) - exact(X)).max() > 1e-3
    np.testing.assert_allclose(changed, exact(X), rtol=1e-6)


def test_a_wide_operation_is_rounded_as_torchs():
    def scale(x):
        return x * 1.7

    types = JaxTypes({0: ("bfloat16", "bfloat16")})
    expected = (torch.from_numpy(X).bfloat16() * 1.7).float().numpy()
    np.testing.assert_array_equal(types(scale)(jnp.asarray(X)).astype(jnp.float32), expected)


# ------------------------------------------------------------------------------------------ in the taps


def train(folder, dtype):
    w = jnp.asarray(X.T)

    def loss_fn(w, x):
        scores = (x @ w).astype(dtype)
        return (jax.nn.softmax(scores).astype(jnp.float32) ** 2).mean()

    with parity.Tap(folder, start={"w": w}, precisions=parity.precisions(loss_fn, w, jnp.asarray(X))) as tap:
        for step in range(3):
            loss, gradients = jax.value_and_grad(loss_fn)(w, jnp.asarray(X))
            w = w - 0.1 * gradients
            tap(step, batch=X, loss=loss, gradients={"w": gradients}, parameters={"w": w}, rate=0.1)
    return folder


@pytest.mark.full
def test_bisect_names_the_types_that_may_be_the_reason(tmp_path):
    wide, short = train(tmp_path / "wide", jnp.float32), train(tmp_path / "short", BF16)
    result = parity.bisect(wide, short)
    (cause,) = result.causes
    assert cause.startswith("perhaps softmax runs in float32 in run A (test_precision.py:")
    assert "and in bfloat16 in run B (test_precision.py:" in cause
    assert not parity.bisect(wide, wide).notes


def test_an_operation_without_a_counterpart_joins_those_of_its_type():
    loss = TypeDifference(("loss",), "float32", "bfloat16", (("a.py:1",), ("b.py:2",)))
    mean = TypeDifference(("mean",), "", "bfloat16", ((), ("b.py:3",)))
    other = TypeDifference(("softmax",), "", "float16", ((), ("b.py:4",)))
    texts = [x.text("in A", "in B") for x in together([mean, other, loss])]
    assert len(texts) == 2
    assert texts[0] == "loss and mean run in float32 in A (a.py:1) and in bfloat16 in B (b.py:2, b.py:3)"


PAIRS = [("jax", "jax"), ("torch", "torch"), ("torch", "jax"), ("jax", "torch")]


@pytest.mark.full
@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("operation", WORDS)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_bisect_blames_the_operation_whose_type_is_the_reason(a, b, operation, dtype, tmp_path):
    runs = tapped(tmp_path / "a", a, {}, 0), tapped(tmp_path / "b", b, {operation: dtype}, 0)
    nudged = tapped(tmp_path / "nudged", a, {}, 0, nudged=True)
    result = parity.bisect(*runs, nudged=nudged)
    assert result.step == 0, str(result)
    assert len(result.causes) == 1
    assert result.causes[0].startswith(f"perhaps {WORDS[operation]}"), str(result)
    assert dtype in result.causes[0]


@pytest.mark.full
@pytest.mark.sampled(3)
@pytest.mark.parametrize("types", [{}, {"positions": "bfloat16"}, {"positions": "float16"}], ids=str)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_a_type_that_changes_no_number_is_harmless(a, b, types, tmp_path):
    runs = tapped(tmp_path / "a", a, {}, 0), tapped(tmp_path / "b", b, types, 0)
    result = parity.bisect(*runs, nudged=tapped(tmp_path / "nudged", a, {}, 0, nudged=True))
    assert result.same, str(result)
    notes = [note for note in result.notes if note.startswith("types differ")]
    assert len(notes) == len(types)
    assert all("which is harmless: arithmetic" in note for note in notes)
