"""ResNet-18 in the ImageNet recipe.

What it adds: the recipe. Momentum SGD whose rate warms up and then follows a cosine, computed inside the
compiled step; label smoothing; no weight decay on norms and biases, by parameter groups; bfloat16
arithmetic with float32 parameters; top-1 and top-5 over a test set in which every image counts once.
Pixels travel as bytes.

The data are scikit-learn's digits, 1797 images of 8 x 8 pixels, enlarged (E. Alpaydin and C. Kaynak,
UCI repository, CC BY 4.0; shipped with scikit-learn).

    python examples/09_resnet18.py
"""

import jax
import numpy as np
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar.data import DataLoader, TensorDataset, prefetch
from jaxpar.nn.functional import cross_entropy
from jaxpar.optim import lr_scheduler

jaxpar.virtual_devices(4)  # without a GPU; with GPUs these are used
WIDTH, BATCH, EPOCHS = 8, 110, 10

digits, labels = load_digits(return_X_y=True)
images = (digits * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1).repeat(2, 1).repeat(2, 2)
train, test = TensorDataset(images[:1430], labels[:1430]), TensorDataset(images[1430:], labels[1430:])


def conv(inputs, outputs, size, stride, rngs):
    return jaxpar.nn.Conv(inputs, outputs, (size, size), stride, size // 2, bias=False, rngs=rngs)


class Block(nnx.Module):
    def __init__(self, inputs, outputs, stride, rngs):
        self.conv1, self.norm1 = conv(inputs, outputs, 3, stride, rngs), jaxpar.nn.BatchNorm(outputs)
        self.conv2, self.norm2 = conv(outputs, outputs, 3, 1, rngs), jaxpar.nn.BatchNorm(outputs)
        down = (conv(inputs, outputs, 1, stride, rngs), jaxpar.nn.BatchNorm(outputs)) if stride > 1 else ()
        self.down = nnx.Sequential(*down)

    def __call__(self, x):
        y = self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x)))))
        return nnx.relu(y + self.down(x))


class ResNet18(nnx.Module):
    def __init__(self, width, rngs):
        self.conv, self.norm = conv(1, width, 3, 1, rngs), jaxpar.nn.BatchNorm(width)
        blocks = [Block(width, width, 1, rngs), Block(width, width, 1, rngs)]
        for w in (width, 2 * width, 4 * width):
            blocks += [Block(w, 2 * w, 2, rngs), Block(2 * w, 2 * w, 1, rngs)]
        self.blocks = nnx.Sequential(*blocks)
        self.head = nnx.Linear(8 * width, 10, rngs=rngs)

    def __call__(self, x):
        x = (x.astype(self.head.kernel[...].dtype) / 255 - 0.45) / 0.225
        x = nnx.relu(self.norm(self.conv(x)))
        return self.head(self.blocks(x).mean((1, 2)))


def loss_fn(net, x, y):
    return cross_entropy(net(x), y, label_smoothing=0.1)


def hits(net, x, y):
    best = jax.lax.top_k(net(x), 5)[1] == y[:, None]
    return best[:, 0].sum(), best.sum()


net = jaxpar.DataParallel(ResNet18(WIDTH, nnx.Rngs(0)))
steps = EPOCHS * len(train) // BATCH
highest, warm = 0.1 * BATCH / 256, steps // 20
up = lr_scheduler.linear_lr(highest, start_factor=0.01, total_iters=warm)
down = lr_scheduler.cosine_annealing_lr(highest, T_max=steps - warm)
rate = lr_scheduler.sequential_lr([up, down], milestones=[warm])
groups = [
    {"params": lambda path: path.endswith(("/bias", "/scale")), "weight_decay": 0.0},  # norms and biases
    {"params": ...},  # all others
]
tx = jaxpar.optim.param_groups(jaxpar.optim.sgd, groups, lr=rate, momentum=0.9, weight_decay=1e-4)
optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
precision = jaxpar.Precision("bfloat16")
step = jaxpar.train_step(net, optimizer, loss_fn, precision=precision)
evaluate = jaxpar.eval_step(net, hits, precision=precision)

with prefetch(DataLoader(train, batch_size=BATCH, shuffle=True, seed=0)) as loader:
    for epoch in range(EPOCHS):
        for x, y in loader:
            loss = step(x, y)
        print(f"epoch {epoch}: loss {float(loss):.3f}, rate {rate(step.updates - 1):.4f}")

counts = [evaluate(x, y) for x, y in prefetch(DataLoader(test, batch_size=BATCH))]
top1, top5 = np.sum(jax.device_get(counts), 0) / len(test)
print(f"top-1 {top1:.1%}, top-5 {top5:.1%} of {len(test)} images")
