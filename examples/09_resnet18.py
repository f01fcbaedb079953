"""ResNet-18 in the ImageNet recipe.

What is new: the recipe. Momentum SGD whose rate warms up and then follows a cosine, computed inside of
the compiled step; label smoothing; no weight decay on norms and biases, by parameter groups; bfloat16
arithmetic with float32 parameters; top-1 and top-5 over an evaluation set in which every image counts
once, without padding. Pixels travel as bytes. Augmentation belongs into your loader and is left out.

The data are scikit-learn's digits, 1797 images of 8 x 8 pixels, enlarged (E. Alpaydin and C. Kaynak,
UCI repository, CC BY 4.0; shipped with scikit-learn). A file of your own has the arrays `images` (uint8,
[n, size, size, channels]), `labels`, `test_images` and `test_labels`.

    python examples/09_resnet18.py                     # a narrow one, on GPUs or on virtual devices
    python examples/09_resnet18.py --torch --float64   # beside torch's own nn.DataParallel
    python examples/09_resnet18.py --width 64 --size 224 --data imagenet.npz --batch-size 1024 --steps 112590
"""

import argparse
import sys
import tempfile

import jax
import numpy as np
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar.data import DataLoader, TensorDataset, prefetch
from jaxpar.nn.functional import cross_entropy
from jaxpar.optim import lr_scheduler

parser = argparse.ArgumentParser(description="ResNet-18 in the ImageNet recipe.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--steps", type=int, default=130)
parser.add_argument("--batch-size", type=int, default=110)
parser.add_argument("--width", type=int, default=8, help="channels of the first stage; 64 is ResNet-18")
parser.add_argument("--size", type=int, default=16, help="pixels of a side of the images")
parser.add_argument("--data", help="an .npz file; the digits if left out")
parser.add_argument("--lr", type=float, default=0.1, help="highest rate, for 256 rows")
parser.add_argument("--run", help="folder of checkpoint and log, to go on from; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="train torch's twin on the first 50 batches, too")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # before anything makes an array; GPUs are used where there are any
jax.config.update("jax_enable_x64", options.float64)
dtype = np.float64 if options.float64 else np.float32
precision = None if options.torch or options.float64 else jaxpar.Precision("bfloat16")
run = options.run or tempfile.mkdtemp()

# --------------------------------------------------------------------------------------------- data
if options.data:
    file = np.load(options.data)
    train = TensorDataset(file["images"], file["labels"])
    test = TensorDataset(file["test_images"], file["test_labels"])
else:
    digits, labels = load_digits(return_X_y=True)
    images = (digits * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    images = images.repeat(options.size // 8, 1).repeat(options.size // 8, 2)
    train, test = TensorDataset(images[:1430], labels[:1430]), TensorDataset(images[1430:], labels[1430:])
pixels, classes = train[0][0], int(max(train[:][1])) + 1
large = options.size >= 64  # ImageNet's stem, which makes images four times smaller

# -------------------------------------------------------------------------------------------- model
width = options.width
blocks = [(width, width, 1), (width, width, 1)]  # inputs, outputs, stride
for w in (width, 2 * width, 4 * width):
    blocks += [(w, 2 * w, 2), (2 * w, 2 * w, 1)]


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
    def __init__(self, rngs):
        size, stride = (7, 2) if large else (3, 1)
        self.conv, self.norm = conv(pixels.shape[-1], width, size, stride, rngs), jaxpar.nn.BatchNorm(width)
        self.blocks = nnx.Sequential(*(Block(*block, rngs) for block in blocks))
        self.head = nnx.Linear(8 * width, classes, rngs=rngs)

    def __call__(self, x):
        x = (x.astype(self.head.kernel[...].dtype) / 255 - 0.45) / 0.225
        x = nnx.relu(self.norm(self.conv(x)))
        if large:
            x = jaxpar.nn.functional.max_pool(x, (3, 3), 2, 1)
        return self.head(self.blocks(x).mean((1, 2)))


def smoothed(net, x, y):
    return cross_entropy(net(x), y, label_smoothing=0.1)


def hits(net, x, y):
    best = jax.lax.top_k(net(x), min(5, classes))[1] == y[:, None]
    return best[:, 0].sum(), best.sum()


def kaiming(kind, tensors, generator):  # as torchvision's; the rest begins as torch's layers do
    if kind == "Conv2d":
        jaxpar.random.init.kaiming_normal_(tensors["weight"], mode="fan_out", generator=generator)


parts = [("conv1", "norm1", "conv2", "norm2", "down")[: 4 if stride == 1 else 5] for _, _, stride in blocks]
order = ["conv", "norm", *(f"blocks.layers.{i}.{part}" for i in range(8) for part in parts[i]), "head"]
shapes = nnx.eval_shape(lambda: ResNet18(nnx.Rngs(0)))  # no time is spent on JAX's initial weights
module = jaxpar.random.torch_init(shapes, 0, order=order, apply=kaiming)
module = jaxpar.to(module, dtype=dtype)
net = jaxpar.DataParallel(module)
highest, warm = options.lr * options.batch_size / 256, max(1, options.steps // 20)
rate = lr_scheduler.sequential_lr(
    [
        lr_scheduler.linear_lr(highest, start_factor=0.01, total_iters=warm),
        lr_scheduler.cosine_annealing_lr(highest, T_max=max(1, options.steps - warm)),
    ],
    milestones=[warm],
)
groups = [
    {"params": lambda path: path.endswith(("/bias", "/scale")), "weight_decay": 0.0},  # norms and biases
    {"params": ...},
]
tx = jaxpar.optim.param_groups(jaxpar.optim.sgd, groups, lr=rate, momentum=0.9, weight_decay=1e-4)
optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, smoothed, precision=precision)
evaluate = jaxpar.eval_step(net, hits, precision=precision)


# ------------------------------------------------------------------------------------ the same in torch
def torch_twin(module):
    """A function that trains torch's net, which begins with the same weights, on a batch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from torch_ref import pretend

    n = max(1, jaxpar.device_count())  # a single CPU device does not count
    torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)

    def conv(inputs, outputs, size, stride):
        return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1, self.norm1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
            self.conv2, self.norm2 = conv(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
            down = (conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)) if stride > 1 else ()
            self.down = nn.Sequential(*down)

        def forward(self, x):
            y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
            return F.relu(y + self.down(x))

    class ResNet18(nn.Module):
        def __init__(self):
            super().__init__()
            size, stride = (7, 2) if large else (3, 1)
            self.conv, self.norm = conv(pixels.shape[-1], width, size, stride), nn.BatchNorm2d(width)
            self.blocks = nn.Sequential(*(Block(*block) for block in blocks))
            self.head = nn.Linear(8 * width, classes)

        def forward(self, x):
            x = F.relu(self.norm(self.conv((x / 255 - 0.45) / 0.225)))
            x = F.max_pool2d(x, 3, 2, 1) if large else x
            return self.head(self.blocks(x).mean((2, 3)))

    theirs = ResNet18()
    theirs.load_state_dict(jaxpar.parity.to_torch(module, like=theirs))
    weights = [p for p in theirs.parameters() if p.ndim > 1]
    others = [p for p in theirs.parameters() if p.ndim == 1]  # norms and biases
    groups = [{"params": others, "weight_decay": 0.0}, {"params": weights}]
    optimizer = torch.optim.SGD(groups, lr=highest, momentum=0.9, weight_decay=1e-4)
    up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=warm)
    down = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, options.steps - warm))
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [up, down], milestones=[warm])

    def step(x, y):
        x = torch.tensor(np.moveaxis(np.asarray(x), -1, 1), dtype=torch.get_default_dtype())
        y = torch.tensor(np.asarray(y)).long()
        with pretend(n) as devices:  # n GPUs, or as if there were n
            net = nn.DataParallel(theirs.to(devices.device), device_ids=list(range(n)))
            loss = F.cross_entropy(net(x.to(devices.device)), y.to(devices.device), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.item()

    return step


# ----------------------------------------------------------------------------------------- training
loader = prefetch(DataLoader(train, batch_size=options.batch_size, shuffle=True, seed=0))


def batches():
    while True:
        yield from loader


state = {"net": net, "optimizer": optimizer, "loader": loader}
with loader, jaxpar.Checkpointer(run, save_every=1000) as checkpointer, jaxpar.MetricsLog(run) as log:
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
            log.log(done, loss=loss, lr=rate(done - 1))
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
counts = [evaluate(x, y) for x, y in prefetch(DataLoader(test, batch_size=options.batch_size))]
top1, top5 = np.sum(jax.device_get(counts), 0) / len(test)
print(f"top-1 {top1:.1%}, top-5 {top5:.1%} of {len(test)} images")
