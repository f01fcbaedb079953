"""Replacements for classes of any library: definitions that are copied into a ported file by name.

The proof compares them with torch's like every other line. Their docstrings are part of users' files.
"""

import weakref


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
