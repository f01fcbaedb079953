"""DistributedDataParallel against torch's, over gloo: real processes on both sides, in float64.

Every rank writes what it saw at every step: its loss and outputs, gradients, weights and buffers. Here they
are compared. `gloo/cases.py` says what is trained, `gloo/theirs.py` and `gloo/ours.py` how.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import ROOT, outputs, ranks

pytest.importorskip("torch")

GLOO = Path(__file__).parent / "gloo"
sys.path.insert(0, str(GLOO))
import cases  # noqa: E402
import ours  # noqa: E402

pytestmark = pytest.mark.timeout(900)  # of a machine that has much else to do; alone they take seconds

NEAR = 1e-10
KINDS = ("loss", "out", "gradient", "weight", "buffer")
Seen = list[dict[str, np.ndarray]]
PATH = {"PYTHONPATH": f"{ROOT}:{GLOO}"}


def run_torch(folder: Path, W: int, names: list[str]) -> Seen:
    # One process, which forks W.
    outputs(ranks(1, f"import theirs; theirs.main({str(folder)!r}, {W}, {names!r})", env=PATH, timeout=280))
    return [dict(np.load(folder / f"theirs.{r}.npz")) for r in range(W)]


def run_jaxpar(folder: Path, P: int, K: int, names: list[str]) -> Seen:
    source = f"import ours; ours.main({str(folder)!r}, {names!r}, {K})"
    outputs(ranks(P, source, devices=K, env=PATH, timeout=280))
    return [dict(np.load(folder / f"ours{P}x{K}.{r}.npz")) for r in range(P)]


# --------------------------------------------------------------------------------------- comparing


def of_case(seen: Seen, name: str) -> Seen:
    return [
        {k.removeprefix(f"{name}/"): v for k, v in one.items() if k.startswith(f"{name}/")} for one in seen
    ]


def kind_of(key: str) -> str:
    return next(kind for kind in KINDS if kind in key.split("."))


def wanted(key: str, case: cases.Case, theirs: Seen, process: int, K: int) -> np.ndarray | None:
    """What torch's ranks make of it that this process stands for; None if they have nothing."""
    mine = theirs[process * K : process * K + K]
    if case.pairs:
        theirs = theirs[process // 2 * 2 :][:2]
    kind, (step, part) = kind_of(key), key.split(".")[:2]
    alone = part.isdigit() and int(part) + 1 < case.accumulate
    if kind == "loss":
        # torch's is the rank's own; ours the mean over all that have rows, except in no_sync.
        return np.mean([one[key] for one in (mine if alone else theirs) if key in one])
    if kind == "out":
        return np.concatenate([one[key] for one in mine])
    if kind != "buffer" or step == "end" or alone or not case.sync or case.join is not None:
        return mine[0].get(key)
    # docs/semantics.md row D7: torch's other ranks get rank 0's buffers before the next forward; ours have
    # them when the step has ended.
    return theirs[0][key]


def differences(name: str, ours: Seen, theirs: Seen, K: int = 1) -> set[str]:
    """The kinds of values in which the two are apart, of one training."""
    case, found = cases.CASES[name], set()
    for process, seen in enumerate(ours):
        for key, value in seen.items():
            want = wanted(key, case, theirs, process, K)
            if want is None:
                # docs/semantics.md row D14: None, where a JAX gradient is zero.
                want = np.zeros_like(value) if case.model == "unused" else np.full_like(value, np.nan)
            if value.shape != want.shape or not np.abs(value - want).max() <= NEAR:
                found.add(kind_of(key))
        want_keys = {k for one in theirs[process * K : process * K + K] for k in one}
        if not want_keys <= set(seen):
            found.add("keys")
    return found


def assert_equal(ours: Seen, theirs: Seen, names: list[str], K: int = 1) -> None:
    apart = {name: differences(name, of_case(ours, name), of_case(theirs, name), K) for name in names}
    assert not {name: kinds for name, kinds in apart.items() if kinds}


# ------------------------------------------------------------------------------------ planted faults

MISTAKEN = {
    # ours -> theirs of another training, which must be told apart by these kinds of values.
    "join": ("join, effective", {"gradient", "weight"}),
    "cnn": ("cnn, own buffers", {"buffer"}),
    "join, own buffers": ("join", {"buffer"}),
    "fp16": ("bf16", {"gradient"}),
    "allreduce": ("fp16", {"gradient"}),
    "noop": ("mlp", {"gradient"}),
    "join, no_sync": ("join, no_sync, effective", {"gradient", "weight"}),
    "powersgd": ("powersgd, cold", {"gradient"}),
    "powersgd, rank 2": ("powersgd", {"gradient"}),
    "powersgd, rank 3": ("powersgd, rank 2", {"gradient"}),
}


def assert_faults_are_found(ours: Seen, theirs: Seen) -> None:
    for name, (other, kinds) in MISTAKEN.items():
        mine, others = of_case(ours, name), of_case(theirs, other)
        known = [{k: a[k] for k in a if k in b} for a, b in zip(mine, others, strict=True)]
        assert kinds <= differences(name, known, others), name
    mine, others = of_case(ours, "cnn"), of_case(theirs, "cnn")
    for kind in KINDS:
        key = next(k for k in mine[1] if kind_of(k) == kind)
        moved = [mine[0], mine[1] | {key: mine[1][key] + 1e-9}]
        assert differences("cnn", moved, others) == {kind}
    summed = [{k: v * (2 if kind_of(k) == "gradient" else 1) for k, v in one.items()} for one in mine]
    assert differences("cnn", summed, others) == {"gradient"}
    missing = [mine[0], {k: v for k, v in mine[1].items() if "out" not in k}]
    assert "keys" in differences("cnn", missing, others)


# ----------------------------------------------------------------------------------------- the laws


@pytest.mark.slow
def test_two_processes(tmp_path):
    """docs/semantics.md rows D3, D4, D6, D7, D9, D13, D14; H2 to H6; J2 to J4, J9."""
    theirs = run_torch(tmp_path, 2, cases.OF_TWO)
    mine = run_jaxpar(tmp_path, 2, 1, cases.OF_TWO)
    assert_equal(mine, theirs, cases.OF_TWO)
    assert_faults_are_found(mine, theirs)
    # What is written down as different is different: D7, D13, D14.
    key = "n.running_var"
    zero, one = of_case(theirs, "cnn")
    assert np.abs(zero[f"5.0.buffer.{key}"] - one[f"5.0.buffer.{key}"]).max() > 1e-3
    assert np.array_equal(zero[f"end.buffer.{key}"], one[f"end.buffer.{key}"])
    assert all(seen["forgets unused"] for seen in theirs)
    assert "0.gradient.c.weight" not in of_case(theirs, "unused")[0]


@pytest.mark.long
@pytest.mark.slow
def test_groups_of_two_processes(tmp_path):
    """docs/semantics.md rows D30, B7: two models, and statistics of two groups in one model."""
    theirs = run_torch(tmp_path, 4, cases.PAIRS)
    mine = run_jaxpar(tmp_path, 4, 1, cases.PAIRS)
    assert_equal(mine, theirs, cases.PAIRS)
    # Of all four it is another training, and of the other pair too.
    for name, other in (
        ("synchronised in pairs", "pairs, synchronised"),
        ("pairs, synchronised", "pairs, cnn"),
    ):
        assert {"out", "gradient"} <= differences(name, of_case(mine, name), of_case(theirs, other))
    turned = of_case(theirs, "pairs")[2:] + of_case(theirs, "pairs")[:2]
    assert {"loss", "gradient", "weight"} <= differences("pairs", of_case(mine, "pairs"), turned)


@pytest.mark.long
def test_three_processes(tmp_path):
    """docs/semantics.md row D4: 1/3 is rounded before it multiplies."""
    theirs = run_torch(tmp_path, 3, cases.OF_THREE)
    assert_equal(run_jaxpar(tmp_path, 3, 1, cases.OF_THREE), theirs, cases.OF_THREE)


@pytest.mark.long
def test_four_replicas_in_one_two_and_four_processes(tmp_path):
    """A replica is a device of any process: the same numbers whatever the processes are."""
    names = cases.SEVERAL_DEVICES
    theirs = run_torch(tmp_path, 4, names)
    assert_equal(run_jaxpar(tmp_path, 4, 1, cases.OF_FOUR), theirs, cases.OF_FOUR)
    assert_equal(run_jaxpar(tmp_path, 2, 2, names), theirs, names, K=2)
    alone, name = [ours.trained(names, 0, 4)], "uneven rows"
    assert_equal(alone, theirs, [n for n in names if n != name], K=4)
    # Ten rows on four devices are 3, 3, 3, 1 and not 3, 2, 3, 2: the planted fault.
    assert differences(name, of_case(alone, name), of_case(theirs, name), 4) == set(KINDS)


SYNCHRONISED = """
    import jax
    import numpy as np
    from flax import nnx
    from test_value_and_grad import Net, assert_close, square

    import jaxpar

    jaxpar.distributed.init_process_group()
    rank = jaxpar.distributed.get_rank()
    random = np.random.RandomState(0)
    x, y = random.randn(2, 3, 5, 3), random.randn(2, 3, 5, 2)  # [rank, step, rows, features]
    net = jaxpar.DistributedDataParallel(Net(jaxpar.nn.SyncBatchNorm))
    reference = Net(jaxpar.nn.BatchNorm)


    def check(step, rows):
        # One BatchNorm over the rows of all replicas; two of them in each rank that has rows.
        x_of_all = np.concatenate([x[r, step, :n] for r, n in enumerate(rows)])
        pieces = [(r, slice(*s)) for r, n in enumerate(rows) if n for s in ((0, -(-n // 2)), (-(-n // 2), n))]

        def total(net):
            out = dict(enumerate(np.cumsum([0, *rows])))
            all_of_them = net(x_of_all)
            parts = [all_of_them[out[r] : out[r + 1]][s] - y[r, step][s] for r, s in pieces]
            return sum((part**2).mean() for part in parts) / len(parts)

        n = rows[rank]
        loss, gradients = net.value_and_grad(square)(x[rank, step, :n], y[rank, step, :n])
        want = nnx.value_and_grad(total)(reference)
        got = loss, nnx.to_pure_dict(gradients)["module"]
        assert_close(got, (want[0], nnx.to_pure_dict(want[1])), 1e-12)
        return got


    first = check(0, (5, 5))
    with net.join(divide_by_initial_world_size=False):
        check(1, (5, 4))
        if rank == 1:
            check(2, (0, 3))
    if rank == 0:
        reference(x[1, 2, :3])
    buffers = [nnx.to_pure_dict(nnx.state(n, nnx.BatchStat)) for n in (net.module, reference)]
    assert_close(*buffers, 1e-12)
    try:
        # A planted fault: without synchronisation it is another number.
        plain = jaxpar.DistributedDataParallel(Net(jaxpar.nn.BatchNorm)).value_and_grad(square)
        assert_close(plain(x[rank, 0], y[rank, 0])[0], first[0], 1e-3)
        print("the same without SyncBatchNorm")
    except AssertionError:
        pass
    try:
        with net.join(throw_on_early_termination=True):
            for step in range(1 + rank):
                net.value_and_grad(square)(x[rank, step], y[rank, step])
    except RuntimeError as error:
        print(error)
    jaxpar.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_sync_batch_norm_and_early_termination():
    """docs/semantics.md rows B2, B3, with uneven rows and ranks without any; 2.3 J6, J8."""
    path = {"PYTHONPATH": f"{ROOT}:{GLOO.parent}"}
    said = outputs(ranks(2, SYNCHRONISED, devices=2, env=path, timeout=280))
    assert [text.splitlines()[-1] for text in said] == [
        "Rank 0 exhausted all inputs.",
        "Detected at least one rank that exhausted inputs. Throwing across all ranks.",
    ]
    assert not any("the same without" in text for text in said)


FAULTS = """
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    import jaxpar

    jaxpar.distributed.init_process_group()
    rank = jaxpar.distributed.get_rank()
    x = np.ones((4, 3))


    def wrapped(outputs=2, **options):
        return jaxpar.DistributedDataParallel(nnx.Linear(3, outputs, rngs=nnx.Rngs(0), **options))


    def loss(net, x):
        return (jnp.asarray(net(x)) ** 2).mean()


    def tell(what, f):
        try:
            f()
            print(what, "nothing raised")
        except jaxpar.errors.JaxparError as error:
            print(f"{what}: {type(error).__name__}: {error}", flush=True)


    def first_step(batch):
        return wrapped().value_and_grad(loss)(batch)


    tell("shapes", lambda: wrapped(2 + rank))
    tell("dtypes", lambda: wrapped(param_dtype=[jnp.float32, jnp.float64][rank]))
    tell("number", lambda: wrapped(use_bias=rank == 0))
    tell("rows", lambda: first_step(x[: 4 - rank]))
    tell("types", lambda: first_step(x.astype([np.float32, np.float64][rank])))
    tell("mode", lambda: first_step([x] if rank else (x,)))
    step = wrapped().value_and_grad(loss)
    step(x)
    step(x[: 4 - rank])  # unknown to rank 1 alone: rank 0 is in the all-reduce when rank 1 raises
    print("trained on")
"""
LINES = " Ranks 0, 1 are at <string>:.*."
SAID = [
    "shapes: ParametersError: .* rank 0 has module.bias: float32[2], rank 1 has module.bias: float32[3].",
    "dtypes: ParametersError: .* rank 0 has module.bias: float32[2], rank 1 has module.bias: float64[2].",
    "number: ParametersError: .* Rank 0 has 2 values, while rank 1 has 1.",
    "rows: DivergenceError: .* in the batch's shapes: rank 0 has (((4, 3),),), rank 1 has (((3, 3),),)."
    + LINES,
    "types: DivergenceError: .* differ in the batch's dtypes: rank 0 has float32, rank 1 has float64."
    + LINES,
    "mode: DivergenceError: .* differ in the batch's structure: .*",
]


def fits(line: str, pattern: str) -> bool:
    """`.*` stands for anything, all else for itself."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split(".*"))), line) is not None


@pytest.mark.slow
def test_ranks_that_differ_raise_on_every_rank():
    """docs/semantics.md row D2, where some ranks hang and dtypes are not looked at."""
    ended = ranks(2, FAULTS, timeout=150)
    for one in ended:
        lines = [line for line in one.out.splitlines() if ": " in line and "Gloo" not in line]
        assert len(lines) == len(SAID), one.out + one.err
        for line, pattern in zip(lines, SAID, strict=True):
            assert fits(line, pattern), line
        assert one.code == 1
        assert "trained on" not in one.out
        assert "DivergenceError" in one.err
        assert "rank 0 has (((4, 3),),), rank 1 has (((3, 3),),)" in one.err


def test_the_patterns_are_read_strictly():
    assert not fits(SAID[0].replace("[3]", "[4]"), SAID[0])
    assert not fits(SAID[0] + " and more", SAID[0])
