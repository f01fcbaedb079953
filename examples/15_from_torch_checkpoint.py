"""A training that torch began goes on in JAX, and could go back.

What it adds: `parity.load_checkpoint` and `parity.save_checkpoint`. The file is what torch scripts write:
weights with `module.` before their names, since the model was in nn.DataParallel, and AdamW's state.
jaxpar's DataLoader draws torch's order from the same seed: the next batch is the one torch would take.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

    python examples/15_from_torch_checkpoint.py
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar import parity
from jaxpar.nn.functional import cross_entropy

jaxpar.virtual_devices(4)  # without a GPU; with GPUs these are used
folder = Path(tempfile.mkdtemp())

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
rows, test = jaxpar.data.TensorDataset(images[:1450], labels[:1450]), slice(1450, None)


def batches(epoch):  # torch: torch.manual_seed(epoch), then DataLoader(..., shuffle=True)
    return jaxpar.data.DataLoader(rows, batch_size=100, shuffle=True, seed=epoch)


# ------------------------------------------------------------------------- torch trains for three epochs
class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.fc = torch.nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x.permute(0, 3, 1, 2))))
        return self.fc(torch.nn.functional.max_pool2d(x, 2).flatten(1))


torch.manual_seed(0)
net = torch.nn.DataParallel(TorchNet())
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
for epoch in range(3):
    for x, y in batches(epoch):
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
kept = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
torch.save(kept, folder / "torch.pt")


# ---------------------------------------------------------------------------------------- jaxpar goes on
class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 8, (3, 3), padding=1, rngs=rngs)
        self.norm = jaxpar.nn.BatchNorm(8)
        self.fc = nnx.Linear(8 * 4 * 4, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        return self.fc(nnx.max_pool(x, (2, 2), strides=(2, 2)).reshape(len(x), -1))


def loss_fn(net, x, y):
    return cross_entropy(net(x), y)


net = jaxpar.DataParallel(nnx.eval_shape(lambda: Net(nnx.Rngs(0))))  # shapes: all numbers are in the file
optimizer = nnx.Optimizer(net, jaxpar.optim.adamw(lr=3e-3, weight_decay=0.05), wrt=nnx.Param)
mapping = {"fc": parity.flattened("fc", (8, 4, 4))}  # torch flattens channels first, Flax channels last
rest = parity.load_checkpoint(folder / "torch.pt", net, optimizer, mapping=mapping)
print(f"in jaxpar: weights and AdamW's state after epoch {rest['epoch']}")

step = jaxpar.train_step(net, optimizer, loss_fn)
for epoch in range(rest["epoch"], 7):
    for x, y in batches(epoch):
        loss = step(x, y)
    print(f"epoch {epoch}: loss {float(loss):.3f}")
form = {"like": folder / "torch.pt", "module_prefix": True, "mapping": mapping}
parity.save_checkpoint(folder / "jaxpar.pt", net, optimizer, extra={"epoch": 7}, **form)

# ------------------------------------------------------------------------------------- and back in torch
back = torch.nn.DataParallel(TorchNet()).eval()
back.load_state_dict(torch.load(folder / "jaxpar.pt")["model"])
theirs = back(torch.tensor(images[test])).argmax(1).numpy()
ours = np.asarray(jaxpar.eval_step(net)(images[test])).argmax(1)
right = [f"{np.mean(guess == labels[test]):.1%}" for guess in (ours, theirs)]
print(f"right in jaxpar: {right[0]}, back in torch: {right[1]}")
