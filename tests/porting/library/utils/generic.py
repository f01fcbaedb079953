"""What the models give back, and what stands around their calls."""

import functools
from collections import OrderedDict
from dataclasses import fields


class ModelOutput(OrderedDict):
    """A dict whose entries are fields."""

    def __post_init__(self):
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self):
        return tuple(self[name] for name in self)


def check_model_inputs(function):
    """Reads settings, as the runtime does."""

    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        kwargs.setdefault("use_cache", self.config.use_cache)
        return function(self, *args, **kwargs)

    return wrapper
