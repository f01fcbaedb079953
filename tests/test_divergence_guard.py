"""What ranks say of a step before they run it: everything that makes it another step is in it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx

from jaxpar._parallel.modules.nnx_view import view_nnx
from jaxpar._training import distributed_base, divergence_guard, local_batch
from jaxpar._training.divergence_guard import StepMetadata
from jaxpar._training.world import make_world
from jaxpar.distributed import exchange, step_agreement
from jaxpar.distributed.group import Group
from jaxpar.distributed.guard import fingerprint
from jaxpar.distributed.step_agreement import LENGTH, Ledger
from jaxpar.errors import DivergenceError, ParametersError


def loss(net, x):
    return net(x).mean()


def another_loss(net, x):
    return net(x).sum()


NET = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
WORLD = make_world([0, 1], 0)
DEFINITION = view_nnx(NET).definition
SAID = StepMetadata(1, 0, DEFINITION, (0, 1), ["bias", "kernel"], loss, False, (("accumulate", "1"),))
OTHER = view_nnx(nnx.Linear(3, 2, use_bias=False, rngs=nnx.Rngs(0))).definition
DIFFERENT = {
    "the loss function": {"loss_fn": another_loss},
    "accumulate": {"fingerprint": (("accumulate", "2"),)},
    "the mode": {"keep": True},
    "what is trained": {"trained": (1,)},
    "the module's structure": {"definition": OTHER},
}
BATCHES = {
    "the batch's shapes": ((np.ones((6, 3), np.float32),), {}),
    "the batch's dtypes": ((np.ones((4, 3), np.int32),), {}),
    "the batch's structure": (([np.ones((4, 3), np.float32)],), {}),
    "the batch's other arguments": ((np.ones((4, 3), np.float32),), {"n": 2}),
}


BATCH = ((np.ones((4, 3), np.float32),), {"n": 1})


def spoken(monkeypatch, said, batch=BATCH):
    """The key and the parts that a rank would compare."""
    book = SimpleNamespace(check=lambda step, key, parts: heard.append((key, parts())))
    heard = []
    monkeypatch.setattr(divergence_guard, "ledger", lambda name, group=None: book)
    divergence_guard.compare(local_batch.take(*batch, WORLD), said)
    return heard[0]


@pytest.mark.parametrize("field", DIFFERENT)
def test_a_rank_with_another_step_says_so(field, monkeypatch):
    key, parts = spoken(monkeypatch, SAID)
    other_key, other = spoken(monkeypatch, dataclasses.replace(SAID, **DIFFERENT[field]))
    assert key != other_key
    assert step_agreement.difference("here", {0: parts, 1: other}).startswith(
        f"here: the ranks differ in {field}: rank 0 has "
    )


@pytest.mark.parametrize("field", BATCHES)
def test_a_rank_with_another_batch_says_so(field, monkeypatch):
    args, kwargs = BATCHES[field]
    key, parts = spoken(monkeypatch, SAID)
    other_key, other = spoken(monkeypatch, SAID, (args, {"n": 1} | kwargs))
    assert key != other_key
    assert parts[field] != other[field]


def test_addresses_and_the_order_of_sets_say_nothing():
    """Both are others in every process."""

    class Marked:
        def __init__(self, *words):
            self.words = words

        def __repr__(self):
            return f"<object at 0x{id(self):x}> {' '.join(self.words)}"

    one, other = (SimpleNamespace(graphdef=Marked(*words)) for words in ("ab", "ba"))
    assert divergence_guard._structure(one) == divergence_guard._structure(other)
    assert divergence_guard._structure(SimpleNamespace(graphdef=Marked("a"))) != divergence_guard._structure(
        one
    )


def test_the_same_step_is_known(monkeypatch):
    again = dataclasses.replace(SAID, step=7, definition=view_nnx(NET).definition)
    assert spoken(monkeypatch, SAID) == spoken(monkeypatch, again)


# ------------------------------------------------------------------------------ the record of a rank

GROUP = Group(0, 2, "", 1, 1.0, 0, (0, 1))


@pytest.fixture
def book(monkeypatch):
    monkeypatch.setattr(Ledger, "ask", lambda *_: ())
    return Ledger("here", GROUP, line=lambda site: "train.py:9")


def test_a_step_that_was_left_out_is_said(book):
    for step in (3, 4, 6):
        book.check(step, "key", lambda: {"x": "1"})
    assert book.at(4) == {"x": "1"}
    for step in (2, 5):
        assert book.at(step) == {"step": f"left out step {step} (it is at 6, its first was 3)"}


def test_a_step_that_was_too_long_ago_is_not_known(book):
    for step in (0, 1, LENGTH, LENGTH + 1):
        book.check(step, "key", lambda: {"x": "1"})
    assert book.at(0) == book.at(1) == {}
    assert "left out" in book.at(2)["step"]
    assert book.at(LENGTH) == {"x": "1"}


def test_a_step_that_all_refused_is_asked_again(monkeypatch):
    """Nobody has run it, so the group goes on; what another rank is in already ends it for good."""
    asked = []
    answers = {"parts": {"x": "2"}, "asked": True, "line": "train.py:7"}
    monkeypatch.setattr(exchange, "send", lambda *_, **said: asked.append(said["step"]))
    monkeypatch.setattr(exchange, "delete", lambda folder: None)
    monkeypatch.setattr(step_agreement, "read", lambda key, timeout: json.dumps(answers))
    book = Ledger("here", GROUP, line=lambda site: f"main.py:{site[0].co_name}")
    refusal = r"differ in x: rank 0 has 1, rank 1 has 2\. Rank 0 is at main.py:.*, rank 1 is at train.py:7\."
    for step in (0, 1):
        with pytest.raises(DivergenceError, match=refusal):
            book.check(step, "key", lambda: {"x": "1"})
    assert asked == [0, 1]
    answers["asked"] = False
    with pytest.raises(DivergenceError, match="Rank 1 went on into it"):
        book.check(2, "key", lambda: {"x": "1"})
    with pytest.raises(DivergenceError, match="Rank 1 went on into it"):
        book.check(3, "another", lambda: {"x": "2"})


@pytest.mark.parametrize("at", [3, 4])
def test_a_question_is_answered_at_its_step(at, book, monkeypatch):
    put = {}
    for module in (step_agreement, exchange):
        monkeypatch.setattr(module, "post", lambda key, text: put.__setitem__(key, json.loads(text)))
    for step in range(at):
        book.check(step, "key", lambda: {"x": "1"})
    for post in book.hear({"step": 3, "folder": "f", "rank": 1, "parts": {"x": "1"}, "line": "train.py:8"}):
        put[post.key] = json.loads(post.text)
    answers = {"f/0": {"parts": {"x": "1"}, "line": "train.py:9", "asked": False}}
    assert put == ({} if at == 3 else answers)
    if at == 3:
        book.check(3, "key", lambda: {"x": "1"})
        assert put == answers


# ---------------------------------------------------------------------- of the process, and at the start


def test_the_environment_of_a_rank():
    here = fingerprint()
    assert here["world"] == "1"
    assert here["devices"] == f"8 x {jax.devices()[0].device_kind}"
    assert here["jax"] == jax.__version__
    with jax.enable_x64(not jax.config.jax_enable_x64):
        assert {name for name, said in fingerprint().items() if said != here[name]} == {"jax_enable_x64"}
    with jax.default_matmul_precision("highest"):
        changed = {name for name, said in fingerprint().items() if said != here[name]}
    assert changed == {"jax_default_matmul_precision"}


MINE = ["bias: float32[2]", "kernel: float32[3, 2]"]


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        (MINE[:1], "Rank 0 has 2 values, while rank 1 has 1."),
        (
            [MINE[0], "kernel: float32[2, 3]"],
            r"rank 0 has kernel: float32\[3, 2\], rank 1 has kernel: float32\[2, 3\]",
        ),
        ([MINE[0], "kernel: float64[3, 2]"], r"float32\[3, 2\], rank 1 has kernel: float64\[3, 2\]"),
        (["scale: float32[2]", MINE[1]], r"rank 0 has bias: float32\[2\], rank 1 has scale: float32\[2\]"),
    ],
    ids=["number", "shape", "dtype", "name"],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_says_both_sides_of_other_parameters(rank, theirs, text, monkeypatch):
    """docs/semantics.md row D2: torch's rank 0 hangs, and dtypes are not compared."""

    def exchange(what, said, group):
        digests = [hashlib.sha256("\n".join(lines).encode()).hexdigest() for lines in (MINE, theirs)]
        return digests if what.endswith(": parameters") else ["\n".join(lines) for lines in (MINE, theirs)]

    monkeypatch.setattr(distributed_base, "exchange", exchange)
    with pytest.raises(ParametersError, match=f"DDP expects same model across all ranks, but .*{text}"):
        distributed_base._verify([MINE, theirs][rank], None)


def test_the_same_parameters_are_said_once(monkeypatch):
    asked = []
    exchange = lambda what, said, group: asked.append(what) or [said] * 2  # noqa: E731
    monkeypatch.setattr(distributed_base, "exchange", exchange)
    distributed_base._verify(MINE, None)
    assert asked == ["DistributedDataParallel: parameters"]


@pytest.mark.parametrize(("init_sync", "asked"), [(False, []), (True, ["compare", "verify", "broadcast"])])
def test_without_init_sync_nothing_is_asked(init_sync, asked, monkeypatch):
    """docs/semantics.md row D3: every rank keeps the parameters that it has."""
    said = []
    monkeypatch.setattr(distributed_base, "compare_environments", lambda name, group: said.append("compare"))
    monkeypatch.setattr(distributed_base, "_verify", lambda lines, group: said.append("verify"))

    def broadcast(values, group, group_src):
        said.append("broadcast")
        return values

    monkeypatch.setattr(distributed_base, "broadcast", broadcast)
    values = view_nnx(NET).current_values()
    arrays = SimpleNamespace(parameters=(0, 1), names=["bias", "kernel"], read=lambda: values)
    world = dataclasses.replace(WORLD, size=2)
    settled = distributed_base.settle(arrays, world, init_sync)
    assert said == asked
    assert init_sync or settled is values


@pytest.mark.parametrize("n", [2, 40, 41, 3000])
def test_what_ranks_send_of_many_parameters_is_short_and_differs(n):
    names = [f"layers.{i}.kernel" for i in range(n)]
    text = divergence_guard.listed(names)
    assert text == ", ".join(names) if n <= 40 else len(text) < 30
    assert text != divergence_guard.listed([*names[:-1], "layers.0.bias"])
