"""The same model in PyTorch, run by PyTorch's own DataParallel on as many (pretend) devices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

import torch_ref

from .compare import Seen, Tensors
from .digits import Digits, MissingError
from .settings import LEARNING_RATE, MOMENTUM


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.linear = nn.Linear(16 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = images[:, None]
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.linear(nn.functional.avg_pool2d(x, 2).flatten(1))


class TorchSide:
    """The model, wrapped, with its optimizer."""

    def __init__(self, state: Tensors, devices: torch_ref.Devices):
        net = CNN().double()
        net.load_state_dict({name: torch.tensor(x) for name, x in state.items()})
        self.devices = devices
        kind = ("CUDA " if devices.real else "pretend CPU ") + "device" + "s" * (devices.count > 1)
        self.described = f"torch.nn.DataParallel (PyTorch {torch.__version__}) on {devices.count} {kind}"
        self.net = nn.DataParallel(net.to(devices.device), device_ids=list(range(devices.count)))
        self.optimizer = torch.optim.SGD(self.net.parameters(), LEARNING_RATE, MOMENTUM)

    def step(self, batch: Digits) -> tuple[Seen, float]:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        outputs = self.net(self._tensor(batch.images))
        loss = nn.functional.cross_entropy(outputs, self._tensor(batch.labels))
        loss.backward()
        self.optimizer.step()
        loss.item()  # waits for the device
        seconds = time.perf_counter() - start
        module: nn.Module = self.net.module
        weights, statistics = dict(module.named_parameters()), dict(module.named_buffers())
        gradients = {name: p.grad for name, p in weights.items() if p.grad is not None}
        logits = {"logits": outputs}
        seen = Seen(*map(_arrays, (logits, {"cross_entropy": loss}, gradients, statistics, weights)))
        return seen, seconds

    def predict(self, images: np.ndarray) -> np.ndarray:
        self.net.eval()
        with torch.no_grad():
            outputs = self.net(self._tensor(images))
        self.net.train()
        return outputs.cpu().numpy()

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(self.devices.device)


@contextmanager
def beside(state: Tensors, replicas: int) -> Iterator[TorchSide]:
    """PyTorch's side, from the weights and statistics given; inside it there are pretend devices."""
    threads = torch.get_num_threads()
    # Every replica is a thread already. With a pool for each of them steps can take seconds.
    torch.set_num_threads(1)
    try:
        with torch_ref.pretend(replicas) as devices:
            yield TorchSide(state, devices)
    except torch_ref.UnsupportedTorch as error:
        raise MissingError(f"demo: {error}") from error
    finally:
        torch.set_num_threads(threads)


def _arrays(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}
