"""default_collate: turns a list of samples into one batch, by torch's rules, with NumPy arrays.

It does not use JAX, so it can run in any thread while the devices compute. Whatever converts to an array
counts as one: tensors of torch, arrays of JAX.

Source: torch/utils/data/_utils/collate.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, TypeAlias

import numpy as np

Sample: TypeAlias = Any
"""Whatever a data set holds."""
Batch: TypeAlias = Any
"""Whatever a collate function makes of samples."""

_MESSAGE = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"


def default_collate(batch: Sequence[Sample]) -> Batch:
    """One batch of a list of samples, the first of which decides its form.

    | a sample is | the batch is |
    |---|---|
    | an array | an array with one more axis, in front |
    | a float, an int, a bool | an array of float64, int64, bool |
    | text, bytes | the list as it is |
    | a dict, a namedtuple | the same, of batches |
    | a list, a tuple | a list of batches |

    Raises:
      RuntimeError: arrays of different shapes, lists of different lengths. TypeError: anything else,
        and arrays of text or objects. ValueError: an int of more than 64 bits.

    torch counterpart: `torch.utils.data.default_collate`, with arrays in place of tensors.
    """
    first = batch[0]
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, (np.bool_, np.number)):
        return np.array(_numbers(batch))
    if is_array_like(first):
        return _stack(batch)
    if isinstance(first, float):
        return np.array(_numbers(batch), np.float64)
    if isinstance(first, int):
        return _integers(batch)
    if isinstance(first, Mapping):
        return _mapping(first, lambda key: default_collate([sample[key] for sample in batch]))
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(default_collate, zip(*batch, strict=False)))
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        return _sequence(first, [default_collate(column) for column in zip(*batch, strict=True)])
    raise TypeError(_MESSAGE.format(type(first)))


def default_convert(data: Sample) -> Batch:
    """What a loader without batches does to a sample: arrays become NumPy's, tuples become lists.

    torch counterpart: `torch.utils.data.default_convert`.
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
    """An array of any library that NumPy can convert; NumPy's scalars too, which have both attributes."""
    return isinstance(x, np.ndarray) or (hasattr(x, "__array__") and hasattr(x, "dtype"))


def is_numeric(dtype: np.dtype) -> bool:
    """Whether torch has tensors of it. bfloat16 and its like are of kind V, but have a name."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.names is None and dtype.name[:4] != "void")


def _stack(batch: Sequence[Sample]) -> np.ndarray:
    for i, x in enumerate(batch):
        if not is_array_like(x):
            raise TypeError(f"expected Tensor as element {i} in argument 0, but got {type(x).__name__}")
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
    """torch's promotion: integers do not count next to floating-point types."""
    floating = [d for d in dtypes if d.kind not in "biu"]
    return np.result_type(*(floating or dtypes))


def _numbers(batch: Sequence[Sample]) -> Sequence[Sample]:
    """The batch, if all samples are numbers: NumPy would read text, and take None for NaN."""
    for i, x in enumerate(batch):
        if not isinstance(x, (int, float, complex, np.bool_, np.number)):
            raise TypeError(
                f"default_collate: sample 0 is a number and sample {i} a {type(x).__name__}: {x!r:.40}. "
                "Fill in what is missing, or leave the row out."
            )
    return batch


def _integers(batch: Sequence[Sample]) -> np.ndarray:
    """torch.tensor of a list that starts with an int: a float in it makes it float32."""
    if all(isinstance(x, (bool, np.bool_)) for x in batch):
        return np.array(batch, np.bool_)
    if any(isinstance(x, float) for x in batch):
        return np.array(_numbers(batch), np.float32)
    for x in batch:
        if not isinstance(x, (int, np.integer)):
            raise TypeError(f"default_collate: a batch that begins with an int holds a {type(x).__name__}")
        if not -(2**63) <= x < 2**63:
            raise ValueError("Overflow when unpacking long long")
    return np.array(batch, np.int64)


def _mapping(like: Mapping[Any, Any], value: Callable[[Any], Batch]) -> Batch:
    """The same kind of mapping with other values; a dict if that kind cannot be constructed."""
    made = {key: value(key) for key in like}
    try:
        if isinstance(like, MutableMapping):
            clone = copy.copy(like)
            clone.update(made)
            return clone
        return type(like)(made)  # type: ignore[call-arg]
    except TypeError:
        return made


def _sequence(like: Sequence[Any], made: list[Batch]) -> Batch:
    """The same kind of sequence with other items; a list for tuples and kinds that cannot be constructed."""
    if isinstance(like, tuple):
        return made
    try:
        if isinstance(like, MutableSequence):
            clone = copy.copy(like)
            for i, item in enumerate(made):
                clone[i] = item
            return clone
        return type(like)(made)  # type: ignore[call-arg]
    except TypeError:
        return made
