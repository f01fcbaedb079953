"""Activations, dropout without chance, Bilinear: torch's call, jaxpar's, and the inputs.

Steps of a half, so that many inputs are at a kink.
"""

from against_torch.layers import Case, Refused


def kinks(*shape):
    return lambda random: random.randint(-5, 6, shape) / 2


def function(call):
    return Case(f"lambda x: functional.{call}", inputs=(kinks(3, 20),), channels=None)


CASES = [
    Case("PReLU()", inputs=(kinks(3, 5, 4),)),
    Case("PReLU(4, 0.1)", inputs=(kinks(3, 5, 2, 4),)),
    Case("PReLU(4)", inputs=(kinks(3, 4),)),
    Case("PReLU(1)", inputs=(kinks(6),), channels=None),
    Case("lambda x, w: functional.prelu(x, w)", inputs=(kinks(3, 5, 4), (4,)), channels=(1, None)),
    function("rrelu(x)"),
    function("rrelu(x, 0.1, 0.7)"),
    function("leaky_relu(x)"),
    function("leaky_relu(x, -0.5)"),
    function("hardtanh(x)"),
    function("hardtanh(x, -0.5, 2.0)"),
    function("softshrink(x)"),
    function("softshrink(x, 0.0)"),
    function("hardshrink(x)"),
    function("hardshrink(x, 1.0)"),
    function("threshold(x, 0.5, -3.0)"),
    function("gelu(x)"),
    function("gelu(x, approximate='tanh')"),
    *[
        Case(
            f"lambda x: functional.normalize(x, {options})",
            inputs=(lambda random: random.randint(-1, 2, (5, 3, 2)).astype(float),),
            channels=None,
            clamps=options == "2.0, 2, 1.0",  # a vector of 1 and 0 has just this norm
        )
        for options in ("", "2.0, -1", "1.0, 0", "3.0, 1, 0.5", "float('inf')", "2.0, 2, 1.0")
    ],
    *[
        Case(f"{name}(p={p})", f"{ours}(p={p})", inputs=((3, 4, 5, 6),))
        for p in (0, 1)
        for name, ours in [
            ("Dropout", "Dropout"),
            ("Dropout2d", "FeatureDropout"),
            ("AlphaDropout", "AlphaDropout"),
            ("FeatureAlphaDropout", "FeatureAlphaDropout"),
        ]
    ],
    Case("Bilinear(3, 4, 5)", inputs=((6, 3), (6, 4)), channels=None),
    Case("Bilinear(3, 4, 1, bias=False)", inputs=((2, 3, 3), (2, 3, 4)), channels=None),
]

X, TWO = "torch.zeros(2, 4, 3)", "jnp.ones(2)"
REFUSED = [
    *[
        Refused(f"{theirs}({p})", f"{ours}({p})", ValueError, f"has to be between 0 and 1, but got {p}")
        for p in (1.5, -0.1)
        for theirs, ours in [
            ("Dropout", "Dropout"),
            ("Dropout1d", "FeatureDropout"),
            ("AlphaDropout", "AlphaDropout"),
            ("FeatureAlphaDropout", "FeatureAlphaDropout"),
        ]
    ],
    Refused("RReLU(0.5, 0.1)", "RReLU(0.5, 0.1)", ValueError, "Lower bound should be", inputs=((2,),)),
    Refused("Bilinear(0, 2, 3)", "Bilinear(0, 2, 3)", ValueError, "in1_features must be > 0, but got"),
    Refused(
        f"PReLU(3)({X})", "PReLU(3)(jnp.zeros((2, 3, 4)))", ValueError,
        "Found parameter numbers = 3 and channel size = 4",
    ),
    Refused(
        "Bilinear(3, 4, 5)(torch.zeros(2, 3), torch.zeros(3, 4))",
        "Bilinear(3, 4, 5)(jnp.zeros((2, 3)), jnp.zeros((3, 4)))", ValueError,
        "input batch dimensions do not match: (2,) and (3,)",
    ),
    Refused(
        "Bilinear(3, 4, 5)(torch.zeros(2, 4), torch.zeros(2, 4))",
        "Bilinear(3, 4, 5)(jnp.zeros((2, 4)), jnp.zeros((2, 4)))", ValueError, "got 4 but expected 3",
    ),
    *[
        Refused(f"functional.{call}".format(X), f"functional.{call}".format(TWO), ValueError, reason)
        for call, reason in {
            "hardtanh({}, 2.0, 1.0)": "max_val (1.0) must be greater than min_val (2.0)",
            "softshrink({}, -1.0)": "lambda must be greater or equal to 0, but found to be -1.0",
            "gelu({}, approximate='foo')": "approximate argument must be either none or tanh",
        }.items()
    ],
]  # fmt: skip
