"""The rules of docs/semantics.md section 1.6 (gradients, state, training), on the reference."""

import copy
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.nn.parallel import comm, data_parallel, gather, scatter

from torch_ref import _pretend, pretend


def batch(rows: int, *shape: int) -> Tensor:
    return torch.randn(rows, *shape, dtype=torch.float64)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def folded(model: nn.Module, x: Tensor, n: int) -> list[Tensor]:
    """The gradients of the chunks of x, one chunk at a time, summed from left to right."""
    parameters = list(model.parameters())
    first, *others = (grad(model(chunk).square().sum(), parameters) for chunk in torch.chunk(x, n))
    sums = list(first)
    for gradients in others:
        sums = [total + gradient for total, gradient in zip(sums, gradients, strict=True)]
    return sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_left_fold(n: int, dtype: torch.dtype) -> None:
    # docs/semantics.md row 67: bit for bit
    model, x = mlp().to(dtype), batch(33, 3).to(dtype)
    with pretend(n):
        nn.DataParallel(model)(x).square().sum().backward()
    for parameter, expected in zip(model.parameters(), folded(model, x, n), strict=True):
        assert parameter.grad.dtype is dtype
        assert torch.equal(parameter.grad, expected)


@pretend(3)
def test_reduce_add() -> None:
    # docs/semantics.md row 67: in the dtype given, (1 + 2^-8) + 2^-8 stays 1 in bfloat16
    small = torch.full((2,), 2.0**-8, dtype=torch.bfloat16)
    one = torch.ones(2, dtype=torch.bfloat16)
    total = comm.reduce_add([one, small, small], 0)
    assert total.dtype is torch.bfloat16
    assert torch.equal(total, one)
    assert torch.equal(comm.reduce_add([small, small, one], 0), one + 2 * small)
    assert torch.equal(one, torch.ones_like(one))  # the inputs are left alone
    assert comm.reduce_add([one], 0) is one
    with pytest.raises(ValueError, match=r"^input 1 has invalid size: got 2x3, but expected 2x4$"):
        comm.reduce_add([torch.zeros(2, 4), torch.zeros(2, 3)], 0)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_parity_with_one_device(n: int) -> None:
    # docs/semantics.md row 68
    alone = mlp()
    model = copy.deepcopy(alone)
    x, target = batch(9, 3), batch(9, 2)
    with pretend(n):
        for net in (alone, nn.DataParallel(model)):
            optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
            for _ in range(5):
                optimizer.zero_grad()
                (net(x) - target).square().mean().backward()
                optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(alone.parameters()), rtol=1e-13, atol=1e-14)


class MeanSquare(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean()


@pytest.mark.parametrize(("n", "exact"), [(4, True), (2, False)])
@pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0:UserWarning")
def test_mean_of_means(n: int, exact: bool) -> None:
    # docs/semantics.md row 68: 9 rows are 3, 3, 3 on four devices and 5, 4 on two
    model, x = MeanSquare(3, 2).double(), batch(9, 3)
    with pretend(n):
        loss = nn.DataParallel(model)(x).mean()
    assert torch.isclose(loss, model(x), rtol=1e-12) == exact
    means = torch.stack([model(chunk) for chunk in torch.chunk(x, n)])
    torch.testing.assert_close(loss, means.mean())


class PartlyUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.used(x))


@pretend(2)
def test_unused_parameters() -> None:
    # docs/semantics.md rows 69, 70
    for device_ids, expected in (([0, 1], torch.zeros(2, 2)), ([0], None)):
        model = PartlyUsed()
        nn.DataParallel(model, device_ids)(torch.randn(4, 2)).sum().backward()
        assert model.frozen.weight.grad is None
        assert model.used.weight.grad.any()
        if expected is None:
            assert model.unused.weight.grad is None
        else:
            assert torch.equal(model.unused.weight.grad, expected)
        before = model.unused.weight.detach().clone()
        torch.optim.AdamW(model.parameters(), weight_decay=0.1).step()
        assert torch.equal(model.unused.weight, before) == (expected is None)


@pytest.mark.parametrize("device_ids", [(0, 1), (1, 0), (0,)])
@pretend(2)
def test_several_inputs(device_ids: tuple[int, ...]) -> None:
    # docs/semantics.md row 70: T-DP test_data_parallel_multiple_input
    class Several(nn.Module):
        def forward(self, x: Tensor, y: Tensor, scale: float, z: Tensor | None = None) -> Tensor:
            return x * x + y * scale if z is None else x * x + y * scale + z * z

    x, y, z = (batch(5, 2).requires_grad_() for _ in range(3))
    model = Several()
    for kwargs in ({}, {"z": z}):
        inputs = [x, y, *kwargs.values()]
        expected = model(x, y, 2.0, **kwargs)
        alone = grad(expected.sum(), inputs)
        for y_parallel in (
            nn.DataParallel(model, device_ids)(x, y, 2.0, **kwargs),
            data_parallel(model, (x, y, 2.0), device_ids, module_kwargs=kwargs),
        ):
            assert torch.equal(y_parallel, expected)
            torch.testing.assert_close(grad(y_parallel.sum(), inputs), alone)


@pretend(2)
def test_gradient_penalty() -> None:
    # docs/semantics.md row 71: T-DP test_data_parallel_function_deletion
    model = nn.Linear(4, 1)
    x = torch.ones(2, 4, requires_grad=True)
    y = nn.DataParallel(model)(x)
    (slope,) = grad(y, x, torch.ones_like(y), create_graph=True)
    slope.mean().backward()
    assert model.weight.grad.tolist() == [[0.25] * 4]
    assert model.bias.grad.tolist() == [0.0]


@pretend(2)
def test_twice_differentiable() -> None:
    # docs/semantics.md row 71: T-DP test_scatter_gpu, test_gather_gpu
    x, y = batch(3, 2).requires_grad_(), batch(2, 2).requires_grad_()
    bilinear = nn.Bilinear(2, 2, 1).double()
    for function, inputs in (
        (lambda x: scatter(x, [0, 1]), (x,)),
        (lambda x, y: gather([x, y], 0), (x, y)),
        (lambda y, weight: nn.DataParallel(bilinear)(y, y.tanh()), (y, bilinear.weight)),
    ):
        assert gradcheck(function, inputs)
        assert gradgradcheck(function, inputs)


@pretend(2)
def test_partial_backward_of_scatter() -> None:
    # docs/semantics.md row 71: T-DP test_scatter_gpu
    x = torch.ones(4, 2, requires_grad=True)
    scatter(x, [0, 1])[0].sum().backward()
    assert x.grad.sum(1).tolist() == [2, 2, 0, 0]


@pretend(2)
def test_accumulation() -> None:
    # docs/semantics.md row 72
    model, x = nn.Linear(2, 2), torch.randn(4, 2)
    net = nn.DataParallel(model)
    net(x).sum().backward()
    once = model.weight.grad.clone()
    net(x).sum().backward()
    assert torch.equal(model.weight.grad, 2 * once)
    net.zero_grad()
    assert model.weight.grad is None


@pretend(3)
def test_sparse_gradients() -> None:
    # docs/semantics.md row 73
    model = nn.Embedding(5, 2, sparse=True)
    indices = torch.tensor([[0, 1], [1, 1], [4, 0], [2, 2], [1, 4]])
    nn.DataParallel(model)(indices).sum().backward()
    (alone,) = grad(model(indices).sum(), [model.weight])
    assert model.weight.grad.is_sparse
    assert torch.equal(model.weight.grad.coalesce().to_dense(), alone.to_dense())


@pretend(2)
def test_gradient_strides() -> None:
    # docs/semantics.md row 74
    model = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    nn.DataParallel(model)(torch.randn(4, 2, 3, 3)).sum().backward()
    assert model.weight.grad.stride() == model.weight.stride()


@pytest.mark.parametrize("enabled", [True, False])
@pretend(2)
def test_batch_norm_in_training(enabled: bool) -> None:
    # docs/semantics.md row 75
    model, alone = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    net = nn.DataParallel(model)
    x = batch(5, 3)
    with torch.set_grad_enabled(enabled):
        y = net(x)
    first = alone(x[:3])
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(model, name), getattr(alone, name))
    second = alone(x[3:])
    assert torch.equal(y, torch.cat([first, second]))

    net.eval()
    before = copy.deepcopy(model.state_dict())
    torch.testing.assert_close(net(x), model(x))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pretend(2)
def test_batch_norm_with_one_row() -> None:
    # docs/semantics.md row 75
    with pytest.raises(ValueError, match=r"^Caught ValueError in replica 1 on device 1\.") as caught:
        nn.DataParallel(nn.BatchNorm1d(3))(torch.randn(3, 3))
    assert ("Expected more than 1 value per channel when training, got input size torch.Size([1, 3])") in str(
        caught.value
    )


@pytest.mark.parametrize(
    "normalised",
    [
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.weight_norm,
    ],
)
@pretend(2)
def test_normalised_weights(normalised: Callable[[nn.Module], nn.Module]) -> None:
    # docs/semantics.md row 76
    model = normalised(nn.Linear(3, 2).double())
    alone = copy.deepcopy(model)
    x = batch(4, 3)
    for _ in range(2):
        y, expected = nn.DataParallel(model)(x), alone(x)
        torch.testing.assert_close(y, expected)
    torch.testing.assert_close(dict(model.named_buffers()), dict(alone.named_buffers()))
    y.square().sum().backward()
    gradients = grad(expected.square().sum(), list(alone.parameters()))
    torch.testing.assert_close([p.grad for p in model.parameters()], list(gradients))


@pretend(2)
def test_checkpoint() -> None:
    # docs/semantics.md row 78
    model = nn.Linear(2, 2)
    net = nn.DataParallel(model)
    assert list(nn.DataParallel(net).state_dict()) == [
        "module.module.weight",
        "module.module.bias",
    ]
    state = net.state_dict()
    assert list(state) == ["module.weight", "module.bias"]
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    assert list(state) == ["weight", "bias"]
    assert "module" not in state._metadata
    nn.Linear(2, 2).load_state_dict(state)


@pretend(2)
def test_other_methods_are_not_parallel() -> None:
    # docs/semantics.md row 79
    class Model(nn.Linear):
        def rows(self, x: Tensor) -> int:
            return len(x)

    assert nn.DataParallel(Model(2, 2)).module.rows(torch.zeros(4, 2)) == 4


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 4])
@pretend(2)
def test_no_reference_cycles(rows: int) -> None:
    # docs/semantics.md row 80
    net = nn.DataParallel(nn.Linear(2, 2))
    x = torch.randn(rows, 2)
    net(x)
    gc.collect()
    net(x)
    assert gc.collect() == 0


# Planted faults: a broken sum must not pass the tests above.


def _mean(inputs: Sequence[Tensor], destination: int | None = None) -> Tensor:
    return sum(inputs[1:], inputs[0]) / len(inputs)


def _right_fold(inputs: Sequence[Tensor], destination: int | None = None) -> Tensor:
    return sum(inputs[-2::-1], inputs[-1])


def _in_float32(inputs: Sequence[Tensor], destination: int | None = None) -> Tensor:
    return sum(t.float() for t in inputs).to(inputs[0].dtype)


def _first_only(inputs: Sequence[Tensor], destination: int | None = None) -> Tensor:
    return inputs[0]


@pytest.mark.parametrize(
    ("fault", "law", "arguments"),
    [
        (_mean, test_left_fold, (2, torch.float32)),
        (_mean, test_parity_with_one_device, (2,)),
        (_right_fold, test_left_fold, (3, torch.float32)),
        (_right_fold, test_left_fold, (3, torch.bfloat16)),
        (_in_float32, test_left_fold, (3, torch.bfloat16)),
        (_in_float32, test_reduce_add, ()),
        (_first_only, test_left_fold, (2, torch.float32)),
        (_first_only, test_gradient_penalty, ()),
    ],
)
def test_planted_reduce(monkeypatch: pytest.MonkeyPatch, fault: Any, law: Any, arguments: tuple) -> None:
    torch.manual_seed(0)
    law(*arguments)
    monkeypatch.setattr(_pretend, "reduce_add", fault)
    torch.manual_seed(0)
    with pytest.raises(AssertionError):
        law(*arguments)
