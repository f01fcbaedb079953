"""Linear with torch's arguments and initial values; TiedLinear, Identity, Flatten and Unflatten."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from ..._arguments import Size
from ..._upstream import promote_dtype
from .._array_types import Floating
from .._embedding import Embedding
from .._layer import Layer, uniform
from .functional import flatten, unflatten


class Linear(Layer, nnx.Linear):
    """x kernel + bias: [..., I] to [..., O].

    Args:
      in_features, out_features: I and O.
      bias: whether there is a `bias`, [O].
      dtype: of the computation; the common type of input and parameters if left out.
      param_dtype: of the parameters.
      rngs: draws the initial values, U(-b, b) with b = 1 / sqrt(I); in Flax kernels are truncated normals and
        biases 0.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from jaxpar.nn import channels_first as nn
    >>> nn.Linear(3, 4, rngs=nnx.Rngs(0))(jnp.ones((2, 3))).shape
    (2, 4)

    torch counterpart: `torch.nn.Linear`; `weight` (O, I) is `kernel` [I, O].
    """

    def __init__(
        self,
        in_features: Size,
        out_features: Size,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # Flax's own initial values, which cannot be without elements, are replaced.
        options: dict[str, Any] = {
            "dtype": dtype,
            "param_dtype": param_dtype,
            "kernel_init": nnx.initializers.zeros,
        }
        super().__init__(in_features, out_features, use_bias=bias, **options, rngs=rngs)
        shapes = {"kernel": (in_features, out_features), "bias": (out_features,)}
        for name, shape in list(shapes.items())[: 1 + bias]:
            getattr(self, name).set_value(uniform(rngs, shape, in_features, param_dtype)[...])

    def __call__(self, x: Floating, *args: Any, **kwargs: Any) -> jax.Array:
        if x.shape[-1:] != (self.in_features,):
            raise RuntimeError(
                f"{type(self).__name__}: x has shape {x.shape}, whose last axis is not "
                f"in_features={self.in_features}."
            )
        return super().__call__(x, *args, **kwargs)


class TiedLinear(Layer):
    """[..., D] to [..., V]: a Linear whose weight is the table of an Embedding.

    Args:
      linear: provides the bias and the dtype of the computation; its kernel is dropped.
      embedding: provides the table, [V, D], one variable shared by both layers.

    Raises: ValueError: at construction, if the kernel is not [D, V].

    torch counterpart: `linear.weight = embedding.weight`. Flax stores the kernel as [D, V] and the table as
    [V, D], so the two layers cannot share a variable.
    """

    def __init__(self, linear: nnx.Linear, embedding: Embedding | nnx.Embed):
        table, kernel = embedding.embedding, linear.kernel
        if table.shape[::-1] != kernel.shape:
            raise ValueError(
                f"TiedLinear: a table {table.shape} for a kernel {kernel.shape}; one must be turned"
            )
        self.embedding, self.bias, self.dtype = table, linear.bias, linear.dtype

    def __call__(self, x: Floating) -> jax.Array:
        bias = None if self.bias is None else self.bias[...]
        x, table, bias = promote_dtype((x, self.embedding[...], bias), dtype=self.dtype)
        return x @ table.T if bias is None else x @ table.T + bias


class Identity(Layer):
    """Return x unchanged; the constructor accepts any arguments. torch counterpart: `torch.nn.Identity`."""

    def __init__(self, *args: Any, **kwargs: Any):
        del args, kwargs

    def __call__(self, x: Any) -> Any:
        return x


@dataclasses.dataclass(eq=False, repr=False)
class Flatten(Layer):
    """Merge the axes from start_dim to end_dim: [N, C, H, W] to [N, C H W].

    torch counterpart: `torch.nn.Flatten`.
    """

    start_dim: int = 1
    end_dim: int = -1

    def __call__(self, x: jax.Array) -> jax.Array:
        return flatten(x, self.start_dim, self.end_dim)


@dataclasses.dataclass(eq=False, repr=False)
class Unflatten(Layer):
    """Split one axis into several. torch counterpart: `torch.nn.Unflatten`."""

    dim: int
    unflattened_size: tuple[int, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        return unflatten(x, self.dim, self.unflattened_size)
