"""The rules of docs/semantics.md section 1.2 (device check, scatter), and chunk sizes, on the reference."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import data_parallel, scatter
from torch.nn.parallel.scatter_gather import scatter_kwargs
from torch.nn.utils.rnn import pack_sequence

from torch_ref import pretend
from torch_ref._copies import Copies

Point = namedtuple("Point", "x y")


class Call(nn.Module):
    """A module without parameters around a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("device_ids", [[0], [0, 1]])
@pytest.mark.parametrize("where", ["parameter", "buffer"])
@pretend(2)
def test_device_check(where: str, device_ids: list[int]) -> None:
    # docs/semantics.md row 14
    module = nn.BatchNorm1d(2)
    if where == "parameter":
        module.weight = nn.Parameter(torch.empty(2, device="meta"))
    net = nn.DataParallel(module, [0, 1])
    if where == "buffer":
        module.running_mean = torch.empty(2, device="meta")
    text = (
        "module must have its parameters and buffers on device cpu (device_ids[0]) "
        "but found one of them on device: meta"
    )
    for forward in (net, lambda x: data_parallel(module, x, device_ids)):
        with pytest.raises(RuntimeError) as caught:
            forward(torch.zeros(4, 2))
        assert str(caught.value) == text


# The sizes of the chunks of B rows for N = 2, 3, 4 and 8 devices.
CHUNKS = {
    0: ([0] * 2, [0] * 3, [0] * 4, [0] * 8),
    1: ([1], [1], [1], [1]),
    3: ([2, 1], [1] * 3, [1] * 3, [1] * 3),
    4: ([2, 2], [2, 2], [1] * 4, [1] * 4),
    5: ([3, 2], [2, 2, 1], [2, 2, 1], [1] * 5),
    6: ([3, 3], [2] * 3, [2] * 3, [1] * 6),
    7: ([4, 3], [3, 3, 1], [2, 2, 2, 1], [1] * 7),
    9: ([5, 4], [3] * 3, [3] * 3, [2, 2, 2, 2, 1]),
    10: ([5, 5], [4, 4, 2], [3, 3, 3, 1], [2] * 5),
    13: ([7, 6], [5, 5, 3], [4, 4, 4, 1], [2] * 6 + [1]),
    15: ([8, 7], [5] * 3, [4, 4, 4, 3], [2] * 7 + [1]),
    17: ([9, 8], [6, 6, 5], [5, 5, 5, 2], [3] * 5 + [2]),
}
TABLE = [(rows, n, sizes) for rows, row in CHUNKS.items() for n, sizes in zip((2, 3, 4, 8), row, strict=True)]


@pytest.mark.parametrize(("rows", "n", "sizes"), [*TABLE, (36, 7, [6] * 6)])
def test_chunk_sizes(rows: int, n: int, sizes: list[int]) -> None:
    # docs/semantics.md row 15
    x = torch.arange(2.0 * rows).reshape(rows, 2)
    seen: list[int] = []
    module = nn.Threshold(-1, 0)
    module.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    with pretend(n):
        chunks = scatter(x, range(n))
        y = nn.DataParallel(module)(x)
    assert [len(chunk) for chunk in chunks] == sizes
    assert sorted(seen) == sorted(sizes)
    assert torch.equal(torch.cat(chunks), x)
    assert torch.equal(y, x)


@pretend(3)
def test_empty_batch() -> None:
    # docs/semantics.md row 16
    seen: list[int] = []
    linear = nn.Linear(2, 5)
    linear.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    y = nn.DataParallel(linear)(torch.zeros(0, 2))
    y.sum().backward()
    assert seen == [0, 0, 0]
    assert y.shape == (0, 5)
    assert torch.equal(linear.weight.grad, torch.zeros(5, 2))


@pretend(3)
def test_first_chunk_is_a_view() -> None:
    # docs/semantics.md row 17
    x = torch.arange(6.0)
    chunks = scatter(x, [0, 1, 2])
    own = [c.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for c in chunks]
    assert own == [True, False, False]
    assert [c.data_ptr() == x.data_ptr() for c in scatter(x, [1, 0])] == [True, False]


@pretend(2)
def test_in_place_on_a_chunk() -> None:
    # docs/semantics.md row 18
    net = nn.DataParallel(Call(lambda chunk: chunk.add_(1)))
    x = torch.zeros(4)
    assert torch.equal(net(x), torch.ones(4))
    assert x.tolist() == [1, 1, 0, 0]
    with pytest.raises(RuntimeError) as caught:
        net(torch.zeros(4, requires_grad=True))
    assert "Caught RuntimeError in replica 0 on device 0." in str(caught.value)
    assert (
        "Output 0 of Scatter is a view and is being modified inplace. "
        "This view is the output of a function that returns multiple views."
    ) in str(caught.value)


@pretend(2)
def test_recursion_into_containers() -> None:
    # docs/semantics.md row 19
    x = torch.arange(4)

    def halves(tree: object) -> object:
        return [repr(piece) for piece in scatter(tree, [0, 1])]

    low, high = repr(x[:2]), repr(x[2:])
    assert halves((x, 1)) == [f"({low}, 1)", f"({high}, 1)"]
    assert halves([x, "a"]) == [f"[{low}, 'a']", f"[{high}, 'a']"]
    assert halves({"k": [x]}) == [f"{{'k': [{low}]}}", f"{{'k': [{high}]}}"]
    assert halves(Point(x, None)) == [f"Point(x={low}, y=None)", f"Point(x={high}, y=None)"]
    by_tensor = scatter({x: 1}, [0, 1])
    assert [next(iter(piece)).tolist() for piece in by_tensor] == [[0, 1], [2, 3]]


@dataclass(eq=False)
class Fields:
    x: Tensor


@pytest.mark.parametrize(
    "shared",
    [
        (),
        [],
        {},
        None,
        3,
        "text",
        {1, 2},
        np.arange(4),
        Fields(torch.arange(4)),
        UserDict(x=torch.arange(4)),
    ],
    ids=lambda value: type(value).__name__,
)
@pretend(3)
def test_shared_by_reference(shared: object) -> None:
    # docs/semantics.md row 19
    pieces = scatter(shared, [0, 1, 2])
    assert len(pieces) == 3
    assert all(piece is shared for piece in pieces)


@pretend(2)
def test_scatter_return_type() -> None:
    # docs/semantics.md row 20
    x = torch.arange(4)
    assert type(scatter(x, [0, 1])) is tuple
    for tree in ((x,), [x], {"x": x}, Point(x, x), (), None, 3):
        assert type(scatter(tree, [0, 1])) is list


@pretend(2)
def test_dict_subclasses() -> None:
    # docs/semantics.md row 21
    x = torch.arange(4)
    pieces = scatter(OrderedDict(b=x, a=x), [0, 1])
    assert [(type(piece), list(piece)) for piece in pieces] == [(OrderedDict, ["b", "a"])] * 2
    tree = defaultdict(list, x=x)
    for verb in (lambda: scatter(tree, [0, 1]), lambda: nn.parallel.gather([tree, tree], 0)):
        with pytest.raises(TypeError, match=r"^first argument must be callable or None$"):
            verb()


@pretend(2)
def test_lists_are_not_split() -> None:
    # docs/semantics.md row 22
    words, thing = ["a", "b", "c"], object()
    assert scatter(words, [0, 1]) == [words, words]
    assert scatter([thing], [0, 1]) == [[thing], [thing]]
    first, second = scatter([torch.zeros(4), torch.zeros(2, 3)], [0, 1])
    assert [t.shape for t in first] == [t.shape for t in second] == [(2,), (1, 3)]


@pretend(2)
def test_packed_sequence_is_torn() -> None:
    # docs/semantics.md row 23
    packed = pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    pieces = scatter(packed, [0, 1])
    assert [type(piece) for piece in pieces] == [type(packed)] * 2
    assert any(piece.batch_sizes.sum() != len(piece.data) for piece in pieces)


@pretend(2)
def test_silent_truncation() -> None:
    # docs/semantics.md row 24
    net = nn.DataParallel(Call(lambda x, t: x * t))
    x, t = torch.arange(8.0, requires_grad=True), torch.full((1,), 2.0)
    y = net(x, t)
    y.sum().backward()
    assert y.tolist() == [0, 2, 4, 6]
    assert x.grad.tolist() == [2, 2, 2, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("n", [1, 2])
def test_zero_dim_argument(n: int) -> None:
    # docs/semantics.md row 25
    with pretend(n), pytest.raises(RuntimeError) as caught:
        nn.DataParallel(Call(lambda x: x))(torch.tensor(1.0))
    assert str(caught.value) == "chunk expects at least a 1-dimensional tensor"


@pytest.mark.parametrize("dim", [1, -1])
@pretend(2)
def test_dim(dim: int) -> None:
    # docs/semantics.md row 26
    net = nn.DataParallel(Call(lambda x, w: x + w), dim=dim)
    x, w = torch.randn(2, 5), torch.randn(1, 5)
    assert torch.equal(net(x, w), x + w)
    assert torch.equal(net(x, w=w), x + w)
    assert [c.shape for c in scatter(x, [0, 1], dim)] == [(2, 3), (2, 2)]


@pretend(2)
def test_too_few_dims() -> None:
    # docs/semantics.md row 26
    with pytest.raises(IndexError) as caught:
        nn.DataParallel(Call(lambda x: x), dim=1)(torch.zeros(4))
    assert str(caught.value) == ("Dimension out of range (expected to be in range of [-1, 0], but got 1)")


@pretend(4)
def test_padding_of_args_and_kwargs() -> None:
    # docs/semantics.md row 27
    def forward(x: Tensor, scale: float = 1) -> Tensor:
        return x * scale

    net = nn.DataParallel(Call(forward))
    text = r"(?s)^Caught TypeError in replica 2 on device 2\..*missing 1 required positional"
    with pytest.raises(TypeError, match=text):
        net(torch.ones(2), scale=3)
    with pytest.raises(AssertionError) as caught:
        nn.DataParallel(Call(lambda x, y: y))(None, y=torch.ones(2))
    assert str(caught.value) == ("The number of modules 4 is not equal to the number of kwargs_tup 2")
    three = nn.DataParallel(Call(lambda a, b, c, y=None: torch.full((1,), y is None)))
    assert three(None, None, None, y=torch.ones(2)).tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("args", "kwargs", "args_lengths", "kwargs_lengths"),
    [
        ((), {"y": torch.ones(2)}, [0, 0], [1, 1]),
        ((torch.ones(2),), {}, [1, 1], [0, 0]),
        ((torch.ones(1),), {"y": 5}, [1, 0, 0, 0], [1, 1, 1, 1]),
        ((None,), {"y": torch.ones(2)}, [1, 1, 1, 1], [1, 1]),
        ((None,) * 3, {"y": torch.ones(2)}, [3, 3, 3, 3], [1, 1, 0, 0]),
    ],
)
def test_lengths_after_padding(
    args: tuple, kwargs: dict, args_lengths: list[int], kwargs_lengths: list[int]
) -> None:
    # docs/semantics.md row 27
    with pretend(4):
        inputs, module_kwargs = scatter_kwargs(args, kwargs, range(4))
    assert [len(i) for i in inputs] == args_lengths
    assert [len(k) for k in module_kwargs] == kwargs_lengths


@pretend(4)
def test_only_non_tensors() -> None:
    # docs/semantics.md row 28
    assert torch.equal(nn.DataParallel(Call(torch.ones))(3), torch.ones(12))


@pytest.mark.parametrize("n", [1, 3])
def test_no_arguments(n: int) -> None:
    # docs/semantics.md row 29
    seen: list[int] = []
    module = Call(lambda: torch.ones(2))
    module.register_forward_pre_hook(lambda module, args: seen.append(len(args)))
    with pretend(n):
        assert torch.equal(nn.DataParallel(module)(), torch.ones(2))
        assert torch.equal(data_parallel(module, None), torch.ones(2))
        assert torch.equal(data_parallel(module, ()), torch.ones(2))
    assert seen == [0, 0, 0]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (torch.zeros(4), 1),
        ([torch.zeros(4), torch.zeros(4)], 1),
        ((torch.zeros(4), torch.zeros(4)), 2),
        (None, 0),
    ],
)
@pretend(2)
def test_functional_inputs(inputs: object, expected: int) -> None:
    # docs/semantics.md row 30
    y = data_parallel(Call(lambda *args: torch.full((1,), len(args))), inputs)
    assert set(y.tolist()) == {expected}


@pretend(2)
def test_one_device_calls_the_module() -> None:
    # docs/semantics.md row 31
    class Direct(nn.Linear):
        calls = 0

        def forward(self, x: Tensor, fail: bool = False) -> object:
            self.calls += 1
            if fail:
                raise LookupError("as it was raised")
            return {"rows": len(x), "weights": len(list(self.parameters()))}

    module = Direct(2, 2)
    net = nn.DataParallel(module, [0], output_device=1)
    assert net(torch.zeros(4, 2)) == {"rows": 4, "weights": 2}
    with pytest.raises(LookupError) as caught:
        net(torch.zeros(4, 2), fail=True)
    assert str(caught.value) == "as it was raised"
    assert module.calls == 2


@pytest.mark.parametrize("rows", [1, 2, 3])
@pretend(4)
def test_replicas_used(rows: int) -> None:
    # docs/semantics.md row 32
    with pytest.warns(UserWarning, match=r"all input tensors were scalars"):
        y = nn.DataParallel(Call(lambda x: x.sum()))(torch.ones(rows, 2))
    assert y.shape == (rows,)


@pretend(2)
def test_one_chunk_keeps_the_replica_path() -> None:
    # docs/semantics.md row 32
    def fail(x: Tensor) -> None:
        raise LookupError("wrapped")

    with pytest.raises(LookupError, match=r"^Caught LookupError in replica 0 on device 0\."):
        nn.DataParallel(Call(fail))(torch.ones(1))
    with pytest.raises(TypeError, match=r"^'int' object is not iterable$"):
        nn.DataParallel(Call(lambda x: 1))(torch.ones(1))


# Planted faults: a broken primitive must not pass the tests above.

Fails = (AssertionError, pytest.fail.Exception)


def _array_split(self: Copies, tensor: Tensor, devices: list[int], *rest: object) -> list[Tensor]:
    return list(torch.tensor_split(tensor, len(devices)))


def _always_copies(
    self: Copies, tensor: Tensor, devices: list[int], sizes: object, dim: int, streams: object
) -> list[Tensor]:
    return [chunk.clone() for chunk in torch.chunk(tensor, len(devices), dim)]


def _never_copies(
    self: Copies, tensor: Tensor, devices: list[int], sizes: object, dim: int, streams: object
) -> list[Tensor]:
    return list(torch.chunk(tensor, len(devices), dim))


@pytest.mark.parametrize(
    ("fault", "law", "arguments"),
    [
        (_array_split, test_chunk_sizes, (9, 4, [3, 3, 3])),
        (_array_split, test_chunk_sizes, (1, 2, [1])),
        (_always_copies, test_first_chunk_is_a_view, ()),
        (_always_copies, test_in_place_on_a_chunk, ()),
        (_never_copies, test_first_chunk_is_a_view, ()),
        (_never_copies, test_in_place_on_a_chunk, ()),
    ],
)
def test_planted_scatter(monkeypatch: pytest.MonkeyPatch, fault: Any, law: Any, arguments: tuple) -> None:
    law(*arguments)
    monkeypatch.setattr(Copies, "scatter", fault)
    with pytest.raises(Fails):
        law(*arguments)


def test_mean_loss_of_an_empty_batch() -> None:
    # docs/semantics.md row D28
    linear = nn.Linear(2, 5)
    y = linear(torch.zeros(0, 2))
    assert y.sum() == 0
    loss = y.square().mean()
    loss.backward()
    assert torch.isnan(loss)
    assert torch.equal(linear.weight.grad, torch.zeros(5, 2))
