"""The rules of docs/semantics.md section 1.1 (construction), on the reference."""

import copy
import inspect
import pickle
import warnings
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import functional_call

from torch_ref import pretend

data_parallel_module = import_module("torch.nn.parallel.data_parallel")


def test_signature() -> None:
    # docs/semantics.md row 1
    parameters = inspect.signature(nn.DataParallel).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "module": inspect.Parameter.empty,
        "device_ids": None,
        "output_device": None,
        "dim": 0,
    }
    assert list(inspect.signature(nn.parallel.data_parallel).parameters) == [
        "module",
        "inputs",
        "device_ids",
        "output_device",
        "dim",
        "module_kwargs",
    ]


def test_no_accelerator_passes_through() -> None:
    # docs/semantics.md row 2
    class Failing(nn.Linear):
        def forward(self, x: torch.Tensor, fail: bool = False) -> str:
            if fail:
                raise LookupError("as it was raised")
            return f"{len(x)} rows"

    net = nn.DataParallel(Failing(2, 2), device_ids=["nonsense", 99], output_device=-7)
    assert net.device_ids == []
    assert net(torch.zeros(5, 2)) == "5 rows"
    assert list(net.state_dict()) == ["module.weight", "module.bias"]
    for name in ("dim", "output_device", "src_device_obj"):
        with pytest.raises(AttributeError):
            getattr(net, name)
    with pytest.raises(LookupError) as caught:
        net(torch.zeros(5, 2), fail=True)
    assert str(caught.value) == "as it was raised"


def test_function_without_accelerator() -> None:
    # docs/semantics.md row 3
    with pytest.raises(RuntimeError, match=r"^device type could not be determined$"):
        nn.parallel.data_parallel(nn.Linear(2, 2), torch.zeros(4, 2))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_all_devices_by_default(n: int) -> None:
    # docs/semantics.md row 5
    with pretend(n):
        assert nn.DataParallel(nn.Linear(2, 2)).device_ids == list(range(n))


@pytest.mark.parametrize(
    ("device_ids", "expected"),
    [
        ([1, 0], [1, 0]),
        ((0, 2), [0, 2]),
        (range(1, 3), [1, 2]),
        (["cuda:2", torch.device("cuda:1"), 0], [2, 1, 0]),
        ([torch.device("cuda"), "cuda"], [0, 0]),  # the current device
    ],
)
@pretend(3)
def test_device_id_types(device_ids: list, expected: list[int]) -> None:
    # docs/semantics.md row 6
    assert nn.DataParallel(nn.Linear(2, 2), device_ids).device_ids == expected


@pytest.mark.parametrize(
    ("device_ids", "error", "text"),
    [
        ([torch.device("cpu")], ValueError, "Expected a non cpu device, but got: cpu"),
        (["cpu"], ValueError, "Expected a non cpu device, but got: cpu"),
        (1, TypeError, "'int' object is not subscriptable"),
        ([], IndexError, "list index out of range"),
    ],
)
@pretend(2)
def test_bad_device_ids(device_ids: object, error: type[Exception], text: str) -> None:
    # docs/semantics.md row 6
    with pytest.raises(error) as caught:
        nn.DataParallel(nn.Linear(2, 2), device_ids)
    assert str(caught.value) == text


@pytest.mark.parametrize("device_ids", [[0, 2], [2], [2, 0]])
@pretend(2)
def test_unknown_ordinal(device_ids: list[int]) -> None:
    # docs/semantics.md row 7
    with pytest.raises(AssertionError, match=r"^Invalid device id$"):
        nn.DataParallel(nn.Linear(2, 2), device_ids)
    with pytest.raises(RuntimeError, match=r"^CUDA error: invalid device ordinal"):
        nn.parallel.data_parallel(nn.Linear(2, 2), torch.zeros(4, 2), device_ids)


@pytest.mark.parametrize("device_ids", [[-1], [0, -1]])
@pretend(2)
def test_negative_ordinal(device_ids: list[int]) -> None:
    # docs/semantics.md row 7
    with pytest.raises(AssertionError, match=r"^Invalid device id$"):
        nn.DataParallel(nn.Linear(2, 2), device_ids)


@pretend(1)
def test_duplicate_devices() -> None:
    # docs/semantics.md row 8
    seen: list[int] = []
    linear = nn.Linear(2, 3)
    linear.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    x = torch.randn(5, 2)
    torch.testing.assert_close(nn.DataParallel(linear, [0, 0])(x), linear(x))
    assert sorted(seen) == [2, 3, 5]


@pytest.mark.parametrize("output_device", [None, 1, "cuda:2", torch.device("cuda", 2)])
@pretend(3)
def test_output_device(output_device: object) -> None:
    # docs/semantics.md row 9
    net = nn.DataParallel(nn.Linear(2, 2), [1, 0], output_device)
    assert net.output_device == (2 if "2" in str(output_device) else 1)
    assert net(torch.zeros(4, 2)).shape == (4, 2)


@pretend(2)
def test_output_on_the_cpu() -> None:
    # docs/semantics.md row 9
    net = nn.DataParallel(nn.Linear(2, 2), output_device=-1)
    for _ in range(2):
        with pytest.warns(FutureWarning, match=r"^Using -1 to represent CPU tensor is deprecated"):
            net(torch.zeros(4, 2))
    for device in ("cpu", torch.device("cpu")):
        with pytest.raises(ValueError, match=r"^Expected a non cpu device, but got: cpu$"):
            nn.DataParallel(nn.Linear(2, 2), output_device=device)


@pytest.mark.parametrize(("device_ids", "moved"), [([1], 1), ([0, 1], 0)])
@pretend(2)
def test_one_device_moves_the_module(device_ids: list[int], moved: int) -> None:
    # docs/semantics.md row 10
    class Moved(nn.Linear):
        times = 0

        def to(self, *args: object, **kwargs: object) -> "Moved":
            self.times += 1
            return super().to(*args, **kwargs)

    module = Moved(2, 2)
    weight = module.weight
    net = nn.DataParallel(module, device_ids)
    assert module.times == moved
    assert net.module is module
    assert module.weight is weight


@pytest.mark.parametrize(
    ("memory", "cores", "warned"),
    [
        ((74, 100), (1, 1), True),
        ((75, 100), (1, 1), False),  # strictly less than 75 %
        ((100, 100), (100, 74), True),
        ((74, 100), (100, 74), True),  # once, not twice
    ],
)
@pretend(2)
def test_imbalance(
    monkeypatch: pytest.MonkeyPatch,
    memory: tuple[int, int],
    cores: tuple[int, int],
    warned: bool,
) -> None:
    # docs/semantics.md row 11
    monkeypatch.setattr(
        data_parallel_module,
        "_get_devices_properties",
        lambda ids: [SimpleNamespace(total_memory=memory[i], multi_processor_count=cores[i]) for i in ids],
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = nn.DataParallel(nn.Linear(2, 2))
        net(torch.zeros(4, 2))
    assert len(caught) == warned
    if warned:
        low, high = (0, 1) if memory[0] < memory[1] else (1, 0)
        assert caught[0].category is UserWarning
        assert str(caught[0].message) == (
            f"\n    There is an imbalance between your GPUs. You may want to exclude GPU {low} "
            f"which\n    has less than 75% of the memory or cores of GPU {high}. You can do so by "
            "setting\n    the device_ids argument to DataParallel, or by setting the "
            "CUDA_VISIBLE_DEVICES\n    environment variable."
        )


@pretend(2)
def test_source_device_is_frozen() -> None:
    # docs/semantics.md row 12
    net = nn.DataParallel(nn.Linear(2, 2))
    net.to("meta")
    with pytest.raises(RuntimeError, match=r"but found one of them on device: meta$"):
        net(torch.zeros(4, 2))


@pretend(2)
def test_wrapper_identity() -> None:
    # docs/semantics.md row 13
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    net = nn.DataParallel(module)
    assert net.module is module
    assert all(a is b for a, b in zip(net.parameters(), module.parameters(), strict=True))
    assert list(net.state_dict()) == [f"module.{key}" for key in module.state_dict()]
    net.eval()
    assert not module.training
    assert not module[1].training
    net.train()
    assert module[1].training
    with pytest.raises(AttributeError, match=r"'DataParallel' object has no attribute 'x'"):
        _ = net.x
    x = torch.randn(4, 2)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(other(x), net(x), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=r"^The stateless API can't be used with nn.DataParallel"):
        functional_call(net, dict(net.named_parameters()), (x,))


@pretend(2)
def test_the_verbs_can_be_overridden() -> None:
    # docs/semantics.md row 13
    called: list[str] = []

    class Noted(nn.DataParallel):
        def scatter(self, *args: object) -> object:
            called.append("scatter")
            return super().scatter(*args)

        def replicate(self, *args: object) -> object:
            called.append("replicate")
            return super().replicate(*args)

        def parallel_apply(self, *args: object) -> object:
            called.append("parallel_apply")
            return super().parallel_apply(*args)

        def gather(self, *args: object) -> object:
            called.append("gather")
            return super().gather(*args)

    Noted(nn.Linear(2, 2))(torch.zeros(4, 2))
    assert called == ["scatter", "replicate", "parallel_apply", "gather"]
