"""Transforms: torchvision's draws and pixels.

torchvision itself does not load beside torch's CPU build, so its formulas stand here on torch and PIL.
Where it can be imported, the last test compares with it.
"""

from __future__ import annotations

import math
import pickle
import threading

import numpy as np
import pytest

from jaxpar.data import DataLoader, TensorDataset, transforms
from jaxpar.random import Generator

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(0)
SIZES = [tuple(map(int, RNG.integers(2, 70, 4))) for _ in range(40)] + [
    (9, 9, 9, 5),
    (9, 9, 5, 9),
    (7, 5, 7, 5),
]


def pixels(height, width, *channels):
    return RNG.integers(0, 256, (height, width, *channels), np.uint8)


# -------------------------------------------------------------------------------------------- resize


@pytest.mark.parametrize("channels", [(), (3,)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bytes_are_pils(size, channels):
    """Along one axis to the bit; PIL's versions differ in which axis is first, which is at most one."""
    h, w, to_h, to_w = size
    x = pixels(h, w, *channels)
    rows_first = Image.fromarray(x).resize((to_w, h), 2).resize((to_w, to_h), 2)
    got = transforms.Resize((to_h, to_w))(x)
    assert np.array_equal(got, np.asarray(rows_first))
    at_once = np.asarray(Image.fromarray(x).resize((to_w, to_h), 2))
    assert np.abs(got.astype(int) - at_once).max() <= 1
    assert np.array_equal(transforms.Resize((to_h, to_w))(Image.fromarray(x)), at_once)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_floats_are_torchs_and_pils(size):
    h, w, to_h, to_w = size
    x = RNG.standard_normal((h, w, 3))
    got = transforms.Resize((to_h, to_w))(x)
    planes = torch.from_numpy(x.transpose(2, 0, 1).copy())[None]
    want = torch.nn.functional.interpolate(planes, (to_h, to_w), mode="bilinear", antialias=True)[0]
    assert np.abs(got - want.numpy().transpose(1, 2, 0)).max() < 1e-12
    plane = x[:, :, 0].astype(np.float32)
    got = transforms.Resize((to_h, to_w))(plane)
    assert got.dtype == np.float32
    rows_first = Image.fromarray(plane).resize((to_w, h), 2).resize((to_w, to_h), 2)
    assert np.abs(got - np.asarray(rows_first)).max() < 1e-6


@pytest.mark.parametrize(
    ("size", "options", "want"),
    [
        (8, {}, (8, 13)),
        ([8], {}, (8, 13)),
        (8, {"max_size": 11}, (6, 11)),
        (8, {"max_size": 20}, (8, 13)),
        ((5, 4), {}, (5, 4)),
    ],
    ids=str,
)
def test_the_size_of_a_shorter_side(size, options, want):
    resize = transforms.Resize(size, **options)
    assert resize(pixels(18, 30)).shape == want
    if len(np.atleast_1d(size)) == 1:
        assert resize(Image.fromarray(pixels(30, 18, 3))).shape == (*want[::-1], 3)


# --------------------------------------------------------------------------------------------- draws


def crop_params(height, width, h, w):
    if (height, width) == (h, w):
        return 0, 0, h, w
    top = torch.randint(0, height - h + 1, size=(1,)).item()
    return top, torch.randint(0, width - w + 1, size=(1,)).item(), h, w


def resized_crop_params(height, width, scale, ratio):
    bounds = torch.log(torch.tensor(ratio))
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(*scale).item()
        aspect = torch.exp(torch.empty(1).uniform_(bounds[0], bounds[1])).item()
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return crop_again(height, width, h, w)
    w = min(width, round(height * max(ratio))) if width / height > max(ratio) else width
    h = min(height, round(width / min(ratio))) if width / height < min(ratio) else height
    return (height - h) // 2, (width - w) // 2, h, w


def crop_again(height, width, h, w):
    """It draws for an image of the same size, too."""
    top = torch.randint(0, height - h + 1, size=(1,)).item()
    return top, torch.randint(0, width - w + 1, size=(1,)).item(), h, w


@pytest.mark.parametrize("seed", range(20))
def test_random_crops_draw_what_torch_draws(seed):
    shapes = [tuple(map(int, RNG.integers(5, 300, 2))) for _ in range(20)] + [(3, 200), (200, 3)]
    for options in (
        {},
        {"scale": (0.5, 1.0), "ratio": (0.9, 1.1)},
        {"scale": (1.0, 1.0), "ratio": (2.0, 3.0)},
    ):
        ours, shared = Generator(seed), torch.manual_seed(seed)
        crop = transforms.RandomResizedCrop(8, **options, seed=ours)
        place = transforms.RandomCrop((5, 9), seed=ours)
        assert [place._corner((20, 30)) for _ in range(3)] == [
            crop_params(20, 30, 5, 9)[:2] for _ in range(3)
        ]
        scale, ratio = options.get("scale", (0.08, 1.0)), options.get("ratio", (3 / 4, 4 / 3))
        assert [crop._part(*shape) for shape in shapes] == [
            resized_crop_params(*shape, scale, ratio) for shape in shapes
        ]
        assert np.array_equal(ours.get_state(), shared.get_state().numpy())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["array", "PIL"])
def test_a_recipe_draws_what_torch_draws(seed, kind):
    """The CIFAR recipe, and the generator where torch leaves it."""
    images = [pixels(32, 32, 3) for _ in range(8)]
    ours = Generator(seed)
    recipe = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4, seed=ours),
            transforms.RandomHorizontalFlip(seed=ours),
            transforms.ToArray(),
            transforms.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.1]),
        ]
    )
    torch.manual_seed(seed)
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.1])
    for image in images:
        padded = torch.nn.functional.pad(torch.from_numpy(image).permute(2, 0, 1), [4] * 4)
        top, left, h, w = crop_params(40, 40, 32, 32)
        want = padded[:, top : top + h, left : left + w]
        want = want.flip(-1) if torch.rand(1) < 0.5 else want
        want = (want.to(torch.float32).div(255) - mean[:, None, None]) / std[:, None, None]
        got = recipe(image if kind == "array" else Image.fromarray(image))
        assert got.dtype == np.float32
        assert np.array_equal(got, want.permute(1, 2, 0).numpy())
    assert np.array_equal(ours.get_state(), torch.get_rng_state().numpy())


class Places(TensorDataset):
    """Row i is where a crop begins."""

    def __init__(self, transform, n=12):
        super().__init__(np.zeros((n, 9, 9), np.float32))
        self.transform = transform

    def __getitem__(self, i):
        return np.float32(self.transform._corner((99, 99)))


def test_workers_draw_from_their_own_generators():
    crop = transforms.RandomCrop(9, seed=0)
    loader = DataLoader(Places(crop), 2, num_workers=2, seed=3)
    seed = Generator(3).draw_seed()
    got = [batch.tolist() for batch in loader]
    workers = [Generator(seed), Generator(seed + 1)]
    want = [
        [[float(workers[b % 2].randint(0, 91, (1,))[0]) for _ in "hw"] for _ in range(2)] for b in range(6)
    ]
    assert got == want
    assert crop._own.get_state().tolist() == Generator(0).get_state().tolist()


def test_a_crop_of_the_whole_image_draws_nothing():
    ours = Generator(3)
    assert transforms.RandomCrop((5, 7), seed=ours)._corner((5, 7)) == (0, 0)
    assert np.array_equal(ours.get_state(), Generator(3).get_state())


def test_a_transform_goes_to_another_process():
    crop = pickle.loads(pickle.dumps(transforms.RandomCrop(4, seed=7)))
    assert crop._corner((99, 99)) == transforms.RandomCrop(4, seed=7)._corner((99, 99))


# ------------------------------------------------------------------------------- borders and middles


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [2, (2,), (1, 3), (1, 2, 3, 4)], ids=str)
def test_borders(padding, mode):
    x = pixels(9, 8, 3)
    sides = (np.atleast_1d(padding).tolist() * 4)[:4]
    left, top, right, bottom = sides
    h, w = 9 + top + bottom, 8 + left + right
    got = transforms.RandomCrop((h, w), padding, fill=7, padding_mode=mode)(x)
    fill = {"constant_values": 7} if mode == "constant" else {}
    assert np.array_equal(got, np.pad(x, [(top, bottom), (left, right), (0, 0)], mode, **fill))


def test_a_border_of_a_colour_and_pad_if_needed():
    got = transforms.RandomCrop((3, 3), 1, fill=(1, 2, 3))(np.zeros((1, 1, 3), np.uint8))
    assert got[0, 0].tolist() == [1, 2, 3]
    assert got[1, 1].tolist() == [0, 0, 0]
    x = pixels(5, 20)
    got = transforms.RandomCrop((12, 20), pad_if_needed=True, seed=1)(x)
    draws = Generator(1)  # a border of 7 above and below, so 19 rows
    top = int(draws.randint(0, 8, (1,))[0])
    assert np.array_equal(got, np.pad(x, [(7, 7), (0, 0)])[top : top + 12])


@pytest.mark.parametrize("size", [4, 5, (4, 9), (12, 3), (15, 16), (10, 7)], ids=str)
@pytest.mark.parametrize("shape", [(10, 7), (9, 8, 3)], ids=str)
def test_the_middle(size, shape):
    """Against PIL: an image whose middle is cut out with a box beyond its border is filled with zeros."""
    x = pixels(*shape)
    h, w = (size, size) if isinstance(size, int) else size
    have_h, have_w = max(h, shape[0]), max(w, shape[1])
    top = round((have_h - h) / 2) - max(0, h - shape[0]) // 2
    left = round((have_w - w) / 2) - max(0, w - shape[1]) // 2
    want = Image.fromarray(x).crop((left, top, left + w, top + h))
    for image in (x, Image.fromarray(x)):
        assert np.array_equal(transforms.CenterCrop(size)(image), np.asarray(want))


# -------------------------------------------------------------------------------------------- ToArray


def test_to_array():
    x = pixels(3, 4)
    gray = transforms.ToArray()(Image.fromarray(x))
    assert gray.shape == (3, 4, 1)
    assert np.array_equal(gray[:, :, 0], torch.from_numpy(x).to(torch.float32).div(255).numpy())
    bits = transforms.ToArray()(Image.fromarray(x > 100))
    assert np.array_equal(bits[:, :, 0], (x > 100).astype(np.float32))
    floats = RNG.random((3, 4, 2))
    got = transforms.ToArray()(floats[:, ::-1])
    assert np.array_equal(got, floats[:, ::-1])
    assert got.flags.c_contiguous
    assert not np.shares_memory(got, floats)
    assert transforms.ToArray()(x.astype(np.int32)).dtype == np.int32


BAD = {
    "a list as image": (lambda: transforms.ToArray()([[1]]), TypeError, "should be PIL Image or ndarray"),
    "four axes": (lambda: transforms.ToArray()(np.zeros((1, 2, 3, 4))), ValueError, "2/3 dimensional"),
    "a palette": (
        lambda: transforms.Resize(2)(Image.fromarray(pixels(4, 4)).convert("P")),
        ValueError,
        r"convert\('RGB'\)",
    ),
    "integers to resize": (
        lambda: transforms.Resize(2)(np.zeros((4, 4), np.int32)),
        TypeError,
        "not int32; img.astype",
    ),
    "a small image": (
        lambda: transforms.RandomCrop(8)(pixels(7, 9)),
        ValueError,
        r"Required crop size \(8, 8\) is larger than input image size \(7, 9\); pad_if_needed",
    ),
    "three sides": (lambda: transforms.RandomCrop(8, (1, 2, 3)), ValueError, "a 3 element tuple"),
    "another mode": (lambda: transforms.RandomCrop(8, padding_mode="wrap"), ValueError, "'wrap'"),
    "three sizes": (lambda: transforms.CenterCrop((1, 2, 3)), ValueError, "only two dimensions"),
    "nearest": (lambda: transforms.Resize(8, "nearest"), ValueError, "interpolation='nearest'"),
    "no antialias": (lambda: transforms.Resize(8, antialias=False), ValueError, "antialias=False"),
    "max_size": (lambda: transforms.Resize(8, max_size=8), ValueError, "strictly greater"),
    "a scale": (lambda: transforms.RandomResizedCrop(8, scale=0.5), TypeError, "Scale should be a sequence"),
    "a ratio": (lambda: transforms.RandomResizedCrop(8, ratio=(2, 1)), ValueError, r"kind \(min, max\)"),
    "a probability": (lambda: transforms.RandomHorizontalFlip(1.5), ValueError, "in \\[0, 1\\]"),
    "bytes to normalize": (
        lambda: transforms.Normalize([0], [1])(pixels(2, 2, 1)),
        TypeError,
        "ToArray before",
    ),
    "a std of 0": (
        lambda: transforms.Normalize([0], [0])(np.zeros((2, 2, 1), np.float32)),
        ValueError,
        "std evaluated to zero after conversion to float32",
    ),
    "channels": (
        lambda: transforms.Normalize([0, 0], [1, 1])(np.zeros((2, 2, 3), np.float32)),
        ValueError,
        r"mean has 2 numbers, and the image of shape \(2, 2, 3\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case):
    make, kind, text = BAD[case]
    with pytest.raises(kind, match=text):
        make()


def test_threads_do_not_mix_their_draws():
    """Outside of workers a transform belongs to one thread; in workers each has its own."""
    seen = []
    crop = transforms.RandomCrop(9, seed=0)
    thread = threading.Thread(target=lambda: seen.append(crop._corner((99, 99))))
    thread.start()
    thread.join()
    assert seen == [transforms.RandomCrop(9, seed=0)._corner((99, 99))]


@pytest.mark.parametrize("seed", range(20))
def test_torchvision_itself(seed):
    theirs = pytest.importorskip("torchvision.transforms", reason="no torchvision", exc_type=ImportError)
    ours = Generator(seed)
    torch.manual_seed(seed)
    image = Image.fromarray(pixels(*map(int, RNG.integers(40, 120, 2)), 3))
    resized = theirs.functional.pil_to_tensor(theirs.Resize(36)(image)).numpy()
    assert np.array_equal(transforms.Resize(36)(image), resized.transpose(1, 2, 0))

    def recipe(kit, last, **draw):
        return kit.Compose(
            [
                kit.RandomResizedCrop(24, **draw),
                kit.RandomCrop(24, padding=4, padding_mode="reflect", **draw),
                kit.RandomHorizontalFlip(**draw),
                kit.CenterCrop(28),
                last,
                kit.Normalize([0.5] * 3, [0.2, 0.3, 0.4]),
            ]
        )

    want = recipe(theirs, theirs.ToTensor())(image).numpy().transpose(1, 2, 0)
    assert np.array_equal(recipe(transforms, transforms.ToArray(), seed=ours)(image), want)
    assert np.array_equal(ours.get_state(), torch.get_rng_state().numpy())
