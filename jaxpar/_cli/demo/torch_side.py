"""The same model in PyTorch, run by PyTorch's own DataParallel on as many (pretend) devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

import torch_ref

from ...errors import JaxparError
from ...parity.measuring import Kind
from .flax_side import Seen, Tensors
from .settings import LEARNING_RATE, MOMENTUM


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.linear = nn.Linear(16 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(images[:, None])))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.linear(nn.functional.avg_pool2d(x, 2).flatten(1))


class TorchSide:
    def __init__(self, state_dict: Tensors, devices: torch_ref.Devices):
        net = CNN().double()
        net.load_state_dict({name: torch.tensor(x) for name, x in state_dict.items()})
        kind = ("CUDA " if devices.real else "pretend CPU ") + "device" + "s" * (devices.count > 1)
        self.described = f"torch.nn.DataParallel (PyTorch {torch.__version__}) on {devices.count} {kind}"
        self.device = devices.device
        self.net = nn.DataParallel(net.to(self.device), device_ids=list(range(devices.count)))
        self.optimizer = torch.optim.SGD(self.net.parameters(), LEARNING_RATE, MOMENTUM)

    def step(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.optimizer.zero_grad()
        self.logits = self.net(torch.from_numpy(images).to(self.device))
        self.loss = nn.functional.cross_entropy(self.logits, torch.from_numpy(labels).to(self.device))
        self.loss.backward()
        self.optimizer.step()
        self.loss.item()  # waits for the device

    def seen(self) -> Seen:
        weights = dict(self.net.module.named_parameters())
        return {
            Kind.OUTPUT: _arrays({"logits": self.logits}),
            Kind.LOSS: _arrays({"cross_entropy": self.loss}),
            Kind.GRADIENT: _arrays({name: p.grad for name, p in weights.items() if p.grad is not None}),
            Kind.STATE: _arrays(dict(self.net.module.named_buffers())),
            Kind.WEIGHT: _arrays(weights),
        }

    def predict(self, images: np.ndarray) -> np.ndarray:
        self.net.eval()
        with torch.no_grad():
            logits = self.net(torch.from_numpy(images).to(self.device))
        self.net.train()
        return logits.cpu().numpy()


@contextmanager
def beside(state_dict: Tensors, replicas: int) -> Iterator[TorchSide]:
    """PyTorch's side, from the weights and statistics given; inside it there are pretend devices."""
    threads = torch.get_num_threads()
    # Every replica is a thread already. With a pool for each of them steps can take seconds.
    torch.set_num_threads(1)
    try:
        with torch_ref.pretend(replicas) as devices:
            yield TorchSide(state_dict, devices)
    except torch_ref.UnsupportedTorch as error:
        raise JaxparError(f"demo: {error}") from error
    finally:
        torch.set_num_threads(threads)


def _arrays(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}
