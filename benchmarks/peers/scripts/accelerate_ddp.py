"""Digits in torch with Hugging Face accelerate, started by `accelerate launch`."""

import torch
from accelerate import Accelerator
from digits import BATCH, EPOCHS, RATE, data, save, weights
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
images, labels = map(torch.from_numpy, data())
dataset = TensorDataset(images, labels.long())
loader = DataLoader(dataset, batch_size=BATCH // accelerator.num_processes)

net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
net.load_state_dict({name: torch.tensor(value) for name, value in weights().items()})
optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)

for _ in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        accelerator.backward(loss)
        optimizer.step()

if accelerator.is_main_process:
    save(accelerator.unwrap_model(net).state_dict())
accelerator.end_training()
