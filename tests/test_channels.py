"""What holds of all names of nn.channels_first and nn.channels_last. The signatures' reference is torch."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from flax import nnx

from jaxpar.nn import _layouts, channels_first, channels_last

LAYERS = [(room, name) for room in (channels_first, channels_last) for name in room.__all__]
LAYERS = [(room, name) for room, name in LAYERS if inspect.isclass(getattr(room, name)) and name != "Module"]
FUNCTIONS = [
    (room.functional, name) for room in (channels_first, channels_last) for name in room.functional.__all__
]
OURS_ALONE = {"TiedLinear", "WeightNorm", "SpectralNorm", "Function"}
METHODS = {"sliding_windows"}  # of torch.Tensor, where its name is unfold; tests/porting/rule_cases.py
ABSENT = {
    *("device", "dtype", "inplace", "size_average", "reduce", "out", "_stacklevel", "_weight", "_freeze"),
    *("min_value", "max_value", "enable_nested_tensor", "mask_check", "compute_mode", "out_int32"),
    "stable",  # as all sorts of JAX are
    *("layout", "requires_grad"),  # of functions that make a tensor
}
"""Arguments of torch that mean nothing in JAX or are torch's own older spelling."""
RENAMED = {
    "layer_norm": {"weight": "scale"},
    "rms_norm": {"weight": "scale"},
    "group_norm": {"weight": "scale"},
    "instance_norm": {"weight": "scale"},
    "batch_norm": {"weight": "scale"},
    "embedding": {"weight": "embedding"},
    "bilinear": {"input1": "x1", "input2": "x2", "weight": "kernel"},
}
"""Parameters have Flax's names."""
LOSSES = {
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "kl_div", "l1_loss"),
    *("mse_loss", "smooth_l1_loss", "gaussian_nll_loss", "hinge_embedding_loss", "multi_margin_loss"),
    *("multilabel_margin_loss", "multilabel_soft_margin_loss", "poisson_nll_loss", "soft_margin_loss"),
}
"""Functions whose first argument is `input`, as in torch; the others' is `x`."""
RECURRENT = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]
UNSIGNED = {
    **{name: [] for name in ("LogSigmoid", "Sigmoid", "Softmax2d", "Softsign", "Tanh", "Tanhshrink")},
    "Sequential": ["modules"],
    "RNN": [*RECURRENT[:3], "nonlinearity", *RECURRENT[3:]],
    "GRU": RECURRENT,
    "LSTM": [*RECURRENT, "proj_size"],
    "Identity": ["args", "kwargs"],
    "expand": ["input", "sizes"],
    **{name: ["input", "dim", "keepdim"] for name in ("max", "min", "median")},
}
"""Arguments from torch's documentation, where inspect sees only `*args, **kwargs`."""


def ids(value):
    return value if isinstance(value, str) else value.__name__.removeprefix("jaxpar.nn.")


def torchs_arguments(name: str, torchs: object) -> list[str]:
    """Return the arguments' names of a class or function of torch; a builtin's are in its docstring."""
    if name in UNSIGNED:
        return UNSIGNED[name]
    torchs = getattr(torch.nn.functional, f"{name}_with_indices", torchs)
    try:
        return list(inspect.signature(torchs).parameters)
    except ValueError:
        (listed,) = re.findall(rf"^\s*{name}\((.*?)\) ->", torchs.__doc__, re.M | re.S)[:1]
        listed = re.sub(r"\[.*?\]", "", listed)
        names = [part.split("=")[0].split(":")[0].strip(" *\n") for part in listed.split(",")]
        return [name for name in names if name]  # a lone * starts the keywords


def check_arguments(name: str, ours: object, torchs: list[str]) -> None:
    """Fail unless torch's arguments are ours, in torch's order, and all further ones are keywords."""
    parameters = inspect.signature(ours).parameters
    first = {"input": "input" if name in LOSSES else "x", "tensor": "x"}
    keywords = {x for x, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}
    absent = ABSENT - (set(parameters) - keywords)
    expected = [RENAMED.get(name, {}).get(x, first.get(x, x)) for x in torchs if x not in absent]
    shared = [x for x in parameters if x in expected]
    positional = [x for x in expected if x not in keywords]
    assert set(expected) <= set(parameters), f"{name} lacks {set(expected) - set(parameters)}"
    assert [x for x in shared if x not in keywords] == positional, f"{name}: {list(parameters)}, {expected}"
    more = set(parameters) - set(expected) - keywords - {"padding_mode", "divisor_override"}
    assert not more, f"{name}: {more} can be given by position"


@pytest.mark.parametrize(("room", "name"), [x for x in LAYERS if x[1] not in OURS_ALONE], ids=ids)
def test_a_layer_has_torchs_arguments(room, name):
    check_arguments(name, getattr(room, name), torchs_arguments(name, getattr(torch.nn, name)))


@pytest.mark.parametrize(("room", "name"), [x for x in FUNCTIONS if x[1] not in METHODS], ids=ids)
def test_a_function_has_torchs_arguments(room, name):
    torchs = getattr(torch.nn.functional, name, getattr(torch, name, None))
    check_arguments(name, getattr(room, name), torchs_arguments(name, torchs))


def test_missing_and_swapped_arguments_are_found():
    """Planted."""
    with pytest.raises(AssertionError, match="lacks"):
        check_arguments("f", lambda x: x, ["input", "stride"])
    with pytest.raises(AssertionError, match="stride"):
        check_arguments("f", lambda x, padding, stride: x, ["input", "stride", "padding"])
    with pytest.raises(AssertionError, match="by position"):
        check_arguments("f", lambda x, key: x, ["input"])


@pytest.mark.parametrize(("room", "name"), LAYERS + FUNCTIONS, ids=ids)
def test_it_is_a_global_of_its_module(room, name):
    value = getattr(room, name)
    assert pickle.loads(pickle.dumps(value)) is value
    assert value.__name__ == value.__qualname__ == name
    assert value.__module__.startswith("jaxpar.nn.")


@pytest.mark.parametrize(("room", "name"), LAYERS + FUNCTIONS, ids=ids)
def test_its_docstring_names_torchs_counterpart(room, name):
    text = inspect.getdoc(getattr(room, name))
    assert "torch counterpart: `" in text, text
    if name in {**_layouts.LAYERS, **_layouts.FUNCTIONS}:
        assert f".{name}`" in text
        assert re.search(r"\[[A-Z*, ]+\]", text), "no shape"


@pytest.mark.parametrize("room", [channels_first, channels_last], ids=ids)
def test_a_layer_survives_pickling(room):
    layer = room.Conv2d(2, 3, 3, rngs=nnx.Rngs(0))
    x = jnp.ones((1, 2, 4, 4)) if room is channels_first else jnp.ones((1, 4, 4, 2))
    assert (pickle.loads(pickle.dumps(layer))(x) == layer(x)).all()


def stub(path: Path) -> types.ModuleType:
    """Return a stub run as a module: its classes and aliases have the signatures that editors show."""
    room = ".".join(path.relative_to(Path(_layouts.__file__).parents[2]).parent.parts)
    module = types.ModuleType(f"{room}.{path.stem}_stub")
    module.__package__ = room
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(path.read_text(), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


def parameters(function: Callable) -> list[tuple]:
    """A signature's parameters; `float` is the same annotation as "float", with or without a bound."""

    def spelled(annotation: object) -> str:
        annotation = annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
        return str(getattr(annotation, "__name__", annotation))

    return [
        (x.name, x.kind, x.default, spelled(x.annotation))
        for x in inspect.signature(function).parameters.values()
    ]


STUBS = sorted(
    path for path in Path(_layouts.__file__).parent.glob("channels_*/**/*.pyi") if path.stem != "__init__"
)


@pytest.mark.parametrize("path", STUBS, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_stub_shows_the_signatures_that_run(path):
    shown = stub(path)
    room = __import__(shown.__package__, fromlist=["__all__"])
    runs = __import__(f"{shown.__package__}.{path.stem}", fromlist=["__all__"])
    listed = {name for name in room.__all__ if name in vars(runs)} - {"functional"}
    exported = re.findall(rf"from \.{path.stem} import (\w+)", (path.parent / "__init__.pyi").read_text())
    assert set(exported) == listed & {*exported}
    assert {*exported} <= {*vars(shown)}
    for name in exported:
        ours, theirs = getattr(room, name), getattr(shown, name)
        if name != "Module":
            assert parameters(ours) == parameters(theirs), name
        if inspect.isclass(ours):
            assert {base.__name__ for base in theirs.__mro__} <= {base.__name__ for base in ours.__mro__}


@pytest.mark.parametrize("room", [channels_first, channels_last], ids=ids)
@pytest.mark.parametrize("kind", ["Sequential", "ModuleList", "ModuleDict"])
def test_tabulate_shows_a_container(room, kind):
    class Net(nnx.Module):
        def __init__(self):
            layers = {"a": room.Linear(2, 2, rngs=nnx.Rngs(0)), "b": room.ReLU()}
            container = getattr(room, kind)
            self.layers = container(layers if kind != "ModuleList" else layers.values())

        def __call__(self, x: jax.Array) -> jax.Array:
            for name, layer in self.layers.named_children():
                x = layer(x)
                assert layer is getattr(self.layers, name)
            if kind == "ModuleDict":
                assert [*self.layers.items()] == [*zip(self.layers.keys(), self.layers.values(), strict=True)]
            else:
                assert [*self.layers] == [*self.layers.children()]
            return x

    net = Net()
    table = nnx.tabulate(net, jnp.ones((1, 2)))
    assert all(layer in table for layer in ("Linear", "ReLU"))
    if kind == "Sequential":
        assert "Linear" in nnx.tabulate(net.layers, jnp.ones((1, 2)))
