"""Copies of tensors as arrays, of arrays as tensors, and the tensors in a tree."""

from __future__ import annotations

import jax
import numpy as np
import torch

from ..._typing import PyTree
from .._tensors import array_of, tensor_of


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy."""
    return array_of(tensor).copy()


def to_tensor(array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy, in `dtype` if the array is floating."""
    tensor = tensor_of(np.array(array, order="C"))
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def named_leaves(tree: PyTree) -> dict[str, torch.Tensor]:
    """The tensors in a tree of outputs, by their place: "" for a lone tensor, else [0], ['logits']."""
    # JAX walks the tree, so that outputs have the same names on both sides.
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, torch.Tensor))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor)}
