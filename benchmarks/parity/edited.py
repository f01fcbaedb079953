"""Healthy pairs as texts, and small edits of one line that a comparison may not see."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

TEXTS = Path(__file__).parent / "texts"


def numbers(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randn(*shape)


@dataclasses.dataclass(frozen=True)
class Pair:
    """`options` are those of `compare`; the texts are the halves of a file of `texts`."""

    options: dict


IMAGES = {"inputs": numbers(2, 3, 8, 8), "layout": "channels_last"}
TOKENS = np.array([[1, 2, 3, 4], [4, 3, 2, 5]])
PAIRS = {
    "mlp": Pair({"inputs": numbers(4, 6)}),
    "mlp_evaluated": Pair({"inputs": numbers(4, 6), "training": False}),
    "cnn": Pair(IMAGES),
    "cnn_evaluated": Pair({**IMAGES, "training": False}),
    "tokens": Pair({"inputs": (TOKENS, np.ones((2, 4)))}),
    "attention": Pair({"inputs": numbers(2, 4, 8)}),
    "gated": Pair({"inputs": numbers(3, 6)}),
    "routed": Pair({"inputs": numbers(4, 6)}),
    "one_row": Pair({"inputs": numbers(1, 6), "targets": np.array([2])}),
    "trained": Pair({"inputs": numbers(4, 6), "targets": np.array([0, 1, 2, 1])}),
}


@dataclasses.dataclass(frozen=True)
class Edit:
    """A pattern of one line and its replacement, for a side; `text` matches a sentence on the consequence.

    A newline of the replacement has the indentation of the line: what follows is a line of its own.
    """

    side: str
    pattern: str
    replacement: str
    text: str = ""


X = r"^( +)x = (?!self\.|x\.clamp).*$"
TIMES = r"\b\d+\.\d+(?:e-?\d+)?\b|\b\d+e-?\d+\b"
EDITS = {
    "a constant by 1 %, torch": Edit(
        "torch", TIMES, "<1.01>", r"eps=|underflow|is too small|evaluat|no norm"
    ),
    "a constant by 1 %, JAX": Edit("jax", TIMES, "<1.01>", r"eps=|underflow|is too small|evaluat|no norm"),
    "tanh in gelu, torch": Edit("torch", r"F\.gelu\((.*)\)$", r'F.gelu(\1, approximate="tanh")'),
    "tanh in gelu, JAX": Edit("jax", "approximate=False", "approximate=True"),
    "relu6 for relu, torch": Edit("torch", r"F\.relu\(", "F.relu6(", "relu6 gets no number above 6"),
    "relu6 for relu, JAX": Edit("jax", r"nnx\.relu\(", "nnx.relu6("),
    "relu for relu6, torch": Edit("torch", r"F\.relu6\(", "F.relu(", "relu6|one side of min"),
    "relu for relu6, JAX": Edit("jax", r"nnx\.relu6\(", "nnx.relu(", "relu6"),
    "maximum for relu, JAX": Edit("jax", r"nnx\.relu\((.*?)\)$", r"jnp.maximum(\1, 0)", "derivative of relu"),
    "a clamp, torch": Edit("torch", X, r"\g<0>\n\1x = x.clamp(-1e3, 1e3)"),
    "a clip, JAX": Edit("jax", X, r"\g<0>\n\1x = jnp.clip(x, -1e3, 1e3)"),
    "a branch on data, torch": Edit("torch", X, r"\g<0>\n\1x = -x if x.sum() > 1e3 else x"),
    "cond, JAX": Edit("jax", X, r"\g<0>\n\1x = jax.lax.cond(x.sum() > 1e3, lambda x: -x, lambda x: x, x)"),
    "where, torch": Edit("torch", X, r"\g<0>\n\1x = torch.where(x > 1e3, 0 * x, x)"),
    "where, JAX": Edit("jax", X, r"\g<0>\n\1x = jnp.where(x > 1e3, 0 * x, x)"),
    "an epsilon, torch": Edit("torch", X, r"\g<0>\n\1x = x + 1e-13"),
    "an epsilon, JAX": Edit("jax", X, r"\g<0>\n\1x = x + 1e-13"),
    "a cast, torch": Edit("torch", X, r"\g<0>\n\1x = x.bfloat16().to(x.dtype)"),
    "a cast, JAX": Edit("jax", X, r"\g<0>\n\1x = x.astype(jnp.bfloat16).astype(x.dtype)"),
    "a branch on the shape, torch": Edit("torch", X, r"\g<0>\n\1x = 2 * x if len(x) > 64 else x"),
    "a branch on the shape, JAX": Edit("jax", X, r"\g<0>\n\1x = 2 * x if len(x) > 64 else x"),
    "a sign of large numbers, torch": Edit("torch", X, r"\g<0>\n\1x = torch.remainder(x + 1e3, 1e6) - 1e3"),
    "a maximum, JAX": Edit("jax", X, r"\g<0>\n\1x = jnp.maximum(x, -1e3)"),
    "a minimum, torch": Edit("torch", X, r"\g<0>\n\1x = torch.minimum(x, torch.full_like(x, 1e3))"),
    "a bias that starts at 0, torch": Edit("torch", X, r"\g<0>\n\1x = x + self.zeros"),
    "an argument, torch": Edit(
        "torch",
        r"def forward\(self, x\):",
        r"def forward(self, x, scale=1.0):\n        x = scale * x",
        "scale",
    ),
    "an argument, JAX": Edit(
        "jax",
        r"def __call__\(self, x\):",
        r"def __call__(self, x, scale=1.0):\n        x = scale * x",
        "scale",
    ),
    "no mask, torch": Edit("torch", r" \* mask\[\.\.\., None\]", "", "other numbers in 1"),
    "no mask, JAX": Edit("jax", r" \* mask\[\.\.\., None\]", "", "other numbers in 1"),
    "no padding_idx, torch": Edit("torch", ", padding_idx=0", "", "rows of words|no index 0"),
    "no padding_idx, JAX": Edit("jax", ", padding_idx=0", "", "rows of words|no index 0"),
    "narrow tokens, torch": Edit(
        "torch", r"self\.words\(tokens\)", "self.words(tokens.to(torch.int8).long())"
    ),
    "narrow tokens, JAX": Edit("jax", r"self\.words\(tokens\)", "self.words(tokens.astype(jnp.int8))"),
    "a remainder of tokens, torch": Edit("torch", r"self\.words\(tokens\)", "self.words(tokens % 5000)"),
    "a remainder of tokens, JAX": Edit("jax", r"self\.words\(tokens\)", "self.words(tokens % 5000)"),
    "a transpose less, torch": Edit("torch", r"\.transpose\(1, 2\)", ""),
    "another axis, JAX": Edit("jax", r"axis=-1\b", "axis=-2"),
    "another axis, torch": Edit("torch", r"softmax\(-1\)", "softmax(-2)"),
    "amax for max, torch": Edit("torch", r"\.max\(-1\)\.values", ".amax(-1)", "equal numbers"),
    "argmax for max, JAX": Edit(
        "jax",
        r"(\w+)\.max\(-1\)",
        r"jnp.take_along_axis(\1, \1.argmax(-1)[:, None], -1)[:, 0]",
        "equal numbers",
    ),
    "ceil_mode, torch": Edit(
        "torch", r"max_pool2d\((\w+), 2\)", r"max_pool2d(\1, 2, ceil_mode=True)", "last window"
    ),
    "SAME, JAX": Edit("jax", r"padding=1, strides=2", 'padding="SAME", strides=2', "last window"),
    "another ignored target, torch": Edit(
        "torch", "ignore_index=-1", "ignore_index=-2", "no target|one side of where"
    ),
    "the sum of a loss, torch": Edit("torch", 'reduction="mean"', 'reduction="sum"', "axes of length 1"),
    "the sum of a loss, JAX": Edit("jax", r"\.mean\(\)", ".sum()", "axes of length 1"),
    "amsgrad, torch": Edit("torch", r"Adam\(parameters, ", "Adam(parameters, amsgrad=True, lr=", "amsgrad"),
    "a schedule, JAX": Edit(
        "jax",
        r"optax\.adam\((\S+?), ",
        r"optax.adam(optax.piecewise_constant_schedule(\1, {9: 0.1}), ",
        "schedules",
    ),
    "clipped gradients, JAX": Edit(
        "jax",
        r"= (optax\.adam\(.*\))$",
        r"= optax.chain(optax.clip_by_global_norm(1e3), \1)",
        "where in the model",
    ),
    "other mode, torch": Edit("torch", X, r"\g<0>\n\1x = 2 * x if self.training != MODE else x"),
    "dropout in the other mode, JAX": Edit(
        "jax", r"^( +)(self\.\w+ = .*)$", r"\g<0>\n\1self.more = nnx.Dropout(0.5, rngs=nnx.Rngs(0))", "more"
    ),
}


@dataclasses.dataclass(frozen=True)
class Change:
    """An edit at one place: the text after it, and the line."""

    name: str
    side: str
    line: int
    source: str
    text: str


@dataclasses.dataclass(frozen=True)
class Edited:
    pair: str
    changes: tuple[Change, ...]

    @property
    def title(self) -> str:
        return f"{self.pair}: " + "; ".join(f"{change.name}, line {change.line}" for change in self.changes)


def source(pair: str, side: str) -> str:
    text = (TEXTS / f"{pair.removesuffix('_evaluated')}_{side}.txt").read_text()
    return text.replace("MODE", str(not pair.endswith("_evaluated")))


def written(case: Edited, side: str) -> str:
    changed = [change.source for change in case.changes if change.side == side]
    return changed[0] if changed else source(case.pair, side)


def changes(pair: str) -> Iterator[Change]:
    """Yield every edit at every place where it fits."""
    mode = str(not pair.endswith("_evaluated"))
    for name, edit in EDITS.items():
        lines = source(pair, edit.side).splitlines()
        for i, line in enumerate(lines):
            for match in re.finditer(edit.pattern, line):
                new = (
                    f"{float(match[0]) * 1.01:.10g}"
                    if edit.replacement == "<1.01>"
                    else match.expand(edit.replacement)
                )
                new = new.replace("MODE", mode)
                if "self.zeros" in new and not any("self.zeros =" in x for x in lines):
                    continue
                whole = line[: match.start()] + new + line[match.end() :]
                text = "\n".join([*lines[:i], whole, *lines[i + 1 :]]) + "\n"
                if name.startswith("dropout in"):
                    text = re.sub(
                        r"\n( +)return ([^\n]*)\n(?![^\n]*return)",
                        r"\n\1return self.more(\2)\n",
                        text,
                        count=1,
                    )
                yield Change(name, edit.side, i + 1 + new.count("\n"), text, edit.text)


def frame() -> list[Edited]:
    """Return every pair with one change, and with two of which each side has one."""
    cases = []
    for pair in PAIRS:
        each = list(changes(pair))
        cases += [Edited(pair, (change,)) for change in each]
        sides = [[change for change in each if change.side == side] for side in ("torch", "jax")]
        cases += [Edited(pair, both) for both in zip(sides[0], reversed(sides[1]), strict=False)]
    return cases
