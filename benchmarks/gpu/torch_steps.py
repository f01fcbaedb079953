"""The sides in torch: DataParallel, DistributedDataParallel, and the latter compiled.

As torch's documentation has them: channels last, autocast for bfloat16, fused optimizers, NCCL. The batch
lies on the first card, or on that of the process. Without CUDA, replicas and ranks are on the CPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import torch
import torch_models
from ask import Ask, Images
from side import Step
from torch import nn

CUDA = torch.cuda.is_available()


def data_parallel(ask: Ask) -> Step:
    """torch's own code; without GPUs its replicas are threads on the CPU, as torch_ref has them."""
    if CUDA:
        net = nn.DataParallel(model_of(ask).cuda(0), list(range(ask.devices)))
        return step_of(ask, net, torch.device("cuda", 0), ask.devices, contextlib.nullcontext)
    import torch_ref

    with torch_ref.pretend(ask.devices) as devices:
        net = nn.DataParallel(model_of(ask).to(devices.device), list(range(ask.devices)))
    return step_of(ask, net, torch.device("cpu"), ask.devices, lambda: torch_ref.pretend(ask.devices))


def distributed(ask: Ask) -> Step:
    device = joined()
    net = nn.parallel.DistributedDataParallel(model_of(ask).to(device), [device] if CUDA else None)
    return step_of(ask, net, device, 1, contextlib.nullcontext, torch.distributed.barrier)


def compiled(ask: Ask) -> Step:
    device = joined()
    net = nn.parallel.DistributedDataParallel(model_of(ask).to(device), [device] if CUDA else None)
    return step_of(ask, torch.compile(net), device, 1, contextlib.nullcontext, torch.distributed.barrier)


def joined() -> torch.device:
    """Meets the other ranks; the device of this one."""
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if CUDA:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl", device_id=device)
        return device
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    torch.distributed.init_process_group("gloo")
    return torch.device("cpu")


def model_of(ask: Ask) -> nn.Module:
    torch.manual_seed(0)
    tf32 = ask.precision != "float32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, True
    if isinstance(ask.shape, Images):
        return torch_models.resnet(ask.shape).to(memory_format=torch.channels_last)
    return torch_models.GPT(ask.shape)


def step_of(
    ask: Ask,
    net: nn.Module,
    device: torch.device,
    N: int,
    around: Callable,
    together: Callable[[], None] = lambda: None,
) -> Step:
    x, t = batch_of(ask, N, device)
    optimizer = optimizer_of(ask, net)
    loss_of = torch_models.classified if isinstance(ask.shape, Images) else torch_models.next_word
    half = ask.precision == "bfloat16"

    def once():
        with around():
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = loss_of(net(x), t)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach()

    return Step(once, float, fullest, together)


def optimizer_of(ask: Ask, net: nn.Module) -> torch.optim.Optimizer:
    if isinstance(ask.shape, Images):
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.875, fused=CUDA)
    return torch.optim.AdamW(net.parameters(), lr=6e-4, weight_decay=1e-4, fused=CUDA)


def fullest() -> int | None:
    """Bytes at most so far on the fullest card of this process."""
    cards = range(torch.cuda.device_count()) if CUDA else ()
    return max(map(torch.cuda.max_memory_allocated, cards), default=None)


def batch_of(ask: Ask, N: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    shape, rows = ask.shape, N * ask.rows
    if isinstance(shape, Images):
        x = torch.rand(rows, 3, shape.size, shape.size, device=device)
        return x.to(memory_format=torch.channels_last), torch.randint(1000, (rows,), device=device)
    tokens = torch.randint(shape.words, (rows, shape.length + 1), device=device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
