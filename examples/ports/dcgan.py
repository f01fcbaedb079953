"""Two networks against each other, in jaxpar: what dcgan_torch.py does.

python examples/ports/dcgan.py --niter 3
"""

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np
from data import Digits
from flax import nnx

import jaxpar
import jaxpar.nn.channels_first as nn
from jaxpar.data import DataLoader
from jaxpar.nn.functional import binary_cross_entropy
from jaxpar.optim import Optimizer, adam
from jaxpar.parity import to_torch, write_weights


def weights_init(kind, tensors, generator):
    if "Conv" in kind:
        generator.normal_(tensors["weight"], 0.0, 0.02)
    elif "BatchNorm" in kind:
        generator.normal_(tensors["weight"], 1.0, 0.02)
        tensors["bias"][...] = 0


class Generator(nn.Module):
    def __init__(self, nz, ngf, nc, rngs):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False, rngs=rngs),  # 1 x 1 to 4 x 4
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False, rngs=rngs),  # to 8 x 8
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False, rngs=rngs),  # to 16 x 16
            nn.BatchNorm2d(ngf),
            nn.ReLU(),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False, rngs=rngs),  # to 32 x 32
            nn.Tanh(),
        )

    def __call__(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self, ndf, nc, rngs):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False, rngs=rngs),  # 32 x 32 to 16 x 16
            nn.LeakyReLU(0.2),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False, rngs=rngs),  # to 8 x 8
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False, rngs=rngs),  # to 4 x 4
            nn.BatchNorm2d(ndf * 4),
            nn.LeakyReLU(0.2),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False, rngs=rngs),  # to 1 x 1
            nn.Sigmoid(),
        )

    def __call__(self, input):
        return self.main(input).reshape(-1)


def transform(image):  # torchvision: Pad(2), ToTensor(), Normalize(0.5, 0.5)
    image = np.pad(image, 2)
    return image[None].astype(np.float32) / 127.5 - 1


def lossD(netD, netG, real, noise):
    """The discriminator learns to tell what is real from what was made."""
    ones = jnp.ones(len(real))
    errD_real = binary_cross_entropy(netD(real), ones)
    fake = jax.lax.stop_gradient(nnx.clone(netG)(noise))  # a clone: BatchNorm's statistics move on in lossG
    errD_fake = binary_cross_entropy(netD(fake), 0 * ones)
    return errD_real + errD_fake


def lossG(netG, netD, noise):
    """The generator learns to make what is taken for real."""
    return binary_cross_entropy(netD(netG(noise)), jnp.ones(len(noise)))


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Two networks against each other")
    parser.add_argument("--workers", type=int, default=0, help="workers that read data")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a batch")
    parser.add_argument("--nz", type=int, default=100, help="numbers that an image is made from")
    parser.add_argument("--ngf", type=int, default=64, help="width of the generator")
    parser.add_argument("--ndf", type=int, default=64, help="width of the discriminator")
    parser.add_argument("--niter", type=int, default=25, help="how often to go through the data")
    parser.add_argument("--lr", type=float, default=0.0002, help="learning rate of Adam")
    parser.add_argument("--beta1", type=float, default=0.5, help="of Adam")
    parser.add_argument("--no-accel", action="store_true", help="train on the CPU")
    parser.add_argument("--log-interval", type=int, default=10, help="batches between two lines")
    parser.add_argument("--manual-seed", type=int, default=1, help="of weights, order and noise")
    parser.add_argument("--outf", default="", help="folder for pictures and weights")
    parser.add_argument("--dtype", default="float32", help="float64 to compare")
    args = parser.parse_args(arguments)

    jax.config.update("jax_enable_x64", args.dtype == "float64")
    jax.config.update("jax_platforms", "cpu" if args.no_accel else None)
    generator, rngs = jaxpar.random.Generator(args.manual_seed), nnx.Rngs(args.manual_seed)
    dataset = Digits(transform=transform)
    workers = {"num_workers": args.workers, "seed": generator}
    dataloader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, **workers)

    netG = jaxpar.to(Generator(args.nz, args.ngf, 1, rngs), dtype=args.dtype)
    netG = jaxpar.random.torch_init(netG, generator, apply=weights_init)
    netD = jaxpar.to(Discriminator(args.ndf, 1, rngs), dtype=args.dtype)
    netD = jaxpar.random.torch_init(netD, generator, apply=weights_init)
    fixed_noise = generator.randn(args.batch_size, args.nz, 1, 1, dtype=args.dtype)

    optimizerD = Optimizer(netD, adam(lr=args.lr, betas=(args.beta1, 0.999)))
    optimizerG = Optimizer(netG, adam(lr=args.lr, betas=(args.beta1, 0.999)))
    stepD = jaxpar.train_step(netD, optimizerD, lossD)
    stepG = jaxpar.train_step(netG, optimizerG, lossG)

    numbers = []
    for epoch in range(args.niter):
        for i, (real, _) in enumerate(dataloader):
            noise = generator.randn(len(real), args.nz, 1, 1, dtype=args.dtype)
            errD = stepD(netG, real, noise)
            errG = stepG(netD, noise)

            numbers += [errD.item(), errG.item()]
            if i % args.log_interval == 0:
                print(f"epoch {epoch} [{i}/{len(dataloader)}] D {errD.item():.4f} G {errG.item():.4f}")
        if args.outf:
            fake = netG(fixed_noise)
            np.save(os.path.join(args.outf, f"fake_{epoch:03}.npy"), fake)
            write_weights(os.path.join(args.outf, f"netG_{epoch}.pt"), to_torch(netG))
            write_weights(os.path.join(args.outf, f"netD_{epoch}.pt"), to_torch(netD))
    return nn.ModuleDict({"generator": netG, "discriminator": netD}), numbers


if __name__ == "__main__":
    main()
