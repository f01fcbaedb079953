"""Digits in torch: DistributedDataParallel over gloo, started by torchrun."""

import torch
import torch.distributed as dist
from digits import BATCH, EPOCHS, RATE, data, save, weights
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
images, labels = map(torch.from_numpy, data())
dataset = TensorDataset(images, labels.long())
sampler = DistributedSampler(dataset, shuffle=False)
loader = DataLoader(dataset, batch_size=BATCH // dist.get_world_size(), sampler=sampler)

module = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
module.load_state_dict({name: torch.tensor(value) for name, value in weights().items()})
net = nn.parallel.DistributedDataParallel(module)
optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)

for _ in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()

if dist.get_rank() == 0:
    save(module.state_dict())
dist.barrier()  # gloo aborts a rank whose peer has left
dist.destroy_process_group()
