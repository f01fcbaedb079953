"""Two networks against each other, in torch: the program of
https://github.com/pytorch/examples/tree/main/dcgan in words of our own, on images of 32 x 32 pixels.

    python examples/ports/dcgan_torch.py --niter 3
"""

import argparse
import os

import numpy as np
import torch
import torch.nn as nn
from data import Digits
from torch.optim import Adam
from torch.utils.data import DataLoader


def weights_init(m):
    name = type(m).__name__
    if "Conv" in name:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self, nz, ngf, nc):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),  # 1 x 1 to 4 x 4
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),  # to 8 x 8
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),  # to 16 x 16
            nn.BatchNorm2d(ngf),
            nn.ReLU(),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),  # to 32 x 32
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self, ndf, nc):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),  # 32 x 32 to 16 x 16
            nn.LeakyReLU(0.2),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),  # to 8 x 8
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),  # to 4 x 4
            nn.BatchNorm2d(ndf * 4),
            nn.LeakyReLU(0.2),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False),  # to 1 x 1
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input).reshape(-1)


def transform(image):  # torchvision: Pad(2), ToTensor(), Normalize(0.5, 0.5)
    image = np.pad(image, 2)
    return torch.tensor(image, dtype=torch.float32)[None] / 127.5 - 1


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

    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.manual_seed(args.manual_seed)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.no_accel else "cpu")
    dataset = Digits(transform=transform)
    dataloader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)

    netG = Generator(args.nz, args.ngf, 1).to(device)
    netG.apply(weights_init)
    netD = Discriminator(args.ndf, 1).to(device)
    netD.apply(weights_init)
    criterion = nn.BCELoss()
    fixed_noise = torch.randn(args.batch_size, args.nz, 1, 1, device=device)

    optimizerD = Adam(netD.parameters(), lr=args.lr, betas=(args.beta1, 0.999))
    optimizerG = Adam(netG.parameters(), lr=args.lr, betas=(args.beta1, 0.999))

    numbers = []
    for epoch in range(args.niter):
        for i, (real, _) in enumerate(dataloader):
            real = real.to(device, torch.get_default_dtype())
            ones = torch.ones(len(real), device=device)
            noise = torch.randn(len(real), args.nz, 1, 1, device=device)

            # the discriminator learns to tell what is real from what was made
            netD.zero_grad()
            errD_real = criterion(netD(real), ones)
            errD_real.backward()
            fake = netG(noise)
            errD_fake = criterion(netD(fake.detach()), 0 * ones)
            errD_fake.backward()
            errD = errD_real + errD_fake
            optimizerD.step()

            # the generator learns to make what is taken for real
            netG.zero_grad()
            errG = criterion(netD(fake), ones)
            errG.backward()
            optimizerG.step()

            numbers += [errD.item(), errG.item()]
            if i % args.log_interval == 0:
                print(f"epoch {epoch} [{i}/{len(dataloader)}] D {errD.item():.4f} G {errG.item():.4f}")
        if args.outf:
            with torch.no_grad():
                fake = netG(fixed_noise)
            np.save(os.path.join(args.outf, f"fake_{epoch:03}.npy"), fake.cpu().numpy())
            torch.save(netG.state_dict(), os.path.join(args.outf, f"netG_{epoch}.pt"))
            torch.save(netD.state_dict(), os.path.join(args.outf, f"netD_{epoch}.pt"))
    return nn.ModuleDict({"generator": netG, "discriminator": netD}), numbers


if __name__ == "__main__":
    main()
