"""Data, initial weights and the file of results of all scripts: scikit-learn's digits, names as in torch."""

import os

import numpy as np
from sklearn.datasets import load_digits

BATCH, RATE, EPOCHS = 64, 0.1, 1


def data():
    """1,797 images of 64 pixels and their labels: the last batch of 64 has 5 rows."""
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels.astype(np.int32)


def weights():
    """Initial values of Linear(64, 128), BatchNorm1d(128) and Linear(128, 10), in torch's layout."""
    random = np.random.RandomState(0)
    values = {
        "0.weight": random.uniform(-1 / 8, 1 / 8, (128, 64)),
        "0.bias": random.uniform(-1 / 8, 1 / 8, 128),
        "1.weight": np.ones(128),
        "1.bias": np.zeros(128),
        "1.running_mean": np.zeros(128),
        "1.running_var": np.ones(128),
        "3.weight": random.uniform(-0.09, 0.09, (10, 128)),
        "3.bias": random.uniform(-0.09, 0.09, 10),
    }
    arrays = {name: value.astype(np.float32) for name, value in values.items()}
    return arrays | {"1.num_batches_tracked": np.zeros((), np.int64)}


def save(values):
    """Write the trained arrays, under torch's names and in its layout; a count of batches is left out."""
    names = weights().keys() - {"1.num_batches_tracked"}
    np.savez(os.environ["PEERS_OUT"], **{name: np.asarray(values[name]) for name in names})
