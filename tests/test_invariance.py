"""jaxpar invariance: worlds that train the same are the same, and a mistake is named in its first step."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpar import parity
from jaxpar._cli.main import cli
from jaxpar.parity._runs.run import read_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# -------------------------------------------------------- a training in NumPy, in a world that is pretended

ROWS, BATCH, STEPS, RATE, DECAY = 42, 16, 7, 0.05, 0.9
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.standard_normal((ROWS, 3)), RANDOM.integers(0, 4, ROWS)


def run(folder: Path, world: str, plant: str = "") -> Path:
    """Train a linear model by hand; every process, device and accumulated batch has its part of the rows."""
    processes, devices, k = (int(n or 1) for n in re.fullmatch(r"(\d)x(\d)(?:/(\d))?", world).groups())
    other = world != "1x1"
    parts = processes * devices * k
    params, average, momentum = np.full(3, 0.5), np.full(3, 0.5), np.zeros(3)
    if plant == "start" and other:
        params = params + 1e-3
    taps = [
        parity.Tap(folder, start={"w": params}, extra={"average.w": average}, rank=r, world=processes)
        for r in range(processes)
    ]
    order = np.arange(ROWS)
    for step in range(STEPS):
        start = step * BATCH % (ROWS + BATCH - ROWS % BATCH)
        rows = order[start : start + BATCH]
        if plant == "drop" and other and len(rows) < BATCH:
            rows = order[:BATCH]
        if plant == "end" and other and step == STEPS - 1:
            break
        if plant == "other" and other:
            rows = (rows + 5) % ROWS
        if plant == "size" and other:
            rows = np.concatenate([rows, (rows + 16) % ROWS])
        pieces = np.array_split(rows, parts)
        if plant == "repeated" and other:
            pieces = [rows] * parts
        errors = [X[p] @ params - Y[p] for p in pieces]
        counts = [np.sum(Y[p] != 0) if plant.startswith("ratio") else len(p) for p in pieces]
        sums = [np.sum((e * (Y[p] != 0)) ** 2) if plant.startswith("ratio") else np.sum(e**2)
                for e, p in zip(errors, pieces, strict=True)]  # fmt: skip
        slopes = [2 * X[p].T @ (e * (Y[p] != 0) if plant.startswith("ratio") else e)
                  for e, p in zip(errors, pieces, strict=True)]  # fmt: skip
        if plant in ("unequal", "ratio parts", "ratio alone", "clip"):
            means = [s / c for s, c in zip(slopes, counts, strict=True)]
            if plant == "clip":
                means = [m * min(1, 0.5 / np.linalg.norm(m)) for m in means]
            gradient = np.mean(means, 0)
            loss = np.mean([s / c for s, c in zip(sums, counts, strict=True)])
            if plant == "clip":
                loss = sum(sums) / sum(counts)
        else:
            loss, gradient = sum(sums) / sum(counts), np.sum(slopes, 0) / sum(counts)
        if plant == "sum":
            loss, gradient = loss * parts, gradient * parts
        if plant == "divided":
            gradient = gradient / parts
        power = {"rate": 1.0, "rate alone": 1.0, "root": 0.5, "reciprocal root": -0.5}.get(plant, 0.0)
        rate = RATE * parts**power
        if plant == "state":
            momentum = momentum + parts
        reported = sums[0] / counts[0] if plant == "metric" else loss * (parts if plant == "metrics" else 1)
        params = params - rate * gradient
        for _ in range(k if plant == "averages" else 1):
            average = DECAY * average + (1 - DECAY) * params
        for rank, tap in enumerate(taps):
            own = range(rank * parts // processes, (rank + 1) * parts // processes)
            if plant == "ratio parts":
                for i in own:
                    tap(step, batch=(X[pieces[i]], Y[pieces[i]]), loss=sums[i] / counts[i])
            else:
                mine = np.concatenate([pieces[i] for i in own])
                tap(step, batch=(X[mine], Y[mine]), loss=reported)
            accuracy = np.array(
                [0.5 + 0.1 * rank * (plant == "accuracy") - 0.05 * (plant == "accuracy" and other)]
            )
            apart = rank * 1e-3 * (plant == "apart")
            tap(
                step,
                gradients=None if plant == "rate alone" else {"w": gradient + apart},
                parameters={"w": params + apart},
                optimizer={"momentum": momentum},
                rate=rate if plant == "rate" else None,
                extra={"average.w": average, "accuracy": accuracy},
            )
    for tap in taps:
        tap.close()
    return folder


LAST = ROWS // BATCH  # the first step with fewer rows
CAUSES: list[tuple[str, str, int, str, str]] = [
    ("start", "1x2", -1, "parameters", "before the first step"),
    ("drop", "2x1", LAST, "batch", "last batch"),
    ("end", "2x1", STEPS - 1, "batch", "has no step 6, in which 1x1 takes"),
    ("other", "2x1", 0, "batch", "1x1"),
    ("size", "1x2", 0, "batch", "batch size is for each of the 2 devices"),
    ("repeated", "2x1", 0, "batch", "in all 2 processes: no sampler"),
    ("sum", "1x4", 0, "loss", "4 times as large in 1x4: a sum over the 4 devices"),
    ("sum", "1x1/2", 0, "loss", "a sum over the 2 accumulated batches"),
    ("sum", "2x1", 0, "loss", "a sum over the 2 processes"),
    ("divided", "1x2", 0, "gradients", "divided by the number of devices .2. once more"),
    ("unequal", "1x3", 0, "loss", "perhaps: 16 rows are divided into 3 parts whose means count alike"),
    ("unequal", "1x4", LAST, "loss", "10 rows of step 2 are divided into 4 parts that are not equal"),
    ("ratio parts", "1x1/2", 0, "loss", "elements other than 0 of batch.1, and the parts of 1x1/2 have"),
    ("ratio parts", "2x1", 0, "loss", "a mean of ratios is not the ratio of sums"),
    ("ratio alone", "1x2", 0, "loss", "perhaps: .* elements other than 0 of batch.1"),
    ("clip", "1x2", 0, "gradients", "clipped before they are averaged: 1x1 limits the global norm to 0.5"),
    ("metric", "1x2", 0, "loss", "only the reported loss differs .* not reduced"),
    (
        "metrics",
        "1x2",
        0,
        "loss",
        "only the reported loss differs: it is 2 times as large in 1x2: a sum",
    ),
    (
        "rate",
        "1x2",
        0,
        "rate",
        "2 times as large in 1x2: it is scaled by the number of devices",
    ),
    (
        "root",
        "1x4",
        0,
        "parameters",
        "in 1x4: it is scaled by the root of the number of devices",
    ),
    (
        "reciprocal root",
        "1x4",
        0,
        "parameters",
        "rate is 0.5 times as large in 1x4: it is scaled by the root of the number of devices",
    ),
    ("rate alone", "2x1", 0, "parameters", "updates are 2 times as large .* were not tapped"),
    ("apart", "2x1", 0, "gradients", "processes of 2x1 hold different gradients or parameters"),
    ("accuracy", "2x1", 0, "extra", "accuracy is not reduced over the processes of 2x1"),
    ("averages", "1x1/2", 0, "extra", "average.w averages the parameters once for each of the 2 accumulated"),
]


@pytest.mark.parametrize(
    ("plant", "world", "step", "part", "cause"),
    CAUSES,
    ids=[f"{c[0]}-{c[1]}".replace(" ", "_") for c in CAUSES],
)
def test_a_mistake_is_named(plant, world, step, part, cause, tmp_path):
    a, b = run(tmp_path / "a", "1x1", plant), run(tmp_path / "b", world, plant)
    result = parity.bisect(a, b, worlds=("1x1", world))
    assert (result.step, result.part) == (step, part), str(result)
    assert any(re.search(cause, text) for text in result.causes), str(result)
    back = parity.bisect(b, a, worlds=(world, "1x1"))
    assert (back.step, back.part) == (step, part)


@pytest.mark.parametrize("plant", ["", "ratio"])
@pytest.mark.parametrize("world", ["1x1", "1x4", "2x1", "2x2", "1x1/2", "2x2/2"])
def test_worlds_that_train_the_same_are_the_same(plant, world, tmp_path):
    a, b = run(tmp_path / "a", "1x1", plant), run(tmp_path / "b", world, plant)
    result = parity.bisect(a, b, worlds=("1x1", world))
    assert result.same, str(result)
    assert not result.notes
    assert max(d for part, c in result.curves.items() for d in c.distances) < 1e-13


def test_adam_hides_no_sum(tmp_path):
    for name, factor in (("a", 1.0), ("b", 2.0)):
        tap = parity.Tap(tmp_path / name, start={"w": np.ones(3)})
        for step in range(4):
            tap(
                step,
                gradients={"w": factor * (np.arange(3) + 1)},
                parameters={"w": np.full(3, 1 - 0.1 * step)},
            )
    paths = tmp_path / "a", tmp_path / "b"
    assert parity.bisect(*paths).same  # as between two libraries: one taps before clipping
    result = parity.bisect(*paths, worlds=("1x1", "1x2"))
    assert (result.part, len(result.causes)) == ("gradients", 1)
    assert "a sum over the 2 devices" in result.causes[0]


def test_an_average_of_rounding_is_rounding(tmp_path):
    for name, sign in (("a", 1.0), ("b", -1.0)):
        tap = parity.Tap(tmp_path / name, start={"w": np.ones(3), "bias": np.zeros(3)})
        for step in range(3):
            bias = {"bias": np.full(3, sign * 1e-3 * (step + 1))}  # Adam makes whole steps of nothing
            gradients = {"w": np.ones(3), "bias": np.full(3, sign * 1e-17)}
            tap(step, gradients=gradients, parameters={"w": np.ones(3), **bias}, extra={"average": bias})
    assert parity.bisect(tmp_path / "a", tmp_path / "b", worlds=("1x1", "1x2")).same


def test_types_smaller_than_float64_are_noted(tmp_path):
    for name in "ab":
        parity.Tap(tmp_path / name)(0, parameters={"w": np.ones(3, np.float32)}, loss=1.0)
    result = parity.bisect(tmp_path / "a", tmp_path / "b", worlds=("1x1", "1x2"))
    assert "parameters w are float32, which the script asks for" in result.notes[0]


@pytest.mark.parametrize("world", ["1", "0x1", "1x2/0", "1x2/", "axb", ""])
def test_what_is_no_world_is_refused(world, tmp_path):
    with pytest.raises(ValueError, match="a world is the processes"):
        parity.bisect(tmp_path, tmp_path, worlds=("1x1", world))


# ---------------------------------------------------------------------------------- taps in traced programs


def steps_of(folder: Path) -> list[tuple[int, float, np.ndarray]]:
    steps = read_run(folder).steps
    return [(k, step.loss, step.parts["parameters"].samples) for k, step in steps.items()]


def loops(tap: parity.Tap) -> dict[str, Callable[[], Any]]:
    x = jnp.arange(24.0).reshape(4, 6)

    def body(carry, row):
        w, i = carry
        w = w - 0.1 * row[0]
        tap(i, batch=row, loss=w.sum(), parameters={"w": w})
        return (w, i + 1), None

    def looped():
        carry = jnp.ones(3), 0
        for row in x:
            carry, _ = body(carry, row)

    compiled = jax.jit(body)

    def eager_steps():
        carry = jnp.ones(3), 0
        for row in x:
            carry, _ = compiled(carry, row)
        jax.block_until_ready(carry)

    return {"loop": looped, "jit": eager_steps, "scan": lambda: jax.lax.scan(body, (jnp.ones(3), 0), x)}


@pytest.mark.parametrize("kind", ["jit", "scan"])
def test_a_traced_call_writes_when_it_runs(kind, tmp_path):
    for name in ("loop", kind):
        tap = parity.Tap(tmp_path / name)
        loops(tap)[name]()
        jax.effects_barrier()
        tap.close()
    for one, other in zip(steps_of(tmp_path / "loop"), steps_of(tmp_path / kind), strict=True):
        assert one[:2] == pytest.approx(other[:2])
        np.testing.assert_allclose(one[2], other[2])


def test_every_device_writes_its_rows(tmp_path):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.arange(24.0).reshape(8, 3), NamedSharding(mesh, P("d")))
    tap = parity.Tap(tmp_path)

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False)
    def step(x):
        loss = jax.lax.pmean(x.mean(), "d")
        tap(0, batch=x, loss=loss)
        return loss

    step(x).block_until_ready()
    jax.effects_barrier()
    (one,) = read_run(tmp_path).steps.values()
    assert one.batch[""].digests.shape == (2, 8)
    assert len(np.unique(one.batch[""].digests[0])) == 8
    assert one.loss == pytest.approx(11.5)


# ---------------------------------------------------------------------------------------------- the command

HEAD = """
import os, sys, time
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
import jaxpar
from jaxpar import parity
"""
STEP = (
    HEAD
    + """
jaxpar.virtual_devices(3)  # the world decides
jaxpar.distributed.init_process_group()
rank, world = jaxpar.distributed.get_rank(), jaxpar.distributed.get_world_size()

class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs) if "norm" in sys.argv else None
        self.drop = nnx.Dropout(0.5 if "drop" in sys.argv else 0.0, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        x = self.first(x)
        x = x if self.norm is None else self.norm(x)
        return self.last(self.drop(nnx.tanh(x)))

net = jaxpar.DistributedDataParallel(Net(nnx.Rngs(0)))
step = jaxpar.train_step(net, nnx.Optimizer(net, optax.adam(0.01), wrt=nnx.Param),
                         lambda net, x, y: ((net(x) - y) ** 2).mean())
random = np.random.default_rng(0)
rows = [(random.normal(size=(16, 4)).astype(np.float32), random.normal(size=(16, 1))) for _ in range(6)]
if "pure" in sys.argv:
    function, carry = step.pure()
    stacked = [np.stack(x) for x in zip(*rows)]
    carry, losses = jax.lax.scan(lambda carry, batch: function(carry, *batch), carry, tuple(stacked))
    step.load(carry)
else:
    for x, y in rows:
        loss = step(*(z[rank * 16 // world : (rank + 1) * 16 // world] for z in (x, y)))
        assert loss.shape == () and loss.dtype == jnp.float64 and step.metrics is None
assert net.module.first.kernel[...].dtype == np.float64
jaxpar.distributed.destroy_process_group()
"""
)
LOOP = (
    HEAD
    + """
k = int(os.environ.get("JAXPAR_ACCUMULATE", 1)) if len(sys.argv) < 2 else int(sys.argv[1])
w, tap = jnp.full(3, 0.5), parity.Tap("taps")
for step in range(50):
    x = np.random.default_rng(step).normal(size=(8, 3))
    gradient = sum(2 * part.T @ (part @ w) / len(part) for part in np.split(x, k)) / k
    w = w - 0.1 * gradient
    tap(step, batch=x, loss=((x @ w) ** 2).mean(), parameters={"w": w})
"""
)


def invariance(*arguments: str, wait: bool = True) -> Any:
    command = [sys.executable, "-m", "jaxpar", "invariance", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    if not wait:
        return process
    output, errors = process.communicate(timeout=400)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worlds", "numbers", "others"),
    [
        ("1x2,2x1", "2", ["2x1/2"]),
        pytest.param(
            *("1x1,1x2,2x1", "1,2", ["1x1/2", "1x2", "1x2/2", "2x1", "2x1/2"]), marks=pytest.mark.long
        ),
    ],
)
def test_a_train_step_needs_no_line(worlds, numbers, others, script):
    ended = invariance(script(STEP), "--worlds", worlds, "--accumulate", numbers, "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads(ended.stdout)
    assert [pair["world"] for pair in document["pairs"]] == others
    for pair in document["pairs"]:
        assert pair["same"]
        assert 0 < pair["distance"] < 1e-12
        assert set(pair["bisection"]["curves"]) == {"batch", "loss", "gradients", "parameters", "optimizer"}
        assert len(pair["bisection"]["curves"]["loss"]["steps"]) == 6


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words", "named"),
    [
        (["--accumulate", "1,2", "--worlds", "1x2"], ["pure"], ""),
        (["--worlds", "1x1,1x2"], ["norm"], "BatchNorm normalises by the rows of each device"),
        (["--worlds", "1x1,1x2"], ["norm", "drop"], "random draws in the step .* .there is a key for each"),
        (["--worlds", "1x1", "--accumulate", "1,2"], ["drop"], "draws .* depend on the accumulated batch"),
    ],
    ids=["a_scan_is_tapped", "statistics", "statistics_and_draws", "draws"],
)
def test_a_suspect_is_removed(options, words, named, script):
    ended = invariance(*options, script(STEP), *words)
    assert ended.returncode == (1 if named else 0), ended.stdout + ended.stderr
    assert re.search(named, ended.stdout), ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["--", "{accumulate}"], pytest.param([], marks=pytest.mark.long)],
    ids=["argument", "variable"],
)
def test_a_loop_with_a_tap_reads_the_number_of_batches(arguments, script):
    ended = invariance(*("--worlds", "1x1", "--accumulate", "1,4", "--steps", "5", script(LOOP), *arguments))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1x1/4 is as 1x1: 5 steps, to" in ended.stdout


@pytest.mark.slow
def test_a_loop_that_reads_no_number_of_batches_is_refused(script):
    ended = invariance("--worlds", "1x1", "--accumulate", "1,4", "--steps", "5", script(LOOP), "1")
    assert ended.returncode == 2
    assert "takes no number of batches to accumulate. Read int(os.environ" in ended.stdout


PROCESSES = (
    HEAD
    + """
from jax.sharding import NamedSharding, PartitionSpec as P

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    jax.distributed.initialize(os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"], world, rank)
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
everywhere, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False)
def gradient_of(w, x):
    key = jax.random.key(0)
    if "rank" in sys.argv:
        key = jax.random.fold_in(key, jax.lax.axis_index("d"))
    keep = jax.random.bernoulli(key, 0.5, x.shape) if len(sys.argv) > 1 else 1.0
    return jax.lax.pmean(jax.value_and_grad(lambda w: ((x * keep @ w) ** 2).mean())(w), "d")

w = jax.device_put(jnp.full(3, 0.5), everywhere)
tap = parity.Tap("taps", start={"w": w})
for step in range(5):
    rows = np.random.default_rng(step).normal(size=(8, 3))
    x = jax.make_array_from_callback(rows.shape, divided, lambda index: rows[index])
    loss, gradient = gradient_of(w, x)
    w = w - 0.1 * gradient
    tap(step, batch=x, loss=loss, gradients={"w": gradient}, parameters={"w": w})
"""
)


@pytest.mark.long
@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "named"),
    [([], ""), (["mask"], "there is the same key on several"), (["rank"], "there is a key for each")],
    ids=["healthy", "one_key", "a_key_for_each"],
)
def test_rows_of_several_processes_count_once(words, named, script):
    ended = invariance("--worlds", "1x1,2x1", script(PROCESSES), *words)
    assert ended.returncode == (1 if named else 0), ended.stdout + ended.stderr
    assert re.search(named or "2x1 is as 1x1: 5 steps, to", ended.stdout), ended.stdout


FAILURES = [
    ("x = 1 / 0", "ZeroDivisionError", []),
    ("print(1)", "it ended without taps", []),
    ("import time; time.sleep(99)", "was not done after 2 s", ["--timeout", "2"]),
    (LOOP.replace("w = w -", "w = 1 / (2 - len(jax.devices())) if 0 else w -").replace(
        "for step", "assert len(jax.devices()) == 1\nfor step"), "1x2: rank 0 failed first", []),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error", "options"), FAILURES, ids=["raises", "no_taps", "hangs", "one_world"]
)
def test_a_world_that_cannot_run_is_reported(text, error, options, script):
    ended = invariance("--worlds", "1x1,1x2", *options, script(text))
    assert ended.returncode == 2
    assert error in ended.stdout
    assert "no verdict" in ended.stdout


@pytest.mark.slow
def test_ctrl_c_ends_all_processes(script, tmp_path):
    path = script(
        f"import os, time\nopen({str(tmp_path)!r} + '/pid', 'w').write(str(os.getpid()))\ntime.sleep(99)"
    )
    process = invariance("--worlds", "1x1", path, wait=False)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--worlds", "8"], "write processes x devices of each"),
        (["--worlds", "0x1"], "write processes x devices of each"),
        (["--accumulate", "1,x"], "write numbers of batches for an update"),
        (["--timeout", "nan"], "nan is not a finite number"),
        (["--steps", "0"], "0 is not in the range"),
        ([], "nowhere.py"),
    ],
)
def test_misuse_is_refused(options, message):
    ended = CliRunner().invoke(cli, ["invariance", *options, "nowhere.py"])
    assert ended.exit_code == 2
    assert message in ended.output
