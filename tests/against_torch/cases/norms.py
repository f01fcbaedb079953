"""Normalisations: torch's call, jaxpar's, and the inputs (channels last)."""

from __future__ import annotations

from against_torch.layers import Case, Refused

FLAT, LINE, IMAGE, VOLUME = (5, 6), (5, 4, 6), (4, 3, 2, 6), (3, 2, 2, 2, 6)


def each(kind: str, arguments: list[str], inputs: list[tuple], size: int = 6) -> list[Case]:
    """One case for each list of arguments and each number of axes."""
    cases = []
    for given in arguments:
        for shape in inputs:
            n = max(len(shape) - 2, 1)
            cases.append(Case(f"{kind}{n}d({size}{given})", f"{kind}({size}{given})", (shape,)))
    return cases


def far(shape: tuple):
    """Numbers three hundred times as far from 0 as from each other."""
    return lambda random: 300 + random.randn(*shape)


CASES = [
    *each("BatchNorm", ["", ", momentum=None"], [FLAT, LINE, IMAGE, VOLUME]),
    *each(
        "BatchNorm",
        [
            ", 1e-3, 0.3",
            ", affine=False",
            ", bias=False",
            ", track_running_stats=False",
            ", affine=False, track_running_stats=False",
            ", momentum=0.0",
            ", momentum=1.0",
        ],
        [IMAGE],
    ),
    Case("SyncBatchNorm(6)", "SyncBatchNorm(6)", (IMAGE,)),
    Case("SyncBatchNorm(6, 1e-3, None, bias=False)", inputs=(LINE,)),
    Case("LayerNorm(6)", inputs=(FLAT,), channels=None),
    Case("LayerNorm(6)", inputs=(IMAGE,), channels=None),
    Case("LayerNorm((4, 6))", inputs=(LINE,), channels=None),
    Case("LayerNorm([3, 2, 6], eps=1e-3)", inputs=(IMAGE,), channels=None),
    Case("LayerNorm((4, 6), elementwise_affine=False)", inputs=(LINE,), channels=None),
    Case("LayerNorm((4, 6), bias=False)", inputs=(LINE,), channels=None),
    Case("LayerNorm(6)", inputs=((6,),), channels=None),
    Case("RMSNorm(6)", inputs=(FLAT,), channels=None),
    Case("RMSNorm((4, 6))", inputs=(LINE,), channels=None),
    Case("RMSNorm((3, 2, 6), 1e-3)", inputs=(IMAGE,), channels=None),
    Case("RMSNorm(6, elementwise_affine=False)", inputs=(LINE,), channels=None),
    Case("RMSNorm(6)", inputs=(lambda random: 1e-9 * random.randn(*FLAT),), channels=None),
    Case("GroupNorm(2, 6)", inputs=(FLAT,)),
    Case("GroupNorm(3, 6)", inputs=(LINE,)),
    Case("GroupNorm(6, 6, 1e-3)", inputs=(IMAGE,)),
    Case("GroupNorm(1, 6, affine=False)", inputs=(VOLUME,)),
    Case("GroupNorm(2, 6, bias=False)", inputs=(IMAGE,)),
    *each("InstanceNorm", [""], [LINE, IMAGE, VOLUME]),
    *each(
        "InstanceNorm",
        [
            ", affine=True",
            ", affine=True, bias=False",
            ", 1e-3, affine=True, track_running_stats=True",
            ", momentum=0.3, track_running_stats=True",
            ", momentum=None, track_running_stats=True",
        ],
        [IMAGE],
    ),
    Case("LocalResponseNorm(2)", inputs=(LINE,)),
    Case("LocalResponseNorm(5, alpha=0.1, beta=0.5, k=2.0)", inputs=(IMAGE,)),
    Case("LocalResponseNorm(1, 0.5)", inputs=(VOLUME,)),
    Case("LocalResponseNorm(9, 0.5)", inputs=(LINE,)),
    # Far from 0 the other formula of the variance has lost half of its digits.
    Case("BatchNorm1d(6)", "BatchNorm(6)", (far(LINE),)),
    Case("LayerNorm(6)", inputs=(far(LINE),), channels=None),
    Case("GroupNorm(2, 6)", inputs=(far(LINE),)),
    Case("InstanceNorm1d(6)", "InstanceNorm(6)", (far(LINE),)),
]

REFUSED = [
    Refused("BatchNorm1d(3, eps=-1.0)", "BatchNorm(3, eps=-1.0)", ValueError, "-1.0", inputs=((2, 3),)),
    Refused("LayerNorm(())", "LayerNorm(())", RuntimeError, "at least 1-dimensional", inputs=((2, 3),)),
    Refused("RMSNorm([])", "RMSNorm([])", RuntimeError, "at least 1-dimensional", inputs=((2, 3),)),
    Refused("LayerNorm(2.5)", "LayerNorm(2.5)", TypeError, "normalized_shape is 2.5"),
    Refused(
        "GroupNorm(4, 6)",
        "GroupNorm(4, 6)",
        ValueError,
        "num_channels (6) must be divisible by num_groups (4)",
    ),
    Refused("GroupNorm(0, 6)", "GroupNorm(0, 6)", ValueError, "must be divisible by num_groups (0)"),
    Refused(
        "LocalResponseNorm(0)",
        "LocalResponseNorm(0)",
        RuntimeError,
        "should be greater than zero, but got 0",
        inputs=((2, 3, 4),),
    ),
    Refused(
        "SyncBatchNorm(3, process_group=object())",
        "SyncBatchNorm(3, process_group=object())",
        ValueError,
        "process_group is a object, and not one of",
        torch_too=False,
    ),
]
