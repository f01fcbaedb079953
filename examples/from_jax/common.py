"""What the scripts of this folder share: small data, element types, and the loop of `python <script>.py`."""

import itertools

import jax
import numpy as np


def digits(size=28):
    """scikit-learn's images [1797, size, size, 1] from 0 to 1, enlarged from 8 x 8, and their labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1) / 16
    index = np.arange(size) * 8 // size
    return images[:, index][:, :, index], labels.astype(np.int32)


def batches(rows, *arrays, seed=0, dtype="float32"):
    """Batches of `rows` rows, without end; numbers of floating point come in `dtype`."""
    random = np.random.RandomState(seed)
    while True:
        index = random.randint(len(arrays[0]), size=rows)
        yield [cast(array[index], dtype) for array in arrays]


def sentences(count, length, vocabulary, seed=0):
    """Integers [count, length], each sentence an arithmetic progression with an end; 0 is filling."""
    random = np.random.RandomState(seed)
    start, stride = random.randint(vocabulary, size=(2, count, 1))
    tokens = 1 + (start + stride * np.arange(length)) % (vocabulary - 1)
    return np.where(np.arange(length) < random.randint(2, length + 1, (count, 1)), tokens, 0).astype(np.int32)


def cast(tree, dtype):
    """The tree with its floating-point arrays in `dtype`."""
    return jax.tree.map(lambda x: x.astype(dtype) if x.dtype.kind == "f" else x, tree)


def main(train, steps=40):
    """Train for some steps, on four virtual devices where there is no GPU."""
    if jax.config.jax_num_cpu_devices < 1:
        jax.config.update("jax_num_cpu_devices", 4)
    for step, (loss, _) in enumerate(itertools.islice(train(), steps)):
        if step % 10 == 9:
            print(f"step {step + 1}: loss {float(loss):.4f}")
