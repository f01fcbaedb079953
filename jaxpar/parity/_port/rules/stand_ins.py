"""Replacements for classes of any library: definitions that are copied into a ported file by name.

The proof compares them with torch's like every other line. Their docstrings are part of users' files.
"""


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
