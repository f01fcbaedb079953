"""Categorical and Bernoulli: draws by probabilities, or by logits."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import Extended
from .._typing import Array, Shape
from ..random import multinomial
from ._distribution import REAL, Constraint, Distribution, broadcast


class Discrete(Distribution):
    has_enumerate_support = True

    @property
    def probs(self) -> jax.Array:
        """The probabilities."""
        raise NotImplementedError

    @property
    def logits(self) -> jax.Array:
        """Logarithms of the clamped probabilities (Categorical) or odds (Bernoulli)."""
        raise NotImplementedError

    @property
    def _values(self) -> jax.Array:
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> jax.Array:
        """Return [K, *batch]: all values, with axes of length one if not `expand`."""
        values = self._values.reshape(-1, *(1 for _ in self.batch_shape))
        return jnp.broadcast_to(values, (len(values), *self.batch_shape)) if expand else values


class Categorical(Discrete):
    """Draws of 0 to K - 1, by probabilities or by their logarithms.

    Args:
      probs: [*batch, K] weights, which are divided by their sum.
      logits: instead, [*batch, K] logarithms of weights, from which their logsumexp is subtracted.
      validate_args: whether parameters and values are checked; they are if left out.

    Raises: ValueError: as torch, for none or both of probs and logits, no axis, and parameters or values that
      are not allowed. Values out of range score NaN in `jax.jit`, where they cannot be checked.

    `mean` and `variance` are NaN, as in torch. Draws and `mode` are of JAX's default integer type.

    >>> import jax.numpy as jnp
    >>> from jaxpar.distributions import Categorical
    >>> from jaxpar.random import Generator
    >>> policy = Categorical(probs=jnp.array([1.0, 3.0]))
    >>> policy.sample((6,), generator=Generator(0)).tolist()
    [1, 1, 1, 1, 1, 1]
    >>> policy.log_prob(jnp.array(1)).round(4).item()
    -0.2877

    torch counterpart: `torch.distributions.Categorical`.
    """

    constraints: ClassVar = {
        "probs": ("Simplex()", lambda p: (p >= 0).all(-1) & (abs(p.sum(-1) - 1) < 1e-6)),
        "logits": ("IndependentConstraint(Real(), 1)", lambda x: (x == x).all(-1)),
    }

    def __init__(
        self, probs: Array | None = None, logits: Array | None = None, validate_args: bool | None = None
    ):
        name, x = _one_of(probs, logits)
        x = jnp.asarray(x)
        if x.ndim < 1:
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        scaled = x / x.sum(-1, keepdims=True) if name == "probs" else jax.nn.log_softmax(x)
        super().__init__({name: scaled}, validate_args)

    @property
    def probs(self) -> jax.Array:
        x = self._parameters
        return x["probs"] if "probs" in x else jax.nn.softmax(x["logits"])

    @property
    def logits(self) -> jax.Array:
        x = self._parameters
        return x["logits"] if "logits" in x else jnp.log(_clamped(x["probs"]))

    @property
    def batch_shape(self) -> Shape:
        return self._first.shape[:-1]

    @property
    def mean(self) -> jax.Array:
        return jnp.full(self.batch_shape, jnp.nan, self._first.dtype)

    @property
    def variance(self) -> jax.Array:
        return self.mean

    @property
    def mode(self) -> jax.Array:
        return self.probs.argmax(-1)

    @property
    def _values(self) -> jax.Array:
        return jnp.arange(self._first.shape[-1])

    @property
    def _support(self) -> Constraint:
        last = self._first.shape[-1] - 1
        text = f"IntegerInterval(lower_bound=0, upper_bound={last})"
        return text, lambda x: (x % 1 == 0) & (x >= 0) & (x <= last)

    def log_prob(self, value: Array) -> jax.Array:
        """Return the logarithm of the probability of each value."""
        index = self._checked(value).astype(int)
        shape = jnp.broadcast_shapes(index.shape, self.batch_shape)
        index = jnp.broadcast_to(index, shape)[..., None]
        logits = jnp.broadcast_to(self.logits, (*shape, self._first.shape[-1]))
        scores = jnp.take_along_axis(logits, index, -1, mode="fill")
        return jnp.where(index >= 0, scores, jnp.nan)[..., 0]

    def entropy(self) -> jax.Array:
        """Return the entropy of each distribution of the batch."""
        logits, least = self.logits, jnp.finfo(self._first.dtype).min
        return -(jnp.where(logits >= least, logits, least) * self.probs).sum(-1)

    def _torch_draw(self, shape: Shape, generator: Any) -> np.ndarray:
        rows = np.asarray(self.probs).reshape(-1, self._first.shape[-1])
        n = int(np.prod(shape[: len(shape) - len(self.batch_shape)]))
        return multinomial(rows, n, True, generator=generator).T.reshape(shape)

    def _jax_draw(self, shape: Shape, key: Any) -> jax.Array:
        return jax.random.categorical(key, self.logits, shape=shape)


class Bernoulli(Discrete):
    """Draws of 1, with a probability, and 0.

    Args:
      probs: the probability of 1: an array or a number.
      logits: instead, the logarithm of its odds.
      validate_args: whether parameters and values are checked; they are if left out.

    Raises: ValueError: as torch, for none or both of probs and logits, and for parameters or values that are
      not allowed.

    Draws have the dtype of the parameters. `mode` is NaN where both are as likely.

    >>> import jax.numpy as jnp
    >>> from jaxpar.distributions import Bernoulli
    >>> from jaxpar.random import Generator
    >>> Bernoulli(probs=jnp.array([0.1, 0.9])).sample((3,), generator=Generator(0)).tolist()
    [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]

    torch counterpart: `torch.distributions.Bernoulli`.
    """

    constraints: ClassVar = {
        "probs": ("Interval(lower_bound=0.0, upper_bound=1.0)", lambda p: (p >= 0) & (p <= 1)),
        "logits": REAL,
    }

    def __init__(
        self,
        probs: Array | Extended | None = None,
        logits: Array | Extended | None = None,
        validate_args: bool | None = None,
    ):
        name, x = _one_of(probs, logits)
        super().__init__({name: broadcast(x)[0]}, validate_args)

    @property
    def probs(self) -> jax.Array:
        x = self._parameters
        return x["probs"] if "probs" in x else jax.nn.sigmoid(x["logits"])

    @property
    def logits(self) -> jax.Array:
        if "logits" in self._parameters:
            return self._parameters["logits"]
        probs = _clamped(self._parameters["probs"])
        return jnp.log(probs) - jnp.log1p(-probs)

    @property
    def mean(self) -> jax.Array:
        return self.probs

    @property
    def variance(self) -> jax.Array:
        return self.probs * (1 - self.probs)

    @property
    def mode(self) -> jax.Array:
        probs = self.probs
        return jnp.where(probs == 0.5, jnp.nan, probs >= 0.5).astype(probs.dtype)

    @property
    def _values(self) -> jax.Array:
        return jnp.arange(2, dtype=self._first.dtype)

    @property
    def _support(self) -> Constraint:
        return "Boolean()", lambda x: (x == 0) | (x == 1)

    def log_prob(self, value: Array) -> jax.Array:
        """Return the logarithm of the probability of each value."""
        return -_cross_entropy(self.logits, self._checked(value).astype(self._first.dtype))

    def entropy(self) -> jax.Array:
        """Return the entropy of each distribution of the batch."""
        return _cross_entropy(self.logits, self.probs)

    def _torch_draw(self, shape: Shape, generator: Any) -> np.ndarray:
        return generator.bernoulli(np.array(np.broadcast_to(self.probs, shape)))

    def _jax_draw(self, shape: Shape, key: Any) -> jax.Array:
        return jax.random.bernoulli(key, self.probs, shape).astype(self._first.dtype)


def _one_of(probs: Any, logits: Any) -> tuple[str, Any]:
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    return ("probs", probs) if logits is None else ("logits", logits)


def _clamped(probs: jax.Array) -> jax.Array:
    """Probabilities between eps and 1 - eps; the gradient passes at the bounds too, as in torch 2.13."""
    eps = jnp.finfo(probs.dtype).eps
    allowed = (probs >= eps) & (probs <= 1 - eps)
    return jnp.where(allowed, probs, jax.lax.stop_gradient(jnp.clip(probs, eps, 1 - eps)))


@jax.custom_jvp
def _cross_entropy(logits: jax.Array, value: jax.Array) -> jax.Array:
    return (1 - value) * logits - jax.nn.log_sigmoid(logits)


@_cross_entropy.defjvp
def _slope(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    # torch's, which has all digits where the probability is near 0.
    (logits, value), (d_logits, d_value) = primals, tangents
    return _cross_entropy(logits, value), (jax.nn.sigmoid(logits) - value) * d_logits - logits * d_value
