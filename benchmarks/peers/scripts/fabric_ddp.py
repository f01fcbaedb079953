"""Digits in torch with Lightning Fabric, started by `fabric run`."""

import torch
from digits import BATCH, EPOCHS, RATE, data, save, weights
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
images, labels = map(torch.from_numpy, data())
dataset = TensorDataset(images, labels.long())

module = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
module.load_state_dict({name: torch.tensor(value) for name, value in weights().items()})
net, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9))
loader = fabric.setup_dataloaders(DataLoader(dataset, batch_size=BATCH // fabric.world_size))

for _ in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        fabric.backward(loss)
        optimizer.step()

if fabric.global_rank == 0:
    save(module.state_dict())
