"""A model of which one block alone is parallel, between ordinary ones.

What is new: DataParallel inside of a model. `block2` has most of the work and its rows are computed on
all devices; `block1` and `block3` stay where they are. Without devices (`--devices 1`) the same code
runs on the CPU: a DataParallel without devices is its module.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

    python examples/10_inner_block.py                     # on GPUs, or on virtual devices
    python examples/10_inner_block.py --devices 1         # CPU mode
    python examples/10_inner_block.py --torch --float64   # beside torch's own nn.DataParallel
"""

import argparse
import sys
import tempfile

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="A DataParallel block between ordinary ones.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--batch-size", type=int, default=50)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--run", help="folder of checkpoint and log, to go on from; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="train torch's twin on the first 50 batches, too")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # before anything makes an array; GPUs are used where there are any
jax.config.update("jax_enable_x64", options.float64)
dtype = np.float64 if options.float64 else np.float32
run = options.run or tempfile.mkdtemp()

# --------------------------------------------------------------------------------------------- data
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(dtype)
train, test = slice(0, 1440), slice(1440, None)
rows = TensorDataset(images[train], labels[train])
loader = DataLoader(rows, batch_size=options.batch_size, shuffle=True, seed=0)


# -------------------------------------------------------------------------------------------- model
class MyModel(nnx.Module):
    def __init__(self, width, rngs):
        self.block1 = nnx.Linear(64, width, rngs=rngs)

        # wrap block2 in DataParallel
        self.block2 = nnx.Linear(width, width, rngs=rngs)
        self.block2 = jaxpar.DataParallel(self.block2)

        self.block3 = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.block1(x))
        x = nnx.relu(self.block2(x))
        return self.block3(x)


def cross_entropy(net, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()


net = jaxpar.to(MyModel(options.width, nnx.Rngs(0)), dtype=dtype)
optimizer = nnx.Optimizer(net, jaxpar.optim.sgd(lr=0.1, momentum=0.9), wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, cross_entropy)


# ------------------------------------------------------------------------------------ the same in torch
def torch_twin(net):
    """A function that trains torch's model, which begins with the same weights, on a batch."""
    import torch
    from torch import nn

    from torch_ref import pretend

    n = max(1, jaxpar.device_count())  # a single CPU device does not count
    torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)

    class MyModel(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.block1 = nn.Linear(64, width)
            self.block2 = nn.Linear(width, width)
            self.block2 = nn.DataParallel(self.block2, device_ids=list(range(n)))
            self.block3 = nn.Linear(width, 10)

        def forward(self, x):
            x = torch.relu(self.block1(x))
            x = torch.relu(self.block2(x))
            return self.block3(x)

    with pretend(n) as devices:  # n GPUs, or as if there were n
        theirs = MyModel(options.width).to(devices.device)
    theirs.load_state_dict(jaxpar.parity.to_torch(net, like=theirs))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        with pretend(n) as devices:
            x, y = torch.tensor(x).to(devices.device), torch.tensor(y).to(devices.device)
            loss = nn.functional.cross_entropy(theirs(x), y)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        return loss.item()

    return step


# ----------------------------------------------------------------------------------------- training
def batches():
    while True:
        yield from loader


state = {"net": net, "optimizer": optimizer, "loader": loader}
with jaxpar.Checkpointer(run, save_every=100) as checkpointer, jaxpar.MetricsLog(run) as log:
    done, stopped = 0, False
    if checkpointer.latest_step() is not None:
        done = checkpointer.restore(**state).step
        log.resume_from(done + 1)
    if done and options.torch:
        parser.error("--torch begins at the first step: give another folder to --run")
    twin = torch_twin(net) if options.torch else None
    bar = jaxpar.progress(range(done + 1, options.steps + 1), description="training")
    try:
        for done, (x, y) in zip(bar, batches(), strict=False):
            loss = step(x, y)
            bar.show(loss=loss)
            log.log(done, loss=loss)
            if twin and done <= 50:
                log.log(done, torch=twin(x, y))
            checkpointer.save(done, **state)
    except KeyboardInterrupt:
        stopped = True
    checkpointer.wait()
    if checkpointer.latest_step() != done:
        checkpointer.save(done, force=True, **state)
if stopped:
    print(f"stopped after step {done}; to go on: --run {run}")
    sys.exit(130)

# ------------------------------------------------------------------------------------------- results
if options.torch:
    curves = jaxpar.MetricsLog.read(run)
    apart = np.nanmax(np.abs(curves["loss"] - curves["torch"]))
    print(f"losses of jaxpar and torch over {min(50, done)} steps: largest difference {apart:.1e}")
accuracy = (np.asarray(net(images[test])).argmax(-1) == labels[test]).mean()
print(f"rows of block2 on {net.block2.device_ids or 'the CPU'}; accuracy {accuracy:.1%}")
