"""A training that torch began goes on in JAX, and could go back.

What is new: `parity.load_checkpoint` and `parity.save_checkpoint`. The file is what torch scripts
write: weights with `module.` before their names, since the model was in nn.DataParallel, and the
state of AdamW. Both sides draw the same order from the same seed, so that the next batch is the one
that torch would have taken. Ctrl-C writes the file, too; `--run DIR` goes on from there.

The data are scikit-learn's digits: 1797 pictures of 8 x 8 pixels (Alpaydin and Kaynak 1998, UCI, CC BY
4.0; shipped with scikit-learn, BSD-3-Clause).

    python examples/15_from_torch_checkpoint.py                      # torch, then jaxpar
    python examples/15_from_torch_checkpoint.py --torch --float64    # torch goes on beside it
"""

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import torch
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from torch_ref import pretend

parser = argparse.ArgumentParser(description="From torch to jaxpar in the middle of a training.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--torch-steps", type=int, default=40, help="steps that torch makes first")
parser.add_argument("--steps", type=int, default=80, help="steps that follow")
parser.add_argument("--batch-size", type=int, default=100)
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--run", help="folder of checkpoints and log, to go on from; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="torch goes on for 50 steps, too, to compare")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # before anything makes an array; GPUs are used where there are any
jax.config.update("jax_enable_x64", options.float64)
torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)
dtype = np.float64 if options.float64 else np.float32
N = max(1, jaxpar.device_count())  # one CPU device does not count
run = Path(options.run or tempfile.mkdtemp())
run.mkdir(parents=True, exist_ok=True)
before, after = run / "torch.pt", run / "jaxpar.pt"

# --------------------------------------------------------------------------------------------- data
pictures, labels = load_digits(return_X_y=True)
pictures = (pictures / 16).astype(dtype).reshape(-1, 8, 8, 1)
train, test = slice(0, 1450), slice(1450, None)
rows = jaxpar.data.TensorDataset(pictures[train], labels[train])


def batches(step):
    """The batches from a step on; torch: manual_seed(epoch), then DataLoader(..., shuffle=True)."""
    for epoch in itertools.count(step // -(-len(rows) // options.batch_size)):
        loader = jaxpar.data.DataLoader(rows, options.batch_size, shuffle=True, seed=epoch)
        yield from itertools.islice(loader, max(0, step - epoch * len(loader)), None)


# -------------------------------------------------------------------------------------------- torch
class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, options.width, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(options.width)
        self.fc = torch.nn.Linear(options.width * 4 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x.permute(0, 3, 1, 2))))
        return self.fc(torch.nn.functional.max_pool2d(x, 2).flatten(1))


def torch_training(file, first, steps, description):
    """A torch script: goes on from the file, if there is one, and returns what it would save, and losses."""
    torch.manual_seed(0)
    losses = []
    with pretend(N) as devices:  # N GPUs, or as if there were N
        net = torch.nn.DataParallel(TorchNet().to(devices.device), device_ids=list(range(N)))
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
        if file.exists():
            checkpoint = torch.load(file)
            net.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
        try:
            bar = jaxpar.progress(range(first, first + steps), description=description)
            for _, (x, t) in zip(bar, batches(first), strict=False):
                x, t = torch.tensor(x).to(devices.device), torch.tensor(t).to(devices.device)
                loss = torch.nn.functional.cross_entropy(net(x), t)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        except KeyboardInterrupt:
            print("stopped")
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": first + len(losses)}
    return state, losses


if not before.exists():
    state, losses = torch_training(before, 0, options.torch_steps, "torch")
    torch.save(state, before)
    if len(losses) < options.torch_steps:
        print(f"to go on after step {len(losses)}, in jaxpar: --run {run}")
        sys.exit(130)


# ------------------------------------------------------------------------------------------- jaxpar
class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, options.width, (3, 3), padding=1, rngs=rngs)
        self.norm = jaxpar.nn.BatchNorm(options.width)
        self.fc = nnx.Linear(options.width * 4 * 4, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        return self.fc(x.reshape(len(x), -1))


# Shapes are enough: all numbers are in the file.
net = jaxpar.DataParallel(nnx.eval_shape(lambda: jaxpar.to(Net(nnx.Rngs(0)), dtype=dtype)))
optimizer = nnx.Optimizer(net, jaxpar.optim.adamw(lr=3e-3, weight_decay=0.05), wrt=nnx.Param)
# torch flattens channels first and Flax channels last. That is all that has to be said.
mapping = {"fc": jaxpar.parity.flattened("fc", (options.width, 4, 4))}
source = after if after.exists() else before
if source == after and options.torch:
    parser.error("--torch begins at torch's checkpoint: give another folder to --run")
rest = jaxpar.parity.load_checkpoint(source, net, optimizer, mapping=mapping)
done, last = rest["step"], rest["step"] + options.steps
print(f"{source.name}: the weights and AdamW's state after step {done} are in jaxpar")

step = jaxpar.train_step(
    net, optimizer, lambda net, x, t: jaxpar.nn.functional.cross_entropy(net(x), t.astype(np.int32))
)
stopped = False
with jaxpar.MetricsLog(run) as log:
    log.resume_from(done + 1)
    bar = jaxpar.progress(range(done + 1, last + 1), description="jaxpar")
    try:
        for done, (x, t) in zip(bar, batches(rest["step"]), strict=False):
            loss = step(x, t)
            bar.show(loss=loss)
            log.log(done, loss=loss)
    except KeyboardInterrupt:
        stopped = True
jaxpar.parity.save_checkpoint(
    after, net, optimizer, like=before, module_prefix=True, mapping=mapping, extra={"step": done}
)
if stopped:
    print(f"stopped after step {done}; to go on: --run {run}")
    sys.exit(130)

# ------------------------------------------------------------------------------------------- results
if options.torch:
    _, theirs = torch_training(before, rest["step"], min(50, options.steps), "torch goes on")
    ours = jaxpar.MetricsLog.read(run)["loss"][: len(theirs)]
    apart = np.abs(ours - theirs).max()
    print(f"losses of jaxpar and torch over {len(theirs)} steps: largest difference {apart:.1e}")
back = TorchNet().eval()
back.load_state_dict({k.removeprefix("module."): v for k, v in torch.load(after)["model"].items()})
theirs = back(torch.tensor(pictures[test])).argmax(1).numpy()
ours = np.asarray(jaxpar.eval_step(net)(pictures[test])).argmax(1)
ours, theirs = (np.mean(guess == labels[test]) for guess in (ours, theirs))
print(f"right in jaxpar: {ours:.1%}, back in torch: {theirs:.1%}")
