"""A training that is killed and comes back to the same loss, to the last bit.

What it adds: everything that a run depends on in one checkpoint: the model with its dropout stream, the
optimizer, the training step, the generator of the noise, and the loader's place in the epoch. It is
written while training goes on, completely or not at all. The same file runs alone and in several
processes under a launcher that starts them again. After Ctrl-C or SIGTERM all of them save and leave.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

By hand: the first run kills itself after step 57 (SIGKILL, no clean-up), the second one goes on. The
third is never stopped, and ends with the same line.

    python examples/05_resume.py --run killed --kill-at 57
    python examples/05_resume.py --run killed
    python examples/05_resume.py --run whole

Two processes under a launcher, one of which is killed:

    jaxpar launch -n 2 --max-restarts 3 examples/05_resume.py --run two --kill-at 57
"""

import argparse
import os
import signal
import sys
import tempfile

import numpy as np
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
import jaxpar.distributed as dist
from jaxpar.data import DataLoader, DistributedSampler, TensorDataset
from jaxpar.nn.functional import cross_entropy

parser = argparse.ArgumentParser(description="Killed, resumed, and the same to the last bit.")
parser.add_argument("--run", help="folder of checkpoint and log, to go on from; a fresh one if left out")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, alone and without a GPU")
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
parser.add_argument("--save-every", type=int, default=20)
parser.add_argument("--kill-at", type=int, help="SIGKILL after this step, in the first attempt")
options = parser.parse_args()
if "RANK" not in os.environ:  # a launcher says how many devices each of its processes has
    jaxpar.virtual_devices(options.devices)
elif not options.run:
    parser.error("under a launcher all processes need the same folder: --run")
run = options.run or tempfile.mkdtemp()
dist.init_process_group()  # alone: a world of one
rank, world = dist.get_rank(), dist.get_world_size()

# --------------------------------------------------------------------------------------------- data
images, labels = load_digits(return_X_y=True)
rows = TensorDataset((images / 16).astype(np.float32), labels)
sampler = DistributedSampler(rows, world, rank, seed=0)
loader = DataLoader(rows, batch_size=options.batch_size // world, sampler=sampler)
noise = jaxpar.random.Generator(rank)  # another stream on every rank


def batches(taken):
    while True:
        sampler.set_epoch(taken // len(loader))
        for x, y in loader:  # after a restore: what is left of the epoch
            taken += 1
            yield x + 0.1 * noise.randn(*x.shape), y


# -------------------------------------------------------------------------------------------- model
class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.out(self.drop(nnx.relu(self.hidden(x))))


net = jaxpar.DistributedDataParallel(Net(nnx.Rngs(0)))
optimizer = nnx.Optimizer(net, jaxpar.optim.adam(lr=3e-3), wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, lambda net, x, y: cross_entropy(net(x), y))

# ----------------------------------------------------------------------------------------- training
state = {"net": net, "optimizer": optimizer, "step": step, "loader": loader, "noise": noise}
with (
    jaxpar.Checkpointer(run, save_every=options.save_every) as checkpointer,
    jaxpar.MetricsLog(run) as log,
):
    done, stopped = 0, False
    if checkpointer.latest_step() is not None:
        done = checkpointer.restore(**state).step
        log.resume_from(done + 1)
        print(f"rank {rank} goes on after step {done}", file=sys.stderr)
    bar = jaxpar.progress(range(done + 1, options.steps + 1), description="training")
    rest = batches(done)
    try:
        for done, (x, y) in zip(bar, rest, strict=False):
            loss = step(x, y)
            bar.show(loss=loss)
            log.log(done, loss=loss)
            checkpointer.save(done, **state)
            first = os.environ.get("JAXPAR_RESTART_COUNT", "0") == "0"
            if done == options.kill_at and first and rank == world - 1:
                os.kill(os.getpid(), signal.SIGKILL)
    except KeyboardInterrupt:
        stopped = True
    checkpointer.wait()
    if checkpointer.latest_step() != done:
        checkpointer.save(done, force=True, **state)
if stopped:
    print(f"stopped after step {done}; to go on: --run {run}")
    sys.exit(130)

# ------------------------------------------------------------------------------------------- results
if rank == 0:
    loss = float(jaxpar.MetricsLog.read(run)["loss"][-1])
    print(f"after {done} steps: loss {loss:.6f}, to the last bit {loss.hex()}")
