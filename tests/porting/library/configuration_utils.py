"""Settings: a class with an `==` and without a hash."""


class PretrainedConfig:
    def __init__(self, **kwargs):
        self._attn_implementation = kwargs.pop("attn_implementation", "eager")
        self.use_cache, self.is_decoder = kwargs.pop("use_cache", False), False

    def __eq__(self, other):
        return vars(self) == vars(other)
