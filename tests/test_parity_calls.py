"""Every call of a layer of the watched copy is seen, whatever its class; other modules are left alone."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxpar.parity._sides.flax_calls import watch

T = TypeVar("T")
X = jnp.ones((4, 2))


def linear() -> nnx.Linear:
    return nnx.Linear(2, 2, rngs=nnx.Rngs(0))


class Plain(nnx.Module):
    def __init__(self):
        self.fc = linear()

    def __call__(self, x):
        return self.fc(x)


class Super(Plain):
    def __call__(self, x):
        return 2 * super().__call__(x)


class Of(Plain, Generic[T]):
    """Generic."""


class Abstract(nnx.Module, abc.ABC):
    @abc.abstractmethod
    def __call__(self, x): ...


class Concrete(Abstract):
    def __init__(self):
        self.fc = linear()

    def __call__(self, x):
        return self.fc(x)


@dataclasses.dataclass
class Data(nnx.Module):
    fc: nnx.Linear

    def __call__(self, x):
        return self.fc(x)


class NoPytree(nnx.Module, pytree=False):
    def __init__(self):
        self.fc = linear()

    def __call__(self, x):
        return self.fc(x)


class Registry(nnx.Module):
    known: ClassVar[list[str]] = []

    def __init_subclass__(cls, name, **kwargs):
        super().__init_subclass__(**kwargs)
        Registry.known.append(name)


class Registered(Registry, name="registered"):
    def __init__(self):
        self.fc = linear()

    def __call__(self, x):
        return self.fc(x)


class Compiled(Plain):
    """What NNX makes of the layers inside a transformation is a copy, and has no path."""

    @nnx.jit
    def __call__(self, x):
        return self.fc(x)


class Remat(Plain):
    def __call__(self, x):
        return nnx.remat(lambda fc, x: fc(x))(self.fc, x)


class Scanned(nnx.Module):
    def __init__(self):
        self.fc = nnx.vmap(lambda key: nnx.Linear(2, 2, rngs=nnx.Rngs(key)))(
            jax.random.split(jax.random.key(0), 3)
        )

    def __call__(self, x):
        scan = nnx.scan(lambda x, fc: fc(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return scan(x, self.fc)


class Split(Plain):
    def __call__(self, x):
        return nnx.merge(*nnx.split(self.fc))(x) + self.fc(x)


class Root(nnx.Module):
    def __init__(self, m):
        self.m = m

    def __call__(self, x):
        return self.m(x)


SEEN = {"": "Root", "m": "", "m.fc": "Linear"}
CLASSES = {
    "plain": (Plain, SEEN),
    "super": (Super, SEEN),
    "generic": (Of, SEEN),
    "abstract": (Concrete, SEEN),
    "dataclass": (lambda: Data(linear()), SEEN),
    "no pytree": (NoPytree, SEEN),
    "registered": (Registered, SEEN),
    "split": (Split, SEEN),
    "jit": (Compiled, {"": "Root", "m": ""}),
    "remat": (Remat, {"": "Root", "m": ""}),
    "scan": (Scanned, {"": "Root", "m": ""}),
    "Sequential": (
        lambda: nnx.Sequential(linear(), nnx.relu),
        {"": "Root", "m": "Sequential", "m.layers.0": "Linear"},
    ),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_layers_of_all_kinds(kind):
    build, expected = CLASSES[kind]
    root, other = Root(build()), Root(build())
    classes = [type(layer) for _, layer in nnx.iter_modules(root)]
    want, seen = root(X), {}

    def note(path, layer, call, args, kwargs):
        seen[path] = type(layer).__name__
        return call(*args, **kwargs)

    with watch(root, note):
        got = root(X)
        paths = list(seen)
        other(X)
        assert list(seen) == paths  # other instances of the same classes are not watched
    np.testing.assert_array_equal(got, want)
    assert seen == {path: name or type(root.m).__name__ for path, name in expected.items()}
    assert [type(layer) for _, layer in nnx.iter_modules(root)] == classes
    assert Registry.known == ["registered"]


def test_a_handler_answers_and_an_error_in_it_changes_nothing():
    root = Root(Plain())
    with watch(root, lambda path, layer, call, args, kwargs: 7):
        assert root(X) == 7
    with pytest.raises(ZeroDivisionError), watch(root, lambda *call: 1 / 0):
        root(X)
    assert type(root) is Root
    assert root(X).shape == (4, 2)


def test_linen():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(2, name="fc")(x)

    seen = []

    def note(path, layer, call, args, kwargs):
        seen.append((path, type(layer).__name__))
        return call(*args, **kwargs)

    variables = Net().init(jax.random.key(0), X)
    with watch(Net(), note):
        Net().apply(variables, X)
    Net().apply(variables, X)
    assert seen == [("", "Net"), ("fc", "Dense")]
