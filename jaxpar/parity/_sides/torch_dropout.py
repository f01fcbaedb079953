"""Dropout in torch: capture masks and noise in the order of the calls.

A mask is dropout applied to ones, which draws the same numbers as dropout applied to the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...errors import MaskError
from .._tensors import tensor_of

ELEMENTWISE = {torch.dropout, *(getattr(functional, f"dropout{axes}") for axes in ("", "1d", "2d", "3d"))}
BERNOULLI = {torch.bernoulli, torch.Tensor.bernoulli, torch.Tensor.bernoulli_}
NORMAL = {torch.randn_like}
RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
FRESH = {torch.rand, torch.randn, torch.rand_like}
FILLING = {torch.Tensor.normal_, torch.Tensor.uniform_}
"""Methods that draw into their tensor; with other means and bounds than the usual ones they are OTHERS."""
_takes_fresh: ContextVar[bool] = ContextVar("takes_fresh", default=False)
# Their numbers stay torch's own. `Tensor` has no `rand`; the in-place methods end in an underscore.
OTHERS = {
    getattr(owner, name): name
    for owner, names in (
        (torch, "rand randn rand_like randint randint_like randperm normal multinomial poisson"),
        (torch.Tensor, "uniform_ normal_ random_ exponential_ geometric_ cauchy_ log_normal_ multinomial"),
    )
    for name in names.split()
}

T = TypeVar("T")


@contextmanager
def taking_fresh() -> Iterator[None]:
    """Capture FRESH as well: the Flax module draws from its streams wherever torch draws an array by them."""
    token = _takes_fresh.set(True)
    try:
        yield
    finally:
        _takes_fresh.reset(token)


class Capture(TorchFunctionMode):
    """Records dropout's factors, 0 or 1/(1-p), in the order of the calls, while entered in this thread.

    `drawn` are the names of torch's other random functions that ran, such as "rand". `instead` has the
    factors of a different model, whose zeros replace the drawn ones.
    """

    def __init__(self, instead: Sequence[np.ndarray] | None = None) -> None:
        super().__init__()
        self.masks: list[torch.Tensor] = []
        self.drawn: set[str] = set()
        self.instead = instead

    def __exit__(self, kind: Any, *error: Any) -> None:
        super().__exit__(kind, *error)
        if kind is None and self.instead is not None and len(self.masks) != len(self.instead):
            raise MaskError(
                f"parity.compare: the first model dropped {len(self.instead)} times and the second "
                f"{len(self.masks)} times. Is a Dropout missing or in evaluation mode?"
            )

    def __torch_function__(
        self, function: Callable[..., T], types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> T:
        kwargs = kwargs or {}
        if function in FRESH and _takes_fresh.get():
            fresh: Any = function(*args, **kwargs)
            fresh = self._replaced(fresh) if fresh.ndim else fresh
            self.masks += [fresh.detach()] * (fresh.ndim > 0)
            return fresh
        if function in FILLING and not kwargs and args[1:] in ((), (0,), (0, 1)) and _takes_fresh.get():
            with torch.no_grad():
                filled: Any = function(*args)
                filled.copy_(self._replaced(filled.clone()))
            self.masks.append(filled.detach().clone())  # before later lines change it
            return filled
        if function is torch.Tensor.item and self.masks and _takes_fresh.get():
            # A number that Python takes out decides a branch, for which Flax draws nothing.
            is_last = args[0].numel() == 1 and args[0].data_ptr() == self.masks[-1].data_ptr()
            del self.masks[len(self.masks) - is_last :]
        if function in OTHERS:
            self.drawn.add(OTHERS[function])
        if function in ELEMENTWISE:
            return self._dropout(function, *args, **kwargs)
        if function in BERNOULLI:
            return self._bernoulli(function, *args, **kwargs)
        if function in NORMAL:
            drawn = self._replaced(function(*args, **kwargs))
            self.masks.append(drawn.detach())
            return drawn
        if function in RECURRENT:
            return self._recurrent(function, *args)
        if function is functional.scaled_dot_product_attention:
            return self._attention(function, *args, **kwargs)
        if function is functional.multi_head_attention_forward:
            return self._seen_inside(functional.multi_head_attention_forward)(*args, **kwargs)
        return function(*args, **kwargs)

    def _replaced(self, drawn: Any) -> Any:
        """Return the other model's numbers in the place of the drawn ones, if there are any."""
        if self.instead is None:
            return drawn
        number, shape = len(self.masks), tuple(drawn.shape)
        if number == len(self.instead):
            raise MaskError(
                f"parity.compare: the second model draws for dropout number {number + 1}, and the first drew "
                f"only {number}. Compare in evaluation mode, or make both models drop in the same places."
            )
        array = self.instead[number]
        # Attention's weights may have batch and heads as one axis.
        if array.shape != shape and (array.size != drawn.numel() or array.shape[-2:] != shape[-2:]):
            raise MaskError(
                f"parity.compare: dropout number {number + 1} is of shape {shape} in the second model, and "
                f"of {array.shape} in the first: they do not drop in the same places or order."
            )
        return tensor_of(array.reshape(shape).copy()).to(drawn.device, drawn.dtype)

    def _seen_inside(self, function: Callable[..., T]) -> Callable[..., T]:
        # A mode is disabled inside the function that it handles, and patching torch.nn.functional during the
        # call would affect every other thread.
        attention = functional.scaled_dot_product_attention
        watched = {
            "dropout": partial(self._dropout, functional.dropout),
            "scaled_dot_product_attention": partial(self._attention, attention),
            "has_torch_function": lambda tensors: False,  # already dispatched
        }
        copy = FunctionType(function.__code__, function.__globals__ | watched, function.__name__)
        copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        return copy

    def _dropout(
        self, function: Callable[..., Any], input: torch.Tensor, p: float = 0.5, *others: Any, **kwargs: Any
    ) -> torch.Tensor:
        training = kwargs.get("training", kwargs.get("train", others[0] if others else True))
        if not training or p == 0:
            return input
        # The original function, because dropout1d to dropout3d draw one number per channel.
        with torch.no_grad():
            mask = function(torch.ones_like(input), p, True)
            if self.instead is not None:
                # Only the zeros are the other model's. The factor is this one's, so that a wrong rate shows.
                factor = torch.ones_like(input).div(1 - p) if p < 1 else torch.zeros_like(input)
                mask = torch.where(self._replaced(mask) != 0, factor, 0)
        self.masks.append(mask)
        return input * mask

    def _bernoulli(
        self, function: Callable[..., Any], input: torch.Tensor, p: Any = None, **kwargs: Any
    ) -> torch.Tensor:
        options = {} if p is None else {"p": p}
        in_place = function is torch.Tensor.bernoulli_
        chance = torch.as_tensor((0.5 if in_place else input) if p is None else p)
        drawn = function(input, **options, **kwargs)
        if self.instead is not None:
            with torch.no_grad():
                drawn.copy_(self._replaced(drawn) != 0)
        nonzero = drawn.detach() != 0
        self.masks.append(torch.where(nonzero, 1 / chance.detach().double(), 0.0))
        return drawn

    def _recurrent(
        self, function: Callable[..., Any], x: torch.Tensor, hx: Any, weights: Any, *options: Any
    ) -> Any:
        """A stack of layers by one kernel for each, so that the masks between them are accessible."""
        packed = not isinstance(weights, list)  # then it is hx, and `hx` the sizes of the batches
        has_biases, layers, p, train, bidirectional, batch_first = (*options, False)[packed:][:6]
        if layers == 1 or not p or not train:
            return function(x, hx, weights, *options)
        if packed:
            raise NotImplementedError(
                "parity.compare: a recurrent layer draws the dropout between its layers in a kernel for "
                "packed sequences; compare in evaluation mode, or with its dropout at 0."
            )
        x = x.transpose(0, 1) if batch_first else x
        directions, finals = 1 + bidirectional, []
        states = [state.split(directions) for state in (hx if isinstance(hx, tuple) else (hx,))]
        size = len(weights) // layers
        for layer in range(layers):
            x = self._dropout(functional.dropout, x, p) if layer else x
            state = tuple(parts[layer] for parts in states)
            arguments = state if isinstance(hx, tuple) else state[0]
            of_layer = weights[layer * size : (layer + 1) * size]
            x, *final = function(x, arguments, of_layer, has_biases, 1, 0.0, train, bidirectional, False)
            finals.append(final)
        return x.transpose(0, 1) if batch_first else x, *map(torch.cat, zip(*finals, strict=True))

    def _attention(
        self,
        function: Callable[..., Any],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """The kernel's documented definition, in which the mask is accessible."""
        if not dropout_p:
            return function(
                query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            raise NotImplementedError(
                "parity.compare: scaled_dot_product_attention with enable_gqa draws its dropout mask in a "
                "kernel; use eval mode or dropout 0."
            )
        scores = query @ key.transpose(-2, -1) * (scale or query.shape[-1] ** -0.5)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            boolean = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask
        return self._dropout(functional.dropout, scores.softmax(-1), dropout_p) @ value


def refuse_unwatchable(module: torch.nn.Module, replicas: int) -> None:
    for path, layer in module.named_modules():
        kind = type(layer).__name__
        recurrent = isinstance(layer, torch.nn.RNNBase) and layer.dropout > 0 and layer.num_layers > 1
        in_kernels = torch.nn.AlphaDropout | torch.nn.FeatureAlphaDropout | torch.nn.RReLU
        if layer.training and isinstance(layer, in_kernels) and getattr(layer, "p", 1) > 0:
            raise NotImplementedError(
                f"parity.compare: {path or 'the module'} ({kind}) draws random numbers in a kernel, where "
                "they cannot be seen; compare in evaluation mode, or with its dropout at 0."
            )
        drops = isinstance(layer, torch.nn.modules.dropout._DropoutNd) and layer.p > 0
        if replicas > 1 and (drops or (recurrent and layer.training)):
            raise NotImplementedError(
                f"parity.compare: {path} ({kind}) would drop in {replicas} replicas at once, in threads "
                "whose order is not fixed. Compare replicas with dropout 0 or in evaluation mode, and "
                "dropout with replicas=1."
            )
