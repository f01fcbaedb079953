"""WeightNorm and SpectralNorm: torch's call, jaxpar's, and the inputs (channels last)."""

from against_torch.layers import Case, Refused

LINEAR = "nnx.Linear(4, 6, param_dtype=jnp.float64, rngs=nnx.Rngs(0))"
PICTURE = ((2, 5, 6, 4),)


def weight_norm(layer, more="", ours="", inputs=((3, 4),)):
    return Case(
        f"utils.parametrizations.weight_norm({layer}{more})",
        f"WeightNorm({LINEAR if layer == 'Linear(4, 6)' else layer.replace('2d', '')}{ours})",
        inputs,
    )


def spectral_norm(layer, more="", ours="", inputs=((3, 4),)):
    return Case(
        f"utils.parametrizations.spectral_norm({layer}{more})",
        f"SpectralNorm({LINEAR if layer == 'Linear(4, 6)' else layer.replace('2d', '')}{ours or more})",
        inputs,
    )


CASES = [
    weight_norm("Linear(4, 6)"),
    weight_norm("Linear(4, 6)", ", dim=1", ", dim=0"),
    weight_norm("Linear(4, 6)", ", dim=None", ", dim=None"),
    weight_norm("Conv2d(4, 6, (3, 2))", inputs=PICTURE),
    weight_norm("Conv2d(4, 6, (3, 2), groups=2)", ", dim=1", ", dim=-2", inputs=PICTURE),
    weight_norm("ConvTranspose2d(4, 6, (3, 2))", inputs=PICTURE),
    spectral_norm("Linear(4, 6)"),
    spectral_norm("Linear(4, 6)", ", n_power_iterations=3, eps=1e-3"),
    spectral_norm("Linear(4, 6)", ", dim=1", ", dim=0"),
    spectral_norm("Linear(4, 6)", ", name='bias'"),
    spectral_norm("Conv2d(4, 6, (3, 2), groups=2)", inputs=PICTURE),
    spectral_norm("Conv2d(4, 6, (3, 2))", ", dim=3", ", dim=1", inputs=PICTURE),
    spectral_norm("ConvTranspose2d(4, 6, (3, 2))", ", dim=1", ", dim=-2", inputs=PICTURE),
    spectral_norm("ConvTranspose2d(4, 6, (3, 2))", inputs=PICTURE),
    Case("utils.spectral_norm(Linear(4, 6))", f"SpectralNorm({LINEAR}, first='v')", ((3, 4),)),
    Case(
        "utils.spectral_norm(ConvTranspose2d(4, 6, (3, 2)), n_power_iterations=2)",
        "SpectralNorm(ConvTranspose(4, 6, (3, 2)), n_power_iterations=2, first='v')",
        PICTURE,
    ),
]

NAMES = {
    "utils.parametrizations.weight_norm": "WeightNorm",
    "utils.parametrizations.spectral_norm": "SpectralNorm",
}
REFUSED = [
    Refused(f"{theirs}(Linear(4, 6), {options})", f"{ours}({LINEAR}, {options})", error, reason)
    for theirs, ours, options, error, reason in [
        (*row, *refused)
        for row in NAMES.items()
        for refused in [
            ("'foo'", ValueError, "Linear does not have a parameter with name 'foo'"),
            ("dim=5", IndexError, "Dimension out of range (expected to be in range of [-2, 1], but got 5)"),
        ]
    ]
    + [
        ("utils.parametrizations.spectral_norm", "SpectralNorm", "n_power_iterations=0", ValueError,
         "Expected n_power_iterations to be positive, but got n_power_iterations=0"),
    ]
]  # fmt: skip
