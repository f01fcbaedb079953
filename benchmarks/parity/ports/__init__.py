"""Ports as their authors write them, with the lines that plant the bugs of plain code into them.

`PLANTS` has, for a bug of `bugs`, the file and pairs of a healthy text and a wrong one. A planted file
computes the planted module's arrays, as tests/test_mended.py shows.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent

ACTIVATION = "nnx.relu6(20 * self.a(x))"
SPLIT = "(part.reshape(n, t, HEADS, -1) for part in jnp.split(self.qkv(x), 3, -1))"
MASK = "(apart >= 0) & (apart < WINDOW) & real[:, None, None]"
CROSSWISE = ".reshape(*x.shape[:-1], -1, self.heads).swapaxes(-1, -2)"
BY_HEAD = """qkv = self.qkv(x).reshape(n, t, HEADS, 3, -1)
        q, k, v = (qkv[..., i, :] for i in range(3))"""
HEAD = ".reshape(*x.shape[:-1], self.heads, -1)"

PLANTS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "positions off by one": (
        "sequence",
        [("jnp.arange(tokens.shape[1])", "jnp.arange(1, 1 + tokens.shape[1])")],
    ),
    "residual dropped": ("sequence", [("x = x + self.attention(", "x = self.attention(")]),
    "mask polarity": ("masked", [("mask=real[", "mask=~real[")]),
    "query and key swapped": ("sequence", [('"nqhd,nkhd->nhqk", q, k)', '"nqhd,nkhd->nhqk", k, q)')]),
    "heads split crosswise": (
        "sequence",
        [(f"self.{name}(x){HEAD}", f"self.{name}(x){CROSSWISE}") for name in ("query", "key", "value")],
    ),
    "scale of the whole width": ("sequence", [("jnp.sqrt(q.shape[-1])", "jnp.sqrt(x.shape[-1])")]),
    "no scale": ("sequence", [(" / jnp.sqrt(q.shape[-1])", "")]),
    "softmax over queries": ("sequence", [("softmax(scores, axis=-1)", "softmax(scores, axis=-2)")]),
    "no causal mask": (
        "sequence",
        [("        scores = jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf)\n", "")],
    ),
    "norm after the residual": (
        "sequence",
        [("x = x + self.attention(self.norm(x))", "x = self.norm(x + self.attention(x))")],
    ),
    "gelu by hand, tanh's form": (
        "plain",
        [("nnx.gelu(self.gate(y), approximate=False)", "nnx.gelu(self.gate(y))")],
    ),
    "tanh's gelu by hand, exact": ("between", [(ACTIVATION, "nnx.gelu(20 * self.a(x), approximate=False)")]),
    "silu by hand, gelu": ("between", [(ACTIVATION, "nnx.gelu(20 * self.a(x), approximate=False)")]),
    "relu6 by hand, relu": ("between", [("nnx.relu6(", "nnx.relu(")]),
    "leaky slope 0.01 for 0.2": ("between", [(ACTIVATION, "nnx.leaky_relu(20 * self.a(x))")]),
    "quick gelu, exact": ("between", [(ACTIVATION, "nnx.gelu(20 * self.a(x), approximate=False)")]),
    "embedding not scaled": ("plain", [("self.words(tokens) * WIDTH**0.5", "self.words(tokens)")]),
    "scores over the root of the width": ("plain", [("(WIDTH // HEADS) ** 0.5", "WIDTH**0.5")]),
    "scores not scaled": ("plain", [(" / (WIDTH // HEADS) ** 0.5", "")]),
    "positions from 1, in [B, S]": ("plain", [("to(jnp.arange(t), (n", "to(jnp.arange(1, t + 1), (n")]),
    "positions from 2": ("plain", [("to(jnp.arange(t), (n", "to(jnp.arange(t) + 2, (n")]),
    "positions reversed": ("plain", [("to(jnp.arange(t), (n", "to(jnp.arange(t)[::-1], (n")]),
    "window, one key more": ("plain", [("(apart < WINDOW)", "(apart <= WINDOW)")]),
    "window, one key fewer": ("plain", [("(apart < WINDOW)", "(apart < WINDOW - 1)")]),
    "causal, without the query's own key": ("plain", [("(apart >= 0)", "(apart > 0)")]),
    "not causal": ("plain", [("(apart >= 0) & ", "")]),
    "padding is seen": ("plain", [(MASK, "(apart >= 0) & (apart < WINDOW)")]),
    "padding inverted": ("plain", [("tokens != 0)", "tokens == 0)")]),
    "softmax over heads": ("plain", [("-1e9), axis=-1)", "-1e9), axis=1)")]),
    "mean over features": ("plain", [("x.mean(1)", "x.mean(2)")]),
    "std divided by n": ("plain", [("keepdims=True, ddof=1)", "keepdims=True)")]),
    "heads split crosswise, in plain code": (
        "plain",
        [("part.reshape(n, t, HEADS, -1)", "part.reshape(n, t, -1, HEADS).swapaxes(2, 3)")],
    ),
    "heads put together as they lie": ("plain", [("weights, v)\n", "weights, v).transpose(0, 2, 1, 3)\n")]),
    "value, query, key": ("plain", [("q, k, v = (part", "k, v, q = (part")]),
    "query, key and value by head": (
        "plain",
        [(f"q, k, v = {SPLIT}", BY_HEAD)],
    ),
    "axes of equal length not swapped": (
        "plain",
        [("self.mix(x.transpose(0, 2, 1)).transpose(0, 2, 1)", "self.mix(x)")],
    ),
    "no residual": ("plain", [("x = x + self.attend(", "x = self.attend(")]),
    "residual from behind the norm": ("plain", [("x = x + self.attend(", "x = y + self.attend(")]),
    "float16 table": (
        "plain",
        [("np.arange(t), frequencies)))", "np.arange(t), frequencies)).astype(np.float16))")],
    ),
    "two linear layers exchanged": (
        "plain",
        [("self.gate(y)", "self.up_(y)"), ("self.up(y)", "self.gate(y)"), ("self.up_(y)", "self.up(y)")],
    ),
    "two norms exchanged": (
        "plain",
        [
            ("self.first(x)", "self.second_(x)"),
            ("self.second(x)", "self.first(x)"),
            ("self.second_(x)", "self.second(x)"),
        ],
    ),
    "KLDivLoss, mean over all elements": ("divergence", [(".mean()", ".mean() / scores.shape[-1]")]),
}


def planted(name: str) -> str | None:
    """Return a bug's port, or None if it has no text here."""
    if name not in PLANTS:
        return None
    file, changes = PLANTS[name]
    source = healthy(file)
    for before, after in changes:
        assert source.count(before) == 1, f"{file} has {source.count(before)} times {before!r}"
        source = source.replace(before, after)
    return source


def healthy(file: str) -> str:
    return (FOLDER / f"{file}.py").read_text(encoding="utf-8")
