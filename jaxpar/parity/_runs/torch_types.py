"""Read the type of each operation that torch runs, by the path of its module. Needs torch alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .._sides.uncompiled_mode import without_compiler
from .operation_types import FLOATS, OperationType

NAMES = {
    "softmax": "_softmax _safe_softmax",
    "loss": "_log_softmax logsumexp nll_loss_forward nll_loss2d_forward mse_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits smooth_l1_loss huber_loss",
    "norm": "native_layer_norm native_batch_norm native_group_norm cudnn_batch_norm _fused_rms_norm "
    "_native_batch_norm_legit _batch_norm_with_update",
    "matmul": "mm addmm bmm baddbmm mv addmv dot linear",
    "convolution": "convolution cudnn_convolution",
    "embedding": "embedding index index_select gather",
    "activation": "gelu relu silu tanh sigmoid leaky_relu elu hardswish hardsigmoid softplus mish threshold "
    "hardtanh erf",
    "mean": "mean var var_mean avg_pool2d _adaptive_avg_pool2d",
    "sum": "sum",
    "addition": "add",
    "arithmetic": "mul sub div pow sqrt rsqrt exp log neg reciprocal",
}
KINDS = {name: kind for kind, names in NAMES.items() for name in names.split()}
ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")
PRODUCTS = ("matmul", "convolution")


@without_compiler
class TorchTypes(TorchDispatchMode):
    """Collects `rows` while it is entered: autocast has chosen the types by then."""

    def __init__(self, module: Any = None):
        super().__init__()
        self.module, self.rows = module, list[OperationType]()
        self._hooks = contextlib.ExitStack()
        self._paths: list[str] = []
        # With the tensors, so that an id stays theirs.
        self._rounded: dict[int, tuple[torch.Tensor, OperationType]] = {}

    def __enter__(self) -> TorchTypes:
        if isinstance(self.module, torch.nn.Module):
            for path, layer in self.module.named_modules():
                before = layer.register_forward_pre_hook(lambda *_, path=path: self._paths.append(path))
                after = layer.register_forward_hook(lambda *_: self._left(), always_call=True)
                self._hooks.callback(before.remove)
                self._hooks.callback(after.remove)
        super().__enter__()
        return self

    def _left(self) -> None:
        self._paths.pop()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.close()
        self._rounded.clear()

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        name = operation._schema.name.removeprefix("aten::")
        if name == "_to_copy":
            self._cast(args[0], result)
        kind = KINDS.get(name.rstrip("_") if name[0] != "_" else name)
        kinds = ("matmul", "softmax", "matmul") if name.startswith(ATTENTION) else (kind,) if kind else ()
        first = result[0] if isinstance(result, list | tuple) and result else result
        if kinds and isinstance(first, torch.Tensor) and first.is_floating_point():
            self._note(kinds, args, first)
        return result

    def _note(self, kinds: Sequence[str], args: tuple, result: torch.Tensor) -> None:
        where = self._where()
        if where is None:
            return
        floats = [x for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()]
        types = [_name(x.dtype) for x in floats] or [_name(result.dtype)]
        inputs = min(types, key=lambda name: FLOATS.get(name, 64))
        for kind in kinds:
            is_product = kind in PRODUCTS and inputs == "float32"
            precision = asked(kind) if is_product else ""
            row = OperationType(kind, inputs, _name(result.dtype), where, precision)
            # A cross entropy is a log-softmax and a selection.
            if kind != "loss" or not self.rows or self.rows[-1] != row:
                self.rows.append(row)

    def _cast(self, x: torch.Tensor, result: torch.Tensor) -> None:
        before, after = (FLOATS.get(_name(t.dtype), 64) for t in (x, result))
        if id(x) in self._rounded and after > before:
            self.rows.append(self._rounded.pop(id(x))[1])
        elif x.is_floating_point() and result.is_floating_point() and after < before:
            where = self._where()
            if where is not None:
                row = OperationType("rounding", _name(x.dtype), _name(result.dtype), where)
                self._rounded[id(result)] = result, row

    def _where(self) -> str | None:
        """Return the path of the module that runs, or the user's line; None outside of the forward pass."""
        frame = sys._getframe(2)
        while frame.f_back is not None:
            name = str(frame.f_globals.get("__name__", ""))
            if name.startswith(("torch.autograd.graph", "torch.optim")):
                return None
            # The comparison's own loss.
            if frame.f_code.co_name == "_loss" and name.endswith("torch_side"):
                return None
            if name.partition(".")[0] not in ("torch", "jaxpar", "jaxpar_recorder"):
                break
            frame = frame.f_back
        line = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        return next((path for path in reversed(self._paths) if path), line)


def asked(kind: str) -> str:
    """Return the precision that torch's settings ask for in a product of float32 on a GPU."""
    if kind == "convolution":
        return "high" if torch.backends.cudnn.allow_tf32 else "highest"
    setting = torch.get_float32_matmul_precision()
    return "high" if setting == "highest" and torch.backends.cuda.matmul.allow_tf32 else setting


def has_tensors(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(map(has_tensors, tree.values()))
    return isinstance(tree, torch.Tensor) or (isinstance(tree, list | tuple) and any(map(has_tensors, tree)))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
