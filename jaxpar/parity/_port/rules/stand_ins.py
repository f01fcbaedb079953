"""Replacements for classes of any library: definitions that are copied into a ported file by name.

The proof compares them with torch's like every other line. Their docstrings are part of users' files.
"""

import types
import weakref

from flax import nnx


class WithinCall:
    """An attribute whose array a call sets first and reads later; a compiled call starts with None."""

    def __init__(self):
        self.arrays: weakref.WeakKeyDictionary[object, object] = weakref.WeakKeyDictionary()

    def __get__(self, module, kind=None):
        return self.arrays.get(module)

    def __set__(self, module, array):
        self.arrays[module] = array


class ModelOutput:
    """Fields by name; those that are not None also by number."""

    def __getitem__(self, key):
        return getattr(self, key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self):
        return tuple(value for value in vars(self).values() if value is not None)


class ConstructorArguments:
    """What a constructor was called with, by name."""

    def __init__(self, **arguments):
        vars(self).update(arguments)

    def __getitem__(self, key):
        return vars(self)[key]

    def get(self, key, default=None):
        return vars(self).get(key, default)


class FilledDict(dict):
    """What hooks keep for later lines of the same call: one for all copies of a module, and no state."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]

    def __deepcopy__(self, memo):
        return self


class FilledList(list):
    """What hooks keep for later lines of the same call: one for all copies of a module, and no state."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]

    def __deepcopy__(self, memo):
        return self


def register_forward_hook(module, hook):
    """Call `hook(module, inputs, output)` after each call of a module; what it returns is the output."""
    kind, called = type(module), bound_hook(module, hook)

    def __call__(self, *inputs, **kwargs):
        output = kind.__call__(self, *inputs, **kwargs)
        changed = called(self, inputs, output)
        return output if changed is None else changed

    hooked = types.new_class(kind.__name__, (kind,), {}, lambda names: names.update(__call__=__call__))
    object.__setattr__(module, "__class__", hooked)


def register_forward_pre_hook(module, hook):
    """Call `hook(module, inputs)` before each call of a module; what it returns are the inputs."""
    kind, called = type(module), bound_hook(module, hook)

    def __call__(self, *inputs, **kwargs):
        changed = called(self, inputs)
        inputs = inputs if changed is None else changed if isinstance(changed, tuple) else (changed,)
        return kind.__call__(self, *inputs, **kwargs)

    hooked = types.new_class(kind.__name__, (kind,), {}, lambda names: names.update(__call__=__call__))
    object.__setattr__(module, "__class__", hooked)


def bound_hook(module, hook):
    """Return the hook; a method is called on the copy of its module that comes with the layer's copy."""
    owner = getattr(hook, "__self__", None)
    if not isinstance(owner, nnx.Module):
        return hook
    name = f"owner_of_{hook.__name__}"
    setattr(module, name, owner)
    return lambda hooked, *arrays: hook.__func__(getattr(hooked, name), hooked, *arrays)
