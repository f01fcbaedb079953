"""`jaxpar.program`: planted faults are named, healthy steps are proven, and no proof is refuted."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from click.testing import CliRunner
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpar
from benchmarks.program.by_hand import BY_HAND, OPEN_BY_HAND
from benchmarks.program.drawn import draw, refuted
from benchmarks.program.faults import FAULTS, HEALTHY, OPEN, PROGRAMS
from benchmarks.program.guides import GUIDES
from benchmarks.program.optax_examples import OPTAX
from benchmarks.program.others import OTHERS
from benchmarks.program.run import forgotten
from jaxpar._cli.main import cli
from jaxpar._tools.estimate.hlo import read
from jaxpar._tools.program.collectives import device_groups
from jaxpar._tools.program.interpreter import Interpreter
from jaxpar._tools.program.rules import NoRuleError
from jaxpar._tools.program.values import Dependence, Fact, Shares, labels_of, leaves
from jaxpar.errors import ProgramError


def judged(name: str, fault: str) -> jaxpar.ProgramReport:
    step, arguments, options = PROGRAMS[name](fault)
    return jaxpar.program(step, *arguments, **options)


def spaced(case: tuple[str, str]) -> str:
    return "-".join(case).replace(" ", "_")


UNPROVEN = {("exchanged", "")} if jax.__version_info__ >= (0, 12) else set()
"""Healthy steps that are not proven: XLA's program for JAX 0.12 adds the slices in another way."""


@pytest.mark.parametrize("case", UNPROVEN, ids=spaced)
def test_what_is_not_proven_yet_is_not_called_wrong(case):
    assert judged(*case).verdict == "not proven"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [case for case in HEALTHY if case not in UNPROVEN], ids=spaced)
def test_a_healthy_step_is_proven(case):
    report = judged(*case)
    assert report.verdict == "right", str(report)
    assert not report.findings, str(report)
    assert report.exit_code == 0
    report.check()


EXAMPLES = OTHERS | GUIDES | OPTAX | BY_HAND
COSTS = {"MaxText, scanned layers": {"half"}, "Flax, sst2": {"loop"}, "JAX, steps in a scan": {"loop"}}
"""Findings that leave an example right. In a scan of updates the reduction cannot be put off."""


@pytest.mark.full
@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", EXAMPLES, ids=[n.replace(" ", "_") for n in EXAMPLES])
def test_a_step_after_an_example_of_others_is_proven(name):
    step, arguments, options = EXAMPLES[name]()
    report = jaxpar.program(step, *arguments, **options)
    assert report.verdict == "right", str(report)
    assert {f.kind for f in report.findings} <= COSTS.get(name, set())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", FAULTS, ids=spaced)
def test_a_planted_fault_is_named(case):
    report = judged(*case)
    kind = FAULTS[case]
    assert kind in {f.kind for f in report.findings}, str(report)
    costs = all(f.costs for f in report.findings)
    refused = {path for f in report.findings if not f.costs and f.kind != "unsharded" for path in f.leaves}
    assert not refused & {leaf.path for leaf in report.leaves if leaf.verdict == "right"}
    assert (report.verdict == "wrong") == (not costs)
    if report.verdict != "right":
        with pytest.raises(AssertionError, match=kind):
            report.check()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", OPEN, ids=spaced)
def test_what_cannot_be_proven_is_not_right(case):
    report = judged(*case)
    assert report.verdict == "not proven"
    assert report.exit_code == 2
    with pytest.raises(ProgramError, match="not proven"):
        report.check()


def test_a_step_that_returns_no_state_is_not_right():
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    changed = jax.jit(lambda w, x: w.astype(jnp.bfloat16) - x.mean(0))  # another type than the argument's
    rows = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("data")))
    report = jaxpar.program(changed, jnp.zeros(4, jnp.float32), rows)
    assert report.verdict == "not proven"
    assert "no result has the structure" in str(report)


@pytest.mark.parametrize("name", OPEN_BY_HAND)
def test_an_example_that_is_not_proven_is_no_alarm(name):
    step, arguments, options = OPEN_BY_HAND[name]()
    report = jaxpar.program(step, *arguments, **options)
    assert report.verdict == "not proven", str(report)
    assert not report.findings


def test_a_finding_names_the_leaf_and_the_line():
    report = judged("shard_map", "missing in one leaf")
    assert {p for f in report.findings for p in f.leaves} == {"args[0]['b']", "args[1]['b']"}
    lines = {f.line for f in report.findings}
    assert all("/benchmarks/program/" in line for line in lines)
    assert json.loads(report.to_json())["verdict"] == "wrong"


class Net(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 2, rngs=rngs)
        self.norm, self.drop = nnx.BatchNorm(6, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.b(self.drop(nnx.relu(self.norm(self.a(x)))))


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"on_nonfinite": "ignore"}], ids=str)
@pytest.mark.parametrize("wrapper", [jaxpar.DataParallel, jaxpar.DistributedDataParallel])
def test_a_train_step_is_proven(wrapper, options):
    net = wrapper(Net(nnx.Rngs(0)))
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, lambda net, x, y: ((net(x) - y) ** 2).mean(), **options)
    shapes = [jax.ShapeDtypeStruct((32, n), jnp.float32) for n in (4, 2)]
    report = jaxpar.program(step, *shapes)
    assert report.verdict == "right", str(report)
    assert {"a.kernel", "norm.mean", "drop.rngs.count"} <= {leaf.path for leaf in report.leaves}


DRAWN = range(5000, 5024)
"""Seeds on which nothing was developed. `python benchmarks/program/run.py` has a thousand others."""


@pytest.mark.sampled(7)
@pytest.mark.parametrize("seed", DRAWN)
def test_a_proof_is_not_refuted_by_the_numbers(seed):
    step = draw(seed)
    report = jaxpar.program(step.run, *step.arguments)
    right = {leaf.path.split("'")[1] for leaf in report.leaves if leaf.state and leaf.verdict == "right"}
    assert refuted(step, right) == [], f"{step.text}\n{report}"


@pytest.mark.full
def test_the_numbers_refute_what_is_wrong():
    reasons = {}
    for seed in DRAWN[:12]:
        step = draw(seed)
        if jaxpar.program(step.run, *step.arguments).verdict == "wrong":
            reasons[seed] = refuted(step, set(step.arguments[0]))
    assert reasons
    assert sum(map(bool, reasons.values())) >= len(reasons) - 1, reasons


@pytest.mark.parametrize("name", ["shard_map", "jit", "two axes", "ZeRO-1", "accumulation", "dropout"])
def test_a_sum_that_a_compiler_forgets_is_named(name):
    asked, named = forgotten(name)
    assert asked > 0
    assert named == asked


# ------------------------------------------------------------------------------------ one instruction


PROGRAM = """HloModule m
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
ENTRY %main (x: f32[4], w: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  %w = f32[4] parameter(1)
  """


def run(lines: str) -> Fact:
    """Evaluate what `lines` make of `x`, a device's rows, and of `w`, parameters."""
    shares = Shares(range(4))
    rows = Fact(shares.apart, shares.alike, tuple(1 << k for k in range(4)), Dependence.LOCAL)
    text = PROGRAM + "\n  ".join(lines.splitlines()) + "\n}"
    return leaves(Interpreter(read(text), shares).run([rows, shares.free]))[0]


ALL = "replica_groups={{0,1,2,3}}, to_apply=%sum"
RULES = {
    "a sum over all": (f"ROOT %r = f32[4] all-reduce(%x), {ALL}", Dependence.COMPLETE),
    "a sum over pairs": (
        "ROOT %r = f32[4] all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%sum",
        Dependence.PARTIAL,
    ),
    "two sums over pairs": (
        "%p = f32[4] all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%sum\n"
        "ROOT %r = f32[4] all-reduce(%p), replica_groups={{0,2},{1,3}}, to_apply=%sum",
        Dependence.COMPLETE,
    ),
    "a square of a sum over pairs": (
        "%p = f32[4] all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%sum\n"
        "ROOT %r = f32[4] multiply(%p, %p)",
        Dependence.UNKNOWN,
    ),
    "neighbours' rows in two terms": (
        "%n = f32[4] collective-permute(%x), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}\n"
        f"%p = f32[4] power(%x, %n)\nROOT %r = f32[4] all-reduce(%p), {ALL}",
        Dependence.UNKNOWN,
    ),
    "a function of rows and parameters": ("ROOT %r = f32[4] power(%x, %w)", Dependence.LOCAL),
    "a collection": (
        "ROOT %r = f32[4] all-gather(%x), replica_groups={{0,1,2,3}}, dimensions={0}",
        Dependence.LOCAL,
    ),
    "weights by the device": (
        "%i = u32[] partition-id()\n%f = f32[] convert(%i)\n%b = f32[4] broadcast(%f), dimensions={}\n"
        f"%t = f32[4] multiply(%x, %b)\nROOT %r = f32[4] all-reduce(%t), {ALL}",
        Dependence.UNKNOWN,
    ),
    "an instruction without a rule": ("ROOT %r = f32[4] frobnicate(%x)", Dependence.UNKNOWN),
    "a function of a stranger": (
        'ROOT %r = f32[4] custom-call(%x), custom_call_target="mine"',
        Dependence.UNKNOWN,
    ),
    "a scatter": (f"ROOT %r = f32[1] reduce-scatter(%x), {ALL}, dimensions={{0}}", Dependence.COMPLETE),
    "a sum of a collection": (
        "%g = f32[16] all-gather(%x), replica_groups={{0,1,2,3}}, dimensions={0}\n"
        "%s = f32[4,4] reshape(%g)\n%z = f32[] constant(0)\n"
        "ROOT %r = f32[4] reduce(%s, %z), dimensions={0}, to_apply=%sum",
        Dependence.COMPLETE,
    ),
    "a sum of a collection's other axis": (
        "%g = f32[16] all-gather(%x), replica_groups={{0,1,2,3}}, dimensions={0}\n"
        "%s = f32[4,4] reshape(%g)\n%z = f32[] constant(0)\n"
        "ROOT %r = f32[4] reduce(%s, %z), dimensions={1}, to_apply=%sum",
        Dependence.LOCAL,
    ),
    "a sum of whole numbers of a ring": (
        "%n = f32[4] collective-permute(%x), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}\n"
        "%p = f32[4] add(%x, %n)\n%i = s32[4] convert(%p)\n"
        "%m = s32[4] collective-permute(%i), source_target_pairs={{0,2},{2,0},{1,3},{3,1}}\n"
        "ROOT %r = s32[4] add(%i, %m)",
        Dependence.UNKNOWN,
    ),
    "a sum of neighbours": (
        "%n = f32[4] collective-permute(%x), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}\n"
        "ROOT %r = f32[4] add(%x, %n)",
        Dependence.PARTIAL,
    ),
    "a difference of neighbours": (
        "%n = f32[4] collective-permute(%x), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}\n"
        "ROOT %r = f32[4] subtract(%x, %n)",
        Dependence.LOCAL,
    ),
    "a token": ("ROOT %r = token[] after-all(%x)", Dependence.FREE),
    "a neighbour's rows": (
        "ROOT %r = f32[4] collective-permute(%x), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
        Dependence.LOCAL,
    ),
}


@pytest.mark.parametrize("name", RULES, ids=[n.replace(" ", "_") for n in RULES])
def test_a_rule(name):
    lines, state = RULES[name]
    assert run(lines).state == state


def test_a_second_sum_is_marked_and_a_second_mean_is_not():
    twice = f"%s = f32[4] all-reduce(%x), {ALL}\n%t = f32[4] all-reduce(%s), {ALL}\n"
    mean = "%c = f32[] constant(0.25)\n%q = f32[4] broadcast(%c), dimensions={}\n"
    mean += "ROOT %r = f32[4] multiply(%t, %q)"
    assert {m.kind for m in run(twice + "ROOT %r = f32[4] copy(%t)").marks} == {
        "sum",
        "again",
    }
    assert {m.kind for m in run(twice + mean).marks} == {"sum"}


def test_the_factor_of_a_mean_may_be_a_part_of_the_rate():
    # XLA makes one factor of 1 / 8 and the rate, so the divisor is read in the program without its algebra.
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    whole, rows = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("data")

    def step(w, x):
        g = jax.lax.pmean(jax.grad(lambda w: jnp.tanh(x @ w).mean())(w), "data")
        return w - 0.1 * jax.lax.pmean(g, "data")

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole, rows), out_specs=whole, check_vma=False)
    jaxpar.program(mapped, jnp.zeros(4), jnp.ones((8, 4))).check()


def test_a_second_sum_of_a_clipped_gradient_is_marked():
    clipped = f"%s = f32[4] all-reduce(%x), {ALL}\n%c = f32[4] tanh(%s)\n"
    weighted = "%i = u32[] partition-id()\n%f = f32[] convert(%i)\n%b = f32[4] broadcast(%f), dimensions={}\n"
    weighted += f"%t = f32[4] multiply(%c, %b)\nROOT %r = f32[4] all-reduce(%t), {ALL}"
    assert "again" in {m.kind for m in run(clipped + weighted).marks}


GROUPS = {
    "replica_groups={{0,1},{2,3}}, x": ((0, 1), (2, 3)),
    "replica_groups={}, x": ((0, 1, 2, 3),),
    "replica_groups=[2,2]<=[4], x": ((0, 1), (2, 3)),
    "replica_groups=[2,2]<=[2,2]T(1,0), x": ((0, 2), (1, 3)),
    "replica_groups=mesh['a'=2,'b'=2] {'b'}, x": ((0, 1), (2, 3)),
    "replica_groups=mesh['a'=2,'b'=2] {'a'}, x": ((0, 2), (1, 3)),
    "replica_groups=mesh['a'=2,'b'=2] {'b','a'}, x": ((0, 2, 1, 3),),
    "replica_groups=mesh['a'=2,'b'=1,'c'=2], device_ids=([2,2]T(1,0)) {'a'}, x": ((0, 1), (2, 3)),
    "replica_groups=mesh['a'=2,'b'=2], device_ids=(0,3,1,2) {'b'}, x": ((0, 3), (1, 2)),
    "replica_groups=mesh['a'=4] {'a':(1)2}, x": ((0, 2), (1, 3)),
    "replica_groups=mesh['a'=4] {'a':(2)2}, x": ((0, 1), (2, 3)),
}


@pytest.mark.parametrize("attributes", GROUPS, ids=range(len(GROUPS)))
def test_groups_are_read(attributes):
    assert device_groups(attributes, 4) == GROUPS[attributes]


@pytest.mark.parametrize("attributes", ["replica_groups={{0,1}}, x", "replica_groups=mesh['a'=4] {'a':2}, x"])
def test_groups_that_cannot_be_read_are_no_guess(attributes):
    with pytest.raises(NoRuleError):
        device_groups(attributes, 4)


def test_a_step_with_parameters_divided_in_each_replica_is_proven():
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("replica", "fsdp"))

    def step(w, x, y):
        def loss(w):
            return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w))

    def array(*shape, axes):
        return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P(axes)))

    weights = {"a": array(8, 16, axes="fsdp"), "b": array(16, 4, axes="fsdp")}
    rows = [array(64, n, axes=("replica", "fsdp")) for n in (8, 4)]
    out = {name: x.sharding for name, x in weights.items()}
    report = jaxpar.program(jax.jit(step, out_shardings=out), weights, *rows)
    assert report.verdict == "right", str(report)


def test_labels_are_numbered_by_first_occurrence():
    assert labels_of(["b", "a", "b"]) == labels_of([1, 0, 1]) == labels_of(["a", "c", "a"])


# ------------------------------------------------------------------------------------------ the command

STEP = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P

def make(devices):
    mesh = Mesh(np.array(devices), ("data",))
    def step(w, x):
        g = jax.grad(lambda w: (x @ w).sum())(w)
        return w - {reduced}
    run = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    return jax.jit(run), (np.ones(4, np.float32), np.ones((8, 4), np.float32))
"""
COMMANDS = {"jax.lax.pmean(g, 'data')": 0, "g": 1, "g * jax.lax.axis_index('data')": 1}


@pytest.mark.slow
@pytest.mark.parametrize("reduced", COMMANDS, ids=["mean", "none", "weights"])
def test_the_command_has_exit_codes(reduced, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(STEP.replace("{reduced}", reduced))
    command = [sys.executable, "-m", "jaxpar", "program", f"{file}:make", "--on", "cpux2,cpux4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == COMMANDS[reduced], done.stderr
    assert [r["devices"] for r in json.loads(done.stdout)] == [2, 4]


UNUSABLE = {
    "x = 1": "it does not define make.",
    "def make(devices): return 3": "make returns int, not (step, (argument, ...)).",
    "def make(devices):\n    raise KeyError('rate')": "KeyError: 'rate'\n  line 2: raise KeyError('rate')",
}


@pytest.mark.parametrize("source", UNUSABLE)
def test_the_command_names_a_file_that_it_cannot_use_once(source, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(source)
    result = CliRunner().invoke(cli, ["program", f"{file}:make", "--on", "cpux8"])
    assert result.exit_code == 2
    assert result.output.count("train.py") == 1
    assert UNUSABLE[source] in result.output
