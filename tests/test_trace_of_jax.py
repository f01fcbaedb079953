"""Traces of JAX models: recorded without torch, judged without the model's code, as `compare` judges."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import optax
import pytest
from flax import linen, nnx
from test_trace import (
    CASES,
    FLAX,
    HOSTILE,
    IMAGES,
    TORCH,
    Computed,
    F,
    FlaxImages,
    Images,
    T,
    Table,
    arrays_of,
    python,
    resealed,
)

import jaxpar
from jaxpar import parity
from jaxpar.errors import FileError, MaskError, MatchError

torch = pytest.importorskip("torch")


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_trace_gives_the_verdict_the_place_and_the_cause_of_compare(tmp_path, name):
    options, changes, expected = CASES[name]
    halves = {"loss": F["loss"], "optimizer": F["optimizer"], **changes}
    pairs = {half: (T[half], halves[half]) for half in halves}
    net = parity.load_torch(F["Net"](**options), T["torch_module"])
    compared = parity.compare(T["torch_module"], net, T["inputs"], targets=T["targets"], **pairs)
    trace = parity.record_jax(tmp_path, net, T["inputs"], targets=T["targets"], **halves)
    judged = parity.against_jax(trace, T["torch_module"], loss=T["loss"], optimizer=T["optimizer"])
    assert judged.same == compared.same == (expected is None)
    assert [row.difference.name for row in judged.rows] == [row.difference.name for row in compared.rows]
    assert judged.constants == compared.constants
    if expected:
        place, cause = expected
        for comparison in (judged, compared):
            assert comparison.divergence.candidate == place
            assert cause in comparison.divergence.causes[0].text
        texts = [[c.text for c in one.divergence.causes] for one in (judged, compared)]
        assert texts[0] == texts[1]


class Both(linen.Module):
    @linen.compact
    def __call__(self, x, train=True):
        x = linen.Dropout(0.5, deterministic=not train, name="drop")(linen.Dense(8, name="fc")(x))
        return linen.Dense(2, name="out")(linen.gelu(x, approximate=False))


class TorchBoth(torch.nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.fc, self.drop, self.out = torch.nn.Linear(4, 8), torch.nn.Dropout(p), torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.out(torch.nn.functional.gelu(self.drop(self.fc(x))))


class TorchNegative(TorchBoth):
    def forward(self, x):
        return super().forward(-x)


class Dropped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.conv(x))


class FlaxDropped(nnx.Module):
    def __init__(self):
        self.conv, self.drop = nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.drop(self.conv(x))


class Mapped(nnx.Module):
    def __init__(self, act=nnx.relu):
        self.a, self.b = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 2, rngs=nnx.Rngs(1))
        self.act = act

    def __call__(self, x):
        return self.b(self.act(jax.vmap(self.a)(x)))


class TorchMapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class TorchComputed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x + torch.arange(4, dtype=x.dtype) / 3)


class FlaxTable(nnx.Module):
    def __init__(self):
        self.fc = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
        self.table = nnx.data(np.arange(4, dtype=np.float32) / np.float32(3))

    def __call__(self, x):
        return self.fc(x + self.table)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.b(torch.nn.functional.gelu(self.norm(self.a(x))))


class FlaxNormed(nnx.Module):
    def __init__(self):
        self.norm = nnx.LayerNorm(4, epsilon=1e-3, use_fast_variance=False, rngs=nnx.Rngs(0))
        self.a, self.b = nnx.Linear(4, 4, rngs=nnx.Rngs(1)), nnx.Linear(4, 2, rngs=nnx.Rngs(2))

    def __call__(self, x):
        return self.b(nnx.gelu(self.norm(self.a(x)), approximate=True))


X = np.random.RandomState(0).randn(5, 4)
VARIABLES = Both().init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X.astype(np.float32))


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "flax_module", "x", "options", "same", "cause"),
    [
        (Table, Computed(), X, {}, True, ""),  # up to what float32 does to the table
        (TorchComputed, FlaxTable(), X, {}, True, ""),
        (Table, Computed(1 + 1e-5), X, {}, False, ""),
        (Images, FlaxImages(), IMAGES, {"layout": "channels_last"}, True, ""),
        (Images, FlaxImages((0, 1, 2, 3)), IMAGES, {"layout": "channels_last"}, False, "(C, *S)"),
        (lambda: torch.nn.functional.gelu, jax.nn.gelu, X, {}, False, "acts as gelu(approximate=True)"),
        (lambda: torch.nn.functional.relu, jax.nn.relu, X, {}, True, ""),
        (Dropped, FlaxDropped(), IMAGES, {"layout": "channels_last"}, True, ""),
        (TorchMapped, Mapped(), X, {}, True, ""),
        (TorchMapped, Mapped(nnx.sigmoid), X, {}, False, "relu"),
        (TorchBoth, Both(), X, {"variables": VARIABLES}, True, ""),
        (lambda: TorchBoth(0.25), Both(), X, {"variables": VARIABLES}, False, "rate=0.25 (it acts as 0.5)"),
        (TorchNegative, Both(), X, {"variables": VARIABLES}, False, "sign"),
    ],
)
def test_what_else_a_trace_holds(tmp_path, module, flax_module, x, options, same, cause):
    torch.manual_seed(0)  # other weights than the trace's, which torch gets
    judged = parity.against_jax(parity.record_jax(tmp_path, flax_module, x, **options), module())
    assert judged.same == same, judged
    assert any("float32 constants" in note for note in judged.notes) == (
        module in (Table, TorchComputed) and same
    )
    assert not cause or cause in judged.divergence.causes[0].text, judged


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (torch.nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        y = x + torch.tanh(self.a(x))
        z = y + self.c(torch.relu(self.b(y)))
        return self.d(torch.sigmoid(z))


class FlaxBranches(nnx.Module):
    def __init__(self, sign=1.0, shift=0.0, act=nnx.sigmoid):
        self.a, self.b, self.c, self.d = (nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(4))
        self.sign, self.shift, self.act = sign, shift, act

    def __call__(self, x):
        y = x + nnx.tanh(self.a(x))
        z = y + self.c(nnx.relu(self.sign * self.b(y) + self.shift))
        return self.d(self.act(z))


BRANCHES = {
    "healthy": ({}, []),
    "first": ({"sign": -1.0}, ["c"]),
    "last": ({"act": nnx.tanh}, ["d"]),
    "both": ({"shift": 0.5, "act": nnx.tanh}, ["c", "d"]),
}


@pytest.mark.full
@pytest.mark.parametrize("name", BRANCHES)
def test_every_place_is_listed_and_no_consequence_of_one(tmp_path, name):
    options, places = BRANCHES[name]
    net = FlaxBranches(**options)
    judged = parity.against_jax(parity.record_jax(tmp_path, net, X), Branches())
    live = parity.compare(Branches(), net, X, weights="torch")
    for comparison in (judged, live):
        first = comparison.divergence
        assert [x.candidate for x in ((first, *first.others) if first else ())] == places


def test_the_same_mistake_in_a_layer_is_no_place_of_the_next_one(tmp_path):
    net = nnx.Sequential(
        nnx.LayerNorm(4, epsilon=1e-3, use_fast_variance=False, rngs=nnx.Rngs(0)),
        nnx.Linear(4, 4, rngs=nnx.Rngs(1)),
    )
    trace = parity.record_jax(tmp_path, net, X)
    judged = parity.against_jax(trace, torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)))
    assert (judged.divergence.candidate, judged.divergence.others) == ("layers.0", ())
    assert [layer.same for layer in judged.divergence.layers] == [False, True]


@pytest.mark.full
@pytest.mark.parametrize("rate", [1e-2, 2e-2])
def test_steps_of_parameters_without_a_real_gradient_do_not_part_the_models(tmp_path, rate):
    # A bias in front of BatchNorm: its gradient is rounding, of which Adam makes steps of the rate.
    net = nnx.Sequential(
        nnx.Linear(4, 3, rngs=nnx.Rngs(0)), jaxpar.nn.BatchNorm(3), nnx.Linear(3, 2, rngs=nnx.Rngs(1))
    )
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    trace = parity.record_jax(tmp_path, net, X, optimizer=optax.adam(1e-2), steps=3)
    judged = parity.against_jax(trace, module, optimizer=lambda p: torch.optim.Adam(p, rate))
    assert judged.same == (rate == 1e-2)
    assert {row.outcome for row in judged.rows if row.difference.name == "layers.0.bias"} == {
        parity.Outcome.NOISE
    }


@pytest.mark.full
def test_each_step_has_its_inputs_targets_and_layers(tmp_path):
    xs, ys = (np.random.RandomState(seed).randn(3, 4, 4) for seed in (0, 1))
    options = {"inputs": lambda step: xs[step], "targets": lambda step: ys[step], "steps": 2}
    net = FlaxBranches()

    def loss(outputs, targets):
        return ((outputs - targets) ** 2).mean()

    trace = parity.record_jax(tmp_path, net, loss=loss, optimizer=optax.sgd(0.1), **options)
    halves = {"loss": loss, "optimizer": lambda p: torch.optim.SGD(p, 0.1)}
    assert parity.against_jax(trace, Branches(), **halves).same

    # The first step's output is the same: only the layers of the second show the place.
    class Later(Branches):
        calls = 0

        def forward(self, x):
            is_first = bool((x[0, 0] - xs[1][0, 0]).abs() < 1e-9)
            y = x + (torch.tanh if is_first else torch.sigmoid)(self.a(x))
            return self.d(torch.sigmoid(y + self.c(torch.relu(self.b(y)))))

    judged = parity.against_jax(trace, Later(), **halves)
    assert judged.different[0].difference.step == 2
    assert judged.divergence.candidate == "b"


@pytest.mark.full
def test_a_difference_after_the_last_layer_is_placed_there(tmp_path):
    net = FlaxBranches()
    module = Branches()
    module.register_forward_hook(lambda layer, inputs, output: 2 * output)
    judged = parity.against_jax(parity.record_jax(tmp_path, net, X), module)
    assert judged.divergence.kind == "after the last layer"


@pytest.mark.full
def test_a_place_behind_a_wrong_layer_has_its_own_cause(tmp_path):
    judged = parity.against_jax(parity.record_jax(tmp_path, FlaxNormed(), X), Normed())
    (other,) = judged.divergence.others
    assert judged.divergence.causes[0].text == "epsilon=1e-05 (it acts as 0.001)"
    assert (other.candidate, other.causes[0].text) == (
        "b",
        "approximate=False (it acts as gelu(approximate=True))",
    )


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, x, factor=1.0):
        return self.fc(factor * x)


@pytest.mark.full
def test_torch_may_take_other_arguments(tmp_path):
    trace = parity.record_jax(tmp_path, nnx.Linear(4, 2, rngs=nnx.Rngs(0)), X)
    options = {"mapping": {"fc": ""}, "torch_inputs": {"x": X / 2}}
    assert parity.against_jax(trace, Scaled(), torch_kwargs={"factor": 2.0}, **options).same
    assert not parity.against_jax(trace, Scaled(), torch_kwargs={"factor": 3.0}, **options).same


def test_numbers_of_float64_keep_their_digits_in_torch(tmp_path):
    net = nnx.Linear(4, 2, param_dtype=np.float64, rngs=nnx.Rngs(0))
    net.kernel[...] = np.random.RandomState(1).randn(4, 2)
    module = torch.nn.Linear(4, 2)
    before = module.weight.detach().clone()
    assert parity.against_jax(parity.record_jax(tmp_path, net, X), module).same
    assert torch.equal(module.weight, before)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    options = {name: F[name] for name in ("loss", "optimizer")}
    folder = tmp_path_factory.mktemp("trace")
    return parity.record_jax(folder, F["Net"](), T["inputs"], targets=T["targets"], **options)


HALVES = {name: T[name] for name in ("loss", "optimizer")}


def test_a_trace_is_asked_for_what_it_was_recorded_with(trace):
    with pytest.raises(ValueError, match="recorded with loss"):
        parity.against_jax(trace, T["torch_module"], optimizer=T["optimizer"])
    with pytest.raises(FileError, match="it is a trace of jax; judge by it with"):
        parity.against(trace, F["Net"](), loss=F["loss"], optimizer=F["optimizer"])
    with pytest.raises(MatchError, match="11 of Flax's 11 leaves get nothing"):
        parity.against_jax(trace, torch.nn.Sequential(torch.nn.Linear(4, 3)), **HALVES)


def test_models_that_drop_in_different_places_get_no_verdict(tmp_path):
    trace = parity.record_jax(tmp_path, Both(), X, variables=VARIABLES)
    module = TorchBoth()
    module.drop = torch.nn.Identity()
    with pytest.raises(MaskError, match="JAX dropped 1 times in the trace and torch 0 times"):
        parity.against_jax(trace, module)


@pytest.mark.full
def test_a_model_that_draws_by_itself_is_not_recorded(tmp_path):
    class Draws(nnx.Module):
        def __init__(self):
            self.rngs = nnx.Rngs(0)

        def __call__(self, x):
            return x + jax.random.normal(self.rngs.noise(), x.shape)

    with pytest.raises(MaskError, match="that it draws itself"):
        parity.record_jax(tmp_path, Draws(), X)


# ------------------------------------------------------------------------------------------- two environments

JAX_SIDE = """
import numpy as np
from jaxpar import parity

flax_module = parity.load_torch(Net(approximate={approximate}), "weights.safetensors")
inputs = np.random.RandomState(0).randn(5, 4)
targets = np.array([0, 1, 2, 0, 1])
"""
RECORDS = (
    "sys.argv = ['jaxpar', 'parity', 'jax_side.py', '--trace', 'trace']\n"
    "from jaxpar._cli.main import main\nmain()\n"
)
JUDGES = (
    "sys.argv = ['jaxpar', 'parity', 'torch_side.py', '--against', 'trace', '--json']\n"
    "from jaxpar._cli.main import main\nmain()\n"
)


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("approximate", [False, True])
def test_the_command_records_without_torch_and_judges_without_the_model(tmp_path, approximate):
    (tmp_path / "torch_side.py").write_text(TORCH)
    parity.write_weights(tmp_path / "weights.safetensors", T["torch_module"].state_dict())
    (tmp_path / "jax_side.py").write_text(FLAX + JAX_SIDE.format(approximate=approximate))
    recorded = python(tmp_path, ("torch",), RECORDS)
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stdout.startswith("trace: recorded, ")
    (tmp_path / "jax_side.py").unlink()
    judged = python(tmp_path, (), JUDGES)
    assert judged.returncode == int(approximate), judged.stderr
    divergence = json.loads(judged.stdout)["divergence"]
    assert (divergence is not None) == approximate
    if approximate:
        assert divergence["candidate"] == "batch"
        assert divergence["causes"][0]["text"] == "approximate=False (it acts as gelu(approximate=True))"


# -------------------------------------------------------------------------------------------- hostile traces


def outline_with(**fields):
    def change(folder):
        outline = json.loads((folder / "trace.json").read_text())["outline"]
        resealed(folder, outline=outline | fields)

    return change


def of_layer(**fields):
    entry = {"kinds": [["os", "system"]], "settings": {}, "parts": [], "arrays": []} | fields
    return outline_with(layers=[["", entry]])


OF_TORCH = ("modules of nothing", "probes of nothing", "a noise floor of words")
HOSTILE_OF_JAX = {name: case for name, case in HOSTILE.items() if name not in OF_TORCH} | {
    "no outline": (lambda f: resealed(f, outline=None), "its outline make no sense"),
    "leaves of nothing": (outline_with(leaves=[["fc.kernel"]]), "its outline make no sense"),
    "a leaf of no type": (outline_with(leaves=[["x", [1], "system", True]]), "its outline make no sense"),
    "a leaf without a name": (outline_with(names=[]), "a layer or a leaf without a name"),
    "an alias of no leaf": (outline_with(aliases=[["a", "b"]]), "an alias of no leaf"),
    "a layer of no kind": (outline_with(layers=[["", {}]]), "its outline make no sense"),
    "a part of nothing": (of_layer(parts=["__class__"]), "its outline make no sense"),
    "a name with a null": (of_layer(kinds=[["os", "a\0b"]]), "its outline make no sense"),
    "no start": (
        lambda f: resealed(f, arrays={k: x for k, x in arrays_of(f).items() if k != "start/fc.kernel"}),
        "it has no array of fc.kernel before the first step",
    ),
    "another start": (
        lambda f: resealed(f, arrays=arrays_of(f) | {"start/fc.kernel": arrays_of(f)["start/fc.bias"]}),
        "it has no array of fc.kernel before the first step",
    ),
    "a layout of nothing": (lambda f: resealed(f, layout=["upwards", 3]), "its layout make no sense"),
    "constants of words": (lambda f: resealed(f, constants=["x"]), "its noise floor make no sense"),
    "calls of a layer": (
        lambda f: resealed(f, layers=[{"step": 1, "path": "fc", "nth": 0, "inputs": ["/etc"], "outputs": 1}]),
        "its layers make no sense",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", HOSTILE_OF_JAX)
def test_a_hostile_trace_is_refused_with_path_and_reason(trace, tmp_path, name):
    change, message = HOSTILE_OF_JAX[name]
    shutil.copytree(trace, tmp_path, dirs_exist_ok=True)
    change(tmp_path)
    # Wrong in one place, so that whatever is read only for a search is read, too.
    module = type(T["torch_module"])()
    module.norm.eps = 1e-3
    with pytest.raises(FileError) as refused:
        parity.against_jax(tmp_path, module, **HALVES)
    assert message in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_the_copy_of_a_trace_that_nobody_changed_is_read(trace, tmp_path):
    """Planted fault of the table above: a change that changes nothing is no reason."""
    shutil.copytree(trace, tmp_path, dirs_exist_ok=True)
    outline_with()(tmp_path)
    assert parity.against_jax(tmp_path, T["torch_module"], **HALVES).same


def test_a_gradient_under_the_name_of_another_is_seen(trace, tmp_path):
    shutil.copytree(trace, tmp_path, dirs_exist_ok=True)
    names = arrays_of(tmp_path)
    resealed(tmp_path, arrays=names | {"1/gradients/norm.scale": names["1/gradients/norm.bias"]})
    judged = parity.against_jax(tmp_path, T["torch_module"], **HALVES)
    assert [row.difference.name for row in judged.different] == ["norm.scale"]
