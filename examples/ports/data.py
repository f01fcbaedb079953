"""What the ports train on: small, real, and shipped with packages that are installed anyway.

The digits are scikit-learn's: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI repository, CC BY
4.0). The words are CPython's own reference, which `help()` shows: the module pydoc_data.topics (PSF License).
Neither framework is needed to read them, so both sides of a port read the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from sklearn.datasets import load_digits

TEST = 360
"""The last so many digits are for testing."""


def digits(train: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 28, 28] of bytes, each pixel three wide in a frame of two, and their labels [n]."""
    images, labels = load_digits(return_X_y=True)
    images = (images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8).repeat(3, 1).repeat(3, 2)
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    rows = slice(None, -TEST) if train else slice(-TEST, None)
    return images[rows], labels[rows]


class Digits:
    """torchvision's MNIST, as far as the ports use it: sample i is an image and its label."""

    def __init__(self, train: bool = True, transform: Callable = lambda image: image):
        self.images, self.labels = digits(train)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self.transform(self.images[i]), int(self.labels[i])


class ImageFolder:
    """torchvision's ImageFolder of NumPy files: root/<class>/<name>.npy, each an image [H, W, 3] of bytes."""

    def __init__(self, root: str | Path, transform: Callable = lambda image: image):
        self.classes = sorted(path.name for path in Path(root).iterdir() if path.is_dir())
        self.samples = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((Path(root) / name).glob("*.npy"))
        ]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        path, label = self.samples[i]
        return self.transform(np.load(path)), label


def write_image_folder(root: Path, images: int, size: int = 40) -> None:
    """Coloured digits in two folders, train and val, as ImageFolder reads them."""
    random = np.random.RandomState(0)
    for part, count in (("train", images), ("val", images // 4)):
        pictures, labels = digits(train=part == "train")
        for i in range(count):
            frame = np.zeros((size, size, 3), np.uint8)
            top, left = random.randint(0, size - 28, 2)
            colour = random.randint(100, 256, 3) / 255
            frame[top : top + 28, left : left + 28] = pictures[i][..., None] * colour
            folder = root / part / str(labels[i])
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{i:05}.npy", frame)


class Corpus:
    """Three pieces of text as numbers of words, and the list of words."""

    def __init__(self, words: int = 24000):
        text = " ".join(topics[name] for name in sorted(topics)).lower()
        found = re.findall(r"\w+|[^\w\s]", text)[:words]
        self.dictionary = sorted(set(found))
        number = {word: i for i, word in enumerate(self.dictionary)}
        numbers = np.array([number[word] for word in found])
        self.train, self.valid, self.test = np.split(numbers, [words * 8 // 10, words * 9 // 10])
