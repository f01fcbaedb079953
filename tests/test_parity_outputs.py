"""parity.compare: what a model returns is compared by the names of its fields; nothing is dropped."""

from __future__ import annotations

import collections
import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxpar import errors, parity

torch = pytest.importorskip("torch")

X = np.random.RandomState(0).randn(4, 3)
Point = collections.namedtuple("Point", "y aux")


@dataclasses.dataclass
class Plain:
    y: object
    aux: object = None


@flax.struct.dataclass
class Struct:
    y: object
    aux: object = None


class Out(collections.OrderedDict):
    """As transformers' ModelOutput: a dict with attributes that leaves out what is None."""

    def __init__(self, y, aux=None):
        super().__init__({k: v for k, v in {"y": y, "aux": aux}.items() if v is not None})


class Opaque:
    def __init__(self, y, aux=None):
        self.inside = {"y": y, "aux": aux}


def pair(torch_form, flax_form, off=0.0):
    class Torch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = torch.nn.Linear(3, 2)

        def forward(self, x):
            y = self.dense(x)
            return torch_form(y, y**2)

    class Flax(nnx.Module):
        def __init__(self):
            self.dense = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

        def __call__(self, x):
            y = self.dense(x)
            return flax_form(y, y**2 + off)

    return Torch(), Flax()


def outputs_in(rows):
    return {row.difference.name for row in rows if row.difference.kind is parity.Kind.OUTPUT}


NAMED = {
    "dict": lambda y, aux: {"aux": aux, "y": y},
    "ModelOutput": Out,
    "dataclass": Plain,
    "named tuple": Point,
    "nested": lambda y, aux: {"y": y, "aux": aux, "none": None, "name": "text"},
}
FLAX = {**NAMED, "flax.struct": Struct}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("flax_form", FLAX)
@pytest.mark.parametrize("torch_form", NAMED)
def test_fields_are_matched_by_name(torch_form, flax_form):
    same = parity.compare(*pair(NAMED[torch_form], FLAX[flax_form]), X)
    assert same.same, same
    assert outputs_in(same.rows) == {"['y']", "['aux']"}
    wrong = parity.compare(*pair(NAMED[torch_form], FLAX[flax_form], off=1e-6), X)
    assert not wrong.same
    assert outputs_in(wrong.different) == {"['aux']"}


LONE = {
    "alone": lambda y, aux: y,
    "tuple": lambda y, aux: (y,),
    "dict": lambda y, aux: {"logits": y},
    "ModelOutput": lambda y, aux: Out(y),
    "dataclass": lambda y, aux: Plain(y),
}


@pytest.mark.parametrize("flax_form", LONE)
@pytest.mark.parametrize("torch_form", ["alone", "tuple", "ModelOutput"])
def test_the_only_array_is_compared_and_the_containers_are_said(torch_form, flax_form):
    found = parity.compare(*pair(LONE[torch_form], LONE[flax_form]), X)
    assert found.same, found
    said = [note for note in found.notes if "its only output" in note]
    assert bool(said) == (torch_form != flax_form and {torch_form, flax_form} != {"ModelOutput", "dataclass"})


@pytest.mark.parametrize("lost", [None, (), {}, "text"])
@pytest.mark.parametrize("torch_form", [lambda y, aux: (y, Out(aux)), lambda y, aux: (y, Plain(aux))])
def test_an_output_that_only_torch_has_is_a_difference(torch_form, lost):
    """Both were called the same once: nothing of `aux` was looked at."""
    found = parity.compare(*pair(torch_form, lambda y, aux: (y, lost)), X)
    assert not found.same


@pytest.mark.parametrize("side", ["torch", "Flax"])
@pytest.mark.parametrize(
    "opaque", [Opaque, lambda y, aux: (y, {"cache": Opaque(aux)}), lambda y, aux: (y, {aux})]
)
def test_an_object_that_hides_arrays_is_an_error(side, opaque):
    if side == "Flax" and opaque is not Opaque:
        opaque = lambda y, aux: (y, collections.deque([aux]))  # noqa: E731
    forms = (opaque, LONE["alone"]) if side == "torch" else (LONE["alone"], opaque)
    with pytest.raises(errors.LeafError, match=rf"of the {side} module is a .* would not be compared"):
        parity.compare(*pair(*forms), X)


def test_a_comparison_of_nothing_is_an_error():
    with pytest.raises(errors.LeafError, match="neither module returned an array"):
        parity.compare(*pair(lambda y, aux: None, lambda y, aux: ()), X)


def test_with_a_loss_there_is_something_to_compare():
    losses = (lambda _, t: (t**2).sum(), lambda _, t: jnp.sum(t**2))
    found = parity.compare(*pair(lambda y, aux: None, lambda y, aux: ()), X, targets=(X,), loss=losses)
    assert found.same


NUMBERS = {
    "equal": (0.5, 0.5, True),
    "different": (0.5, 0.25, False),
    "different integers": (3, 4, False),
    "only in torch": (0.5, "text", True),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_python_numbers_are_compared(case):
    torch_number, flax_number, same = NUMBERS[case]
    comparison = parity.compare(*pair(lambda y, aux: (y, torch_number), lambda y, aux: (y, flax_number)), X)
    assert comparison.same is same
    assert [row.difference.name for row in comparison.different] == ([] if same else ["[1]"])


@pytest.mark.parametrize(
    ("x64", "largest", "same"), [(False, 9, True), (False, 10**6, False), (True, 10**6, True)]
)
def test_integers_overflow_as_they_do_for_the_user(x64, largest, same):
    class Torch(torch.nn.Embedding):
        def forward(self, i):
            return super().forward((i * 31000093) % 61)

    class Flax(nnx.Embed):
        def __call__(self, i):
            return super().__call__((i * 31000093) % 61)

    ids = np.random.RandomState(0).randint(0, largest, (4, 5))
    with jax.enable_x64(x64):
        assert parity.compare(Torch(61, 2), Flax(61, 2, rngs=nnx.Rngs(0)), ids).same is same


def torch_map(x):
    """A map between the pixels of an image, [N, pixels, pixels]."""
    pixels = x.flatten(2).transpose(1, 2)
    return pixels @ (pixels * 2 + 1).transpose(1, 2)


def flax_map(x):
    pixels = x.reshape(len(x), -1, x.shape[-1])
    return pixels @ (pixels * 2 + 1).transpose(0, 2, 1)


@pytest.mark.parametrize(
    ("torch_function", "flax_function", "shape", "same"),
    [
        (torch_map, flax_map, (2, 3, 4, 5), True),
        (torch_map, lambda x: flax_map(x).transpose(0, 2, 1), (2, 3, 4, 5), False),
        (lambda x: x.cumsum(1), lambda x: jnp.cumsum(x, -1), (2, 4, 4), True),
        (lambda x: x.cumsum(1), lambda x: jnp.cumsum(x, -1), (2, 4, 4, 4), True),
        (lambda x: x.cumsum(1), lambda x: jnp.cumsum(x, 1), (2, 4, 4), False),
    ],
)
def test_channels_last_moves_outputs_with_as_many_axes_as_the_inputs(
    torch_function, flax_function, shape, same
):
    x = np.random.RandomState(0).randn(*shape).astype(np.float32)
    compared = parity.compare(torch_function, flax_function, x, layout="channels_last", search=None)
    assert compared.same is same
