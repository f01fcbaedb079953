"""Edits of plain code: what a cause suggests is tried, and only what agrees is in the answer."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from test_operation_edits import CASES

from benchmarks.parity import bugs, ports, proof
from jaxpar.parity import Divergence
from jaxpar.parity._exactness import exact
from jaxpar.parity._trace.reading import read
from jaxpar.parity.contract.checking import check
from jaxpar.parity.contract.live import judged
from jaxpar.parity.contract.making import make
from jaxpar.parity.contract.neighbour_search import NeighbourSearch, limited, written
from jaxpar.parity.contract.neighbours import Surroundings, neighbours
from jaxpar.parity.contract.plain_edits import RULES, numbers, plain_edits
from jaxpar.parity.contract.plain_run import CALL, LINES, lines_before
from jaxpar.parity.contract.reproduction import ERROR, OF_LOSS, Reproduction, smallest
from jaxpar.parity.contract.source import Code
from jaxpar.parity.contract.tries import Tries, mends

TORCH_SIDE = """
import math
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        q = self.a(x)
        scores = q @ q.transpose(1, 2) / math.sqrt(8)
        distance = torch.arange(5)[:, None] - torch.arange(5)
        seen = (distance >= 0) & (distance < 3)
        weights = scores.masked_fill(~seen, -1e9).softmax(-1)
        y = self.b(q + weights @ q)
        return self.c((y / (1 + torch.exp(-y))).mean(1))


torch.manual_seed(0)
torch_module = Net()
inputs = torch.randn(4, 5, 6)
"""
PORT = """
import jax
import jax.numpy as jnp
from flax import nnx


class Port(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.a, self.b = nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)
        self.c = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        q = self.a(x)
        scores = q @ q.swapaxes(1, 2) / 8**0.5
        distance = jnp.arange(5)[:, None] - jnp.arange(5)
        seen = (distance >= 0) & (distance < 3)
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
        y = self.b(q + weights @ q)
        return self.c(jax.nn.silu(y).mean(1))


flax_module = Port
"""
MISTAKES = {
    "scale": (" / 8**0.5", " / 5**0.5"),
    "no_scale": (" / 8**0.5", ""),
    "axis": ("axis=-1", "axis=1"),
    "bound": ("distance < 3", "distance <= 3"),
    "no_condition": ("(distance >= 0) & ", ""),
    "activation": ("jax.nn.silu(y)", "jax.nn.gelu(y, approximate=False)"),
    "residual": ("q + weights @ q", "weights @ q"),
    "unknown": ("jax.nn.silu(y).mean(1)", "jnp.sin(jax.nn.silu(y)).mean(1)"),
}
MENDED = [name for name in MISTAKES if name != "unknown"]


@pytest.fixture(scope="module")
def contract(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    (folder / "torch_side.py").write_text(TORCH_SIDE)
    return make(str(folder / "torch_side.py"), str(folder / "contract"), "")


def wrong(name: str) -> str:
    before, after = MISTAKES[name]
    assert PORT.count(before) == 1
    return PORT.replace(before, after)


def search(contract: Path, folder: Path, source: str) -> NeighbourSearch:
    port = folder / "port.py"
    port.write_text(source)
    anywhere = Divergence("c", "c", "between b and c", "")
    return NeighbourSearch(source, port, read(contract / "trace"), anywhere, time.perf_counter() + 300)


def agreeing(one: NeighbourSearch, text: str) -> list[str]:
    return [source for source in plain_edits(one.code, text) if one.wrong(source) is not None]


# ------------------------------------------------------------------------------------ edits of the source

EXAMPLES = [
    ("silu, written by hand (it acts as gelu(approximate=True))", "f(nnx.gelu(x + 1))", "f(nnx.silu(x + 1))"),
    (
        "gelu(approximate=False), written by hand (it acts as relu)",
        "jax.nn.relu(x)",
        "jax.nn.gelu(x, approximate=False)",
    ),
    (
        "x * sigmoid(1.702 * x), written by hand (it acts as silu)",
        "nnx.silu(x + y)",
        "(x + y) * nnx.sigmoid(1.702 * (x + y))",
    ),
    ("relu6 (it acts as relu)", "2 * nnx.relu(x)", "2 * nnx.relu6(x)"),
    (
        "approximate=False (it acts as gelu(approximate=True))",
        "nnx.gelu(x)",
        "nnx.gelu(x, approximate=False)",
    ),
    ("epsilon=1e-05 (it acts as 1e-06)", "x / (y + 1e-06)", "x / (y + 1e-05)"),
    ("the scale is 1 / 2 (it is 1 / the root of 8)", "a @ b / d", "a @ b / 2"),
    ("the scale is 2.82843 (it is left out)", "f(x)", "f(x) * 8**0.5"),
    ("there is no factor (it is multiplied by 2)", "f(2 * x)", "f(x)"),
    ("positions are torch's (they are shifted by 2)", "jnp.arange(t) + 2", "jnp.arange(t)"),
    ("positions are torch's (they are shifted by 1)", "jnp.arange(1, n + 1)", "jnp.arange(0, n)"),
    ("positions run upwards (they are reversed)", "jnp.arange(t)[::-1]", "jnp.arange(t)"),
    ("the mask compares by < (it compares by <=)", "f(a <= b)", "f(a < b)"),
    ("the mask compares by < (it compares by <=)", "f(b >= a)", "f(b > a)"),
    ("the mask is inverted (it is not)", "jnp.where(m, a, b)", "jnp.where(~m, a, b)"),
    ("key_padding_mask has torch's polarity (it is inverted)", "f(x, mask=~m)", "f(x, mask=m)"),
    ("the mask compares with torch's bound (with one that is -1: a window off by one)", "a < w - 1", "a < w"),
    ("both conditions are joined by and (one is left out)", "a < w", "(a < w) & (a >= 0)"),
    (
        "is_causal=True (it acts as False)",
        "softmax(s)",
        "softmax(jnp.where(jnp.tri(*s.shape[-2:], dtype=bool), s, -jnp.inf))",
    ),
    ("mean over axis 1 (it acts on axis 2)", "x.mean(2)", "x.mean(1)"),
    ("softmax over axis -1 (it acts on axis 1)", "softmax(x, axis=1)", "softmax(x, axis=-1)"),
    ("sum over axis 0 (it acts on axis 1)", "jnp.sum(x, -2)", "jnp.sum(x, 0)"),
    ("softmax runs over the keys (it runs over the queries)", "nnx.softmax(x, -2)", "nnx.softmax(x, -1)"),
    ("std divides by n - 1 (it divides by n): ddof=1", "x.std(-1)", "x.std(-1, ddof=1)"),
    (
        "the last axis is split into (heads, size) (it is split into (size, heads))",
        "x.reshape(n, -1, h).swapaxes(1, 2)",
        "x.reshape(n, h, -1)",
    ),
    (
        "the axes that reshape joins are in torch's order (axes 1 and 2 are swapped)",
        "x.reshape(n, -1)",
        "x.swapaxes(1, 2).reshape(n, -1)",
    ),
    ("transpose is done (it is left out)", "self.mix(x)", "self.mix(x.swapaxes(1, 2)).swapaxes(1, 2)"),
    (
        "the pieces of chunk are in torch's order (they are in order (2, 0, 1))",
        "v, q, k = f(x)",
        "q, k, v = f(x)",
    ),
    (
        "what qkv returns: axis 2 is read as (3, 2, 4) (it is read as (2, 3, 4))",
        "self.qkv(x)",
        "self.qkv(x).reshape(*x.shape[:-1], 3, 2, 4).swapaxes(2, 3).reshape(*x.shape[:-1], -1)",
    ),
    (
        "the sum has torch's operands (one is what first returns)",
        "def f(x, y):\n    return y + z",
        "def f(x, y):\n    return x + z",
    ),
    (
        "the other operand is added (it is left out)",
        "def f(x):\n    return g(x)",
        "def f(x):\n    return x + g(x)",
    ),
    (
        "a is given what torch's is (is the norm in front of the branch, or behind the sum?)",
        "self.norm(x + self.a(x))",
        "x + self.a(self.norm(x))",
    ),
    (
        "a is given what torch's is (is the norm in front of the branch, or behind the sum?)",
        "x + self.a(self.norm(x))",
        "self.norm(x + self.a(x))",
    ),
    (
        "the result of to keeps its digits (it is rounded to float16, as a saved table)",
        "f(x.astype(np.float16))",
        "f(x)",
    ),
    (
        "gate and up are where torch has them (they are exchanged, in the calls or in the mapping)",
        "self.up(y) * self.gate(x)",
        "self.gate(y) * self.up(x)",
    ),
    ("reduction='batchmean' (it acts as 'mean')", "x.mean() / 4", "x.mean()"),
    ("reduction='sum' (it acts as 'mean')", "x.mean()", "x.sum()"),
]


@pytest.mark.parametrize(("text", "before", "after"), EXAMPLES)
def test_a_cause_suggests_an_edit(text, before, after):
    edited = [*plain_edits(Code(before), text)]
    assert after in edited, edited
    assert before not in edited
    for source in edited:
        ast.parse(source)


def test_every_rule_has_an_example():
    texts = ["", *(text for text, *_ in [*EXAMPLES, *CASES.values()])]
    assert [pattern for pattern, _ in RULES if not any(re.search(pattern, text) for text in texts)] == []


def test_other_lines_are_not_edited_and_the_nearest_is_first():
    source = "a = f(2 * x)\nb = 3 * x + 4 * y\nc = f(4 * x)\n"
    edited = [*plain_edits(Code(source, lines=(2, 1)), "there is no factor (it is multiplied by 3)")]
    assert all(text.endswith("c = f(4 * x)\n") for text in edited)
    assert [text.splitlines()[:2] for text in edited] == [
        ["a = f(2 * x)", "b = 3 * x + 4"],
        ["a = f(2 * x)", "b = 3 * x + y"],
        ["a = f(2 * x)", "b = 3 + 4 * y"],
        ["a = f(2 * x)", "b = x + 4 * y"],
        ["a = f(2)", "b = 3 * x + 4 * y"],
        ["a = f(x)", "b = 3 * x + 4 * y"],
    ]


def test_lines_before_a_call_are_the_latest_first():
    events = [(LINES, 3), (LINES, 4), (CALL, ("a", 0)), (LINES, 5), (LINES, 4), (CALL, ("b", 0)), (LINES, 6)]
    assert lines_before(events, ("b", 0)) == [4, 5, 3]
    assert lines_before(events, ("", -1)) == [6, 4, 5, 3]


def test_what_binds_less_than_its_parent_gets_parentheses():
    tree = Code("x = 2 * f(a)\n")
    (call,) = tree.calls()
    assert tree.replaced(call, "a + b") == "x = 2 * (a + b)\n"
    assert tree.replaced(call.args[0], "a + b") == "x = 2 * f(a + b)\n"


@pytest.mark.parametrize(
    ("x", "text"), [(8**0.5, "8**0.5"), (2.82843, "8**0.5"), (1 / 3**0.5, "3**-0.5"), (0.5, "0.5")]
)
def test_a_root_is_written_as_one(x, text):
    assert numbers(x)[0] == text


HEADER = """import jax
import jax.numpy as jnp
from flax import nnx
from jax import nn
"""
NEIGHBOURS = [
    ("return x - y", "return y - x"),
    ("return self.a(x) - y", "return y - self.a(x)"),
    ("return x + y", "return x - y"),
    ("return x / (y + 1)", "return x / y"),
    ("return x + y * y", "return (x + y) * y"),
    ("return x[:, 1:]", "return x[:, :1]"),
    ("return x[1:]", "return x[:-1]"),
    ("return x[:, 0]", "return x[:, -1]"),
    ("return x.mean((1, 2))", "return x.mean((2, 3))"),
    ("return x.mean(1)", "return x.mean(-1)"),
    ("return x.mean(1)", "return x.sum(1)"),
    ("return x.std(1)", "return x.std(1, ddof=1)"),
    ("return nn.relu(x)", "return nn.gelu(x)"),
    ("return nn.gelu(x)", "return nn.gelu(x, approximate=False)"),
    ("return nn.relu(self.norm(x))", "return self.norm(nn.relu(x))"),
    ("return x.mean(1).max(-1)", "return x.max(-1).mean(1)"),
    ("return self.a(x)", "return x + self.a(x)"),
    ("return self.norm(x + self.a(x))", "return x + self.a(self.norm(x))"),
    ("return x", "return x + self.bias"),
    ("return self.a(x)", "return self.norm(self.a(x))"),
    ("return x", "return x.mean(-1, keepdims=True)"),
    ("return jnp.arange(4)", "return jnp.arange(4) + 1"),
    ("return self.a(x)", "return self.a(x) * y[..., None]"),
    ("return x.reshape(5, -1)", "return x.reshape(10, -1)"),
    ("return x.reshape(5, -1)", "return x.reshape(25, -1)"),
    ("return jnp.einsum('ij,jk->ik', x, y)", "return jnp.einsum('ij,kj->ik', x, y)"),
    ("return jnp.einsum('ij,jk->ik', x, y)", "return jnp.einsum('ij,jk->ij', x, y)"),
    ("return jnp.concatenate([-x, y])", "return jnp.concatenate([x, -y])"),
    ("return jnp.concatenate([x, y])", "return jnp.concatenate([y, x])"),
    ("return x.transpose(0, 2, 1)", "return x.transpose(1, 2, 0)"),
    ("return jnp.transpose(x, (0, 2, 1))", "return jnp.transpose(x, (1, 0, 2))"),
    ("return x.reshape(4, 2, -1)", "return x.reshape(2, 4, -1)"),
    ("return jnp.where(x > 0, x, y)", "return jnp.where(x >= 0, x, y)"),
    ("return jnp.where(x > 0, x, y)", "return jnp.where(x > 0, y, x)"),
    ("return jnp.where(x > 0, x, y)", "return jnp.where(~(x > 0), x, y)"),
    ("return jnp.repeat(x, 2, axis=1)", "return jnp.tile(x, 2, axis=1)"),
    ("q, k = x, y\n        return q - k", "k, q = x, y\n        return q - k"),
    ("x = x + 1\n        y = x\n        return y", "y = x\n        x = x + 1\n        return y"),
    ("x = x * 2\n        return x", "pass\n        return x"),
    ("return self.a(x) + self.norm(y)", "return self.norm(x) + self.a(y)"),
    ("return x.astype('float16')", "return x"),
    (
        "return jax.nn.softmax(x)",
        "return jax.nn.softmax(jnp.where(jnp.tri(*x.shape[-2:], dtype=bool), x, -jnp.inf))",
    ),
    ("return f(x[::2]) + f(y[::2])", "return f(x[1::2]) + f(y[1::2])"),
]


LAYERS = """
class Net(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(4, 4, rngs=rngs), nnx.LayerNorm(4, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 4, rngs=rngs)

    def __call__(self, x, y):
        return {}
"""
LEFT_OUT = [  # what is left of a call, the call, and whether one edit makes it
    ("self.attention(x)", "self.b(self.a(self.attention(x)))", True),
    ("self.attention(x)", "self.attention(x) + self.a(self.b(self.attention(x)))", True),
    ("self.attention(x)", "self.a(self.a(self.attention(x)))", False),
    ("self.a(self.b(x))", "self.attention(self.a(self.b(x)), mask=y[..., None])", True),
    ("self.a(self.b(x))", "self.attention(self.a(self.b(x)), decode=y)", False),
    ("self.attention(self.b(x))", "jax.nn.gelu(self.a(self.attention(self.b(x))))", True),
    ("self.attention(self.b(x))", "jax.nn.relu(self.a(y)) * self.attention(self.b(x))", True),
    ("self.attention(self.b(x))", "self.a(y) + self.attention(self.b(x))", True),
    ("self.attention(self.a(self.b(x)))", "jax.nn.gelu(self.a(self.attention(self.a(self.b(x)))))", False),
]


def in_class(body: str) -> str:
    init = "    def __init__(self):\n        self.a, self.norm, self.bias = f, f, 1.0\n"
    return f"{HEADER}\n\nclass Net:\n{init}\n    def __call__(self, x, y):\n        {body}\n"


def sources(text: str, hints: str = "") -> list[str]:
    code, defined = Code(text), dict[str, object]()
    exec(HEADER, defined)
    edited = []
    for _, texts in neighbours(Surroundings(code, defined, hints), frozenset(range(99)), frozenset()):
        try:
            edited.append(ast.unparse(ast.parse(code.with_all(texts))))
        except SyntaxError:
            continue
    return edited


@pytest.mark.parametrize(
    ("number", "torchs", "is_made"),
    [("5", "70", True), ("5", "0.7", False), ("0.5", "0.7", True), ("0.5", "70", True)],
)
def test_numbers_of_torchs_source_replace_numbers_of_their_type(number, torchs, is_made):
    edited = sources(in_class(f"return x * {number}"), f"return y * {torchs}")
    assert (ast.unparse(ast.parse(in_class(f"return x * {torchs}"))) in edited) == is_made


@pytest.mark.parametrize(("left", "whole", "is_made"), LEFT_OUT)
def test_layers_that_are_bound_and_never_called_are_called(left, whole, is_made):
    torchs = ast.unparse(ast.parse(HEADER + LAYERS.format(whole)))
    assert (torchs in sources(HEADER + LAYERS.format(left))) == is_made


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("before", "after"), NEIGHBOURS)
def test_a_mistakes_inverse_is_a_neighbour(before, after):
    assert ast.unparse(ast.parse(in_class(after))) in sources(in_class(before))


def test_nearer_lines_and_likelier_edits_are_first():
    code = Code("a = x - y\nb = x - y\n")
    edits = neighbours(Surroundings(code, {}), frozenset([2]), frozenset([1, 2]))
    edited = [code.with_all(texts) for _, texts in edits]
    costs = [cost for cost, _ in edits]
    assert costs == sorted(costs)
    assert edited.index("a = x - y\nb = y - x\n") < edited.index("a = y - x\nb = x - y\n")


@pytest.mark.parametrize(("x", "texts"), [(8**0.5, ["(8**0.5)", "2.8284"]), (-0.5, ["(-0.5)"]), (0.0, [])])
def test_a_number_is_written_with_few_digits_first(x, texts):
    assert written(x)[: len(texts)] == texts


# --------------------------------------------------------------------------------- edits that were proven


@pytest.mark.full
def test_a_right_port_has_no_wrong_place(contract, tmp_path):
    assert search(contract, tmp_path, PORT).before == {}


@pytest.mark.full
def test_an_edit_that_does_not_agree_is_not_offered(contract, tmp_path):
    """The place is wrong in a way that no rule mends, whatever the cause's text is."""
    one = search(contract, tmp_path, wrong("unknown"))
    assert [*one.before] == [("c", 0)]
    for text in dict.fromkeys(text for text, *_ in EXAMPLES):
        assert agreeing(one, text) == [], text
    assert one.runs > 50


def test_only_the_edit_that_agrees_is_offered(contract, tmp_path):
    one = search(contract, tmp_path, wrong("axis"))
    text = "softmax over axis -1 (it acts on axis 1)"
    assert len([*plain_edits(one.code, text)]) > 1
    assert agreeing(one, text) == [PORT]


@pytest.mark.full
def test_a_number_is_fitted_to_torchs_array(contract, tmp_path):
    one = search(contract, tmp_path, PORT.replace("8**0.5", "2.9"))
    mended = [PORT.replace("8**0.5", text) for text in ("(8**0.5)", "2.82842712475")]
    constants = {node: "FACTOR_TO_FIT" for node in one.code.nodes(ast.Constant) if node.value == 2.9}
    ((_, fitted),) = one._tried(constants, set(), None)
    assert fitted in mended


def test_a_number_that_moves_an_array_elsewhere_is_given_up_after_one_run():
    tried = []
    search = SimpleNamespace(
        arrived_first=SimpleNamespace(torch=np.array([0.0, 1.0]), flax=np.array([1.0, 0.0])),
        _array=lambda changed, x: tried.append(x) or np.array([x, 0.0]),
    )
    assert NeighbourSearch._root(search, "", 1.0) is None
    assert tried == [1.001]


@pytest.mark.full
def test_an_edit_that_only_the_forward_pass_agrees_with_is_not_proven(contract, tmp_path):
    source = wrong("residual")
    one = search(contract, tmp_path, source)
    stopped = source.replace("weights @ q)", "jax.lax.stop_gradient(q) + weights @ q)")
    assert one.wrong(stopped) == one.wrong(PORT) == {}
    before = judged(contract, tmp_path / "port.py")
    attempts = Tries(contract, tmp_path / "port.py", source, read(contract / "trace"), 0.0)
    for edited, is_proven in ((stopped, False), (PORT, True)):
        again = attempts._again(edited)
        assert again is not None
        assert (again.same, mends(before, again)) == (is_proven, is_proven)


def test_functions_of_a_loaded_port_are_exchanged_and_put_back(contract, tmp_path):
    one = search(contract, tmp_path, wrong("bound"))
    before = one.live.defined["Port"].__call__.__code__
    with one.live.of(PORT) as side:
        assert side is one.live.side
        assert one.live.defined["Port"].__call__.__code__ != before
    assert one.live.defined["Port"].__call__.__code__ == before
    with (
        exact(),
        one.live.of(PORT.replace("nnx.Rngs(0)", "nnx.Rngs(1)")) as side,
    ):  # __init__ runs while it is loaded
        assert side is not one.live.side


@pytest.mark.slow
def test_ctrl_c_ends_the_search_and_keeps_what_agrees(contract, tmp_path, monkeypatch):
    one = search(contract, tmp_path, wrong("axis"))
    right, runs = one.wrong, []

    def stopping(source: str):
        runs.append(source)
        if PORT in runs:
            raise KeyboardInterrupt
        return right(source)

    monkeypatch.setattr(one, "wrong", stopping)
    assert PORT not in [source for _, source in one.agreeing()]
    assert one.stopped
    assert len(runs) > 1


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("name", MENDED)
def test_the_answers_edit_mends_and_the_reproduction_ends_with_0_then(contract, tmp_path, name):
    port = tmp_path / "port.py"
    port.write_text(wrong(name))
    answer, code = check(str(contract), str(port))
    assert (code, answer["cause"]["proven"], answer["edit"]["verdict"]) == (1, True, "same")
    program = Path(answer["reproduction"])
    assert program.with_suffix(".npz").exists()
    before, edited = tmp_path / "before.py", program.with_stem("edited")
    before.write_text(port.read_text())
    subprocess.run(
        ["git", "apply", "-"], input=answer["edit"]["diff"], cwd=tmp_path, text=True, check=True
    )  # fmt: skip
    # The same edit of the program itself.
    (removed,), (added,) = (
        re.findall(rf"^\{sign}(?!\{sign})(.*)$", answer["edit"]["diff"], re.M) for sign in "-+"
    )
    assert program.read_text().count(removed) == 1
    edited.write_text(program.read_text().replace(removed, added))
    shutil.copy(program.with_suffix(".npz"), edited.with_suffix(".npz"))
    assert ends([program], [program, before], [program, port], [edited]) == [1, 1, 0, 0]
    assert check(str(contract), str(port))[1] == 0


def ends(*commands: list[Path]) -> list[int]:
    """Return the exit codes of programs with their arguments, in a process with neither torch nor jaxpar."""
    code = """
import json, runpy, sys
sys.modules["torch"] = sys.modules["jaxpar"] = None
codes = []
for sys.argv in json.loads(sys.argv[1]):
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        codes.append(0)
    except SystemExit as end:
        codes.append(int(end.code or 0))
print(json.dumps(codes))
"""
    arguments = json.dumps([[*map(str, command)] for command in commands])
    result = subprocess.run([sys.executable, "-c", code, arguments], capture_output=True, text=True)
    assert result.stdout.count("max|port - torch|") == len(commands), result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_reproduction_is_smaller_than_the_port(contract, tmp_path):
    port = tmp_path / "port.py"
    port.write_text(wrong("activation"))
    answer, _ = check(str(contract), str(port))
    program = Path(answer["reproduction"])
    with np.load(program.with_suffix(".npz")) as arrays:
        assert arrays["input/0"].shape[0] == 1
    assert "nnx.Linear(8, 3" not in program.read_text()


def loss_program(body: str, x: np.ndarray, torch_array: np.ndarray) -> Reproduction:
    return Reproduction(f"def loss(x):\n{body}", {"input/0": x, "torch": torch_array}, {}, OF_LOSS + ERROR)


def test_axes_are_cut_only_if_torchs_numbers_stay_right():
    x = np.random.RandomState(0).randn(4, 3)
    rows = loss_program("    return 2 * x.sum(1)\n", x, x.sum(1))
    shorter = smallest(rows, rows.source.replace("2 * ", ""))
    assert shorter is not None
    assert shorter.arrays["input/0"].shape == (1, 3)
    columns = loss_program("    return 2 * x.sum(0)\n", x, x.sum(0))
    same = smallest(columns, columns.source.replace("2 * ", ""))
    assert same is not None
    assert same.arrays["input/0"].shape == (4, 3)


def test_a_statement_that_changes_the_numbers_is_kept():
    x = np.arange(3.0)
    program = loss_program("    y = 2 * x\n    z = x\n    y = y + 1\n    return y\n", x, x)
    shorter = smallest(program, None)
    assert shorter is not None
    assert shorter.source == "def loss(x):\n    y = 2 * x\n    y = y + 1\n    return y\n"


def test_a_program_that_agrees_shows_no_difference():
    x = np.arange(3.0)
    assert smallest(loss_program("    return x\n", x, x), None) is None


# --------------------------------------------------------------------------- the planted bugs as files


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", ports.PLANTS)
def test_a_planted_file_computes_what_the_planted_module_does(name):
    bug = next(bug for bug in bugs.BUGS if bug.name == name)
    _, module, arguments = proof.pair(bug.case, 0)
    module = bug.case.flax(nnx.Rngs(1))
    random = np.random.RandomState(0)  # norms that were not trained are all the same
    weights = nnx.state(module, nnx.Param)
    nnx.update(module, jax.tree.map(lambda x: x + 0.3 * random.randn(*x.shape), weights))
    planted, healthy = (run(source, module, arguments, bug) for source in (ports.planted(name), right(name)))
    own = module(*map(np.asarray, arguments["inputs"]))
    own = bug.case.loss[1](own, *arguments["targets"]) if bug.case.loss else own
    error, without_plant = (float(abs(np.asarray(x) - own).max()) for x in (planted, healthy))
    assert error < 1e-5
    assert without_plant > 1e-5


def right(name: str) -> str:
    return ports.healthy(ports.PLANTS[name][0])


def run(source: str, module: nnx.Module, arguments: dict, bug: bugs.bug.Bug) -> jax.Array:
    defined: dict = {"__name__": "port"}
    exec(source, defined)
    port = defined["flax_module"]
    nnx.update(port, nnx.state(module, nnx.Param))
    outputs = port(*map(np.asarray, arguments["inputs"]))
    return defined["loss"](outputs, *arguments["targets"]) if bug.case.loss else outputs


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_limit_outlasts_an_error_that_python_swallows():
    """What a destructor raises is printed and lost, the limit's TimeoutError included."""

    class Slow:
        def __del__(self):
            time.sleep(0.3)

    def run():
        slow = Slow()
        del slow
        time.sleep(3)

    with pytest.raises(TimeoutError), limited(0.1):
        run()
