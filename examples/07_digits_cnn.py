"""A convolutional network on digits: BatchNorm, dropout, one compiled step, batches that come early.

What is new: `train_step`, which is forward, loss, backward and update in one program; `prefetch`, which
sends the next batch to the devices while they compute this one; `eval_step`, in evaluation mode; and
torch's BatchNorm, whose statistics are those of each replica's rows, with running values from replica 0.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

    python examples/07_digits_cnn.py                      # on GPUs, or on virtual devices
    python examples/07_digits_cnn.py --torch --float64    # beside torch's own nn.DataParallel
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
from jaxpar.data import DataLoader, TensorDataset, prefetch

parser = argparse.ArgumentParser(description="Digits: a convolutional network in DataParallel.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--steps", type=int, default=240)
parser.add_argument("--batch-size", type=int, default=60)
parser.add_argument("--width", type=int, default=16, help="channels of the first convolution")
parser.add_argument("--run", help="folder of checkpoint and log, to go on from; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="train torch's twin on the first 50 batches, too")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # before anything makes an array; GPUs are used where there are any
jax.config.update("jax_enable_x64", options.float64)
dtype = np.float64 if options.float64 else np.float32
run = options.run or tempfile.mkdtemp()
drop = 0.0 if options.torch else 0.25  # torch draws other masks

# --------------------------------------------------------------------------------------------- data
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(dtype).reshape(-1, 8, 8, 1)
train = TensorDataset(images[:1450], labels[:1450])
test = TensorDataset(images[1450:], labels[1450:])


# -------------------------------------------------------------------------------------------- model
class CNN(nnx.Module):
    def __init__(self, width, rngs):
        self.conv1 = jaxpar.nn.Conv(1, width, (3, 3), padding=1, rngs=rngs)
        self.norm1 = jaxpar.nn.BatchNorm(width)
        self.conv2 = jaxpar.nn.Conv(width, 2 * width, (3, 3), padding=1, rngs=rngs)
        self.norm2 = jaxpar.nn.BatchNorm(2 * width)
        self.pool = jaxpar.nn.MaxPool((2, 2))
        self.drop = nnx.Dropout(drop, rngs=rngs)
        self.head = nnx.Linear(4 * 2 * width, 10, rngs=rngs)

    def __call__(self, x):
        x = self.pool(nnx.relu(self.norm1(self.conv1(x))))
        x = self.pool(nnx.relu(self.norm2(self.conv2(x))))
        return self.head(self.drop(x.reshape(len(x), -1)))


def cross_entropy(net, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()


def right(net, x, y):
    return (net(x).argmax(-1) == y).sum()


module = jaxpar.to(CNN(options.width, nnx.Rngs(0)), dtype=dtype)
net = jaxpar.DataParallel(module)
optimizer = nnx.Optimizer(net, jaxpar.optim.adam(lr=2e-3), wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, cross_entropy)
count = jaxpar.eval_step(net, right)


# ------------------------------------------------------------------------------------ the same in torch
def torch_twin(module):
    """A function that trains torch's net, which begins with the same weights, on a batch."""
    import torch
    from torch import nn

    from torch_ref import pretend

    n = max(1, jaxpar.device_count())  # a single CPU device does not count
    torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)

    class CNN(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.conv1 = nn.Conv2d(1, width, 3, padding=1)
            self.norm1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
            self.norm2 = nn.BatchNorm2d(2 * width)
            self.pool = nn.MaxPool2d(2)
            self.head = nn.Linear(4 * 2 * width, 10)

        def forward(self, x):
            x = self.pool(torch.relu(self.norm1(self.conv1(x))))
            x = self.pool(torch.relu(self.norm2(self.conv2(x))))
            return self.head(x.permute(0, 2, 3, 1).flatten(1))  # in the order of channels last

    theirs = CNN(options.width)
    theirs.load_state_dict(jaxpar.parity.to_torch(module, like=theirs))
    optimizer = torch.optim.Adam(theirs.parameters(), lr=2e-3)

    def step(x, y):
        x, y = torch.tensor(np.moveaxis(np.asarray(x), -1, 1)), torch.tensor(np.asarray(y))
        with pretend(n) as devices:  # n GPUs, or as if there were n
            net = nn.DataParallel(theirs.to(devices.device), device_ids=list(range(n)))
            loss = nn.functional.cross_entropy(net(x.to(devices.device)), y.long().to(devices.device))
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        return loss.item()

    return step


# ----------------------------------------------------------------------------------------- training
loader = prefetch(DataLoader(train, batch_size=options.batch_size, shuffle=True, seed=0))


def batches():
    while True:
        yield from loader


state = {"net": net, "optimizer": optimizer, "loader": loader}
with loader, jaxpar.Checkpointer(run, save_every=100) as checkpointer, jaxpar.MetricsLog(run) as log:
    done, stopped = 0, False
    if checkpointer.latest_step() is not None:
        done = checkpointer.restore(**state).step
        log.resume_from(done + 1)
    if done and options.torch:
        parser.error("--torch begins at the first step: give another folder to --run")
    twin = torch_twin(module) if options.torch else None
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
counts = [count(x, y) for x, y in prefetch(DataLoader(test, batch_size=options.batch_size))]
print(f"accuracy on {len(test)} images: {sum(map(int, counts)) / len(test):.1%}")
