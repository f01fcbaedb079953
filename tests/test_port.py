"""port: torch modules become Flax files that are the same. The reference is torch, through parity.compare."""

import ast
import contextlib
import cProfile
import functools
import importlib
import inspect
import pstats
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from porting import constructs, holes, modules, operations

from jaxpar import errors, parity
from jaxpar._cli.main import cli
from jaxpar.parity._port import proof, rules
from jaxpar.parity._port.reading import aliases
from jaxpar.parity._port.reading.packages import is_users
from jaxpar.parity._port.reading.source import Source, lines_of, torch_lines
from jaxpar.parity._port.rules.rule import table
from jaxpar.parity.measuring import Kind, Policy, judge, measure

FILES = {Path(file.__file__): file for file in (modules, constructs, holes)}
KINDS = [
    kind
    for file in FILES.values()
    for kind in vars(file).values()
    if inspect.isclass(kind) and kind.__module__ == file.__name__
]
CASES = [kind for kind in KINDS if hasattr(kind, "inputs")]
HOLES = [kind for kind in KINDS if hasattr(kind, "holes")]
MODULES = Path(modules.__file__)


def example(kind):
    generator = torch.Generator().manual_seed(0)
    return [
        each if isinstance(each, torch.Tensor) else torch.randn(each, generator=generator)
        for each in kind.inputs
    ]


def words(text):
    """Every name in a Python text."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return names | {node.arg for node in nodes if isinstance(node, ast.arg)}


ENOUGH = 20
"""Lines of a module, of which not all can be of the kind that JAX has two of."""
START = ("INITIAL_VALUES", "initial_values", "initialise", "net", "i", "row")
PYTHONS = ("iter", "tuple", "frozenset", "int", "partial", "NotImplementedError")


@pytest.mark.slow
@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_ports_are_the_same(kind, tmp_path):
    port = parity.port(kind, *example(kind), out=tmp_path / "port.py")
    assert port.status == 0, f"{port.source}\n{port.failure}\n{port.comparison}"
    assert not port.holes
    assert port.largest < 1e-10
    assert len(port.comparisons) >= 2, "training, and evaluation of another shape"
    assert port.comparisons[0].steps == 5
    if port.torch_lines >= ENOUGH:
        assert port.lines <= 1.3 * port.torch_lines
    ours = {"rngs", "nnx", "jax", "jnp", "nn", "F", "__call__", *PYTHONS, *START}
    assert words(port.source) <= words(Path(inspect.getfile(kind)).read_text()) | ours
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    for arguments in (["check", "--isolated"], ["format", "--check", "--isolated"]):
        done = subprocess.run([ruff, *arguments, tmp_path / "port.py"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + port.source


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", HOLES, ids=lambda kind: kind.__name__)
def test_what_cannot_be_said_is_a_hole_with_torchs_line(kind, tmp_path):
    path = tmp_path / "port.py"
    port = parity.port(kind, torch.ones(2, 3), out=path)
    assert port.status == 2
    assert not port.comparisons
    for line in kind.holes:
        assert any(f": {line}" in hole for hole in port.holes), port.holes
        assert "hole(" in path.read_text()


LINES = {
    "z = 1 / (x * 2) + (y - x) * 3 - (x - (y + 1))": constructs.Operators,
    "least = x.argmin(1)": constructs.Pairs,
    "best, at = F.topk(y, 2, dim=1)": constructs.Pairs,
    "z = jax.lax.stop_gradient(y * rows)": constructs.Still,
    "def scaled(self, x: jax.Array, device=None) -> jax.Array:": constructs.Still,
    "y[:, jnp.array([0, 2])]": constructs.Places,
    "ones = ones.at[jnp.array([1, 1])].set(ones[jnp.array([1, 1])] + 1.0)": constructs.Places,
    "return mean + self.rngs.normal(std.shape, std.dtype) * std": constructs.Noise,
    "self.decoder = nn.TiedLinear(self.decoder, self.encoder)": constructs.TiedTables,
    "jnp.zeros((3, 4)).at[:, to].add(y) + x.at[..., to].add(y)": constructs.Columns,
    "self.fused = True and not False": constructs.Counts,
    "self.shift = nnx.Param(jnp.full_like(jnp.zeros(2), 0.2))": constructs.Idioms,
    "block(3, width), getattr(nn, activation)(rngs=rngs), block(width, width)": constructs.Idioms,
    "weight.size for weight in jax.tree.leaves(nnx.state(self, nnx.Param))": constructs.Counts,
    "self.linear = nn.WeightNorm(nn.Linear(4, 2, rngs=rngs), dim=None)": constructs.OlderNorm,
    "class Square(nn.Function):": operations.OwnGradients,
    "nn.freeze(self.trunk)": operations.Freezes,
    "self.head.bias = nnx.Variable(self.head.bias[...])": operations.Freezes,
    "(jnp.sin, jnp.cos, jnp.square, (lambda x: -x), jax.nn.mish)": operations.PassedOn,
    "rows = x.shape[0]": operations.Likelihoods,
    "map((lambda x: jnp.concatenate(x, axis=1)), ((x, jax.lax.stop": operations.Likelihoods,
    'normal = partial(nn.SpectralNorm, first="v", rngs=rngs)': operations.OlderSpectral,
}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*(weight|spectral)_norm.*:FutureWarning")
@pytest.mark.parametrize("line", LINES)
def test_a_line_is_written_as_a_colleague_would(line, monkeypatch):
    monkeypatch.setattr(importlib.import_module("jaxpar.parity._port.port"), "prove", lambda *_: [])
    kind = LINES[line]
    port = parity.port(kind, *example(kind))
    assert line in port.source


FAULTS = {
    "a sum for a mean": ("METHODS", "mean(dim, keepdim=) -> {self:a}.sum({dim:t})", modules.Stacked),
    "the wrong axis": ("FUNCTIONS", "torch.stack(tensors) -> jnp.stack({tensors}, axis=1)", modules.Stacked),
    "tanh for gelu": ("METHODS", "relu() -> nnx.gelu({self})", modules.MLP),
    "another rate": (
        "FUNCTIONS",
        "torch.nn.functional.dropout(x, p, training?) -> F.dropout({x}, p={p} / 2, key={rngs})",
        constructs.Drops,
    ),
    "twice the noise": (
        "FUNCTIONS",
        "torch.randn_like(x) -> 2 * {rngs}.normal({x}.shape, {x}.dtype)",
        constructs.Noise,
    ),
    "the other half of the numbers": (
        "IN_CALL",
        "torch.rand(*size, dtype=, device?) -> 1 - {rngs}.uniform({size:t}<, {dtype}>)",
        constructs.Fresh,
    ),
    "a product for a sum": ("METHODS", "add(other) -> {self} * {other}", constructs.Operators),
    "smallest for largest": ("PAIRS", "max(dim) -> F.min({self}, {dim})", constructs.Pairs),
    "another chance": (
        "METHODS",
        "bernoulli_(p) -> {rngs}.bernoulli({p} / 2, {self:a}.shape).astype({self:a}.dtype)",
        modules.Draws,
    ),
    "a row that is there twice, once": (
        "METHODS",
        "index_add(dim, index, source) -> {self:a}.at[{index}].set({source})",
        constructs.Sums,
    ),
    "the other way round": ("FUNCTIONS", "torch.polar(a, b) -> {a} * jnp.exp(-1j * {b})", constructs.Rotary),
    "one group": (
        "FUNCTIONS",
        "torch.nn.functional.instance_norm(x, mean?, var?, weight=, eps=) -> "
        "F.group_norm({x}, 1<, scale={weight}>)",
        constructs.InstanceNorms,
    ),
    "a smaller eps": (
        "FUNCTIONS",
        "torch.nn.functional.layer_norm(x, s, weight, bias, eps) -> F.layer_norm({x}, {s}, {weight}, {bias})",
        modules.Norm,
    ),
}


@pytest.mark.full
@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_rule_is_seen_by_the_proof(fault, monkeypatch):
    name, line, kind = FAULTS[fault]
    for word, planted in table(line).items():
        monkeypatch.setitem(getattr(rules, name), word, planted)
    make = kind if kind is not modules.Norm else eps_of_its_own
    port = parity.port(make, *example(kind))
    assert port.status == 1
    assert port.comparison is not None
    assert not port.comparison.same
    assert "NOT THE SAME as torch. Different" in ast.get_docstring(ast.parse(port.source))


def test_the_largest_difference_of_exact_zeros_is_beside_the_largest_number():
    torchs = {"bias": np.zeros(2), "kernel": np.ones(2)}
    for error in (1e-17, 1e-3):
        measured = measure({"bias": np.full(2, error), "kernel": np.ones(2)}, torchs, Kind.GRADIENT)
        rows = judge(measured, Policy())
        assert proof.largest([SimpleNamespace(rows=rows)]) == pytest.approx(error)


@pytest.mark.full
def test_a_file_without_a_proof_says_so(tmp_path, monkeypatch):
    def fails(*args):
        raise ValueError('a "quoted" \\ reason')

    monkeypatch.setattr(importlib.import_module("jaxpar.parity._port.port"), "prove", fails)
    path = tmp_path / "port.py"
    port = parity.port(modules.MLP, *example(modules.MLP), out=path)
    assert port.status == 3
    assert path.read_text() == port.source
    assert "Not proven: ValueError: a 'quoted' / reason" in ast.get_docstring(ast.parse(port.source))


def eps_of_its_own():
    norm = modules.Norm()
    norm.eps = 0.1
    return norm


@pytest.mark.full
def test_a_branch_by_chance_raises_where_the_chance_is_not_zero():
    port = parity.port(modules.Chance, *example(modules.Chance))
    port.module.layerdrop = 0.5
    with pytest.raises(NotImplementedError, match="by random numbers"):
        port.module(example(modules.Chance)[0].numpy())


@pytest.mark.full
def test_a_made_module_is_built_from_its_attributes():
    port = parity.port(modules.MLP(), *example(modules.MLP))
    assert port.status == 3 or port.same


BUILDS = {constructs.Bare: "Bare()", constructs.bare: "bare()", constructs.BareDrops: "BareDrops(rngs=rngs)"}


@pytest.mark.full
@pytest.mark.parametrize("make", BUILDS, ids=lambda make: make.__name__)
def test_a_class_without_a_constructor_is_given_what_it_takes(make):
    port = parity.port(make, torch.randn(3, 4))
    assert (port.status, port.build) == (0, BUILDS[make])


def test_a_module_whose_arguments_are_not_known_is_refused():
    with pytest.raises(errors.PortError, match="no attribute block"):
        parity.port(torch_module_without_attributes(), torch.ones(1))


@pytest.mark.slow
def test_a_module_is_built_by_the_innermost_function_that_can_be_said():
    port = parity.port(lambda: modules.tapped(modules.Parts(4), 4), *example(modules.Taps))
    assert port.same, port.comparison or port.failure
    assert port.build == "tapped(parts=Parts(width=4, rngs=rngs), width=4, rngs=rngs)"


def torch_module_without_attributes():
    class Local(torch.nn.Module):
        def __init__(self, block):
            super().__init__()

    return Local(3)


@pytest.mark.full
def test_what_is_left_out_takes_its_comment_along(monkeypatch):
    monkeypatch.setattr("jaxpar.parity._port.port.prove", lambda *_: [])
    source = parity.port(modules.Partly, *example(modules.Partly)).source
    comments = [line.partition("# ")[2] for line in source.splitlines() if "# " in line]
    assert comments == ["of the layer", "behind it", "a heading", "of the rate"]
    assert "not self.deterministic" in source
    assert 'class Never(nnx.Module):\n    """Not ported, for the example does not run it."""' in source


@pytest.mark.parametrize(("rows", "said"), [(2, "has 2 values for each channel"), (8, "")])
def test_an_example_too_small_for_batch_norm_is_named(rows, said):
    found = " ".join(proof.too_small(lambda: torch.nn.BatchNorm2d(3), [torch.ones(rows, 3, 1, 1)], {}))
    assert said in found
    assert bool(said) == bool(found)


def registered(make):
    @functools.wraps(make)
    def called(**settings):
        return make(**settings)

    return called


@registered
def small(width=3):
    return modules.MLP((6, width))


@pytest.mark.slow
def test_what_a_decorated_function_makes_is_built_by_its_class():
    port = parity.port(small, *example(modules.MLP))
    assert port.same
    assert port.build == "MLP(widths=(6, 3), rngs=rngs)"
    assert not {"small", "registered"} & words(port.source)


@pytest.mark.full
def test_the_functions_are_as_before():
    before = modules.MLP.forward.__code__
    parity.port(modules.MLP, *example(modules.MLP))
    assert modules.MLP.forward.__code__ is before


def command(*arguments):
    return CliRunner().invoke(cli, ["port", *map(str, arguments)])


COUNTED = """
import itertools
import os, sys

import torch
from torch import nn

SCALE = 2


class Net(nn.Module):
    inputs = ((2, 3),)

    def __init__(self):
        super().__init__()
        # one comment
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise((3, 4, 2)))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * SCALE
        return x
"""


SOURCE = """
from torch import nn


class net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)


def make():
    return net()
"""
DECORATING = """
import functools

from torch import nn


def doubled(function):
    @functools.wraps(function)
    def inner(*args):
        return 2 * function(*args)

    return inner


@doubled
def shifted(x):
    return x + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return shifted(self.layer(x))
"""


def test_lines_are_those_that_a_reader_has_before_him(tmp_path):
    source = Source(str(_written(tmp_path / "counted.py", COUNTED)))
    scale, net = source.tree.body[4:]
    assert torch_lines([(source, scale)]) == 1
    assert torch_lines([(source, net), (source, scale)]) == 13, "itertools and nn, and not torch, os or sys"
    assert lines_of(COUNTED) == 15
    assert lines_of(f'''"""Said\n\nof it."""\n{COUNTED}''') == 15


def _written(path, text):
    path.write_text(text)
    return path


@pytest.mark.slow
def test_the_command_writes_a_file_a_record_and_a_test(tmp_path):
    out = tmp_path / "mlp_flax.py"
    ended = command(f"{MODULES}:MLP", "--input", "3,6", "--out", out, "--record")
    assert ended.exit_code == 0, ended.output
    assert "the same" in ended.stdout
    phases = [line.split()[2] for line in ended.stderr.splitlines() if line.startswith("jaxpar port: ")]
    assert phases == ["importing", "running", "proving"]
    test = tmp_path / "test_mlp_flax.py"
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    assert subprocess.run(run, cwd=tmp_path, capture_output=True).returncode == 0
    out.write_text(out.read_text().replace("nnx.relu", "nnx.gelu"))
    assert subprocess.run(run, cwd=tmp_path, capture_output=True).returncode == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "given", "code", "said"),
    [
        ("Decides", "2,3", 2, "it decides by data"),
        ("MLP", "2,5", 3, "torch's module fails"),
        ("Nothing", "2,3", 3, "has no Nothing"),
        ("MLP", "2,x", 3, "write 2,3,224,224"),
    ],
)
def test_exit_codes(module, given, code, said, tmp_path):
    ended = command(f"{MODULES}:{module}", "--input", given, "--out", tmp_path / "port.py")
    assert ended.exit_code == code, ended.output
    assert said in ended.output


NEVER_IMPORTED = """
class GPT:
    def __init__(self, config, dropout=0.1, *, heads): pass

def rate(net, lr, /): pass

raise RuntimeError("imported")
"""


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        ("GPT", [], "GPT.__init__ needs config, heads, and is called with no arguments. Write a function"),
        ("net", ["--optimizer", "{}:rate"], "rate needs lr, and is called with the module. Write a function"),
        ("net", ["--input", "2,4", "--input", "2,x"], "--input 2,x: write 2,3,224,224"),
        ("net", ["--input", "2:0"], "--input 2:0: write 2,3,224,224"),
    ],
)
def test_what_shows_without_an_import_is_checked_before_it(module, options, message, tmp_path):
    source = _written(tmp_path / "costly.py", NEVER_IMPORTED)
    options = [option.format(source) for option in options]
    ended = command(f"{source}:{module}", "--out", tmp_path / "port.py", *options)
    assert ended.exit_code == 3
    assert message in ended.output
    assert "importing" not in ended.output


@pytest.mark.parametrize("name", ["net", "make"])
@pytest.mark.parametrize("link", [False, True])
def test_the_source_is_not_written_over(name, link, tmp_path):
    source = _written(tmp_path / f"source_{name}_{link}.py", SOURCE)
    out = tmp_path / "linked.py" if link else source
    if link:
        out.symlink_to(source)
    before = source.read_text()
    ended = command(f"{source}:{name}", "--input", "2,4", "--out", out)
    assert (ended.exit_code, source.read_text()) == (3, before)
    assert f"is the source of {name} and would be written over" in ended.output


@pytest.mark.full
def test_a_decorated_function_inside_of_another_is_written_whole(tmp_path, monkeypatch):
    _written(tmp_path / "decorating.py", DECORATING)
    monkeypatch.syspath_prepend(tmp_path)
    import decorating

    port = parity.port(decorating.Net, torch.randn(2, 4))
    assert port.same, port.source
    assert "    @functools.wraps(function)\n    def inner(*args):\n" in port.source


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument"),
        ([f"{MODULES}:MLP", "--out", "port.txt"], "ends in .py"),
        ([f"{MODULES}:MLP", "--out", "port.py", "--way"], "No such option"),
        ([f"{MODULES}:MLP", "--out", "port.py", "--seed", "-1"], "Invalid value"),
    ],
)
def test_a_command_that_is_misused_could_not(arguments, said):
    ended = command(*arguments)
    assert ended.exit_code == 3, "2 are holes"
    assert said in ended.output


def test_every_option_reaches_the_port(monkeypatch, tmp_path):
    def taken(*inputs, **options):
        raise errors.PortError(f"{len(inputs)} {options}")

    monkeypatch.setattr(parity, "port", taken)
    out = tmp_path / "port.py"
    ended = command(
        f"{MODULES}:MLP", "--input", "3,6", "--out", out, "--record", "--channels-last", *("--init", "flax")
    )
    assert ended.exit_code == 3
    options = {"out": str(out), "record": True, "channels_last": True, "init": "flax"}
    assert f"2 {options}" in ended.output


class Steep(modules.MLP):
    """Gradients in the millions."""

    def forward(self, x):
        return 1e6 * super().forward(x)


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.full
def test_a_layer_of_torch_with_another_call_is_built_with_its_arguments():
    port = parity.port(lambda: Doubled(6, out_features=2, bias=False), torch.randn(3, 6))
    assert port.status == 0, port.failure
    assert port.build == "Doubled(in_features=6, out_features=2, bias=False, rngs=rngs)"


class OfFour(torch.nn.Module):
    """It takes four rows and no more."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 2)

    def forward(self, x):
        return self.layer(x).reshape(4, 2)


@pytest.mark.full
@pytest.mark.parametrize(("make", "rows", "evaluated"), [(modules.MLP, 3, 4), (OfFour, 4, 4)])
def test_both_modes_are_proven_and_two_shapes_where_torch_takes_them(monkeypatch, make, rows, evaluated):
    seen = []
    own = proof.compare

    def noting(net, flax, inputs, *, training, **more):
        seen.append((training, (inputs(2) if training else inputs)[0].shape[0]))
        return own(net, flax, inputs, training=training, **more)

    monkeypatch.setattr(proof, "compare", noting)
    assert parity.port(make, torch.randn(rows, 6)).status == 0
    assert seen == [(True, rows), (False, evaluated)]


def test_a_step_of_the_proof_does_not_move_the_weights_far(monkeypatch):
    inputs = example(modules.MLP)
    assert {rate for _, rate in proof.accepted(modules.MLP(), inputs, {})[0]} == {proof.RATE}
    copies = []
    monkeypatch.setattr(Steep, "train", lambda self: copies.append(self) or self)
    _, rate = proof.accepted(Steep(), inputs, {})[0][0]
    moved = rate * sum(float(each.grad.norm()) ** 2 for each in copies[0].parameters()) ** 0.5
    assert moved == pytest.approx(proof.FAR)


@pytest.mark.full
def test_tables_of_constructors_are_compared_in_float64():
    port = parity.port(modules.Waves, *example(modules.Waves))
    assert (port.status, port.comparison.constants) == (0, ())
    assert port.largest < 1e-10


@pytest.mark.full
def test_tables_that_differ_in_float64_stay_a_difference(monkeypatch):
    """A formula that is right to seven digits only is no rounding of float32."""
    same = proof.tables_of_torch

    def off(*args):
        net = same(*args)
        net.table += 1e-8
        return net

    monkeypatch.setattr(proof, "tables_of_torch", off)
    port = parity.port(modules.Waves, *example(modules.Waves))
    assert port.comparison.constants
    assert port.largest > 1e-10


@pytest.mark.full
def test_torch_computes_with_one_thread_from_the_first_call_on():
    threads = []

    class Counting(modules.MLP):
        def forward(self, x):
            threads.append(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with contextlib.suppress(errors.PortError):
            parity.port(Counting, *example(modules.MLP))
        assert (set(threads), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("place", "users"),
    [
        ("site-packages/torchvision/models.py", True),
        ("dist-packages/jaxpar_models/net.py", True),
        ("mine/torch/net.py", True),
        ("site-packages/torch/net.py", False),
        ("site-packages/flax/net.py", False),
    ],
)
def test_a_library_with_a_name_like_torchs_is_the_users(place, users, tmp_path):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.touch()
    assert is_users(str(path)) is users
    assert not is_users(torch.nn.modules.linear.__file__)
    assert not is_users(inspect.__file__)
    assert not is_users(parity.__file__)


@pytest.mark.full
def test_a_profiler_at_work_goes_on():
    with cProfile.Profile() as profile:
        assert parity.port(modules.MLP, torch.randn(3, 6)).status == 0
        before = sys.getprofile()
        assert before is None or before is profile
        sum([1, 2])
    seen = {name for _, _, name in pstats.Stats(profile).stats}
    assert "<built-in method builtins.sum>" in seen


def made(kind, *sizes):
    return kind(*sizes)


class WithoutWeights(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = made(torch.nn.Flatten)

    def forward(self, x):
        return self.layer(x)


class WithWeights(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = made(torch.nn.Linear, 6, 2)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.full
def test_an_earlier_port_decides_nothing():
    """A function that built a layer without random values builds one with them in the next module."""
    for module in (WithoutWeights, WithWeights):
        port = parity.port(module, torch.randn(3, 6))
        assert port.status == 0, port.failure


def test_of_a_long_list_the_first_elements_are_looked_at_in_each_line():
    read = []

    class Counted(torch.Tensor):
        @property
        def _version(self):
            read.append(self)
            return 0

    tensors = [torch.zeros(1).as_subclass(Counted)] * 1000
    recorded = dict(aliases._versions({"tensors": tensors, "x": torch.zeros(1)}))
    assert len(read) == len(recorded["tensors"]) == aliases.FEW
    assert "x" in recorded
