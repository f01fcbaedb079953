"""The rules of docs/semantics.md section 1.4 (parallel_apply), on the reference."""

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import gather, parallel_apply, replicate, scatter

from torch_ref import pretend


class Call(nn.Module):
    """A module without parameters around a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@pretend(2)
def test_arguments() -> None:
    # docs/semantics.md row 50
    x = torch.zeros(2)
    echo = Call(lambda *args, **kwargs: (args, kwargs))
    assert parallel_apply([echo, echo], [(x, 1), x]) == [((x, 1), {}), ((x,), {})]
    assert parallel_apply([echo, echo], [[x, 1], {"k": 1}]) == [((x, 1), {}), (({"k": 1},), {})]
    assert parallel_apply([echo, echo], [(), ()], [{"a": 1}, {}]) == [((), {"a": 1}), ((), {})]


@pretend(4)
def test_replica_order() -> None:
    # docs/semantics.md row 50
    def late(i: int) -> int:
        time.sleep(0.02 * (4 - i))
        return i

    assert parallel_apply([Call(late)] * 4, [0, 1, 2, 3]) == [0, 1, 2, 3]


@pretend(2)
def test_the_four_verbs() -> None:
    # docs/semantics.md row 50: T-DP test_parallel_apply
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    for inputs in (((x,), (y,)), (x, y)):
        outputs = parallel_apply((first, second), inputs, None, (0, 1))
        torch.testing.assert_close(outputs, [first(x), second(y)])
    z = torch.randn(5, 3)
    chunks = scatter(z, [0, 1])
    outputs = parallel_apply(replicate(first, [0, 1]), chunks)
    torch.testing.assert_close(gather(outputs, 0), first(z))


@pytest.mark.parametrize(
    ("arguments", "name", "length"),
    [
        (([1],), "inputs", 1),
        (([1, 2], [{}]), "kwargs_tup", 1),
        (([1, 2], None, [0, 1, 1]), "devices", 3),
    ],
)
@pretend(2)
def test_length_errors(arguments: tuple, name: str, length: int) -> None:
    # docs/semantics.md row 51
    with pytest.raises(AssertionError) as caught:
        parallel_apply([nn.ReLU(), nn.ReLU()], *arguments)
    assert str(caught.value) == (f"The number of modules 2 is not equal to the number of {name} {length}")


def _device_index() -> int:
    return torch._utils._get_current_device_index()


@pretend(3)
def test_current_device() -> None:
    # docs/semantics.md rows 52, 54
    current = Call(lambda _: _device_index())
    assert parallel_apply([current] * 3, [0] * 3) == [0, 0, 0]
    assert parallel_apply([current] * 3, [0] * 3, None, [2, 0, 1]) == [2, 0, 1]
    assert parallel_apply([current], [0], None, [2]) == [2]
    assert _device_index() == 0
    inner = Call(lambda _: parallel_apply([current] * 2, [0] * 2))
    assert parallel_apply([inner, inner], [0, 0], None, [1, 2]) == [[1, 1], [2, 2]]


@pretend(3)
def test_threads() -> None:
    # docs/semantics.md row 53
    together = threading.Barrier(3)

    def worker(_: object) -> threading.Thread:
        together.wait(timeout=10)
        return threading.current_thread()

    threads = parallel_apply([Call(worker)] * 3, [0] * 3)
    assert len({*threads, threading.current_thread()}) == 4
    (alone,) = parallel_apply([Call(lambda _: threading.current_thread())], [0])
    assert alone is threading.current_thread()


@pytest.mark.parametrize("enabled", [True, False])
@pretend(2)
def test_grad_mode_reaches_the_workers(enabled: bool) -> None:
    # docs/semantics.md row 54
    net = nn.DataParallel(Call(lambda x: torch.full_like(x, torch.is_grad_enabled())))
    with torch.set_grad_enabled(enabled):
        assert net(torch.zeros(2)).tolist() == [enabled] * 2


@pytest.mark.parametrize(("n", "dtype"), [(2, torch.bfloat16), (1, torch.float16)])
def test_autocast_loses_its_dtype_in_threads(n: int, dtype: torch.dtype) -> None:
    # docs/semantics.md row 54: the flag arrives, the dtype is the default one of the device type
    # (bfloat16 here, float16 on CUDA)
    with pretend(2) as devices:
        net = nn.DataParallel(nn.Linear(2, 2))
        with torch.autocast(devices.device.type, dtype=torch.float16):
            assert net(torch.zeros(n, 2)).dtype is dtype
        assert net(torch.zeros(n, 2)).dtype is torch.float32


@pretend(2)
def test_autocast_inside_forward() -> None:
    # docs/semantics.md row 54: T-DP test_autocast
    class Half(nn.Linear):
        @torch.autocast("cpu", dtype=torch.float16)
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    assert nn.DataParallel(Half(2, 2))(torch.zeros(4, 2)).dtype is torch.float16


@pretend(2)
def test_thread_local_state_is_lost() -> None:
    # docs/semantics.md row 54
    variable = contextvars.ContextVar("variable", default="lost")

    def state(_: object) -> tuple[bool, bool, str, str]:
        return (
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.zeros(1).device.type,
            variable.get(),
        )

    variable.set("kept")
    with torch.inference_mode(), torch.device("meta"):
        assert parallel_apply([Call(state)], [0]) == [(True, False, "meta", "kept")]
        assert parallel_apply([Call(state)] * 2, [0, 0]) == [(False, False, "cpu", "lost")] * 2


@pretend(2)
def test_saved_tensor_hooks_are_lost() -> None:
    # docs/semantics.md row 54
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    x = torch.ones(1, requires_grad=True)
    square = Call(lambda _: x * x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        parallel_apply([square] * 2, [0, 0])
        assert packed == []
        parallel_apply([square], [0])
        assert len(packed) == 2


class Fields(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@pytest.mark.parametrize(
    ("raised", "caught_as"),
    [
        (KeyError("wonderful"), KeyError),
        (ValueError("wonderful"), ValueError),
        (Fields("wonderful", 1), RuntimeError),
        (StopIteration("wonderful"), StopIteration),
    ],
)
@pretend(2)
def test_exceptions_name_the_replica(raised: Exception, caught_as: type[Exception]) -> None:
    # docs/semantics.md row 55
    def fail(_: object) -> None:
        raise raised

    with pytest.raises(caught_as) as caught:
        parallel_apply([Call(lambda _: 1), Call(fail)], [0, 0], None, [0, 1])
    assert type(caught.value) is caught_as
    text = str(caught.value)
    assert text.startswith(
        f"Caught {type(raised).__name__} in replica 1 on device 1.\n"
        "Original Traceback (most recent call last):\n"
    )
    assert "wonderful" in text


@pretend(2)
def test_exception_with_a_message_attribute() -> None:
    # docs/semantics.md row 55: it is raised as Type(message=text)
    class Keyword(Exception):
        message = "set"

        def __init__(self, *, message: str = "") -> None:
            super().__init__(f"by keyword: {message[:6]}")

    def fail(_: object) -> None:
        raise Keyword

    with pytest.raises(Keyword, match=r"^by keyword: Caught$"):
        parallel_apply([Call(fail)] * 2, [0, 0])


@pretend(3)
def test_first_failing_replica_wins() -> None:
    # docs/semantics.md row 55
    finished: list[int] = []

    def run(i: int) -> None:
        time.sleep(0.02 * (3 - i))
        finished.append(i)
        if i:
            raise ValueError

    with pytest.raises(ValueError, match=r"^Caught ValueError in replica 1 on device 0\."):
        parallel_apply([Call(run)] * 3, [0, 1, 2])
    assert sorted(finished) == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pretend(2)
def test_base_exceptions_are_lost() -> None:
    # docs/semantics.md row 55
    def fail(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyError) as caught:
        parallel_apply([Call(fail)] * 2, [0, 0])
    assert caught.value.args == (0,)


@pretend(2)
def test_hooks_run_once_per_replica() -> None:
    # docs/semantics.md row 56
    linear = nn.Linear(2, 2)
    net = nn.DataParallel(nn.Sequential(linear))
    calls: list[str] = []
    modules: list[nn.Module] = []
    linear.register_forward_pre_hook(lambda m, args: modules.append(m))
    linear.register_forward_pre_hook(lambda m, args: calls.append("pre"))
    linear.register_forward_hook(lambda m, args, out: calls.append("forward"))
    linear.register_full_backward_hook(lambda m, grads, out: calls.append("backward"))
    net.register_forward_hook(lambda m, args, out: calls.append(f"whole {len(args[0])}"))
    linear.weight.register_hook(lambda grad: calls.append(f"weight {grad.sum():g}"))
    net(torch.ones(4, 2, requires_grad=True)).sum().backward()
    assert sorted(calls) == ["backward"] * 2 + ["forward"] * 2 + ["pre"] * 2 + [
        "weight 16",
        "whole 4",
    ]
    assert len({*modules, linear}) == 3
