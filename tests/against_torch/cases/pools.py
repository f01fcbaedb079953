"""Pools: torch's call, jaxpar's, and the inputs (channels last). Small integers are full of ties."""

import numpy as np
from against_torch.layers import Case, Refused


def ties(*shape):
    return lambda random: random.randint(-2, 3, shape).astype(float)


def row(name, options, inputs, axes):
    return Case(f"{name}{axes}d({options})", f"{name}({options})", inputs)


MAX = [
    "2",
    "3, stride=2, padding=1",
    "3, 2, 1, ceil_mode=True",
    "2, 3, 1, ceil_mode=True",
    "3, 1, 1, 2",
    "3, 2, 0, 2, ceil_mode=True",
    "3, 2, return_indices=True",
    "3, 2, 1, 2, True, True",
]
MAX_2D = ["(3, 2), (2, 1), (1, 0), (1, 2)", "(2, 3), ceil_mode=True, return_indices=True"]
AVERAGE = [
    "2",
    "3, 2, 1",
    "3, 2, 1, True",
    "3, 2, 1, True, False",
    "2, 3, 1, ceil_mode=True",
    "3, 1, 1, count_include_pad=False",
]
AVERAGE_2D = ["(3, 2), (2, 1), (1, 0), True, False", "3, 2, 1, True, True, 5", "2, divisor_override=-3"]
ADAPTIVE = [(1, 3), (1, 4), (2, 1), (2, 3), (2, 4), (2, 11)]
SHAPES = {1: (2, 9, 3), 2: (2, 8, 7, 3), 3: (1, 5, 6, 5, 2)}


CASES = [
    *[row("MaxPool", o, (ties(*SHAPES[2]),), 2) for o in MAX + MAX_2D],
    *[row("MaxPool", o, (ties(*SHAPES[axes]),), axes) for axes in (1, 3) for o in (MAX[2], MAX[7])],
    row("MaxPool", "3, 2, 1, return_indices=True", (lambda random: np.full((1, 6, 6, 2), -np.inf),), 2),
    *[row("AvgPool", o, (SHAPES[2],), 2) for o in AVERAGE + AVERAGE_2D],
    *[row("AvgPool", o, (SHAPES[1],), 1) for o in (AVERAGE[0], AVERAGE[4])],
    *[row("AvgPool", o, (SHAPES[3],), 3) for o in (AVERAGE[3], AVERAGE_2D[1])],
    *[row("AdaptiveAvgPool", str(o), (SHAPES[axes],), axes) for axes, o in ADAPTIVE],
    *[
        row("AdaptiveMaxPool", f"{o}, return_indices=True", (ties(*SHAPES[axes]),), axes)
        for axes, o in ADAPTIVE
    ],
    *[row("AdaptiveAvgPool", o, (SHAPES[2],), 2) for o in ("(None, 2)", "(3, 7)")],
    *[row("AdaptiveMaxPool", o, (ties(*SHAPES[2]),), 2) for o in ("(None, 2)", "(3, 7)")],
    row("AdaptiveAvgPool", "(2, 4, 3)", (SHAPES[3],), 3),
    row("AdaptiveMaxPool", "(2, 4, 3), True", (ties(*SHAPES[3]),), 3),
    *[
        row("LPPool", o, (lambda random, axes=axes: random.uniform(0.1, 1, SHAPES[axes]),), axes)
        for axes, o in [(1, "3.0, 2"), (2, "1.5, 3, 2, True"), (3, "-1, 2, 1")]
    ],
    row("LPPool", "2, 3, 1", (SHAPES[2],), 2),  # of negative numbers too
    row("LPPool", "3, 2", (SHAPES[2],), 2),  # negative sums: 0 and NaN where torch has them
    *[
        Case(
            f"lambda x: functional.max_unpool{axes}d(*functional.max_pool{axes}d(x, {pool}, "
            f"return_indices=True), {pool}, output_size=x.shape[2:])",
            f"lambda x: functional.max_unpool(*functional.max_pool(x, {pool}, return_indices=True), {pool}, "
            "output_size=x.shape[1:-1])",
            (SHAPES[axes],),
        )
        for axes, pool in [(1, "3, 2"), (2, "2"), (2, "3, 2, 1"), (3, "2")]
    ],
    Case("MaxUnpool2d(2)", "MaxUnpool(2)", ((1, 2, 2, 3), np.arange(12).reshape(1, 2, 2, 3) % 5)),
    # Without a batch.
    Case(
        "lambda x: functional.max_pool2d(x, (2, 2))",
        "lambda x: functional.max_pool(x, (2, 2))",
        (ties(6, 5, 3),),
        channels=0,
    ),
    Case(
        "lambda x: functional.avg_pool2d(x, (2, 2), ceil_mode=True)",
        "lambda x: functional.avg_pool(x, (2, 2), ceil_mode=True)",
        ((6, 5, 3),),
        channels=0,
    ),
]

IMAGE = ((1, 3, 8, 8),)
REFUSED = [
    Refused(f"{kind}Pool2d({o})", f"{kind}Pool({o})", ValueError, reason, inputs=IMAGE)
    for kind in ("Max", "Avg")
    for o, reason in {
        "3, padding=2": "padding should be at most half of kernel size, but got padding=2 and kernel_size=3",
        "3, padding=-1": "padding must be non-negative, but got -1",
        "0": "kernel_size must be greater than zero, but got 0",
        "3, 0": "stride must be greater than zero, but got 0",
        "(2, 2), (1, 1, 1)": "stride=(1, 1, 1) has 3 numbers for 2 spatial axes",
    }.items()
] + [
    Refused(
        "MaxPool1d(3, dilation=0)",
        "MaxPool(3, dilation=0)",
        ValueError,
        "dilation must be greater than zero",
        inputs=((1, 3, 8),),
    ),
    Refused(
        "MaxPool2d(3, dilation=2, padding=2)",
        "MaxPool(3, dilation=2, padding=2)",
        ValueError,
        "at most half of kernel size",
        inputs=IMAGE,
    ),
    Refused(
        "AvgPool2d(3, divisor_override=0)",
        "AvgPool(3, divisor_override=0)",
        ValueError,
        "divisor must be not zero",
        inputs=IMAGE,
    ),
    Refused(
        "AdaptiveAvgPool2d((-1, 2))",
        "AdaptiveAvgPool((-1, 2))",
        ValueError,
        "elements of output_size must be greater than or equal to 0 but received (-1, 2)",
        inputs=IMAGE,
    ),
    Refused(
        "AdaptiveMaxPool2d(-1)",
        "AdaptiveMaxPool(-1)",
        ValueError,
        "elements of output_size must be greater than or equal to 0",
        inputs=IMAGE,
    ),
    Refused("LPPool2d(0, 2)", "LPPool(0, 2)", ValueError, "division by zero", inputs=IMAGE),
    Refused(
        "functional.max_pool2d(torch.zeros(1, 1, 8, 8), 9)",
        "functional.max_pool(jnp.zeros((1, 8, 8, 1)), 9)",
        ValueError,
        "Given input size (8, 8). Calculated output size (0, 0). Output size is too small",
    ),
    Refused(
        "functional.max_unpool2d(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 7).long(), 2)",
        "functional.max_unpool(jnp.zeros((1, 8, 8, 1)), jnp.zeros((1, 8, 7, 1), int), 2)",
        ValueError,
        "Expected shape of indices to be same as that of the input tensor",
    ),
    Refused(
        "functional.max_unpool2d(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8).long(), 2, "
        "output_size=(30, 30))",
        "functional.max_unpool(jnp.zeros((1, 8, 8, 1)), jnp.zeros((1, 8, 8, 1), int), 2, None, 0, (30, 30))",
        ValueError,
        "(dim 0 must be between 14 and 18)",
    ),
    Refused(
        "functional.adaptive_avg_pool2d(torch.zeros(1, 2, 0, 3), 2)",
        "functional.adaptive_avg_pool(jnp.zeros((1, 0, 3, 2)), 2)",
        ValueError,
        "Expected input to have non-zero size for non-batch dimensions",
    ),
    Refused(
        "FractionalMaxPool2d(3, output_size=2)", "FractionalMaxPool", NameError, "FractionalMaxPool", False
    ),
]
