"""A convolutional network on digits: BatchNorm, dropout, one compiled step, batches that come early.

What it adds: `train_step`, which is forward, loss, backward and update in one program; `eval_step`, the
same net in evaluation mode; `prefetch`, which sends the next batch while the devices compute this one.
BatchNorm is torch's: each replica normalises with its own rows and replica 0 keeps the running values.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

    python examples/07_digits_cnn.py
"""

import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar.data import DataLoader, TensorDataset, prefetch

jaxpar.virtual_devices(4)  # without a GPU; with GPUs these are used

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)  # channels last, as Flax has them
train, test = TensorDataset(images[:1450], labels[:1450]), TensorDataset(images[1450:], labels[1450:])


class CNN(nnx.Module):
    def __init__(self, width, rngs):
        self.conv1 = jaxpar.nn.Conv(1, width, (3, 3), padding=1, rngs=rngs)
        self.norm1 = jaxpar.nn.BatchNorm(width)
        self.conv2 = jaxpar.nn.Conv(width, 2 * width, (3, 3), padding=1, rngs=rngs)
        self.norm2 = jaxpar.nn.BatchNorm(2 * width)
        self.pool = jaxpar.nn.MaxPool((2, 2))
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.head = nnx.Linear(4 * 2 * width, 10, rngs=rngs)

    def __call__(self, x):
        x = self.pool(nnx.relu(self.norm1(self.conv1(x))))
        x = self.pool(nnx.relu(self.norm2(self.conv2(x))))
        return self.head(self.drop(x.reshape(len(x), -1)))


def loss_fn(net, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()


def count_right(net, x, y):
    return (net(x).argmax(-1) == y).sum()


net = jaxpar.DataParallel(CNN(16, nnx.Rngs(0)))
optimizer = nnx.Optimizer(net, jaxpar.optim.adam(lr=2e-3), wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, loss_fn)
evaluate = jaxpar.eval_step(net, count_right)  # it has its own mode: no net.eval(), no net.train()

with prefetch(DataLoader(train, batch_size=60, shuffle=True, seed=0)) as loader:
    for epoch in range(6):
        for x, y in loader:
            loss = step(x, y)  # nothing waits here: the loss is read below, once an epoch
        print(f"epoch {epoch}: loss {float(loss):.3f}")

right = sum(int(evaluate(x, y)) for x, y in prefetch(DataLoader(test, batch_size=60)))
print(f"accuracy on {len(test)} images: {right / len(test):.1%}")
