"""An activation between two layers, as a port of `bugs.plain.Between` is written."""

from flax import nnx


class Between(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(6, 6, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.b(nnx.relu6(20 * self.a(x)))


flax_module = Between(nnx.Rngs(0))
