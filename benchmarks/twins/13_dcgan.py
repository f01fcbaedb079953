"""What torch does in examples/13_dcgan.py. It draws its weights itself, after `torch.manual_seed(0)`."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits


def weights_init(m):
    if isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(m.weight, 0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1, 0.02)


def loss_against(scores, real):
    return binary_cross_entropy_with_logits(scores, torch.full_like(scores, real))


def twin(example, net, n, accumulate):
    z, w = example.Z, example.W
    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.ConvTranspose2d(z, 2 * w, 4, bias=False),
        nn.BatchNorm2d(2 * w),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * w, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    ).apply(weights_init)
    discriminator = nn.Sequential(
        nn.Conv2d(1, w, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(w, 2 * w, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * w),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * w, 1, 2, bias=False),
    ).apply(weights_init)
    G, D = (nn.DataParallel(net.double(), list(range(n))) for net in (generator, discriminator))
    adams = {net: torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.999)) for net in (G, D)}

    def update(net, loss):
        adams[net].zero_grad()
        loss.backward()
        adams[net].step()
        return loss

    def discriminator_loss(x, noise):
        made = G(noise.movedim(-1, 1)).detach()
        return update(D, loss_against(D(x.movedim(-1, 1)), 1) + loss_against(D(made), 0))

    def generator_loss(noise):
        return update(G, loss_against(D(G(noise.movedim(-1, 1))), 1))

    return {"discriminator_loss": discriminator_loss, "generator_loss": generator_loss}
