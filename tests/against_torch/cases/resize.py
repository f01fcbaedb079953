"""interpolate, grids, shuffles, folds and pads: torch's call, jaxpar's, and the inputs (channels last)."""

import numpy as np
from against_torch.layers import Case, Refused

SHAPES = {1: (2, 7, 3), 2: (2, 5, 6, 3), 3: (1, 3, 4, 5, 2)}
MODES = {1: ["nearest", "linear"], 2: ["bilinear", "bicubic"], 3: ["nearest-exact", "trilinear", "area"]}
SIZES = ["size=4", "size=11", "scale_factor=1.7", "scale_factor=0.6, recompute_scale_factor=True"]


def same(text, shape, axes="", **more):
    """One text for both sides, torch's names having the number of axes behind them."""
    return Case(text.replace("#", f"{axes}d"), text.replace("#", ""), (shape,), **more)


def resized(options, axes=2):
    return same(f"lambda x: functional.interpolate(x, {options})", SHAPES[axes])


def sampled(options, axes=2, low=-1.5, high=1.5):
    return Case(
        f"lambda x, grid: functional.grid_sample(x, grid, {options})",
        inputs=(SHAPES[axes], lambda random: random.uniform(low, high, (SHAPES[axes][0], *[4] * axes, axes))),
        channels=(1, None),
    )


BORDER = np.array([-1.0, -0.8, 0, 0.8, 1, 3]).repeat(2).reshape(1, 2, 3, 2).repeat(2, 0)

INTERPOLATED = [
    *[resized(f"{size}, mode='{mode}'", axes) for axes in MODES for mode in MODES[axes] for size in SIZES],
    *[
        resized(f"{size}, mode='{mode}', align_corners=True", axes)
        for axes, mode in {1: "linear", 2: "bilinear", 3: "trilinear"}.items()
        for size in ("size=4", "size=1", "scale_factor=2")
    ],
    *[resized(f"{size}, mode='bicubic', align_corners=True") for size in ("size=4", "scale_factor=2.3")],
    *[
        resized(f"{size}, mode='{mode}', antialias=True")
        for mode in ("bilinear", "bicubic", "lanczos")
        for size in ("size=(3, 9)", "scale_factor=(0.6, 1.3)")
    ],
    resized("size=3, mode='bilinear', antialias=True, align_corners=True"),
    resized("scale_factor=(1.1, 2), mode='bilinear'"),
    resized("scale_factor=(1.1, 2), mode='bicubic'"),
    resized("scale_factor=0.5"),
    resized("size=(5, 12)"),
    resized("scale_factor=1.7, mode='area'"),
    same("Upsample(scale_factor=2, mode='bicubic')", SHAPES[2]),
    same("Upsample((3, 4, 7), mode='nearest')", SHAPES[3]),
]

SAMPLED = [
    *[
        sampled(f"'{mode}', '{padding}', {corners}")
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    ],
    *[
        sampled(f"'{mode}', '{padding}', {corners}", 3)
        for mode, padding, corners in [
            ("bilinear", "zeros", True),
            ("bilinear", "reflection", False),
            ("nearest", "border", False),
        ]
    ],
    *[
        sampled(f"'bilinear', '{padding}', {c}", 2, -9, 9)
        for padding, c in [("border", True), ("reflection", False)]
    ],
    *[
        Case(
            f"lambda x, grid: functional.grid_sample(x, grid, '{mode}', '{padding}', {corners})",
            inputs=(SHAPES[2], BORDER),
            channels=(1, None),
        )
        for mode, padding, corners in [
            ("bilinear", "border", True),
            ("bilinear", "reflection", True),
            ("bicubic", "zeros", False),
        ]
    ],
    Case(
        "lambda x, grid: functional.grid_sample(x, grid, 'bilinear', 'reflection', True)",
        inputs=((1, 1, 5, 2), lambda random: random.uniform(-2, 2, (1, 3, 3, 2))),
        channels=(1, None),
    ),
    *[
        Case(
            f"lambda theta: functional.affine_grid(theta, (2, 3, *{size}), {corners})",
            f"lambda theta: functional.affine_grid(theta, (2, *{size}, 3), {corners})",
            ((2, len(size), len(size) + 1),),
            channels=None,
        )
        for size, corners in [((4, 5), True), ((4, 1), False), ((3, 2, 4), True), ((3, 2, 4), False)]
    ],
]

MOVED = [
    same("PixelShuffle(2)", (2, 3, 4, 12)),
    same("PixelUnshuffle(2)", (2, 4, 6, 3)),
    same("ChannelShuffle(3)", (2, 4, 5, 6)),
    Case("lambda x: functional.pixel_shuffle(x, 3)", inputs=((2, 4, 18),), channels=0),
    *[
        Case(f"Unfold({o})", inputs=((2, 7, 8, 3),), channels=1)
        for o in ("3", "(2, 3), dilation=2, padding=1", "3, 2, 4, 3", "(3, 2), 1, (0, 2), (2, 1)")
    ],
    *[
        Case(f"Fold({o})", inputs=((2, blocks, elements),), channels=1)
        for o, blocks, elements in [
            ("(5, 6), 3", 12, 27),
            ("5, (2, 3), dilation=2, padding=1", 15, 18),
            ("(7, 8), (3, 2), 1, (0, 2), (2, 3)", 12, 12),
        ]
    ],
    *[
        same(f"{kind}Pad#({o})", SHAPES[axes], axes)
        for kind, o, axes in [
            ("Reflection", 2, 2),
            ("Reflection", (1, 3, 0, 2), 2),
            ("Reflection", (1, 0, 2, 1, 0, 2), 3),
            ("Replication", 3, 1),
            ("Replication", (7, 9, 0, 6), 2),
            ("Replication", (2, -2, 1, 0), 2),
            ("Circular", 2, 1),
            ("Circular", (6, 1, 0, 5), 2),
            ("Circular", (-1, 2, 3, 1), 2),
            ("Zero", 2, 3),
            ("Zero", (-2, 1, 0, -3), 2),
            ("Constant", "(1, 2, 3, 4), 0.5", 2),
            ("Constant", "1, 0.5", 1),
        ]
    ],
    same("lambda x: functional.pad(x, (1, 2, -1, 3), 'constant', -1.5)", SHAPES[2]),
    same("lambda x: functional.pad(x, (2, 1, 3, 2), 'reflect')", SHAPES[2]),
    same("lambda x: functional.pad(x, (-1, 3, 2, -2), 'reflect')", SHAPES[2]),
    Case(
        "lambda x: functional.pad(x, (1, 2), 'circular')",
        inputs=((7, 3),),
        channels=0,
    ),
]

CASES = INTERPOLATED + SAMPLED + MOVED


def refused(text, ours, error, reason, torch_too=True, inputs=()):
    return Refused(text, ours, error, reason, torch_too, inputs)


IMAGE, OURS = "torch.zeros(1, 2, 8, 8)", "jnp.zeros((1, 8, 8, 2))"


def function(name, arguments, reason, error=ValueError):
    theirs = arguments.replace("X", IMAGE)
    return Refused(
        f"functional.{name}({theirs})", f"functional.{name}({arguments.replace('X', OURS)})", error, reason
    )


GRID = {
    "X, #.zeros((1, 3, 3, 3))": "expected grid to have size 2 in last dimension",
    "X, #.zeros((2, 3, 3, 2))": "expected grid and input to have same batch size",
    "X, #.zeros((1, 3, 2))": "expected 4D or 5D input and grid with same number of dimensions",
    "X, #.zeros((1, 3, 3, 2)), mode='foo'": "expected mode to be 'bilinear', 'nearest' or 'bicubic'",
    "X, #.zeros((1, 3, 3, 2)), padding_mode='foo'": "expected padding_mode to be 'zeros', 'border'",
    "#.zeros((1, 4, 4, 4, 4)), #.zeros((1, 3, 3, 3, 3)), mode='bicubic'": "only supports 4D input",
    "#.zeros((1, 0, 4, 0)), #.zeros((1, 3, 3, 2))": "expected input to have non-empty spatial dimensions",
}
LAYERS = [
    (
        "Upsample(scale_factor=2, mode='nearest', align_corners=True)",
        ValueError,
        "align_corners option can only be",
    ),
    ("Upsample(3, 2)", ValueError, "only one of size or scale_factor should be defined"),
    ("Upsample()", ValueError, "either size or scale_factor should be defined"),
    ("Upsample(3, recompute_scale_factor=True)", ValueError, "not meaningful with an explicit size"),
    ("Upsample(3, mode='cubic')", NotImplementedError, "mode='cubic' is none of nearest, "),
    ("Upsample(3, mode='lanczos')", ValueError, "Lanczos mode requires antialias=True"),
    ("PixelShuffle(0)", ValueError, "pixel_shuffle expects a positive upscale_factor, but got 0"),
    ("PixelUnshuffle(-1)", ValueError, "pixel_unshuffle expects a positive downscale_factor, but got -1"),
    ("ChannelShuffle(0)", ValueError, "Number of groups to divide channels in must be positive"),
    ("Unfold(0)", ValueError, "kernel_size must be greater than zero"),
    ("Unfold(3, stride=0)", ValueError, "stride must be greater than zero"),
    ("Unfold(3, dilation=0)", ValueError, "dilation must be greater than zero"),
    ("Unfold(3, padding=-1)", ValueError, "padding must be non-negative"),
]

REFUSED = [
    *[Refused(text, text, error, reason, inputs=((1, 2, 8, 8),)) for text, error, reason in LAYERS],
    *[
        Refused(
            f"{kind}Pad2d((1, 2, 3))",
            f"{kind}Pad((1, 2, 3))",
            ValueError,
            "must be divisible by 2",
            inputs=((1, 2, 8, 8),),
        )
        for kind in ("Reflection", "Replication", "Circular")
    ],
    *[
        Refused(
            f"functional.grid_sample({arguments.replace('#', 'torch').replace('X', IMAGE)})",
            f"functional.grid_sample({arguments.replace('#', 'jnp').replace('X', OURS)})",
            ValueError,
            reason,
        )
        for arguments, reason in GRID.items()
    ],
    function("interpolate", "X, size=(0, 3)", "Input and output sizes should be greater than 0"),
    function("interpolate", "X, scale_factor=0.01", "Input and output sizes should be greater than 0"),
    function("interpolate", "X, size=(3, 3, 3)", "must have the same number of spatial dimensions"),
    function("interpolate", "X, size=3.5", "expected size to be one of int", TypeError),
    function(
        "interpolate", "X, size=3, mode='trilinear'", "Got 4D input, but trilinear", NotImplementedError
    ),
    function(
        "interpolate", "X, size=3, mode='nearest', antialias=True", "Anti-alias option is restricted to"
    ),
    function(
        "interpolate", "X, size=3, mode='lanczos', antialias=True, align_corners=True", "does not support"
    ),
    function("interpolate", "X[0, 0], size=3", "[N, *S, C] has 3 to 5 axes", NotImplementedError),
    Refused(
        "functional.interpolate(torch.zeros(1, 2, 8, 8).long(), size=3, mode='bilinear')",
        "functional.interpolate(jnp.zeros((1, 8, 8, 2), int), size=3, mode='bilinear')",
        TypeError,
        "is for floating point numbers",
    ),
    function(
        "pixel_shuffle", "X, 2", "divisible by the square of upscale_factor, but 2 is not divisible by 4"
    ),
    function("pixel_unshuffle", "X, 3", "expects height to be divisible by downscale_factor, but 8"),
    function("channel_shuffle", "X, 3", "Got 2 channels and 3 groups"),
    function("unfold", "X, 9", "but its components must be at least one"),
    function(
        "pad", "X, (8, 0, 0, 0), mode='reflect'", "Padding size should be less than the corresponding input"
    ),
    function(
        "pad", "X, (9, 0, 0, 0), mode='circular'", "Padding value causes wrapping around more than once"
    ),
    function("pad", "X, (1,)", "Padding length must be divisible by 2"),
    function("pad", "X, (1, 1, 1, 1), mode='foo'", "Unrecognised padding mode foo", NotImplementedError),
    function("pad", "X, (1, 1, 0, 0), mode='reflect', value=1.0", "doesn't take in value argument"),
    function("pad", "X, (-4, -5, 0, 0)", "leaves nothing of axis 2"),
    function("pad", "X, (0,) * 10", "at most two numbers for each axis"),
    Refused(
        "functional.fold(torch.zeros(1, 18, 8), 5, 3)",
        "functional.fold(jnp.zeros((1, 8, 18)), 5, 3)",
        ValueError,
        "3 * 3 = 9 sliding blocks, but got 8",
    ),
    Refused(
        "functional.fold(torch.zeros(1, 17, 9), 5, 3)",
        "functional.fold(jnp.zeros((1, 9, 17)), 5, 3)",
        ValueError,
        "divisible by the product of kernel_size, but got 17",
    ),
    Refused(
        "functional.affine_grid(torch.zeros(1, 2, 3), (1, 2, 0, 3))",
        "functional.affine_grid(jnp.zeros((1, 2, 3)), (1, 0, 3, 2))",
        ValueError,
        "Expected non-zero, positive output size",
    ),
    Refused(
        "functional.affine_grid(torch.zeros(1, 2, 2), (1, 2, 3, 3))",
        "functional.affine_grid(jnp.zeros((1, 2, 2)), (1, 3, 3, 2))",
        ValueError,
        "Expected a batch of affine matrices",
    ),
    Refused(
        "functional.affine_grid(torch.zeros(1, 2, 3).long(), (1, 2, 3, 3))",
        "functional.affine_grid(jnp.zeros((1, 2, 3), int), (1, 3, 3, 2))",
        ValueError,
        "Expected theta to have floating point type",
    ),
]
