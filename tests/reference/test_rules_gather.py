"""The rules of docs/semantics.md section 1.5 (gather, outputs), on the reference."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import gather
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torch_ref import pretend
from torch_ref._copies import Copies

Point = namedtuple("Point", "x y")
LOW, HIGH, BOTH = torch.tensor([0, 1]), torch.tensor([2, 3]), torch.arange(4)


class Call(nn.Module):
    """A module without parameters around a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: (x, [x, None]),
        lambda x: {"b": x, "a": (x,)},
        lambda x: OrderedDict(b=x, a=[x]),
        lambda x: Point(x, {"k": x}),
        lambda x: ([], (), {}, None),
    ],
)
@pretend(2)
def test_dispatch(wrap: Callable[[Tensor], object]) -> None:
    # docs/semantics.md row 58
    gathered = gather([wrap(LOW), wrap(HIGH)], 0)
    assert type(gathered) is type(wrap(BOTH))
    assert repr(gathered) == repr(wrap(BOTH))  # values, types and the order of keys


@pretend(2)
def test_dispatch_on_the_first() -> None:
    # docs/semantics.md row 58
    assert gather([None, LOW], 0) is None
    assert list(gather([{"b": LOW, "a": LOW}, {"a": HIGH, "b": HIGH}], 0)) == ["b", "a"]
    with pytest.raises(ValueError, match=r"^All dicts must have the same number of keys$"):
        gather([{"a": LOW}, {"a": LOW, "b": LOW}], 0)
    with pytest.raises(KeyError, match=r"^'a'$"):
        gather([{"a": LOW}, {"b": LOW}], 0)


@pytest.mark.parametrize("kind", [list, tuple])
@pretend(2)
def test_lengths_differ(kind: type) -> None:
    # docs/semantics.md row 59
    one, two = kind([LOW]), kind([LOW, HIGH])
    with pytest.raises(ValueError, match=r"^zip\(\) argument 2 is longer than argument 1$"):
        gather([one, two], 0)
    with pytest.raises(ValueError, match=r"^zip\(\) argument 2 is shorter than argument 1$"):
        gather([two, one], 0)


@pretend(4)
def test_scalars_become_a_vector() -> None:
    # docs/semantics.md row 60
    x = torch.arange(3.0, requires_grad=True)
    with pytest.warns(UserWarning, match=r"^Was asked to gather") as caught:
        y = nn.DataParallel(Call(lambda x: x.sum()))(x)
    assert str(caught[0].message) == (
        "Was asked to gather along dimension 0, but all input tensors were scalars; "
        "will instead unsqueeze and return a vector."
    )
    assert y.tolist() == [0, 1, 2]
    y[1].backward()
    assert x.grad.tolist() == [0, 1, 0]


@pytest.mark.parametrize("dim", [1, -1])
@pretend(2)
def test_scalars_on_another_dim(dim: int) -> None:
    # docs/semantics.md row 60
    with pytest.raises(IndexError):
        gather([torch.tensor(1), torch.tensor(2)], 0, dim)


@pretend(2)
def test_scalars_and_vectors() -> None:
    # docs/semantics.md row 60
    with pytest.raises(IndexError, match=r"^Dimension specified as 0 but tensor has no dimensions$"):
        gather([torch.tensor(1), torch.tensor([2])], 0)


@dataclass
class Fields:
    x: object


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (1, "'int' object is not iterable"),
        (1.5, "'float' object is not iterable"),
        (True, "'bool' object is not iterable"),
        (Fields(1), "'Fields' object is not iterable"),
        (np.zeros(2), ""),
        (torch.Size([1]), ""),
    ],
    ids=repr,
)
@pretend(2)
def test_leaves_that_do_not_gather(leaf: object, text: str) -> None:
    # docs/semantics.md row 61
    for outputs in ([leaf, leaf], [(LOW, leaf), (HIGH, leaf)]):
        with pytest.raises(TypeError) as caught:
            gather(outputs, 0)
        assert text in str(caught.value)


@pretend(2)
def test_strings_become_garbage() -> None:
    # docs/semantics.md row 61
    assert gather(["ab", "cd"], 0).startswith("<map object at 0x")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (torch.tensor([1]), torch.tensor([1.7]), torch.tensor([1, 1])),
        (torch.tensor([1.5]), torch.tensor([2]), torch.tensor([1.5, 2.0])),
        (torch.ones(1).half(), torch.ones(1), torch.ones(2).half()),
    ],
)
@pretend(2)
def test_dtype_of_the_first(first: Tensor, second: Tensor, expected: Tensor) -> None:
    # docs/semantics.md row 62
    torch.testing.assert_close(gather([first, second], 0), expected, rtol=0, atol=0)


@pretend(2)
def test_memory_format() -> None:
    # docs/semantics.md row 62
    plain = torch.randn(2, 3, 4, 5)
    last = plain.contiguous(memory_format=torch.channels_last)
    both = gather([last, last], 0)
    assert both.is_contiguous(memory_format=torch.channels_last)
    assert gather([last, plain], 0).is_contiguous()
    assert torch.equal(both, torch.cat([plain, plain]))


@pretend(2)
def test_shape_errors() -> None:
    # docs/semantics.md row 63
    with pytest.raises(RuntimeError) as caught:
        gather([torch.zeros(2, 3), torch.zeros(2, 4)], 0)
    assert str(caught.value) == ("Input tensor at index 1 has invalid shape [2, 4], but expected [2, 3]")
    with pytest.raises(RuntimeError) as caught:
        gather([torch.zeros(2, 3), torch.zeros(2)], 0)
    assert str(caught.value) == (
        "Expected all input tensors to have the same number of dimensions, but tensor "
        "at index 1has 1 dimensions, (expected 2)"
    )
    assert gather([torch.zeros(2, 3), torch.zeros(2, 4)], 0, dim=1).shape == (2, 7)


def test_gather_on_the_cpu() -> None:
    # docs/semantics.md row 64
    with pytest.raises(AssertionError, match=r"^Gather function not implemented for CPU tensors$"):
        gather([LOW, HIGH], 0)


@pytest.mark.parametrize("target", [0, 1, "cuda:1", torch.device("cuda:1"), "cpu"])
@pretend(2)
def test_target(target: Any) -> None:
    # docs/semantics.md row 65
    assert torch.equal(gather([LOW, HIGH], target), BOTH)


@pretend(2)
def test_cpu_target() -> None:
    # docs/semantics.md row 65
    with pytest.raises(ValueError, match=r"^Expected a non cpu device, but got: cpu$"):
        gather([LOW, HIGH], torch.device("cpu"))
    with pytest.warns(FutureWarning, match=r"^Using -1 to represent CPU tensor is deprecated"):
        assert torch.equal(gather([LOW, HIGH], -1), BOTH)
    with pytest.raises(RuntimeError, match=r"^CUDA error: invalid device ordinal"):
        gather([LOW, HIGH], 2)


@pytest.mark.parametrize("total_length", [None, 4])
@pretend(2)
def test_unpacking_needs_the_total_length(total_length: int | None) -> None:
    # docs/semantics.md row 66
    def repack(x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return pad_packed_sequence(packed, batch_first=True, total_length=total_length)[0]

    net = nn.DataParallel(Call(repack))
    x, lengths = torch.ones(4, 4, 1), torch.tensor([4, 3, 2, 1])
    if total_length is None:
        with pytest.raises(RuntimeError, match=r"^Input tensor at index 1 has invalid shape"):
            net(x, lengths)
    else:
        assert net(x, lengths).sum(1).squeeze().tolist() == [4, 3, 2, 1]


# Planted faults: a broken primitive must not pass the tests above.


def _cat(self: Copies, tensors: Sequence[Tensor], dim: int, destination: int) -> Tensor:
    return torch.cat(list(tensors), dim)


def _reversed(self: Copies, tensors: Sequence[Tensor], dim: int, destination: int) -> Tensor:
    return torch.cat(list(tensors)[::-1], dim)


@pytest.mark.parametrize(
    ("fault", "law", "arguments"),
    [
        (_cat, test_dtype_of_the_first, (LOW[1:], torch.tensor([1.7]), torch.tensor([1, 1]))),
        (_cat, test_shape_errors, ()),
        (_reversed, test_dispatch, (lambda x: x,)),
        (_reversed, test_target, (0,)),
    ],
)
def test_planted_gather(monkeypatch: pytest.MonkeyPatch, fault: Any, law: Any, arguments: tuple) -> None:
    law(*arguments)
    monkeypatch.setattr(Copies, "gather", fault)
    with pytest.raises(AssertionError):
        law(*arguments)
