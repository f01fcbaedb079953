"""Convolutions and their transposes: torch's call, jaxpar's, and the inputs (channels last)."""

from __future__ import annotations

from against_torch.layers import Case, Refused

I, O = 4, 6
SPACE = {1: (7,), 2: (6, 5), 3: (4, 3, 5)}


def convolution(n: int, arguments: str = "", k: tuple = (), space: tuple = (), **case) -> Case:
    """Conv{n}d and Conv, or their transposes; kernels of 3, 2, 2 if not said otherwise."""
    kind = case.pop("kind", "Conv")
    k = k or (3, 2, 2)[:n]
    given = f"({I}, {O}, {k}{arguments and ', ' + arguments})"
    shape = (2, *(space or SPACE[n]), I)
    return Case(f"{kind}{n}d{given}", kind + given, (case.pop("shape", shape),), **case)


def transposed(n: int, arguments: str = "", **case) -> Case:
    return convolution(n, arguments, kind="ConvTranspose", **case)


def refused(arguments: str, error: type[Exception], reason: str, kind: str = "Conv", **row) -> Refused:
    """Refused for two axes; most by torch at its first call."""
    call = f"({arguments})"
    return Refused(f"{kind}2d{call}", kind + call, error, reason, inputs=((2, 4, 7, 7),), **row)


CASES = [
    *(convolution(n) for n in (1, 2, 3)),
    Case("Conv1d(4, 6, 3)", "Conv(4, 6, 3)", ((2, 7, 4),)),
    Case("Conv2d(4, 6, 3)", "Conv(4, 6, (3, 3))", ((2, 5, 5, 4),)),
    *(convolution(n, "stride=2, padding=1") for n in (1, 2, 3)),
    *(convolution(n, "dilation=2, padding='same'") for n in (1, 2, 3)),
    *(convolution(n, "padding='same'", k=(4, 3, 2)[:n]) for n in (1, 2)),
    convolution(2, "padding='valid', bias=False"),
    convolution(2, "stride=(2, 3), padding=(2, 1), dilation=(1, 2)"),
    convolution(2, "stride=(2,), padding=(1,)"),
    *(convolution(n, "groups=2") for n in (1, 2, 3)),
    Case("Conv2d(4, 8, (2, 2), groups=4)", "Conv(4, 8, (2, 2), groups=4)", ((2, 4, 3, 4),)),
    Case(
        "Conv2d(4, 8, (2, 3), stride=(3, 2), dilation=(1, 2), groups=2)",
        "Conv(4, 8, (2, 3), stride=(3, 2), dilation=(1, 2), groups=2)",
        ((2, 9, 11, 4),),
    ),
    *(
        Case(f"Conv2d({arguments})", f"Conv({arguments})", ((2, 9, 11, channels),))
        for channels, arguments in (
            (12, "12, 12, (2, 3), stride=(3, 2), dilation=(1, 2), groups=6"),
            (6, "6, 12, (2, 2), groups=6"),
        )
    ),
    convolution(2, "stride=(3, 4), padding=1", k=(3, 2), space=(8, 9)),
    convolution(2, "padding=(3, 2)"),
    *(
        convolution(n, f"padding={padding}, padding_mode='{mode}'")
        for mode in ("reflect", "replicate", "circular")
        for n, padding in ((1, 3), (2, (2, 1)), (3, (1, 2, 1)))
    ),
    *(
        convolution(2, f"padding='same', padding_mode='{mode}'", k=(2, 3))
        for mode in ("reflect", "replicate", "circular")
    ),
    convolution(2, "stride=2, padding=2, dilation=2, groups=2, padding_mode='circular'"),
    convolution(1, "padding=7, padding_mode='circular'"),
    convolution(1, "padding=9, padding_mode='replicate'"),
    convolution(1, "padding=-1, padding_mode='reflect'"),
    convolution(1, "padding=-1, padding_mode='circular'"),
    convolution(1, shape=(7, I), channels=0),
    convolution(2, "padding=1, padding_mode='reflect'", shape=(6, 5, I), channels=0),
    convolution(1, k=(7,)),
    *(transposed(n) for n in (1, 2, 3)),
    *(transposed(n, "stride=2, padding=1, output_padding=1") for n in (1, 2, 3)),
    *(transposed(n, "groups=2, stride=2") for n in (1, 2, 3)),
    Case(
        "ConvTranspose2d(4, 8, (2, 3), groups=4, dilation=2)",
        "ConvTranspose(4, 8, (2, 3), groups=4, dilation=2)",
        ((2, 4, 3, 4),),
    ),
    transposed(2, "stride=(2, 3), padding=(0, 2), output_padding=(1, 2), dilation=(2, 1), bias=False"),
    transposed(1, "padding=3"),
    transposed(1, "dilation=3, output_padding=2"),
    transposed(2, "stride=2", options={"output_size": (14, 10)}),
    transposed(1, "stride=3, padding=1, output_padding=1", options={"output_size": (21,)}),
    transposed(1, "stride=2", shape=(7, I), channels=0),
]

REFUSED = [
    refused("4, 6, (3, 3), groups=3", ValueError, "in_channels must be divisible by groups"),
    refused("6, 4, (3, 3), groups=3", ValueError, "out_channels must be divisible by groups"),
    refused("4, 6, (3, 3), groups=0", ValueError, "groups must be a positive integer"),
    refused("4, 6, (3, 3), padding='SAME'", ValueError, "Invalid padding string 'SAME', should be one of"),
    refused(
        "4, 6, (3, 3), padding='same', stride=2",
        ValueError,
        "padding='same' is not supported for strided convolutions",
    ),
    refused("4, 6, (3, 3), padding_mode='constant'", ValueError, "but got padding_mode='constant'"),
    refused("4, 6, (3, 3), stride=0", RuntimeError, "non-positive stride is not supported"),
    refused("4, 6, (3, 3), dilation=(1, 0)", RuntimeError, "non-positive dilation is not supported"),
    refused("4, 6, (0, 3)", RuntimeError, "non-positive kernel_size is not supported"),
    refused("4, 6, (2.5, 3)", TypeError, "kernel_size is (2.5, 3)"),
    refused("4, 6, (3, 3), padding=-1", RuntimeError, "negative padding is not supported"),
    refused("4, 6, (3, 3), stride=(1, 2, 3)", ValueError, "has 3 numbers for 2 spatial axes"),
    refused(
        "4, 6, (3, 3), output_padding=1",
        RuntimeError,
        "output padding must be smaller than either stride or dilation",
        "ConvTranspose",
    ),
    refused(
        "4, 6, (3, 3), stride=2, output_padding=-1",
        RuntimeError,
        "negative output_padding is not supported",
        "ConvTranspose",
    ),
    refused(
        "4, 6, (3, 3), padding_mode='reflect'",
        ValueError,
        'Only "zeros" padding mode is supported for ConvTranspose',
        "ConvTranspose",
    ),
    refused("4, 6, (3, 3), padding='same'", TypeError, "padding must be one or more ints", "ConvTranspose"),
    refused("4, 6, (3, 3), groups=3", ValueError, "in_channels must be divisible by groups", "ConvTranspose"),
]
