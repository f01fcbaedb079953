"""A DCGAN: two networks, two optimizers, two training steps.

What it adds: each optimizer says with `wrt` which part of the pair it trains, and `train_step` moves that
part alone. `jaxpar.random.torch_init` draws the weights that torch draws after `torch.manual_seed(0)`.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

    python examples/13_dcgan.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar.nn import BatchNorm, Conv, ConvTranspose
from jaxpar.nn.functional import binary_cross_entropy_with_logits, leaky_relu

jaxpar.virtual_devices(4)  # without a GPU; with GPUs these are used
Z, W = 16, 12  # numbers that an image is made from, width

images = (load_digits().images[..., None] / 8 - 1).astype(np.float32)  # [n, 8, 8, 1], -1 to 1
loader = jaxpar.data.DataLoader(jaxpar.data.TensorDataset(images), batch_size=64, shuffle=True, seed=0)


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


def weights_init(kind, tensors, generator):  # torch: net.apply(weights_init)
    if kind.startswith("Conv"):
        generator.normal_(tensors["weight"], 0, 0.02)
    elif kind.startswith("BatchNorm"):
        generator.normal_(tensors["weight"], 1, 0.02)


class Pair(nnx.Module):
    def __init__(self, seed):
        random = jaxpar.random.Generator(seed)  # torch.manual_seed(seed)
        for name, make in {"generator": generator, "discriminator": discriminator}.items():
            shapes = nnx.eval_shape(lambda make=make: make(nnx.Rngs(0)))
            net = jaxpar.random.torch_init(shapes, random, order=["layers"], apply=weights_init)
            setattr(self, name, jaxpar.DataParallel(net))


def loss_against(scores, real):
    return binary_cross_entropy_with_logits(scores, jnp.full_like(scores, real))


def discriminator_loss(pair, x, z):
    made = jax.lax.stop_gradient(pair.generator(z))  # torch: .detach()
    return loss_against(pair.discriminator(x), 1) + loss_against(pair.discriminator(made), 0)


def generator_loss(pair, z):
    return loss_against(pair.discriminator(pair.generator(z)), 1)


def step_of(part, loss_fn):
    tx = jaxpar.optim.adam(lr=1e-3, betas=(0.5, 0.999))
    optimizer = nnx.Optimizer(pair, tx, wrt=nnx.All(nnx.Param, nnx.PathContains(part)))
    return jaxpar.train_step(pair, optimizer, loss_fn)


pair, noise = Pair(0), jaxpar.random.Generator(1)
discriminator_step = step_of("discriminator", discriminator_loss)
generator_step = step_of("generator", generator_loss)

for epoch in range(10):
    for (x,) in loader:
        d = discriminator_step(x, noise.randn(len(x), 1, 1, Z))
        g = generator_step(noise.randn(len(x), 1, 1, Z))
    print(f"epoch {epoch}: discriminator {float(d):.2f}, generator {float(g):.2f}")

made = np.asarray(jaxpar.eval_step(pair, lambda pair, z: pair.generator(z))(noise.randn(64, 1, 1, Z)))
print("\n".join("".join(" .:oO@"[int(2.99 * (p + 1))] * 2 for p in row) for row in made[0, :, :, 0]))
score = jaxpar.eval_step(pair, lambda pair, x: pair.discriminator(x))
real, fake = (np.mean(np.asarray(score(x)) > 0) for x in (images[:64], made))
print(f"taken for real: {real:.0%} of the digits, {fake:.0%} of what was made")
