"""match with an example: guesses are tried by running both models, and what that does not decide is said."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxpar import parity

torch = pytest.importorskip("torch")
tn = torch.nn

X = np.random.RandomState(0).randn(3, 4)


class Torch(tn.Module):
    """Defined in another order than called."""

    def __init__(self, parallel: bool = False):
        super().__init__()
        self.parallel = parallel
        self.late, self.early, self.middle = (tn.Linear(4, 4) for _ in range(3))
        self.norm = tn.LayerNorm(4)

    def forward(self, x):
        if self.parallel:
            return self.norm(self.early(x) + self.middle(x)) * self.late(x)
        return self.late(torch.tanh(self.middle(self.norm(torch.relu(self.early(x))))))


def linear() -> nnx.Linear:
    return nnx.Linear(4, 4, rngs=nnx.Rngs(0))


class Flax(nnx.Module):
    def __init__(self, factor: float = 1.0, parallel: bool = False):
        self.c, self.a, self.b = (linear() for _ in range(3))
        self.ln = nnx.LayerNorm(4, epsilon=1e-5, use_fast_variance=False, rngs=nnx.Rngs(0))
        self.factor, self.parallel = factor, parallel

    def __call__(self, x):
        if self.parallel:
            return self.ln(self.a(x) + self.c(x)) * self.b(x)
        return self.b(jnp.tanh(self.c(self.ln(nnx.relu(self.a(x)))) * self.factor))


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False)(nnx.relu(linen.Dense(4, name="z")(x)))
        return linen.Dense(4, name="a")(jnp.tanh(linen.Dense(4, name="k")(x)))


RIGHT = {"early": "a", "middle": "c", "late": "b", "norm": "ln"}


@pytest.mark.full
def test_guesses_follow_the_calls_and_are_tried():
    theirs, ours = Torch(), Flax()
    assert dict(parity.match(ours, theirs)) != RIGHT
    found = parity.match(ours, theirs, example=X)
    assert dict(found) == RIGHT
    (note,) = found.notes
    assert note.startswith("tried: with random weights the outputs agree")
    assert f"# {note}" in repr(found)
    assert eval(repr(found)) == RIGHT
    assert parity.compare(theirs, ours, X, mapping=found).same


@pytest.mark.full
def test_linen():
    theirs = Torch()
    found = parity.match(Linen(), theirs, example=X)
    assert dict(found) == {"early": "z", "middle": "k", "late": "a", "norm": "LayerNorm_0"}
    assert parity.compare(theirs, Linen(), X, mapping=found).same


def test_neither_model_is_changed():
    theirs, ours = Torch(), Flax()
    before = [x.clone() for x in theirs.state_dict().values()], ours.a.kernel[...]
    parity.match(ours, theirs, example=X)
    assert all(torch.equal(x, y) for x, y in zip(theirs.state_dict().values(), before[0], strict=True))
    assert ours.a.kernel[...] is before[1]
    assert not any(layer._forward_pre_hooks for layer in theirs.modules())


class Swapped(Flax):
    """Calls its layers in another order than torch: the second before the first, on the same input."""

    def __call__(self, x):
        middle = self.c(x)
        return self.ln(self.a(x) - 2 * middle) * self.b(x)


class TorchSwapped(Torch):
    def forward(self, x):
        return self.norm(self.early(x) - 2 * self.middle(x)) * self.late(x)


@pytest.mark.full
def test_an_order_that_no_list_shows_is_found_by_trying():
    theirs, ours = TorchSwapped(), Swapped()
    found = parity.match(ours, theirs, example=X)
    assert dict(found) == RIGHT
    assert parity.compare(theirs, ours, X, mapping=found).same


@pytest.mark.full
def test_what_the_outputs_do_not_decide_is_said():
    theirs, ours = Torch(parallel=True), Flax(parallel=True)
    found = parity.match(ours, theirs, example=X)
    compared = parity.compare(theirs, ours, X, mapping=found)
    assert any("mapping: ambiguous: early and middle" in note for note in compared.notes)
    assert any("ambiguous: early and middle may be exchanged" in note for note in found.notes)
    # Known, it is no guess.
    found = parity.match(Flax(parallel=True), Torch(parallel=True), example=X, mapping={"early": "a"})
    assert not any("ambiguous" in note for note in found.notes)
    assert found["middle"] == "c"


def test_models_that_differ_have_no_order_that_fits():
    found = parity.match(Flax(factor=1.5), Torch(), example=X)
    (note,) = found.notes
    assert "none fits: the outputs are" in note
    assert note.endswith("The models differ, or a guess is wrong")


def test_nothing_is_tried_where_names_are_left_over():
    class More(Flax):
        def __init__(self):
            super().__init__()
            self.spare = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    found = parity.match(More(), Torch(), example=X)
    assert "not tried" in found.notes[0]
    assert any("spare.kernel" in line for line in found.unmatched)
    assert dict(parity.match(More(), Torch(), example=X, ignore_flax=["spare"])) == RIGHT


def test_an_example_needs_two_models():
    with pytest.raises(TypeError, match="an example is for two models; OrderedDict cannot be called"):
        parity.match(Flax(), Torch().state_dict(), example=X)
    with pytest.raises(TypeError, match="this one has shapes"):
        parity.match(nnx.eval_shape(Flax), Torch(), example=X)


class Dense(linen.Module):
    """A layer that jaxpar does not know, with its kernel either way."""

    features: int
    turned: bool

    @linen.compact
    def __call__(self, x):
        shape = (x.shape[-1], self.features)
        kernel = self.param("kernel", linen.initializers.normal(), shape if self.turned else shape[::-1])
        bias = self.param("bias", linen.initializers.zeros, (self.features,))
        return x @ (kernel if self.turned else kernel.T) + bias


class Norm(linen.Module):
    @linen.compact
    def __call__(self, x):
        scale = self.param("scale", linen.initializers.ones, (x.shape[-1],))
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


class OwnNet(linen.Module):
    turned: bool
    width: int = 4
    names: tuple = ("late", "early", "norm")

    @linen.compact
    def __call__(self, x):
        late, early, norm = self.names
        x = Norm(name=norm)(jnp.tanh(Dense(self.width, self.turned, name=early)(x)))
        return Dense(4, self.turned, name=late)(x)


class TorchNorm(tn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = tn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class TorchOwn(tn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.late, self.early, self.norm = tn.Linear(width, 4), tn.Linear(4, width), TorchNorm(width)

    def forward(self, x):
        return self.late(self.norm(torch.tanh(self.early(x))))


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("names", [("late", "early", "norm"), ("a", "b", "c")])
@pytest.mark.parametrize("width", [4, 6])
@pytest.mark.parametrize("turned", [True, False])
def test_how_the_arrays_of_unknown_layers_lie_is_tried(turned, width, names):
    theirs, ours = TorchOwn(width), OwnNet(turned, width, names)
    found = parity.match(ours, theirs, example=X)
    if names[0] == "a" and not turned and width != 4:
        assert "torch late.weight (4, 6)" in found.unmatched  # neither its name nor its sizes say anything
        return
    assert not found.unmatched, repr(found)
    assert found.notes[0].startswith("tried: with random weights the outputs agree")
    assert len(found.notes) == 1
    late, early, norm = names
    kernels = {"late.weight": f"{late}.kernel", "early.weight": f"{early}.kernel"}
    want = {key: parity.transposed(place, (1, 0)) if turned else place for key, place in kernels.items()}
    want |= {"norm.weight": f"{norm}.scale"}
    assert {key: place for key, place in found.items() if "." in key} == want
    assert parity.compare(theirs, ours, X, mapping=found).same


def test_without_an_example_a_square_array_is_ambiguous():
    found = parity.match(OwnNet(False), TorchOwn(), inputs=(X,))
    assert found["late.weight"] == parity.transposed("late.kernel", (1, 0))
    assert "ambiguous: axes (0, 1) fit as well" in found.reasons["late.weight"]
    found = parity.match(OwnNet(False, 6), TorchOwn(6), inputs=(X,))
    assert found["late.weight"] == "late.kernel"
    assert "for every kernel of Dense: no other axes fit" in found.reasons["late.weight"]


class TorchNorms(tn.Module):
    def __init__(self):
        super().__init__()
        self.x, self.y = tn.LayerNorm(4), tn.LayerNorm(4)

    def forward(self, x):
        return self.y(torch.tanh(self.x(x)))


class Norms(linen.Module):
    @linen.compact
    def __call__(self, x):
        first = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False, name="z_first")
        second = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False, name="a_second")
        return second(jnp.tanh(first(x)))


@pytest.mark.full
def test_layers_as_new_are_told_apart():
    """Both have ones and zeros; with these any order would fit."""
    found = parity.match(Norms(), TorchNorms(), example=X)
    assert dict(found) == {"x": "z_first", "y": "a_second"}
    assert len(found.notes) == 1


class Deep(linen.Module):
    @linen.compact
    def __call__(self, x):
        for i in range(3):
            x = jnp.tanh(Dense(4, True, name=f"fc_{i}")(x))
        return x


def test_arrays_alike_but_for_a_number_are_one_line():
    theirs = tn.ModuleDict({"fc": tn.ModuleList([tn.Linear(4, 4) for _ in range(3)])})
    found = parity.match(Deep(), theirs, inputs=(X,))
    assert dict(found) == {"fc.*.weight": parity.transposed("fc_*.kernel", (1, 0))}
    variables = parity.load_torch(Deep(), theirs, inputs=(X,), mapping=found, lossy=True)
    assert np.array_equal(variables["params"]["fc_2"]["kernel"], theirs["fc"][2].weight.detach().numpy().T)
    # A pattern would mean the first as well, which is known to be another.
    known = {"fc.0.weight": parity.transposed("fc_0.kernel", (0, 1))}
    found = parity.match(Deep(), theirs, inputs=(X,), mapping=known)
    assert found.keys() == {"fc.0.weight", "fc.1.weight", "fc.2.weight"}


# -------------------------------------------------------------------- a table that only torch has, as Marian


def sines(rows, size):
    angles = np.arange(rows)[:, None] / 10000 ** (2 * (np.arange(size) // 2) / size)
    return np.where(np.arange(size) < size // 2, np.sin(angles), np.cos(angles)).astype(np.float32)


class TorchTables(tn.Module):
    """A scaled table of words for both halves, and sines that are a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.shared, self.places = tn.Embedding(11, 8), tn.Embedding(20, 8)
        self.places.weight = tn.Parameter(torch.tensor(sines(20, 8)), requires_grad=False)
        self.late, self.early = tn.Linear(8, 8), tn.Linear(8, 8)

    def forward(self, words, answers):
        x, y = (
            self.shared(each) * 8**0.5 + self.places(torch.arange(each.shape[1])) for each in (words, answers)
        )
        y = self.late(torch.tanh(self.early(x).mean(1, keepdim=True) + y))
        return y @ self.shared.weight.T


class FlaxTables(nnx.Module):
    def __init__(self, scale=8**0.5):
        self.shared = nnx.Embed(11, 8, rngs=nnx.Rngs(0))
        self.first, self.second = (nnx.Linear(8, 8, rngs=nnx.Rngs(0)) for _ in range(2))
        self.scale = scale

    def __call__(self, words, answers):
        table = jnp.asarray(sines(20, 8))
        x, y = (self.shared(each) * self.scale + table[: each.shape[1]] for each in (words, answers))
        y = self.second(jnp.tanh(self.first(x).mean(1, keepdims=True) + y))
        return y @ self.shared.embedding[...].T


@pytest.mark.full
def test_what_is_ignored_keeps_its_values():
    """Flax computes the table: a random one would make every guess look wrong."""
    words, answers = (np.random.RandomState(0).randint(11, size=(2, n)) for n in (7, 5))
    call = {"example": (words, answers), "ignore_torch": ["places"]}
    found = parity.match(FlaxTables(), TorchTables(), **call)
    assert dict(found) == {"early": "first", "late": "second"}
    assert found.notes[0].startswith("tried: with random weights the outputs agree")
    wrong = parity.match(FlaxTables(scale=1.0), TorchTables(), **call)
    assert "none fits" in wrong.notes[0]


class Levels(tn.Module):
    def __init__(self, *names):
        super().__init__()
        self.net = tn.ModuleDict({name: tn.Sequential(tn.Linear(4, 4), tn.Linear(4, 4)) for name in names})


class FlaxLevel(nnx.Module):
    def __init__(self):
        self.conv_in, self.conv_out = linear(), linear()


class FlaxLevels(nnx.Module):
    def __init__(self, *names):
        for name in names:
            setattr(self, f"{name}_block", FlaxLevel())


WORDS = {
    "other order": (("up", "mid"), ("mid", "up"), {"up": "up_block", "mid": "mid_block"}),
    "no equal word": (("x", "y"), ("mid", "up"), {"x": "mid_block", "y": "up_block"}),
    "one equal word": (("down", "up"), ("up", "lower"), {"up": "up_block", "down": "lower_block"}),
}


@pytest.mark.parametrize("case", WORDS)
def test_equal_words_come_before_the_order(case):
    torch_names, flax_names, blocks = WORDS[case]
    mapping = parity.match(FlaxLevels(*flax_names), Levels(*torch_names))
    assert dict(mapping) == {
        f"net.{torch_name}.{i}": f"{block}.conv_{end}"
        for torch_name, block in blocks.items()
        for i, end in enumerate(("in", "out"))
    }


@pytest.mark.full
def test_a_comparison_with_untried_guesses_names_them():
    mapping = parity.match(Flax(), Torch())
    comparison = parity.compare(Torch(), Flax(), X, mapping=mapping)
    assert any("guesses that no example has tried" in note for note in comparison.notes)
    tried = parity.match(Flax(), Torch(), example=X)
    assert not any("has tried" in note for note in parity.compare(Torch(), Flax(), X, mapping=tried).notes)


def test_matrices_and_convolutions_of_a_tree_have_one_name():
    """As in Haiku: every layer is a dict with a w, of two axes or of three."""

    class Reference(tn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.conv, self.out = tn.Linear(4, 6), tn.Conv1d(6, 5, 1), tn.Linear(5, 2)

        def forward(self, x):
            return self.out(torch.tanh(self.conv(torch.tanh(self.proj(x))[..., None])[..., 0]))

    def apply(params, x):
        for name in ("proj", "conv", "out"):
            kernel = params[name]["w"]
            x = x @ kernel.reshape(kernel.shape[-2:]) + params[name]["b"]
            x = x if name == "out" else jnp.tanh(x)
        return x

    shapes = {"proj": (4, 6), "conv": (1, 6, 5), "out": (5, 2)}
    params = {name: {"w": jnp.zeros(s), "b": jnp.zeros(s[-1])} for name, s in shapes.items()}
    mapping = parity.match((apply, params), Reference(), example=X)
    assert not mapping.unmatched
    assert parity.compare(Reference(), (apply, params), X, mapping=mapping).same
