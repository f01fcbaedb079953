"""The rules of docs/semantics.md section 1.3 (replicate), on the reference."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import data_parallel, replicate

from torch_ref import pretend
from torch_ref._copies import Copies


class Running(nn.Module):
    """Runs `function(self, *inputs)` beside a weight and a buffer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pretend(2)
def test_every_forward_replicates() -> None:
    # docs/semantics.md row 34
    linear = nn.Linear(2, 2)
    net = nn.DataParallel(linear)
    x = torch.randn(4, 2)
    for _ in range(2):
        assert torch.equal(net(x), torch.cat([linear(x[:2]), linear(x[2:])]))
        with torch.no_grad():
            linear.weight.add_(1)


@pretend(2)
def test_only_the_class_detaches() -> None:
    # docs/semantics.md row 34
    listed: list[int] = []

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        listed.append(len(list(self.parameters())))
        return x

    net = nn.DataParallel(Running(forward))
    with torch.no_grad():
        net(torch.zeros(2))
        assert sorted(listed) == [0, 1]
        listed.clear()
        data_parallel(net.module, torch.zeros(2))
        assert listed == [0, 0]


@pretend(3)
def test_first_replica_shares_storage() -> None:
    # docs/semantics.md row 35
    linear = nn.Linear(2, 2)
    first, *others = replicate(linear, [0, 1, 2])
    assert type(first.weight) is Tensor
    assert not first.weight.is_leaf
    assert storage(first.weight) == storage(linear.weight)
    assert all(storage(other.weight) != storage(linear.weight) for other in others)

    detached = replicate(linear, [0, 1, 2], detach=True)
    assert detached[0].weight is linear.weight
    assert [len(list(r.parameters())) for r in detached] == [2, 0, 0]
    assert not detached[1].weight.requires_grad


@pretend(2)
def test_replicas_list_no_parameters() -> None:
    # docs/semantics.md row 36
    linear = nn.Linear(2, 2)
    for replica in replicate(linear, [0, 1]):
        assert list(replica.parameters()) == []
        assert list(replica.state_dict()) == []
        assert list(replica._former_parameters) == ["weight", "bias"]
        assert replica._former_parameters["weight"] is replica.weight
        assert torch.equal(replica.weight, linear.weight)
    net = nn.DataParallel(Running(lambda self, x: x * next(self.parameters())))
    with pytest.raises(StopIteration, match=r"^Caught StopIteration in replica 0 on device 0\."):
        net(torch.ones(4, 2))


@pretend(2)
def test_attributes_are_copied_shallowly() -> None:
    # docs/semantics.md row 37
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0
            self.notes: list[bool] = []
            self.constant = torch.ones(1)
            self.hidden = [nn.Linear(1, 1)]
            self.listed = nn.ModuleList(self.hidden)
            self.bound = self.scale
            self.weights = nn.ParameterList([torch.ones(2)])
            self.named = nn.ParameterDict({"w": torch.ones(2)})

        def scale(self) -> "Model":
            return self

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.notes.append(self._is_replica)
            assert self.constant is model.constant
            assert self.hidden[0] is model.hidden[0]
            assert self.bound() is model
            assert self.listed[0] is not model.listed[0]
            for entry in (self.weights[0], self.named["w"]):
                assert entry.requires_grad
                assert entry.grad_fn is not None
            return x

    model = Model()
    nn.DataParallel(model)(torch.zeros(4))
    assert model.count == 0
    assert model.notes == [True, True]


@pretend(2)
def test_tied_weights_stay_tied() -> None:
    # docs/semantics.md row 38
    inner = nn.Linear(2, 2, bias=False)
    model = nn.Sequential(inner, inner, nn.Linear(2, 2, bias=False))
    model[2].weight = inner.weight
    for replica in replicate(model, [0, 1]):
        assert replica[0] is replica[1]
        assert replica[0].weight is replica[2].weight
    net = nn.DataParallel(model)
    assert list(net.state_dict()) == [f"module.{i}.weight" for i in range(3)]
    x = torch.randn(4, 2, dtype=torch.float64)
    net.double()
    (alone,) = torch.autograd.grad(model(x).sum(), [inner.weight])
    net(x).sum().backward()
    torch.testing.assert_close(inner.weight.grad, alone)


@pretend(2)
def test_buffers_of_the_first_replica_persist() -> None:
    # docs/semantics.md row 39
    def forward(self: Any, x: Tensor) -> Tensor:
        self.seen.add_(x.sum())
        self.rebound = self.rebound + 1
        self.register_buffer("late", torch.zeros(1))
        assert self.alias is self.seen
        return x

    model = Running(forward)
    model.register_buffer("rebound", torch.zeros(1), persistent=False)
    model.register_buffer("flags", torch.tensor([True, False]))
    model.register_buffer("alias", model.seen)
    first, second = replicate(model, [0, 1])
    assert first.seen is model.seen
    assert first.rebound is model.rebound
    assert storage(second.rebound) != storage(model.rebound)
    assert second.flags.dtype is torch.bool
    assert second.alias is second.seen
    net = nn.DataParallel(model)
    net(torch.tensor([1.0, 2.0]))
    net(torch.tensor([4.0, 8.0]))
    assert model.seen.item() == 5
    assert model.rebound.item() == 0
    assert "late" not in dict(model.named_buffers())


@pytest.mark.parametrize("grad", [True, False])
@pretend(2)
def test_buffers_that_require_grad(grad: bool) -> None:
    # docs/semantics.md row 40
    model = Running(lambda self, x: x * self.seen)
    model.seen.requires_grad_()
    net = nn.DataParallel(model)
    with torch.set_grad_enabled(grad):
        y = net(torch.arange(4.0))
    assert y.requires_grad is grad
    if grad:
        y.sum().backward()
        assert model.seen.grad.tolist() == [6]


@pretend(2)
def test_parameter_attributes_are_lost() -> None:
    # docs/semantics.md row 41
    linear = nn.Linear(2, 2)
    linear.weight.note = "kept by the original"
    assert not any(hasattr(r.weight, "note") for r in replicate(linear, [0, 1]))


@pretend(2)
def test_rnn() -> None:
    # docs/semantics.md row 42
    class Flattening(nn.LSTM):
        def forward(self, x: Tensor) -> Any:
            self.flatten_parameters()
            named = zip(self._flat_weights_names, self._flat_weights, strict=True)
            assert all(weight is getattr(self, name) for name, weight in named)
            return super().forward(x)[0]

    model = Flattening(3, 4, batch_first=True, bidirectional=True).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    net = nn.DataParallel(model)
    net(x).sum().backward()
    grads = [parameter.grad for parameter in model.parameters()]
    alone = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    torch.testing.assert_close(net(x), model(x))
    torch.testing.assert_close(grads, list(alone))


@pretend(2)
def test_lazy_modules() -> None:
    # docs/semantics.md row 43
    with pytest.raises(ValueError, match=r"^Attempted to use an uninitialized parameter"):
        nn.DataParallel(nn.LazyLinear(2))(torch.zeros(4, 3))
    lazy = nn.LazyLinear(2)
    assert nn.DataParallel(lazy, [0])(torch.zeros(4, 3)).shape == (4, 2)
    assert lazy.weight.shape == (2, 3)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pretend(2)
def test_script_modules() -> None:
    # docs/semantics.md row 44
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    x = torch.randn(4, 2)
    torch.testing.assert_close(nn.DataParallel(nn.Sequential(scripted))(x), scripted(x))
    # A python module below a script module: scripting does not make one, so it is put there.
    outer = torch.jit.ScriptModule()
    outer.__dict__["_modules"] = {"inner": nn.Linear(2, 2)}
    with pytest.raises(RuntimeError) as caught:
        replicate(outer, [0, 1])
    assert str(caught.value) == ("Cannot replicate network where python modules are children of ScriptModule")


def test_replicate_on_the_cpu() -> None:
    # docs/semantics.md row 45
    with pytest.raises(AssertionError, match=r"^Broadcast function not implemented for CPU tensors"):
        replicate(nn.Linear(2, 2), [0, 1])
    assert len(replicate(nn.ReLU(), [0, 1])) == 2
    assert replicate(nn.Linear(2, 2), []) == []


@pytest.mark.parametrize("detach", [True, False])
@pretend(2)
def test_replicas_can_be_saved(detach: bool) -> None:
    # docs/semantics.md row 46
    linear = nn.Linear(2, 2)
    file = io.BytesIO()
    torch.save(replicate(linear, [0, 1], detach=detach), file)
    file.seek(0)
    for replica in torch.load(file, weights_only=False):
        assert torch.equal(replica.weight, linear.weight)


@pretend(2)
def test_zero_grad_in_forward() -> None:
    # docs/semantics.md row 48
    net = nn.DataParallel(Running(lambda self, x: self.zero_grad() or x))
    with pytest.warns(UserWarning, match=r"^Calling .zero_grad") as caught:
        net(torch.zeros(2))
    assert len(caught) == 2
    assert str(caught[0].message).startswith(
        "Calling .zero_grad() from a module created with nn.DataParallel() has no effect."
    )


@pytest.mark.parametrize("grad", [True, False])
@pretend(2)
def test_complex_parameters(grad: bool) -> None:
    # docs/semantics.md row 49
    linear = nn.Linear(2, 3, dtype=torch.complex128)
    net = nn.DataParallel(linear)
    x = torch.randn(5, 2, dtype=torch.complex128)
    with torch.set_grad_enabled(grad):
        y = net(x)
    torch.testing.assert_close(y, linear(x))
    if grad:
        y.abs().sum().backward()
        alone = torch.autograd.grad(linear(x).abs().sum(), [linear.weight])
        torch.testing.assert_close(linear.weight.grad, alone[0])


# Planted faults: a broken primitive must not pass the tests above.


def _all_copies(
    self: Copies, tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    return [[tensor.detach().clone() for tensor in tensors] for _ in devices]


def _all_original(
    self: Copies, tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    return [list(tensors) for _ in devices]


@pytest.mark.parametrize("fault", [_all_copies, _all_original])
@pytest.mark.parametrize(
    "law", [test_first_replica_shares_storage, test_buffers_of_the_first_replica_persist]
)
def test_planted_broadcast(monkeypatch: pytest.MonkeyPatch, fault: Any, law: Any) -> None:
    law()
    monkeypatch.setattr(Copies, "broadcast_coalesced", fault)
    with pytest.raises(AssertionError):
        law()
