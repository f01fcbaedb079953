"""Choices of torch's functions that a run did not make; `flax_choices` is the other side.

A `where` whose condition always holds, a bound that no number passes, an epsilon that is too small for what
it is added to, a maximum without equal numbers, a class that is to be ignored and does not occur.
It cannot show which of two equal lengths is meant, either.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .._reach import LINES, NOT_REACHED, some
from ..measuring import kinks
from .constants import users_line
from .lines_run import LinesRun, files_of
from .torch_side import to_numpy

POINTS: dict[str, tuple[float, ...]] = {  # of the kinks, for default settings
    **dict.fromkeys(["relu", "relu_", "leaky_relu", "leaky_relu_", "prelu", "abs"], (0.0,)),
    **dict.fromkeys(["elu", "elu_", "celu", "celu_", "selu", "selu_"], (0.0,)),
    "relu6": (0.0, 6.0),
    **dict.fromkeys(["hardtanh", "hardtanh_"], (-1.0, 1.0)),
    **dict.fromkeys(["hardswish", "hardsigmoid"], (-3.0, 3.0)),
    "softshrink": (-0.5, 0.5),
    "hardshrink": (-0.5, 0.5),
}
Activation = tuple[str, tuple[float, ...]]  # name and kinks
T = TypeVar("T")

VISIBLE = 1e-7  # the part of a number that a constant is, of which a hundredth would still be seen
UNDERFLOW = 745.0  # exp(-745) is 0 in float64
Sides = Iterator[tuple[str, Any]]  # what a side is, and which elements take it
Arguments = dict[str, Any]
TIES = {"max", "min", "amax", "amin", "argmax", "argmin", "topk", "sort", "argsort", "median", "kthvalue"}
TIES |= {"cummax", "cummin", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d"}
WINDOWS = ("conv1d", "conv2d", "conv3d", "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d")
SIZED = ("reshape", "view")
NARROW = (torch.int8, torch.uint8, torch.int16)
CASTS = {"to", "char", "byte", "short", "type", "type_as"}


class TorchChoices:
    """The sides of torch's calls by name: whether an element took them."""

    def __init__(self) -> None:
        self.reached: dict[str, bool] = {}
        self.tied: dict[str, bool] = {}
        self.strided: dict[str, None] = {}
        self.equal_lengths: dict[str, None] = {}

    def look(self, function: Callable[..., Any], name: str, args: tuple, kwargs: Arguments) -> None:
        if sides := SIDES.get(name.strip("_")):
            title = f"{name.strip('_')} in {users_line()}"
            try:
                with torch.no_grad():
                    for side, elements in sides(*args, **kwargs):
                        reached = self.reached.get(f"{title} ({side})", False)
                        self.reached[f"{title} ({side})"] = reached or bool(torch.as_tensor(elements).any())
            except Exception as error:  # the user's own call raises a better error
                self.reached[f"{title} ({type(error).__name__} in watching it)"] = False
        if name in TIES and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            x = args[0].detach()
            self.tied[name] = self.tied.get(name, False) or x.unique().numel() < x.numel()
        if name in WINDOWS and _strides(function, args, kwargs):
            self.strided[name] = None
        if name in SIZED and _has_equal_lengths(args[1:], kwargs):
            self.equal_lengths[f"{name} in {users_line()}"] = None

    def gaps(self) -> Iterator[str]:
        one_sided = [name for name, reached in self.reached.items() if not reached]
        if one_sided:
            yield f"torch's code takes one side of {some(one_sided, LINES)}"
        if untied := [name for name, tied in self.tied.items() if not tied]:
            yield f"equal numbers, of which {', '.join(untied)} takes one"
        if self.strided:
            yield f"inputs of other sizes, whose last window is cut ({', '.join(self.strided)})"
        if self.equal_lengths:
            yield f"other sizes, where two lengths are equal by chance ({some([*self.equal_lengths], LINES)})"


def _has_equal_lengths(sizes: tuple, kwargs: Arguments) -> bool:
    """Return whether two axes have one length, so that code that confuses them has the same shape."""
    parts = (x if isinstance(x, tuple | list) else (x,) for x in (*sizes, *kwargs.values()))
    lengths = [length for part in parts for length in part if isinstance(length, int) and length > 1]
    return len(set(lengths)) < len(lengths)


def _strides(function: Callable[..., Any], args: tuple, kwargs: Arguments) -> bool:
    stride = kwargs.get("stride", args[3] if "conv" in function.__name__ and len(args) > 3 else None)
    if "pool" in function.__name__:
        stride = stride or (args[2] if len(args) > 2 else None) or kwargs.get("kernel_size", args[1:2])
    return stride is not None and bool((torch.as_tensor(stride) > 1).any())


def _where(condition: Any, *cases: Any, **options: Any) -> Sides:
    if cases or options:
        yield "true", condition
        yield "false", ~torch.as_tensor(condition)


def _masked(x: torch.Tensor, mask: torch.Tensor, *others: Any, **options: Any) -> Sides:
    yield from _where(mask, x)


def _clamp(x: torch.Tensor, min: Any = None, max: Any = None, out: Any = None) -> Sides:
    if min is not None:
        yield _side("below", min), x < min
    if max is not None:
        yield _side("above", max), x > max


def _side(direction: str, bound: Any) -> str:
    return f"no number {direction} " + (f"{bound:g}" if isinstance(bound, (int, float)) else "the bound")


def _larger(x: torch.Tensor, y: Any = None, *others: Any, **options: Any) -> Sides:
    y = options.get("other", y)
    if isinstance(y, torch.Tensor):
        yield "the first is never larger", x > y
        yield "the second is never larger", x < y


def _remainder(x: Any, y: Any, **options: Any) -> Sides:
    yield "no number beyond the divisor", abs(torch.as_tensor(x)) >= abs(torch.as_tensor(y))
    yield "no number below 0", torch.as_tensor(x) < 0


def _add(x: Any, y: Any, **options: Any) -> Sides:
    constant, array = (x, y) if isinstance(x, float) else (y, x)
    if isinstance(constant, float) and constant and isinstance(array, torch.Tensor):
        shows = (abs(constant) > VISIBLE * array.abs()) & (array != 0)
        # A 0 plus a constant shows only if it is divided by.
        yield f"{constant:g} is too small for the numbers that are not 0", shows | (array == 0).all()


def _embedding(
    tokens: torch.Tensor, weight: Any, padding_idx: int | None = None, *others: Any, **o: Any
) -> Sides:
    if padding_idx is not None:
        yield f"no index {padding_idx}", tokens == padding_idx % len(weight)


def _ignored(function: Callable[..., Any]) -> Callable[..., Sides]:
    signature = inspect.signature(function)

    def sides(*args: Any, **kwargs: Any) -> Sides:
        bound = signature.bind(*args, **kwargs)
        target, index = bound.arguments["target"], bound.arguments["ignore_index"]
        if not target.is_floating_point():
            yield f"no target {index}", target == index

    return sides


def _dropout(x: Any, p: float = 0.5, training: bool = True, *others: Any, **options: Any) -> Sides:
    if p and not training:
        yield "nothing is dropped in evaluation", False


def _beta(x: torch.Tensor, y: torch.Tensor, *others: Any, **options: Any) -> Sides:
    distance, bound = abs(x - y), options.get("beta", options.get("delta", 1.0))
    yield _side("below", bound), distance < bound
    yield _side("above", bound), distance > bound


def _normalize(x: torch.Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **options: Any) -> Sides:
    yield f"no norm below {eps:g}", x.norm(p, dim) < eps


def _probabilities(x: torch.Tensor, *others: Any, **options: Any) -> Sides:
    yield "no probability of 0 or 1", (x <= 0) | (x >= 1)


def _epsilon(variances: Callable[..., torch.Tensor], default: float | None) -> Callable[..., Sides]:
    """Return the sides of a norm: an epsilon that is too small for all variances."""

    def sides(x: torch.Tensor, *args: Any, **kwargs: Any) -> Sides:
        eps = kwargs.get("eps", next((y for y in reversed(args) if isinstance(y, float)), default))
        if eps:
            yield f"eps={eps:g} is too small for the variances", eps > VISIBLE * variances(x, *args)

    return sides


def _of_layer(x: torch.Tensor, shape: Any, *others: Any) -> torch.Tensor:
    return x.var([*range(-len(shape), 0)], correction=0)


def _of_groups(x: torch.Tensor, groups: Any = None, *others: Any) -> torch.Tensor:
    return x.reshape(len(x), groups if isinstance(groups, int) else x.shape[1], -1).var(-1, correction=0)


def _of_batch(x: torch.Tensor, *others: Any) -> torch.Tensor:
    return x.transpose(0, 1).reshape(x.shape[1], -1).var(-1, correction=0)


def _cast(x: torch.Tensor, *args: Any, **kwargs: Any) -> Sides:
    to = [y for y in (*args, *kwargs.values()) if y in NARROW] if not x.is_complex() else []
    for dtype in to:
        limits = torch.iinfo(dtype)
        yield f"no number beyond {dtype}", (x < limits.min) | (x > limits.max)


def _softmax(x: torch.Tensor, *others: Any, **options: Any) -> Sides:
    if bool((x < x.max() - UNDERFLOW).any()):
        yield "numbers that underflow, of which none shows how large it is", False


def _compared(x: Any, y: Any, **options: Any) -> Sides:
    constant, array = (y, x) if isinstance(x, torch.Tensor) else (x, y)
    if isinstance(constant, (int, float)) and array.is_floating_point():
        close = abs(array - constant) <= VISIBLE * max(abs(constant), VISIBLE)
        yield f"{constant:g} may be moved a little: no number is there", close


def _threshold(x: torch.Tensor, threshold: float = 0.0, *others: Any, **options: Any) -> Sides:
    yield _side("below", threshold), x <= threshold
    yield _side("above", threshold), x > threshold


SIDES: dict[str, Callable[..., Sides]] = {
    "where": _where,
    "masked_fill": _masked,
    **dict.fromkeys(("clamp", "clip"), _clamp),
    "clamp_min": lambda x, min: _clamp(x, min),
    "clamp_max": lambda x, max: _clamp(x, None, max),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin", "max", "min"), _larger),
    **dict.fromkeys(("remainder", "fmod", "mod"), _remainder),
    **dict.fromkeys(("add", "radd", "iadd", "sub"), _add),
    "embedding": _embedding,
    **{name: _ignored(getattr(F, name)) for name in ("cross_entropy", "nll_loss")},
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), _dropout),
    **dict.fromkeys(("smooth_l1_loss", "huber_loss"), _beta),
    "normalize": _normalize,
    "binary_cross_entropy": _probabilities,
    "layer_norm": _epsilon(_of_layer, 1e-5),
    "rms_norm": _epsilon(_of_layer, None),
    "group_norm": _epsilon(_of_groups, 1e-5),
    "instance_norm": _epsilon(_of_groups, 1e-5),
    "batch_norm": _epsilon(_of_batch, 1e-5),
    "to": _cast,
    **dict.fromkeys(("gt", "ge", "lt", "le", "greater", "less"), _compared),
    "threshold": _threshold,
    **dict.fromkeys(("softmax", "log_softmax"), _softmax),
}
"""By function: what a side is called, and which elements take it."""


class _Count(TorchFunctionMode):
    """Counts elements, and elements near a kink, by function and its kinks; thread-local as all modes are."""

    def __init__(self) -> None:
        super().__init__()
        self.choices = TorchChoices()
        self.near: dict[Activation, int] = {}
        self.all: dict[Activation, int] = {}
        self.exact: dict[Activation, bool] = {}
        self.ranges: dict[Activation, tuple[float, float]] = {}

    def __torch_function__(
        self, function: Callable[..., T], types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> T:
        # By name, because relu is three functions: torch's, the functional one and the tensor's method.
        name = getattr(function, "__name__", "")
        kwargs = kwargs or {}
        self.choices.look(function, name, args, kwargs)
        if name in POINTS and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            self._count(name, to_numpy(args[0]), kwargs)
        return function(*args, **kwargs)

    def _count(self, name: str, x: np.ndarray, options: dict[str, Any]) -> None:
        points = POINTS[name]
        if name.startswith("hardtanh"):  # torch passes its bounds on by name
            points = options.get("min_val", points[0]), options.get("max_val", points[1])
        # nn.ReLU6 calls hardtanh.
        activation = "relu6" if points == (0, 6) else name.rstrip("_"), points
        self.near[activation] = self.near.get(activation, 0) + kinks(x, points)
        self.all[activation] = self.all.get(activation, 0) + x.size
        self.exact[activation] = self.exact.get(activation, False) or bool(np.isin(x, points).any())
        low, high = self.ranges.get(activation, (np.inf, -np.inf))
        self.ranges[activation] = min(low, x.min(initial=np.inf)), max(high, x.max(initial=-np.inf))


@contextmanager
def counted(notes: list[str], module: torch.nn.Module) -> Iterator[None]:
    """Append to `notes` what the activations got from the torch code that runs inside, and its gaps."""
    lines = LinesRun(files_of(module))
    with _Count() as count, lines:
        yield
    notes += [NOT_REACHED + gap for gap in count.choices.gaps()]
    if left_out := lines.left_out():
        notes.append(f"{NOT_REACHED}torch's code in {some(left_out, LINES)}")
    for activation, near in count.near.items():
        name, points = activation
        if near:
            notes.append(
                f"{near:,} of {count.all[activation]:,} elements that {name} was given are within 1e-6 "
                "of its kink, where the derivatives of two frameworks may differ"
            )
        if not count.exact[activation]:
            notes.append(f"{NOT_REACHED}the derivative of {name} exactly at its kink")
        low, high = count.ranges[activation]
        notes += [f"{NOT_REACHED}{name} gets no number below {point:g}" for point in points if low >= point]
        notes += [f"{NOT_REACHED}{name} gets no number above {point:g}" for point in points if high <= point]
