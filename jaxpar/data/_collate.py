"""default_collate: turn a list of samples into one batch of NumPy arrays, by torch's rules, without JAX.

Source: torch/utils/data/_utils/collate.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, TypeAlias

import numpy as np

Sample: TypeAlias = Any
"""An element of a data set."""
Batch: TypeAlias = Any
"""The result of a collate function."""

_MESSAGE = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"
_KINDS = "default_collate: sample 0 is a {} and sample {} a {}."


def default_collate(batch: Sequence[Sample]) -> Batch:
    """Return one batch of a list of samples; the first sample decides its structure.

    | a sample is | the batch is |
    |---|---|
    | an array | an array with one more axis, in front |
    | a float, an int, a bool | an array of float64, int64, bool |
    | text, bytes | the list as it is |
    | a dict, a namedtuple | the same, of batches |
    | a list, a tuple | a list of batches |

    Raises: RuntimeError: arrays of different shapes, lists of different lengths. KeyError: dicts of different
      keys. TypeError: anything else, samples of different kinds, arrays of text or objects, masked arrays.
      ValueError: an int of more than 64 bits.

    torch counterpart: `torch.utils.data.default_collate`, which drops masks, and keys absent in sample 0.

    >>> from jaxpar import data
    >>> data.default_collate([(1, 'a'), (2, 'b')])
    [array([1, 2]), ('a', 'b')]
    """
    first = batch[0]
    if isinstance(first, (str, bytes)):
        return batch
    # NumPy scalars before arrays, which they resemble, and before float, from which float64 inherits.
    if isinstance(first, (np.bool_, np.number)):
        return _numbers(batch)
    if is_array_like(first):
        return _stack(batch)
    if isinstance(first, float):
        return _numbers(batch, np.dtype(np.float64))
    if isinstance(first, int):
        return _numbers(batch)
    if isinstance(first, Mapping):
        _check_keys(first, batch)
        return _mapping(first, lambda key: default_collate([sample[key] for sample in batch]))
    if isinstance(first, Sequence):
        columns = _columns(first, batch)
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return type(first)(*columns)
        return _sequence(first, columns)
    raise TypeError(_MESSAGE.format(type(first)))


def default_convert(data: Sample) -> Batch:
    """Convert a sample as `torch.utils.data.default_convert`: arrays become NumPy's, tuples lists.

    >>> from jaxpar import data
    >>> data.default_convert((1, 'a'))
    [1, 'a']
    """
    if isinstance(data, (str, bytes)):
        return data
    if is_array_like(data):
        return np.asarray(data)
    if isinstance(data, Mapping):
        return _mapping(data, lambda key: default_convert(data[key]))
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(default_convert, data))
    if isinstance(data, Sequence):
        return _sequence(data, [default_convert(item) for item in data])
    return data


def is_array_like(x: object) -> bool:
    """Return whether NumPy can convert x as an array; true for NumPy scalars, too."""
    return isinstance(x, np.ndarray) or (hasattr(x, "__array__") and hasattr(x, "dtype"))


def is_numeric(dtype: np.dtype) -> bool:
    """Return whether torch has tensors of a dtype. bfloat16 and its like have kind V, but a name."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.names is None and dtype.name[:4] != "void")


def _stack(batch: Sequence[Sample]) -> np.ndarray:
    for i, x in enumerate(batch):
        if not is_array_like(x):
            raise TypeError(f"expected Tensor as element {i} in argument 0, but got {type(x).__name__}")
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(
                f"default_collate: sample {i} is a masked array, whose mask would be lost. Fill it: "
                "x.filled(0)."
            )
    # Convert after the checks: np.asarray of a masked array drops the mask.
    arrays = [np.asarray(x) for x in batch]
    for i, x in enumerate(arrays):
        if not is_numeric(x.dtype):
            raise TypeError(_MESSAGE.format(x.dtype))
        if x.shape != arrays[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(arrays[0].shape)} at entry 0 and "
                f"{list(x.shape)} at entry {i}"
            )
    return np.stack(arrays, dtype=_common({x.dtype for x in arrays}), casting="unsafe")


def _common(dtypes: set[np.dtype]) -> np.dtype:
    """Promote as torch does: integers do not count next to floating-point types."""
    # NumPy alone would promote int64 and float32 to float64; torch's result is float32.
    floating = [d for d in dtypes if d.kind not in "biu"]
    return np.result_type(*(floating or dtypes))


def _numbers(batch: Sequence[Sample], dtype: np.dtype | None = None) -> np.ndarray:
    """Return torch.tensor's array of a list of numbers. NumPy would parse text and accept None as NaN."""
    for i, x in enumerate(batch):
        if not isinstance(x, (int, float, complex)) and not (
            is_array_like(x) and np.ndim(x) == 0 and is_numeric(np.asarray(x).dtype)
        ):
            raise TypeError(
                f"default_collate: sample 0 is a number and sample {i} a {type(x).__name__}: {x!r:.40}. "
                "Fill in what is missing, or leave the row out."
            )
    # Where the first sample is a float, float64 is fixed as in torch. Otherwise a Python float counts as
    # float32, torch.tensor's default.
    dtype = dtype or _common({_dtype_of(x) for x in batch})
    if dtype.kind == "i" and not all(-(2**63) <= x < 2**63 for x in batch):
        raise ValueError("Overflow when unpacking long long")
    return np.array(batch, dtype)


def _dtype_of(number: Any) -> np.dtype:
    """Return torch.tensor's dtype: float32 for a Python float, a NumPy scalar's own dtype."""
    if hasattr(number, "dtype"):
        return np.asarray(number).dtype
    kinds = {bool: np.bool_, int: np.int64, float: np.float32, complex: np.complex64}
    return np.dtype(next(dtype for kind, dtype in kinds.items() if isinstance(number, kind)))


def _check_keys(first: Mapping[Any, Any], batch: Sequence[Sample]) -> None:
    for i, sample in enumerate(batch):
        if not isinstance(sample, Mapping):
            raise TypeError(_KINDS.format(type(first).__name__, i, type(sample).__name__))
        absent = [key for key in first if key not in sample]
        if absent:
            raise KeyError(absent[0])
        if len(sample) != len(first):
            raise KeyError(
                f"default_collate: sample 0 has the keys {list(first)} and sample {i} has {list(sample)}."
            )


def _columns(first: Sequence[Any], batch: Sequence[Sample]) -> list[Batch]:
    for i, sample in enumerate(batch):
        if not isinstance(sample, Sequence) or isinstance(sample, (str, bytes)):
            raise TypeError(_KINDS.format(type(first).__name__, i, type(sample).__name__))
        if len(sample) != len(first):
            raise RuntimeError("each element in list of batch should be of equal size")
    return [default_collate(column) for column in zip(*batch, strict=True)]


def _mapping(like: Mapping[Any, Any], value: Callable[[Any], Batch]) -> Batch:
    """Return the same kind of mapping with new values; a dict if that kind cannot be constructed."""
    converted = {key: value(key) for key in like}
    try:
        # A clone keeps the attributes of the mapping's class, such as a defaultdict's factory.
        if isinstance(like, MutableMapping):
            clone = copy.copy(like)
            clone.update(converted)
            return clone
        return type(like)(converted)  # type: ignore[call-arg]
    except TypeError:
        return converted


def _sequence(like: Sequence[Any], items: list[Batch]) -> Batch:
    """Return the same kind of sequence with new items; a list for tuples and where that fails."""
    if isinstance(like, tuple):
        return items
    try:
        if isinstance(like, MutableSequence):
            clone = copy.copy(like)
            for i, item in enumerate(items):
                clone[i] = item
            return clone
        return type(like)(items)  # type: ignore[call-arg]
    except TypeError:
        return items
