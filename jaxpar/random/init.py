"""torch.nn.init on NumPy arrays: the same numbers from the same generator, which has no default.

Every function fills an array in place, in torch's layout ([out, in] for a linear layer), and returns it. A
transpose, `kernel.T`, is not contiguous, and gets different normal numbers than a contiguous array, as in
torch. Source: torch/nn/init.py, torch 2.13.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from .._arguments import warn
from ._dtypes import is_floating
from ._generator import Generator
from ._uniform import compute_dtype

A = TypeVar("A", bound=np.ndarray)

_LINEAR = {"linear", "sigmoid"} | {f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which the layer before this nonlinearity is scaled.

    Args:
      nonlinearity: linear, conv1d, ... conv_transpose3d, sigmoid, tanh, relu, leaky_relu, selu.
      param: the slope of leaky_relu; 0.01 if left out.

    Raises: ValueError: an unknown nonlinearity, or a slope that is not a number.

    >>> from jaxpar.random import init
    >>> init.calculate_gain("tanh")
    1.6666666666666667

    torch counterpart: `torch.nn.init.calculate_gain`.
    """
    if nonlinearity in _LINEAR:
        return 1
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, int | float):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    gains = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    if nonlinearity not in gains:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return gains[nonlinearity]


def uniform_(x: A, a: float = 0.0, b: float = 1.0, *, generator: Generator) -> A:
    """Uniform numbers in [a, b). torch counterpart: `torch.nn.init.uniform_`."""
    return generator.uniform_(x, a, b)


def normal_(x: A, mean: float = 0.0, std: float = 1.0, *, generator: Generator) -> A:
    """Normal numbers. torch counterpart: `torch.nn.init.normal_`."""
    return generator.normal_(x, mean, std)


def constant_(x: A, val: float) -> A:
    """One number everywhere. torch counterpart: `torch.nn.init.constant_`."""
    x[...] = val
    return x


def ones_(x: A) -> A:
    """Ones. torch counterpart: `torch.nn.init.ones_`."""
    return constant_(x, 1.0)


def zeros_(x: A) -> A:
    """Zeros. torch counterpart: `torch.nn.init.zeros_`."""
    return constant_(x, 0.0)


def eye_(x: A) -> A:
    """The identity, of a matrix of any shape.

    Raises: ValueError: an array that does not have two axes.

    >>> import numpy as np
    >>> from jaxpar.random import init
    >>> init.eye_(np.empty((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]

    torch counterpart: `torch.nn.init.eye_`.
    """
    if x.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    x[...] = np.eye(*x.shape, dtype=x.dtype)
    return x


def dirac_(x: A, groups: int = 1) -> A:
    """The convolution [out, in, *k] that is the identity on as many channels as possible.

    Raises: ValueError: not 3 to 5 axes, or channels that `groups` does not divide.

    torch counterpart: `torch.nn.init.dirac_`.
    """
    if x.ndim not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if x.shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    per_group = x.shape[0] // groups
    x[...] = 0
    channels = np.arange(min(per_group, x.shape[1]))
    middle = tuple(n // 2 for n in x.shape[2:])
    for group in range(groups):
        x[(group * per_group + channels, channels, *middle)] = 1
    return x


def xavier_uniform_(x: A, gain: float = 1.0, *, generator: Generator) -> A:
    """Uniform in ±gain sqrt(6 / (fan_in + fan_out)).

    Raises: ValueError: an array with fewer than two axes.

    >>> import numpy as np
    >>> from jaxpar.random import Generator, init
    >>> init.xavier_uniform_(np.empty((2, 2), np.float32), generator=Generator(0)).round(3)
    array([[-0.009,  0.657],
       [-1.008, -0.901]], dtype=float32)

    torch counterpart: `torch.nn.init.xavier_uniform_`. Source: X. Glorot, Y. Bengio, 2010.
    """
    bound = math.sqrt(3.0) * _xavier(x, gain)  # not simplified: torch rounds in the same places
    return generator.uniform_(x, -bound, bound)


def xavier_normal_(x: A, gain: float = 1.0, *, generator: Generator) -> A:
    """Normal with deviation gain sqrt(2 / (fan_in + fan_out)); errors as for `xavier_uniform_`.

    torch counterpart: `torch.nn.init.xavier_normal_`. Source: X. Glorot, Y. Bengio, 2010.
    """
    return generator.normal_(x, 0.0, _xavier(x, gain))


def kaiming_uniform_(
    x: A, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, generator: Generator
) -> A:
    """Uniform in ±gain sqrt(3 / fan).

    Args:
      x: [out, in, *k].
      a: the slope of leaky_relu.
      mode: "fan_in" or "fan_out".
      nonlinearity: as for `calculate_gain`.

    Raises: ValueError: an array with fewer than two axes, an unknown mode or nonlinearity.

    torch counterpart: `torch.nn.init.kaiming_uniform_`. Source: K. He et al., 2015.
    """
    if _is_empty(x):
        return x
    bound = math.sqrt(3.0) * _kaiming(x, a, mode, nonlinearity)
    return generator.uniform_(x, -bound, bound)


def kaiming_normal_(
    x: A, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, generator: Generator
) -> A:
    """Normal with deviation gain / sqrt(fan); arguments and errors as for `kaiming_uniform_`.

    torch counterpart: `torch.nn.init.kaiming_normal_`. Source: K. He et al., 2015.
    """
    if _is_empty(x):
        return x
    return generator.normal_(x, 0, _kaiming(x, a, mode, nonlinearity))


def trunc_normal_(
    x: A, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, *, generator: Generator
) -> A:
    """Normal numbers between a and b, those outside drawn again.

    Exact for bounds that hold more than 30 % of the normal distribution. For narrower ones torch draws
    uniform numbers and accepts each if the logarithm of a second one is low enough. The last bit of that
    logarithm, which differs between libraries, can decide.

    Raises: NotImplementedError: if that bit decides, for about one number in five million; also narrow bounds
    with float16 and bfloat16, whose logarithms have too few bits.

    torch counterpart: `torch.nn.init.trunc_normal_` of torch 2.13; earlier versions draw different numbers.
    """
    if mean < a - 2 * std or mean > b + 2 * std:
        warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. "
            "The distribution of values may be incorrect."
        )
    if _below((b - mean) / std) - _below((a - mean) / std) <= 0.3:
        return _accepted(x, mean, std, a, b, generator)
    low, high = x.dtype.type(a), x.dtype.type(b)
    generator.normal_(x, mean, std)
    while (outside := (x < low) | (x > high)).any():
        np.copyto(x, generator.normal_(np.empty_like(x), mean, std), where=outside)
    return x


def sparse_(x: A, sparsity: float, std: float = 0.01, *, generator: Generator) -> A:
    """Normal numbers, with a fraction `sparsity` of each column set to zero.

    `generator` replaces torch's default generator, from which torch draws the rows even if it is passed a
    different one.

    Raises: ValueError: an array that does not have two axes.

    torch counterpart: `torch.nn.init.sparse_(tensor, sparsity, std)`. Source: J. Martens, 2010.
    """
    if x.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    rows, columns = x.shape
    zeros = math.ceil(sparsity * rows)
    generator.normal_(x, 0, std)
    for column in range(columns):
        x[generator.randperm(rows)[:zeros], column] = 0
    return x


def orthogonal_(x: A, gain: float = 1, *, generator: Generator) -> A:
    """Orthonormal rows or columns, of the QR decomposition of normal numbers.

    The numbers are torch's up to rounding, which differs between libraries of linear algebra.

    Raises: ValueError: an array with fewer than two axes.

    >>> import numpy as np
    >>> from jaxpar.random import Generator, init
    >>> x = init.orthogonal_(np.empty((2, 3)), generator=Generator(0))
    >>> bool(np.allclose(x @ x.T, np.eye(2)))
    True

    torch counterpart: `torch.nn.init.orthogonal_`. Source: A. Saxe et al., 2013.
    """
    if x.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if x.size == 0:
        return x
    normal = generator.normal_(np.empty((len(x), x.size // len(x)), x.dtype)).astype(np.float64)
    wide = normal.shape[0] < normal.shape[1]
    q, r = np.linalg.qr(normal.T if wide else normal)
    q = q * np.sign(np.diag(r))  # so that the distribution is uniform
    x[...] = (gain * (q.T if wide else q)).reshape(x.shape)
    return x


def fans(x: np.ndarray) -> tuple[int, int]:
    """fan_in and fan_out of a weight [out, in, *k].

    Raises: ValueError: an array with fewer than two axes.

    >>> import numpy as np
    >>> from jaxpar.random import init
    >>> init.fans(np.empty((8, 4, 3, 3)))
    (36, 72)

    torch counterpart: `torch.nn.init._calculate_fan_in_and_fan_out`.
    """
    if x.ndim < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(x.shape[2:])
    return x.shape[1] * field, x.shape[0] * field


def _xavier(x: np.ndarray, gain: float) -> float:
    fan_in, fan_out = fans(x)
    return gain * math.sqrt(2.0 / float(fan_in + fan_out))


def _kaiming(x: np.ndarray, a: float, mode: str, nonlinearity: str) -> float:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return calculate_gain(nonlinearity, a) / math.sqrt(fans(x)[mode == "fan_out"])


def _is_empty(x: np.ndarray) -> bool:
    if 0 in x.shape:
        warn("Initializing zero-element tensors is a no-op")
    return 0 in x.shape


def _below(z: float) -> float:
    return (1.0 + math.erf(z / math.sqrt(2.0))) / 2.0


def _accepted(x: A, mean: float, std: float, a: float, b: float, generator: Generator) -> A:
    """Rejection sampling: accepts uniform candidates by their density over the highest one in [a, b]."""
    if not is_floating(x.dtype) or compute_dtype(x.dtype) != x.dtype:
        raise NotImplementedError(
            f"trunc_normal_: [{a:g}, {b:g}] holds less than 30 % of the normal distribution, and what torch "
            f"then does cannot be repeated in {x.dtype}. Make it in float32 or convert it from torch."
        )
    kind = x.dtype.type
    peak = kind(-0.5 * ((max(a, min(mean, b)) - mean) / std) ** 2)
    pending = np.array(True)
    while True:
        candidates = generator.uniform_(np.empty_like(x), a, b)
        np.copyto(x, candidates, where=pending)
        z = (candidates - kind(mean)) / kind(std)
        log_density = z * z * kind(-0.5) - peak
        pending = pending & _exceeds(generator.uniform_(np.empty_like(x)), log_density, pending)
        if not pending.any():
            return x


def _exceeds(u: np.ndarray, log_density: np.ndarray, tested: np.ndarray) -> np.ndarray:
    """Return log(u) > log_density; raise if an error of one unit in the last place could change it."""
    with np.errstate(divide="ignore"):
        log = np.log(u.astype(np.float64)).astype(u.dtype)
    above = log > log_density
    near = np.abs(log - log_density) <= 2 * np.spacing(np.abs(log))
    if (near & tested).any():
        raise NotImplementedError(
            "trunc_normal_: whether torch takes one of these numbers hangs on the last bit of a logarithm, "
            "which its libraries do not have in common. Take another seed, or convert the weights from torch."
        )
    return above
