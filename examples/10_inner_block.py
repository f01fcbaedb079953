"""A model of which one block alone is parallel, between ordinary ones.

What it adds: DataParallel inside a model. `block2` has most of the work, and its rows are computed on all
devices; `block1` and `block3` stay where they are. Where there is one CPU device only, the same code
runs as it is: a DataParallel without devices is its module.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

    python examples/10_inner_block.py
"""

import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar.data import DataLoader, TensorDataset

jaxpar.virtual_devices(4)  # without a GPU; with GPUs these are used

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
train, test = slice(0, 1440), slice(1440, None)
loader = DataLoader(TensorDataset(images[train], labels[train]), batch_size=50, shuffle=True, seed=0)


class MyModel(nnx.Module):
    def __init__(self, width, rngs):
        self.block1 = nnx.Linear(64, width, rngs=rngs)

        # wrap block2 in DataParallel
        self.block2 = nnx.Linear(width, width, rngs=rngs)
        self.block2 = jaxpar.DataParallel(self.block2)

        self.block3 = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.block1(x))
        x = nnx.relu(self.block2(x))
        return self.block3(x)


def loss_fn(net, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()


net = MyModel(64, nnx.Rngs(0))
optimizer = nnx.Optimizer(net, jaxpar.optim.sgd(lr=0.1, momentum=0.9), wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, loss_fn)  # one program for all three blocks

for epoch in range(5):
    for x, y in loader:
        loss = step(x, y)
    print(f"epoch {epoch}: loss {float(loss):.3f}")

accuracy = (np.asarray(net(images[test])).argmax(-1) == labels[test]).mean()
print(f"rows of block2 on {net.block2.device_ids or 'the CPU'}; accuracy {accuracy:.1%}")
