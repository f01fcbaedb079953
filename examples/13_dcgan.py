"""A DCGAN: two networks, two optimizers, two training steps.

What is new: each optimizer says with `wrt` which part of the pair it trains, and `train_step` moves
that part alone. The weights are those that torch draws after `torch.manual_seed(0)`, with the usual
`weights_init`, so nothing has to be converted. Ctrl-C saves; `--run DIR` goes on.

The two networks push each other, so that differences of rounding grow: with --torch, in 50 steps, to 1e-14
in float64 and to 3e-3 in float32.

The data are scikit-learn's digits: 1797 pictures of 8 x 8 pixels (Alpaydin and Kaynak 1998, UCI, CC BY
4.0; shipped with scikit-learn, BSD-3-Clause).

    python examples/13_dcgan.py                      # on GPUs, or on virtual devices
    python examples/13_dcgan.py --torch --float64    # beside torch's own nn.DataParallel
    python examples/13_dcgan.py --width 64 --steps 20000
"""

import argparse
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar.nn import BatchNorm, Conv, ConvTranspose
from jaxpar.nn.functional import binary_cross_entropy_with_logits, leaky_relu

parser = argparse.ArgumentParser(description="A DCGAN of digits.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--width", type=int, default=12)
parser.add_argument("--noise", type=int, default=16, help="numbers that a picture is made from")
parser.add_argument("--run", help="folder of checkpoint, log and pictures; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="train torch's twin on the first 50 batches, too")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # before anything makes an array; GPUs are used where there are any
jax.config.update("jax_enable_x64", options.float64)
dtype = np.float64 if options.float64 else np.float32
run = Path(options.run or tempfile.mkdtemp())
Z, W = options.noise, options.width

# --------------------------------------------------------------------------------------------- data
pictures = (load_digits().images[..., None] / 8 - 1).astype(dtype)  # [n, 8, 8, 1], -1 to 1
data = jaxpar.data.TensorDataset(pictures)
loader = jaxpar.data.DataLoader(data, batch_size=options.batch_size, shuffle=True, seed=0)
noise = jaxpar.random.Generator(1)


def drawn(n):
    return noise.randn(n, 1, 1, Z, dtype=dtype)


# -------------------------------------------------------------------------------------------- model
def generator(rngs):
    return nnx.Sequential(
        ConvTranspose(Z, 2 * W, (4, 4), bias=False, rngs=rngs),  # 1 x 1 to 4 x 4
        BatchNorm(2 * W),
        nnx.relu,
        ConvTranspose(2 * W, 1, (4, 4), stride=2, padding=1, bias=False, rngs=rngs),  # to 8 x 8
        jnp.tanh,
    )


def discriminator(rngs):
    return nnx.Sequential(
        Conv(1, W, (4, 4), stride=2, padding=1, bias=False, rngs=rngs),  # 8 x 8 to 4 x 4
        lambda x: leaky_relu(x, 0.2),
        Conv(W, 2 * W, (4, 4), stride=2, padding=1, bias=False, rngs=rngs),  # to 2 x 2
        BatchNorm(2 * W),
        lambda x: leaky_relu(x, 0.2),
        Conv(2 * W, 1, (2, 2), bias=False, rngs=rngs),  # to 1 x 1
    )


def weights_init(kind, tensors, generator):
    """What the twin's `net.apply(weights_init)` does; tensors are torch's, as NumPy arrays."""
    if kind.startswith("Conv"):
        generator.normal_(tensors["weight"], 0, 0.02)
    elif kind.startswith("BatchNorm"):
        generator.normal_(tensors["weight"], 1, 0.02)


class Pair(nnx.Module):
    def __init__(self, seed):
        random = jaxpar.random.Generator(seed)
        for name, make in (("generator", generator), ("discriminator", discriminator)):
            shapes = nnx.eval_shape(lambda make=make: jaxpar.to(make(nnx.Rngs(0)), dtype=dtype))
            net = jaxpar.random.torch_init(shapes, random, order=["layers"], apply=weights_init)
            setattr(self, name, jaxpar.DataParallel(net))


def loss(scores, real):
    return binary_cross_entropy_with_logits(scores, jnp.full_like(scores, real))


def discriminator_loss(pair, x, z):
    made = jax.lax.stop_gradient(pair.generator(z))
    return loss(pair.discriminator(x), 1) + loss(pair.discriminator(made), 0)


def generator_loss(pair, z):
    return loss(pair.discriminator(pair.generator(z)), 1)


def adam_of(part):
    tx = jaxpar.optim.adam(lr=1e-3, betas=(0.5, 0.999))
    return nnx.Optimizer(pair, tx, wrt=nnx.All(nnx.Param, nnx.PathContains(part)))


pair = Pair(0)
optimizers = {part: adam_of(part) for part in ("discriminator", "generator")}
discriminator_step = jaxpar.train_step(pair, optimizers["discriminator"], discriminator_loss)
generator_step = jaxpar.train_step(pair, optimizers["generator"], generator_loss)


# ------------------------------------------------------------------------------------ the same in torch
def torch_twin():
    """A function that trains torch's pair, which begins with the same weights, on a batch."""
    import torch
    from torch import nn

    from torch_ref import pretend

    n = max(1, jaxpar.device_count())  # one CPU device does not count
    torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)

    def weights_init(m):
        if isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(m.weight, 0, 0.02)
        elif isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.weight, 1, 0.02)

    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.ConvTranspose2d(Z, 2 * W, 4, bias=False),
        nn.BatchNorm2d(2 * W),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * W, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    ).apply(weights_init)
    discriminator = nn.Sequential(
        nn.Conv2d(1, W, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(W, 2 * W, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * W),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * W, 1, 2, bias=False),
    ).apply(weights_init)
    adams = [
        torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.999)) for net in (discriminator, generator)
    ]

    def loss(scores, real):
        return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, real))

    def step(x, *noise):
        losses = []
        with pretend(n) as devices:  # n GPUs, or as if there were n
            ids, device = list(range(n)), devices.device
            D = nn.DataParallel(discriminator.to(device), device_ids=ids)
            G = nn.DataParallel(generator.to(device), device_ids=ids)
            x, *noise = (torch.tensor(np.moveaxis(a, -1, 1)).to(device) for a in (x, *noise))
            for optimizer, z in zip(adams, noise, strict=True):
                made = G(z)
                if optimizer is adams[0]:
                    losses.append(loss(D(x), 1) + loss(D(made.detach()), 0))
                else:
                    losses.append(loss(D(made), 1))
                optimizer.zero_grad()
                losses[-1].backward()
                optimizer.step()
        return [loss.item() for loss in losses]

    return step


# ----------------------------------------------------------------------------------------- training
def batches():
    while True:
        for (x,) in loader:
            yield x


items = {"pair": pair, **optimizers, "loader": loader, "noise": noise}
with jaxpar.Checkpointer(run, save_every=100) as checkpointer, jaxpar.MetricsLog(run) as log:
    done, stopped = 0, False
    if checkpointer.latest_step() is not None:
        done = checkpointer.restore(**items).step
        log.resume_from(done + 1)
    if done and options.torch:
        parser.error("--torch begins at the first step: give another folder to --run")
    twin = torch_twin() if options.torch else None
    bar = jaxpar.progress(range(done + 1, options.steps + 1), description="training")
    try:
        for done, x in zip(bar, batches(), strict=False):
            z1, z2 = drawn(len(x)), drawn(len(x))
            losses = {"discriminator": discriminator_step(x, z1), "generator": generator_step(z2)}
            bar.show(**losses)
            log.log(done, **losses)
            if twin and done <= 50:
                log.log(done, **dict(zip(("torch D", "torch G"), twin(x, z1, z2), strict=True)))
            checkpointer.save(done, **items)
    except KeyboardInterrupt:
        stopped = True
    checkpointer.wait()
    if checkpointer.latest_step() != done:
        checkpointer.save(done, force=True, **items)
if stopped:
    print(f"stopped after step {done}; to go on: --run {run}")
    sys.exit(130)

# ------------------------------------------------------------------------------------------- results
if options.torch:
    log = jaxpar.MetricsLog.read(run)
    apart = [log["discriminator"] - log["torch D"], log["generator"] - log["torch G"]]
    apart = np.nanmax(np.abs(apart))
    print(f"losses of jaxpar and torch over {min(50, done)} steps: largest difference {apart:.1e}")
made = np.asarray(jaxpar.eval_step(pair, lambda pair, z: pair.generator(z))(drawn(64)))
try:
    from matplotlib.image import imsave
except ImportError:
    print("no picture: matplotlib is not installed")
else:
    imsave(run / "made.png", made.reshape(8, 8, 8, 8).transpose(0, 2, 1, 3).reshape(64, 64), cmap="gray")
    print("64 pictures:", run / "made.png")
score = jaxpar.eval_step(pair, lambda pair, x: pair.discriminator(x))
real, fake = (np.mean(np.asarray(score(x)) > 0) for x in (pictures[:64], made))
print(f"taken for real: {real:.0%} of the digits, {fake:.0%} of what was made")
